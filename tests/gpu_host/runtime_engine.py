"""The double of tensorrt with a parser, builder and runtime whose engines ONNX Runtime computes.

An engine is the double's magic, then JSON with the path of its ONNX and its profiles; of one that
the real builder of TensorRT-RTX made, the variable `GPU_HOST_ONNX` names the model. The variable
`GPU_HOST_FAULT` plants a fault: `offset` adds 0.5 to every output, `memory` raises as torch does
out of memory, `crash` ends the process, `context` returns no execution context, `build` ends the
build without an engine.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

sys.path.append(str(Path(__file__).parents[1]))
import tensorrt_double

sys.path.pop()

FAULT = "GPU_HOST_FAULT"
ONNX = "GPU_HOST_ONNX"  # the model of an engine that the real builder of TensorRT-RTX made
_DTYPES = {
    onnx.TensorProto.FLOAT: ("FLOAT", np.float32),
    onnx.TensorProto.DOUBLE: ("FLOAT", np.float32),  # as in TensorRT, which has no double
    onnx.TensorProto.FLOAT16: ("HALF", np.float16),
    onnx.TensorProto.INT32: ("INT32", np.int32),
    onnx.TensorProto.INT64: ("INT64", np.int64),
    onnx.TensorProto.BOOL: ("BOOL", np.bool_),
    onnx.TensorProto.UINT8: ("UINT8", np.uint8),
    onnx.TensorProto.INT8: ("INT8", np.int8),
}
_COMPUTE = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def use_cpu_memory() -> None:
    """Let engines of this process run on CPU memory: torch has no CUDA here."""
    import torch

    from modelc.converters import runner_base
    from modelc.converters.trt import engine_runner

    construct = engine_runner.EngineRunner.__init__

    def on_cpu(self: Any, trt: Any, loaded: Any, signature: Any, device: Any) -> None:
        construct(self, trt, loaded, signature, torch.device("cpu") if device else device)

    engine_runner.EngineRunner.__init__ = on_cpu  # type: ignore[method-assign]
    runner_base.check_device = lambda device: None  # noqa: ARG005 - any device is here


def names_of_double(magic: bytes, version: str = "") -> dict[str, Any]:
    """The names of the module, for a child process that builds as for one that runs engines.

    `magic` starts each engine; `version` is that of the module, 11.4's own where it is empty.
    """
    stage = _Stage(magic=magic)
    stage.double = tensorrt_double.Double(tensorrt_double.surface_of("11.4"), stage.behaviours())
    names = {name: value for name, value in vars(stage.double.module).items()
             if name == "__version__" or not name.startswith("__")}  # fmt: skip
    return {**names, "__version__": version or names["__version__"]}


@dataclass
class _Context:
    """What is set on an execution context, and the outputs of its inputs."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    profile: int = 0


@dataclass
class _Engine:
    """A deserialized engine: the model, a session of ONNX Runtime, and the profiles."""

    path: Path
    profiles: list[dict[str, list[list[int]]]]

    def __post_init__(self) -> None:
        self.model = onnx.load(self.path, load_external_data=False)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = onnxruntime.InferenceSession(self.path, options)
        graph = self.model.graph
        self.inputs = {one.name: one for one in graph.input}
        self.outputs = {one.name: one for one in graph.output}
        self.names = [*self.inputs, *self.outputs]

    def dtype(self, name: str) -> tuple[str, Any]:
        value = self.inputs.get(name) or self.outputs[name]
        return _DTYPES[value.type.tensor_type.elem_type]

    def run(self, context: _Context) -> None:
        """Compute the outputs from what lies at the addresses of the inputs."""
        feed = {}
        for name in self.inputs:
            kind, shape = np.dtype(self.dtype(name)[1]), context.shapes[name]
            count = int(np.prod(shape, dtype=np.int64))
            held = ctypes.string_at(context.addresses[name], count * kind.itemsize)
            array = np.frombuffer(held, kind).reshape(shape)
            doubled = self.inputs[name].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
            feed[name] = array.astype(np.float64) if doubled else array
        results = zip(self.outputs, self.session.run(None, feed), strict=True)
        context.outputs = {name: one.astype(self.dtype(name)[1]) for name, one in results}
        if os.environ.get(FAULT) == "offset":
            context.outputs = {name: one + one.dtype.type(0.5) for name, one in
                               context.outputs.items()}  # fmt: skip

    def layers(self) -> str:
        """The inspector's answer: a layer for each product, int8 where its data is quantized.

        How TensorRT describes FP8 and INT4 is not known: such layers are named as floating point.
        """
        makers = {name: node.op_type for node in self.model.graph.node for name in node.output}
        rows = []
        for node in self.model.graph.node:
            if node.op_type in _COMPUTE:
                int8 = makers.get(node.input[0]) == "DequantizeLinear"
                tactic = "i8i8_i8i32_f32" if int8 else "f32f32_f32f32_f32"
                rows.append({
                    "Name": node.name,
                    "LayerType": "CaskConvolution" if "Conv" in node.op_type else "CaskGemmMatMul",
                    "Inputs": [],
                    "TacticName": f"sm80_xmma_fprop_implicit_gemm_{tactic}",
                    "Metadata": f"[ONNX Layer: {node.name}]",
                })  # fmt: skip
        return json.dumps({"Layers": rows, "Bindings": self.names})


