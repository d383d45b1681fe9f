"""Measure how far an artifact's logits are from eager's, token by token, and apply the limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..core.contract import Array
from ..core.generation import TokenDifference, TokenReport, TokenWay, WayKind
from ..core.kinds import ReasonCode
from ..core.verdict import Reason, Tolerance
from .token_loop import TokenRows

_BLOCK = 1 << 22  # logits at a time: float64 copies of them are in memory
NEAR = math.log(2.0)  # difference of logits: a token is half as likely as another one
_NEVER = 1e3  # nats: of a token that the artifact rules out and eager does not (JSON has no Inf)


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """Measures of each token of some rows, [rows, tokens].

    `kl` is the divergence of eager to the artifact in nats; `eager` and `artifact` are the ids of
    the largest logits; `margin` is how much lower eager's logit of the artifact's choice is.
    """

    kl: Array
    eager: Array
    artifact: Array
    margin: Array


def score_tokens(eager: Array, artifact: Array) -> TokenScores:
    """Compare logits, [rows, tokens, ids] each, in float64."""
    import numpy as np

    shape, ids = eager.shape[:-1], eager.shape[-1]
    left, right = eager.reshape(-1, ids), artifact.reshape(-1, ids)
    size = max(_BLOCK // ids, 1)
    blocks = [
        _score_block(left[start : start + size], right[start : start + size])
        for start in range(0, len(left), size)
    ]
    kl, first, second, margin = (
        np.concatenate(parts).reshape(shape) for parts in zip(*blocks, strict=True)
    )
    return TokenScores(kl=kl, eager=first, artifact=second, margin=margin)


def _score_block(eager: Array, artifact: Array) -> tuple[Array, Array, Array, Array]:
    import numpy as np

    logs, others = _log_softmax(eager), _log_softmax(artifact)
    with np.errstate(invalid="ignore"):
        terms = np.where(logs > -math.inf, np.exp(logs) * (logs - others), 0.0)
    kl = np.nan_to_num(terms.sum(-1), nan=_NEVER, posinf=_NEVER)
    first, second = eager.argmax(-1), np.nan_to_num(artifact, nan=-math.inf).argmax(-1)
    places = np.arange(len(eager))
    margin = eager[places, first].astype(np.float64) - eager[places, second]
    return np.clip(kl, 0.0, _NEVER), first, second, margin


def _log_softmax(logits: Array) -> Array:
    import numpy as np

    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    found: Array = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return found


def sum_log_likelihood(logits: Array, rows: TokenRows) -> float:
    """Return the log-likelihood of rows without padding, of each token but the first of its row."""
    import numpy as np

    total = 0.0
    for row, ids in zip(logits, rows.ids, strict=True):
        logs = _log_softmax(row[:-1])[np.arange(len(ids) - 1), ids[1:]]
        total += float(np.nan_to_num(logs, nan=-_NEVER, neginf=-_NEVER).sum())
    return total


def perplexity_of(log_likelihood: float, tokens: int) -> float:
    """Return the perplexity, at most 1e30."""
    return math.exp(min(-log_likelihood / max(tokens, 1), math.log(1e30)))


def join_scores(parts: Sequence[TokenScores]) -> TokenScores:
    """Join the scores of rows of one length."""
    import numpy as np

    names = ("kl", "eager", "artifact", "margin")
    return TokenScores(
        **{name: np.concatenate([getattr(one, name) for one in parts]) for name in names}
    )


def join_rows(parts: Sequence[TokenRows]) -> TokenRows:
    """Join rows of one length."""
    import numpy as np

    return TokenRows(
        ids=np.concatenate([one.ids for one in parts]),
        mask=np.concatenate([one.mask for one in parts]),
    )


def measure_way(
    kind: WayKind,
    scores: TokenScores,
    rows: TokenRows,
    noise: Callable[[], float],
    *,
    factor: float,
) -> TokenWay:
    """Summarise the scores of the tokens that the mask shows.

    Args:
        kind: the way.
        scores: those of its tokens.
        rows: its tokens, [rows, tokens], with their mask.
        noise: returns the largest error of eager's own logits; called if a token differs.
        factor: the largest margin that is a tie, as a multiple of the noise.
    """
    import numpy as np

    shown = rows.mask.astype(bool)
    other = shown & (scores.eager != scores.artifact)
    error = noise() if other.any() else 0.0
    real = other & (scores.margin > factor * error)
    where = np.argwhere(real if real.any() else other)
    difference = None
    if len(where):
        # the earliest in its row, counted without padding
        before = rows.mask.cumsum(1) - 1
        row, token = min(map(tuple, where), key=lambda at: (before[at], at[0]))
        difference = TokenDifference(
            row=int(row),
            token=int(before[row, token]),
            eager=int(scores.eager[row, token]),
            artifact=int(scores.artifact[row, token]),
            margin=float(min(scores.margin[row, token], _NEVER)),
            noise=error,
            tie=not real.any(),
        )
    kl, count = scores.kl[shown], int(shown.sum())
    return TokenWay(
        kind=kind,
        tokens=count,
        kl=float(kl.mean()),
        kl_max=float(kl.max()),
        agreement=1 - int(other.sum()) / count,
        near=1 - int((other & (scores.margin > NEAR)).sum()) / count,
        differing=int(real.sum()),
        difference=difference,
    )


OWN_KL = 1e-3
"""Nats that a way through an artifact's loop may diverge from the same tokens in its largest parts
(one pass), if `max_kl` is not less. Both compute with the same weights, so only roundoff of
activations remains: 1e-13 was measured with float32, 1e-7 with float16; bfloat16 has 18 dB more, a
factor of 63 in KL."""


def measure_own_kl(own: Array, way: Array, rows: TokenRows) -> float:
    """Return the largest mean KL divergence of a row's logits in one pass to those on a way."""
    scores, shown = score_tokens(own, way), rows.mask.astype(bool)
    return max(
        float(kl[seen].mean()) for kl, seen in zip(scores.kl, shown, strict=True) if seen.any()
    )


