"""Which layer is named when a fault is planted in a decoder.

`python -m modelc.benchmarks.layer_faults DIR...` takes output folders of `modelc export` of
one-graph decoders (task `text-generation-merged`, `text2text-generation-merged`, ...). It edits
copies of the artifacts with onnx or OpenVINO only, judges each as `modelc validate` does, looks for
the layer as after a rejection, and prints a table. Where each fault is says which layer is right.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from modelc.core.errors import ModelcError
from modelc.core.kinds import ReasonCode
from modelc.core.target_extensions import Probed
from modelc.pipeline.debug.locate_layer import SuspectArtifact, locate_layer
from modelc.pipeline.judge_case import Candidate
from modelc.pipeline.own_weights import find_graph_fault
from modelc.pipeline.reopen import RecordedRequests
from modelc.pipeline.token_judge import check_tokens
from modelc.pipeline.verdict_rules import judge_file
from modelc.pipeline.worst_feed import add_feed, find_worst_feed, read_feed

from . import token_faults
from .layer_faults_openvino import WINDOWS, write_faulty
from .token_faults import FAULTS, edit_tensor, list_products, open_requests

Plant: TypeAlias = Callable[[Any], None]
_FIRST = r"(layers|h|block)\.0\b"  # the first layer's modules
_SECOND = r"(layers|h|block)\.1\b"
_WHOLE = (
    r"^\(model\)$|^model(\.\w+)?(\.decoder|\.transformer)?$"  # code of the decoder's own forward
)
ARTIFACTS = (
    "onnx", "onnx-int8-weights", "onnx-int4", "openvino", "openvino-int8-weights", "openvino-int4",
)  # fmt: skip
_CROSS = 4  # the product with the query of layer 0 to the encoder


def _swap_heads_of(place: int, model: Any) -> None:
    """Exchange the first two heads of 16 columns of a product with weights."""
    node, known = list(list_products(model))[place]
    if node.op_type == "MatMulNBits":
        raise LookupError("packed")
    encoder = any(".encoder." in one.name for one in model.graph.input)
    if place == _CROSS and not encoder:
        raise LookupError("no encoder")
    tensor = known[node.input[1]]
    order = [*range(16, 32), *range(16), *range(32, tensor.dims[1])]
    edit_tensor(tensor, lambda array: array[:, order])


def _scale_block_of(place: int, model: Any) -> None:
    """Double the scale of the block 5 of a packed product."""
    node, known = list(list_products(model))[place]
    if node.op_type != "MatMulNBits":
        raise LookupError("no blocks")

    def change(array: Any) -> Any:
        array.reshape(-1)[5] *= 2
        return array

    edit_tensor(known[node.input[2]], change)


def _renamed(plant: Plant, model: Any, *, layer: int) -> None:
    """Plant a fault of the cache in another layer, by the names of this model's inputs."""
    names = [one.name for one in model.graph.input]
    keys = [one for one in names if one.startswith(f"past_key_values.{layer}.")]
    own = [one for one in keys if one.endswith((".key", ".value")) and ".encoder." not in one]
    if not own:
        raise LookupError("no cache")
    middle = own[0].removeprefix(f"past_key_values.{layer}").removesuffix("key")
    before = token_faults.KEY, token_faults.VALUE
    shown = f"past_key_values.{{}}{middle}"
    if layer:
        shown = shown.replace("{}", str(layer))
    token_faults.KEY, token_faults.VALUE = f"{shown}key", f"{shown}value"
    try:
        plant(model)
    finally:
        token_faults.KEY, token_faults.VALUE = before


def _swap_caches(model: Any) -> None:
    if any(".conv_state" in one.name for one in model.graph.input):
        raise LookupError("one cache")
    _renamed(FAULTS["caches of two layers swapped"], model, layer=0)


