"""Judge a runtime for generation: the tokens of its own loop against those of eager's loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from ..converters.registry import target_named
from ..core.contract import Array
from ..core.external_runtime import GeneratingRuntime, TokenGenerator
from ..core.generation import DecoderLoop, find_cached_loop
from ..core.kinds import Precision, ReasonCode
from ..core.records import Artifact
from ..core.signature import Signature
from ..core.verdict import Reason, State, Verdict
from ..reports.text_format import count_text
from ..runtimes.generation_files import longest_text
from ..validators.token_loop import LoopRunner, TokenRows, choose_largest
from ..validators.tolerance import TOLERANCES
from .judge_case import JudgeRequest
from .verdict_rules import unrun_judgment

_TOKENS = 100  # that follow each prompt
_LENGTHS = (1, 8, 64)  # tokens of the prompts, as far as the domain has them
# Two logits this near are a tie, as a share of the largest: another kernel may add in another
# order, and in lower precisions round to another neighbour.
_TIE, _LOW_TIE = 1e-4, 2e-2
_MAX_TIES = 20  # of one prompt, after each of which the runtime is given the text again


@dataclass(frozen=True, kw_only=True)
class DifferingToken:
    """A token of a runtime that is another than the reference's after the same text.

    `place` counts the generated tokens from 0. `margin` is how much lower the reference's logit of
    the runtime's token is than that of its own, as a share of the largest logit.
    """

    place: int
    wanted: int
    given: int
    margin: float


def _generate(runner: LoopRunner, prompt: list[int], count: int) -> tuple[list[int], list[Array]]:
    """Return the next tokens, and the logits that each was chosen by."""
    logits: list[Array] = []

    def choose(last: Array) -> Array:
        logits.append(last[0].copy())
        return choose_largest(last)

    rows = runner.generate(TokenRows.of([prompt]), count, choose, lambda: None)
    return rows.ids[0, len(prompt) :].tolist(), logits


def judge_generated(
    runtime: GeneratingRuntime, artifact: Artifact, request: JudgeRequest
) -> Verdict:
    """Judge an artifact by the tokens that a runtime's own loop generates.

    In FP32 they are those of eager; in lower precisions those of the artifact's own loop here, as
    eager's may differ. A token whose logit is nearly the largest is a tie.

    Raises:
        RunnerError: the runtime cannot open or run the artifact.
    """
    signature = request.eager.signature
    loop = find_cached_loop(signature)
    if loop is None:
        text = "it is no decoder that takes prompts and steps"
        return unrun_judgment(artifact, State.ERROR, text).verdict
    title = f"generate with {artifact.name} in {runtime.name}"
    log = f"{artifact.name}-external"
    with ExitStack() as stack:
        clock = stack.enter_context(request.progress.step(title, log=log, attempt=True))
        run_eager = partial(request.eager.model.run_reference, extreme=False)
        specs = {spec.name: spec for spec in signature.inputs}
        eager = LoopRunner(run=run_eager, loop=loop, inputs=specs, constant={})
        own = eager
        if artifact.precision is not Precision.FP32:
            here = replace(request.candidate, target=target_named(artifact.target))
            run = stack.enter_context(here.open("cpu", signature)).run
            own = replace(eager, run=run)
        texts = [
            _Text.generate(prompt, count, own, eager)
            for prompt, count in _draw_prompts(signature, loop, request.eager.feeds.seed)
        ]
        end = _find_unused(texts)
        generator = stack.enter_context(
            runtime.open_generator(request.candidate.path, artifact, signature, end)
        )
        verdict = _make_verdict(
            artifact, [(text, _compare(text, generator, end)) for text in texts]
        )
        clock.detail, clock.passed = str(verdict.state), verdict.passed
    return verdict.with_seconds(clock.seconds)


@dataclass(frozen=True, kw_only=True)
class _Text:
    """A prompt, the tokens of the reference after it, and the logits that they were chosen by.

    `agreed` is the number of first tokens that are eager's.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: tuple[Array, ...]
    agreed: int

    @classmethod
    def generate(cls, prompt: list[int], count: int, own: LoopRunner, eager: LoopRunner) -> _Text:
        """Generate with the reference, and with eager if that is another."""
        tokens, logits = _generate(own, prompt, count)
        other = tokens if own is eager else _generate(eager, prompt, count)[0]
        agreed = next((i for i, token in enumerate(tokens) if token != other[i]), count)
        return cls(prompt=tuple(prompt), tokens=tuple(tokens), logits=tuple(logits), agreed=agreed)


