"""The cases of judge.py for one model: its conversions, its faults, its frozen branches."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelc.benchmarks.faults import Fault, faults_for
from modelc.benchmarks.judge_bed import CALIBRATION, Bed, bed
from modelc.benchmarks.judge_measures import (
    Case,
    over_roundoff,
    peers,
    shows,
    undone,
    verdict_fields,
)
from modelc.benchmarks.planting import Planted, plant
from modelc.converters.registry import target_named
from modelc.core.contract import Job, Outputs
from modelc.core.errors import ModelcError
from modelc.core.kinds import Precision
from modelc.core.manifest import Manifest
from modelc.core.records import Artifact
from modelc.pipeline import api
from modelc.pipeline.order import Lowering, Wanted

TO = {
    "fp32": ("onnx", "torchscript", "openvino"),
    "fp16": ("onnx:fp16", "openvino:fp16"),
    "bf16": ("onnx:bf16",),
    "int8": ("onnx:int8", "openvino:int8"),
}
# Of the planted faults, every so manieth is carried on into these (an export of its own each).
CARRIED = {"openvino": 2, "onnx:fp16": 3, "openvino:fp16": 6, "onnx:bf16": 6, "onnx:int8": 8}
_DEEPER = 3  # layers of the second seed's nets and on, where the first has two


def good(
    name: str, seed: int, precisions: Sequence[str], *, folder: Path, known: Collection[str]
) -> Iterator[Case]:
    """Each format of one model with one set of weights, as `modelc export` makes and judges it."""
    wanted = [to for precision in precisions for to in TO[precision]]
    plain = [_blank("good", name, seed, to) for to in wanted]
    if all(case.key in known for case in plain):
        return
    started = time.perf_counter()
    model = bed(name, folder, seed=seed, layers=2 if seed == 0 else _DEEPER)
    manifest = model.exports(wanted, "good")
    share = (time.perf_counter() - started) / len(wanted)
    for _to, case in zip(wanted, plain, strict=True):
        if case.key not in known:
            yield _read_manifest_case(case, model, manifest, model.folder / "good", seconds=share)


def faults(
    name: str, seed: int, precisions: Sequence[str], *, folder: Path, known: Collection[str]
) -> Iterator[Case]:
    """Each fault of one model, planted in its ONNX and carried on into other formats."""
    place = folder / "faults"
    model = bed(name, place, seed=seed)
    carried = [to for to in CARRIED if _precision(to) in precisions]
    made = model.exports(["onnx", *carried], "good")
    clean = {to: _errors(model, made, to) for to in ("onnx", *carried)}
    for number, fault in enumerate(faults_for(model)):
        wanted = ["onnx"] if "fp32" in precisions else []
        wanted += [to for to in carried if (number + len(to)) % CARRIED[to] == 0]
        blank = {to: _blank("fault", name, seed, to, fault=fault) for to in wanted}
        if all(case.key in known for case in blank.values()):
            continue
        yield from _plant_and_judge(fault, number, blank, Clean(bed=model, errors=clean))


@dataclass(frozen=True, kw_only=True)
class Clean:
    """The good conversions of a model, and their distance from float64, by what they are."""

    bed: Bed
    errors: dict[str, Sequence[Outputs]]


def _plant_and_judge(
    fault: Fault, number: int, blank: dict[str, Case], clean: Clean
) -> Iterator[Case]:
    model = clean.bed
    folder = model.folder / f"fault-{number}"
    try:
        planted = plant(fault, model, model.folder / "good" / "model.onnx", folder)
    except ModelcError as error:
        for case in blank.values():
            yield _with(case, state="not made", reason=error.message)
        return
    sizes = _sizes(model, planted)
    for to, case in blank.items():
        started = time.perf_counter()
        standing = _over_own_error(model, planted, clean.errors[to])
        found = _judge_planted(case, to, planted, model)
        took = time.perf_counter() - started
        yield _with(found, **sizes, standing=standing, seconds=took)


def _judge_planted(case: Case, to: str, planted: Planted, model: Bed) -> Case:
    """The case with the verdict on the planted file, or on what is made of it."""
    try:
        if to == "onnx":
            return _judge_fp32(case, model, planted, path=planted.path, to=to)
        if to == "openvino":
            path = _convert_planted(planted.path, to, model)
            return _judge_fp32(case, model, planted, path=path, to=to)
        manifest = api.build(
            planted.path,
            to=to,
            out=planted.path.parent / "out",
            against=model.source,
            lowering=Lowering(calibration=CALIBRATION if to.endswith("int8") else None),
        ).manifest
    except ModelcError as error:
        return _with(case, state="not made", reason=error.message)
    return _read_manifest_case(case, model, manifest, planted.path.parent / "out")


def _judge_fp32(case: Case, model: Bed, planted: Planted, *, path: Path, to: str) -> Case:
    found = model.judge_file(path, to, Precision.FP32)
    return _with(
        case,
        **verdict_fields(found.verdict),
        **_measure(model, found.answers),
        undone=undone(model.exact, planted.exact, found.answers),
    )


def _convert_planted(path: Path, to: str, model: Bed) -> Path:
    """The fp32 file of another format made from the planted one."""
    target = target_named(to)
    job = Job(
        signature=model.subject.signature,
        precision=Precision.FP32,
        folder=path.parent,
        stem="carried",
        example=model.subject.example,
        parent=path,
        feeds=tuple(model.feeds),
    )
    with model.stage.step("carry", log="carry"):
        converted = target.convert(job)
    return path.parent / converted.files[0][0]


def branches(name: str, seed: int, *, folder: Path, known: Collection[str]) -> Iterator[Case]:
    """The net that branches on its input, traced: the artifact has one outcome alone."""
    model = bed(name, folder / "branches", seed=seed)
    for to in ("torchscript", "onnx"):
        case = _blank("branch", name, seed, to)
        if case.key in known:
            continue
        started = time.perf_counter()
        manifest = model.exports([to], f"traced-{to}", capture="trace")
        took = time.perf_counter() - started
        found = _read_manifest_case(
            case, model, manifest, model.folder / f"traced-{to}", seconds=took
        )
        yield _with(found, **_other_arm(model))


def _other_arm(model: Bed) -> dict[str, float]:
    """How far the frozen net is off, on drawn feeds and on a feed of the other outcome."""
    import numpy as np

    asked = float(model.module.above)  # type: ignore[arg-type]  # a number of our own net's
    example = model.subject.example["x"]
    value = example.max() if model.module.peak else example.mean()
    frozen = copy.deepcopy(model.module)
    frozen.above = -math.inf if value > asked else math.inf  # type: ignore[assignment]
    far = np.full_like(example, asked - 1 if value > asked else asked + 1)
    size, visible = shows(
        model.exact, model.exactly(frozen), [one.outputs for one in model.subject.references]
    )
    feeds = [{"x": far}]
    _, elsewhere = shows(
        model.exactly(model.module, feeds), model.exactly(frozen, feeds), model.eagerly(feeds)
    )
    return {"size": size, "visible": visible, "elsewhere": elsewhere}


def _read_manifest_case(
    case: Case, model: Bed, manifest: Manifest, folder: Path, *, seconds: float = 0.0
) -> Case:
    """The case with what a run's manifest says, and what its file answers."""
    artifact = _artifact(manifest, case)
    if artifact is None:
        step = Wanted.parse(f"{case.target}:{case.precision}").name
        why = next((one.message for one in manifest.failures if one.step == step), "no such step")
        return _with(case, state="not made", reason=why, seconds=seconds)
    verdict = manifest.verdict_of(artifact.name)
    if verdict is None:
        raise RuntimeError(f"{artifact.name} has no verdict in {folder}")
    answers = model.answers(folder / artifact.files[0].name, artifact.target)
    return _with(case, **verdict_fields(verdict), **_measure(model, answers), seconds=seconds)


