"""Carries out an order: every step made and proven, the manifest written after each."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata

from .. import __version__
from ..converters.registry import TARGETS
from ..core.contract import EAGER, Target
from ..core.digest import sha256_of
from ..core.events import Tell, silence
from ..core.manifest import Failure, Manifest
from .folder import REJECTED, opened
from .making import Bench, Made, Parent, make
from .manifest_file import write_manifest
from .order import Order
from .pace import unhurried_gc
from .plan import Step, make_plan
from .record import begin_record, known_record, no_longer_named, recorded
from .stage import Stage
from .subject import open_subject, read_checkpoint


def run(order: Order, tell: Tell = silence, *, targets: tuple[Target, ...] = TARGETS) -> Manifest:
    """Carry out the order.

    Raises:
        ModelcError: something stopped the work; artifacts already proven stay, with their record.
    """
    plan = make_plan(order, targets)
    with unhurried_gc(), opened(order.out) as folder:
        stage = Stage(tell=tell, logs=folder.logs)
        checkpoint = read_checkpoint(order.source, stage)
        known = known_record(order, folder, checkpoint)
        folder.claim(step.file for step in plan)
        subject = open_subject(order.source, checkpoint, order.judging, stage, order.signature)
        manifest = replace(
            begin_record(order, folder, subject, known), steps=tuple(step.name for step in plan)
        )
        bench = Bench(
            order=order,
            subject=subject,
            folder=folder,
            stage=stage,
            metadata={
                "modelc": __version__,
                "torch": metadata.version("torch"),
                "checkpoint": checkpoint.digest,
            },
        )
        for step in plan:
            before = manifest
            manifest = recorded(manifest, step, _make(step, manifest, bench))
            folder.own(file.name for file in manifest.files)
            write_manifest(manifest, folder.path)
            folder.drop(no_longer_named(before, manifest))
        return manifest


def _make(step: Step, manifest: Manifest, bench: Bench) -> Made:
    """Make the step from its parent; a parent that was refused refuses its children."""
    if bench.order.parent is not None:
        path = bench.order.parent
        return make(step, Parent(name=path.name, digest=sha256_of(path), path=path), bench)
    if step.parent is None:
        return make(step, Parent(name=EAGER, digest=bench.subject.checkpoint.digest), bench)
    parent = next((a for a in manifest.artifacts if a.name == step.parent), None)
    broken = {failure.step for failure in manifest.failures}
    refused = any(a.name == f"{REJECTED}/{step.parent}" for a in manifest.artifacts)
    if parent is None or refused or step.parent in broken:
        return Made(failure=_orphan(step, manifest))
    path = bench.folder.path / parent.files[0].name
    return make(step, Parent(name=parent.name, digest=parent.digest, path=path), bench)


def _orphan(step: Step, manifest: Manifest) -> Failure:
    codes = [f.exit_code for f in manifest.failures if f.step == step.parent]
    verdict = manifest.verdict_of(f"{REJECTED}/{step.parent}")
    code = codes[0] if codes else (1 if verdict is None else verdict.exit_code)
    return Failure(
        step=step.name,
        message=f"not made: its parent {step.parent} was refused",
        hint=f"see the verdict of {step.parent}",
        exit_code=code,
    )
