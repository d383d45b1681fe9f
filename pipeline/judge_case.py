"""What is judged: a model file, the feeds with eager's outputs, and the rest that rules ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoints.module_state import list_embeddings
from ..converters.runner_base import RunnerBase
from ..core.contract import (
    Advance,
    Array,
    Converted,
    Deferred,
    Feed,
    Native,
    Outputs,
    Runner,
    Target,
    TensorInfo,
    no_progress,
)
from ..core.errors import ErrorCode, ModelcError, UsageError
from ..core.findings import Accuracy, ReferenceRuntime, WorstFeed
from ..core.kinds import QUANTIZED, Precision
from ..core.signature import DTYPE_NAMES, DTYPES, Signature
from ..core.target_extensions import Carrying
from ..core.verdict import Tolerance
from ..validators.judge import ArtifactOutputs, ReferenceOutputs, judge
from ..validators.model_identity import find_altered_weights
from .branch_coverage import CaptureEvidence
from .eager_reference import EagerReference
from .float64_reference import add_float64
from .held_out import loose_feeds
from .labelled_accuracy import LabelledFeeds
from .order import Judging
from .reply_evidence import Evidence, beyond_feeds, reply_to
from .rounding_ties import drop_empty_marks, mark_undecided_replies
from .run_progress import Progress

if TYPE_CHECKING:
    from .attempt import Trial
    from .run_context import StepWork


_POSITION = re.compile(r"output(\.\d+)*")  # what modelc calls outputs that have no name


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model file to be judged, under the artifact's name in the verdict.

    `precision` selects the tolerance; `settings` are options of its format. `aside` is a folder for
    its worst feed; None keeps none. `inputs` and `outputs` are eager's names for those of a file
    that has other ones, in its order.
    """

    name: str
    target: Target
    precision: Precision
    path: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    aside: Path | None = None
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    @property
    def log(self) -> str:
        """The name of its log file."""
        return self.name.replace("/", "-")

    def open(self, device: str, signature: Signature) -> Runner:
        """Open it in its format's runtime."""
        target = self.target
        if isinstance(target, Deferred | Native):
            runner = target.open_runner(self.path, device, signature, self.settings)
        else:
            runner = target.open_runner(self.path, device, signature)
        return self.rename(runner, signature)

    def rename(self, runner: Runner, signature: Signature) -> Runner:
        """Return the file's runner under eager's names."""
        if not self.outputs and not self.inputs:
            return runner
        return _RenamingRunner(runner, self, signature.outputs)


class _RenamingRunner(RunnerBase):
    """Runs a file under eager's names, and returns its outputs in eager's order."""

    def __init__(self, runner: Runner, named: Candidate, order: Sequence[str]) -> None:
        self._opened = ExitStack()
        self._runner = self._opened.enter_context(runner)
        self.inputs = named.inputs or runner.inputs
        self._names, self._order = named.outputs, order

    def run(self, feed: Feed) -> Outputs:
        """Run one feed."""
        pairs = _pair_names(self._runner.inputs, self.inputs)
        given = {theirs: feed[ours] for theirs, ours in pairs.items() if ours in feed}
        outputs = self._runner.run(given)
        if not self._names:
            return outputs
        names = _pair_names(tuple(outputs), self._names)
        found = {names[theirs]: array for theirs, array in outputs.items()}
        return {name: found[name] for name in sorted(found, key=self._order.index)}

    def close(self) -> None:
        """Close the file's own runner."""
        self._opened.close()


def _pair_names(theirs: Sequence[str], ours: Sequence[str]) -> dict[str, str]:
    """Pair names: the same with each other, as a runner's order may not be the file's."""
    return dict(zip(theirs, theirs if {*theirs} == {*ours} else ours, strict=True))


def match_outputs(candidate: Candidate, signature: Signature, progress: Progress) -> Candidate:
    """Match the outputs of another tool's file by position, if eager's names are only positions.

    A module that returns a tensor or a tuple names no output: `output.0` is modelc's name, and a
    file that modelc made has it.
    """
    target, ours = candidate.target, signature.outputs
    if not all(map(_POSITION.fullmatch, ours)):
        return candidate
    try:
        if isinstance(target, Carrying) and target.read_metadata(candidate.path):
            return candidate
        found = target.inspect(candidate.path).outputs
    except ModelcError:
        return candidate  # running it reports the error
    theirs = tuple(one.name for one in found)
    if len(theirs) != len(ours) or {*theirs} & {*ours}:
        return candidate
    progress.note(f"outputs are compared in their order: {', '.join(theirs)} as {', '.join(ours)}")
    return replace(candidate, outputs=ours)


