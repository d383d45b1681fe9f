"""Whether dynamic shapes hold: python benchmarks/shapes.py [--only NAME ...] [--doc FILE].

Each architecture of shapes_nets.py is exported by `modelc export` in a process of its own, and the
files are opened by ONNX Runtime and OpenVINO directly, without modelc, at every dim's least, odd
middle and greatest size, and at products of each two dims. Outputs are compared with eager; sizes
beyond the range are offered to OpenVINO, which must reject them. Exits 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from modelc.core.grammar import parse_input
from modelc.core.signature import FLOATS, Dim, InputSpec, Signature, merge_inputs
from modelc.tests.nets.dynamic_nets import ARCHITECTURES, FACTORY, build

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Run = Callable[[Arrays], list[NDArray[Any]]]

_SHARE = 1e-4  # of an output's peak: what float32 in another order may differ by
_INTRODUCTION = """# Dynamic shapes: the grid

Made by `make bench`. Each model is exported once; then ONNX
Runtime and OpenVINO open the files themselves, without modelc, and answer at each dim's least, odd
middle and greatest size and at the products of each two dims. Right is within {share:g} of eager's
peak, with eager's shape. Outside of the range (one below, one above each dim) OpenVINO rejects;
ONNX has no ranges.

| model | inputs | by | sizes | ONNX Runtime right | OpenVINO right | outside, rejected |
| --- | --- | --- | --- | --- | --- | --- |"""
_SHOWN = 3  # wrong sizes that a row names


@dataclass(kw_only=True)
class Row:
    """What became of one architecture; `wrong` are sizes with what was wrong, by runtime."""

    name: str
    inputs: tuple[str, ...]
    sizes: int = 0
    right: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    outside: int = 0
    answered: list[str] = field(default_factory=list)
    made_by: str = ""
    error: str = ""

    @property
    def good(self) -> bool:
        """Whether all is right and nothing outside was answered."""
        return not self.error and not self.answered and not any(self.wrong.values())


def main() -> int:
    """Read the options, run the rows, print and write them, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*ARCHITECTURES], default=[*ARCHITECTURES])
    parser.add_argument("--doc", type=Path, help="the page to write")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    args = parser.parse_args()
    rows = []
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(name, Path(folder)))
        print(json.dumps(asdict(rows[-1])) if args.json else _first_line(rows[-1]), flush=True)
        if args.doc:
            args.doc.write_text(page(rows), encoding="utf-8")
    return 0 if all(one.good for one in rows) else 1


def row(name: str, folder: Path) -> Row:
    """Export one architecture and hold both files against eager over the grid."""
    inputs = ARCHITECTURES[name].inputs
    found = Row(name=name, inputs=inputs)
    signature = merge_inputs([parse_input(text) for text in inputs], {})
    out = _export(name, folder, found)
    if found.error:
        return found
    eager = build(name)
    runs: dict[str, Run] = {"onnxruntime": _onnxruntime(out), "openvino": _openvino(out)}
    for sizes in grid(signature):
        feed = _feed(signature, sizes)
        with torch.no_grad():
            given = eager(*(torch.from_numpy(array) for array in feed.values()))
        wanted = [one.numpy() for one in (given if isinstance(given, tuple) else (given,))]
        found.sizes += 1
        for runtime, run in runs.items():
            reason = _compare(run, feed, wanted)
            found.right[runtime] = found.right.get(runtime, 0) + (not reason)
            if reason:
                found.wrong.setdefault(runtime, []).append(f"{_format_dims(sizes)}: {reason}")
    _offer_outside(signature, runs["openvino"], found)
    return found


def grid(signature: Signature) -> Iterator[dict[str, int]]:
    """Each dim at its least, odd middle and greatest size; products of each two; all at an end."""
    dims = signature.free_dims
    opt = {name: dim.opt for name, dim in dims.items()}
    seen: list[dict[str, int]] = []
    choices = {name: (dim.low, _odd(dim), dim.high) for name, dim in dims.items()}
    points = [{**opt, name: size} for name, sizes in choices.items() for size in sizes]
    names = list(dims)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            points += [{**opt, one: a, other: b} for a in choices[one] for b in choices[other]]
    points += [{name: sizes[end] for name, sizes in choices.items()} for end in (0, 1, 2)]
    for sizes in points:
        if sizes not in seen:
            seen.append(sizes)
            yield sizes


def _odd(dim: Dim) -> int:
    """The odd size next to the middle."""
    size = (dim.low + dim.high) // 2 | 1
    return size if size <= dim.high else dim.low


def _feed(signature: Signature, sizes: Mapping[str, int]) -> Arrays:
    generator = np.random.default_rng(sorted(sizes.values()))
    return {spec.name: _array(spec, sizes, generator) for spec in signature.inputs}


