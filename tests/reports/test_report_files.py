"""Documents in a folder: all of them, whole, and never over a file of somebody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import pytest

from modelc.core.errors import UsageError
from modelc.core.manifest import Manifest
from modelc.pipeline.manifest_file import json_schema, read_manifest, write_manifest
from modelc.pipeline.report_files import (
    compare_runs,
    load_run,
    remove_stale_reports,
    render_report,
    write_reports,
)
from modelc.reports.report_formats import REPORT_FORMATS, find_format, parse_formats


def test_every_document_can_be_written_and_written_again(
    any_manifest: Manifest, tmp_path: Path
) -> None:
    first = write_reports(any_manifest, tmp_path / "new", REPORT_FORMATS)
    texts = [path.read_bytes() for path in first]
    assert [path.name for path in first] == [one.file for one in REPORT_FORMATS]
    assert write_reports(any_manifest, tmp_path / "new", REPORT_FORMATS) == first
    assert [path.read_bytes() for path in first] == texts, "the same manifest, the same bytes"
    assert len(list((tmp_path / "new").iterdir())) == len(REPORT_FORMATS), "nothing else is left"


@pytest.mark.parametrize("one", REPORT_FORMATS, ids=lambda one: one.name)
def test_a_file_of_somebody_else_is_kept(
    made: Callable[[str], Manifest], tmp_path: Path, one: object
) -> None:
    from modelc.reports.report_formats import ReportFormat

    assert isinstance(one, ReportFormat)
    (tmp_path / one.file).write_text("mine")
    with pytest.raises(UsageError, match="report"):
        write_reports(made("empty"), tmp_path, [one])
    with pytest.raises(UsageError, match="report"):
        remove_stale_reports(tmp_path, [one]).__enter__()
    with remove_stale_reports(tmp_path, []):
        write_manifest(made("full"), tmp_path)
    assert (tmp_path / one.file).read_text() == "mine"


def test_an_earlier_report_is_gone_while_the_run_goes_on(full: Manifest, tmp_path: Path) -> None:
    write_reports(full, tmp_path, REPORT_FORMATS)
    with remove_stale_reports(tmp_path, REPORT_FORMATS[:2]):
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            one.file for one in REPORT_FORMATS[2:]
        )
    with remove_stale_reports(tmp_path / "never made", REPORT_FORMATS):
        pass


def test_a_report_of_an_earlier_run_goes_where_the_record_changes(
    made: Callable[[str], Manifest], full: Manifest, tmp_path: Path
) -> None:
    write_manifest(full, tmp_path)
    write_reports(full, tmp_path, REPORT_FORMATS)

    def interrupted() -> None:
        with remove_stale_reports(tmp_path, []):
            write_manifest(made("refused"), tmp_path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_report_stays_where_a_run_changed_nothing(full: Manifest, tmp_path: Path) -> None:
    write_manifest(full, tmp_path)
    write_reports(full, tmp_path, REPORT_FORMATS)
    with remove_stale_reports(tmp_path, []):
        pass
    assert len(list(tmp_path.iterdir())) == 1 + len(REPORT_FORMATS)


def test_a_report_that_cannot_be_written_is_a_usage_error(
    made: Callable[[str], Manifest], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="report"):
        write_reports(made("empty"), tmp_path / "file" / "below", REPORT_FORMATS[:1])


def test_the_json_document_is_the_manifest(any_manifest: Manifest) -> None:
    text = render_report(any_manifest, find_format("json"))
    assert msgspec.json.decode(text, type=Manifest) == any_manifest


@pytest.mark.parametrize("kind", ["empty", "full", "hostile"])
def test_the_json_document_is_valid_by_its_schema(
    made: Callable[[str], Manifest], kind: str
) -> None:
    jsonschema.validate(json.loads(render_report(made(kind), find_format("json"))), json_schema())


def test_a_manifest_read_again_gives_the_same_documents(full: Manifest, tmp_path: Path) -> None:
    write_manifest(full, tmp_path)
    again = read_manifest(tmp_path)
    assert again is not None
    unsealed = tuple(replace(artifact, seal="") for artifact in again.artifacts)
    again = replace(again, seal="", artifacts=unsealed)  # which are of the file
    assert [render_report(again, one) for one in REPORT_FORMATS] == [
        render_report(full, one) for one in REPORT_FORMATS
    ]


def test_names_may_be_given_with_commas_and_twice() -> None:
    assert [one.name for one in parse_formats(["html, md", "sarif,html"])] == [
        "html",
        "md",
        "sarif",
    ]


@pytest.mark.parametrize("text", ["htm", "", "html,", "HTML"])
def test_an_unknown_name_is_told_with_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_formats([text])
    assert "html" in told.value.hint


def test_a_run_is_its_folder_or_its_manifest(full: Manifest, tmp_path: Path) -> None:
    path = write_manifest(full, tmp_path)
    assert load_run(path) == load_run(tmp_path) == (full, tmp_path)
    assert not compare_runs(path, tmp_path).has_regressions
    (tmp_path / "model.onnx").write_text("")
    with pytest.raises(UsageError, match="manifest"):
        load_run(tmp_path / "model.onnx")


def test_the_json_document_is_a_run_as_well(full: Manifest, tmp_path: Path) -> None:
    (path,) = write_reports(full, tmp_path / "kept", [find_format("json")])
    kept = path.rename(tmp_path / "before.json")
    write_manifest(full, tmp_path)
    assert load_run(kept) == (full, tmp_path)
    assert not compare_runs(kept, tmp_path).has_regressions
