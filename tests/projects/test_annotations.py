"""Remarks on lines: a gate's in modelc.toml, a branch's in the user's code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from modelc.core.errors import CheckpointError, Place, UsageError
from modelc.core.findings import BranchRecord
from modelc.projects.annotations import Annotation, annotate_fault, annotate_run, path_within
from modelc.projects.project_faults import ProjectError
from modelc.projects.project_records import Breach, MeasureChange, ModelOutcome, Regression
from modelc.reports.comparison import Change

PLACES = {"net": Place(file="conf/modelc.toml", line=12, key="[models.net]")}
BREACH = Breach(artifact="onnx", gate="max-size", message="9 MB > max-size 8 MB",
                told=Place(file="conf/modelc.toml", line=17, key="[models.net.gates]"))  # fmt: skip


def of(one: ModelOutcome, regression: Regression | None = None) -> tuple[Annotation, ...]:
    return annotate_run((one,), regression, PLACES)


def test_a_broken_gate_is_an_error_on_its_line() -> None:
    (note,) = of(ModelOutcome(name="net", folder="out/net", breaches=(BREACH,)))
    assert (note.level, note.file, note.line) == ("error", "conf/modelc.toml", 17)
    assert note.title == "net/onnx: max-size"


def test_a_gate_that_a_flag_said_is_on_the_line_of_its_model() -> None:
    breach = replace(BREACH, told=Place(key="--set"))
    (note,) = of(ModelOutcome(name="net", folder="out/net", breaches=(breach,)))
    assert (note.file, note.line) == ("", 0)


def test_a_model_that_stopped_is_an_error_on_the_line_that_names_it() -> None:
    error = CheckpointError("net.pt is cut short", hint="fetch it again")
    (note,) = of(ModelOutcome(name="net", folder="out/net", error=error))
    assert (note.file, note.line, note.title) == ("conf/modelc.toml", 12, "net")
    assert error.message in note.message
    assert error.hint in note.message


def test_a_model_that_a_key_stopped_is_an_error_on_the_line_of_the_key() -> None:
    place = Place(file="conf/modelc.toml", line=18, key="[models.net] model")
    error = UsageError("--model nets:TwoHead: nets has no 'TwoHead'", hint="look", place=place)
    (note,) = of(ModelOutcome(name="net", folder="out/net", error=error))
    assert (note.file, note.line, note.title) == ("conf/modelc.toml", 18, "net")


def test_what_is_not_proven_is_an_error_and_what_waits_a_warning(records: ModuleType) -> None:
    manifest = replace(
        records.full(), steps=("onnx", "openvino", "torchscript", "pt2", "tensorrt-fp16")
    )
    notes = of(ModelOutcome(name="net", folder="out/net", manifest=manifest))
    titles = {note.title: note.level for note in notes}
    assert titles["net/openvino: rejected"] == "error"
    assert titles["net/torchscript: failed"] == "error"
    assert titles["net/pt2: failed"] == "error"
    assert not [title for title in titles if title.startswith("net/onnx:")]
    waits = {title: level for title, level in titles.items() if title.endswith(": pending")}
    assert set(waits.values()) <= {"warning"}
    assert [note.level for note in notes] == sorted(note.level for note in notes)


def test_what_earlier_runs_left_is_not_of_this_one(records: ModuleType) -> None:
    manifest = replace(records.full(), steps=("onnx",), branches=(), warned=(), localisations=())
    notes = of(ModelOutcome(name="net", folder="out/net", manifest=manifest))
    assert not [note for note in notes if note.title.startswith("net/openvino")]


@pytest.mark.parametrize("accepted", [False, True])
def test_a_branch_that_no_feed_took_is_on_the_users_line_until_it_is_accepted(
    records: ModuleType, accepted: bool
) -> None:
    branch = BranchRecord(
        file="nets/gate.py", line=23, condition="x.mean() > 0", arms={"true": "opt"}, data=True,
        accepted=accepted,
    )  # fmt: skip
    notes = of(ModelOutcome(name="net", folder="o", manifest=records.manifest(branches=(branch,))))
    places = [(note.file, note.line) for note in notes]
    assert places == ([] if accepted else [("nets/gate.py", 23)])


def test_what_got_worse_is_an_error_on_the_line_of_the_model() -> None:
    change = MeasureChange(model="net", artifact="onnx", measure="size", change=Change.WORSE,
                     before="1 MB", after="2 MB")  # fmt: skip
    regression = Regression(base="base", changed=(change,), compared=3)
    (note,) = of(ModelOutcome(name="net", folder="out/net"), regression)
    assert (note.line, note.title.partition(":")[0]) == (12, "net/onnx")
    assert note.message == "size: 1 MB before, 2 MB now"


def test_each_fault_of_a_project_is_on_its_own_line() -> None:
    places = [Place(file="modelc.toml", line=line) for line in (4, 17)]
    first = UsageError("unknown key 'sed'", hint="did you mean seed?", place=places[0])
    second = UsageError("it cannot be 2", hint="give 5", place=places[1])
    notes = annotate_fault(ProjectError([first, second]))
    assert [(note.file, note.line) for note in notes] == [("modelc.toml", 4), ("modelc.toml", 17)]
    assert all("hint" in note.message for note in notes)


def test_a_file_is_named_from_the_checkouts_root_and_not_outside_it(tmp_path: Path) -> None:
    root, project = tmp_path / "root", tmp_path / "root" / "ml"
    project.mkdir(parents=True)
    (project / "net.py").touch()
    (tmp_path / "secret.py").touch()
    assert path_within("net.py", root, root, project) == "ml/net.py"
    assert path_within(str(project / "net.py"), root, root) == "ml/net.py"
    assert path_within("../secret.py", root, root) == ""
    assert path_within("absent.py", root, root, project) == ""
