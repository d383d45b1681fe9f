"""A step that only another host can build: prepared here, finished there from the manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from modelc.core.contract import Job, Preflight, Readiness, Runner, Target
from modelc.core.errors import (
    LOGGED,
    ConversionError,
    ErrorCode,
    MissingError,
    ModelcError,
    RunnerError,
    UsageError,
)
from modelc.core.events import Event, Noted
from modelc.core.kinds import Precision
from modelc.core.manifest import Manifest
from modelc.core.signature import Signature
from modelc.pipeline.finish_pending import finish_pending
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Order
from modelc.pipeline.recorded_run import FinishRequest
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_folder import validate_folder

from .conftest import Fake

Orders = Callable[..., Order]
NO_GPU = Readiness(ready=False, reason="no CUDA driver", mend="run it on a GPU host")
CLEAR = Preflight(blockers=(), warnings=(), memory=12345, source="operators of 11.4")


@dataclass(frozen=True, kw_only=True)
class Engine(Fake):
    """A fake that needs a GPU, and can look at its parent without one."""

    FINISHED_BY: str = "build-engine"
    found: Preflight = CLEAR
    on_settings: Callable[[Mapping[str, str]], object] = lambda _: None
    RUN_SETTINGS: frozenset[str] = frozenset({"trust_engine"})
    here: bool = True

    def is_for_host(self, path: Path) -> bool:
        assert path.read_text() == self.text
        return self.here

    def open_runner(
        self,
        path: Path,
        device: str,
        signature: Signature,
        settings: Mapping[str, str] | None = None,
    ) -> Runner:
        self.on_settings(settings or {})
        return super().open_runner(path, device, signature)

    def preflight(self, job: Job) -> Preflight:
        if job.parent is None:
            raise ConversionError("nothing to look at", hint="")
        return self.found


def engine(
    *,
    ready: bool,
    found: Preflight = CLEAR,
    origin: str = "fake",
    on_convert: Callable[[Job], object] = lambda _: None,
    on_open: Callable[[], object] = lambda: None,
    here: bool = True,
) -> Target:
    made = Engine(
        NAME="engine",
        SUFFIX=".engine",
        MADE_FROM={Precision.FP32: origin},
        CAPTURES=(),
        ready=Readiness(ready=True, version="1") if ready else NO_GPU,
        found=found,
        on_convert=on_convert,
        on_open=on_open,
        here=here,
    )
    return cast("Target", made)


@pytest.mark.parametrize("name", ["tensorrt", "tensorrt-rtx"])
@pytest.mark.parametrize("profile", ["y=1x4:2x4:4x4", "x=1:2:4"])
def test_a_profile_of_other_inputs_converts_nothing(
    order: Orders, tmp_path: Path, name: str, profile: str
) -> None:
    with pytest.raises(UsageError, check=lambda error: error.option == "profile"):
        run(order(name, settings={"profiles": profile}))
    assert not list((tmp_path / "out").glob("model*"))


def table(
    fake: Callable[..., Target], *, ready: bool, found: Preflight = CLEAR
) -> tuple[Target, ...]:
    return (fake(), engine(ready=ready, found=found))


@pytest.fixture
def prepared(order: Orders, fake: Callable[..., Target]) -> Manifest:
    """A folder with a parent that passed, and the engine left for another host."""
    return run(order("engine", settings={"workspace": "1G"}), targets=table(fake, ready=False))


@pytest.fixture
def finish(fake: Callable[..., Target], tmp_path: Path) -> Callable[..., Manifest]:
    """`finish(ready=True)`: run the pending steps of the folder on a host with a GPU or without."""

    def on_host(
        engine_target: Target | None = None,
        *,
        ready: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> Manifest:
        targets = (fake(), engine_target) if engine_target else table(fake, ready=ready)
        request = FinishRequest(out=tmp_path / "out", settings=settings or {})
        return finish_pending(request, targets=targets)

    return on_host


def test_the_parent_is_judged_and_the_engine_pending(prepared: Manifest, tmp_path: Path) -> None:
    assert [artifact.name for artifact in prepared.artifacts] == ["fake"]
    (pending,) = prepared.pending
    assert (pending.step, pending.reason, pending.memory) == ("engine", NO_GPU.reason, 12345)
    assert pending.command == "modelc build-engine"
    assert pending.settings == {"workspace": "1G"}
    assert prepared.exit_code == 4
    assert not prepared.passed
    assert read_manifest(tmp_path / "out") == prepared
    assert not list((tmp_path / "out").glob("*.engine"))


def test_warnings_are_reported_and_recorded(order: Orders, fake: Callable[..., Target]) -> None:
    told: list[Event] = []
    warned = Preflight(blockers=(), warnings=("3 x NonZero",), memory=1, source="s")
    found = run(order("engine"), told.append, targets=table(fake, ready=False, found=warned))
    assert found.pending[0].warnings == ("3 x NonZero",)
    assert Noted(text="engine: 3 x NonZero", warning=True) in told


def test_a_blocked_step_is_a_failure_and_not_pending(
    order: Orders, fake: Callable[..., Target]
) -> None:
    blocked = Preflight(blockers=("Foo", "Bar"), warnings=(), memory=1, source="s")
    found = run(order("engine"), targets=table(fake, ready=False, found=blocked))
    assert not found.pending
    assert "Foo" in found.failures[0].message
    assert found.exit_code == 5


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("plugins", "--plugins FILE, or let ONNX Runtime or torch run the rest"),
        ("min-block-size", "a smaller --min-block-size N may help"),
        ("", "engine.log"),
    ],
)
def test_the_hint_on_a_blocker_names_what_may_help(
    option: str, hint: str, order: Orders, fake: Callable[..., Target]
) -> None:
    blocked = Preflight(blockers=("Foo",), warnings=(), memory=1, source="s", option=option)
    found = run(order("engine"), targets=table(fake, ready=False, found=blocked))
    assert hint in found.failures[0].hint


def test_another_host_builds_what_is_missing(
    prepared: Manifest, tmp_path: Path, finish: Callable[..., Manifest]
) -> None:
    settings: list[object] = []
    ready = engine(ready=True, on_convert=lambda job: settings.append(job.settings))
    found = finish(ready)
    assert [artifact.name for artifact in found.artifacts] == ["fake", "engine"]
    assert found.artifacts[0] == prepared.artifacts[0]
    assert found.artifacts[1].parent == prepared.artifacts[0].digest
    assert settings == [{"workspace": "1G"}]
    assert not found.pending
    assert found.exit_code == 0
    assert read_manifest(tmp_path / "out") == found


def test_finishing_on_a_host_like_the_first_leaves_it_pending(
    prepared: Manifest, finish: Callable[..., Manifest]
) -> None:
    found = finish(ready=False)
    assert found.pending == prepared.pending
    assert found.exit_code == 4


def test_a_changed_parent_is_a_failure(
    prepared: Manifest, tmp_path: Path, finish: Callable[..., Manifest]
) -> None:
    (tmp_path / "out" / prepared.artifacts[0].files[0].name).write_text("another model")
    found = finish()
    assert [artifact.name for artifact in found.artifacts] == ["fake"]
    assert "model.fake changed" in found.failures[0].message
    assert found.exit_code == 1
    assert found.pending == prepared.pending


def test_a_repeated_run_has_one_pending_step(
    prepared: Manifest, order: Orders, fake: Callable[..., Target]
) -> None:
    found = run(order("engine"), targets=table(fake, ready=False))
    assert len(found.pending) == len(prepared.pending) == 1


def test_an_engine_that_cannot_run_here_keeps_its_verdict(
    prepared: Manifest, fake: Callable[..., Target], tmp_path: Path, finish: Callable[..., Manifest]
) -> None:
    assert prepared.pending
    finish()
    found = validate_folder(tmp_path / "out", targets=table(fake, ready=False))
    assert found.verdict_of("engine") is not None
    assert [failure.step for failure in found.failures] == ["engine"]
    assert found.exit_code == 4
    assert (tmp_path / "out" / "model.engine").exists()


@pytest.mark.usefixtures("prepared")
def test_a_finished_folder_is_checked_by_its_digests(
    tmp_path: Path, finish: Callable[..., Manifest]
) -> None:
    for _ in range(2):
        done = finish()
        assert done.exit_code == 0
    (tmp_path / "out" / "model.engine").write_text("another")
    found = finish()
    assert found.exit_code == 1
    assert [failure.step for failure in found.failures] == ["engine"]


def test_a_parent_from_another_folder_is_copied_and_judged(
    order: Orders, fake: Callable[..., Target], tmp_path: Path
) -> None:
    middle = fake(NAME="middle", SUFFIX=".middle", origin="fake", CAPTURES=())
    (tmp_path / "elsewhere.middle").write_text("a model")

    def targets(*, ready: bool) -> tuple[Target, ...]:
        return (fake(), middle, engine(ready=ready, origin="middle"))

    asked = order("engine", parent=tmp_path / "elsewhere.middle")
    found = run(asked, targets=targets(ready=False))
    assert [artifact.name for artifact in found.artifacts] == ["middle"]
    assert found.pending[0].made_from == "middle"
    done = finish_pending(FinishRequest(out=tmp_path / "out"), targets=targets(ready=True))
    assert [artifact.name for artifact in done.artifacts] == ["middle", "engine"]
    assert done.exit_code == 0


def test_a_parent_that_is_built_again_removes_its_pending_step(
    prepared: Manifest, order: Orders, fake: Callable[..., Target]
) -> None:
    told: list[Event] = []
    other = run(order("fake"), told.append, targets=(fake(text="made anew"),))
    assert prepared.pending
    assert not other.pending
    assert any(isinstance(event, Noted) and "engine" in event.text for event in told)


def test_a_failed_build_can_be_tried_again(
    prepared: Manifest, finish: Callable[..., Manifest]
) -> None:
    def breaks(_job: Job) -> None:
        raise ConversionError("no memory", hint="free some")

    broken = finish(engine(ready=True, on_convert=breaks))
    assert [failure.message for failure in broken.failures] == ["no memory"]
    assert broken.pending == prepared.pending
    assert broken.exit_code == 5
    done = finish()
    assert [artifact.name for artifact in done.artifacts] == ["fake", "engine"]
    assert (done.failures, done.pending, done.exit_code) == ((), (), 0)


def fails(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


ENGINE = "pending/model.engine"


@pytest.mark.parametrize("error", [RunnerError("CUDA out of memory", hint="free some")])
def test_an_engine_whose_judging_fails_is_kept_and_not_built_again(
    prepared: Manifest, tmp_path: Path, finish: Callable[..., Manifest], error: ModelcError
) -> None:
    broken = finish(engine(ready=True, on_open=fails(error)))
    assert [failure.message for failure in broken.failures] == [error.message]
    assert broken.exit_code == error.exit_code
    assert [file.name for one in broken.pending for file in one.files] == [ENGINE]
    assert (tmp_path / "out" / ENGINE).is_file()
    assert f"{broken.pending[0].command} {tmp_path / 'out'}" in broken.failures[0].hint
    rebuilt = fails(AssertionError("the engine is built again"))
    done = finish(engine(ready=True, on_convert=rebuilt), settings={"trust_engine": "true"})
    assert [artifact.name for artifact in done.artifacts] == ["fake", "engine"]
    assert done.artifacts[1].parent == prepared.artifacts[0].digest
    assert done.artifacts[1].versions == {"text": "1"}
    assert (done.failures, done.pending, done.exit_code) == ((), (), 0)
    assert (tmp_path / "out" / "model.engine").is_file()
    assert not (tmp_path / "out" / ENGINE).exists()


@pytest.mark.usefixtures("prepared")
def test_a_hint_that_names_the_log_ends_with_it(finish: Callable[..., Manifest]) -> None:
    """Its path is printed behind it."""
    broken = finish(engine(ready=True, on_open=fails(RunnerError("it broke", hint=LOGGED))))
    (failure,) = broken.failures
    assert failure.advice[-1] == LOGGED
    assert broken.pending[0].command in failure.hint


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(
    "error",
    [
        MissingError("torch sees no CUDA device", hint=""),
        RuntimeError("a bug"),
        KeyboardInterrupt(),
    ],
    ids=["missing", "bug", "interrupt"],
)
def test_an_engine_is_kept_whatever_ends_the_run(
    tmp_path: Path, finish: Callable[..., Manifest], error: BaseException
) -> None:
    with pytest.raises(type(error)):
        finish(engine(ready=True, on_open=fails(error)))
    left = read_manifest(tmp_path / "out")
    assert left is not None
    assert [file.name for one in left.pending for file in one.files] == [ENGINE]
    rebuilt = fails(AssertionError("the engine is built again"))
    done = finish(engine(ready=True, on_convert=rebuilt))
    assert (done.pending, done.exit_code) == ((), 0)


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(
    ("here", "settings"),
    [(False, {}), (True, {"workspace": "2G"})],
    ids=["other host", "other options"],
)
def test_a_kept_engine_that_does_not_fit_is_built_again(
    finish: Callable[..., Manifest], here: bool, settings: Mapping[str, str]
) -> None:
    finish(engine(ready=True, on_open=fails(RunnerError("no memory", hint=""))))
    jobs: list[Job] = []
    done = finish(engine(ready=True, on_convert=jobs.append, here=here), settings=settings)
    assert [job.settings for job in jobs] == [{"workspace": "1G", **settings}]
    assert (done.pending, done.exit_code) == ((), 0)


@pytest.mark.usefixtures("prepared")
def test_an_engine_without_memory_to_run_is_kept_and_not_rejected(
    tmp_path: Path, finish: Callable[..., Manifest]
) -> None:
    full = RunnerError("CUDA out of memory", hint="free some", code=ErrorCode.OUT_OF_MEMORY)
    found = finish(replace(cast("Engine", engine(ready=True)), answer=fails(full)))
    assert [failure.exit_code for failure in found.failures] == [full.exit_code]
    assert [file.name for one in found.pending for file in one.files] == [ENGINE]
    assert not (tmp_path / "out" / "rejected").exists()
    assert finish().exit_code == 0


@pytest.mark.usefixtures("prepared")
def test_a_rejected_engine_leaves_nothing_pending(
    tmp_path: Path, finish: Callable[..., Manifest]
) -> None:
    wrong = replace(
        cast("Engine", engine(ready=True)), answer=lambda feed: {"output": feed["x"] * 0 + 7}
    )
    found = finish(wrong)
    assert found.exit_code == 1
    assert found.pending == ()
    assert (tmp_path / "out" / "rejected" / "model.engine").is_file()
    assert not (tmp_path / "out" / "pending").exists()
