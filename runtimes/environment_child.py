"""Runs one artifact in an environment that has a runtime and numpy, and no modelc.

Started by its path: `python -I environment_child.py FOLDER`. Requests are lines of JSON on the
standard input, and each gets one line on the standard output. Arrays lie in the folder as .npy
files, numbered by request and place. Python 3.8 and later can run it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HALF = "float16"
MAX_TEXT = 4000  # characters of an error


def main() -> None:
    """Answer requests until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a runtime prints is no answer
    folder = Path(sys.argv[1])
    model: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "versions" in request:
                answer: dict[str, Any] = {"versions": list_versions(request["versions"])}
            elif "open" in request:
                model = OPENERS[request["runtime"]](request["open"], request)
                answer = {"inputs": model.inputs}
            elif "prompt" in request:
                answer = {"tokens": model.generate(request["prompt"], request["count"])}
            else:
                answer = {"outputs": run_feed(model, folder, request)}
        except Exception as error:  # noqa: BLE001 - a runtime raises anything
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            answer = {"error": error_text(error)[:MAX_TEXT]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def list_versions(package: str) -> dict[str, Any]:
    """Return the versions of what is installed, and of Python; `module` is what imports."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        found.setdefault(one.metadata["Name"], one.version)  # the first one is imported
    module = __import__(package)
    return {
        "installed": found,
        "python": ".".join(map(str, sys.version_info[:3])),
        "module": getattr(module, "__version__", ""),
    }


def run_feed(model: Any, folder: Path, request: dict[str, Any]) -> list[str]:
    """Run one feed; write the outputs, and return their names."""
    import numpy as np

    number = request["run"]
    feed = {}
    for place, name in enumerate(request["inputs"]):
        feed[name] = np.load(folder / f"in-{number}-{place}.npy", allow_pickle=False)
    found = model.run(feed)
    for place, (name, value) in enumerate(found):
        if not isinstance(value, np.ndarray):
            raise TypeError(f"output {name} is a {type(value).__name__}, not an array")
        np.save(folder / f"out-{number}-{place}.npy", value, allow_pickle=False)
    return [name for name, _ in found]


class OnnxRuntime:
    """A session on the CPU, with the options of a session that judges in modelc."""

    def __init__(self, path: str, request: dict[str, Any]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if request.get("threads"):
            options.intra_op_num_threads = request["threads"]
            options.inter_op_num_threads = 1
        if request.get("float8"):
            options.add_session_config_entry("session.disable_quant_qdq", "1")
            basic = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
            options.graph_optimization_level = basic
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(path, options, providers=providers)
        self._types = {value.name: value.type for value in self._session.get_inputs()}
        self.inputs = list(self._types)
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._float_ends = request.get("half_io", False)

    def run(self, feed: dict[str, Any]) -> list[tuple[str, Any]]:
        """Run one feed; half ends that modelc made take and give float32."""
        given = {}
        for name in self.inputs:
            cast = self._float_ends and self._types[name] == "tensor(float16)"
            given[name] = feed[name].astype(HALF) if cast else feed[name]
        values = self._session.run(self._outputs, given)
        if self._float_ends:
            values = [
                value.astype("float32") if getattr(value, "dtype", None) == HALF else value
                for value in values
            ]
        return list(zip(self._outputs, values))  # noqa: B905 - an older Python may run this


class OpenVino:
    """An IR compiled for the CPU in float32, as modelc judges it."""

    def __init__(self, path: str, request: dict[str, Any]) -> None:
        import openvino

        config = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
        if request.get("threads"):
            config["INFERENCE_NUM_THREADS"] = str(request["threads"])
        self._model = openvino.Core().compile_model(path, "CPU", config)
        self.inputs = [port_name(port, request["inputs"]) for port in self._model.inputs]
        self._outputs = [port_name(port, request["outputs"]) for port in self._model.outputs]
        self._types = [port.get_element_type() for port in self._model.inputs]
        kinds = [port.get_element_type().get_type_name() for port in self._model.outputs]
        self._bfloat16 = [kind == "bf16" for kind in kinds]

    def run(self, feed: dict[str, Any]) -> list[tuple[str, Any]]:
        """Run one feed; OpenVINO would cast another dtype silently."""
        for name, kind in zip(self.inputs, self._types):  # noqa: B905
            if feed[name].dtype != kind.to_dtype():
                raise TypeError(f"input {name} is {feed[name].dtype}, not {kind}")
        results = self._model([feed[name] for name in self.inputs])
        return [
            (name, widen(results[place]) if self._bfloat16[place] else results[place].copy())
            for place, name in enumerate(self._outputs)
        ]


def port_name(port: Any, known: list[str]) -> Any:
    """Return the name of a tensor that the signature has, or any of its names."""
    names = port.get_names()
    for name in known:
        if name in names:
            return name
    return port.get_any_name() if names else port.get_node().get_friendly_name()


def widen(array: Any) -> Any:
    """Convert bfloat16, which OpenVINO presents as float16, to float32."""
    import numpy as np

    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


class Torch:
    """A TorchScript archive or an exported program, on the CPU."""

    def __init__(self, path: str, request: dict[str, Any]) -> None:
        import torch

        if request.get("threads"):
            torch.set_num_threads(request["threads"])
        extra = {"modelc.json": ""}
        if request["format"] == "pt2":
            with suppress(ImportError):  # defines the operators of programs that pt2e quantized
                import_module("torch.ao.quantization.fx._decomposed")
            self._call = torch.export.load(path, extra_files=extra).module()
        else:
            self._call = torch.jit.load(  # type: ignore[no-untyped-call]  # torch's own
                path, map_location="cpu", _extra_files=extra
            )
        record = json.loads(extra["modelc.json"] or "{}")
        self.inputs = list(record.get("inputs") or request["inputs"])
        self._outputs = list(record.get("outputs") or request["outputs"])
        self._flat = request["format"] == "pt2" or record.get("call") == "flat"

    def run(self, feed: dict[str, Any]) -> list[tuple[str, Any]]:
        """Run one feed, by position or by the names of the parameters."""
        import torch

        given = {name: torch.tensor(feed[name]) for name in self.inputs}
        with torch.no_grad():
            value = self._call(*given.values()) if self._flat else call_script(self._call, given)
        leaves = list(iter_tensors(value))
        if len(leaves) != len(self._outputs):
            raise ValueError(f"{len(leaves)} outputs, not {len(self._outputs)}")
        return list(zip(self._outputs, map(plain_array, leaves)))  # noqa: B905


def call_script(module: Any, given: dict[str, Any]) -> Any:
    """Call a script; `d.a` and `l.0` are parts of the parameters `d` and `l`."""
    nested: dict[str, Any] = {}
    for name, tensor in given.items():
        *above, last = name.split(".")
        place = nested
        for part in above:
            place = place.setdefault(part, {})
        place[last] = tensor
    arguments = module._c._get_method("forward").schema.arguments[1:]
    kinds = {one.name: str(one.type) for one in arguments}
    named = set(nested) <= set(kinds)
    heads = list(nested) if named else list(kinds)[: len(nested)]  # else they are in order
    values = [
        as_sequence(value, listed=kinds[head].replace("Optional[", "").startswith("List["))
        for head, value in zip(heads, nested.values())  # noqa: B905
    ]
    return module(**dict(zip(heads, values)))  # noqa: B905


def as_sequence(value: Any, *, listed: bool = False) -> Any:
    """Return a dict whose keys are places as a tuple or list, and its values likewise."""
    if not isinstance(value, dict):
        return value
    parts = {key: as_sequence(part) for key, part in value.items()}
    if not all(key.isdigit() for key in parts):
        return parts
    found = [parts[key] for key in sorted(parts, key=int)]
    return found if listed else tuple(found)


def plain_array(tensor: Any) -> Any:
    """Return a tensor as a dense array of a dtype that numpy has, as modelc's own runner does."""
    import torch

    plain = tensor.detach()
    if plain.is_quantized:
        plain = plain.dequantize()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg()
    if plain.dtype is torch.complex32:
        plain = plain.to(torch.complex64)
    exact = (torch.float16, torch.float32, torch.float64)
    if plain.is_floating_point() and plain.dtype not in exact:
        plain = plain.float()
    return plain.numpy().copy()


def iter_tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested lists, tuples and dicts, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from iter_tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from iter_tensors(one)


class OnnxRuntimeGenai:
    """A folder with `genai_config.json`, whose tokens are chosen by the largest logit."""

    inputs: tuple[str, ...] = ()

    def __init__(self, path: str, request: dict[str, Any]) -> None:  # noqa: ARG002 - as the others
        import onnxruntime_genai

        self._library, self._model = onnxruntime_genai, onnxruntime_genai.Model(path)

    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Return the tokens that follow the prompt, up to an end token."""
        import numpy as np

        settings = self._library.GeneratorParams(self._model)
        settings.set_search_options(max_length=len(prompt) + count, do_sample=False)
        generator = self._library.Generator(self._model, settings)
        generator.append_tokens(np.array([prompt], np.int32))
        found: list[int] = []
        while len(found) < count and not generator.is_done():
            generator.generate_next_token()
            found.append(int(generator.get_next_tokens()[0]))
        return found


class OpenVinoGenai:
    """A folder with `openvino_model.xml`, computed in float32 as modelc judges it."""

    inputs: tuple[str, ...] = ()

    def __init__(self, path: str, request: dict[str, Any]) -> None:
        import openvino_genai

        config = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
        if request.get("threads"):
            config["INFERENCE_NUM_THREADS"] = str(request["threads"])
        self._library, self._end = openvino_genai, request["end"]
        self._model = openvino_genai.LLMPipeline(path, "CPU", **config)

    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Return the tokens that follow the prompt."""
        import numpy as np
        import openvino

        config = self._library.GenerationConfig()
        config.max_new_tokens, config.do_sample = count, False
        config.eos_token_id, config.stop_token_ids = self._end, {self._end}
        found = self._model.generate(openvino.Tensor(np.array([prompt], np.int64)), config)
        return [int(token) for token in found.tokens[0]]


OPENERS = {
    "onnxruntime": OnnxRuntime,
    "onnxruntime_genai": OnnxRuntimeGenai,
    "openvino": OpenVino,
    "openvino_genai": OpenVinoGenai,
    "torch": Torch,
}
_ANNOUNCEMENTS = ("Exception from ", "Check '")  # lines of OpenVINO that locate its source


def error_text(error: BaseException) -> str:
    """Return the lines of an exception that say what is wrong, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(_ANNOUNCEMENTS)] or lines
    return " ".join(kept) or type(error).__name__


if __name__ == "__main__":
    main()
