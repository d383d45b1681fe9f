"""All pending steps of a project are finished, and its record says what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.children.limits import ProcessLimits
from modelc.core.errors import MissingError
from modelc.core.events import ignore_events
from modelc.core.kinds import Precision
from modelc.core.manifest import Manifest, Pending
from modelc.pipeline.isolation import supervisor
from modelc.pipeline.manifest_file import write_manifest
from modelc.pipeline.recorded_run import FinishRequest
from modelc.projects.finish_project import finish_project, read_project_gates, update_record
from modelc.projects.project_records import Gate
from modelc.projects.project_results import read_results
from modelc.projects.run_record import RunRecord, make_record, write_record
from modelc.projects.setting_layers import Overrides
from modelc.reports.result_rows import Outcome

from ..pipeline.cache.conftest import record

WAITS = Pending(
    step="tensorrt", target="tensorrt", precision=Precision.FP32, made_from="fake",
    parent="0" * 64, reason="no GPU", command="modelc build-trt",
)  # fmt: skip
Finish = Callable[..., RunRecord]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Two models, of which `b` waits for a GPU."""
    from modelc.projects.project_records import ModelOutcome

    ended = []
    for name in ("a", "b"):
        folder = tmp_path / "out" / name
        folder.mkdir(parents=True)
        (folder / "model.fake").write_bytes(b"weights")
        manifest = replace(record(folder / "model.fake"), steps=("fake",))
        if name == "b":
            manifest = replace(manifest, steps=("fake", "tensorrt"), pending=(WAITS,))
        write_manifest(manifest, folder)
        ended.append(ModelOutcome(name=name, folder=str(folder), manifest=manifest))
    write_record(make_record(ended, seconds=1.0), tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def finish(out: Path, monkeypatch: pytest.MonkeyPatch) -> Finish:
    """`finish(manifest)`: the new record, if the pending steps end with this manifest."""

    def carry_out(
        after: Callable[[Manifest], Manifest], *gates: Gate, prepare_only: bool = False
    ) -> RunRecord:
        def run(request: FinishRequest, *_: object, **__: object) -> Manifest:
            before = read_results(out).manifests[request.out.name]
            return after(replace(before, steps=("tensorrt",)))

        monkeypatch.setattr(supervisor, "run_isolated", run)
        results = read_results(out)
        ended = finish_project(
            results,
            lambda folder: FinishRequest(out=folder),
            lambda _: ignore_events,
            gates={"b": gates},
            limits=ProcessLimits(),
        )
        assert list(ended) == ["b"]
        return update_record(results.record, ended, prepare_only=prepare_only)

    return carry_out


def build(manifest: Manifest) -> Manifest:
    """The manifest with the engine built and passed."""
    engine = replace(manifest.artifacts[0], name="tensorrt", target="tensorrt")
    verdict = replace(manifest.verdicts[0], artifact="tensorrt")
    return replace(
        manifest,
        artifacts=(*manifest.artifacts, engine),
        verdicts=(*manifest.verdicts, verdict),
        pending=(),
    )


def ends(found: RunRecord) -> dict[str, tuple[Outcome, str]]:
    return {one.name: (one.state, one.source) for one in found.models[1].artifacts}


def test_what_was_pending_is_finished_and_the_rest_stays(finish: Finish, out: Path) -> None:
    assert read_results(out).record.exit_code == MissingError.exit_code
    found = finish(build)
    assert found.exit_code == 0
    assert ends(found) == {"fake": (Outcome.PASSED, "kept"), "tensorrt": (Outcome.PASSED, "made")}
    assert found.models[0] == read_results(out).record.models[0]


def test_what_is_still_pending_is_no_failure_of_a_preparation(finish: Finish) -> None:
    found = finish(lambda manifest: manifest)
    assert found.exit_code == MissingError.exit_code
    assert ends(found)["tensorrt"][0] is Outcome.PENDING
    assert finish(lambda manifest: manifest, prepare_only=True).exit_code == 0


def test_a_gate_of_an_engine_is_checked_when_it_is_finished(finish: Finish) -> None:
    found = finish(build, Gate(pattern="tensorrt", max_size=1))
    assert found.exit_code == 1
    assert [one.artifact for one in found.models[1].breaches] == ["tensorrt"]


def test_an_error_of_one_model_is_in_the_record(finish: Finish) -> None:
    def fail(_: Manifest) -> Manifest:
        raise MissingError("no driver", hint="install it")

    found = finish(fail)
    assert found.exit_code == MissingError.exit_code
    assert found.models[1].error == "no driver"


def test_gates_are_read_without_checkpoints(tmp_path: Path) -> None:
    file = tmp_path / "modelc.toml"
    file.write_text(
        '[models.a]\ncheckpoint = "gone.pt"\nto = "onnx"\ngates = { max-size = "1 kB" }\n'
    )
    (gate,) = read_project_gates(file, Overrides())["a"]
    assert gate.max_size == 1000