def find_token_reasons(report: TokenReport, tolerance: Tolerance) -> tuple[Reason, ...]:
    """Return why an artifact's tokens are rejected; empty if they pass."""
    texts = [(ReasonCode.TOKENS_DIFFER, one) for one in _check_text(report, tolerance)]
    for way in report.ways[1:]:
        texts += [(ReasonCode.LOOP_DIFFERS, one) for one in _check_way(way, tolerance)]
    if tolerance.floor_factor is not None:
        texts += [(ReasonCode.TOKENS_DIFFER, one) for one in _check_choices(report.ways)]
    return tuple(Reason(code=code, text=text, output="logits") for code, text in texts)


def _check_text(report: TokenReport, limits: Tolerance) -> Iterator[str]:
    way, where = report.text, f"on {report.text.tokens:,} tokens of text"
    if limits.max_kl is not None and way.kl > limits.max_kl:
        yield f"KL divergence {way.kl:.2g} > {limits.max_kl:g} {where}"
    if limits.min_agreement is not None and way.near < limits.min_agreement:
        yield (
            "the most likely token is eager's, or at least half as likely in eager, in "
            f"{way.near:.1%} < {limits.min_agreement:.0%} {where}"
        )
    most = limits.max_ppl_increase
    if most is not None and report.increase > most:
        yield (
            f"perplexity {report.perplexity:.4g}, eager's is {report.eager_perplexity:.4g}: "
            f"{report.increase:+.1%} > {most:.1%} {where}"
        )


def _check_way(way: TokenWay, limits: Tolerance) -> Iterator[str]:
    """Yield why a way through the loop is wrong, compared with eager and with its single pass."""
    if limits.max_kl is None:
        return
    if way.kl > limits.max_kl:
        yield f"{way.kind}: KL divergence {way.kl:.2g} > {limits.max_kl:g}"
    elif way.own_kl is not None and way.own_kl > (most := min(limits.max_kl, OWN_KL)):
        yield (
            f"{way.kind}: KL divergence {way.own_kl:.2g} > {most:g} from the same artifact in one "
            "pass"
        )


def _check_choices(ways: Sequence[TokenWay]) -> Iterator[str]:
    """Yield the first choice that roundoff does not explain: with eager's weights there is none."""
    wrong = [(way, way.difference) for way in ways if way.differing and way.difference]
    if not wrong:
        return
    way, first = wrong[0]
    more = sum(one.differing for one, _ in wrong) - 1
    rest = f" (and {more} more)" if more else ""
    yield (
        f"{way.kind}: token {first.token} of row {first.row} is {first.artifact}, eager chooses "
        f"{first.eager} by {first.margin:.2g}, and its roundoff is {first.noise:.2g}{rest}"
    )
