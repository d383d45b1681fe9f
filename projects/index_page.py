"""`index.html`: one page over all models of a project, each row linking to its model's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from ..core.errors import UsageError
from ..core.manifest import Manifest
from ..core.records import Artifact, artifact_names, step_of
from ..pipeline.report_files import check_own, write_document, write_reports
from ..reports.comparison import Change
from ..reports.html_page import make_page
from ..reports.html_verdicts import make_banner, pill
from ..reports.markup import Child, Markup, card_table, join, table_tag, tag
from ..reports.report_formats import ReportFormat, find_format
from ..reports.result_rows import WORST_FIRST, Outcome, make_rows
from ..reports.summary import SUMMARY_HEAD, SummaryLine, summary_lines
from ..reports.text_format import count_text, day_text, seconds_text
from .project_records import NOT_STARTED, Regression
from .project_results import ProjectResults, read_results
from .run_record import ArtifactRun, ModelRun, folder_errors, is_unchanged

INDEX_FILE = "index.html"
_GATE_TEXT = "gate broken"
_NEWER_TEXT = "changed since"
_REPLACED_TEXT = "replaced after the run; modelc run validates it again"


@dataclass(frozen=True, kw_only=True)
class IndexLine:
    """One artifact of a model; `said` replaces the word of the verdict, `reason` explains it."""

    model: str
    line: SummaryLine
    linked: bool
    said: str = ""
    reason: str = ""

    @property
    def link(self) -> str:
        """The link to the model's page, relative to the index; empty without a page."""
        report = find_format("html").file
        return f"{quote(self.model)}/{report}#row-{self.line.place}" if self.linked else ""


def write_project_reports(folder: Path, formats: Sequence[ReportFormat]) -> tuple[Path, ...]:
    """Write the documents of each model beside its manifest, and the index above them.

    Raises:
        UsageError: a record cannot be read, or a document cannot be written.
    """
    results = read_results(folder)
    written: list[Path] = []
    if find_format("html") in formats:
        written.append(write_index(results))
    for name, manifest in results.manifests.items():
        written += write_reports(manifest, folder / name, formats)
    return tuple(written)


def write_index(results: ProjectResults) -> Path:
    """Write the index, which links to the pages of the models.

    Raises:
        UsageError: another program's file has its name, or it cannot be written.
    """
    return write_document(render_index(results), results.folder / INDEX_FILE, find_format("html"))


def clear_index(folder: Path, *, wanted: bool) -> None:
    """Remove the index of an earlier run, so that its success does not outlive a crash.

    Args:
        folder: the folder of all models.
        wanted: whether this run writes an index; if not, another program's page is left alone.

    Raises:
        UsageError: another program's file has that name, or the folder cannot be written.
    """
    with folder_errors(folder):
        try:
            check_own(folder / INDEX_FILE, find_format("html"))
        except UsageError:
            if wanted:
                raise
            return
        (folder / INDEX_FILE).unlink(missing_ok=True)


def render_index(results: ProjectResults) -> str:
    """Render the page: totals, a row per artifact, problems, changes, versions."""
    lines = index_lines(results)
    record = results.record
    dates = [one.created for one in results.manifests.values()]
    parts = [count_text(len(record.models), "model"), *([day_text(max(dates))] if dates else [])]
    parts += [seconds_text(record.seconds)] if record.seconds else []
    said = " · ".join([*parts, f"modelc {record.modelc}"])
    sections: list[tuple[str, str, Child]] = [
        ("summary", "All artifacts", _index_summary(lines) if lines else None),
        ("reasons", "Reasons", _reason_list(lines)),
        ("regression", "Changes from the base", _regression_table(record.regression)),
        ("environment", "Versions", _version_table(list(results.manifests.values()))),
    ]
    return make_page(results.folder.resolve().name, said, _index_banner(lines, results), sections)


def index_lines(results: ProjectResults) -> list[IndexLine]:
    """Return a line for each artifact of the last run, with those that did not pass first."""
    lines = [line for end in results.record.models for line in _model_lines(end, results)]
    return sorted(lines, key=lambda one: WORST_FIRST.index(one.line.outcome))


def _model_lines(end: ModelRun, results: ProjectResults) -> Iterator[IndexLine]:
    """Yield a line per artifact of a model, or a single line if the model stopped."""
    manifest = results.manifests.get(end.name)
    skipped = end.state is Outcome.SKIPPED
    if manifest is None or end.error or skipped:
        reason = NOT_STARTED if skipped else end.error or "its manifest is missing"
        outcome = Outcome.SKIPPED if skipped else Outcome.FAILED
        line = SummaryLine(name="-", place=0, outcome=outcome)
        yield IndexLine(model=end.name, line=line, linked=False, reason=reason)
        return
    yield from _artifact_lines(end, manifest)


