"""A project run as Markdown: the summary of a CI job and the comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import __version__
from ..core.errors import ModelcError
from ..core.records import size_text
from ..reports.comparison import Change
from ..reports.markdown import (
    OUTCOME_MARKS,
    MarkdownBlock,
    as_prose,
    code_span,
    fit_blocks,
    fold_lines,
    markdown_table,
)
from ..reports.result_rows import Outcome
from ..reports.text_format import count_text, figure_text, seconds_text
from .project_faults import split_faults
from .project_records import Regression
from .run_record import RUN_FILE, ArtifactRun, ModelRun, RunRecord, count_results

SUMMARY_MARK = "<!-- modelc run -->"
_MAX_OPEN = 8  # warnings to show without folding
_CHANGE_TITLES = {
    Change.WORSE: "Worse than the base",
    Change.BETTER: "Better than the base",
    Change.NEW: "Not in the base",
    Change.INFO: "Other changes from the base",
}


def write_summary(record: RunRecord) -> str:
    """Render the run as Markdown of at most 60 kB, with a note on omitted parts at the end."""
    regression = record.regression
    blocks = [
        MarkdownBlock("summary", [run_headline(record), ""]),
        MarkdownBlock("reasons", add_title("Reasons", reason_lines(record))),
        MarkdownBlock(
            "worse", add_title(_CHANGE_TITLES[Change.WORSE], change_table(regression, Change.WORSE))
        ),
        MarkdownBlock("artifacts", artifact_table(record.models)),
        MarkdownBlock("warnings", _fold_warnings(record)),
        *(
            MarkdownBlock(
                change, fold_lines(_CHANGE_TITLES[change], change_table(regression, change))
            )
            for change in (Change.BETTER, Change.NEW, Change.INFO)
        ),
        MarkdownBlock("base", fold_lines("The base", _base_lines(regression))),
    ]
    return fit_blocks(SUMMARY_MARK, [block for block in blocks if block.lines], see=RUN_FILE)


def error_summary(error: ModelcError) -> str:
    """Render a run that did not start as Markdown: each fault with its place and hint."""
    blocks = [
        MarkdownBlock("summary", [error_headline(error), ""]),
        MarkdownBlock("reasons", add_title("Reasons", error_lines(error))),
    ]
    return fit_blocks(SUMMARY_MARK, blocks, see="the log")


def error_headline(error: ModelcError) -> str:
    """Return the headline of a run that did not start, with the number of faults."""
    faults = count_text(len(split_faults(error)), "error")
    return (
        f"### ❌ modelc: the run did not start\n\n{faults} · exit {error.exit_code} · "
        f"modelc {as_prose(__version__)}"
    )


def error_lines(error: ModelcError) -> list[str]:
    """Return a line for each fault, with its hint."""
    return [f"- {as_prose(one.text)} *Hint:* {as_prose(one.hint)}" for one in split_faults(error)]


def run_headline(record: RunRecord) -> str:
    """Return the result of the run and the counts."""
    worse = 0 if record.regression is None else len(record.regression.worse)
    counts = count_results(record) + (f", {worse} worse than the base" if worse else "")
    ended = f"❌ modelc: exit {record.exit_code}" if record.exit_code else "✅ modelc: passed"
    return (
        f"### {ended}\n\n{counts} · "
        f"{count_text(len(record.models), 'model')} · {seconds_text(record.seconds)} · "
        f"modelc {as_prose(record.modelc)}"
    )


def add_title(title: str, lines: Sequence[str]) -> list[str]:
    """Put a bold title above the lines; empty without lines."""
    return [f"**{title}**", "", *lines, ""] if lines else []


def reason_lines(record: RunRecord) -> list[str]:
    """Return a line for each model's error, artifact that did not pass, and broken gate."""
    return [f"- {line}" for model in record.models for line in _model_reasons(model)]


def _model_reasons(model: ModelRun) -> Iterator[str]:
    if model.error:
        yield f"{code_span(model.name)}: {as_prose(model.error)} *Hint:* {as_prose(model.hint)}"
    for one in model.artifacts:
        if one.state is not Outcome.PASSED:
            yield f"{_name(model, one.name)}: {as_prose(one.reason or 'no reason was recorded')}"
    for breach in model.breaches:
        place = f" ({code_span(str(breach.told), cell=False)})" if breach.told else ""
        yield f"{_name(model, breach.artifact)}: {as_prose(breach.message)}{place}"


def _fold_warnings(record: RunRecord) -> list[str]:
    """Return the warnings on artifacts by model, folded if long."""
    lines = [f"- {line}" for model in record.models for line in _model_notes(model)]
    if len(lines) <= _MAX_OPEN:
        return add_title("Warnings", lines)
    return fold_lines(f"Warnings ({len(lines)})", lines)


