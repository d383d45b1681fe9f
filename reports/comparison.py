"""Two runs beside each other: what got worse, what got better, what is new and what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.manifest import Manifest
from .differences import Change, Measure, compare_rows
from .rows import REJECTED_PREFIX, Outcome, ResultRow, make_rows
from .words import digest_text, one_line

GONE_TEXT = "gone"  # what the later run says of an artifact that it has not


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """Which run one side of the comparison is."""

    name: str
    created: str
    modelc: str
    checkpoint: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All measures of two runs, by artifact; `notes` say what makes them hard to compare."""

    before: ComparedRun
    after: ComparedRun
    measures: tuple[Measure, ...]
    notes: tuple[str, ...] = ()

    def of(self, change: Change) -> tuple[Measure, ...]:
        """The measures that changed so."""
        return tuple(measure for measure in self.measures if measure.change is change)

    @property
    def artifacts_lost(self) -> tuple[str, ...]:
        """The artifacts that only the earlier run has."""
        return tuple(one.artifact for one in self.measures if one.after == GONE_TEXT)

    @property
    def has_regressions(self) -> bool:
        """Whether anything got worse beyond its margin."""
        return bool(self.of(Change.WORSE))


def compare_manifests(
    before: Manifest,
    after: Manifest,
    names: tuple[str, str] = ("A", "B"),
    *,
    latency: bool = False,
) -> Comparison:
    """Two manifests, the older first; `names` are what to call them, `latency` judges timings."""
    then, now = _latest_rows(before), _latest_rows(after)
    measures: list[Measure] = []
    for name in dict.fromkeys((*then, *now)):
        if name not in now:
            measures.append(_artifact_lost(then[name], name))
        elif name not in then:
            measures.append(_new_artifact(now[name], name))
        else:
            measures += compare_rows(name, then[name], now[name], latency=latency)
    return Comparison(
        before=_describe_run(before, names[0]),
        after=_describe_run(after, names[1]),
        measures=tuple(measures),
        notes=tuple(_run_differences(before, after)),
    )


def _describe_run(manifest: Manifest, name: str) -> ComparedRun:
    return ComparedRun(
        name=name,
        created=manifest.created,
        modelc=manifest.modelc,
        checkpoint=manifest.checkpoint.path.replace("\\", "/").rpartition("/")[2],
        digest=manifest.checkpoint.digest,
    )


def _run_differences(before: Manifest, after: Manifest) -> Iterator[str]:
    """What differs between the runs themselves."""
    pairs = (
        ("checkpoint", digest_text(before.checkpoint.digest), digest_text(after.checkpoint.digest)),
        ("modelc", before.modelc, after.modelc),
        ("inputs", _inputs_text(before), _inputs_text(after)),
        ("seed", str(before.feeds.seed), str(after.feeds.seed)),
    )
    for what, then, now in pairs:
        if then != now:
            yield one_line(f"{what}: {then} before, {now} now")
    for name in dict.fromkeys((*before.environment, *after.environment)):
        then, now = before.environment.get(name, "none"), after.environment.get(name, "none")
        if then != now:
            yield one_line(f"{name}: {then} before, {now} now")


def _inputs_text(manifest: Manifest) -> str:
    return "  ".join(map(str, manifest.signature.inputs))


def _latest_rows(manifest: Manifest) -> dict[str, ResultRow]:
    """Each artifact's last state by its own name: a failed step or a refusal is its latest."""
    found: dict[str, ResultRow] = {}
    for row in make_rows(manifest):
        name = row.name.removeprefix(REJECTED_PREFIX)
        known = found.get(name)
        if known is None or row.failure is not None or row.name.startswith(REJECTED_PREFIX):
            found[name] = row
    return found


def _artifact_lost(row: ResultRow, name: str) -> Measure:
    """An artifact that is no longer made is a loss, unless it was known to be bad."""
    lost = row.outcome in (Outcome.PASSED, Outcome.PENDING)
    return Measure(artifact=name, measure="verdict", change=Change.WORSE if lost else Change.TOLD,
                   before=str(row.outcome), after=GONE_TEXT)  # fmt: skip


def _new_artifact(row: ResultRow, name: str) -> Measure:
    """Proven or not, it is neither better nor worse than what there was: there was nothing."""
    return Measure(artifact=name, measure="verdict", change=Change.NEW, before="none",
                   after=str(row.outcome), why=row.reason)  # fmt: skip