def _artifact(manifest: Manifest, case: Case) -> Artifact | None:
    for artifact in manifest.artifacts:
        if (artifact.target, str(artifact.precision)) == (case.target, case.precision):
            return artifact
    return None


def _measure(model: Bed, answers: Sequence[Outputs]) -> dict[str, object]:
    return {"peers": peers(model, answers), **over_roundoff(model, answers)}


def _sizes(model: Bed, planted: Planted) -> dict[str, float]:
    eager = [reference.outputs for reference in model.subject.references]
    size, visible = shows(model.exact, planted.exact, eager)
    elsewhere = 0.0
    if planted.elsewhere:
        truth = model.exactly(model.module, planted.elsewhere)
        own = model.eagerly(planted.elsewhere)
        more, elsewhere = shows(truth, planted.exact_elsewhere, own)
        size = max(size, more)
    return {"size": size, "visible": visible, "elsewhere": elsewhere}


def _errors(model: Bed, manifest: Manifest, to: str) -> Sequence[Outputs]:
    """What the good artifact answers; nothing where it was not made or does not run."""
    artifact = _artifact(manifest, _blank("good", model.name, 0, to))
    if artifact is None:
        return ()
    return model.answers(model.folder / "good" / artifact.files[0].name, artifact.target)


def _over_own_error(model: Bed, planted: Planted, clean: Sequence[Outputs]) -> float | None:
    """The fault's size over the good artifact's own error."""
    if not clean or not all(clean):
        return None
    return shows(model.exact, planted.exact, clean)[1]


def _blank(group: str, name: str, seed: int, to: str, *, fault: Fault | None = None) -> Case:
    traced = "the other branch frozen by a trace" if group == "branch" else ""
    return Case(
        group=group,
        model=name,
        seed=seed,
        target=to.partition(":")[0],
        precision=_precision(to),
        kind=fault.kind if fault else traced,
        label=fault.label if fault else "",
        state="",
        reason="",
    )


def _precision(to: str) -> str:
    return to.partition(":")[2] or "fp32"


def _with(case: Case, **more: object) -> Case:
    return Case(**{**vars(case), **more})
