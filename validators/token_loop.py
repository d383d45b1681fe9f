"""Run a decoder's loop: rows of tokens through any runner, in parts, with a cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.contract import Array, Feed, Outputs
from ..core.errors import RunnerError
from ..core.generation import DecoderLoop
from ..core.signature import InputSpec

if TYPE_CHECKING:
    from ..core.dims import Dim
    from ..core.signature import Signature

Cache: TypeAlias = Mapping[str, Array]
Run: TypeAlias = Callable[[Feed], Outputs]


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """Token ids and their mask, [rows, length] each: the mask is 0 where a row is padded."""

    ids: Array
    mask: Array

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> TokenRows:
        """Return rows of any lengths, padded on the left."""
        import numpy as np

        length = max(map(len, rows))
        ids, mask = np.zeros((len(rows), length), np.int64), np.ones((len(rows), length), np.int64)
        for index, row in enumerate(rows):
            start = length - len(row)
            ids[index, start:], mask[index, :start] = row, 0
        return cls(ids=ids, mask=mask)

    @property
    def length(self) -> int:
        """The number of tokens in a row, padding included."""
        return int(self.ids.shape[1])

    def plus(self, tokens: Array) -> TokenRows:
        """Return the rows with further tokens, [rows, n]."""
        import numpy as np

        shown = np.ones_like(tokens, dtype=np.int64)
        return TokenRows(
            ids=np.concatenate([self.ids, tokens], axis=1),
            mask=np.concatenate([self.mask, shown], axis=1),
        )

    def alone(self, row: int) -> TokenRows:
        """Return one row without its padding."""
        start = self.length - int(self.mask[row].sum())
        return self.take(slice(row, row + 1), slice(start, None))

    def take(self, rows: slice = slice(None), tokens: slice = slice(None)) -> TokenRows:
        """Return some rows, or some tokens of each."""
        return TokenRows(ids=self.ids[rows, tokens], mask=self.mask[rows, tokens])


@dataclass(frozen=True, kw_only=True)
class LoopSizes:
    """The sizes that a loop's domain allows: of a batch, of new tokens, and of the past.

    `past` is the most cached tokens; None if the model has no cache.
    """

    rows: tuple[int, int]
    tokens: tuple[int, int]
    past: int | None

    @classmethod
    def find(cls, loop: DecoderLoop, signature: Signature) -> LoopSizes | None:
        """Return the sizes; None if no prompt can start the loop, as its past is never empty."""
        specs = {spec.name: spec for spec in signature.inputs}
        if len(specs[loop.ids].dims) != 2:  # noqa: PLR2004 - batch, tokens
            return None
        batch, tokens = specs[loop.ids].dims
        past = [
            specs[state.past].dims[axis]
            for state in loop.cache
            if (axis := loop.position_axis(specs[state.past], batch.name)) is not None
        ]
        if any(dim.low for dim in past) or (loop.cache and not past and tokens.high == 1):
            return None
        most = min((dim.high for dim in past), default=tokens.high) if loop.cache else None
        return cls(rows=(batch.low, batch.high), tokens=(tokens.low, tokens.high), past=most)

    @property
    def longest(self) -> int:
        """The most tokens of a row: a full past and as many new ones as are allowed."""
        return self.tokens[1] + (self.past or 0)

    def parts(self, length: int) -> tuple[int, ...]:
        """Return the sizes of the largest parts in which so many tokens run.

        The past is full before the last part, where the length allows it.
        """
        most = self.tokens[1]
        found: list[int] = []
        while length > most and sum(found) < (self.past or 0):
            found.append(min(most, length - most, (self.past or 0) - sum(found)))
            length -= found[-1]
        return (*found, min(length, most))


@dataclass(frozen=True, kw_only=True)
class LoopRunner:
    """A decoder's loop over any model that takes and returns named arrays.

    `constant` are the inputs that stay through the loop, one row of each.
    """

    run: Run
    loop: DecoderLoop
    inputs: Mapping[str, InputSpec]
    constant: Feed

    @property
    def _batch(self) -> Dim:
        return self.inputs[self.loop.ids].dims[0]

    def position_axes(self) -> dict[str, int]:
        """Return the axis of positions of each state that has one, by input."""
        found = {
            state.past: self.loop.position_axis(self.inputs[state.past], self._batch.name)
            for state in self.loop.cache
        }
        return {name: axis for name, axis in found.items() if axis is not None}

    def empty_cache(self, rows: int) -> Cache:
        """Return the cache before the first token."""
        import numpy as np

        axes, found = self.position_axes(), {}
        for state in self.loop.cache:
            spec = self.inputs[state.past]
            sizes = {self._batch.name or "": rows}
            shape = [dim.size(sizes) for dim in spec.dims]
            if state.past in axes:
                shape[axes[state.past]] = 0
            found[state.past] = np.zeros(shape, spec.dtype)
        return found

    def cut_cache(self, cache: Cache, tokens: int) -> Cache:
        """Return the cache of the first so many tokens; all states must have positions."""
        import numpy as np

        return {
            name: np.ascontiguousarray(np.take(cache[name], range(tokens), axis=axis))
            for name, axis in self.position_axes().items()
        }

    def feed_of(self, rows: TokenRows, start: int, cache: Cache) -> dict[str, Array]:
        """Return the feed of the tokens from `start` on, after a cache of those before."""
        import numpy as np

        loop, count = self.loop, len(rows.ids)
        found: dict[str, Array] = {loop.ids: rows.ids[:, start:], **cache}
        if loop.mask is not None:
            # A recurrent model has seen the past: its mask is of the new tokens alone.
            new = self.inputs[loop.mask].dims[-1].name == self.inputs[loop.ids].dims[-1].name
            found[loop.mask] = rows.mask[:, start:] if new else rows.mask
        if loop.positions is not None:
            found[loop.positions] = np.maximum(rows.mask.cumsum(1) - 1, 0)[:, start:]
        for name in loop.constant:
            found[name] = np.repeat(self.constant[name][:1], count, axis=0)
        return {
            name: np.ascontiguousarray(array.astype(self.inputs[name].dtype, copy=False))
            for name, array in found.items()
        }

    def advance(self, rows: TokenRows, start: int, cache: Cache) -> tuple[Array, Cache]:
        """Run the tokens from `start` on; return their logits, [rows, tokens, ids], and the cache.

        Raises:
            RunnerError: the runtime rejects the feed, or gives logits of another shape.
        """
        outputs = self.run(self.feed_of(rows, start, cache))
        logits, wanted = outputs[self.loop.logits], rows.ids[:, start:].shape
        if logits.shape[:-1] != wanted:
            raise RunnerError(
                f"its logits have the shape {list(logits.shape)} for {list(wanted)} tokens",
                hint="convert it again",
            )
        return logits, self.loop.next_cache(outputs)

    def walk(self, rows: TokenRows, parts: Sequence[int], tick: Callable[[], object]) -> Walked:
        """Run the rows in parts of these sizes from an empty cache on."""
        import numpy as np

        cache, found, start = self.empty_cache(len(rows.ids)), [], 0
        for size in parts:
            logits, cache = self.advance(rows.take(tokens=slice(start + size)), start, cache)
            found.append(logits)
            start += size
            tick()
        return Walked(logits=np.concatenate(found, axis=1), cache=cache)

    def run_alone(self, rows: TokenRows, sizes: LoopSizes, tick: Callable[[], object]) -> Array:
        """Run each row alone, without padding, in the largest parts; logits of padding are 0."""
        import numpy as np

        found: list[Array] = []
        for index in range(len(rows.ids)):
            row = rows.alone(index)
            logits = self.walk(row, sizes.parts(row.length), tick).logits
            found.append(np.pad(logits[0], ((rows.length - row.length, 0), (0, 0))))
        return np.stack(found)

    def generate(
        self, rows: TokenRows, count: int, choose: Callable[[Array], Array], tick: Callable[[], Any]
    ) -> TokenRows:
        """Continue the rows by `count` tokens, chosen from the logits of the last, [rows, ids].

        Without a cache, each step takes all tokens again.
        """
        start, cache = 0, self.empty_cache(len(rows.ids))
        for _ in range(count):
            logits, grown = self.advance(rows, start, cache)
            if self.loop.cache:
                start, cache = rows.length, grown
            rows = rows.plus(choose(logits[:, -1])[:, None])
            tick()
        return rows


@dataclass(frozen=True, kw_only=True)
class Walked:
    """Logits of all tokens of a walk, [rows, tokens, ids], and the cache after it."""

    logits: Array
    cache: Cache


def choose_largest(logits: Array) -> Array:
    """Return the ids of the largest logits, one for each row."""
    import numpy as np

    found: Array = logits.argmax(-1).astype(np.int64)
    return found


def make_sampler(seed: int, most: int) -> Callable[[Array], Array]:
    """Return a function that draws ids at temperature 1, up to the id `most`."""
    import numpy as np

    random = np.random.default_rng(seed)

    def draw(logits: Array) -> Array:
        kept = logits[:, : most + 1].astype(np.float64)
        shares = np.exp(kept - kept.max(-1, keepdims=True))
        sums = np.cumsum(shares, axis=-1)
        drawn = random.random((len(sums), 1)) * sums[:, -1:]
        found = (sums <= drawn).sum(-1).astype(np.int64)
        least: Array = np.minimum(found, kept.shape[1] - 1)
        return least

    return draw
