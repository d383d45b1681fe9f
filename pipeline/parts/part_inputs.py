"""Infer the inputs of each part from the calls that the user's function makes on the eager parts.

A size that is the same in all calls is fixed. Others follow a dim of the whole (`batch`,
`2*batch`, `8*k`), another dim of the part, or are a dim of their own with the range that was seen.
A relation must hold in every call; the feeds move each dim of the whole by itself (`extra_feeds`),
so that two dims do not agree by chance.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...core.contract import Array, Feed, Outputs
from ...core.errors import ErrorCode, UsageError
from ...core.grammar import parse_input
from ...core.signature import FLOATS, InputPattern, Signature, ValueRange
from ...validators.feeds import OPT, SAMPLE, FeedDrawer, NamedFeed
from .eager_parts import EagerParts, run_plain

_FEWEST_SIZES = 3  # distinct sizes that a relation is inferred from
_BEST_EXAMPLES = {OPT: 1, SAMPLE: 2}  # feeds whose first call shows typical values
_MOST_UNIQUE = 4096  # values of an integer array that are compared with those of the whole


def extra_feeds(signature: Signature, seed: int, samples: Feed | None) -> tuple[NamedFeed, ...]:
    """Draw feeds with one dim of the whole at its highest and the others at their lowest."""
    drawer, dims = FeedDrawer.of(signature, seed, samples), signature.free_dims
    if len(dims) < 2:  # noqa: PLR2004 - one dim agrees with no other
        return ()
    low = {name: dim.low for name, dim in dims.items()}
    return tuple(drawer.feed(f"high-{name}", {**low, name: dim.high}) for name, dim in dims.items())


@dataclass(frozen=True, kw_only=True)
class _ArrayFacts:
    """One argument of one call: its form, and what is known of its values.

    `low` and `high` are the ends of its values; `constant` means that they are equal. `source` is
    the input of the whole with the same values; `known` means that all its integers occur in inputs
    of the whole.
    """

    dtype: str
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 0.0
    constant: bool = False
    source: str = ""
    known: bool = False


@dataclass(kw_only=True)
class CallRecorder:
    """Records the calls of the parts while the whole runs on feeds.

    `calls` are by part: the sizes of the whole, and the arguments by name. `examples` are the
    arguments of the first call on the user's sample, or on the feed of typical sizes, with the
    feed's name.
    """

    parts: EagerParts
    signature: Signature
    calls: dict[str, list[tuple[dict[str, int], dict[str, _ArrayFacts]]]] = field(
        default_factory=dict
    )
    examples: dict[str, tuple[str, dict[str, Array]]] = field(default_factory=dict)
    _feed: NamedFeed | None = None

    def begin(self, feed: NamedFeed) -> None:
        """Record the calls that follow as those on this feed."""
        self._feed = feed

    def record_call(self, name: str, feed: Feed) -> Outputs:
        """Run an eager part on the arguments of a call, and record them."""
        outputs = self.parts.run(run_plain, name, feed)
        whole = self._feed
        if whole is None:
            raise RuntimeError("a call is recorded before its feed")
        sizes = self.signature.sizes_by_name(whole.sizes)
        facts = {key: _describe_array(array, whole.arrays) for key, array in feed.items()}
        known = self.examples.get(name, ("", {}))[0]
        if not known or _BEST_EXAMPLES.get(whole.name, 0) > _BEST_EXAMPLES.get(known, 0):
            self.examples[name] = whole.name, {key: array.copy() for key, array in feed.items()}
        self.calls.setdefault(name, []).append((sizes, facts))
        return outputs

    def describe_inputs(self, name: str, stated: Sequence[str]) -> tuple[str, ...]:
        """Return the inputs of a part in the syntax of `--input`.

        What `stated` inputs say precedes what the calls say; `_` keeps that.

        Raises:
            UsageError: a stated input is none of the part's, or has another rank.
        """
        calls = self.calls[name]
        given = {one.name: one for one in map(parse_input, stated)}
        inputs = list(calls[0][1])
        for key in given:
            if key not in inputs:
                raise UsageError(
                    f"--input {name}.{key}: part {name!r} is called with {', '.join(inputs)}",
                    hint=f"name one of them, as {name}.{inputs[0]}",
                    option="input",
                    code=ErrorCode.UNKNOWN_INPUT,
                )
        dims = _DimNames(calls=calls, whole=self.signature).describe_axes()
        theirs = [dim for one in given.values() for dim in one.dims or () if dim is not None]
        ranges = {dim.name: str(dim) for dim in theirs if dim.name and dim.bounded}
        dims = {place: ranges.get(text.partition("=")[0], text) for place, text in dims.items()}
        return tuple(
            self._describe_input(key, dims, [facts[key] for _, facts in calls], given.get(key))
            for key in inputs
        )

    def _describe_input(
        self,
        key: str,
        dims: Mapping[tuple[str, int], str],
        facts: Sequence[_ArrayFacts],
        given: InputPattern | None,
    ) -> str:
        """Return one input.

        Raises:
            UsageError: it was stated with another rank.
        """
        texts = [dims[key, axis] for axis in range(len(facts[0].shape))]
        dtype, values = facts[0].dtype, self._describe_values(facts)
        if given is not None:
            theirs = given.dims or (None,) * len(texts)
            if len(theirs) != len(texts):
                raise UsageError(
                    f"--input {given.text!r} has {len(theirs)} dims, the pipeline's arrays have "
                    f"{len(texts)}",
                    hint=f"write {key}[{','.join(texts)}]",
                    option="input",
                    code=ErrorCode.INVALID_VALUE,
                )
            pairs = zip(theirs, texts, strict=True)
            texts = [text if dim is None else str(dim) for dim, text in pairs]
            dtype = given.dtype or dtype
            values = values if given.values is None else str(given.values)
        return f"{key}:{dtype}[{','.join(texts)}]{values}"

    def _describe_values(self, facts: Sequence[_ArrayFacts]) -> str:
        """Return the range of values as `{0..99}`; empty where values are like the example's."""
        one = facts[0]
        low, high = min(fact.low for fact in facts), max(fact.high for fact in facts)
        if one.dtype in (*FLOATS, "bool"):
            constant = one.dtype != "bool" and all(fact.constant for fact in facts)
            return str(ValueRange(low=low, high=high)) if constant else ""
        sources = {fact.source for fact in facts}
        known = {spec.name: spec.values for spec in self.signature.inputs}
        values = known.get(sources.pop()) if len(sources) == 1 else None
        if values is not None and not values.follows:
            return str(replace(values, chosen=False, usual=None))
        if all(fact.known for fact in facts):
            ends = [one for one in known.values() if one is not None and not one.follows]
            low, high = min([low, *(e.low for e in ends)]), max([high, *(e.high for e in ends)])
        return str(ValueRange(low=low, high=high))

    def list_narrow_ranges(
        self, name: str, inputs: Sequence[str], stated: Sequence[str]
    ) -> Iterator[str]:
        """Yield the integer inputs whose range is only what the calls had: `unet.t{1..999}`."""
        given = {parse_input(text).name for text in stated}
        for spec in map(parse_input, inputs):
            facts = [one[spec.name] for _, one in self.calls[name]]
            whole = spec.dtype not in (*FLOATS, "bool", None) and spec.values is not None
            if whole and spec.name not in given and not any(f.source or f.known for f in facts):
                yield f"{name}.{spec.name}{spec.values}"