@dataclass
class _Stage:
    """The behaviours of the double, with what each of its objects stands for."""

    magic: bytes
    double: Any = None

    def behaviours(self) -> dict[str, Callable[..., Any]]:
        return {**self._parsing(), **self._building(), **self._engine(), **self._context()}

    def member(self, enum: str, name: str) -> Any:
        return getattr(getattr(self.double.module, enum), name)

    def tensor(self, value: Any) -> Any:
        kind = value.type.tensor_type
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)
        dtype = self.member("DataType", _DTYPES[kind.elem_type][0])
        return self.double.new("ITensor", name=value.name, dtype=dtype, shape=shape,
                               is_shape_tensor=False)  # fmt: skip

    def _parsing(self) -> dict[str, Callable[..., Any]]:
        def parse(parser: Any, model: str) -> bool:
            network = parser.__dict__["_given"]["network"].__dict__["_own"]
            network["path"], network["model"] = model, onnx.load(model, load_external_data=False)
            return True

        def graph(network: Any) -> Any:
            return network.__dict__["_own"]["model"].graph

        return {
            "init_libnvinfer_plugins": lambda **_: True,
            "Builder.create_network": lambda *_, **__: self.double.new("INetworkDefinition"),
            "OnnxParser.parse_from_file": parse,
            "INetworkDefinition.num_inputs": lambda one: len(graph(one).input),
            "INetworkDefinition.num_outputs": lambda one: len(graph(one).output),
            "INetworkDefinition.num_layers": lambda _: 0,
            "INetworkDefinition.get_input": lambda one, index: self.tensor(graph(one).input[index]),
            "INetworkDefinition.get_output": lambda one, index: self.tensor(
                graph(one).output[index]
            ),
        }

    def _building(self) -> dict[str, Callable[..., Any]]:
        def add_profile(config: Any, profile: Any) -> int:
            profiles = config.__dict__["_own"].setdefault("profiles", [])
            profiles.append(profile.__dict__["_own"]["shapes"])
            return len(profiles) - 1

        def set_shape(profile: Any, input: str, **sizes: Any) -> None:  # noqa: A002 - its name
            shapes = profile.__dict__["_own"].setdefault("shapes", {})
            shapes[input] = [list(sizes[key]) for key in ("min", "opt", "max")]

        def build(_: Any, network: Any, config: Any) -> Any:
            if os.environ.get(FAULT) == "build":
                return None
            own, network_own = config.__dict__["_own"], network.__dict__["_own"]
            monitor = own["progress_monitor"]
            monitor.phase_start("Building Engine", None, 2)
            monitor.step_complete("Building Engine", 0)
            monitor.phase_finish("Building Engine")
            facts = {"onnx": network_own["path"], "profiles": own.get("profiles", [])}
            return self.memory(self.magic + json.dumps(facts).encode())

        return {
            "Builder.create_builder_config": lambda _: self.double.new("IBuilderConfig"),
            "Builder.create_optimization_profile": lambda _: self.double.new(
                "IOptimizationProfile"
            ),
            "Builder.build_serialized_network": build,
            "IOptimizationProfile.set_shape": set_shape,
            "IOptimizationProfile.__bool__": lambda _: True,
            "IBuilderConfig.add_optimization_profile": add_profile,
            "IBuilderConfig.set_memory_pool_limit": lambda *_, **__: None,
            "IBuilderConfig.set_flag": lambda *_, **__: None,
            "IBuilderConfig.clear_flag": lambda *_, **__: None,
            "IBuilderConfig.create_timing_cache": lambda *_, **__: self.double.new("ITimingCache"),
            "IBuilderConfig.set_timing_cache": lambda *_, **__: True,
            "IBuilderConfig.get_timing_cache": lambda _: self.double.new("ITimingCache"),
            "ITimingCache.combine": lambda *_, **__: True,
            "ITimingCache.serialize": lambda _: self.memory(b"timings"),
        }

    def memory(self, data: bytes) -> Any:
        made = self.double.new("IHostMemory")
        made.extend(data)
        return made

    def _engine(self) -> dict[str, Callable[..., Any]]:
        def load(_: Any, serialized_engine: bytes) -> Any:
            text = bytes(serialized_engine).removeprefix(self.magic)
            made_here = text.startswith(b"{")
            facts: Any = (
                json.loads(text) if made_here else {"onnx": os.environ[ONNX], "profiles": []}
            )
            engine = _Engine(path=Path(str(facts["onnx"])), profiles=facts["profiles"])
            return self.double.new("ICudaEngine", engine=engine)

        def of(one: Any) -> _Engine:
            engine: _Engine = one.__dict__["_own"]["engine"]
            return engine

        def profile_shape(one: Any, profile_index: int, name: str) -> Any:
            engine = of(one)
            if engine.profiles:
                return [tuple(sizes) for sizes in engine.profiles[profile_index][name]]
            shape = self.tensor(engine.inputs[name]).shape
            return [tuple(limit if one < 0 else one for one in shape) for limit in (1, 1, 1 << 20)]

        def new_context(one: Any, *_: Any, **__: Any) -> Any:
            if os.environ.get(FAULT) == "context":
                return None
            return self.double.new("IExecutionContext", engine=of(one), context=_Context())

        def mode(one: Any, name: str) -> Any:
            return self.member("TensorIOMode", "INPUT" if name in of(one).inputs else "OUTPUT")

        return {
            "Runtime.deserialize_cuda_engine": load,
            "ICudaEngine.streamable_weights_size": lambda _: 0,
            "ICudaEngine.num_io_tensors": lambda one: len(of(one).names),
            "ICudaEngine.num_optimization_profiles": lambda one: max(1, len(of(one).profiles)),
            "ICudaEngine.get_tensor_name": lambda one, index: of(one).names[index],
            "ICudaEngine.get_tensor_mode": mode,
            "ICudaEngine.get_tensor_dtype": lambda one, name: self.member(
                "DataType", of(one).dtype(name)[0]
            ),
            "ICudaEngine.get_tensor_location": lambda *_, **__: self.member(
                "TensorLocation", "DEVICE"
            ),
            "ICudaEngine.get_tensor_profile_shape": profile_shape,
            "ICudaEngine.is_shape_inference_io": lambda *_, **__: False,
            "ICudaEngine.create_execution_context": new_context,
            "ICudaEngine.create_engine_inspector": lambda one: self.double.new(
                "EngineInspector", engine=of(one)
            ),
            "EngineInspector.get_engine_information": lambda one, **_: of(one).layers(),
        }

    def _context(self) -> dict[str, Callable[..., Any]]:
        behaviours: dict[str, Callable[..., Any]] = {
            "active_optimization_profile": lambda one: _set_values(one).profile,
            "set_optimization_profile_async": _set_profile,
            "set_input_shape": _set_shape,
            "set_tensor_address": _set_address,
            "infer_shapes": _infer_shapes,
            "get_tensor_shape": lambda one, name: tuple(_set_values(one).outputs[name].shape),
            "execute_async_v3": _execute,
        }
        return {f"IExecutionContext.{name}": behave for name, behave in behaviours.items()}


def _set_values(one: Any) -> _Context:
    context: _Context = one.__dict__["_own"]["context"]
    return context


def _infer_shapes(one: Any) -> list[str]:
    one.__dict__["_own"]["engine"].run(_set_values(one))
    return []


def _set_shape(one: Any, name: str, shape: Any) -> bool:
    _set_values(one).shapes[name] = tuple(shape)
    return True


def _set_address(one: Any, name: str, memory: int) -> bool:
    _set_values(one).addresses[name] = memory
    return True


def _set_profile(one: Any, profile_index: int, **_: Any) -> bool:
    _set_values(one).profile = profile_index
    return True


def _execute(one: Any, **_: Any) -> bool:
    if os.environ.get(FAULT) == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if os.environ.get(FAULT) == "memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    context = _set_values(one)
    for name, array in context.outputs.items():
        held = np.ascontiguousarray(array).tobytes()
        ctypes.memmove(context.addresses[name], held, len(held))
    profiler = one.__dict__["_own"].get("profiler")
    if profiler is not None:
        for row in json.loads(one.__dict__["_own"]["engine"].layers())["Layers"]:
            profiler.report_layer_time(row["Name"], 0.1)
    return True
