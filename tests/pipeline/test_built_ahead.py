"""A pending step whose files are built here: another host takes them, and builds nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from modelc.core.contract import Feed, Inspection, Job, Outputs, Preflight, Readiness, Target
from modelc.core.errors import CheckpointError, ConversionError, RunnerError
from modelc.core.manifest import Manifest
from modelc.pipeline.finish_pending import finish_pending
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Order
from modelc.pipeline.provenance.verify_folder import verify_folder
from modelc.pipeline.recorded_run import FinishRequest
from modelc.pipeline.run_order import run

from .conftest import Fake, eagerly
from .test_pending import CLEAR, Engine

Orders = Callable[..., Order]
BUILDS = Readiness(ready=False, builds=True, version="1", reason="no CUDA driver")
READY = Readiness(ready=True, version="1")
BUILT = "pending/model.engine"


@dataclass(frozen=True, kw_only=True)
class NativeEngine(Engine):
    """An engine that runs its maker's code, whom only a setting of this run makes trusted."""

    def distrust_reason(self, path: Path, settings: Mapping[str, str]) -> str:
        return "" if settings.get("trust_engine") == "true" else f"{path.name} is code"


def engine(
    fake: Callable[..., Fake], *, ready: Readiness, kind: type[Engine] = Engine, **parts: Any
) -> tuple[Target, ...]:
    """The table of a host: the fake parent, and an engine that can at least be built."""
    plain = fake()
    made = kind(
        NAME="engine",
        SUFFIX=".engine",
        MADE_FROM=dict.fromkeys(plain.MADE_FROM, "fake"),
        CAPTURES=(),
        ready=ready,
        **parts,
    )
    return (cast("Target", plain), cast("Target", made))


@pytest.fixture
def prepared(order: Orders, fake: Callable[..., Fake]) -> Manifest:
    return run(order("engine"), targets=engine(fake, ready=BUILDS))


def fail(_: Job) -> None:
    raise AssertionError("it is built already")


@pytest.fixture
def finish(fake: Callable[..., Fake], tmp_path: Path) -> Callable[..., Manifest]:
    """`finish(ready=READY, answer=...)`: finish the folder on a host that may not convert."""

    def on_host(ready: Readiness = READY, **parts: Any) -> Manifest:
        targets = engine(fake, ready=ready, on_convert=fail, **parts)
        return finish_pending(FinishRequest(out=tmp_path / "out"), targets=targets)

    return on_host


def test_the_files_are_pending_and_no_artifact(prepared: Manifest, tmp_path: Path) -> None:
    (pending,) = prepared.pending
    assert [file.name for file in pending.files] == [BUILT]
    assert (pending.versions, pending.reason) == ({"text": "1"}, BUILDS.reason)
    assert [artifact.name for artifact in prepared.artifacts] == ["fake"]
    assert (tmp_path / "out" / BUILT).read_text() == "a model"
    assert prepared.exit_code == 4
    assert read_manifest(tmp_path / "out") == prepared


def test_another_host_judges_them_without_building(
    prepared: Manifest, tmp_path: Path, finish: Callable[..., Manifest]
) -> None:
    found = finish()
    made = found.artifacts[1]
    assert (made.name, made.parent) == ("engine", prepared.artifacts[0].digest)
    assert made.versions == {"text": "1"}
    assert (found.exit_code, found.pending) == (0, ())
    assert (tmp_path / "out" / "model.engine").is_file()
    assert not (tmp_path / "out" / BUILT).exists()


def test_a_wrong_one_is_rejected(
    prepared: Manifest, tmp_path: Path, finish: Callable[..., Manifest]
) -> None:
    def answer(feed: Feed) -> Outputs:
        return {name: one + 1 for name, one in eagerly(feed).items()}

    found = finish(answer=answer)
    assert found.exit_code == 1
    assert found.artifacts[:-1] == prepared.artifacts
    assert found.artifacts[-1].rejected
    assert (tmp_path / "out" / "rejected" / "model.engine").is_file()
    assert not (tmp_path / "out" / BUILT).exists()


def test_one_that_cannot_be_opened_stays_pending_with_its_file(
    prepared: Manifest, tmp_path: Path, finish: Callable[..., Manifest]
) -> None:
    def raises() -> None:
        raise RunnerError("it cannot be loaded", hint="build it again")

    found = finish(on_open=raises)
    assert found.failures[0].step == "engine"
    assert found.pending == prepared.pending
    assert (tmp_path / "out" / BUILT).is_file()
    assert finish().exit_code == 0


def test_a_changed_file_is_not_judged(
    prepared: Manifest, tmp_path: Path, finish: Callable[..., Manifest]
) -> None:
    (tmp_path / "out" / BUILT).write_text("another model")
    assert not verify_folder(tmp_path / "out").passed
    found = finish()
    assert found.exit_code == 1
    assert BUILT in found.failures[0].message
    assert [artifact.name for artifact in found.artifacts] == ["fake"]
    assert found.pending == prepared.pending


