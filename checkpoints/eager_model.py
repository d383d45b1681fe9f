"""The eager model: the user's module as a runner, and as the source of every capture."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ..core.call import Binding, bind_inputs
from ..core.errors import (
    CheckpointError,
    ErrorCode,
    Hint,
    Option,
    UsageError,
    unknown_name_error,
)
from ..core.process import end_forked_copies
from ..core.torch_tools import to_array
from .checkpoint_loader import modules_in_training
from .data_branches import QuietShapes
from .eager_runs import EagerVariants, describe_feed, make_rejection
from .enclosed_module import find_steps
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

    import torch

    from ..core.contract import Array, Feed, Outputs
    from ..core.signature import Signature
    from .loaded_module import LoadedModule


# Least limit of steps (lines of Python, calls) for extreme values: about a minute.
_MIN_STEP_LIMIT = 5_000_000
_STEP_FACTOR = 50  # times the longest run on usual values: an early exit saves less


def open_eager(loaded: LoadedModule, signature: Signature) -> Eager:
    """Bind the signature's inputs to the parameters of the module's forward.

    Raises:
        UsageError: an input has no parameter, or a required parameter no input.
    """
    if loaded.opener is not None:
        return loaded.opener(signature)  # type: ignore[no-any-return]  # of another layer
    inputs = tuple(spec.name for spec in signature.inputs)
    binding = bind_inputs(
        inputs, loaded.takes, call=loaded.call, by_name=_is_called_by_name(loaded.module)
    )
    return Eager(loaded.module, inputs, binding, drop=loaded.drop)


def _is_called_by_name(module: torch.nn.Module) -> bool:
    """Whether users call it as `model(**inputs)`: transformers' models, and hooks with kwargs."""
    named: dict[int, bool] = getattr(module, "_forward_pre_hooks_with_kwargs", {})
    hooks: dict[int, object] = getattr(module, "_forward_pre_hooks", {})
    all_take_names = bool(hooks) and all(one in named for one in hooks)
    return all_take_names or isinstance(getattr(module, "main_input_name", None), str)


