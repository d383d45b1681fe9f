"""Entries and records as small as they can be, and where they are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.core.events import Event, Noted
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.manifest import FeedPlan, Manifest
from modelc.core.records import Artifact, Checkpoint, Dependencies, record_of
from modelc.core.signature import merge_inputs
from modelc.core.verdict import State, Tolerance, Verdict
from modelc.pipeline.cache.result_store import ResultStore
from modelc.pipeline.cache.step_cache import StepCache
from modelc.pipeline.cache.store_layout import CacheEntry
from modelc.pipeline.order import Order

from .two_steps import Project

KEY = "ab" * 32
OTHER = "cd" * 32


class Told(list[str]):
    """A listener that keeps the lines that are told."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Noted):
            self.append(event.text)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def store(tmp_path: Path, told: Told) -> ResultStore:
    return ResultStore(tmp_path / "store", tell=told)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def record(path: Path, key: str = KEY, needs: Dependencies | None = None) -> Manifest:
    """The record of one artifact, `fake`, whose only file is at the path."""
    artifact = Artifact(
        name="fake", target="fake", precision=Precision.FP32, files=(record_of(path),),
        parent="0" * 64, made_from="checkpoint", key=key,
    )  # fmt: skip
    verdict = Verdict(
        artifact="fake", state=State.PASSED, reasons=(), outputs=(), device="cpu", feeds=(),
        tolerance=Tolerance(atol=1, rtol=1, min_sqnr=1),
    )  # fmt: skip
    return Manifest(
        modelc="1", created="2026-01-01T00:00:00+00:00", order={},
        checkpoint=Checkpoint(path="w.pt", kind="state_dict", digest="1" * 64, files=()),
        signature=merge_inputs([parse_input("x:float32[2]")], {}), feeds=FeedPlan(count=1, seed=0),
        environment={}, artifacts=(artifact,), verdicts=(verdict,), needs=needs or Dependencies(),
    )  # fmt: skip


@pytest.fixture
def entry(tmp_path: Path) -> Callable[..., tuple[CacheEntry, dict[str, Path]]]:
    """`entry(b"bytes", key=..., needs=...)` -> an entry and where its file is."""

    def make(
        content: bytes = b"a model", key: str = KEY, needs: Dependencies | None = None
    ) -> tuple[CacheEntry, dict[str, Path]]:
        path = tmp_path / "made" / "model.fake"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        manifest = record(path, key, needs)
        files = manifest.artifacts[0].files
        made = CacheEntry(key=key, model="w.pt", artifact="fake", files=files, manifest=manifest)
        return made, {"model.fake": path}

    return make


@pytest.fixture
def project(
    order: Callable[..., Order], fake: Callable[..., object], tmp_path: Path, told: Told
) -> Project:
    made: list[str] = []
    first = fake(on_convert=lambda job: made.append(job.stem))
    child = fake(
        origin="fake", NAME="child", SUFFIX=".child", CAPTURES=(), text="a child",
        on_convert=lambda _: made.append("child"),
    )  # fmt: skip
    return Project(
        order=order("fake", "child"),
        targets=(first, child),
        cache=StepCache(tmp_path / "cache", tell=told),
        root=Path.cwd(),  # which runs start in
        made=made,
    )
