"""The installed onnxruntime with a strict double of its TensorRT provider.

Options are those recorded of the wheel in tests/data/onnxruntime_tensorrt; others raise. An engine
is the whole ONNX after a magic, and the CPU provider computes it. A model without the operators of
`LEFT_OUT` gets a context model; of another one, the context model is of its last part alone, as
ONNX Runtime 1.24 writes it. No engine is built of a dynamic tensor without a profile. The variable
`GPU_HOST_FAULT` plants a fault: `offset` adds 0.5 to every output, `provider` lets the provider not
load, `context` lets it write no context model.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HOST = Path(__file__).resolve().parents[1]
_DATA = _HOST.parent / "data" / "onnxruntime_tensorrt" / "1.24.4.json"
SURFACE = json.loads(_DATA.read_text("utf-8"))
PROVIDER = SURFACE["provider"]
LEFT_OUT = {"BitwiseNot", "Det", "Unique"}
_MAGIC = b"ftrt"
_ENDS = ("min", "opt", "max")


def _load_installed() -> Any:
    """The package that this one hides, under its own name."""
    places = [one for one in sys.path if Path(one or ".").resolve() != _HOST]
    spec = importlib.machinery.PathFinder.find_spec("onnxruntime", places)
    if spec is None or spec.loader is None:
        raise ImportError("no onnxruntime is installed")
    module = importlib.util.module_from_spec(spec)
    sys.modules["onnxruntime"] = module
    spec.loader.exec_module(module)
    return module


installed = _load_installed()
_Session: Any = installed.InferenceSession


class _Partition:
    """What the provider makes of a file: the ONNX to compute, and files beside it."""

    def __init__(self, path: Path, options: Mapping[str, str]) -> None:
        import onnx

        if unknown := set(options) - set(SURFACE["options"]):
            raise ValueError(f"Unknown provider options: {sorted(unknown)}")
        self.options, self.path = dict(options), path
        self.model = onnx.load(path)
        contexts = [one for one in self.model.graph.node if one.op_type == "EPContext"]
        if contexts and len(self.model.graph.node) > 1:
            raise RuntimeError("NOT_IMPLEMENTED: EPContext beside other nodes")
        self.graph: bytes = self._read(contexts[0]) if contexts else self.model.SerializeToString()
        if not contexts and self._is_enough() and self._has_profiles():
            self._build()

    def _read(self, node: Any) -> bytes:
        values = {one.name: one for one in node.attribute}
        place: Path = self.path.parent / values["ep_cache_context"].s.decode()
        if values["embed_mode"].i or values["hardware_architecture"].s != b"89":
            raise RuntimeError("the engine is embedded, or of another GPU")
        return place.read_bytes().removeprefix(_MAGIC)

    def _is_enough(self) -> bool:
        taken = [one for one in self.model.graph.node if one.op_type not in LEFT_OUT]
        return len(taken) >= int(self.options.get("trt_min_subgraph_size", "1"))

    def _has_profiles(self) -> bool:
        """Whether every dynamic input, and float that TensorRT takes over, has three shapes."""
        shapes = [self.options.get(f"trt_profile_{end}_shapes", "") for end in _ENDS]
        read = [dict(one.split(":") for one in text.split(",") if one) for text in shapes]
        if len({tuple(one) for one in read}) > 1:
            raise RuntimeError("the profiles have other tensors, or another order")
        for sizes in zip(*(one.values() for one in read), strict=True):
            rows = [tuple(map(int, text.split("x"))) for text in sizes]
            if any(not a <= b <= c for a, b, c in zip(*rows, strict=True)):
                raise RuntimeError(f"{sizes}: min <= opt <= max is broken")
        graph = self.model.graph
        known = {one.name: one for one in (*graph.input, *graph.value_info)}
        left = [name for one in graph.node if one.op_type in LEFT_OUT for name in one.output]
        values = [*graph.input, *(known[name] for name in left)]
        return all(value.name in read[0] for value in values if _is_dynamic(value))

    def _build(self) -> None:
        whole = not any(one.op_type in LEFT_OUT for one in self.model.graph.node)
        dump = self.options.get("trt_dump_ep_context_model") == "1"
        folder = Path(self.options.get("trt_engine_cache_path", ""))
        if dump:
            if folder.is_absolute() or ".." in folder.parts:
                raise RuntimeError("trt_engine_cache_path should be set with a relative path")
            folder = Path(self.options["trt_ep_context_file_path"]).parent / folder
        prefix = self.options["trt_engine_cache_prefix"]
        names = " ".join([self.path.name, *(one.name for one in self.model.graph.output)])
        engine = folder / f"{prefix}_{zlib.crc32(names.encode())}_0_0_sm89.engine"
        if engine.exists():
            return  # ONNX Runtime writes a context model only where it builds
        engine.write_bytes(_MAGIC + self.graph)
        engine.with_suffix(".profile").write_bytes(b"profiles")
        if dump and os.environ.get("GPU_HOST_FAULT") != "context":
            self._write_context(engine.name, whole=whole)

    def _write_context(self, engine: str, *, whole: bool) -> None:
        import onnx
        from onnx import helper

        graph = self.model.graph
        inputs = list(graph.input)
        if not whole:
            (name,) = next(one.output for one in graph.node if one.op_type in LEFT_OUT)
            inputs = [one for one in graph.value_info if one.name == name]
        node = helper.make_node(
            "EPContext", [one.name for one in inputs], [one.name for one in graph.output],
            domain="com.microsoft", embed_mode=0, ep_cache_context=engine,
            hardware_architecture="89", onnx_model_filename=self.path.name,
        )  # fmt: skip
        context = helper.make_model(
            helper.make_graph([node], "context", inputs, list(graph.output)),
            opset_imports=[*self.model.opset_import, helper.make_opsetid("com.microsoft", 1)],
        )
        onnx.save(context, self.options["trt_ep_context_file_path"])


def _is_dynamic(value: Any) -> bool:
    return any(not one.HasField("dim_value") for one in value.type.tensor_type.shape.dim)


class InferenceSession(_Session):  # type: ignore[misc]  # the package has no types
    """A session of the installed package, or of the double where its provider comes first."""

    def __init__(self, path_or_bytes: Any, sess_options: Any = None, providers: Any = None,
                 **given: Any) -> None:  # fmt: skip
        first: Any = providers[0] if providers else ""
        self._imitates = isinstance(first, tuple) and first[0] == PROVIDER
        if self._imitates and os.environ.get("GPU_HOST_FAULT") == "provider":
            self._imitates, providers = False, ["CPUExecutionProvider"]
        if self._imitates:
            path_or_bytes = _Partition(Path(path_or_bytes), first[1]).graph
            providers = ["CPUExecutionProvider"]
        super().__init__(path_or_bytes, sess_options, providers=providers, **given)

    def get_providers(self) -> Any:
        """The provider first, where it is imitated."""
        found = super().get_providers()
        return [PROVIDER, "CUDAExecutionProvider", *found] if self._imitates else found

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """Run on the CPU; with a planted offset where the provider is imitated."""
        found = super().run(output_names, input_feed, run_options)
        if self._imitates and os.environ.get("GPU_HOST_FAULT") == "offset":
            return [one + one.dtype.type(0.5) if one.dtype.kind == "f" else one for one in found]
        return found


installed.InferenceSession = InferenceSession