class Eager(EagerVariants):
    """The module in eval mode on the CPU: an EagerModel and a Runner."""

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: tuple[str, ...],
        binding: Binding,
        *,
        drop: tuple[str, ...] = (),
        step_limit: int = _MIN_STEP_LIMIT,
    ) -> None:
        self.inputs = inputs
        self._module = module
        self._binding = binding
        self._drop = drop
        self._dropped: set[str] = set()  # names to drop that were found
        self._flat = make_flat_module(module, binding, drop=drop)
        self._seen: dict[str, None] = {}  # names of outputs
        self._constants: dict[str, list[object]] = {}  # values of outputs that are not tensors
        self._written: frozenset[int] = frozenset()
        # outputs that are tensors in eager; in a trace, sizes are too
        self._kept: tuple[str, ...] | None = None
        self._notes: dict[str, None] = {}  # in order, each once
        self._exact: Float64Module | None = None
        self._no_float64 = ""
        self._watched = None
        self._quiet = QuietShapes()
        self._asks = None
        self._discrete = None
        self._step_limit = step_limit
        self._longest = 0  # steps, of runs without a limit

    def with_module(self, module: torch.nn.Module) -> Eager:
        """Return an Eager for a copy of this module, with the same inputs."""
        other = Eager(module, self.inputs, self._binding, drop=self._drop)
        other._written, other._kept = self._written, self._kept
        other._flat = other._make_flat()
        return other

    def bind(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the positional and the named arguments of a call; `tensors` are the inputs."""
        return self._binding.call(lambda *args, **kwargs: (args, kwargs), tensors)

    @property
    def module(self) -> torch.nn.Module:
        """The module as the user wrote it."""
        return self._module

    @property
    def flat(self) -> torch.nn.Module:
        """The module as `forward(*tensors) -> tuple of tensors`, in the signature's order."""
        return self._flat

    @property
    def scope(self) -> str:
        """The attribute under which `flat` holds `module`."""
        return SCOPE

    @property
    def no_float64(self) -> str:
        """Why there is no float64 reference; empty if there is one."""
        return self._no_float64

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user from the runs so far."""
        return tuple(self._notes)

    def __enter__(self) -> Eager:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the module needs no cleanup."""

    def names(self, feed: Feed) -> tuple[str, ...]:
        """Return the output names by running one feed.

        Raises:
            CheckpointError: eager rejects the feed, or returns no tensor.
        """
        return tuple(self._tensors(feed))

    def run(self, feed: Feed) -> Outputs:
        """Run one feed without gradients, on copies; return arrays by output name.

        Raises:
            CheckpointError: eager rejects the feed, or returns no tensor.
        """
        with self._count_steps():
            return self._arrays(feed)

    def _arrays(self, feed: Feed) -> Outputs:
        return {name: to_array(tensor) for name, tensor in self._tensors(feed).items()}

    run_untraced = _arrays  # without counting steps, which slows dynamo down

    def run_with_deadline(self, feed: Feed) -> Outputs:
        """Run extreme values, on which a loop of the model may never end, with a step limit.

        Raises:
            CheckpointError: as `run`, or it exceeds the limit of steps.
        """
        with self._deadline(feed):
            return self._arrays(feed)

    @contextmanager
    def _deadline(self, feed: Feed) -> Iterator[None]:
        limit = max(self._step_limit, _STEP_FACTOR * self._longest)
        counter = StepCounter(limit)
        script = make_step_mode(counter) if has_script(self._module) else nullcontext()
        try:
            with limit_steps(counter), script:
                yield
        except (DeadlineExceededError, CheckpointError) as error:
            if not counter.over:
                raise  # TorchScript turns the exception into its own
            form = describe_feed(feed, self.inputs)
            raise CheckpointError(
                f"eager exceeds {limit:,} steps on {form}",
                hint="bound the loops of forward",
                code=ErrorCode.STEP_LIMIT,
            ) from error

    @contextmanager
    def _count_steps(self) -> Iterator[None]:
        with count_steps() as counter:
            yield
        self._longest = max(self._longest, counter.steps)

    def run_metered(self, feed: Feed, most: Work | None = None) -> tuple[Outputs, Work]:
        """Run one feed and measure its work; stop a run beyond `most`.

        Raises:
            MoreWorkError: the work exceeds `most`.
            CheckpointError: eager rejects the feed, or exceeds the limit of steps.
        """
        meter = Meter(most)
        try:
            with self._deadline(feed), make_meter_mode(meter):
                outputs = self._arrays(feed)
        except (WorkExceededError, CheckpointError) as error:
            if not meter.exceeded:
                raise
            raise MoreWorkError(
                f"{describe_feed(feed, self.inputs)} takes far more work than other feeds",
                hint="state the range of the input's values in --input",
            ) from error
        return outputs, meter.work

    def run_exact(self, feed: Feed) -> Outputs | None:
        """Run one feed in float64; None if the model cannot run so.

        After the first failure it is not tried again: all feeds are judged by one measure.
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
        """Release the memory of memory-mapped weights until they are used again."""
        release_pages(self._module)

    def weights(self) -> dict[str, Array]:
        """Return the float32 parameters by name, read-only, without a copy on the CPU."""
        import torch

        return {
            name: parameter.detach().cpu().contiguous().numpy()
            for name, parameter in self._module.named_parameters()
            if parameter.dtype is torch.float32
        }

    def before(self) -> ModuleSnapshot:
        """Return a snapshot of the module's state, for restoring it."""
        return ModuleSnapshot(self._module)

    def check_stable(self, feed: Feed) -> Outputs:
        """Check that two runs of one feed agree, and return the outputs.

        Notes name modules in training mode, inputs that the model writes into, and outputs that are
        not tensors.

        Raises:
            CheckpointError: outputs differ; the message names them and a likely cause.
        """
        first, second = self.run(feed), self.run(feed)
        training = modules_in_training(self._module)
        if training:
            self._notes[f"in training mode during forward: {', '.join(training)}"] = None
        unstable = find_unstable_outputs(first, second)
        if unstable:
            raise CheckpointError(
                f"eager gives different values for the same feed: {', '.join(unstable)}"
                f" ({explain_instability(training)})",
                hint="make forward deterministic in eval mode, with dropout only if self.training",
                code=ErrorCode.UNSTABLE_OUTPUTS,
            )
        self._observe_run(feed, first)
        return first

    def _input_tensors(self, feed: Feed) -> list[torch.Tensor]:
        """Return C-contiguous copies: models may write into their inputs."""
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
        except UsageError:  # of steps around the module, which any feed raises
            raise
        except Exception as error:
            form = describe_feed(feed, self.inputs)
            raise make_rejection(error, form, find_steps(self._module)) from error
        self._note_writes(given, versions)
        parts = split_outputs(value, reserved=self.inputs, drop=self._drop)
        tensors = parts.tensors
        self._note_parts(parts)
        if self._kept != tuple(tensors):
            self._kept = tuple(tensors)
            self._flat = self._make_flat()
        if not tensors:
            raise CheckpointError(
                f"the model returns {type(value).__name__}, without a tensor"
                if not parts.dropped
                else f"--drop-output {' '.join(sorted(parts.dropped))} leaves no output",
                hint="return a tensor, or a tuple, dict or dataclass of tensors",
                option="drop-output" if parts.dropped else "",
                code=ErrorCode.NO_TENSOR,
            )
        return tensors

    def _note_parts(self, parts: OutputParts) -> None:
        """Record outputs that are not tensors.

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
            self._notes[f"output {name} is a {kind} and is omitted"] = None
            values = self._constants.setdefault(name, [constant])
            if len(values) == 1 and repr(values[0]) != repr(constant):
                values.append(constant)

    def check_outputs(self) -> None:
        """Check that omitted outputs are constant, and that all outputs to drop exist.

        Raises:
            CheckpointError: a number or text differs between runs.
            UsageError: there is no output of a name to drop.
        """
        for name in self._drop:
            if name not in self._dropped:
                raise unknown_name_error("output in --drop-output:", name, list(self._seen))
        for name, values in self._constants.items():
            if len(values) > 1:
                raise CheckpointError(
                    f"output {name} is a {type(values[0]).__name__} that depends on the feed"
                    f" ({values[0]!r}, {values[1]!r}), not a tensor",
                    hint=Hint(
                        "return it as a tensor; ",
                        Option("drop-output", f"{name}"),
                        " leaves it out",
                    ),
                    option="drop-output",
                )

    def _make_flat(self) -> torch.nn.Module:
        """Return the flat module, with what the runs so far showed."""
        return make_flat_module(
            self._module,
            self._binding,
            written=self._written,
            reserved=self.inputs,
            kept=self._kept,
            drop=self._drop,
        )

    def _note_writes(self, given: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
        """Make the flat module clone inputs that the model mutates."""
        written = self._written | {
            index
            for index, (tensor, version) in enumerate(zip(given, versions, strict=True))
            if tensor._version != version
        }
        if written == self._written:
            return
        self._written = written
        self._flat = self._make_flat()
        names = ", ".join(self.inputs[index] for index in sorted(written))
        self._notes[f"the model writes into its inputs ({names}); artifacts use copies"] = None
