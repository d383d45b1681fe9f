"""What the judge over tokens finds, and what outputs alone find, in planted faults of decoders.

`python -m modelc.benchmarks.token_faults DIR...` takes output folders of
`modelc export ... --model-arg task=text-generation-merged --to onnx,onnx:int4`, of models that
token_models.py trained. It edits copies of each ONNX file, judges them, and prints a table.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from modelc.core.kinds import ReasonCode
from modelc.core.records import Artifact
from modelc.core.verdict import State
from modelc.pipeline.judge_case import Candidate, JudgeRequest
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.recorded_run import Moved
from modelc.pipeline.reopen import RecordedRequests, find_recorded_run
from modelc.pipeline.run_progress import Progress, temporary_logs
from modelc.pipeline.token_judge import check_tokens
from modelc.pipeline.verdict_rules import judge_file

KEY, VALUE = "past_key_values.{}.key", "past_key_values.{}.value"
ARTIFACTS = ("onnx", "onnx-fp16", "onnx-int8-weights", "onnx-int4")
HEAD = 32  # rows of the first query head


def _helper() -> Any:
    import onnx.helper

    return onnx.helper


def feed_through(model: Any, name: str, nodes: Callable[[str, str], list[Any]]) -> None:
    """Let the consumers of an input read what `nodes(input, output)` compute from it."""
    made = f"{name}_faulty"
    for node in model.graph.node:
        for index, one in enumerate(node.input):
            if one == name:
                node.input[index] = made
    for node in reversed(nodes(name, made)):
        model.graph.node.insert(0, node)


def int_constant(name: str, values: Any) -> Any:
    """Return a node that gives these integers."""
    import onnx.numpy_helper

    tensor = onnx.numpy_helper.from_array(np.asarray(values, np.int64), name)
    return _helper().make_node("Constant", [], [name], value=tensor)


def shift_cache(model: Any) -> None:
    """Let layer 0 read each cached token one place late: the newest is lost, the first repeated."""

    def nodes(name: str, made: str) -> list[Any]:
        make, key = _helper().make_node, made
        return [
            int_constant(f"{key}_0", 0), int_constant(f"{key}_1", 1),
            int_constant(f"{key}_2", [2]),
            make("Shape", [name], [f"{key}_shape"]),
            make("Gather", [f"{key}_shape", f"{key}_2"], [f"{key}_length"]),
            int_constant(f"{key}_axes", [0]),
            make("Squeeze", [f"{key}_length", f"{key}_axes"], [f"{key}_stop"]),
            make("Range", [f"{key}_0", f"{key}_stop", f"{key}_1"], [f"{key}_range"]),
            make("Sub", [f"{key}_range", f"{key}_1"], [f"{key}_less"]),
            make("Max", [f"{key}_less", f"{key}_0"], [f"{key}_index"]),
            make("Gather", [name, f"{key}_index"], [made], axis=2),
        ]  # fmt: skip

    for name in (KEY.format(0), VALUE.format(0)):
        feed_through(model, name, nodes)


def swap_layers(model: Any) -> None:
    """Exchange the caches of layers 0 and 1."""
    for one, other in ((KEY.format(0), KEY.format(1)), (VALUE.format(0), VALUE.format(1))):
        swapped = {one: other, other: one}
        for node in model.graph.node:
            for index, name in enumerate(node.input):
                node.input[index] = swapped.get(name, name)


def shift_mask(model: Any) -> None:
    """Move the mask by one place: the last token of the padding is seen, or a token is not."""

    def nodes(name: str, made: str) -> list[Any]:
        make = _helper().make_node
        return [
            int_constant(f"{made}_0", [0]), int_constant(f"{made}_1", [1]),
            int_constant(f"{made}_m", [-1]),
            make("Slice", [name, f"{made}_0", f"{made}_1", f"{made}_1"], [f"{made}_first"]),
            make("Slice", [name, f"{made}_0", f"{made}_m", f"{made}_1"], [f"{made}_rest"]),
            make("Concat", [f"{made}_first", f"{made}_rest"], [made], axis=1),
        ]  # fmt: skip

    feed_through(model, "attention_mask", nodes)


def freeze_positions(model: Any) -> None:
    """Let each step of one token be at position 0."""

    def nodes(name: str, made: str) -> list[Any]:
        make = _helper().make_node
        return [
            int_constant(f"{made}_1", [1]),
            make("Shape", [name], [f"{made}_shape"]),
            make("Gather", [f"{made}_shape", f"{made}_1"], [f"{made}_length"]),
            make("Equal", [f"{made}_length", f"{made}_1"], [f"{made}_step"]),
            make("Sub", [name, name], [f"{made}_zero"]),
            make("Where", [f"{made}_step", f"{made}_zero", name], [made]),
        ]

    feed_through(model, "position_ids", nodes)


def list_products(model: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield products with weights, in order, with the initializers by name."""
    known = {one.name: one for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("MatMul", "MatMulNBits", "Gemm") and node.input[1] in known:
            yield node, known


def edit_tensor(tensor: Any, change: Callable[[Any], Any]) -> None:
    """Replace the values of a tensor by those that `change` makes of a copy."""
    import onnx.numpy_helper

    array = change(onnx.numpy_helper.to_array(tensor).copy())
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def swap_heads(model: Any) -> None:
    """Exchange the first two query heads of layer 0."""
    node, known = next(list_products(model))
    packed = node.op_type == "MatMulNBits"
    count = known[node.input[1]].dims[0 if packed else 1]

    def swap(array: Any) -> Any:
        rows = array.reshape(count, -1) if packed else array.T
        order = [*range(HEAD, 2 * HEAD), *range(HEAD), *range(2 * HEAD, count)]
        return rows[order].reshape(array.shape) if packed else rows[order].T.copy()

    for name in [one for one in node.input[1:] if one in known]:
        edit_tensor(known[name], swap)


def double_scale(model: Any) -> None:
    """Double the scale of one block of the first product."""
    node, known = next(list_products(model))
    if node.op_type != "MatMulNBits":
        raise LookupError("no blocks")

    def change(array: Any) -> Any:
        array.reshape(-1)[0] *= 2
        return array

    edit_tensor(known[node.input[2]], change)


def _edit_products(model: Any, place: int, change: Callable[[Any], Any]) -> None:
    """Change an input of all products with integer weights."""
    found = [(node, known) for node, known in list_products(model)]
    packed = [(node, known) for node, known in found if node.op_type == "MatMulNBits"]
    if not packed:
        raise LookupError("no integer weights")
    for node, known in packed:
        edit_tensor(known[node.input[place]], change)


def drop_bits(model: Any) -> None:
    """Clear the lowest bit of each 4-bit weight: 3 bits are left."""
    node, _ = next(list_products(model))
    bits = next((one.i for one in node.attribute if one.name == "bits"), 0)
    if bits != 4:  # noqa: PLR2004 - the bits of int4
        raise LookupError("no weights of 4 bits")
    _edit_products(model, 1, lambda array: array & np.uint8(0xEE))


def scale_blocks(model: Any) -> None:
    """Enlarge every seventh scale of all products by 30 %."""

    def change(array: Any) -> Any:
        array.reshape(-1)[::7] *= 1.3
        return array

    _edit_products(model, 2, change)


FAULTS: dict[str, Callable[[Any], None]] = {
    "none": lambda _: None,
    "one block's scale doubled": double_scale,
    "every 7th scale +30 %": scale_blocks,
    "3 bits in place of 4": drop_bits,
    "two heads swapped": swap_heads,
    "cache one token late": shift_cache,
    "caches of two layers swapped": swap_layers,
    "mask shifted by one": shift_mask,
    "step's position frozen": freeze_positions,
}


@contextmanager
def open_requests(folder: Path) -> Iterator[tuple[RecordedRequests, str]]:
    """Open eager of an output folder, to judge copies of its artifacts in a temporary folder."""
    manifest = read_manifest(folder)
    assert manifest is not None
    with temporary_logs() as logs, tempfile.TemporaryDirectory() as place:
        progress = Progress(tell=lambda _: None, logs=logs)
        run = find_recorded_run(manifest, folder, Moved(), None)
        eager = run.open_eager(run.read_checkpoint(progress), progress)
        yield RecordedRequests(run=run, eager=eager, progress=progress, settings={}), place


def judge_faults(
    folder: Path, names: tuple[str, ...], others: dict[str, Path]
) -> Iterator[tuple[str, ...]]:
    """Judge copies of each ONNX artifact with one fault each, and other files, by artifact."""
    import onnx

    with open_requests(folder) as (requests, place):
        for artifact in (one for one in requests.run.manifest.artifacts if one.name in names):
            candidate = requests.candidate_of(artifact)
            for name, plant in FAULTS.items():
                model = onnx.load(candidate.path)
                try:
                    plant(model)
                except (LookupError, StopIteration):
                    continue
                path = Path(place) / "faulty.onnx"
                onnx.save(model, path)
                yield _judge(requests, artifact, candidate, path, name)
            if artifact.name in others:
                yield _judge(requests, artifact, candidate, others[artifact.name], "another file")


def _judge(
    requests: RecordedRequests, artifact: Artifact, candidate: Candidate, path: Path, fault: str
) -> tuple[str, ...]:
    from dataclasses import replace

    judging = requests.run.judging
    request: JudgeRequest = requests.make(artifact, replace(candidate, path=path), judging)
    judged = judge_file(request)
    weights = [one for one in judged.verdict.reasons if one.code is ReasonCode.WEIGHT_ALTERED]
    outputs = [one for one in judged.verdict.reasons if one not in weights]
    clean = replace(judged.measured, state=State.PASSED, reasons=())  # outputs may reject it too
    ruling = check_tokens(request, replace(judged, measured=clean, rulings=()))
    report = ruling.tokens
    found = sorted({one.code.value for one in ruling.last + ruling.first})
    sqnr = "" if judged.verdict.sqnr is None else f"{judged.verdict.sqnr:.1f}"
    figures = ("", "", "", "", "")
    if report is not None:
        worst = max(report.ways, key=lambda way: way.kl)
        own = max((way.own_kl or 0.0 for way in report.ways), default=0.0)
        figures = (
            f"{report.text.kl:.2g}", f"{report.text.agreement:.1%}", f"{report.text.near:.1%}",
            f"{report.increase:+.1%}", f"{worst.kl:.2g} {worst.kind} (own {own:.1g})",
        )  # fmt: skip
    marks = ("found" if outputs else "-", "found" if weights else "-", ", ".join(found) or "-")
    return (candidate.name, fault, sqnr, *marks, *figures)


def main() -> None:
    """Print a row for each artifact and fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--artifact", action="append", choices=ARTIFACTS)
    parser.add_argument("--other", action="append", default=[], metavar="ARTIFACT=FILE",
        help="a faulty file to judge as this artifact is")  # fmt: skip
    given = parser.parse_args()
    others = {name: Path(path) for name, _, path in (one.partition("=") for one in given.other)}
    head = ("artifact", "fault", "SQNR dB", "outputs", "weights", "tokens", "KL", "agreement",
        "near", "perplexity", "worst way")  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for folder in given.folders:
        for row in judge_faults(folder, tuple(given.artifact or ARTIFACTS), others):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