class Portable(Fake):
    """An engine for many hosts, whose sidecar says that it computes in INT8."""

    FINISHED_BY = "build-engine"

    def preflight(self, job: Job) -> Preflight:
        assert job.parent is not None
        return CLEAR

    def inspect(self, path: Path) -> Inspection:
        return Inspection(
            target=self.NAME, inputs=(), outputs=(), facts={"path": path.name}, weights={},
            operators={}, metadata={"precision": "int8"},
        )  # fmt: skip


def test_a_file_of_another_precision_is_not_judged(
    order: Orders, fake: Callable[..., Fake], tmp_path: Path
) -> None:
    """As where the manifest was edited: its digest is the recorded one."""
    plain = cast("Target", fake())
    origins = dict.fromkeys(plain.MADE_FROM, "fake")
    made = Portable(NAME="engine", SUFFIX=".engine", MADE_FROM=origins, CAPTURES=(), ready=BUILDS)
    run(order("engine"), targets=(plain, cast("Target", made)))
    other = cast("Target", replace(made, ready=READY, on_convert=fail))
    found = finish_pending(FinishRequest(out=tmp_path / "out"), targets=(plain, other))
    assert [BUILT in one.message for one in found.failures] == [True]
    assert (tmp_path / "out" / BUILT).is_file()


def test_verify_checks_them(prepared: Manifest, tmp_path: Path) -> None:
    checks = verify_folder(tmp_path / "out").checks
    assert prepared.pending[0].step in {one.of for one in checks if one.what == "files"}
    assert verify_folder(tmp_path / "out").passed


def test_a_host_that_only_builds_leaves_them_as_they_are(
    prepared: Manifest, finish: Callable[..., Manifest]
) -> None:
    found = finish(ready=BUILDS)
    assert found.pending == prepared.pending
    assert found.exit_code == 4


def test_a_second_run_replaces_them(
    prepared: Manifest, order: Orders, fake: Callable[..., Fake], tmp_path: Path
) -> None:
    found = run(order("engine"), targets=engine(fake, ready=BUILDS))
    assert found.pending == prepared.pending
    found = run(order("engine"), targets=engine(fake, ready=READY))
    assert (found.exit_code, found.pending) == (0, ())
    assert not (tmp_path / "out" / BUILT).exists()


def test_a_blocker_ends_it_before_the_build(order: Orders, fake: Callable[..., Fake]) -> None:
    blocked = replace(CLEAR, blockers=("Foo",))
    targets = engine(fake, ready=BUILDS, found=blocked, on_convert=fail)
    found = run(order("engine"), targets=targets)
    assert (found.exit_code, found.pending) == (5, ())


def test_a_failed_build_is_a_failure(order: Orders, fake: Callable[..., Fake]) -> None:
    def rejects(_: Job) -> None:
        raise ConversionError("the builder rejected it", hint="")

    clear = Preflight(blockers=(), warnings=(), memory=1, source="s")
    targets = engine(fake, ready=BUILDS, found=clear, on_convert=rejects)
    found = run(order("engine"), targets=targets)
    assert (found.exit_code, found.pending) == (5, ())


def record_settings(prepared: Manifest, out: Path, **settings: str) -> None:
    """Let the manifest say that the step was prepared with these settings."""
    (pending,) = prepared.pending
    write_manifest(replace(prepared, pending=(replace(pending, settings=settings),)), out)


@pytest.mark.parametrize("kind", [Engine, NativeEngine])
@pytest.mark.parametrize("given", [{}, {"trust_engine": "true"}], ids=["no consent", "consent"])
def test_consent_in_the_record_opens_no_built_file(
    prepared: Manifest, fake: Callable[..., Fake], tmp_path: Path, kind: type[Engine],
    given: dict[str, str],
) -> None:  # fmt: skip
    record_settings(prepared, tmp_path / "out", trust_engine="true")
    jobs: list[Job] = []
    targets = engine(fake, ready=READY, kind=kind, on_convert=jobs.append)
    request = FinishRequest(out=tmp_path / "out", settings=given)
    done = finish_pending(request, targets=targets)
    assert len(jobs) == (not given)
    assert (done.pending, done.exit_code) == ((), 0)


@pytest.mark.parametrize("given", [{}, {"plugins": "/b.so"}, {"plugins": "/a.so"}])
def test_plugins_of_the_record_are_loaded_only_if_they_are_given(
    prepared: Manifest, fake: Callable[..., Fake], tmp_path: Path, given: dict[str, str]
) -> None:
    record_settings(prepared, tmp_path / "out", plugins="/a.so")
    opened: list[str] = []
    targets = engine(fake, ready=READY, on_settings=lambda one: opened.append(one["plugins"]))
    request = FinishRequest(out=tmp_path / "out", settings=given)
    done = finish_pending(request, targets=targets)
    consented = given == {"plugins": "/a.so"}
    assert {*opened} == ({"/a.so"} if consented else set())
    assert done.exit_code == (0 if consented else CheckpointError.exit_code)
