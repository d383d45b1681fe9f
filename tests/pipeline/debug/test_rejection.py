"""The guilty layer of a rejected artifact is recorded; the verdict does not change."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from modelc.cli.render_manifest import show_manifest
from modelc.converters.onnx_origins import read_origins
from modelc.converters.registry import TARGETS, target_named
from modelc.core.contract import Converted, Job, Target
from modelc.core.errors import RunnerError
from modelc.core.events import Event, Noted
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.manifest import Manifest
from modelc.core.verdict import OutputVerdict, State, Verdict
from modelc.pipeline.debug.localise_file import DebugOptions, localise_file
from modelc.pipeline.debug.rejection import (
    RejectionContext,
    add_guilty_layer,
    describe_guilty,
    outputs_wrong_by_value,
)
from modelc.pipeline.eager_reference import open_reference, read_checkpoint
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.run_progress import Progress
from modelc.pipeline.validate_folder import validate_folder
from modelc.pipeline.worst_feed import read_feed, save_feed
from modelc.validators.tolerance import tolerance_for

from ...reasons import because

pytestmark = pytest.mark.needs("onnx")
GUILTY = "layers.1.attention.value"


def plant_fault(path: Path) -> None:
    """One weight of one layer 50 % too large."""
    model, origins = onnx.load(path), read_origins(path)
    read = {
        name
        for node in model.graph.node
        if node.name in origins and origins[node.name].module == GUILTY
        for name in node.input
    }
    tensor = next(one for one in model.graph.initializer if one.name in read and len(one.dims) > 1)
    array = numpy_helper.to_array(tensor).copy()
    array.flat[5] *= np.float32(1.5)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, path)


def like(target: Target, **parts: object) -> Target:
    """The target with other functions."""
    known = {name: getattr(target, name) for name in dir(target) if not name.startswith("_")}
    return cast("Target", SimpleNamespace(**{**known, **parts}))


def faulty_targets(
    change: Callable[[Path], None] = plant_fault, **parts: object
) -> tuple[Target, ...]:
    """The table of targets with an ONNX converter that plants a fault in its output."""
    whole = target_named("onnx")

    def convert(job: Job) -> Converted:
        converted = whole.convert(job)
        change(job.folder / converted.files[0][0])
        return converted

    others = [one for one in TARGETS if one.NAME != "onnx"]
    one = like(whole, convert=convert, CAPTURES=whole.CAPTURES[:1], **parts)
    return (one, *others)


def export_rejected(
    source: Source, out: Path, targets: tuple[Target, ...], tell: Callable[[Event], None] = print
) -> Manifest:
    return run(
        Order(source=source, wanted=(Wanted(target="onnx"),), out=out), tell, targets=targets
    )


@pytest.fixture(scope="module")
def rejected_out(
    tmp_path_factory: pytest.TempPathFactory, bert_source: Source
) -> tuple[Path, Manifest, list[str]]:
    """The folder of a rejected export, its manifest and its notes."""
    out = tmp_path_factory.mktemp("rejected") / "out"
    notes: list[str] = []

    def tell(event: Event) -> None:
        if isinstance(event, Noted):
            notes.append(event.text)

    with warnings.catch_warnings(record=True):
        return out, export_rejected(bert_source, out, faulty_targets(), tell), notes


Rejected = tuple[Path, Manifest, list[str]]


def test_the_guilty_layer_of_a_rejected_artifact_is_recorded(rejected_out: Rejected) -> None:
    out, manifest, _ = rejected_out
    (found,) = manifest.localisations
    assert (found.artifact, found.guilty) == ("rejected/onnx", GUILTY)
    assert f"{GUILTY}.weight" in found.cause
    assert "1 of 4096" in found.cause
    assert read_manifest(out) == manifest


def test_the_verdict_and_the_exit_code_stay(rejected_out: Rejected) -> None:
    _, manifest, _ = rejected_out
    verdict = manifest.verdict_of("rejected/onnx")
    assert verdict is not None
    assert verdict.state is State.FAILED
    assert "guilty" not in verdict.reason
    assert manifest.exit_code == 1


def test_the_worst_feed_is_searched(rejected_out: Rejected) -> None:
    _, manifest, _ = rejected_out
    verdict = manifest.verdict_of("rejected/onnx")
    assert verdict is not None
    worst = outputs_wrong_by_value(verdict)[0]
    assert manifest.localisations[0].feed == worst.feed
    assert worst.headroom == verdict.headroom


def test_the_result_shows_layer_place_cause_and_the_command(
    rejected_out: Rejected, capsys: pytest.CaptureFixture[str]
) -> None:
    out, manifest, _ = rejected_out
    (found,) = manifest.localisations
    line = describe_guilty(found)
    values = (f"{GUILTY} (Linear)", f"encoder.py:{found.layers[0].line}", f"{GUILTY}.weight")
    assert [value for value in values if value not in line] == []
    show_manifest(manifest, str(out))
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{GUILTY} (Linear)" in shown
    assert "modelc debug" in shown


def test_a_good_export_has_no_localisation(bert: Path) -> None:
    manifest = read_manifest(bert)
    assert manifest is not None
    assert manifest.passed
    assert not [one for one in manifest.localisations if one.artifact.startswith("rejected/")]


@pytest.mark.slow
def test_an_error_of_the_search_is_a_note_and_changes_nothing(
    bert_source: Source, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise RunnerError("kernel 7", hint="none")

    notes: list[Event] = []
    found = export_rejected(
        bert_source, tmp_path / "out", faulty_targets(open_probe=broken), notes.append
    )
    assert found.localisations == ()
    assert found.exit_code == 1
    assert [one for one in notes if isinstance(one, Noted) and "kernel 7" in one.text]


@pytest.mark.slow
def test_a_good_export_in_its_place_removes_the_localisation(
    rejected_out: Rejected, bert_source: Source
) -> None:
    out, first, _ = rejected_out
    assert first.localisations
    copy = out.with_name("copy")
    shutil.copytree(out, copy)
    assert export_rejected(bert_source, copy, TARGETS).localisations == ()


def test_an_artifact_that_a_later_validation_rejects_is_searched(bert: Path) -> None:
    copy = bert.with_name("validated")  # as deep, so that the checkpoint is found
    shutil.copytree(bert, copy)
    found = validate_folder(copy, judging=Judging(atol=0.0, rtol=0.0, min_sqnr=300.0))
    names = {one.artifact: one.guilty for one in found.localisations}
    assert names["rejected/onnx"] == ""  # no layer is: the tolerance is beyond float32


def test_at_the_time_limit_a_note_says_how_many_layers_were_measured(
    rejected_out: Rejected, bert_source: Source
) -> None:
    out, manifest, _ = rejected_out
    stage = Progress(tell=print, logs=out / "logs")
    checkpoint = read_checkpoint(bert_source, stage)
    eager = open_reference(bert_source, checkpoint, Judging(), stage)
    context = RejectionContext(
        eager=eager, progress=stage, folder=out.with_name("short"), seconds=0.0
    )
    context.folder.mkdir()
    (context.folder / "rejected").symlink_to(out / "rejected")
    quick = replace(
        manifest, localisations=(), verdicts=(replace(manifest.verdicts[0], seconds=0.0),)
    )
    late = add_guilty_layer(quick, "rejected/onnx", target_named("onnx"), context)
    (found,) = late.localisations
    assert found.guilty == ""
    assert re.search(r"\b0 of \d+ layers", found.notes[0])


def test_an_artifact_that_would_take_too_long_is_not_searched(
    rejected_out: Rejected, tmp_path: Path
) -> None:
    _, manifest, _ = rejected_out
    notes: list[Event] = []
    stage = Progress(tell=notes.append, logs=tmp_path)
    context = cast(
        "RejectionContext", SimpleNamespace(progress=stage, folder=tmp_path, seconds=60.0)
    )
    slow = replace(manifest, verdicts=(replace(manifest.verdicts[0], seconds=1e6),))
    assert add_guilty_layer(slow, "rejected/onnx", target_named("onnx"), context) is slow
    (note,) = notes
    assert isinstance(note, Noted)
    assert "modelc debug" in note.text


def _verdict(*outputs: OutputVerdict, state: State = State.FAILED) -> Verdict:
    return Verdict(
        artifact="rejected/onnx",
        state=state,
        reasons=because("a frozen branch", ReasonCode.BRANCH_FROZEN, fault=True),
        device="cpu",
        tolerance=tolerance_for(Precision.FP32),
        feeds=("opt",),
        outputs=outputs,
    )


@pytest.mark.parametrize(
    "changes",
    [{"passed": True}, {"loose": True}, {"form_kind": "missing"}, {"form_kind": "structure"}],
)
def test_outputs_that_pass_or_differ_in_form_are_not_searched(changes: dict[str, object]) -> None:
    plain = OutputVerdict(
        feed="opt", output="y", passed=False, reason="", shape=(1,), dtype="float32", exact=False
    )
    assert outputs_wrong_by_value(_verdict(plain)) == (plain,)
    assert outputs_wrong_by_value(_verdict(plain, state=State.ERROR)) == ()
    assert outputs_wrong_by_value(_verdict(replace(plain, **changes))) == ()  # type: ignore[arg-type]  # fields of the record


def test_debug_uses_a_worst_feed_that_a_search_found(rejected_out: Rejected) -> None:
    out, manifest, _ = rejected_out
    copy = out.with_name("searched")
    shutil.copytree(out, copy)
    verdict = manifest.verdict_of("rejected/onnx")
    assert verdict is not None
    assert verdict.worst is not None
    feed = {name: array[:1].copy() for name, array in read_feed(copy / verdict.worst.file).items()}
    feed["ids"][:] = 7
    save_feed(feed, copy / verdict.worst.file)
    worst = replace(verdict.worst, feed="search-7")
    write_manifest(replace(manifest, verdicts=(replace(verdict, worst=worst),)), copy)
    path = copy / "rejected" / "model.onnx"
    for asked in (None, "search-7"):
        found = localise_file(path, looking=DebugOptions(feed=asked))
        assert (found.feed, found.guilty) == ("search-7", GUILTY)