def _model_notes(model: ModelRun) -> Iterator[str]:
    """Yield each warning once, with all artifacts of the model that it applies to."""
    owners: dict[str, list[str]] = {}
    for one in model.artifacts:
        for note in one.notes:
            owners.setdefault(note, []).append(_name(model, one.name))
    for note, names in owners.items():
        yield f"{', '.join(names)}: {as_prose(note)}"
    for note in model.notes:
        yield f"{code_span(model.name)}: {as_prose(note)}"


def artifact_table(models: Sequence[ModelRun]) -> list[str]:
    """Return a table with a row for each artifact; a model without any has one row."""
    head = ("model", "artifact", "verdict", ">size", ">SQNR dB", "from", ">seconds")
    return markdown_table(head, (row for model in models for row in _model_rows(model)))


def _model_rows(model: ModelRun) -> Iterator[tuple[str, ...]]:
    seconds = "" if model.state is Outcome.SKIPPED else f"{model.seconds:.1f}"
    if not model.artifacts:
        yield (code_span(model.name), "", OUTCOME_MARKS[model.state], "", "", "", seconds)
    for number, one in enumerate(model.artifacts):
        first = number == 0
        yield (code_span(model.name), *_artifact_cells(one, model), seconds if first else "")


def _artifact_cells(one: ArtifactRun, model: ModelRun) -> tuple[str, ...]:
    broken = any(breach.artifact == one.name for breach in model.breaches)
    state = f"{OUTCOME_MARKS[one.state]}{', ❌ **gate broken**' if broken else ''}"
    sqnr = "exact" if one.exact else figure_text(one.sqnr, ".1f")
    known = one.size > 0
    return (
        code_span(one.name),
        state,
        size_text(one.size) if known else "",
        sqnr if known else "",
        one.source,
    )


def change_table(regression: Regression | None, change: Change) -> list[str]:
    """Return a table of the measures that changed in this direction; empty if none did."""
    found = () if regression is None else regression.changed
    rows = (
        (code_span(one.name), *map(as_prose, (one.measure, one.before, one.after, one.why)))
        for one in found
        if one.change is change
    )
    return markdown_table(("what", "measure", ">base", ">now", ""), rows)


def _base_lines(regression: Regression | None) -> list[str]:
    """Name the base run, and what makes the runs hard to compare."""
    if regression is None:
        return []
    text = (
        f"{count_text(regression.compared, 'measure')} compared with {code_span(regression.base)}"
    )
    more = (*regression.notes, *regression.left_out)
    return [text, "", *(f"- {as_prose(line)}" for line in more)]


def _name(model: ModelRun, artifact: str) -> str:
    return code_span(f"{model.name}/{artifact}")


COMMENT_MARK = "<!-- modelc run: comment -->"
_COMMENT_LINES = 20  # per part; the summary has all lines
_COMMENT_LIMIT = 16_000  # bytes


def write_comment(record: RunRecord, *, link: str = "") -> str:
    """Render the comment for reviewers: outcome, reasons, regressions, and a folded table.

    `link` is the URL of the log, if any.
    """
    regression = record.regression
    blocks = [
        MarkdownBlock("summary", [run_headline(record), "", *_link_lines(link)]),
        MarkdownBlock("reasons", add_title("Reasons", _first_lines(reason_lines(record)))),
        MarkdownBlock(
            "worse", add_title("Worse than the base", change_table(regression, Change.WORSE))
        ),
        MarkdownBlock(
            "changes", fold_lines("Other changes from the base", _other_changes(regression))
        ),
        MarkdownBlock("artifacts", fold_lines("All artifacts", artifact_table(record.models))),
    ]
    return fit_blocks(
        COMMENT_MARK, [block for block in blocks if block.lines], _COMMENT_LIMIT, see="summary.md"
    )


def error_comment(error: ModelcError, *, link: str = "") -> str:
    """Render the comment of a run that did not start."""
    blocks = [
        MarkdownBlock("summary", [error_headline(error), "", *_link_lines(link)]),
        MarkdownBlock("reasons", add_title("Reasons", _first_lines(error_lines(error)))),
    ]
    return fit_blocks(
        COMMENT_MARK, [block for block in blocks if block.lines], _COMMENT_LIMIT, see="summary.md"
    )


def _link_lines(link: str) -> list[str]:
    return [f"[Log of the run]({link})", ""] if link else []


def _other_changes(regression: Regression | None) -> list[str]:
    others = (Change.BETTER, Change.NEW, Change.INFO)
    return [line for change in others for line in change_table(regression, change)]


def _first_lines(lines: list[str]) -> list[str]:
    """Return the first lines, and the number of others."""
    rest = len(lines) - _COMMENT_LINES
    return [*lines[:_COMMENT_LINES], *([f"- and {rest} more"] if rest > 0 else [])]
