"""Markdown as text: escaping, tables, and fitting blocks under a limit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .words import NO_VALUE, count_text, one_line

MARKDOWN_LIMIT = 60_000  # bytes; GitHub refuses a comment of more than 65536 characters
_RESERVE = 1_000  # for the line that says what was cut
_BLOCK_SHARE = 0.6  # of the limit that one block may take, so that others are left
_SPECIAL_CHARACTERS = re.compile(r"([\\`*_{}\[\]<>|~$])")
_LINK_STARTS = re.compile(r"(@|#(?=\d)|://|www\.)")  # mentions, issue numbers, links
_BACKTICKS = re.compile("`+")


@dataclass(frozen=True)
class MarkdownBlock:
    """A part of the document, cut at its end where it is too long."""

    name: str
    lines: Sequence[str] = field(default_factory=list)


def as_prose(text: str, limit: int = 700) -> str:
    """Foreign text as text: no markup, no mention, no link."""
    escaped = _SPECIAL_CHARACTERS.sub(r"\\\1", one_line(text, limit))
    return _LINK_STARTS.sub(lambda found: f"{found.group()}\u200b", escaped)


def code_span(text: str, limit: int = 160, *, cell: bool = True) -> str:
    """Foreign text as a code span; in a table's cell a bar must be escaped even there."""
    line = one_line(text, limit) or NO_VALUE
    line = line.replace("|", "\\|") if cell else line
    longest = max((len(run) for run in _BACKTICKS.findall(line)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table; titles that start with `>` are of figures."""
    rules = ["---:" if title.startswith(">") else "---" for title in head]
    titles = [title.removeprefix(">") for title in head]
    lines = [f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows)]
    return [*lines, ""]


def fold_lines(title: str, lines: Iterable[str]) -> list[str]:
    """Lines that open at a click; none where there are none."""
    found = list(lines)
    if not found:
        return []
    return [
        f"<details><summary>{title}</summary>",
        "",
        *found,
        *([""] if found[-1] else []),
        "</details>",
        "",
    ]


def fit_blocks(
    first: str,
    blocks: Iterable[MarkdownBlock],
    limit: int = MARKDOWN_LIMIT,
    *,
    see: str = "report.html",
) -> str:
    """The blocks in order, as much as fits in `limit` bytes of UTF-8; what is cut is said.

    `see` is the document that has it.
    """
    parts, cut = [first, ""], []
    left = limit - _RESERVE - len(first)
    for block in blocks:
        lines, dropped = _cut_block(block, min(left, int(limit * _BLOCK_SHARE)))
        parts += lines
        left -= _count_bytes(lines)
        if dropped:
            cut.append(f"{block.name} ({count_text(dropped, 'line')})")
    if cut:
        parts += ["", f"*Cut to stay under {limit // 1000} kB: {', '.join(cut)}; see {see}.*"]
    return "\n".join(parts).rstrip() + "\n"


def _count_bytes(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _cut_block(block: MarkdownBlock, room: int) -> tuple[list[str], int]:
    """As many lines as fit in `room` bytes, and how many did not."""
    lines = list(block.lines)
    if _count_bytes(lines) <= room:
        return lines, 0
    closing = ["", "</details>", ""] if lines[0].startswith("<details>") else [""]
    kept: list[str] = []
    room -= _count_bytes(closing)
    for line in lines:
        size = _count_bytes([line])
        if size > room:
            break
        kept.append(line)
        room -= size
    dropped = sum(1 for line in lines[len(kept) :] if line and line != "</details>")
    return [*kept, *closing] if kept else [], dropped
