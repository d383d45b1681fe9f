"""The layers of an engine from the log of the builder of TensorRT-RTX, which needs no GPU.

After a build with detailed profiling verbosity the builder logs each layer of the engine in one
line: its type, its tensors with their types, and its ONNX nodes. The operands of a layer are final;
its kernel is chosen when the engine is loaded, so a line names a placeholder for it.
"""

from __future__ import annotations

import json
import re

LAYERS_TITLE = "Layers:"  # the first line of the message
BUILDER_LOG_SOURCE = "operands in the builder's log; kernels are chosen when the engine is loaded"
_PLACEHOLDER = "__myelin_CASK_STUB"
_LAYER = re.compile(
    r"Name: (?P<name>.*), LayerType: (?P<kind>\w*), Inputs: \[(?P<inputs>.*)\], "
    r"Constants: \[(?P<constants>.*)\], Outputs: \[(?P<outputs>.*)\], "
    r"TacticName: (?P<tactic>.*), StreamId: \d+, Metadata: (?P<metadata>.*)"
)
_TENSOR = re.compile(
    r"\{ Name: (?P<name>.*?), Dimensions: \[(?P<dims>[-\d,]*)\].*?, Datatype: (?P<type>\w+)"
)


def logged_layers(message: str) -> str:
    """Return the layers in the form of the engine inspector's JSON; empty if there are none.

    A line of another form is kept as a bare name, as of a layer without details.
    """
    rows = [_parse_line(line) for line in message.splitlines() if line.startswith("Name: ")]
    return json.dumps({"Layers": rows}) if rows else ""


def _parse_line(line: str) -> str | dict[str, object]:
    found = _LAYER.fullmatch(line)
    if found is None:
        return line.removeprefix("Name: ").partition(",")[0]
    tactic = found["tactic"]
    return {
        "Name": found["name"],
        "LayerType": found["kind"],
        "Inputs": _parse_tensors(found["inputs"]),
        "Constants": _parse_tensors(found["constants"]),
        "Outputs": _parse_tensors(found["outputs"]),
        "TacticName": "" if tactic == _PLACEHOLDER else tactic,
        "Metadata": found["metadata"],
    }


def _parse_tensors(text: str) -> list[dict[str, object]]:
    return [
        {
            "Name": one["name"],
            "Dimensions": [int(size) for size in one["dims"].split(",") if size],
            "Datatype": one["type"],
        }
        for one in _TENSOR.finditer(text)
    ]
