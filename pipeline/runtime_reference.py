"""A reference that is not eager: a converted model as its own runtime runs it.

`RuntimeEager` answers for the module. Outputs come from the runtime; perturbed and float64 outputs
too, if the format can give them (`OpenedReference`), else only inputs are perturbed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.checkpoint_files import WEIGHTS
from ..checkpoints.checkpoint_loader import load_checkpoint
from ..checkpoints.data_branches import BranchReport
from ..checkpoints.eager_model import Eager
from ..checkpoints.eager_perturbations import perturb_feed
from ..checkpoints.eager_probes import DiscreteOrigin
from ..checkpoints.eager_runs import describe_feed
from ..checkpoints.loaded_module import LoadedModule
from ..checkpoints.module_state import ModuleSnapshot, find_unstable_outputs
from ..checkpoints.run_limits import MoreWorkError, Work
from ..checkpoints.sniff import PT2, TORCHSCRIPT, names_artifact
from ..converters.onnx_guard import list_model_files
from ..converters.registry import TARGETS, target_for, target_named
from ..core.call import Parameter
from ..core.contract import Array, Deferred, Feed, Native, Outputs, Runner, Target, TensorInfo
from ..core.errors import (
    CheckpointError,
    ConversionError,
    ErrorCode,
    Hint,
    Option,
    RunnerError,
    UsageError,
)
from ..core.external_runtime import OpenedReference, ReferenceMaker
from ..core.findings import ReferenceRuntime
from ..core.generation import relate_inputs
from ..core.records import Checkpoint, FileRecord, joint_digest, record_of
from ..core.signature import DTYPE_NAMES, DTYPES, Dim, InputSpec, Signature
from .recorded_run import check_program_trust

if TYPE_CHECKING:
    import torch

    from .order import Source

_MODULES = {TORCHSCRIPT, PT2}  # torch runs these programs as modules, in float64 too
_HALVES = ("float16", "bfloat16")
_DIM_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_GROWTH = 1 << 28  # bytes: less memory is not counted as work of a run


def identify_artifact(source: Source) -> Checkpoint | None:
    """Return the record of a converted model as the reference; None if it is a checkpoint.

    Raises:
        UsageError: the file is not what its name says, or an option is of checkpoints.
        ConsentError: opening it runs code of its author, without consent.
    """
    path = source.checkpoint
    if not source.artifact or not path.is_file():
        return None
    try:
        target = target_for(path)
    except UsageError:
        if names_artifact(path):
            raise
        return None
    if target.NAME in _MODULES:
        return None
    _check_options(source)
    check_program_trust(path, target, trust=source.trust)
    if isinstance(target, Native) and not source.trust:
        reason = target.distrust_reason(path, {})
        if reason:
            raise CheckpointError(
                reason, hint=Hint("add ", Option("trust")), option="trust",
                code=ErrorCode.CONSENT_REQUIRED,
            )  # fmt: skip
    try:
        files = list_model_files(path)
    except ConversionError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.message}",
            hint="copy or download the file again, and compare its size with the original",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    records = tuple(_record_file(file, path) for file in files)
    return Checkpoint(path=str(path), kind=target.NAME, digest=joint_digest(records), files=records)


def _record_file(file: Path, model: Path) -> FileRecord:
    """Record a file of the model by its place beside it.

    Raises:
        CheckpointError: it is not there.
    """
    if not file.is_file():
        raise CheckpointError(
            f"the weights of {model} are in {file.name!r}, which is not beside it",
            hint="copy that file too",
            code=ErrorCode.NOT_FOUND,
        )
    beside = file.is_relative_to(model.parent)
    name = file.relative_to(model.parent).as_posix() if beside else file.name
    return record_of(file, name=name, role=WEIGHTS)


def _check_options(source: Source) -> None:
    """Reject options of a module: an artifact has its own code, weights and steps.

    Raises:
        UsageError: such an option is given.
    """
    given = {
        "model": source.model, "model-arg": source.model_args, "method": source.method,
        "weights-key": source.weights_key, "drop-output": source.drop_outputs,
        "include-preprocess": source.include_preprocess, "postprocess": source.postprocess,
    }  # fmt: skip
    for name, value in given.items():
        if value:
            raise UsageError(
                f"--{name} has no effect: the reference {source.name} is a converted model",
                hint="leave it out, or name a checkpoint with --against CHECKPOINT",
                option=name,
                code=ErrorCode.NO_EFFECT,
            )


def load_model(checkpoint: Checkpoint, *, trust: bool) -> LoadedModule:
    """Return the module of a checkpoint, or an artifact: its inputs, and how to open it.

    Raises:
        CheckpointError: an input or an output is no tensor of numbers.
        RunnerError: it cannot be read.
        ModelcError: as `load_checkpoint`.
    """
    if checkpoint.kind in _MODULES or checkpoint.kind not in [one.NAME for one in TARGETS]:
        return load_checkpoint(checkpoint)
    path, target = Path(checkpoint.path), target_named(checkpoint.kind)
    found = target.inspect(path)
    for end, infos in (("input", found.inputs), ("output", found.outputs)):
        for one in infos:
            _check_tensor(end, one, path)
    known = _read_inputs(found.inputs, half_as_float=isinstance(target, ReferenceMaker))
    known = relate_inputs(known, [one.name for one in found.outputs])
    opener = partial(_open_artifact, path, target, trust)
    return LoadedModule(
        kind=target.NAME,
        module=None,  # type: ignore[arg-type]  # nothing asks for it: `opener` answers
        takes=tuple(Parameter(name=name) for name in known),
        known=known,
        opener=opener,
    )


def _check_tensor(end: str, info: TensorInfo, path: Path) -> None:
    dtype = DTYPE_NAMES.get(info.dtype, info.dtype)
    known = dtype in (*DTYPES, "bfloat16")
    if (end == "input" and not known) or dtype == "string" or dtype.endswith(")"):
        raise CheckpointError(
            f"{end} {info.name!r} of {path.name} is of type {info.dtype}, which cannot be compared",
            hint=f"supported are {', '.join(DTYPES)}: cut the graph there, and convert the rest",
            code=ErrorCode.UNSUPPORTED,
        )


def _read_inputs(infos: Sequence[TensorInfo], *, half_as_float: bool) -> dict[str, InputSpec]:
    """Return the inputs; a dim that is not a size may have any. A reference may widen halves."""
    names: dict[str, str] = {}  # of dims, by the artifact's
    found: dict[str, InputSpec] = {}
    for info in infos:
        dims = []
        for axis, text in enumerate(info.dims):
            if text.isdecimal() and int(text) > 0:
                dims.append(Dim.of_size(int(text)))
                continue
            key = text if text.strip("?-.0123456789") else f"{info.name} {axis}"
            if key not in names:
                first = axis == 0 and "batch" not in names.values()
                plain = re.sub(r"\W", "_", f"{info.name}_{axis}", flags=re.ASCII)
                plain = plain if _DIM_NAME.fullmatch(plain) else f"dim_{plain}"
                own = re.sub(r"[ .-]+", "_", text)
                named = key == text and _DIM_NAME.fullmatch(own) and own not in names.values()
                names[key] = own if named else "batch" if first else plain
            dims.append(Dim.any_size(names[key]))
        dtype = DTYPE_NAMES.get(info.dtype, info.dtype)
        dtype = "float32" if half_as_float and dtype in _HALVES else dtype
        found[info.name] = InputSpec(name=info.name, dtype=dtype, dims=tuple(dims))
    return found


def _open_artifact(path: Path, target: Target, trust: bool, signature: Signature) -> Eager:
    """Open the artifact in its runtime.

    Raises:
        RunnerError: it cannot be opened.
    """
    if isinstance(target, ReferenceMaker):
        opened = target.open_reference(path)
        return RuntimeEager(opened, path, opened.runtime, opened)
    settings = {"trust_engine": "true"} if trust else dict[str, str]()
    if isinstance(target, Deferred | Native):
        runner = target.open_runner(path, target.DEVICES[0], signature, settings)
    else:
        runner = target.open_runner(path, target.DEVICES[0], signature)
    return RuntimeEager(runner, path, f"{target.NAME} {target.readiness().version}".strip())


class _NoState:
    """The state of a runtime that keeps none between runs."""

    def list_changes(self) -> tuple[str, ...]:
        return ()

    def restore(self) -> None: ...


class RuntimeEager(Eager):
    """Answers for a module by running an artifact; it has no module.

    `noise` gives float64 and perturbed outputs, if the format has them.
    """

    has_module = False

    def __init__(
        self, runner: Runner, path: Path, runtime: str, noise: OpenedReference | None = None
    ) -> None:
        self.inputs = runner.inputs
        self._file = path.name
        self.reference = ReferenceRuntime(file=path.name, runtime=runtime)
        self._runner, self._noise = runner, noise
        self._no_float64 = "" if noise else f"{runtime} computes in the precision of the file"
        self._notes = {}

    @property
    def module(self) -> torch.nn.Module:
        """Raise CheckpointError: there is no module."""
        raise CheckpointError(
            f"{self._file} is a converted model, and has no module",
            hint="name a checkpoint with --against CHECKPOINT",
            code=ErrorCode.UNSUPPORTED,
        )

    def _tensors(
        self, feed: Feed, given: list[torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        del feed, given
        raise self._make_rejection({}, "it has no module")

    def _make_rejection(self, feed: Feed, text: str) -> CheckpointError:
        form = describe_feed(feed, [name for name in self.inputs if name in feed])
        return CheckpointError(
            f"the reference {self._file} rejects {form}: {text}",
            hint=Hint("correct dims and values with ", Option("input", "NAME:DTYPE[DIM,...]")),
            option="input",
            code=ErrorCode.FEED_REJECTED,
        )

    def _call(self, run: Callable[[Feed], Outputs], feed: Feed) -> Outputs:
        import numpy as np

        try:
            outputs = run(feed)
        except RunnerError as error:
            raise self._make_rejection(feed, error.message) from error
        for name, array in outputs.items():
            if getattr(array, "dtype", np.dtype(object)).kind not in "fciub":  # a list or a text
                raise self._make_rejection(feed, f"output {name} is not a tensor of numbers")
        return outputs

    def run(self, feed: Feed) -> Outputs:
        """Run one feed.

        Raises:
            CheckpointError: the runtime rejects the feed.
        """
        return self._call(self._runner.run, feed)

    run_untraced = run_with_deadline = run_plain_attention = run

    def run_reference(self, feed: Feed, *, extreme: bool) -> Outputs:
        """Run one feed, of extreme values or not."""
        del extreme
        return self.run(feed)

    def run_metered(self, feed: Feed, most: Work | None = None) -> tuple[Outputs, Work]:
        """Run one feed; its work is the size of its outputs, or the memory that it took.

        Raises:
            MoreWorkError: it exceeds `most`.
            CheckpointError: the runtime rejects the feed.
        """
        before = _peak_memory()
        outputs = self.run(feed)
        grown = _peak_memory() - before
        elements = max((array.size for array in outputs.values()), default=0)
        work = Work(operators=1, elements=max(elements, grown // 4 if grown > _GROWTH else 0))
        if most is not None and work.elements > most.elements:
            raise MoreWorkError(
                f"{describe_feed(feed, self.inputs)} takes far more work than other feeds",
                hint="state the range of the input's values in --input",
            )
        return outputs, work

    def run_exact(self, feed: Feed) -> Outputs | None:
        """Run one feed in float64; None if the format or the graph has none."""
        if self._noise is None or self._no_float64:
            return None
        try:
            return self._noise.run_exact(feed)
        except RunnerError as error:
            self._no_float64 = error.message
            return None

    def run_perturbed(self, feed: Feed, share: float, seed: int) -> Outputs:
        """Run one feed with perturbed inputs, and perturbed weights where the format has them."""
        run = self._runner.run
        if self._noise is not None:
            run = partial(self._noise.run_perturbed, share=share, seed=seed)
        moved = perturb_feed(feed, share, seed)
        return self._once((share, seed), feed, lambda: self._call(run, moved))

    def run_sequential_sums(self, feed: Feed) -> Outputs:
        """Run one feed with sequential sums.

        Raises:
            CheckpointError: the format or the graph has none.
        """
        noise = self._noise
        if noise is None:
            raise self._make_rejection(feed, "it runs in one order of sums")
        return self._once("sequential", feed, lambda: self._call(noise.run_sequential_sums, feed))

    def run_with_tie_order(self, feed: Feed, *, last: bool, exact: bool = False) -> Outputs | None:
        """Return None: formats define which of equal scores is taken."""
        del feed, last, exact
        return None

    def check_stable(self, feed: Feed) -> Outputs:
        """Check that two runs of one feed agree, and return the outputs.

        Raises:
            CheckpointError: they do not.
        """
        first, second = self.run(feed), self.run(feed)
        unstable = find_unstable_outputs(first, second)
        if unstable:
            raise CheckpointError(
                f"the reference gives different values for the same feed: {', '.join(unstable)}",
                hint="remove operators that draw random numbers from it",
                code=ErrorCode.UNSTABLE_OUTPUTS,
            )
        return first

    def check_outputs(self) -> None:
        """Do nothing: no output is omitted, and the runtime holds the weights."""

    release_pages = check_outputs

    def before(self) -> ModuleSnapshot:
        """Return an empty state: the runtime keeps none between runs."""
        return _NoState()  # type: ignore[return-value]  # it is asked for no more than these

    def weights(self) -> dict[str, Array]:
        """Return the float32 constants by name, if the format has them."""
        return {} if self._noise is None else self._noise.weights()

    def computes(self, feed: Feed, test: Any) -> bool:
        """Return False: no tensor inside the run is known."""
        del feed, test
        return False

    def branches(self, feeds: Sequence[tuple[str, Feed]], example: Feed | None) -> BranchReport:
        """Return no branches: a graph has none in Python."""
        del feeds, example
        return BranchReport()

    def asks_nonfinite(self, feed: Feed) -> bool:
        """Whether the graph tests for NaN or Inf."""
        del feed
        return self._noise is not None and self._noise.tests_nonfinite

    def find_discrete_origins(self, feed: Feed) -> frozenset[DiscreteOrigin]:
        """Return all origins if the graph may round floats to integers."""
        del feed
        rounds = self._noise is not None and self._noise.rounds_to_integers
        return frozenset(DiscreteOrigin if rounds else ())


def _peak_memory() -> int:
    """Return the largest memory that the process had, in bytes."""
    import resource  # which Windows lacks

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
