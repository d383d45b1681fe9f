"""What is in a store, for people to look at."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import StoreLayout, read_entry_or_none


@dataclass(frozen=True, kw_only=True)
class ListedResult:
    """One result: whose, what, bytes of its files, and when it was used last (since 1970).

    `name` is the digest of its entry: one key has several results where what the model's code
    reads differed.
    """

    model: str
    artifact: str
    size: int
    used: float
    key: str
    name: str


def list_results(layout: StoreLayout) -> tuple[ListedResult, ...]:
    """The results in a store, the last used first; damaged ones are left to `verify`."""
    rows = []
    for path, used in layout.entries():
        entry = read_entry_or_none(path)
        if entry is not None:
            rows.append(
                ListedResult(
                    model=entry.model, artifact=entry.artifact, size=entry.size, used=used,
                    key=entry.key, name=path.stem,
                )
            )  # fmt: skip
    return tuple(rows)
