"""The user's own samples, from a file or from a loader of theirs, and the feeds they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.call import Kind, Parameter
from ..core.contract import Array, Feed
from ..core.digest import sha256_of
from ..core.errors import UsageError
from ..core.grammar import parse_input
from ..core.loading import is_loader
from ..core.signature import Signature
from ..sources.loaded_module import LoadedModule
from ..sources.sample_inputs import read_loader, read_samples
from ..validators.feed_values import check_samples
from ..validators.feeds import LEAST_FEEDS, SAMPLE, NamedFeed
from .order import Judging, Source


@dataclass(frozen=True, kw_only=True)
class UserSamples:
    """The first sample, which says the form of the inputs, and those that are only judged on."""

    origin: str
    digest: str
    first: Feed
    more: tuple[Feed, ...] = ()
    notes: tuple[str, ...] = ()


def load_user_samples(
    source: Source, loaded: LoadedModule, judging: Judging, signature: Signature | None
) -> UserSamples | None:
    """What `--samples` gives; None where it was not given. A loader gives `--feeds` samples.

    Raises:
        UsageError: they cannot be read, or lack an input.
    """
    if source.samples is None:
        return None
    origin = str(source.samples)
    if not is_loader(origin):
        first = read_samples(source.samples, loaded.parameters)
        return UserSamples(origin=origin, digest=sha256_of(source.samples), first=first)
    if signature is None:
        names = [parse_input(text).name for text in source.inputs]
    else:
        names = [spec.name for spec in signature.inputs]
    found = read_loader(
        origin,
        loaded.takes,
        inputs=names,
        settled=signature is not None,
        most=LEAST_FEEDS if judging.feeds is None else judging.feeds,
    )
    first, *more = found.items
    return UserSamples(
        origin=origin, digest=found.digest, first=first, more=tuple(more), notes=found.notes
    )


def sample_without_model(samples: Path, names: Sequence[str]) -> dict[str, Array]:
    """The sample where no model says its parameters: by the names in `--input`.

    Raises:
        UsageError: it cannot be read, or a loader's has no names and none are given.
    """
    if not is_loader(str(samples)):
        return read_samples(samples, names)
    takes = () if names else (Parameter(name="kwargs", kind=Kind.REST_BY_NAME, required=False),)
    found = read_loader(str(samples), takes, inputs=names, settled=bool(names))
    return found.items[0]


def further_feeds(
    samples: UserSamples | None, signature: Signature
) -> tuple[tuple[NamedFeed, ...], tuple[str, ...]]:
    """The samples after the first as feeds, and notes on those that do not fit the signature."""
    feeds: list[NamedFeed] = []
    misfits: list[str] = []
    for number, arrays in enumerate(() if samples is None else samples.more, start=2):
        name = f"{SAMPLE}-{number}"
        try:
            fitted, sizes = check_samples(signature, arrays)
        except UsageError as error:
            misfits.append(f"{name}: {error.message}")
            continue
        feeds.append(NamedFeed(name=name, arrays=fitted, sizes=sizes, kind="sample"))
    return tuple(feeds), _describe_misfits(misfits)


def _describe_misfits(misfits: Sequence[str]) -> tuple[str, ...]:
    if not misfits:
        return ()
    more = f"; and {len(misfits) - 1} more" if len(misfits) > 1 else ""
    do, be = ("samples do", "are") if len(misfits) > 1 else ("sample does", "is")
    return (f"{len(misfits)} {do} not fit the inputs and {be} not fed: {misfits[0]}{more}",)
