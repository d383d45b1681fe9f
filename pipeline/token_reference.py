"""Eager's side of the judge over tokens: its sequences, and its logits on every way of a loop."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoints.eager_model import Eager
from ..checkpoints.token_text import read_token_rows
from ..core.contract import Array
from ..core.domain import Domain
from ..core.errors import CheckpointError, ErrorCode, UsageError
from ..core.generation import DecoderLoop, TokenPlan, WayKind
from ..validators.token_loop import (
    LoopRunner,
    LoopSizes,
    TokenRows,
    choose_largest,
    make_sampler,
)
from ..validators.token_metrics import score_tokens
from .order import Judging
from .run_progress import Progress

if TYPE_CHECKING:
    from .eager_reference import EagerReference

STEP = "token reference"
_LENGTH = 128  # tokens of a sequence at most
_MOST_TOKENS, _LEAST_TOKENS, _MOST_SAMPLED = 4096, 256, 1024  # of text; sampling takes longer
_WORK = 1e11  # multiplications of eager on the text: some seconds on a CPU
_LOGITS = 1 << 26  # elements that are held in memory: 256 MB
_ROWS = 3  # padded rows
_STEPS, _FEW_STEPS, _LARGE = 32, 8, 5e8  # generated tokens, and fewer for this many parameters
_SAME = 1e-6  # nats: far above roundoff of float32, far below another mask
_ROUNDOFF = 2.0**-20  # of the largest logit, where eager's own error is not known
_NO_DECODER = "the model has no token ids and logits in a loop that modelc knows"


@dataclass(frozen=True, kw_only=True)
class TokenCase:
    """Rows of tokens, and eager's logits for them in one pass, [rows, tokens, ids]."""

    rows: TokenRows
    logits: Array

    def take(self, rows: slice = slice(None), tokens: slice = slice(None)) -> TokenCase:
        """Return some rows, or some tokens of each."""
        return TokenCase(rows=self.rows.take(rows, tokens), logits=self.logits[rows, tokens])

    def repeat(self, count: int) -> TokenCase:
        """Return the first row so many times."""
        import numpy as np

        rows = TokenRows(
            ids=np.repeat(self.rows.ids[:1], count, axis=0),
            mask=np.repeat(self.rows.mask[:1], count, axis=0),
        )
        return TokenCase(rows=rows, logits=np.repeat(self.logits[:1], count, axis=0))


@dataclass(frozen=True, kw_only=True)
class TokenReference:
    """Eager's logits for an artifact of one domain, computed once.

    `text` holds batches of sequences, `cases` the rows of ways that need others, `prompt` is the
    length of the generated rows' prompt, `cut` how many tokens the reused cache has. With `alone`,
    eager gives the same logits for a padded row as for that row alone.
    """

    plan: TokenPlan
    runner: LoopRunner
    sizes: LoopSizes
    text: tuple[TokenCase, ...]
    cases: dict[WayKind, TokenCase]
    prompt: int
    cut: int
    alone: bool
    model: Eager

    noises: dict[bool, float] = field(default_factory=dict)

    def noise(self, *, exact: bool) -> float:
        """Return the largest error of eager's logits: from float64 if `exact`, or in two parts."""
        if exact not in self.noises:
            case = self.cases.get(WayKind.PADDED, self.text[0])
            shown = case.rows.mask.astype(bool)
            other = self._run_exact(case) if exact else None
            if other is None and self.cases:
                parts = (self.prompt, case.rows.length - self.prompt)
                other = self.runner.walk(case.rows, parts, _do_nothing).logits
            error = 0.0 if other is None else float(abs(case.logits - other)[shown].max())
            self.noises[exact] = max(error, _ROUNDOFF * float(abs(case.logits[shown]).max()))
        return self.noises[exact]

    def _run_exact(self, case: TokenCase) -> Array | None:
        cache = self.runner.empty_cache(len(case.rows.ids))
        exact = self.model.run_exact(self.runner.feed_of(case.rows, 0, cache))
        return None if exact is None else exact[self.runner.loop.logits]


def _do_nothing() -> None:
    """Report no progress."""


def find_token_loop(eager: EagerReference) -> tuple[DecoderLoop, LoopSizes] | None:
    """Return the loop of a decoder, and the sizes of its domain; None if the model has none."""
    signature = eager.signature
    loop = DecoderLoop.find((spec.name for spec in signature.inputs), signature.outputs)
    sizes = None if loop is None else LoopSizes.find(loop, signature)
    return None if loop is None or sizes is None else (loop, sizes)


