"""The HTML report: one self-contained page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources

from ..core.external_runtime import ExternalVerdict, facts_of
from ..core.findings import BranchRecord, FeedRecord
from ..core.manifest import Manifest
from . import html_artifacts, html_verdicts
from .html_artifacts import layers_section, outputs_section
from .html_verdicts import pill
from .markup import Child, Markup, card_table, code_tag, details_tag, join, table_tag, tag
from .result_rows import (
    EXAMPLE_FOLDER,
    Outcome,
    ReplayCommand,
    lineage_tree,
    make_rows,
    sqnr_text,
    verdict_outcome,
)
from .summary import PIPELINE_HEAD, pipeline_rows, pipeline_text
from .text_format import count_text, day_text, digest_text

GENERATOR_NAME = "modelc report"
_PageSection = tuple[str, str, Child]  # id, title, content; None: no section


def render_html(manifest: Manifest, commands: Sequence[ReplayCommand] = ()) -> str:
    """Render the manifest as a page that contains its styles, script and charts."""
    rows = make_rows(manifest)
    checkpoint = manifest.checkpoint.title
    subtitle = (
        f"{manifest.checkpoint.factory or manifest.checkpoint.kind} · sha256 "
        f"{digest_text(manifest.checkpoint.digest)} · {day_text(manifest.created)} · "
        f"modelc {manifest.modelc}"
    )
    verdicts: list[_PageSection] = [
        ("summary", "Summary", html_verdicts.summary_section(rows, manifest)),
        ("verdicts", "Verdicts by feed", html_verdicts.matrix_section(rows, manifest)),
        ("reasons", "Reasons", html_verdicts.reasons_section(rows)),
        ("runtimes", "Other runtimes", runtimes_section(manifest)),
        ("pipeline", "Your Python pipeline", pipeline_section(manifest)),
    ]
    sections: list[_PageSection] = [
        *(verdicts if rows else ()),
        ("layers", "Error by layer", layers_section(manifest)),
        ("branches", "Branches", branches_section(manifest)),
        ("warnings", "Capture warnings", warnings_section(manifest)),
        ("outputs", "Output values", outputs_section(manifest)),
        ("accuracy", "Accuracy", html_artifacts.accuracy_section(rows)),
        ("tradeoffs", "INT8 trade-offs", html_artifacts.tradeoffs_section(rows)),
        ("precision", "Precision", html_artifacts.precision_section(rows)),
        ("latency", "Latency", html_artifacts.latency_section(rows)),
        ("calibration", "Calibration", html_artifacts.calibration_section(rows)),
        ("attempts", "Attempts", html_artifacts.attempts_section(rows)),
        ("feeds", "Feeds", feeds_section(manifest)),
        ("metadata", "Metadata", metadata_section(manifest)),
        ("lineage", "Lineage", html_artifacts.lineage_section(lineage_tree(manifest))),
        ("files", "Files", html_artifacts.files_section(rows)),
        ("commands", "Commands", _commands_section(commands)),
        ("environment", "Environment", _environment_section(manifest)),
    ]
    return make_page(
        checkpoint or "checkpoint", subtitle, html_verdicts.verdict_banner(rows, manifest), sections
    )


def make_page(
    title: str,
    subtitle: str,
    banner: Markup,
    sections: Sequence[_PageSection],
    *,
    generator: str = GENERATOR_NAME,
) -> str:
    """Assemble a page with the name of the command that made it, without empty sections."""
    shown = [section for section in sections if section[2]]
    links = [tag("a", name, href=f"#{key}") for key, name, _ in shown]
    parts = [tag("section", tag("h2", name), content, id=key) for key, name, content in shown]
    toggle = tag("button", "Theme", id="theme", type="button", hidden="")
    header = tag(
        "header",
        tag("div", tag("span", "modelc", class_="mark"), toggle, class_="top"),
        tag("h1", title),
        tag("p", subtitle, class_="quiet"),
    )
    skip = tag("a", "Skip to the content", href="#main", class_="skip")
    nav = tag("nav", links, aria_label="Parts of this page")
    main = tag("main", banner, parts, id="main", tabindex=-1)
    body = tag("body", skip, header, nav, main, tag("script", Markup(_read_asset("page.js"))))
    return f"<!doctype html>\n{tag('html', _page_head(title, generator), body, lang='en')}\n"


def _page_head(title: str, generator: str) -> Markup:
    """Return the head; its security policy blocks foreign scripts and all requests."""
    digest = b64encode(sha256(_read_asset("page.js").encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=generator),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · modelc"),
        tag("style", Markup(_read_asset("page.css"))),
    )


@cache
def _read_asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _commands_section(commands: Sequence[ReplayCommand]) -> Markup | None:
    found = [
        tag("div", tag("p", one.purpose), tag("pre", code_tag(one.text), class_="command"))
        for one in commands
    ]
    where = f"{EXAMPLE_FOLDER} stands for the folder that holds manifest.json."
    return join([tag("p", where, class_="quiet"), *found]) if found else None


def _environment_section(manifest: Manifest) -> Markup:
    made_with: dict[str, set[str]] = {}
    for artifact in manifest.artifacts:
        for name, version in artifact.versions.items():
            made_with.setdefault(name, set()).add(version)
    found = {name: {version} for name, version in manifest.environment.items()}
    for name, versions in made_with.items():
        found.setdefault(name, set()).update(versions)
    cells = ((name, ", ".join(sorted(versions))) for name, versions in found.items())
    notes: Iterable[Markup] = (tag("p", note, class_="note") for note in manifest.notes)
    return join([table_tag("Versions", "what", "version", rows=cells), *notes])


def feeds_section(manifest: Manifest) -> Markup:
    """Return the signature and the feeds with their kinds and sizes."""
    plan = manifest.feeds
    inputs = [tag("li", code_tag(str(spec))) for spec in manifest.signature.inputs]
    outputs = [code_tag(name) for name in manifest.signature.outputs]
    drawn = f"{count_text(plan.count, 'feed')} requested, drawn with seed {plan.seed}"
    parts = [
        tag("p", "Inputs"),
        tag("ul", inputs, class_="plain"),
        tag("p", "Outputs ", [join([name, " "]) for name in outputs]),
        tag("p", drawn, f", samples from {plan.samples}" if plan.samples else "", class_="quiet"),
    ]
    if plan.drawn:
        rows = map(_feed_cells, plan.drawn)
        parts.append(table_tag("Feeds", "feed", "kind", "sizes", "note", rows=rows))
    return join(parts)


def metadata_section(manifest: Manifest) -> Markup | None:
    """Return what was declared of the model, with all class names, or None."""
    meta = manifest.meta
    if meta.is_empty:
        return None
    rows = [(key, _break_after_commas(value)) for key, value in meta.rows]
    parts = [table_tag("Metadata", "what", "value", rows=rows)]
    if meta.classes:
        names = [tag("li", name) for name in meta.classes]
        parts.append(details_tag("Class names", tag("ol", names, start="0", class_="names")))
    return join(parts)


def _break_after_commas(text: str) -> Markup:
    """Allow a line break after each comma of text without spaces."""
    return Markup(join([text]).replace(",", f",{tag('wbr')}"))


def _feed_cells(feed: FeedRecord) -> tuple[Child, ...]:
    sizes = ", ".join(f"{name}={size}" for name, size in feed.sizes.items())
    note: Child = "values beyond the declared range" if feed.beyond else ""
    if feed.skipped:
        note = [pill(Outcome.SKIPPED), f" eager rejects it: {feed.skipped}"]
    return code_tag(feed.name), feed.kind, sizes, note


def runtimes_section(manifest: Manifest) -> Markup | None:
    """Return the verdicts on the artifacts as other runtimes ran them, or None."""
    rows = [_runtime_cells(one, manifest) for one in manifest.external]
    head = ("artifact", "runtime", "versions", ">SQNR dB", ">here", "verdict", "note")
    return card_table("Verdicts in other runtimes", *head, rows=rows) if rows else None


def pipeline_section(manifest: Manifest) -> Markup | None:
    """Return how far the model is from the user's Python pipeline, or None."""
    found, rows = manifest.pipeline, pipeline_rows(manifest)
    if found is None:
        return None
    digest = f", sha256 {digest_text(found.sha256)}" if found.sha256 else ""
    where = tag("p", pipeline_text(manifest), digest, class_="quiet")
    return join([where, table_tag("Distance from the pipeline", *PIPELINE_HEAD, rows=rows)])