def _shift_mask(model: Any) -> None:
    names = {one.name for one in model.graph.input}
    name = next(n for n in ("attention_mask", "encoder_attention_mask") if n in names)
    for one in model.graph.node:
        for index, read in enumerate(one.input):
            one.input[index] = "attention_mask" if read == name else read
    if name != "attention_mask":
        next(one for one in model.graph.input if one.name == name).name = "attention_mask"
    FAULTS["mask shifted by one"](model)
    for one in [*model.graph.node, *model.graph.input]:
        if getattr(one, "name", "") == "attention_mask":
            one.name = name
        for index, read in enumerate(getattr(one, "input", ())):
            one.input[index] = name if read == "attention_mask" else read


def _freeze_positions(model: Any) -> None:
    """Let each step be at position 0: the input, or the index into the table of positions."""
    if any(one.name == "position_ids" for one in model.graph.input):
        FAULTS["step's position frozen"](model)
        return
    from onnx import helper

    known = {one.name: list(one.dims) for one in model.graph.initializer}
    tables = [
        node for node in model.graph.node
        if node.op_type == "Gather" and known.get(node.input[0], [0])[0] in (32, 64, 66)
    ]  # fmt: skip
    if not tables:
        raise LookupError("no table of positions")
    node = tables[-1]
    index = list(model.graph.node).index(node)
    made = helper.make_node("Sub", [node.input[1], node.input[1]], ["frozen"])
    node.input[1] = "frozen"
    model.graph.node.insert(index, made)


def _edit_constants(change: Callable[[Any], Any], fits: Callable[[Any], bool], model: Any) -> None:
    found = [one for one in model.graph.initializer if fits(one)]
    if not found:
        raise LookupError("no such constant")
    for tensor in found:
        edit_tensor(tensor, lambda array: np.asarray(change(array)))