def _array(spec: InputSpec, sizes: Mapping[str, int], generator: np.random.Generator) -> Any:
    shape = tuple(dim.size(sizes) for dim in spec.dims)
    low, high = (spec.values.low, spec.values.high) if spec.values else (0, 1)
    if spec.dtype not in FLOATS:
        return generator.integers(int(low), int(high), shape, dtype=spec.dtype, endpoint=True)
    if spec.values is not None:
        return generator.integers(int(low), int(high), shape, endpoint=True).astype(spec.dtype)
    return generator.standard_normal(shape).astype(spec.dtype)


def _export(name: str, folder: Path, found: Row) -> Path:
    """`modelc export` of the architecture, in a process of its own."""
    path, out = folder / f"{name}.pt", folder / "out"
    torch.save(build(name).state_dict(), path)
    inputs = [part for text in ARCHITECTURES[name].inputs for part in ("--input", text)]
    done = subprocess.run(
        [
            sys.executable, "-m", "modelc", "export", str(path), "--model", FACTORY,
            "--model-arg", f"name={name}", *inputs, "--to", "onnx", "--to", "openvino",
            "-o", str(out), "--json",
        ],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    if not (out / "model.xml").exists():
        lines = [line for line in done.stderr.splitlines() if "error" in line or "output" in line]
        found.error = " ".join(lines[:2]) or f"modelc export ended with {done.returncode}"
        return out
    artifacts = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["artifacts"]
    found.made_by = next(one["capture"] for one in artifacts if one["target"] == "onnx") or ""
    return out


def _onnxruntime(out: Path) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    return lambda feed: list(session.run(None, {n: a for n, a in feed.items() if n in names}))


def _openvino(out: Path) -> Run:
    import openvino

    model = openvino.Core().compile_model(
        str(out / "model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )

    def run(feed: Arrays) -> list[NDArray[Any]]:
        results = model({port.get_any_name(): feed[port.get_any_name()] for port in model.inputs})
        return [results[port] for port in model.outputs]

    return run


def _compare(run: Run, feed: Arrays, wanted: list[NDArray[Any]]) -> str:
    """What is wrong with the runtime's answer; empty where it is eager's."""
    try:
        outputs = run(feed)
    except Exception as error:  # noqa: BLE001 - runtimes raise anything, and it is a finding
        return str(error).strip().splitlines()[-1][:160]
    for number, (made, right) in enumerate(zip(outputs, wanted, strict=True)):
        if made.shape != right.shape:
            return f"output {number} is {made.shape}, eager has {right.shape}"
        peak = float(np.abs(right).max(initial=0.0))
        off = float(np.abs(made.astype(np.float64) - right).max(initial=0.0))
        if not off <= _SHARE * max(peak, 1e-3):
            return f"output {number} is off by {off:.2g} of {peak:.2g}"
    return ""


def _offer_outside(signature: Signature, run: Run, found: Row) -> None:
    """One size below and one above each dim's range, which OpenVINO must reject."""
    dims = signature.free_dims
    opt = {name: dim.opt for name, dim in dims.items()}
    for name, dim in dims.items():
        for size in (dim.low - 1, dim.high + 1):
            if size < 1:
                continue
            sizes = {**opt, name: size}
            found.outside += 1
            try:
                run(_feed(signature, sizes))
            except RuntimeError:
                continue
            found.answered.append(_format_dims(sizes))


def _format_dims(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _first_line(one: Row) -> str:
    if one.error:
        return f"{one.name:14} {one.error}"
    right = ", ".join(f"{runtime} {count}/{one.sizes}" for runtime, count in one.right.items())
    rejected = f"rejected outside {one.outside - len(one.answered)}/{one.outside}"
    wrong = [text for texts in one.wrong.values() for text in texts[:_SHOWN]]
    return "\n    ".join([f"{one.name:14} {right}, {rejected}", *wrong, *one.answered])


def page(rows: list[Row]) -> str:
    """Return the page: a table with a row for each model."""
    lines = [_INTRODUCTION.format(share=_SHARE)]
    for one in rows:
        inputs = "<br>".join(f"`{text}`" for text in one.inputs)
        right = [str(one.right.get(name, 0)) for name in ("onnxruntime", "openvino")]
        rejected = f"{one.outside - len(one.answered)} of {one.outside}"
        cells = [one.name, inputs, one.made_by, str(one.sizes), *right, rejected]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *_troubles(rows)]
    return "\n".join(lines).rstrip() + "\n"


def _troubles(rows: list[Row]) -> list[str]:
    found = []
    for one in rows:
        texts = [*([one.error] if one.error else []), *(f"answered {t}" for t in one.answered)]
        texts += [f"{runtime} {text}" for runtime, many in one.wrong.items() for text in many]
        found += [f"- {one.name}: {text}" for text in texts]
    return ["What is not right:", "", *found] if found else ["All is right."]


if __name__ == "__main__":
    sys.exit(main())