def _runtime_cells(one: ExternalVerdict, manifest: Manifest) -> tuple[Child, ...]:
    name = one.verdict.artifact
    artifact = next((each for each in manifest.artifacts if each.name == name), None)
    stale = one.is_stale(artifact)
    return (
        name,
        code_tag(one.runtime),
        facts_of(one.versions),
        sqnr_text(one.verdict),
        sqnr_text(manifest.verdict_of(name)),
        pill(Outcome.SKIPPED, "stale") if stale else pill(verdict_outcome(one.verdict)),
        "the artifact changed since" if stale else one.verdict.reason,
    )


def branches_section(manifest: Manifest) -> Markup | None:
    """Return the branches of the user's code with a feed for each outcome, or None."""
    if not manifest.branches:
        return None
    data = [branch for branch in manifest.branches if branch.data]
    covered = sum(1 for branch in data if not branch.gap_text)
    text = f"feeds cover {covered} of {count_text(len(data), 'data-dependent branch', 'es')}"
    ranked = sorted(manifest.branches, key=lambda b: (not b.data, b.accepted, not b.gap_text))
    frozen = {
        branch.place: [a.name for a in manifest.artifacts if branch.place in (a.frozen or ())]
        for branch in ranked
    }
    rows = [(*_branch_cells(branch), ", ".join(frozen[branch.place])) for branch in ranked]
    head = ("source", "condition", "true", "false", "note", "frozen in")
    return join([tag("p", text), table_tag("Branches of the code", *head, rows=rows)])


def _branch_cells(branch: BranchRecord) -> tuple[Child, ...]:
    note: Child = "" if branch.data else "does not depend on tensor data"
    if branch.data and branch.gap_text:
        note = [pill(Outcome.REJECTED, "not covered"), " ", branch.gap_text]
        if branch.accepted:
            note = pill(Outcome.SKIPPED, "accepted by --accept-branch")
    where = [code_tag(branch.place), " ", branch.module]
    kind = "" if branch.kind == "value" else f"{branch.kind} "
    condition = [kind, code_tag(branch.condition)]
    return where, condition, _outcome_cell(branch, "true"), _outcome_cell(branch, "false"), note


def _outcome_cell(branch: BranchRecord, outcome: str) -> Child:
    if branch.kind == "value":
        return ""
    feed = branch.arms.get(outcome)
    return ["✓ ", code_tag(feed)] if feed is not None else "no feed"


def warnings_section(manifest: Manifest) -> Markup | None:
    """Return the warnings of the capture about the user's lines, or None."""
    if not manifest.warned:
        return None
    rows = [(code_tag(f"{one.file}:{one.line}"), one.kind, one.text) for one in manifest.warned]
    return table_tag("Capture warnings", "source", "kind", "warning", rows=rows)