def _ignore_window(model: Any) -> None:
    """Make a sliding window one of 1000 tokens."""
    read = {
        name
        for node in model.graph.node
        if node.op_type in ("Sub", "Add", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
        for name in node.input
    }

    def is_window(tensor: Any) -> bool:
        import onnx.numpy_helper

        array = onnx.numpy_helper.to_array(tensor)
        return (
            tensor.name in read and array.dtype == np.int64 and abs(int(array.flat[0])) in WINDOWS
        )

    _edit_constants(lambda array: np.sign(array) * 1000, is_window, model)


def _scale_slope(model: Any) -> None:
    """Enlarge one of ALiBi's slopes by a half."""

    def change(array: Any) -> Any:
        array[1] *= 1.5
        return array

    def is_slope(tensor: Any) -> bool:
        return list(tensor.dims) == [4, 1] and tensor.name.startswith("unsqueeze")

    if any(one.name == "position_ids" for one in model.graph.input):
        raise LookupError("no ALiBi")
    _edit_constants(change, is_slope, model)


def _shift_state(model: Any) -> None:
    """Let the convolution of layer 0 read its state one token late."""
    from onnx import helper

    name = "past_key_values.0.conv_state"
    if name not in {one.name for one in model.graph.input}:
        raise LookupError("no state")

    def nodes(read: str, made: str) -> list[Any]:
        index = token_faults.int_constant(f"{made}_index", [0, 0, 1])
        return [index, helper.make_node("Gather", [read, f"{made}_index"], [made], axis=2)]

    token_faults.feed_through(model, name, nodes)


CASES: dict[str, tuple[Plant, str]] = {
    "two heads swapped": (partial(_swap_heads_of, 0), _FIRST),
    "two cross heads swapped": (partial(_swap_heads_of, _CROSS), _FIRST),
    "cache one token late": (
        partial(_renamed, FAULTS["cache one token late"], layer=1), _SECOND),
    "caches of two layers swapped": (_swap_caches, _FIRST),
    "mask shifted by one": (_shift_mask, f"{_FIRST}|{_WHOLE}"),
    "position frozen": (_freeze_positions, rf"{_FIRST}|{_WHOLE}|rotary|wpe|embed_pos"),
    "window ignored": (_ignore_window, f"{_FIRST}|{_WHOLE}"),
    "ALiBi slope x 1.5": (_scale_slope, f"{_FIRST}|{_WHOLE}"),
    "conv state one late": (_shift_state, _FIRST),
    "one block's scale doubled": (partial(_scale_block_of, -2), r"(layers|h|block)\.[1-9]"),
    "every 7th scale +30 %": (FAULTS["every 7th scale +30 %"], r"layers|h\.|block"),
}  # fmt: skip


def judge_folder(folder: Path, names: tuple[str, ...], faults: list[str]) -> Iterator[list[str]]:
    """Judge copies of the artifacts of a folder with one fault each."""
    with open_requests(folder) as (requests, place):
        for artifact in (one for one in requests.run.manifest.artifacts if one.name in names):
            candidate = requests.candidate_of(artifact)
            for beside in candidate.path.parent.glob("*.debug.json"):
                shutil.copy(beside, place)
            for fault in faults:
                path = Path(place) / candidate.path.name
                try:
                    _write_faulty(candidate.path, fault, path)
                except (LookupError, StopIteration):
                    continue
                copy = replace(candidate, path=path, aside=Path(place))
                row = _judge(requests, artifact, copy, CASES[fault][1])
                yield [fault, folder.name.removeprefix("out-"), artifact.name, *row]


def _write_faulty(path: Path, fault: str, copy: Path) -> None:
    """Write a copy of a model file with a fault."""
    if path.suffix == ".xml":
        write_faulty(path, fault, copy)
        return
    import onnx

    model = onnx.load(path)
    CASES[fault][0](model)
    onnx.save(model, copy)


def _judge(
    requests: RecordedRequests, artifact: Any, candidate: Candidate, right: str
) -> list[str]:
    request: Any = requests.make(artifact, candidate, requests.run.judging)
    judged: Any = judge_file(request)
    by = "outputs"
    judged = find_worst_feed(request, judged)
    if judged.passed:
        judged, by = judged.plus(check_tokens(request, judged)), "tokens"
    verdict = judged.verdict
    if verdict.passed:
        return ["not found", "", "", ""]
    altered = [one for one in verdict.reasons if one.code is ReasonCode.WEIGHT_ALTERED]
    if altered:
        by, text = "weights", altered[0].text
        named = (re.search(r"the weight (\S+)", text) or [""] * 2)[1]
        return [by, named, _grade(named, right), text.partition("checkpoint's: ")[2]]
    if find_graph_fault(verdict) is not None:
        by = "own weights"
    assert isinstance(candidate.target, Probed)
    try:
        arrays = read_feed(Path(verdict.worst.file))
        eager, feed = add_feed(requests.eager, (), arrays, name=verdict.worst.feed)
        suspect = SuspectArtifact(
            name=artifact.name, path=candidate.path, target=candidate.target,
            precision=artifact.precision,
        )  # fmt: skip
        found = locate_layer(suspect, eager, requests.progress, feed=feed)
    except ModelcError as error:
        return [by, "", "wrong", error.message]
    cause = found.cause or found.whole
    where = f"{found.layers[0].operator} {found.layers[0].node}" if found.guilty else ""
    return [by, found.guilty, _grade(found.guilty, right), f"{where}: {cause}"]


def _grade(named: str, right: str) -> str:
    return "right" if re.search(right, named) else "wrong"


def main() -> None:
    """Print a row for each model, artifact and fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--artifact", action="append", choices=ARTIFACTS)
    parser.add_argument("--fault", action="append", choices=list(CASES))
    given = parser.parse_args()
    head = ("fault", "model", "artifact", "found by", "layer", "is", "seen")
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    names = tuple(given.artifact or ARTIFACTS)
    for folder in given.folders:
        for row in judge_folder(folder, names, given.fault or list(CASES)):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