def _find_unused(texts: Sequence[_Text]) -> int:
    """Return an id that no text has: a runtime may end at it, or hide it."""
    used = {token for text in texts for token in (*text.prompt, *text.tokens)}
    size = len(texts[0].logits[0])
    return next((one for one in range(size) if one not in used), size - 1)


def _draw_prompts(
    signature: Signature, loop: DecoderLoop, seed: int
) -> Iterator[tuple[list[int], int]]:
    """Yield prompts of several lengths, and how many tokens may follow within the domain."""
    import numpy as np

    ids = next(spec for spec in signature.inputs if spec.name == loop.ids)
    random = np.random.default_rng(seed)
    longest, most = longest_text(signature, loop), ids.dims[1].high
    least, highest = (0, 1) if ids.values is None else (ids.values.low, ids.values.high)
    for length in sorted({min(one, most, max(longest - 1, 1)) for one in _LENGTHS}):
        prompt = random.integers(int(least), int(highest) + 1, length).tolist()
        yield prompt, max(min(_TOKENS, longest - length), 1)


def _compare(text: _Text, generator: TokenGenerator, end: int) -> tuple[DifferingToken, ...]:
    """Generate in the runtime; after another token it goes on from the reference's text."""
    import numpy as np

    differing: list[DifferingToken] = []
    start, count = 0, len(text.tokens)
    while start < count and len(differing) <= _MAX_TIES:
        made = generator.generate([*text.prompt, *text.tokens[:start]], count - start)
        made += [end] * (count - start - len(made))
        wanted = text.tokens[start:]
        same = next((i for i, token in enumerate(made) if token != wanted[i]), len(made))
        if same == len(made):
            break
        place, given = start + same, made[same]
        row = text.logits[place].astype(np.float64)
        gap = float(row.max() - row[given]) if 0 <= given < len(row) else np.inf
        share = gap / float(np.abs(row).max(initial=1e-30))
        differing.append(
            DifferingToken(place=place, wanted=wanted[same], given=given, margin=share)
        )
        start = place + 1
    return tuple(differing)


def _make_verdict(
    artifact: Artifact, found: Sequence[tuple[_Text, tuple[DifferingToken, ...]]]
) -> Verdict:
    full = artifact.precision is Precision.FP32
    tie = _TIE if full else _LOW_TIE
    reasons = []
    for text, differing in found:
        wrong = [one for one in differing if not one.margin <= tie]
        if wrong or len(differing) > _MAX_TIES:
            first, count = (wrong or differing)[0], len(text.tokens)
            line = (
                f"token {first.place + 1} of {count} after a prompt of {len(text.prompt)} is "
                f"{first.given}, not {first.wanted}, whose logit is larger by {first.margin:.1%} "
                f"of the largest (a tie: {tie:.2%})"
            )
            reasons.append(Reason(code=ReasonCode.GENERATED_TOKENS, text=line, fault=True))
    ties = 0 if reasons else sum(len(differing) for _, differing in found)
    texts = [text for text, _ in found]
    return Verdict(
        artifact=artifact.name,
        state=State.FAILED if reasons else State.PASSED,
        device="cpu",
        tolerance=TOLERANCES[artifact.precision],
        feeds=tuple(f"prompt of {len(text.prompt)}" for text in texts),
        outputs=(),
        reasons=tuple(reasons),
        notes=() if reasons else tuple(_describe(texts, ties, full=full)),
    )


def _describe(texts: Sequence[_Text], ties: int, *, full: bool) -> Iterator[str]:
    lengths = ", ".join(str(len(text.prompt)) for text in texts)
    whose = "eager's" if full else "those of the artifact's own loop here"
    but = f", but for {count_text(ties, 'tie')}" if ties else ""
    count = sum(len(text.tokens) for text in texts)
    yield f"all {count} tokens after prompts of {lengths} are {whose}{but}"
    if not full:
        shares = ", ".join(f"{text.agreed} of {len(text.tokens)}" for text in texts)
        yield f"tokens before the first that is not eager's: {shares}"