def _describe_array(array: Array, whole: Feed) -> _ArrayFacts:
    import numpy as np

    facts = _ArrayFacts(dtype=array.dtype.name, shape=array.shape)
    if not array.size:
        return facts
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    facts = replace(facts, low=low, high=high, constant=low == high)
    if array.dtype.kind not in "iu":
        return facts
    same = (key for key, one in whole.items() if np.array_equal(one, array))
    integers = [one for one in whole.values() if one.dtype.kind in "iu"]
    theirs = np.unique(np.concatenate([np.ravel(one) for one in integers])) if integers else ()
    inside = array.size <= _MOST_UNIQUE and bool(np.isin(array, [*theirs, 0]).all())
    is_mask = low >= 0 and high <= 1  # 0 and 1 occur in many inputs
    known = bool(integers) and inside and not is_mask
    return replace(facts, source=next(same, ""), known=known)


@dataclass(kw_only=True)
class _DimNames:
    """Finds a text for each axis of a part's inputs: a size, a name with its range, a relation."""

    calls: Sequence[tuple[dict[str, int], dict[str, _ArrayFacts]]]
    whole: Signature
    texts: dict[tuple[int, ...], str] = field(default_factory=dict)  # by the sizes in all calls
    bases: dict[str, tuple[int, ...]] = field(default_factory=dict)  # free dims of the part

    def describe_axes(self) -> dict[tuple[str, int], str]:
        """Return the text of each axis, by input and number.

        Raises:
            UsageError: an input has another rank in another call.
        """
        axes: dict[tuple[str, int], tuple[int, ...]] = {}
        for key, first in self.calls[0][1].items():
            shapes = [facts[key].shape for _, facts in self.calls]
            if len({len(shape) for shape in shapes}) > 1:
                raise UsageError(
                    f"input {key!r} of a part has {len(first.shape)} dims in one call, and another "
                    "number in another call",
                    hint="reshape it in the function before the part is called",
                    option="compose",
                    code=ErrorCode.COMPOSE_FAILED,
                )
            for axis, sizes in enumerate(zip(*shapes, strict=True)):
                axes[key, axis] = sizes
        varying = {sizes: place for place, sizes in reversed(axes.items()) if len({*sizes}) > 1}
        for sizes in sorted(varying, key=lambda one: (max(one), sum(one))):
            self.texts[sizes] = self._describe(sizes, *varying[sizes])
        return {
            place: self.texts.get(sizes, str(sizes[0])) for place, sizes in axes.items()
        } | self._mention_once(axes)

    def _mention_once(
        self, axes: Mapping[tuple[str, int], tuple[int, ...]]
    ) -> dict[tuple[str, int], str]:
        """Return the axes where a stated base is mentioned again, without its range."""
        seen: set[tuple[int, ...]] = set()
        again = {}
        for place, sizes in axes.items():
            if sizes in seen and "(" in self.texts.get(sizes, ""):
                again[place] = self.texts[sizes].partition("=")[0]
            seen.add(sizes)
        return again

    def _describe(self, sizes: tuple[int, ...], key: str, axis: int) -> str:
        for base, others in self.bases.items():
            if (found := _find_relation(sizes, others)) is not None:
                return _relation_text(base, *found)
        for one, two in itertools.combinations(self.bases, 2):
            pairs = zip(self.bases[one], self.bases[two], strict=True)
            if sizes == tuple(map(sum, pairs)):
                return f"{one}+{two}"
        own = self._new_name(key, axis)
        text = self._describe_by_whole(sizes, own)
        if text:
            return text
        self.bases[own] = sizes
        return f"{own}={min(sizes)}..{max(sizes)}"

    def _describe_by_whole(self, sizes: tuple[int, ...], own: str) -> str:
        """Return sizes that follow a free dim of the whole, with its range; empty if none do."""
        for name, dim in self.whole.free_dims.items():
            others = tuple(known[name] for known, _ in self.calls)
            found = _find_relation(sizes, others)
            if found is None:
                continue
            times, plus = found
            if times == 1:
                own = own if plus else name
                self.bases[own] = sizes
                return f"{own}={dim.low + plus}..{dim.high + plus}"
            self.bases[name] = others
            return f"{own}={times}*({name}={dim.low}..{dim.high}){f'{plus:+d}' if plus else ''}"
        return ""

    def _new_name(self, key: str, axis: int) -> str:
        """Return a name for the dim of an axis that no other dim has."""
        plain = re.sub(r"\W", "_", f"{key}_{axis}", flags=re.ASCII)
        taken = {*self.bases, *self.whole.free_dims, *self.whole.dynamic_dims}
        taken |= {text.partition("=")[0] for text in self.texts.values()}
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        return next(one for one in itertools.chain([plain], numbered) if one not in taken)


def _find_relation(sizes: Sequence[int], base: Sequence[int]) -> tuple[int, int] | None:
    """Return the whole factor and summand that give `sizes` from `base`; None if none do."""
    if tuple(sizes) == tuple(base):
        return 1, 0
    distinct = sorted({*base})
    pairs = {*zip(base, sizes, strict=True)}
    if len(distinct) < _FEWEST_SIZES or len(pairs) != len(distinct):
        return None
    values = dict(pairs)
    low, high = distinct[0], distinct[-1]
    times, rest = divmod(values[high] - values[low], high - low)
    plus = values[low] - times * low
    if rest or times < 1 or any(values[at] != times * at + plus for at in distinct):
        return None
    return times, plus


def _relation_text(base: str, times: int, plus: int) -> str:
    text = base if times == 1 else f"{times}*{base}"
    return f"{text}{plus:+d}" if plus else text
