"""The HTML report: one self-contained page, with its sections on inputs and branches."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources

from ..core.findings import BranchRecord, FeedRecord
from ..core.manifest import Manifest
from . import html_artifacts, html_verdicts
from .html_artifacts import layers_section, outputs_section
from .html_verdicts import pill
from .markup import Child, Markup, code_tag, join, table_tag, tag
from .replay_commands import EXAMPLE_FOLDER, list_commands, options_left_out
from .result_rows import Outcome, lineage_tree, make_rows
from .text_format import count_text, day_text, digest_text

GENERATOR_NAME = "modelc report"
_PageSection = tuple[str, str, Child]  # id, title, content; None leaves the section out


def render_html(manifest: Manifest) -> str:
    """The manifest as a page: styles, script and charts are all in it."""
    rows = make_rows(manifest)
    checkpoint = manifest.checkpoint.path.replace("\\", "/").rpartition("/")[2]
    said = (
        f"{manifest.checkpoint.factory or manifest.checkpoint.kind} · sha256 "
        f"{digest_text(manifest.checkpoint.digest)} · {day_text(manifest.created)} · "
        f"modelc {manifest.modelc}"
    )
    sections: list[_PageSection] = [
        ("summary", "Summary", html_verdicts.summary_section(rows, manifest) if rows else None),
        (
            "verdicts",
            "Verdicts by feed",
            html_verdicts.matrix_section(rows, manifest) if rows else None,
        ),
        ("reasons", "Reasons", html_verdicts.reasons_section(rows) if rows else None),
        ("layers", "Error by layer", layers_section(manifest)),
        ("branches", "Branches", branches_section(manifest)),
        ("warnings", "Warnings while captured", warnings_section(manifest)),
        ("outputs", "Output values", outputs_section(manifest)),
        ("accuracy", "Accuracy", html_artifacts.accuracy_section(rows)),
        ("tradeoffs", "INT8 trade-offs", html_artifacts.tradeoffs_section(rows)),
        ("precision", "Precision", html_artifacts.precision_section(rows)),
        ("latency", "Latency", html_artifacts.latency_section(rows)),
        ("calibration", "Calibration", html_artifacts.calibration_section(rows)),
        ("attempts", "What was tried", html_artifacts.attempts_section(rows)),
        ("feeds", "Feeds", feeds_section(manifest)),
        ("lineage", "Lineage", html_artifacts.lineage_section(lineage_tree(manifest))),
        ("files", "Files", html_artifacts.files_section(rows)),
        ("commands", "Commands", _commands_section(manifest)),
        ("environment", "Environment", _environment_section(manifest)),
    ]
    return make_page(
        checkpoint or "checkpoint", said, html_verdicts.verdict_banner(rows, manifest), sections
    )


def make_page(title: str, said: str, banner: Markup, sections: Sequence[_PageSection]) -> str:
    """A whole page of these sections; those without content are left out."""
    shown = [section for section in sections if section[2]]
    links = [tag("a", name, href=f"#{key}") for key, name, _ in shown]
    parts = [tag("section", tag("h2", name), content, id=key) for key, name, content in shown]
    toggle = tag("button", "Theme", id="theme", type="button", hidden="")
    header = tag(
        "header",
        tag("div", tag("span", "modelc", class_="mark"), toggle, class_="top"),
        tag("h1", title),
        tag("p", said, class_="quiet"),
    )
    skip = tag("a", "Skip to the content", href="#main", class_="skip")
    nav = tag("nav", links, aria_label="Parts of this page")
    main = tag("main", banner, parts, id="main", tabindex=-1)
    body = tag("body", skip, header, nav, main, _script_tag())
    return f"<!doctype html>\n{tag('html', _page_head(title), body, lang='en')}\n"


def _page_head(title: str) -> Markup:
    """Scripts other than the page's own are refused by the page itself, and so is every request."""
    digest = b64encode(sha256(_read_asset("page.js").encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=GENERATOR_NAME),
        _meta_tag("Content-Security-Policy", policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · modelc"),
        tag("style", Markup(_read_asset("page.css"))),
    )


def _meta_tag(name: str, content: str) -> Markup:
    return tag("meta", http_equiv=name, content=content)


def _script_tag() -> Markup:
    return tag("script", Markup(_read_asset("page.js")))


@cache
def _read_asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _commands_section(manifest: Manifest) -> Markup | None:
    found = [
        tag("div", tag("p", one.purpose), tag("pre", code_tag(one.text), class_="command"))
        for one in list_commands(manifest)
    ]
    left = options_left_out(manifest.order)
    if left:
        told = ", ".join(f"{key}={value}" for key, value in left.items())
        found.append(tag("p", f"Ordered as well: {told}", class_="quiet"))
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
    """The signature, then every feed with its kind, sizes and why eager rejected it."""
    plan = manifest.feeds
    inputs = [tag("li", code_tag(str(spec))) for spec in manifest.signature.inputs]
    outputs = [code_tag(name) for name in manifest.signature.outputs]
    drawn = f"{count_text(plan.count, 'feed')} asked for, drawn from seed {plan.seed}"
    parts = [
        tag("p", "Inputs"),
        tag("ul", inputs, class_="plain"),
        tag("p", "Outputs ", [join([name, " "]) for name in outputs]),
        tag("p", drawn, f", samples from {plan.samples}" if plan.samples else "", class_="quiet"),
    ]
    if plan.drawn:
        parts.append(
            table_tag(
                "Feeds",
                "feed",
                "kind",
                "sizes",
                "note",
                rows=[_feed_cells(feed) for feed in plan.drawn],
            )
        )
    return join(parts)


def _feed_cells(feed: FeedRecord) -> tuple[Child, ...]:
    sizes = ", ".join(f"{name}={size}" for name, size in feed.sizes.items())
    said: Child = "values beyond what was declared" if feed.beyond else ""
    if feed.skipped:
        said = [pill(Outcome.SKIPPED), f" eager rejects it: {feed.skipped}"]
    return code_tag(feed.name), feed.kind, sizes, said


def branches_section(manifest: Manifest) -> Markup | None:
    """Branches of the user's code with the feeds that took their arms; None where none are."""
    if not manifest.branches:
        return None
    data = [branch for branch in manifest.branches if branch.data]
    covered = sum(1 for branch in data if not branch.gap_text)
    told = (
        f"{covered} of {count_text(len(data), 'place')} on tensor data seen to go more than one way"
    )
    ranked = sorted(manifest.branches, key=lambda b: (not b.data, b.accepted, not b.gap_text))
    frozen = {
        branch.place: [a.name for a in manifest.artifacts if branch.place in (a.frozen or ())]
        for branch in ranked
    }
    rows = [(*_branch_cells(branch), ", ".join(frozen[branch.place])) for branch in ranked]
    head = ("source", "condition", "true", "false", "note", "frozen in")
    return join([tag("p", told), table_tag("Branches of the code", *head, rows=rows)])


def _branch_cells(branch: BranchRecord) -> tuple[Child, ...]:
    said: Child = "" if branch.data else "does not depend on tensor data"
    if branch.data and branch.gap_text:
        said = [pill(Outcome.FAILED, "not covered"), " ", branch.gap_text]
        if branch.accepted:
            said = pill(Outcome.SKIPPED, "accepted by --accept-branch")
    where = [code_tag(branch.place), " ", branch.module]
    kind = "" if branch.kind == "value" else f"{branch.kind} "
    condition = [kind, code_tag(branch.condition)]
    return where, condition, _arm_cell(branch, "true"), _arm_cell(branch, "false"), said


def _arm_cell(branch: BranchRecord, arm: str) -> Child:
    if branch.kind == "value":
        return ""
    feed = branch.arms.get(arm)
    return ["✓ ", code_tag(feed)] if feed is not None else "no feed took it"


def warnings_section(manifest: Manifest) -> Markup | None:
    """What frameworks said of the user's lines while they captured; None where nothing."""
    if not manifest.warned:
        return None
    rows = [(code_tag(f"{one.file}:{one.line}"), one.kind, one.text) for one in manifest.warned]
    return table_tag("Warnings while captured", "source", "kind", "what was said", rows=rows)
