"""From checkpoint to artifacts: who was made from whom, as a tree without cycles."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.manifest import Manifest
from .rows import Outcome, Row, rows_of

_DEEPEST = 24  # levels: what lies deeper starts a tree of its own


@dataclass(frozen=True, kw_only=True)
class Node:
    """A checkpoint, artifact or pending step, and what was made from it."""

    name: str
    said: str = ""
    digest: str = ""
    outcome: Outcome | None = None
    children: tuple[Node, ...] = ()


def tree(manifest: Manifest) -> tuple[Node, ...]:
    """The checkpoint with all that descends from it; then what has no known parent.

    A parent is found by digest. Each artifact stands in the tree once, whatever a manifest says.
    """
    rows = [row for row in rows_of(manifest) if row.artifact or row.pending]
    left = dict(enumerate(rows))
    checkpoint = manifest.checkpoint
    root = Node(
        name=checkpoint.path.replace("\\", "/").rpartition("/")[2] or "checkpoint",
        said=f"{checkpoint.kind} {checkpoint.factory or ''}".strip(),
        digest=checkpoint.digest,
        children=_children(checkpoint.digest, left, 1),
    )
    orphans = []
    while left:
        index = next((i for i, row in left.items() if not _known(row, rows)), next(iter(left)))
        row = left.pop(index)
        orphans.append(_node(row, left, 1, origin=_origin(row, rows)))
    return (root, *orphans)


def _children(digest: str, left: dict[int, Row], depth: int) -> tuple[Node, ...]:
    """Takes what was made from `digest` out of `left`, in order, with what descends from it."""
    if depth > _DEEPEST:
        return ()
    mine = [left.pop(index) for index in [i for i, row in left.items() if _parent(row) == digest]]
    return tuple(_node(row, left, depth + 1) for row in mine)


def _node(row: Row, left: dict[int, Row], depth: int, *, origin: str = "") -> Node:
    artifact = row.artifact
    digest = artifact.digest if artifact and artifact.files else ""
    said = f"{artifact.target} {artifact.precision}" if artifact else "not built yet"
    return Node(
        name=row.name,
        said=f"{said}, made from {origin}" if origin else said,
        digest=digest,
        outcome=row.outcome,
        children=_children(digest, left, depth) if digest else (),
    )


def _origin(row: Row, rows: list[Row]) -> str:
    """What a row that hangs under nothing was made from."""
    made_from = row.artifact.made_from if row.artifact else ""
    made_from = row.pending.made_from if row.pending else made_from
    gone = "" if _known(row, rows) else ", which is not here as it was then"
    return f"{made_from or 'nothing on record'}{gone}"


def _parent(row: Row) -> str:
    if row.artifact is not None:
        return row.artifact.parent
    return row.pending.parent if row.pending is not None else ""


def _known(row: Row, rows: list[Row]) -> bool:
    """Whether the row's parent is among the rows."""
    return any(
        one.artifact is not None and one.artifact.files and one.artifact.digest == _parent(row)
        for one in rows
        if one is not row
    )
