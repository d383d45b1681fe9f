"""The eager model: the user's module as the first runner, and as what every capture starts from."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from ..core.call import Binding, bind_inputs
from ..core.errors import CheckpointError, ErrorCode, Hint, Option, first_line, unknown_name_error
from ..core.process import end_forked_copies
from ..core.torch_tools import to_array
from .checkpoint_loader import modules_in_training
from .data_branches import QuietShapes
from .eager_runs import EagerWatched, describe_feed, find_raise_place
from .float64_eager import Float64Error, Float64Module, has_script, open_float64
from .mapped_weights import release_pages
from .module_outputs import SCOPE, OutputParts, make_flat_module, split_outputs
from .module_state import ModuleSnapshot, explain_instability, find_unstable_outputs
from .run_limits import (
    DeadlineExceededError,
    Meter,
    MoreWorkError,
    StepCounter,
    Work,
    WorkExceededError,
    count_steps,
    limit_steps,
    make_meter_mode,
    make_step_mode,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    import torch

    from ..core.contract import Array, Feed, Outputs
    from ..core.signature import Signature
    from .loaded_module import LoadedModule


# Steps (lines of Python, calls) that a run on values far out may take at least: a minute or so.
_MIN_STEP_LIMIT = 5_000_000
_STEP_FACTOR = 50  # as many as the longest run on usual values: what an early exit saves is less


def open_eager(loaded: LoadedModule, signature: Signature) -> Eager:
    """Bind the signature's inputs to the parameters of the module's forward.

    Raises:
        UsageError: an input has no parameter, or a required parameter no input.
    """
    inputs = tuple(spec.name for spec in signature.inputs)
    binding = bind_inputs(
        inputs, loaded.takes, call=loaded.call, by_name=_is_called_by_name(loaded.module)
    )
    return Eager(loaded.module, inputs, binding, drop=loaded.drop)


def _is_called_by_name(module: torch.nn.Module) -> bool:
    """Whether users call it as `model(**inputs)`: models of transformers, and hooks for names."""
    named: dict[int, bool] = getattr(module, "_forward_pre_hooks_with_kwargs", {})
    hooks: dict[int, object] = getattr(module, "_forward_pre_hooks", {})
    all_take_names = bool(hooks) and all(one in named for one in hooks)
    return all_take_names or isinstance(getattr(module, "main_input_name", None), str)


class Eager(EagerWatched):
    """The module in eval mode on the CPU: an EagerModel and a Runner."""

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: tuple[str, ...],
        binding: Binding,
        *,
        drop: tuple[str, ...] = (),
        patience: int = _MIN_STEP_LIMIT,
    ) -> None:
        self.inputs = inputs
        self._module = module
        self._binding = binding
        self._drop = drop
        self._dropped: set[str] = set()  # those names to drop that outputs had
        self._flat = make_flat_module(module, binding, drop=drop)
        self._seen: dict[str, None] = {}  # names of outputs
        self._constants: dict[str, list[object]] = {}  # values of outputs that are no tensors
        self._written: frozenset[int] = frozenset()
        self._kept: tuple[str, ...] | None = (
            None  # outputs that are tensors; to a tracer sizes are too
        )
        self._notes: dict[str, None] = {}  # in order, each once
        self._exact: Float64Module | None = None
        self._no_float64 = ""
        self._watched = None
        self._quiet = QuietShapes()
        self._asks = None
        self._discrete = None
        self._patience = patience
        self._longest = 0  # steps, of the runs without a limit

    def with_module(self, module: torch.nn.Module) -> Eager:
        """The same inputs into another module that is called alike: a copy of this one's."""
        other = Eager(module, self.inputs, self._binding, drop=self._drop)
        other._written, other._kept = self._written, self._kept
        other._flat = other._flat_now()
        return other

    @property
    def module(self) -> torch.nn.Module:
        """The module as the user wrote it."""
        return self._module

    @property
    def flat(self) -> torch.nn.Module:
        """The same as `forward(*tensors) -> tuple of tensors`, in the signature's order."""
        return self._flat

    @property
    def scope(self) -> str:
        """The attribute under which `flat` holds `module`."""
        return SCOPE

    @property
    def no_float64(self) -> str:
        """Why there is no float64 reference; empty while there is one."""
        return self._no_float64

    @property
    def notes(self) -> tuple[str, ...]:
        """What the runs so far showed that the user should know."""
        return tuple(self._notes)

    def __enter__(self) -> Eager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Hold nothing: the module lives as long as its user wants it."""

    def names(self, feed: Feed) -> tuple[str, ...]:
        """The output names, learnt by running one feed.

        Raises:
            CheckpointError: eager rejects the feed, or returns no tensor.
        """
        return tuple(self._tensors(feed))

    def run(self, feed: Feed) -> Outputs:
        """Run one feed without gradients, on copies; arrays by output name.

        Raises:
            CheckpointError: eager rejects the feed, or returns no tensor.
        """
        with self._count_steps():
            return self._arrays(feed)

    def _arrays(self, feed: Feed) -> Outputs:
        return {name: to_array(tensor) for name, tensor in self._tensors(feed).items()}

    def run_with_deadline(self, feed: Feed) -> Outputs:
        """As `run`, for values far out: on these a loop of the model's own may never end.

        Raises:
            CheckpointError: also where it takes many more steps than all runs so far.
        """
        with self._deadline(feed):
            return self._arrays(feed)

    @contextmanager
    def _deadline(self, feed: Feed) -> Iterator[None]:
        limit = max(self._patience, _STEP_FACTOR * self._longest)
        watch = StepCounter(limit)
        script = make_step_mode(watch) if has_script(self._module) else nullcontext()
        try:
            with limit_steps(watch), script:
                yield
        except (DeadlineExceededError, CheckpointError) as error:
            if not watch.over:
                raise  # TorchScript makes an error of its own of what ended it
            form = describe_feed(feed, self.inputs)
            raise CheckpointError(
                f"eager is not done with {form} after {limit:,} steps",
                hint="end the loops of forward after a number of steps",
            ) from error

    @contextmanager
    def _count_steps(self) -> Iterator[None]:
        with count_steps() as watch:
            yield
        self._longest = max(self._longest, watch.steps)

    def run_metered(self, feed: Feed, most: Work | None = None) -> tuple[Outputs, Work]:
        """Run one feed and count the work it takes; a run of more than `most` is stopped.

        Raises:
            MoreWorkError: it takes more than `most`.
            CheckpointError: eager rejects the feed, or it takes far more time than others.
        """
        meter = Meter(most)
        try:
            with self._deadline(feed), make_meter_mode(meter):
                outputs = self._arrays(feed)
        except (WorkExceededError, CheckpointError) as error:
            if not meter.exceeded:
                raise
            raise MoreWorkError(
                f"{describe_feed(feed, self.inputs)} takes far more work than other values",
                hint="state the values that the input may have",
            ) from error
        return outputs, meter.work

    def run_exact(self, feed: Feed) -> Outputs | None:
        """Run one feed in float64, weights and all; None where the model cannot be (see above).

        Once refused it is not tried again: half a reference would judge feeds by two measures.
        """
        if self._no_float64:
            return None
        try:
            if self._exact is None:
                self._exact = open_float64(
                    self._module, self.inputs, self._binding, drop=self._drop
                )
            with self._deadline(feed):
                return self._exact.run(feed)
        except (Float64Error, CheckpointError) as error:
            self._no_float64 = str(error)
            self._exact = None
            return None

    def release_pages(self) -> None:
        """Give the memory of weights that lie in mapped files back, until they are used again."""
        release_pages(self._module)

    def weights(self) -> dict[str, Array]:
        """The float32 parameters by name, read-only, without a copy where they lie on the CPU."""
        import torch

        return {
            name: parameter.detach().cpu().contiguous().numpy()
            for name, parameter in self._module.named_parameters()
            if parameter.dtype is torch.float32
        }

    def before(self) -> ModuleSnapshot:
        """The module's state as it is now, to be put back."""
        return ModuleSnapshot(self._module)

    def check_stable(self, feed: Feed) -> Outputs:
        """Make sure that the same feed gives the same outputs twice; returns them.

        Notes name the modules that are in training mode, or switch themselves to it, the inputs
        that the model writes into and the outputs that are no tensors.

        Raises:
            CheckpointError: outputs differ; the message says which, and what may be the cause.
        """
        first, second = self.run(feed), self.run(feed)
        training = modules_in_training(self._module)
        if training:
            self._notes[f"in training mode during forward: {', '.join(training)}"] = None
        unstable = find_unstable_outputs(first, second)
        if unstable:
            raise CheckpointError(
                f"eager gives other values for the same feed: {', '.join(unstable)}"
                f" ({explain_instability(training)})",
                hint="make forward deterministic in eval mode, with dropout only if self.training",
            )
        self._look_closely(feed, first)
        return first

    def _input_tensors(self, feed: Feed) -> list[torch.Tensor]:
        """Copies, C-contiguous and writable: models may write into their inputs."""
        import numpy as np
        import torch

        return [torch.from_numpy(np.array(feed[name], order="C")) for name in self.inputs]

    def _tensors(
        self, feed: Feed, given: list[torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        import torch

        given = self._input_tensors(feed) if given is None else given
        versions = [tensor._version for tensor in given]
        try:
            with torch.no_grad(), end_forked_copies():
                value = self._binding.call(self._module, given)
        except Exception as error:
            place = find_raise_place(error)
            at, or_line = (f" (at {place})", ", or that line") if place else ("", "")
            raise CheckpointError(
                f"eager rejects {describe_feed(feed, self.inputs)}: {first_line(error)}{at}",
                hint=Hint(
                    "correct the dtype and dims with ",
                    Option("input", "NAME:DTYPE[DIM,...]"),
                    or_line,
                ),
                option="input",
                code=ErrorCode.FEED_REJECTED,
            ) from error
        self._note_writes(given, versions)
        parts = split_outputs(value, taken=self.inputs, drop=self._drop)
        tensors = parts.tensors
        self._note_parts(parts)
        if self._kept != tuple(tensors):
            self._kept = tuple(tensors)
            self._flat = self._flat_now()
        if not tensors:
            raise CheckpointError(
                f"the model returns no tensor but {type(value).__name__}"
                if not parts.dropped
                else f"--drop-output {' '.join(sorted(parts.dropped))} leaves no output",
                hint="return a tensor, or a tuple, dict or dataclass of tensors",
                option="drop-output" if parts.dropped else "",
            )
        return tensors

    def _note_parts(self, parts: OutputParts) -> None:
        """Keep what is no tensor in mind.

        Raises:
            CheckpointError: a part cannot be flattened.
        """
        if parts.opaque:
            name, found = next(iter(parts.opaque.items()))
            raise CheckpointError(
                f"output {name} is a {type(found).__name__}, which cannot be flattened to tensors",
                hint=Hint(
                    Option("drop-output", f"{name}"), " leaves it out; or return its tensors"
                ),
                option="drop-output",
            )
        self._dropped |= parts.dropped
        self._seen.update(dict.fromkeys((*parts.tensors, *parts.constants)))
        for name, constant in parts.constants.items():
            kind = type(constant).__name__
            self._notes[f"output {name} is a {kind} and left out"] = None
            values = self._constants.setdefault(name, [constant])
            if len(values) == 1 and repr(values[0]) != repr(constant):
                values.append(constant)

    def check_outputs(self) -> None:
        """That no output is left out that depends on the feed, and that all to drop were there.

        Raises:
            CheckpointError: a number or text had two values in the runs so far.
            UsageError: a name to drop stands for no output.
        """
        for name in self._drop:
            if name not in self._dropped:
                raise unknown_name_error("output in --drop-output:", name, list(self._seen))
        for name, values in self._constants.items():
            if len(values) > 1:
                raise CheckpointError(
                    f"output {name} is a {type(values[0]).__name__} that depends on the feed"
                    f" ({values[0]!r}, {values[1]!r}), and no tensor",
                    hint=Hint(
                        "return it as a tensor; ",
                        Option("drop-output", f"{name}"),
                        " leaves it out",
                    ),
                    option="drop-output",
                )

    def _flat_now(self) -> torch.nn.Module:
        """The flat module with what the runs so far showed."""
        return make_flat_module(
            self._module,
            self._binding,
            written=self._written,
            taken=self.inputs,
            kept=self._kept,
            drop=self._drop,
        )

    def _note_writes(self, given: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
        """Have the flat module clone inputs that the model changes in place."""
        written = self._written | {
            index
            for index, (tensor, version) in enumerate(zip(given, versions, strict=True))
            if tensor._version != version
        }
        if written == self._written:
            return
        self._written = written
        self._flat = self._flat_now()
        names = ", ".join(self.inputs[index] for index in sorted(written))
        self._notes[f"the model writes into its inputs: {names}; artifacts work on copies"] = None
