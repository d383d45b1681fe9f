"""Store eager's outputs beside a pending step: the other host judges it without the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata

from .. import __version__
from ..checkpoints.data_branches import BranchReport
from ..checkpoints.user_code import shorten_path
from ..core.contract import Outputs
from ..core.domain import Domain
from ..core.errors import CheckpointError
from ..core.kinds import Precision
from ..core.records import FileRecord, record_of, size_text
from ..core.target_extensions import LimitsChosen
from ..validators.judge import ReferenceOutputs
from .attempt import Recipe, extra_sizes
from .branch_coverage import branch_coverage
from .build_step import within_domain
from .eager_reference import EagerReference
from .extra_sizes import add_size_feeds
from .float64_reference import (
    FP32_ROUNDING,
    NOISE_PAIRS,
    PAIRS,
    SHARES,
    find_movement,
    is_tested_for_stability,
    run_float64,
)
from .held_out import select_held_out
from .narrow_domain import domain_inputs
from .output_folder import REFERENCES_FOLDER
from .reference_file import (
    EXACT,
    LARGE_SIZE,
    PLAIN,
    REFERENCES_ROLE,
    RUN,
    SEQUENTIAL,
    ReferenceIndex,
    ReferenceWriter,
    noise_variant,
    tie_variant,
)
from .reply_evidence import beyond_feeds
from .run_context import StepWork

_SIGNS = (1, -1)
_MAX_MOVEMENT = 1e30  # JSON has no infinity
_NAME_DIGITS = 16  # of a file's SHA-256


def store_references(work: StepWork) -> tuple[FileRecord, ...]:
    """Write the references of a step to the folder, with its next commit.

    The first file has the feeds and eager's outputs on them, which all steps in one domain share;
    the second has what this step's precision may ask for besides.
    """
    step, run = work.step, work.run
    work = within_domain(work, domain_inputs(work.parent.domain, run.eager))
    plain = work.run.eager
    eager = add_size_feeds(plain, (), found=extra_sizes(work, Recipe()))
    title, progress = f"store references for {step.name}", run.workspace.progress
    with progress.step(title, log=step.name) as clock:
        writer = _open_writer(work)
        for one in plain.references:
            writer.know_run(one.feed.arrays, one.outputs)
        known = {id(one) for one in plain.references}
        for one in eager.references:
            if id(one) not in known:
                writer.add_feed(one)
        held_out = select_held_out(step, run.samples)
        for one in held_out:
            writer.add_answer(one.feed.arrays, RUN, one.outputs)
        index = _AnswerCollector(work=work, eager=eager, writer=writer).collect(
            (*eager.references, *held_out), _make_index(eager), title
        )
        files = (_write_shared(work), _place_file(work, writer, index))
        size = sum(file.size for file in files)
        clock.detail = size_text(size)
    if size > LARGE_SIZE:
        progress.note(
            f"the references of {step.name} are {size_text(size)}: --no-references omits them, and "
            "the other host then needs the checkpoint and the model's code",
            warning=True,
        )
    return files


def _find_limit_precision(work: StepWork) -> Precision:
    """Return the precision whose limits will apply to the step."""
    target, precision = work.step.target, work.step.wanted.precision
    if isinstance(target, LimitsChosen):
        return target.limit_precision(precision, work.run.order.settings)
    return precision


def _make_index(eager: EagerReference) -> ReferenceIndex:
    return ReferenceIndex(
        checkpoint=eager.checkpoint.digest,
        modelc=__version__,
        torch=metadata.version("torch"),
        inputs=eager.signature.inputs,
        outputs=eager.signature.outputs,
    )


def _write_shared(work: StepWork) -> FileRecord:
    """Write the feeds of a domain once in a run."""
    eager, memory = work.run.eager, work.run.memory.references
    domain = Domain(inputs=eager.signature.inputs).as_input()
    if domain not in memory:
        writer = _open_writer(work)
        for one in eager.references:
            writer.add_feed(one)
        labelled = work.run.samples.labelled
        if labelled is not None:
            writer.add_predictions(labelled.output, labelled.predictions)
        memory[domain] = _place_file(work, writer, _make_index(eager))
    return memory[domain]


def _open_writer(work: StepWork) -> ReferenceWriter:
    folder = work.run.workspace.folder.workplace(f"{work.step.name}-references")
    return ReferenceWriter(folder / "references.npz")


def _place_file(work: StepWork, writer: ReferenceWriter, index: ReferenceIndex) -> FileRecord:
    """Finish a file, and name it by its digest."""
    writer.finish(index)
    found = record_of(writer.path, role=REFERENCES_ROLE)
    name = f"{REFERENCES_FOLDER}/{found.sha256[:_NAME_DIGITS]}.npz"
    folder = work.run.workspace.folder
    folder.claim([name])
    folder.put(writer.path, name)
    return replace(found, name=name)


@dataclass(frozen=True, kw_only=True)
class _AnswerCollector:
    """Runs the variants of eager that judging one step may ask for."""

    work: StepWork
    eager: EagerReference
    writer: ReferenceWriter

    def collect(
        self, references: Sequence[ReferenceOutputs], index: ReferenceIndex, title: str
    ) -> ReferenceIndex:
        """Add the answers on these feeds to the writer; return the index with all other facts."""
        precision, progress = _find_limit_precision(self.work), self.work.run.workspace.progress
        judging = self.work.run.order.select_judging(self.work.step.wanted)
        floor = judging.tolerance_for(precision).floor_factor is not None
        apart = {one.feed.name for one in references if one.feed.kind == "mask"}
        same = (*self._absent_ties(references[0]), *(() if self._has_fast_paths() else (PLAIN,)))
        beyond = beyond_feeds(references, precision)
        for done, one in enumerate(references, start=1):
            with self.eager.model.cache_variants():  # some ask for the same runs
                self._add_looks(one, same, floor=floor)
                self._add_draws(one, precision)
                if floor and one.feed.name not in apart:
                    self._add_noise(one)
                if is_tested_for_stability(one.feed) and one.feed.name not in beyond:
                    self._measure_movement(one)
            progress.advance(title, done, len(references))
        model = self.eager.model
        moved = {key: min(value, _MAX_MOVEMENT) for key, value in self.eager.moved.items()}
        seen = branch_coverage(self.eager, self.work.run.order.judging.accept).watched
        return replace(
            index,
            same=same,
            moved=moved,
            no_float64=model.no_float64,
            origins=tuple(sorted(model.find_discrete_origins(self.eager.example))),
            branches=_shorten_places(seen),
        )

    def _absent_ties(self, first: ReferenceOutputs) -> tuple[str, ...]:
        """Return the variants by the order of ties if the model sorts nothing."""
        with suppress(CheckpointError):
            if self.eager.model.run_with_tie_order(first.feed.arrays, last=False) is not None:
                return ()
        both = (True, False)
        return tuple(tie_variant(last=last, exact=exact) for last in both for exact in both)

    def _has_fast_paths(self) -> bool:
        """Return whether a module has a fast path of attention."""
        if not self.eager.model.has_module:
            return False
        import torch

        kinds = (
            torch.nn.MultiheadAttention,
            torch.nn.TransformerEncoder,
            torch.nn.TransformerEncoderLayer,
        )
        return any(isinstance(one, kinds) for one in self.eager.model.module.modules())

    def _add_looks(self, one: ReferenceOutputs, same: Sequence[str], *, floor: bool) -> None:
        """Add the outputs with other choices among ties, and without fast paths."""
        model, feed = self.eager.model, one.feed.arrays
        for last in (False, True):
            for exact in (False, True) if floor else (False,):
                variant = tie_variant(last=last, exact=exact)
                if variant in same:
                    continue
                found: Outputs | None = None
                with suppress(CheckpointError):
                    found = model.run_with_tie_order(feed, last=last, exact=exact)
                self.writer.add_answer(feed, variant, found)
        if PLAIN not in same:
            found = None
            with suppress(CheckpointError):
                found = model.run_plain_attention(feed)
            self.writer.add_answer(feed, PLAIN, found)

    def _add_draws(self, one: ReferenceOutputs, precision: Precision) -> None:
        """Add integer outputs of eager under noise of the precision: roundoff may decide them."""
        names = [name for name, array in one.outputs.items() if array.dtype.kind in "iub"]
        if names:
            self._add_perturbed(one, SHARES[precision], PAIRS, names)

    def _add_noise(self, one: ReferenceOutputs) -> None:
        """Add float64 outputs, and eager under noise of float32."""
        model, feed = self.eager.model, one.feed.arrays
        exact = run_float64(one, self.eager)
        if exact is not None:
            self.writer.add_answer(feed, EXACT, exact)
        self._add_perturbed(one, FP32_ROUNDING, NOISE_PAIRS, list(one.outputs))
        found = None
        with suppress(CheckpointError):
            found = model.run_sequential_sums(feed)
        self.writer.add_answer(feed, SEQUENTIAL, found)

    def _add_perturbed(
        self, one: ReferenceOutputs, share: float, pairs: int, names: Sequence[str]
    ) -> None:
        for seed in range(pairs):
            for sign in _SIGNS:
                found: Outputs | None = None
                with suppress(CheckpointError):
                    drawn = self.eager.model.run_perturbed(one.feed.arrays, sign * share, seed)
                    found = {name: drawn[name] for name in names if name in drawn}
                self.writer.add_answer(one.feed.arrays, noise_variant(sign * share, seed), found)

    def _measure_movement(self, one: ReferenceOutputs) -> None:
        for name, array in one.outputs.items():
            if array.dtype.kind == "f":
                find_movement(name, one, self.eager)


def _shorten_places(report: BranchReport) -> BranchReport:
    """Return the report without the folders of this host."""
    return replace(
        report,
        found=tuple(replace(one, places=frozenset()) for one in report.found),
        idle=frozenset(),
        within=frozenset((shorten_path(file), line) for file, line in report.within),
    )