def pair_ends(candidate: Candidate, eager: EagerReference) -> tuple[Candidate, tuple[str, ...]]:
    """Pair inputs and outputs with those of a reference that is a converted model too.

    They pair by name, or by position with a note where the files share no name. An input that the
    candidate lacks is left to the judge.

    Returns:
        the candidate with the reference's names, and the notes.

    Raises:
        UsageError: names, dtypes or ranks contradict each other.
    """
    found, one = candidate.target.inspect(candidate.path), eager.references[0]
    inputs = [(spec.name, spec.dtype, len(spec.dims)) for spec in eager.signature.inputs]
    outputs = [(name, array.dtype.name, array.ndim) for name, array in one.outputs.items()]
    files = candidate.name, eager.checkpoint.title
    if files[0] == files[1]:
        files = str(candidate.path), str(eager.checkpoint.path)
    paired = {
        "inputs": _pair_tensors("input", found.inputs, inputs, files),
        "outputs": _pair_tensors("output", found.outputs, outputs, files),
    }
    notes = tuple(
        f"{ends} are compared in their order: {', '.join(one.name for one in infos)} as "
        f"{', '.join(names)}"
        for (ends, names), infos in zip(paired.items(), (found.inputs, found.outputs), strict=True)
        if {*names} - {one.name for one in infos}
    )
    return replace(candidate, inputs=paired["inputs"], outputs=paired["outputs"]), notes


_LIKE_FLOAT = {"float16": "float32", "bfloat16": "float32"}  # runners take and give float32


def _pair_tensors(
    kind: str,
    infos: Sequence[TensorInfo],
    ours: Sequence[tuple[str, str, int]],
    files: tuple[str, str],
) -> tuple[str, ...]:
    """Return the reference's names in the file's order; empty if they are the file's own."""
    theirs, names = [one.name for one in infos], [name for name, _, _ in ours]
    if not theirs:
        return ()  # the format does not name them
    lists = f"{files[0]} has the {kind}s {', '.join(theirs)}, {files[1]} has {', '.join(names)}"
    by_name = {*theirs} <= {*names} if kind == "input" else {*theirs} == {*names}
    if not by_name and (len(theirs) != len(names) or {*theirs} & {*names}):
        raise UsageError(
            lists, hint=f"compare files with the same {kind}s, by name or by number",
            code=ErrorCode.SAMPLE_MISMATCH,
        )  # fmt: skip
    pairs = dict(zip(theirs, theirs if by_name else names, strict=True))
    known = {name: (dtype, rank) for name, dtype, rank in ours}
    for one in infos:
        dtype, rank = known[pairs[one.name]]
        given = DTYPE_NAMES.get(one.dtype, one.dtype)
        given = _LIKE_FLOAT.get(given, given)
        ranked = one.dims and len(one.dims) != rank
        if ranked or (given in DTYPES and given != _LIKE_FLOAT.get(dtype, dtype)):
            form = f"{one.dtype} with {len(one.dims)} dims"
            raise UsageError(
                f"{kind} {one.name} of {files[0]} is {form}, {pairs[one.name]} of {files[1]} is "
                f"{dtype} with {rank}",
                hint="compare files of one model",
                code=ErrorCode.SAMPLE_MISMATCH,
            )
    if by_name:
        return () if theirs == [name for name in names if name in pairs] else tuple(theirs)
    return tuple(names)


