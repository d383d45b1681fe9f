"""Two runs beside each other: what got worse, what got better, what is new and what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.manifest import Manifest
from .differences import Change, Measure, measures_of
from .rows import REJECTED, Outcome, Row, rows_of
from .words import one_line, short

GONE = "gone"  # what the later run says of an artifact that it has not


@dataclass(frozen=True, kw_only=True)
class Run:
    """Which run one side of the comparison is."""

    name: str
    created: str
    modelc: str
    checkpoint: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All measures of two runs, by artifact; `notes` say what makes them hard to compare."""

    before: Run
    after: Run
    measures: tuple[Measure, ...]
    notes: tuple[str, ...] = ()

    def of(self, change: Change) -> tuple[Measure, ...]:
        """The measures that changed so."""
        return tuple(measure for measure in self.measures if measure.change is change)

    @property
    def gone(self) -> tuple[str, ...]:
        """The artifacts that only the earlier run has."""
        return tuple(one.artifact for one in self.measures if one.after == GONE)

    @property
    def regressed(self) -> bool:
        """Whether anything got worse beyond its margin."""
        return bool(self.of(Change.WORSE))


def compare(
    before: Manifest,
    after: Manifest,
    names: tuple[str, str] = ("A", "B"),
    *,
    latency: bool = False,
) -> Comparison:
    """Two manifests, the older first; `names` are what to call them, `latency` judges timings."""
    then, now = _last(before), _last(after)
    measures: list[Measure] = []
    for name in dict.fromkeys((*then, *now)):
        if name not in now:
            measures.append(_gone(then[name], name))
        elif name not in then:
            measures.append(_new(now[name], name))
        else:
            measures += measures_of(name, then[name], now[name], latency=latency)
    return Comparison(
        before=_run(before, names[0]),
        after=_run(after, names[1]),
        measures=tuple(measures),
        notes=tuple(_notes(before, after)),
    )


def _run(manifest: Manifest, name: str) -> Run:
    return Run(
        name=name,
        created=manifest.created,
        modelc=manifest.modelc,
        checkpoint=manifest.checkpoint.path.replace("\\", "/").rpartition("/")[2],
        digest=manifest.checkpoint.digest,
    )


def _notes(before: Manifest, after: Manifest) -> Iterator[str]:
    """What differs between the runs themselves."""
    pairs = (
        ("checkpoint", short(before.checkpoint.digest), short(after.checkpoint.digest)),
        ("modelc", before.modelc, after.modelc),
        ("inputs", _inputs(before), _inputs(after)),
        ("seed", str(before.feeds.seed), str(after.feeds.seed)),
    )
    for what, then, now in pairs:
        if then != now:
            yield one_line(f"{what}: {then} before, {now} now")
    for name in dict.fromkeys((*before.environment, *after.environment)):
        then, now = before.environment.get(name, "none"), after.environment.get(name, "none")
        if then != now:
            yield one_line(f"{name}: {then} before, {now} now")


def _inputs(manifest: Manifest) -> str:
    return "  ".join(map(str, manifest.signature.inputs))


def _last(manifest: Manifest) -> dict[str, Row]:
    """Each artifact's last state by its own name: a failed step or a refusal is its latest."""
    found: dict[str, Row] = {}
    for row in rows_of(manifest):
        name = row.name.removeprefix(REJECTED)
        known = found.get(name)
        if known is None or row.failure is not None or row.name.startswith(REJECTED):
            found[name] = row
    return found


def _gone(row: Row, name: str) -> Measure:
    """An artifact that is no longer made is a loss, unless it was known to be bad."""
    lost = row.outcome in (Outcome.PASSED, Outcome.PENDING)
    return Measure(artifact=name, measure="verdict", change=Change.WORSE if lost else Change.TOLD,
                   before=str(row.outcome), after=GONE)  # fmt: skip


def _new(row: Row, name: str) -> Measure:
    """Proven or not, it is neither better nor worse than what there was: there was nothing."""
    return Measure(artifact=name, measure="verdict", change=Change.NEW, before="none",
                   after=str(row.outcome), why=row.reason)  # fmt: skip
