"""How often `modelc debug` names the right module: single-layer faults, ONNX and OpenVINO.

    python -m modelc.benchmarks.debug [--models bert,vit] [--each 1] [--seed 0] [--json FILE]
    python -m modelc.benchmarks.debug --residual [--int8]

`--residual` takes nets with residuals, concatenations and scripted branches, and faults of their
own; with `--int8` they are quantized by ONNX Runtime, and the faults are in the quantized graph. A
module that is named wrongly is near where it holds the fault's module, lies in the same one, or
belongs to a node before or behind.

A fault counts when it moves the artifact's outputs, on the feed that is looked at, by more than
roundoff (SQNR below 100 dB beside the good conversion); the others are invisible, and are
counted apart. Every good conversion is looked into as well: no layer of it may be named.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from modelc.benchmarks.debug_faults import (
    INT8_KINDS,
    KINDS,
    RESIDUAL_KINDS,
    Plant,
    Planted,
    plant_faults,
)
from modelc.calibration.calibration_options import CalibrationOptions
from modelc.converters.onnx_origins import read_origins
from modelc.converters.registry import target_named
from modelc.core.contract import Job
from modelc.core.errors import ModelcError
from modelc.core.events import ignore_events
from modelc.core.kinds import Precision
from modelc.core.target_extensions import Probed
from modelc.pipeline.api import export
from modelc.pipeline.debug.layer_comparer import finite_sqnr
from modelc.pipeline.debug.locate_layer import SuspectArtifact, locate_layer
from modelc.pipeline.eager_reference import EagerReference, open_reference, read_checkpoint
from modelc.pipeline.held_out import load_samples, refer_held_out
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Judging, Lowering
from modelc.pipeline.run_progress import Progress
from modelc.tests.nets.zoo import checkpoint

MODELS = (
    "sample-digits", "sample-nested", "sample-lstm", "sample-encoder", "convolutions", "upsampling",
    "bert", "distilbert", "roberta", "gpt2", "t5", "vit", "swin", "convnext", "albert", "electra",
    "clip", "resnet",
)  # fmt: skip
RESIDUAL = (
    "basic", "zero-gamma", "bottleneck", "zero-bottleneck", "folded", "preactivation", "inverted",
    "dense", "layer-scale", "scripted",
)  # fmt: skip
VISIBLE = {Precision.FP32: 100.0, Precision.INT8: 25.0}  # dB
_CALIBRATION = 32  # samples


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault, or one good conversion: what was named, and what should have been."""

    model: str
    target: str
    kind: str
    node: str
    right: tuple[str, ...]
    named: str
    cause: str
    file: str
    line: int
    visible: float | None
    layers: int
    runs: int
    memory: int
    seconds: float
    near: tuple[str, ...] = ()
    limit: float = VISIBLE[Precision.FP32]

    @property
    def counts(self) -> bool:
        """Whether its outputs show it."""
        return self.visible is not None and self.visible < self.limit

    @property
    def hit(self) -> bool:
        """Whether the right module was named; of a good conversion, none."""
        return self.named in self.right if self.right else not self.named

    @property
    def close(self) -> bool:
        """Whether what was named is not right, and beside it."""
        if self.hit or not self.named or not self.right:
            return False
        inside = [one.rpartition(".")[0] for one in self.right]
        return self.named in (*self.near, *inside) or any(
            place and self.named.startswith(f"{place}.") for place in (*self.right, *inside)
        )


@dataclass(frozen=True, kw_only=True)
class Bed:
    """One model, exported, with its eager side opened."""

    name: str
    folder: Path
    subject: EagerReference
    stage: Progress
    precision: Precision = Precision.FP32

    @property
    def clean(self) -> Path:
        """The good ONNX; where it was rejected, its verdict says why."""
        name = "model.int8.onnx" if self.precision is Precision.INT8 else "model.onnx"
        there = self.folder / name
        return there if there.exists() else self.folder / "rejected" / name