def _artifact_lines(end: ModelRun, manifest: Manifest) -> Iterator[IndexLine]:
    """Yield the artifacts of the run's result, as they are in the folder now."""
    ends = {one.name: one for one in end.artifacts}
    mine = artifact_names(ends or manifest.steps)
    gates = {breach.artifact: breach.message for breach in end.breaches}
    rows, shown = make_rows(manifest), set()
    stopped = {row.name for row in rows if row.artifact is None}
    for line in summary_lines(rows):
        row = rows[line.place]
        step = step_of(row.name)
        if row.name not in mine:
            continue  # from another run or export
        shown.add(step)
        broken = gates.get(step, "")
        then = ends.get(step)
        if row.artifact and then and not _is_of_run(row.artifact, then):
            if step in stopped:
                continue  # from an earlier run; the failed step has its own row
            changed = replace(line, outcome=Outcome.FAILED)
            yield IndexLine(
                model=end.name, line=changed, linked=True, said=_NEWER_TEXT, reason=_REPLACED_TEXT
            )
        elif broken and line.outcome is Outcome.PASSED:
            failed = replace(line, outcome=Outcome.REJECTED)
            yield IndexLine(
                model=end.name, line=failed, linked=True, said=_GATE_TEXT, reason=broken
            )
        else:
            yield IndexLine(model=end.name, line=line, linked=True, reason=row.reason)
    yield from (
        _line_without_record(end.name, one) for name, one in ends.items() if name not in shown
    )


def _is_of_run(artifact: Artifact, end: ArtifactRun) -> bool:
    """Whether the recorded artifact is the result of the run; a failed step has none."""
    return end.state in (Outcome.PASSED, Outcome.REJECTED) and is_unchanged(artifact, end)


def _line_without_record(model: str, one: ArtifactRun) -> IndexLine:
    """Make the line of an artifact that the folder no longer records."""
    outcome, said, reason = one.state, "", one.reason
    if outcome is Outcome.PASSED:
        outcome, said, reason = Outcome.FAILED, _NEWER_TEXT, _REPLACED_TEXT
    line = SummaryLine(name=one.name, place=0, outcome=outcome)
    return IndexLine(model=model, line=line, linked=False, said=said, reason=reason)


def _index_banner(lines: Sequence[IndexLine], results: ProjectResults) -> Markup:
    """Render whether the project may be deployed, then the totals."""
    found = Counter(one.line.outcome for one in lines)
    regression = results.record.regression
    worse = 0 if regression is None else len(regression.worse)
    state = next((one for one in WORST_FIRST if found[one]), Outcome.FAILED)
    state = Outcome.REJECTED if worse else state
    numbers = [(str(found[one]), str(one), str(one)) for one in WORST_FIRST if found[one]]
    models, _, noun = count_text(len(results.record.models), "model").partition(" ")
    numbers.append((models, noun, "neutral"))
    word = "worse" if worse and found[Outcome.PASSED] == len(lines) else ""
    return make_banner(state, pill(state, word), _index_answer(found, worse), numbers)


def _index_answer(found: Counter[Outcome], worse: int) -> str:
    """Return whether the project may be deployed; `worse` counts regressions from the base."""
    good, total = found[Outcome.PASSED], found.total()
    if not total:
        answer = "No: the run built no artifact."
    elif good == total:
        what = "the one artifact" if total == 1 else f"all {total} artifacts"
        each = "" if total == 1 else "each "
        answer = f"Yes: {what} may be deployed, {each}within its domain."
    elif good:
        answer = (
            f"In part: {good} of {total} artifacts may be deployed; the others are listed first."
        )
    else:
        answer = f"No: none of {count_text(total, 'artifact')} may be deployed."
    return f"{answer} {count_text(worse, 'measure')} worse than the base." if worse else answer


def _index_summary(lines: Sequence[IndexLine]) -> Markup:
    cells = (
        (_name_cell(one), one.line.name, pill(one.line.outcome, one.said), *one.line.cells)
        for one in lines
    )
    caption = "Every artifact of every model, and whether it may be deployed"
    return card_table(caption, "model", *SUMMARY_HEAD, rows=cells)


def _name_cell(one: IndexLine) -> Child:
    return tag("a", one.model, href=one.link) if one.link else one.model


def _reason_list(lines: Sequence[IndexLine]) -> Markup | None:
    rows = [
        (_name_cell(one), one.line.name, one.reason or "no reason was recorded")
        for one in lines
        if one.line.outcome is not Outcome.PASSED
    ]
    caption = "Why artifacts may not be deployed"
    return table_tag(caption, "model", "artifact", "reason", rows=rows) if rows else None


def _regression_table(regression: Regression | None) -> Markup | None:
    if regression is None:
        return None
    marks = {Change.WORSE: Outcome.REJECTED, Change.BETTER: Outcome.PASSED}
    rows = [
        (
            one.name,
            one.measure,
            one.before,
            one.after,
            pill(marks.get(one.change, Outcome.SKIPPED), str(one.change)),
            one.why,
        )
        for one in regression.changed
    ]
    text = f"{count_text(regression.compared, 'measure')} compared with {regression.base}"
    notes = [tag("p", text, class_="note") for text in (*regression.notes, *regression.left_out)]
    head = ("artifact", "measure", ">base", ">now", "change", "why")
    drawn = table_tag("Changes from the base", *head, rows=rows) if rows else None
    return join([tag("p", text, class_="quiet"), drawn, *notes])


def _version_table(manifests: Sequence[Manifest]) -> Markup | None:
    """Render each package with its versions; several if models were built with several."""
    found: dict[str, dict[str, None]] = {}
    for manifest in manifests:
        for name, version in manifest.environment.items():
            found.setdefault(name, {})[version] = None
    rows = [(name, ", ".join(versions)) for name, versions in found.items()]
    return table_tag("Versions", "what", "version", rows=rows) if rows else None
