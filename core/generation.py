"""The loop of a decoder, found from names, and how far an artifact's tokens are from eager's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from .dims import Dim, Relation
from .signature import RowOrder, ValueRange

if TYPE_CHECKING:
    from .contract import Array
    from .signature import InputSpec, Signature

PAST, PRESENT = "past_key_values", "present"  # prefixes of what a step takes and returns
LOGITS = "logits"
_MOST = 2**31 - 1  # a token id
_CACHE_RANK, _ALONG = 4, 2  # batch, heads, positions, size of a head; the axis of positions
_FREE = Dim(low=1, opt=16, high=64, bounded=False)  # of tokens whose number no file declares
_DECODER = "decoder_"  # prefix of the decoder's own inputs in a graph that has the encoder too
_IDS, _MASK, _POSITIONS = "input_ids", "attention_mask", "position_ids"
_ENCODER = ("encoder_", f"{_DECODER}encoder_")
_ENCODER_PART = "encoder"  # past_key_values.0.encoder.key: keys and values of the encoder's states
# Inputs of the encoder, where the decoder's own have their prefix.
_ENCODER_INPUTS = (_IDS, _MASK, "input_features", "input_values", "pixel_values", "inputs_embeds")


@dataclass(frozen=True, kw_only=True)
class CacheState:
    """A state of the loop: the input `past` takes what the output `present` returned."""

    past: str
    present: str


@dataclass(frozen=True, kw_only=True)
class DecoderLoop:
    """The inputs and outputs of a decoder, by their role in the loop that generates tokens.

    `ids` takes the new tokens, [batch, tokens]. `mask` covers the past and the new tokens, 0 where
    a row is padded; None if there is none. `positions` takes those of the new tokens; None if the
    model counts by itself. `cache` is empty for a model that takes all tokens at each step.
    `constant` inputs stay as they are through the loop, such as the states of an encoder. `logits`
    is the output with a row of scores for each new token.
    """

    ids: str
    mask: str | None
    positions: str | None
    cache: tuple[CacheState, ...]
    constant: tuple[str, ...]
    logits: str = LOGITS

    @classmethod
    def find(cls, inputs: Iterable[str], outputs: Iterable[str]) -> DecoderLoop | None:
        """Return the loop of an artifact with these names; None if it has none.

        It has none without tokens or logits, with a state that it takes and does not return (or
        returns and does not take), and with an input of unknown role, such as `token_type_ids`.
        """
        inputs = tuple(inputs)
        left, made = set(inputs), set(outputs)
        prefix = _DECODER if _DECODER + _IDS in left else ""
        ids, mask, positions = (prefix + name for name in (_IDS, _MASK, _POSITIONS))
        if ids not in left or LOGITS not in made:
            return None
        constant = {name for name in left if _is_constant(name, with_encoder=bool(prefix))}
        states = {name for name in left - constant if name.startswith(f"{PAST}.")}
        cache = tuple(
            CacheState(past=name, present=PRESENT + name.removeprefix(PAST))
            for name in inputs
            if name in states
        )
        taken = {one.present for one in cache}
        returned = {name for name in made if name.startswith(f"{PRESENT}.")}
        own = {name for name in returned if _ENCODER_PART not in name.split(".")}
        unknown = left - constant - states - {ids, mask, positions}
        if unknown or not taken <= returned or not own <= taken:
            return None
        return cls(
            ids=ids,
            mask=mask if mask in left else None,
            positions=positions if positions in left else None,
            cache=cache,
            constant=tuple(name for name in inputs if name in constant),
        )

    def next_cache(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the cache of the next step: what this one returned, by input."""
        return {state.past: outputs[state.present] for state in self.cache}

    def position_axis(self, spec: InputSpec, batch: str | None) -> int | None:
        """Return the axis of a state that grows with each token; None if none does.

        A state without it, such as that of a recurrent layer, cannot be cut back to fewer tokens.

        Args:
            spec: the input of the state.
            batch: the name of the dim of rows, the first of `ids`.
        """
        growing = (axis for axis, dim in enumerate(spec.dims) if dim.dynamic and dim.name != batch)
        return next(growing, None)


def _is_constant(name: str, *, with_encoder: bool) -> bool:
    """Whether an input stays the same through the loop."""
    if name.startswith(f"{PAST}."):
        return _ENCODER_PART in name.split(".")
    return name.startswith(_ENCODER) or (with_encoder and name in _ENCODER_INPUTS)


