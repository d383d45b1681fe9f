"""From checkpoint to artifacts: who was made from whom, as a tree without cycles."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.manifest import Manifest
from .rows import Outcome, ResultRow, make_rows

_MAX_DEPTH = 24  # levels: what lies deeper starts a tree of its own


@dataclass(frozen=True, kw_only=True)
class LineageNode:
    """A checkpoint, artifact or pending step, and what was made from it."""

    name: str
    said: str = ""
    digest: str = ""
    outcome: Outcome | None = None
    children: tuple[LineageNode, ...] = ()


def lineage_tree(manifest: Manifest) -> tuple[LineageNode, ...]:
    """The checkpoint with all that descends from it; then what has no known parent.

    A parent is found by digest. Each artifact stands in the tree once, whatever a manifest says.
    """
    rows = [row for row in make_rows(manifest) if row.artifact or row.pending]
    left = dict(enumerate(rows))
    checkpoint = manifest.checkpoint
    root = LineageNode(
        name=checkpoint.path.replace("\\", "/").rpartition("/")[2] or "checkpoint",
        said=f"{checkpoint.kind} {checkpoint.factory or ''}".strip(),
        digest=checkpoint.digest,
        children=_take_children(checkpoint.digest, left, 1),
    )
    orphans = []
    while left:
        index = next(
            (i for i, row in left.items() if not _has_parent_row(row, rows)), next(iter(left))
        )
        row = left.pop(index)
        orphans.append(_make_node(row, left, 1, origin=_parent_text(row, rows)))
    return (root, *orphans)


def _take_children(digest: str, left: dict[int, ResultRow], depth: int) -> tuple[LineageNode, ...]:
    """Takes what was made from `digest` out of `left`, in order, with what descends from it."""
    if depth > _MAX_DEPTH:
        return ()
    mine = [
        left.pop(index) for index in [i for i, row in left.items() if _parent_digest(row) == digest]
    ]
    return tuple(_make_node(row, left, depth + 1) for row in mine)


def _make_node(
    row: ResultRow, left: dict[int, ResultRow], depth: int, *, origin: str = ""
) -> LineageNode:
    artifact = row.artifact
    digest = artifact.digest if artifact and artifact.files else ""
    said = f"{artifact.target} {artifact.precision}" if artifact else "not built yet"
    return LineageNode(
        name=row.name,
        said=f"{said}, made from {origin}" if origin else said,
        digest=digest,
        outcome=row.outcome,
        children=_take_children(digest, left, depth) if digest else (),
    )


def _parent_text(row: ResultRow, rows: list[ResultRow]) -> str:
    """What a row that hangs under nothing was made from."""
    made_from = row.artifact.made_from if row.artifact else ""
    made_from = row.pending.made_from if row.pending else made_from
    gone = "" if _has_parent_row(row, rows) else ", which is not here as it was then"
    return f"{made_from or 'nothing on record'}{gone}"


def _parent_digest(row: ResultRow) -> str:
    if row.artifact is not None:
        return row.artifact.parent
    return row.pending.parent if row.pending is not None else ""


def _has_parent_row(row: ResultRow, rows: list[ResultRow]) -> bool:
    """Whether the row's parent is among the rows."""
    return any(
        one.artifact is not None
        and one.artifact.files
        and one.artifact.digest == _parent_digest(row)
        for one in rows
        if one is not row
    )