def open_bed(name: str, folder: Path, *, seed: int, precision: Precision = Precision.FP32) -> Bed:
    """Write a checkpoint, export it and open it again."""
    source = checkpoint(name, folder, seed=seed)
    out = folder / name
    lowering = None
    if precision is Precision.INT8:
        calibration = CalibrationOptions(source=str(_samples(folder / f"calibrate-{name}")))
        lowering = Lowering(calibration=calibration, quantizer="onnxruntime")
    export(
        source.checkpoint,
        to=["onnx:int8", "openvino:int8"] if lowering else ["onnx", "openvino"],
        lowering=lowering,
        out=out,
        judging=Judging(sensitivity=0),
        model=source.model,
        model_args=source.model_args,
        inputs=source.inputs,
    )
    manifest = read_manifest(out)
    stage = Progress(tell=ignore_events, logs=folder / "logs")
    signature = None if manifest is None else manifest.signature
    subject = open_reference(source, read_checkpoint(source, stage), Judging(), stage, signature)
    if precision is Precision.INT8 and manifest is not None:  # on what it was not calibrated with
        artifact = next(one for one in manifest.artifacts if one.precision is precision)
        subject = replace(
            subject, references=refer_held_out(load_samples(artifact, out), subject, stage)
        )
    return Bed(name=name, folder=out, subject=subject, stage=stage, precision=precision)


def _samples(folder: Path) -> Path:
    """Images to calibrate the residual nets with."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(_CALIBRATION):
        image = draw.normal(size=(1, 3, 16, 16)).astype(np.float32)
        np.savez(folder / f"{number}.npz", image=image)
    return folder


def _kinds(bed: Bed) -> Mapping[str, tuple[tuple[str, ...], Plant]]:
    if bed.precision is Precision.INT8:
        return INT8_KINDS
    return RESIDUAL_KINDS if bed.name in RESIDUAL else KINDS


def rows(bed: Bed, *, each: int, seed: int, targets: tuple[str, ...]) -> Iterator[Row]:
    """The good conversions, then every fault in every format."""
    clean = bed.clean
    model, origins = onnx.load(clean), read_origins(clean)
    for target in targets:
        path = clean if target == "onnx" else bed.folder / f"{clean.stem}.xml"
        if path.exists():
            yield _debug(bed, target, path, None)
    kinds = _kinds(bed)
    for number, fault in enumerate(
        plant_faults(model, origins, seed=1000 * seed + len(bed.name), each=each, kinds=kinds)
    ):
        place = bed.folder / f"fault-{number}"
        place.mkdir()
        onnx.save(fault.model, place / "model.onnx")
        (place / "model.debug.json").write_bytes(clean.with_suffix(".debug.json").read_bytes())
        for target in targets:
            try:
                path = place / "model.onnx"
                if target == "openvino":
                    path = _as_openvino(bed, place)
                yield _debug(bed, target, path, fault)
            except ModelcError as error:  # a fault that the runtime itself rejects
                print(f"  {bed.name} {target} {fault.kind}: {error.message[:150]}", file=sys.stderr)


def _as_openvino(bed: Bed, place: Path) -> Path:
    job = Job(
        signature=bed.subject.signature,
        precision=bed.precision,
        folder=place,
        stem="model",
        example=bed.subject.example,
        parent=place / "model.onnx",
    )
    with bed.stage.step("convert", log="convert"):
        target_named("openvino").convert(job)
    return place / "model.xml"


def _debug(bed: Bed, name: str, path: Path, fault: Planted | None) -> Row:
    target = target_named(name)
    if not isinstance(target, Probed):
        raise TypeError(f"{name} cannot be looked into")
    suspect = SuspectArtifact(name=name, path=path, target=target, precision=bed.precision)
    found = locate_layer(suspect, bed.subject, bed.stage)
    worst = found.layers[0]
    return Row(
        model=bed.name,
        target=name,
        kind="none" if fault is None else fault.kind,
        node="" if fault is None else fault.node,
        right=() if fault is None else tuple(one or "(model)" for one in fault.modules),
        near=() if fault is None else tuple(one or "(model)" for one in fault.near),
        limit=VISIBLE[bed.precision],
        named=found.guilty,
        cause=found.cause,
        file=worst.file,
        line=worst.line,
        visible=None if fault is None else _visible(bed, name, path, found.feed),
        layers=len(found.curve),
        runs=found.runs,
        memory=found.memory,
        seconds=found.seconds,
    )


def _visible(bed: Bed, name: str, path: Path, feed: str) -> float | None:
    """How far the fault moves the outputs from eager's on that feed, in dB."""
    reference = next(one for one in bed.subject.references if one.feed.name == feed)
    with target_named(name).open_runner(path, "cpu", bed.subject.signature) as runner:
        outputs = runner.run(reference.feed.arrays)
    found = [
        ratio
        for key, array in outputs.items()
        if array.dtype.kind == "f"
        and (ratio := finite_sqnr(reference.outputs[key].astype(np.float64), array)) is not None
    ]
    return min(found, default=None)