def plan_tokens(eager: EagerReference, judging: Judging, progress: Progress) -> TokenPlan | None:
    """Return the token sequences to judge on: of the user's text, or sampled from eager.

    None if the model has no loop, or eager rejects a feed of it, which is then known to
    `find_token_reference`.

    Raises:
        UsageError: the text is not valid, or options about tokens have no effect.
    """
    found = find_token_loop(eager)
    if found is None:
        _check_no_effect(judging, progress)
        return None
    loop, sizes = found
    runner = _make_runner(eager, loop)
    length = max(min(_LENGTH, sizes.tokens[1]), sizes.tokens[0])
    most = _largest_id(eager, runner)
    tokens = _count_tokens(eager, most + 1)
    if judging.text is not None:
        place = Path(eager.checkpoint.path)
        rows = read_token_rows(judging.text, place, most)
        cut = _cut_rows(rows, length, max(tokens // length, 1))
        digest = hashlib.sha256(judging.text.read_bytes()).hexdigest()
        return TokenPlan(source=str(judging.text), digest=digest, sequences=cut)
    count = max(min(tokens, _MOST_SAMPLED) // length, 2)
    if not eager.model.has_module:
        count = min(count, sizes.rows[1])
    try:
        with progress.step("sample tokens from eager", log="eager", attempt=True) as clock:
            sampled = _sample_rows(runner, (count, length, most), judging.seed or 0, sizes)
            clock.detail = f"{count} x {length}"
    except CheckpointError as error:
        eager.token_references[_domain_key(eager)] = error.message
        return None
    return TokenPlan(sequences=tuple(" ".join(map(str, row)) for row in sampled.ids.tolist()))


def _check_no_effect(judging: Judging, progress: Progress) -> None:
    given = {
        "text": judging.text, "max-kl": judging.max_kl,
        "max-ppl-increase": judging.max_ppl_increase,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None and name in judging.shared:
            progress.note(f"{name} has no effect: {_NO_DECODER}")
        elif value is not None:
            raise UsageError(
                f"--{name} has no effect: {_NO_DECODER}",
                hint="leave it out",
                option=name,
                code=ErrorCode.NO_EFFECT,
            )


def _make_runner(eager: EagerReference, loop: DecoderLoop) -> LoopRunner:
    inputs = {spec.name: spec for spec in eager.signature.inputs}
    constant = {name: eager.example[name] for name in loop.constant}
    return LoopRunner(run=eager.model.run, loop=loop, inputs=inputs, constant=constant)


def _largest_id(eager: EagerReference, runner: LoopRunner) -> int:
    """Return the largest token id that is an input within the domain and has a logit."""
    logits = eager.references[0].outputs[runner.loop.logits]
    values = runner.inputs[runner.loop.ids].values
    most = int(logits.shape[-1]) - 1
    return most if values is None else min(most, int(values.high))


def _count_tokens(eager: EagerReference, ids: int) -> int:
    """Return the number of tokens of text that take seconds, by the numbers of weights and ids."""
    fit = int(_WORK / (2 * max(_count_weights(eager), 1)))
    return min(max(min(fit, _MOST_TOKENS), _LEAST_TOKENS), _LOGITS // ids)


def _count_weights(eager: EagerReference) -> int:
    return sum(array.size for array in eager.model.weights().values())


def _cut_rows(rows: Sequence[Sequence[int]], length: int, count: int) -> tuple[str, ...]:
    """Cut rows into sequences of one length, from the start on: the longest that the rows have."""
    length = min(length, max(map(len, rows)))
    parts = (
        row[start : start + length]
        for row in rows
        for start in range(0, len(row) - length + 1, length)
    )
    return tuple(" ".join(map(str, part)) for part in islice(parts, count))


def _sample_rows(
    runner: LoopRunner, form: tuple[int, int, int], seed: int, sizes: LoopSizes
) -> TokenRows:
    """Sample rows at temperature 1, after a first token drawn at random."""
    import numpy as np

    count, length, most = form
    first = np.random.default_rng(seed).integers(0, most + 1, (count, 1))
    rows = TokenRows(ids=first, mask=np.ones_like(first))
    steps = sizes.tokens[0] == 1 and (sizes.past or 0) >= length - 1
    if runner.loop.cache and not steps:  # the domain has no steps; eager takes whole rows
        loop = replace(runner.loop, cache=())
        whole = partial(_run_from_start, runner)
        runner = replace(runner, loop=loop, run=whole)
    return runner.generate(rows, length - 1, make_sampler(seed, most), _do_nothing)


def _run_from_start(runner: LoopRunner, feed: dict[str, Array]) -> dict[str, Array]:
    """Run tokens of a feed without a cache through a model that takes one."""
    return runner.run({**feed, **runner.empty_cache(len(feed[runner.loop.ids]))})


def _domain_key(eager: EagerReference) -> str:
    return Domain(inputs=eager.signature.inputs).as_input()


def find_token_reference(
    eager: EagerReference, judging: Judging, progress: Progress
) -> TokenReference | str | None:
    """Return eager's side for an artifact of this domain, or why eager has none; None without loop.

    Raises:
        UsageError: as `plan_tokens`.
    """
    found = find_token_loop(eager)
    if found is None:
        return None
    key, known = _domain_key(eager), eager.token_references
    plan = None if key in known else eager.feeds.tokens or plan_tokens(eager, judging, progress)
    if plan is not None:
        try:
            with progress.step(STEP, log="eager", attempt=True) as clock:
                known[key] = _make_reference(eager, plan, *found)
                clock.detail = f"{sum(map(len, plan.rows))} tokens"
        except CheckpointError as error:
            known[key] = error.message
    return known[key]


def _make_reference(
    eager: EagerReference, plan: TokenPlan, loop: DecoderLoop, sizes: LoopSizes
) -> TokenReference:
    runner = _make_runner(eager, loop)
    rows = [row[: sizes.tokens[1]] for row in plan.rows]
    refer = partial(_refer, runner, sizes, whole=eager.model.has_module)
    most = max(min(sizes.rows[1], len(rows)), sizes.rows[0])
    batches = [rows[start : start + most] for start in range(0, len(rows), most)]
    batches = [one for one in batches if len(one) >= sizes.rows[0]] or [rows[:1] * sizes.rows[0]]
    cases, prompt, cut = {}, 0, 0
    if loop.cache and sizes.past and sizes.tokens[0] == 1:
        prompt = max(min(len(rows[0]) // 2, sizes.past), 1)
        cut = min(max(len(rows[0]) // 2, 1), sizes.past)
        steps = _STEPS if _count_weights(eager) < _LARGE else _FEW_STEPS
        cases = {
            kind: refer(one)
            for kind, one in (
                (WayKind.PADDED, _generate(runner, rows, (prompt, steps), sizes)),
                (WayKind.REUSED, _repeat(_join_halves(rows, cut), sizes)),
                (WayKind.LONGEST, _repeat(_longest_row(rows, sizes), sizes)),
            )
        }
    alone = (
        bool(cases)
        and sizes.rows[0] == 1
        and _ignores_padding(runner, sizes, cases[WayKind.PADDED])
    )
    return TokenReference(
        alone=alone, plan=plan, runner=runner, sizes=sizes, prompt=prompt, cut=cut, cases=cases,
        model=eager.model, text=tuple(refer(TokenRows.of(one)) for one in batches),
    )  # fmt: skip


def _refer(runner: LoopRunner, sizes: LoopSizes, rows: TokenRows, *, whole: bool) -> TokenCase:
    """Return eager's logits: of a module in one pass, of any length; else in the largest parts."""
    parts = (rows.length,) if whole else sizes.parts(rows.length)
    return TokenCase(rows=rows, logits=runner.walk(rows, parts, _do_nothing).logits)


def _ignores_padding(runner: LoopRunner, sizes: LoopSizes, padded: TokenCase) -> bool:
    """Whether eager gives padded rows the logits that it gives each row alone."""
    rows = padded.rows
    scores = score_tokens(padded.logits, runner.run_alone(rows, sizes, _do_nothing))
    return float(scores.kl[rows.mask.astype(bool)].mean()) <= _SAME


def _repeat(row: list[int], sizes: LoopSizes) -> TokenRows:
    """Return the row as often as the smallest batch has rows."""
    return TokenRows.of([row] * sizes.rows[0])


def _generate(
    runner: LoopRunner, rows: list[list[int]], form: tuple[int, int], sizes: LoopSizes
) -> TokenRows:
    """Return prompts of several lengths, padded on the left, continued by eager greedily."""
    prompt, steps = form
    count = max(min(_ROWS, sizes.rows[1]), sizes.rows[0]) if runner.loop.mask else sizes.rows[0]
    lengths = [max(prompt >> index, 1) if runner.loop.mask else prompt for index in range(count)]
    prompts = [rows[index % len(rows)][:length] for index, length in enumerate(lengths)]
    steps = min(steps, (sizes.past or 0) + 1 - prompt)
    return runner.generate(TokenRows.of(prompts), steps, choose_largest, _do_nothing)


def _join_halves(rows: list[list[int]], cut: int) -> list[int]:
    """Return the start of the first sequence with the rest of another."""
    other = rows[1] if len(rows) > 1 else rows[0][::-1]
    return [*rows[0][:cut], *other[cut:]]


def _longest_row(rows: list[list[int]], sizes: LoopSizes) -> list[int]:
    """Return as many tokens as the domain allows, if there are so many."""
    most = min(sizes.longest, _MOST_TOKENS)
    return list(islice((one for row in rows for one in row), most))