@dataclass(frozen=True, kw_only=True)
class JudgeCase:
    """A candidate, the feeds with eager's outputs, and the tolerance.

    `loose` are names of feeds on which only the form of the outputs is judged.
    """

    candidate: Candidate
    eager: EagerReference
    references: tuple[ReferenceOutputs, ...]
    tolerance: Tolerance
    device: str
    loose: frozenset[str]

    def open(self) -> Runner:
        """Open the candidate in its format's runtime."""
        return self.candidate.open(self.device, self.eager.signature)

    def run_feeds(self, advance: Advance = no_progress) -> Evidence:
        """Run the candidate on every feed, the smallest first.

        A runtime may keep what it found at its first run: OpenVINO 2026.4 is wrong at all lengths
        after it ran first with one token, and right after it ran first with a sample.
        """
        replies: dict[int, ArtifactOutputs] = {}
        sizes = [one.feed.elements for one in self.references]
        smallest = sizes.index(min(sizes))
        numbers = range(len(sizes))
        with self.open() as runner:
            inputs = runner.inputs
            for number in (smallest, *(one for one in numbers if one != smallest)):
                replies[number] = reply_to(runner, self.references[number])
                advance(len(replies), len(sizes))
        return self.make_evidence([replies[number] for number in numbers], inputs)

    def make_evidence(self, replies: Sequence[ArtifactOutputs], inputs: Sequence[str]) -> Evidence:
        """Return the evidence of these replies on all feeds; `inputs` are those it takes."""
        precision = self.candidate.precision
        marked = mark_undecided_replies(self.references, replies, precision, self.eager)
        return Evidence(
            references=self.references,
            replies=drop_empty_marks(self.references, marked),
            precision=precision,
            compare=partial(
                judge,
                artifact=self.candidate.name,
                tolerance=self.tolerance,
                device=self.device,
                artifact_inputs=inputs,
                signature=self.eager.signature,
                loose=self.loose,
                by_channel=precision not in QUANTIZED,
            ),
            loose=self.loose,
        )


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """A candidate to judge, and the facts that the rules use.

    Attributes:
        candidate: the file; its worst feed is saved in `candidate.aside`.
        eager: the eager reference.
        judging: tolerances, device, search.
        progress: the progress reporter.
        held_out: samples of a calibration that no quantizer saw. Values are judged on them and on
            the user's own sample; on drawn feeds, which the candidate was not calibrated for, only
            their form is.
        restrict: judge a candidate that is wrong only on wide integers within narrower ranges, if
            modelc chose the ranges.
        capture: how it was captured.
        labelled: labelled data, if accuracy is measured.
        recorded_accuracy: the accuracy and gate on record for an unchanged file.
        recorded_worst: the worst feed on record.
        notes: further notes.
        recorded_host: the driver and library of the verdict on record.
        sensitive: plant faults in copies of an artifact that passed.
        states_accuracy: note the accuracy, as no record will hold it.
        reference: what takes eager's place, if the model itself does not say so.
    """

    candidate: Candidate
    eager: EagerReference
    judging: Judging
    progress: Progress
    held_out: tuple[ReferenceOutputs, ...] = ()
    restrict: bool = False
    capture: CaptureEvidence | None = None
    labelled: LabelledFeeds | None = None
    recorded_accuracy: Accuracy | None = None
    recorded_worst: WorstFeed | None = None
    notes: tuple[str, ...] = ()
    recorded_host: Mapping[str, str] = field(default_factory=dict)
    sensitive: bool = False
    states_accuracy: bool = False
    reference: ReferenceRuntime | None = None

    def find_altered_weights(self, constants: Iterable[Array]) -> tuple[str, ...]:
        """Describe float32 constants of the candidate that are a weight with elements altered."""
        model = self.eager.model
        return find_altered_weights(
            model.weights(),
            constants,
            computed=partial(model.computes, self.eager.references[0].feed.arrays),
            tables=list_embeddings(model.module) if model.has_module else (),
        )

    @cached_property
    def case(self) -> JudgeCase:
        """The candidate with its feeds; eager's outputs in float64 too if the tolerance asks it."""
        candidate = self.candidate
        tolerance = self.judging.tolerance_for(candidate.precision, candidate.target)
        references = (*self.eager.references, *self.held_out)
        if tolerance.floor_factor is not None:
            references = add_float64(references, self.eager, self.progress)
        beyond = beyond_feeds(references, candidate.precision)
        return JudgeCase(
            candidate=candidate,
            eager=self.eager,
            references=references,
            tolerance=tolerance,
            device=self.judging.device_for(candidate.target),
            loose=loose_feeds(self.eager, self.held_out) | beyond,
        )


def step_candidate(
    work: StepWork, converted: Converted, path: Path, *, aside: Path | None = None
) -> Candidate:
    """Return the candidate of a converted file, with the path of its parent for the weights."""
    step, parent = work.step, work.parent.path
    weights = {} if parent is None else {"weights": str(parent)}
    return Candidate(
        name=step.name,
        target=step.target,
        precision=converted.judged_as or step.wanted.precision,
        path=path,
        settings={**work.run.order.settings, **weights},
        aside=aside,
    )


def trial_candidate(work: StepWork, trial: Trial, *, aside: Path | None = None) -> Candidate:
    """Return the candidate of a trial, to open it again."""
    path = trial.workplace / trial.files[0].name
    return step_candidate(work, trial.converted, path, aside=aside)
