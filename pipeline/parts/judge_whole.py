"""Judge the artifacts of all parts end to end, and find the parts that are wrong.

The user's function runs with the artifacts' runtimes on several feeds, beside eager. The noise
floor is that of the whole: float64 in every part, and redraws with weights and inputs of every part
changed by one rounding where one run is not conclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from ...converters.registry import target_named
from ...core.contract import Array, Outputs
from ...core.errors import ModelcError
from ...core.kinds import Precision, ReasonCode
from ...core.signature import Signature
from ...core.verdict import Reason, State, Tolerance, Verdict
from ...validators.judge import ArtifactOutputs, ReferenceOutputs, judge
from ...validators.ruling import Ruling, decide
from ..float64_reference import FP32_ROUNDING, NOISE_PAIRS, PAIRS, SHARES
from ..order import Judging
from .compose_function import RunPart
from .eager_parts import EagerWhole, NoFloat64Error, perturb_by, run_exact
from .opened_parts import OpenedParts

_ENOUGH = 0.5  # of the feeds must compare an output, and of its integers
Advance = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class WholeReference:
    """Eager's outputs on every feed of the whole, and its noise where that was asked for."""

    whole: EagerWhole
    signature: Signature  # with the outputs
    references: tuple[ReferenceOutputs, ...]
    no_float64: str = ""
    ignored: str = ""  # a part whose outputs the user's function does not use
    redrawn: dict[str, ReferenceOutputs] = field(default_factory=dict)
    moved: dict[tuple[str, Precision], tuple[Outputs, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, whole: EagerWhole, advance: Advance) -> WholeReference:
        """Run the whole on all feeds, in float32 and in float64.

        Raises:
            CheckpointError: the user's function raises, or is not deterministic.
        """
        smallest = min(whole.feeds, key=lambda feed: feed.elements)
        names = whole.check_repeatable(smallest)
        found, reason = [], ""
        for feed in whole.feeds:
            outputs, exact = whole.run(feed), None
            if tuple(outputs) != names:
                raise whole.compose.error(
                    f"returns {', '.join(outputs)} on feed {feed.name}, and {', '.join(names)} on "
                    f"{smallest.name}",
                    "return the same outputs for every input",
                )
            if not reason:
                try:
                    exact = whole.run(feed, run_exact)
                except NoFloat64Error as error:
                    reason = str(error)
                except ModelcError as error:
                    reason = error.message
            found.append(ReferenceOutputs(feed=feed, outputs=outputs, exact=exact))
            advance()
        if reason:
            found = [replace(one, exact=None) for one in found]
        return cls(
            whole=whole,
            signature=whole.signature.with_outputs(names),
            references=tuple(found),
            no_float64=reason,
            ignored=whole.find_ignored_part(),
        )

    def redraw(self, one: ReferenceOutputs) -> ReferenceOutputs:
        """Return the reference with redraws of eager's noise."""
        if one.feed.name not in self.redrawn:
            again = tuple(self._draw(one, FP32_ROUNDING, NOISE_PAIRS))
            self.redrawn[one.feed.name] = replace(one, again=again)
        return self.redrawn[one.feed.name]

    def draw_moved(self, one: ReferenceOutputs, precision: Precision) -> tuple[Outputs, ...]:
        """Return eager's outputs with every part moved by the rounding of a precision."""
        key = one.feed.name, precision
        if key not in self.moved:
            self.moved[key] = tuple(self._draw(one, SHARES[precision], PAIRS, same=False))
        return self.moved[key]

    def _draw(
        self, one: ReferenceOutputs, share: float, pairs: int, *, same: bool = True
    ) -> Iterator[Outputs]:
        """Yield perturbed runs; with `same`, those whose outputs have eager's shapes."""
        forms = {name: array.shape for name, array in one.outputs.items()}
        for seed in range(pairs):
            for sign in (1, -1):
                try:
                    outputs = self.whole.run(one.feed, perturb_by(sign * share, seed))
                except ModelcError:
                    continue  # eager rejects what a perturbed part returned
                if not same or {name: a.shape for name, a in outputs.items()} == forms:
                    yield outputs


@dataclass(frozen=True, kw_only=True)
class WholeCase:
    """The artifacts of one name in all parts, beside eager."""

    name: str
    reference: WholeReference
    opened: OpenedParts
    judging: Judging
    advance: Advance

    @cached_property
    def precision(self) -> Precision:
        """The least exact precision of the parts, by whose limits the whole is judged."""
        found = [one.limit_precision for one in self.opened.artifacts.values()]
        return max(found, key=lambda one: SHARES[one])

    @cached_property
    def tolerance(self) -> Tolerance:
        """The limits of the whole."""
        (first, *_) = self.opened.artifacts.values()
        return self.judging.tolerance_for(self.precision, target_named(first.target))

    @property
    def device(self) -> str:
        """The device that the artifacts run on."""
        (first, *_) = self.opened.artifacts.values()
        return self.judging.device_for(target_named(first.target))

    def judge_parts(self, names: Sequence[str]) -> Verdict:
        """Judge the whole with the artifacts of these parts, and eager in place of the others."""
        others: dict[str, RunPart] = dict.fromkeys(names, self.opened.run)
        references, replies = self.reference.references, []
        self.opened.called.clear()
        for one in references:
            outputs, error = self.reference.whole.try_with(one.feed, others)
            replies.append(ArtifactOutputs(outputs=outputs, error=error))
            self.advance()
        verdict = self._compare(references, replies)
        idle = [name for name in names if name not in self.opened.called]
        if idle and all(
            one.outputs is not None for one in replies
        ):  # eager's outputs stand where the artifact's should
            text = f"--compose did not call {idle[0]} with the artifact: it must keep no results"
            return decide(verdict, [Ruling.fault(ReasonCode.NOT_MEASURED, text)])
        if verdict.passed or verdict.state is State.ERROR:
            return verdict
        failed = {(one.feed, one.output) for one in verdict.outputs if not one.passed}
        feeds = {feed for feed, _ in failed} or {*verdict.feeds}  # of channels alone, all
        if self.tolerance.floor_factor is not None:
            references = tuple(
                self.reference.redraw(one) if one.feed.name in feeds else one for one in references
            )
        references, unstable = self._leave_out_unstable(references, failed)
        replies = [
            self._mark_undecided(one, reply) if one.feed.name in feeds else reply
            for one, reply in zip(references, replies, strict=True)
        ]
        return decide(self._compare(references, replies), [unstable])

    def _compare(
        self, references: Sequence[ReferenceOutputs], replies: Sequence[ArtifactOutputs]
    ) -> Verdict:
        signature = self.reference.signature
        return judge(
            artifact=self.name,
            references=references,
            replies=replies,
            tolerance=self.tolerance,
            device=self.device,
            artifact_inputs=[spec.name for spec in signature.inputs],
            signature=signature,
            by_channel=self.precision in (Precision.FP32, Precision.FP16, Precision.BF16),
        )

    def _leave_out_unstable(
        self, references: Sequence[ReferenceOutputs], failed: Collection[tuple[str, str]]
    ) -> tuple[tuple[ReferenceOutputs, ...], Ruling]:
        """Leave out failed outputs that the rounding of this precision changes in eager too.

        A decision in the user's function (a threshold, a sort, a token) may turn an error of
        roundoff into another size or other values. Such outputs get a note; if fewer than half of
        the feeds were to compare one, nothing is left out, and that is the reason.
        """
        found = []
        for one in references:
            names = {output for feed, output in failed if feed == one.feed.name}
            draws = self.reference.draw_moved(one, self.precision) if names else ()
            unstable = frozenset(
                name for name in one.outputs if self._is_unstable(name, one, draws)
            )
            found.append(replace(one, left_out=unstable & names))
        notes = []
        for name in self.reference.signature.outputs:
            count = sum(name in one.left_out for one in found)
            feeds = f"{count} of {len(found)} feeds"
            text = f"rounding alone changes output {name!r} in eager on {feeds}"
            if count > (1 - _ENOUGH) * len(found):
                text += ": too few would compare it; give --samples whose decisions are clear"
                return tuple(references), Ruling.fault(ReasonCode.NOT_MEASURED, text)
            if count:
                notes.append(f"{text}, where it is not compared")
        return tuple(found), Ruling(notes=tuple(notes))

    def _is_unstable(self, name: str, one: ReferenceOutputs, draws: Sequence[Outputs]) -> bool:
        """Whether draws of eager have another size, floats beyond the limits, or other integers.

        Of integers, most have to be others: those that stay are compared.
        """
        import numpy as np

        eager = one.outputs[name]
        if any(draw[name].shape != eager.shape for draw in draws):
            return True
        if not eager.size:
            return False
        if eager.dtype.kind != "f":
            changed = _mark_changes(eager, [draw[name] for draw in draws])
            return bool(changed.mean() > _ENOUGH)
        limits = self.tolerance.of(name)
        most = limits.atol + limits.rtol * float(np.abs(eager).max())
        return any(bool(np.abs(draw[name] - eager).max() > most) for draw in draws)

    def _mark_undecided(self, one: ReferenceOutputs, reply: ArtifactOutputs) -> ArtifactOutputs:
        """Mark the integers that the rounding of this precision changes in eager too."""
        draws = self.reference.draw_moved(one, self.precision)
        undecided = {
            name: _mark_changes(eager, [draw[name] for draw in draws])
            for name, eager in one.outputs.items()
            if eager.dtype.kind in "iub" and name not in one.left_out
        }
        return replace(reply, undecided=undecided)


def _mark_changes(eager: Array, draws: Sequence[Array]) -> Array:
    """Return where one of the draws differs from eager."""
    import numpy as np

    same = [draw for draw in draws if draw.shape == eager.shape]
    return np.any([draw != eager for draw in same], axis=0) if same else np.zeros(eager.shape, bool)


def judge_whole(case: WholeCase, faults: Sequence[Reason]) -> tuple[Verdict, tuple[str, ...]]:
    """Judge the whole; if it is wrong, return the parts that are, too.

    Args:
        case: the artifacts beside eager.
        faults: what is wrong with their files.
    """
    names = tuple(case.opened.artifacts)
    verdict = case.judge_parts(names)
    wrong: tuple[str, ...] = ()
    reasons = list(faults)
    decided = all(one.code is not ReasonCode.NOT_MEASURED for one in verdict.reasons)
    if decided and case.reference.ignored:
        text = f"--compose does not use what {case.reference.ignored} returns: it was not compared"
        verdict, decided = decide(verdict, [Ruling.fault(ReasonCode.NOT_MEASURED, text)]), False
    if not verdict.passed and decided:
        wrong, text = _find_wrong_parts(case, names)
        reasons.insert(0, Reason(code=ReasonCode.PART_DIFFERS, text=text, fault=True))
    notes: tuple[str, ...] = ()
    if case.reference.no_float64 and case.tolerance.floor_factor is not None:
        notes = (f"no float64 reference: {case.reference.no_float64}; judged by fixed limits",)
    return decide(verdict, [Ruling(first=tuple(reasons), notes=notes)]), wrong


def _find_wrong_parts(case: WholeCase, names: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Replace one part after another by eager; return the wrong ones, and what was found."""
    if len(names) == 1:
        return tuple(names), f"{names[0]} is wrong: it is the only part"
    # Of two parts, each without the other is each alone: a set is run once.
    is_right = cache(lambda chosen: case.judge_parts(chosen).passed)
    cured = [name for name in names if is_right(tuple(one for one in names if one != name))]
    if cured:
        text = f"{' or '.join(cured)} is wrong: with eager in its place, the whole is right"
        return tuple(cured), text
    alone = [name for name in names if not is_right((name,))]
    if alone:
        listed = " and ".join(alone)
        return tuple(alone), (
            f"{listed} are wrong, each by itself"
            if len(alone) > 1
            else f"{listed} is wrong by itself, and not the only part that is"
        )
    return tuple(names), "no part is wrong by itself: the errors of several add up"
