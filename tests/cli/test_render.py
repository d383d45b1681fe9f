"""Verdicts and manifests as tables: what is counted, folded, and shown on a narrow terminal."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from modelc.cli.console import (
    estimate_left,
    fit_table,
    print_line,
    show_json,
    show_reasons_table,
    write_json,
)
from modelc.cli.render import show_inspection, show_verdict
from modelc.cli.render_manifest import show_manifest
from modelc.core.contract import Inspection
from modelc.core.errors import LOGGED
from modelc.core.events import Advanced
from modelc.core.kinds import ReasonCode
from modelc.core.manifest import Failure, Manifest
from modelc.pipeline.trial_choice import CHOICE_RULE
from modelc.validators.ruling import Ruling, decide


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Always."""
        return True


def told(manifest: Manifest, capsys: pytest.CaptureFixture[str]) -> str:
    show_manifest(manifest, "out")
    return capsys.readouterr().out


def test_an_output_that_no_feed_counts_for_is_shown_as_that(
    records: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = records.judged("model.fp16.xml", records.measured("large", 3.0))
    loose = tuple(replace(output, loose=True) for output in verdict.outputs)
    show_verdict(replace(verdict, outputs=loose))
    assert "not judged" in capsys.readouterr().out


def test_one_feed_is_not_many(records: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    show_verdict(records.judged("model.onnx", records.measured("opt", 3.0)))
    assert " 1 feed " in capsys.readouterr().out


def test_what_could_not_be_judged_is_not_counted_as_refused(
    records: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = replace(records.refused(), pending=())
    failure = Failure(step="openvino", message="not made", hint="none", exit_code=5)
    manifest = replace(manifest, failures=(failure,), steps=(*manifest.steps, "openvino"))
    last = told(manifest, capsys).splitlines()[-1]
    assert last == "0 passed, 1 rejected, 1 failed · out/manifest.json"


def test_a_hint_to_read_the_log_names_it(
    records: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "openvino.log"
    log.parent.mkdir()
    log.touch()
    failure = Failure(
        step="openvino", message="not made", hint=LOGGED, advice=(LOGGED,), exit_code=5
    )
    show_manifest(replace(records.refused(), failures=(failure,)), str(tmp_path))
    assert f"hint: {LOGGED}: {log}" in capsys.readouterr().out.replace("\n", "")


def test_a_note_of_two_artifacts_is_told_once(
    records: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("onnx", "openvino")
    manifest = replace(
        records.manifest(),
        artifacts=tuple(records.artifact(name) for name in names),
        verdicts=tuple(replace(records.judged(name), notes=("is rough",)) for name in names),
        steps=names,
    )
    text = told(manifest, capsys)
    assert text.count("is rough") == 1
    assert "  onnx, openvino: is rough" in text


@pytest.mark.parametrize("width", [24, 60, 80])
def test_prose_is_indented_below_its_first_line(width: int) -> None:
    stream = Terminal()
    console = Console(file=stream, width=width, force_terminal=True, color_system=None)
    words = [f"word{number}" for number in range(40)]
    print_line(console, f"  [yellow]{' '.join(words)}[/]")
    first, *rest = stream.getvalue().splitlines()
    assert first.startswith("  word0")
    assert all(line.startswith("    word") for line in rest)
    assert max(map(len, (first, *rest))) <= max(width, 24)
    assert " ".join((first, *rest)).split() == words


def test_what_is_piped_stays_one_line() -> None:
    stream = io.StringIO()
    print_line(Console(file=stream, width=40), "  " + "word " * 40)
    assert len(stream.getvalue().splitlines()) == 1


def test_a_verdict_fits_a_narrow_terminal(
    records: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    output = records.measured("one-hot", 10.0, "output", times_floor=1.36, argmax_agreement=1.0)
    show_verdict(records.judged("model.onnx", output))
    assert "margin" in stream.getvalue()


@pytest.mark.parametrize(
    ("width", "kept"),
    [(80, "name first second third"), (31, "name first third"), (22, "name third")],
)
def test_a_table_goes_without_the_columns_that_do_not_fit(width: int, kept: str) -> None:
    columns = ("name", "first", "second", "third")
    row = dict.fromkeys(columns, "0123456")
    with io.StringIO() as stream:
        console = Console(file=stream, width=width, color_system=None)
        console.print(fit_table(console, columns, [row, {}], less=("second", "first")))
        head = stream.getvalue().split("─")[0]
    assert " ".join(head.split()) == kept


def test_the_rows_of_an_inspection_have_names_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = Inspection(
        target="onnx",
        inputs=(),
        outputs=(),
        facts={},
        weights={},
        operators={},
        metadata={"modelc.modelc": "0.1.0", "modelc.checkpoint": "12ab", "author": "me"},
    )
    show_inspection(found, 1, [("checkpoint file", "net.pt")])
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    names = {" ".join(row.split()[:-1]): row.split()[-1:] for row in rows}
    assert names["modelc"] == ["0.1.0"]
    assert names["checkpoint sha256"] == ["12ab"]
    assert names["checkpoint file"] == ["net.pt"]
    assert names["author"] == ["me"]


def test_what_refused_it_is_told_first_and_what_came_of_it_below(
    records: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = replace(records.refused(), pending=())
    (verdict,) = (one for one in manifest.verdicts if not one.passed)
    frozen = decide(
        verdict,
        [Ruling.fault(ReasonCode.BRANCH_FROZEN, "the trace froze the branch at net.py:7")],
    )
    assert frozen.reasons[0].code is ReasonCode.BRANCH_FROZEN
    assert frozen.reason.endswith(f" net.py:7; {verdict.reason}")
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    others = tuple(one for one in manifest.verdicts if one.passed)
    show_manifest(replace(manifest, verdicts=(*others, frozen)), "out")
    lines = stream.getvalue().splitlines()
    at = next(n for n, line in enumerate(lines) if line.endswith("froze the branch at net.py:7"))
    assert lines[at].startswith("rejected/")
    assert lines[at + 1] == f"  {verdict.reason}"


def int8_run(records: ModuleType, size: int) -> Manifest:
    """ONNX in FP32 and in INT8, the latter of this size; several quantizers were tried."""
    plain, quantized = records.artifact("onnx"), records.int8_artifact()
    files = (replace(quantized.files[0], size=size),)
    quantized = replace(quantized, files=files)
    manifest: Manifest = records.manifest()
    return replace(
        manifest,
        artifacts=(plain, quantized),
        verdicts=tuple(records.judged(one.name) for one in (plain, quantized)),
        steps=(plain.name, quantized.name),
    )


def test_the_rule_by_which_a_quantizer_is_kept_is_below_the_table(
    records: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = [
        one for one in told(int8_run(records, 10), capsys).splitlines() if CHOICE_RULE in one
    ]
    assert str(records.int8_artifact().capture) in line


@pytest.mark.parametrize(("size", "larger"), [(10, False), (10_000_000, True)])
def test_an_int8_that_is_larger_than_fp32_is_noted(
    records: ModuleType, capsys: pytest.CaptureFixture[str], size: int, *, larger: bool
) -> None:
    notes = told(int8_run(records, size), capsys).split("─")[-1]
    assert ("10.0 MB" in notes) is larger


@pytest.mark.parametrize(("columns", "where"), [(200, "table"), (80, "below")])
def test_a_long_reason_stands_below_a_table_that_is_too_narrow(columns: int, where: str) -> None:
    stream = Terminal()
    console = Console(file=stream, width=columns, highlight=False, color_system=None)
    why = "1.11e+07 times as far from eager as roundoff explains (limit 5), and much more beside"
    row = {"artifact": "onnx", "measure": "verdict", "before": "passed", "": "worse", "why": why}
    show_reasons_table(console, [row, {**row, "artifact": "pt2", "why": ""}])
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert max(map(len, lines)) <= columns
    told = next(line for line in lines if "1.11e+07" in line)
    assert told.startswith("onnx verdict: 1.11e+07" if where == "below" else " onnx")
    assert not any("pt2 verdict:" in line for line in lines)


@pytest.mark.parametrize(
    "document", [b'{\n "a": {\n  "exit_code": 5\n }\n}\n', b'{"a": "\xc3\xa9 \\ud800"}\n', b"{}"]
)
def test_the_exit_code_is_the_first_key_of_any_document(
    document: bytes, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    show_json(document)
    write_json(3)
    found = json.loads(capsysbinary.readouterr().out)
    assert list(found.items()) == [("exit_code", 3), *json.loads(document).items()]


@pytest.mark.parametrize("document", [b'{"b": 1, "exit_code": 0}\n', b"[1, 2]\n"])
def test_a_document_with_an_exit_code_or_that_is_a_list_stays(
    document: bytes, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    show_json(document)
    write_json(3)
    assert capsysbinary.readouterr().out == document


@pytest.mark.parametrize(
    ("done", "elapsed", "now", "left"),
    [
        (0, 30.0, 30.0, None),
        (1, 0.1, 0.1, None),
        (1, 30.0, 30.0, 90.0),
        (1, 30.0, 50.0, 70.0),
        (3, 30.0, 99.0, 0.0),
        (4, 30.0, 30.0, 0.0),
    ],
)
def test_the_time_left_is_estimated_from_the_pace_so_far(
    done: int, elapsed: float, now: float, left: float | None
) -> None:
    assert estimate_left(Advanced(step="a", done=done, total=4), elapsed, now) == left
