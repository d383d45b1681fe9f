"""The page's part on inputs: which feeds there were, which branches of the model they took."""

from __future__ import annotations

from ..core.findings import BranchRecord, FeedRecord
from ..core.manifest import Manifest
from .html_verdicts import pill
from .markup import Child, Markup, code_tag, join, table_tag, tag
from .rows import Outcome
from .words import count_text


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
    covered = sum(1 for branch in data if not branch.describe_untested)
    told = (
        f"{covered} of {count_text(len(data), 'place')} on tensor data seen to go more than one way"
    )
    ranked = sorted(
        manifest.branches, key=lambda b: (not b.data, b.accepted, not b.describe_untested)
    )
    frozen = {
        branch.place: [a.name for a in manifest.artifacts if branch.place in (a.frozen or ())]
        for branch in ranked
    }
    rows = [(*_branch_cells(branch), ", ".join(frozen[branch.place])) for branch in ranked]
    head = ("source", "condition", "true", "false", "note", "frozen in")
    return join([tag("p", told), table_tag("Branches of the code", *head, rows=rows)])


def _branch_cells(branch: BranchRecord) -> tuple[Child, ...]:
    said: Child = "" if branch.data else "does not depend on tensor data"
    if branch.data and branch.describe_untested:
        said = [pill(Outcome.FAILED, "not covered"), " ", branch.describe_untested]
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