def find_cached_loop(signature: Signature) -> DecoderLoop | None:
    """Return the loop of a decoder whose one graph takes prompts and steps; None for others.

    Runtimes for generation run these: 1 or more tokens after a past of 0 or more.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    loop = DecoderLoop.find(specs, signature.outputs)
    if loop is None or not loop.cache or loop.constant:
        return None
    tokens, pasts = specs[loop.ids].dims[1], [specs[one.past].dims for one in loop.cache]
    grows = all(len(one) == _CACHE_RANK and one[_ALONG].dynamic for one in pasts)
    starts = all(one[_ALONG].low == 0 for one in pasts) if grows else False
    return loop if starts and tokens.dynamic and tokens.low == 1 else None


def relate_inputs(known: Mapping[str, InputSpec], outputs: Iterable[str]) -> dict[str, InputSpec]:
    """Return the inputs of a model, if it is a decoder with the sizes of its loop.

    New tokens come after a past of 0 or more (1 where a step takes one token alone), and the
    mask covers both. A state without a dynamic axis of positions has none, and no relation.
    """
    found, loop = dict(known), DecoderLoop.find(known, outputs)
    caches = [] if loop is None else [known[one.past] for one in loop.cache]
    grows = [one for one in caches if len(one.dims) == _CACHE_RANK and one.dims[_ALONG].dynamic]
    if loop is None or not grows or len(found[loop.ids].dims) != 2:  # noqa: PLR2004 - batch, tokens
        return found
    batch, tokens = found[loop.ids].dims
    several = tokens.dynamic
    past = replace(_FREE, name=grows[0].dims[_ALONG].name, low=0 if several else 1)
    for spec in grows:
        found[spec.name] = replace(spec, dims=(batch, spec.dims[1], past, spec.dims[3]))
    sums = Relation(base=past.name or "", plus=0 if several else tokens.opt)
    if several:
        tokens = replace(_FREE, name=tokens.name)
        sums = replace(sums, others=((tokens.name or "", 1),))
    found[loop.ids] = replace(found[loop.ids], dims=(batch, tokens))
    total = found[loop.mask].dims[-1] if loop.mask else Dim.of_size(1)
    if loop.mask and total.dynamic and total.name not in (tokens.name, past.name):
        total = Dim.follow(total.name or "", sums, *((past, tokens) if several else (past,)))
        shown = ValueRange(low=0, high=1, order=RowOrder.ASCENDING)
        found[loop.mask] = replace(found[loop.mask], dims=(batch, total), values=shown)
        last = Relation(base=total.name or "", plus=-1)
        below = ValueRange(low=0, high=last.size(total.high), high_dim=last)
        for spec in [found[loop.positions]] if loop.positions else []:
            found[spec.name] = replace(spec, dims=(batch, tokens), values=below)
    return found


@dataclass(frozen=True, kw_only=True)
class TokenPlan:
    """The token sequences that artifacts are judged on, to judge them on the same ones again.

    `source` is the file name of the user's text, `digest` its SHA-256; both are empty for sequences
    that eager sampled. `sequences` are ids with spaces between them.

    Raises:
        ValueError: there is no sequence, or one is not of ids.
    """

    source: str = ""
    digest: str = ""
    sequences: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.sequences or not all(
            row and 0 <= min(row) <= max(row) <= _MOST for row in self.rows
        ):
            raise ValueError(f"token sequences must be of ids, 0 to {_MOST}")

    @property
    def rows(self) -> list[list[int]]:
        """The ids of each sequence."""
        return [[int(one) for one in text.split()] for text in self.sequences]


class WayKind(StrEnum):
    """A way through the loop, on which an artifact's logits are compared with eager's."""

    TEXT = "text in one pass"
    STEPS = "prompt, then steps"
    PARTS = "prompt in two parts"
    PADDED = "rows padded on the left"
    REUSED = "one cache continued twice"
    ROLLED_BACK = "cache cut back"
    LONGEST = "longest context"


@dataclass(frozen=True, kw_only=True)
class TokenDifference:
    """The first token that an artifact chooses and eager does not, after the same tokens.

    `token` counts from the first of its row. `margin` is how much lower eager's logit of the
    artifact's choice is than that of its own, `noise` the largest error of eager's own logits. It
    is a `tie` if the margin is within what these errors explain.
    """

    row: int
    token: int
    eager: int
    artifact: int
    margin: float
    noise: float
    tie: bool


@dataclass(frozen=True, kw_only=True)
class TokenWay:
    """How far an artifact's logits are from eager's on one way, over `tokens`.

    `kl` and `kl_max` are the mean and the largest KL divergence of eager to the artifact in nats,
    `agreement` is the share of tokens whose largest logit is eager's, `near` includes those that
    eager finds at least half as likely as its own choice, `differing` counts the others that are no
    ties. `difference` is the first of these, or the first tie. `own_kl` is the
    largest mean KL divergence of a row in the artifact's own largest parts, alone, to this way;
    None if they were not run.
    """

    kind: WayKind
    tokens: int
    kl: float
    kl_max: float
    agreement: float
    near: float
    differing: int = 0
    difference: TokenDifference | None = None
    own_kl: float | None = None


@dataclass(frozen=True, kw_only=True)
class TokenReport:
    """How far an artifact's tokens are from eager's.

    The first of `ways` is the text in one pass. `perplexity` and `eager_perplexity` are of that
    text, whose file's name is `source`; empty if eager sampled it. `longest` is the largest number
    of tokens in a row.
    """

    source: str
    ways: tuple[TokenWay, ...]
    perplexity: float
    eager_perplexity: float
    longest: int

    @property
    def text(self) -> TokenWay:
        """The text in one pass."""
        return self.ways[0]

    @property
    def increase(self) -> float:
        """The increase of perplexity as a share of eager's."""
        return self.perplexity / self.eager_perplexity - 1

    @property
    def difference(self) -> tuple[TokenWay, TokenDifference] | None:
        """The first differing token that is no tie, or else the first tie, with its way."""
        found = [(way, way.difference) for way in self.ways if way.difference is not None]
        return min(found, key=lambda one: one[1].tie, default=None)
