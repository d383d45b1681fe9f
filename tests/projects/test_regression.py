"""A run beside that of the base branch: what is worse fails, what was taken away is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from modelc.core.errors import CheckpointError, ConversionError, UsageError
from modelc.core.kinds import Precision
from modelc.core.manifest import Failure, Manifest, Pending
from modelc.core.records import FileRecord, Latency
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import write_manifest
from modelc.projects.project_records import ModelOutcome, Regression
from modelc.projects.project_results import BaseRun, RunScope, find_regression, read_base
from modelc.projects.run_record import make_record, with_regression
from modelc.reports.comparison import Change


@pytest.fixture
def proven(records: ModuleType) -> Callable[..., Manifest]:
    """`proven("onnx", "pt2", sqnr=120.0)`: a record of these artifacts, all right."""

    def made(*names: str, headroom: float = 28.0, **changes: object) -> Manifest:
        found: Manifest = records.manifest(
            artifacts=tuple(records.artifact(name, **changes) for name in names),
            verdicts=tuple(
                records.judged(name, records.measured("sample", headroom)) for name in names
            ),
            steps=names,
        )
        return found

    return made


def parts(declared: tuple[str, ...], made: tuple[str, ...] | None = None) -> RunScope:
    """A project of one model that declares these artifacts, and makes these in this run."""
    return RunScope(
        made={"net": frozenset(declared if made is None else made)},
        declared={"net": frozenset(declared)},
        models=("net",),
    )


def beside(
    before: Manifest,
    now: ModelOutcome | Manifest,
    these: RunScope,
    *,
    prepare_only: bool = False,
    latency: bool = False,
) -> Regression:
    ended = (
        ModelOutcome(name="net", folder="out/net", manifest=now)
        if isinstance(now, Manifest)
        else now
    )
    base = BaseRun(path=Path("base"), manifests={"net": before})
    return find_regression(base, (ended,), these, prepare_only=prepare_only, latency=latency)


def listed(found: Regression) -> list[tuple[str, str, Change]]:
    return [(one.artifact, one.measure, one.change) for one in found.changed]


def test_a_run_compared_with_itself_has_no_change(proven: Callable[..., Manifest]) -> None:
    found = beside(proven("onnx"), proven("onnx"), parts(("onnx",)))
    assert found.changed == ()
    assert found.compared > 2


def test_an_artifact_that_is_rejected_now_is_worse_and_fails_the_run(
    proven: Callable[..., Manifest], records: ModuleType
) -> None:
    verdict = records.judged("rejected/onnx", state=State.FAILED, reason="SQNR 9 dB < 90")
    refused = records.manifest(
        artifacts=(records.artifact("rejected/onnx", rejected=True),),
        verdicts=(verdict,),
        steps=("onnx",),
    )
    found = beside(proven("onnx"), refused, parts(("onnx",)))
    assert listed(found) == [("onnx", "verdict", Change.WORSE)]
    assert found.changed[0].why == "SQNR 9 dB < 90"
    assert with_regression(make_record((), seconds=0.0), found).exit_code == 1


@pytest.mark.parametrize(
    ("changes", "measure"),
    [
        ({"files": (FileRecord(name="onnx.bin", size=200_000, sha256="a" * 64),)}, "size"),
        ({"latency": Latency(milliseconds=2.0, parent=1.0, device="cpu", runs=50)}, "latency"),
        ({"headroom": 5.0}, "SQNR"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_larger_slower_or_less_exact_is_worse(
    proven: Callable[..., Manifest], changes: dict[str, object], measure: str
) -> None:
    was = Latency(milliseconds=1.0, parent=1.0, device="cpu", runs=50)
    now = proven("onnx", **{"latency": was, **changes})
    found = beside(proven("onnx", latency=was), now, parts(("onnx",)), latency=True)
    assert ("onnx", measure, Change.WORSE) in listed(found)


def test_a_declared_artifact_that_is_missing_now_is_worse(
    proven: Callable[..., Manifest],
) -> None:
    found = beside(proven("onnx", "pt2"), proven("onnx"), parts(("onnx", "pt2")))
    assert listed(found) == [("pt2", "verdict", Change.WORSE)]


def test_an_artifact_that_is_no_longer_declared_is_reported(
    proven: Callable[..., Manifest],
) -> None:
    found = beside(proven("onnx", "pt2"), proven("onnx"), parts(("onnx",)))
    assert listed(found) == [("pt2", "verdict", Change.INFO)]
    assert "declared" in found.changed[0].after


def test_artifacts_that_were_not_requested_are_not_compared(
    proven: Callable[..., Manifest],
) -> None:
    found = beside(proven("onnx", "pt2"), proven("onnx"), parts(("onnx", "pt2"), ("onnx",)))
    assert found.changed == ()


def test_artifacts_of_other_runs_in_the_folder_do_not_count(
    proven: Callable[..., Manifest],
) -> None:
    left = replace(proven("onnx", "pt2"), steps=("onnx",))
    found = beside(proven("onnx"), left, parts(("onnx",)))
    assert found.changed == ()


def test_a_failed_model_has_lost_its_passed_artifacts(
    proven: Callable[..., Manifest],
) -> None:
    error = CheckpointError("net.pt is cut short", hint="fetch it again")
    ended = ModelOutcome(name="net", folder="out/net", error=error)
    found = beside(proven("onnx"), ended, parts(("onnx",)))
    assert listed(found) == [("onnx", "verdict", Change.WORSE)]
    assert str(error) in found.changed[0].why


def test_a_step_that_failed_is_worse_with_its_reason(proven: Callable[..., Manifest]) -> None:
    failure = Failure(step="onnx", message="refused it", hint="-", exit_code=5)
    now = replace(proven(), failures=(failure,), steps=("onnx",))
    found = beside(proven("onnx"), now, parts(("onnx",)))
    assert listed(found) == [("onnx", "verdict", Change.WORSE)]
    assert "refused it" in found.changed[0].why


@pytest.mark.parametrize(("prepare_only", "change"), [(False, Change.WORSE), (True, Change.INFO)])
def test_a_pending_artifact_is_worse_unless_only_prepared(
    proven: Callable[..., Manifest], prepare_only: bool, change: Change
) -> None:
    pending = Pending(
        step="onnx", target="onnx", precision=Precision.FP32, made_from="a", parent="b",
        reason="no GPU", command="modelc",
    )  # fmt: skip
    now = replace(proven(), pending=(pending,), steps=("onnx",))
    found = beside(proven("onnx"), now, parts(("onnx",)), prepare_only=prepare_only)
    assert listed(found) == [("onnx", "verdict", change)]


def test_new_missing_and_unrequested_models_are_reported(
    proven: Callable[..., Manifest],
) -> None:
    base = BaseRun(path=Path("base"), manifests={"old": proven("onnx"), "other": proven("onnx")})
    these = RunScope(
        made={"new": frozenset({"onnx"})},
        declared={"new": frozenset({"onnx"})},
        models=("new", "other"),
    )
    ended = ModelOutcome(name="new", folder="out/new", manifest=proven("onnx"))
    found = find_regression(base, (ended,), these)
    assert [(one.model, one.after.split()[-1], one.change) for one in found.changed] == [
        ("new", "new", Change.INFO),
        ("old", "declared", Change.INFO),
    ]
    assert [text.partition(":")[0] for text in found.left_out] == ["other"]


def test_a_skipped_model_is_named(proven: Callable[..., Manifest]) -> None:
    ended = ModelOutcome(name="net", folder="out/net", started=False)
    found = beside(proven("onnx"), ended, parts(("onnx",)))
    assert [text.partition(":")[0] for text in found.left_out] == ["net"]


def test_a_failed_run_keeps_its_code_if_nothing_is_worse(
    proven: Callable[..., Manifest],
) -> None:
    error = ConversionError("-", hint="-")
    record = make_record((ModelOutcome(name="net", folder="o", error=error),), seconds=0.0)
    same = beside(proven("onnx"), proven("onnx"), parts(("onnx",)))
    assert with_regression(record, same).exit_code == 5
    assert with_regression(record, None).exit_code == 5


def test_the_base_is_a_folder_or_its_run_json(
    proven: Callable[..., Manifest], tmp_path: Path
) -> None:
    (tmp_path / "net").mkdir()
    write_manifest(proven("onnx"), tmp_path / "net")
    (tmp_path / "run.json").write_text("{}")
    for path in (tmp_path, tmp_path / "run.json"):
        assert list(read_base(path).manifests) == ["net"]


@pytest.mark.parametrize("name", ["", "absent", "absent/run.json", "file"])
def test_a_base_without_manifests_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--fail-on-regression"):
        read_base(tmp_path / name)


def test_a_corrupt_base_is_rejected(proven: Callable[..., Manifest], tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    path = write_manifest(proven("onnx"), tmp_path / "net")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UsageError):
        read_base(tmp_path)
