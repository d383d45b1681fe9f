"""Carries out an order: every step made and proven, the manifest written after each."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..converters.registry import TARGETS
from ..core.contract import EAGER, Target
from ..core.digest import sha256_of
from ..core.errors import UsageError
from ..core.events import Tell, silence
from ..core.manifest import Failure, FeedPlan, Manifest
from ..core.records import Checkpoint
from .folder import REJECTED, OutputFolder, opened
from .making import Bench, Made, Parent, make
from .manifest_file import read_manifest, without, write_manifest
from .order import Order
from .pace import unhurried_gc
from .plan import Step, make_plan
from .stage import Stage
from .subject import Subject, open_subject, read_checkpoint

_PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime", "openvino", "numpy")


def run(order: Order, tell: Tell = silence, *, targets: tuple[Target, ...] = TARGETS) -> Manifest:
    """Carry out the order.

    Raises:
        ModelcError: something stopped the work; artifacts already proven stay, with their record.
    """
    plan = make_plan(order, targets)
    with unhurried_gc(), opened(order.out) as folder:
        stage = Stage(tell=tell, logs=folder.logs)
        checkpoint = read_checkpoint(order.source, stage)
        known = _known(order, folder, checkpoint)
        subject = open_subject(order.source, checkpoint, order.judging, stage, order.signature)
        manifest = replace(
            _continued(order, folder, subject, known), steps=tuple(step.name for step in plan)
        )
        bench = Bench(
            order=order,
            subject=subject,
            folder=folder,
            stage=stage,
            metadata={"modelc": __version__, "checkpoint": checkpoint.digest},
        )
        for step in plan:
            manifest = _record(manifest, step, _make(step, manifest, bench))
            write_manifest(manifest, folder.path)
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
    code = next((f.exit_code for f in manifest.failures if f.step == step.parent), 1)
    return Failure(
        step=step.name,
        message=f"not made: its parent {step.parent} was refused",
        hint=f"see the verdict of {step.parent}",
        exit_code=code,
    )


def _record(manifest: Manifest, step: Step, made: Made) -> Manifest:
    """The manifest with what the step gave in place of what it gave before.

    An earlier artifact of that name stays, with its verdict, until a proven one replaces it.
    """
    passed = made.verdict is not None and made.verdict.passed
    manifest = without(manifest, {f"{REJECTED}/{step.name}", *([step.name] if passed else [])})
    if made.failure is not None:
        return replace(manifest, failures=(*manifest.failures, made.failure))
    if made.artifact is None or made.verdict is None:
        raise RuntimeError(f"step {step.name} ended with nothing")
    return replace(
        manifest,
        artifacts=(*manifest.artifacts, made.artifact),
        verdicts=(*manifest.verdicts, made.verdict),
    )


def _known(order: Order, folder: OutputFolder, checkpoint: Checkpoint) -> Manifest | None:
    """The manifest already in the folder, if this run may add to it.

    Raises:
        UsageError: it is another checkpoint's record and the order does not overwrite.
    """
    known = read_manifest(folder.path)
    if known is None:
        return None
    same = known.checkpoint.digest == checkpoint.digest
    if same and _build(known.checkpoint) == _build(checkpoint):
        return known
    if not order.overwrite:
        raise UsageError(
            f"{order.out} holds artifacts of another checkpoint ({known.checkpoint.path})",
            hint="give another -o, or --overwrite to move them to replaced/",
        )
    for artifact in known.artifacts:
        folder.set_aside(artifact.files)
    return None


def _build(checkpoint: Checkpoint) -> tuple[object, ...]:
    return (checkpoint.factory, tuple(sorted(checkpoint.factory_args.items())))


def _continued(
    order: Order, folder: OutputFolder, subject: Subject, known: Manifest | None
) -> Manifest:
    """A new manifest, with the artifacts of the one before where the signature is the same."""
    fresh = Manifest(
        modelc=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        order=order.summary(),
        checkpoint=replace(subject.checkpoint, path=_relative(subject.checkpoint.path, folder)),
        signature=subject.signature,
        feeds=_relative_feeds(subject.feeds, folder),
        environment=environment(),
        notes=subject.notes,
    )
    if known is None:
        return fresh
    if known.signature != subject.signature:
        if not order.overwrite:
            raise UsageError(
                f"{order.out} holds artifacts with other inputs: "
                + "  ".join(map(str, known.signature.inputs)),
                hint="give another -o, or --overwrite to move them to replaced/",
            )
        for artifact in known.artifacts:
            folder.set_aside(artifact.files)
        return fresh
    return replace(
        fresh,
        artifacts=known.artifacts,
        verdicts=known.verdicts,
    )


def _relative(path: str, folder: OutputFolder) -> str:
    return Path(os.path.relpath(path, folder.path)).as_posix()


def _relative_feeds(feeds: FeedPlan, folder: OutputFolder) -> FeedPlan:
    if feeds.samples is None:
        return feeds
    return replace(feeds, samples=_relative(feeds.samples, folder))


def environment() -> dict[str, str]:
    """Python, platform and the versions of what took part."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