def table(found: list[Row]) -> str:
    """Hits of those that count, by kind and format, and what a look costs."""
    lines = []
    for target in dict.fromkeys(row.target for row in found):
        mine = [row for row in found if row.target == target]
        good = [row for row in mine if not row.right]
        lines.append(
            f"{target}: {sum(row.hit for row in good)} of {len(good)} good ones: none named"
        )
        faults = [row for row in mine if row.right]
        seen = [row for row in faults if row.counts]
        hits = sum(row.hit for row in seen)
        share = f"{hits / len(seen):.1%}" if seen else "-"
        lines.append(f"  {hits} of {len(seen)} visible faults named right ({share})")
        close = sum(row.close for row in seen)
        silent = sum(not row.named for row in seen)
        lines.append(
            f"  the others: {close} near it, {len(seen) - hits - close - silent} elsewhere,"
            f" {silent} with no layer named"
        )
        lines.append(f"  {len(faults) - len(seen)} faults do not show in the outputs")
        lines.append(f"  cause named: {sum(bool(row.cause) for row in seen)} of {len(seen)}")
        kinds = Counter(row.kind for row in seen)
        for kind, count in kinds.items():
            right = sum(row.hit for row in seen if row.kind == kind)
            named = sum(bool(row.cause) for row in seen if row.kind == kind)
            lines.append(f"    {kind:28} {right} of {count}, cause {named}")
        lines += [
            f"    MISS {row.model} {row.kind} {row.node}: {row.named!r}, not {row.right}"
            for row in [*good, *seen]
            if not row.hit
        ]
    return "\n".join(lines)


def main() -> int:
    """Run it; exit 1 below the target of 95 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="names, with commas between; default: all")
    parser.add_argument("--residual", action="store_true", help="the residual nets")
    parser.add_argument("--int8", action="store_true", help="the residual nets in INT8")
    parser.add_argument("--targets", default="onnx,openvino")
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="draws weights and faults")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    usual = RESIDUAL if asked.residual or asked.int8 else MODELS
    precision = Precision.INT8 if asked.int8 else Precision.FP32
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="modelc-debug-") as folder:
        for name in asked.models.split(",") if asked.models else usual:
            try:
                bed = open_bed(name, Path(folder), seed=asked.seed, precision=precision)
                targets = tuple(asked.targets.split(","))
                found += rows(bed, each=asked.each, seed=asked.seed, targets=targets)
            except (ModelcError, KeyError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            mine = [row for row in found if row.model == name]
            hits = sum(row.hit for row in mine if row.counts)
            print(f"{name}: {hits} of {sum(row.counts for row in mine)}", file=sys.stderr)
            if asked.json:
                asked.json.write_text(json.dumps([asdict(row) for row in found], indent=1))
    print(table(found))
    seen = [row for row in found if row.counts]
    return 0 if seen and sum(row.hit for row in seen) >= 0.95 * len(seen) else 1


if __name__ == "__main__":
    sys.exit(main())
