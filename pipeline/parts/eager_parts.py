"""The eager parts of a model, and the whole as they compute it: outputs, float64, noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from ...checkpoints.eager_model import Eager, open_eager
from ...checkpoints.loaded_module import LoadedModule
from ...checkpoints.method_wrapper import with_method
from ...checkpoints.module_state import find_unstable_outputs
from ...core.contract import Array, Feed, Outputs
from ...core.errors import CheckpointError, ErrorCode, ModelcError
from ...core.records import Checkpoint
from ...core.signature import Dim, InputSpec, Signature
from ...validators.feeds import NamedFeed, describe_named_feed
from .compose_function import ComposeFunction, PartCall, RunPart

EagerRun: TypeAlias = Callable[[Eager, Feed], Outputs]
"""One way to run an eager part: as it is, in float64, perturbed."""


class NoFloat64Error(Exception):
    """A part cannot run in float64; the text says why."""


def run_plain(eager: Eager, feed: Feed) -> Outputs:
    """Run the part as it is."""
    return eager.run_untraced(feed)


def run_exact(eager: Eager, feed: Feed) -> Outputs:
    """Run the part in float64.

    Raises:
        NoFloat64Error: it cannot run so.
    """
    outputs = eager.run_exact(feed)
    if outputs is None:
        raise NoFloat64Error(eager.no_float64)
    return outputs


def perturb_by(share: float, seed: int) -> EagerRun:
    """Return a run with weights and inputs of every part perturbed by a share of themselves."""
    return lambda eager, feed: eager.run_perturbed(feed, share, seed)


@dataclass(kw_only=True)
class EagerParts:
    """The parts of a loaded model; each is bound to its inputs at its first call.

    `modules` are the parts by name, with their methods in place of forward.
    """

    modules: Mapping[str, LoadedModule]
    opened: dict[str, Eager] = field(default_factory=dict)

    @classmethod
    def of(cls, loaded: LoadedModule, methods: Mapping[str, str]) -> EagerParts:
        """Find the parts in a loaded model.

        Raises:
            UsageError: it has no such submodule or method.
        """
        return cls(
            modules={
                name: with_method(loaded, method, part=name) for name, method in methods.items()
            }
        )

    def run(self, how: EagerRun, name: str, feed: Feed) -> Outputs:
        """Run a part on one feed.

        Raises:
            CheckpointError: it rejects the feed, or earlier calls had other arguments.
        """
        eager = self._open(name, feed)
        if set(eager.inputs) != set(feed):
            raise CheckpointError(
                f"part {name!r} is called with {', '.join(feed)}, and before with "
                f"{', '.join(eager.inputs)}: an artifact has the same inputs in every call",
                hint="call it with the same arguments every time, or name a second part with "
                "another method",
                option="compose",
                code=ErrorCode.UNKNOWN_INPUT,
            )
        try:
            return how(eager, feed)
        except CheckpointError as error:
            raise CheckpointError(
                f"part {name!r}: {error.message}",
                hint=error.advice,
                option="compose",
                code=error.code,
            ) from error

    def _open(self, name: str, feed: Feed) -> Eager:
        if name not in self.opened:
            inputs = tuple(
                InputSpec(
                    name=key,
                    dtype=array.dtype.name,
                    dims=tuple(Dim.of_size(size) for size in array.shape),
                )
                for key, array in feed.items()
            )
            self.opened[name] = open_eager(self.modules[name], Signature(inputs=inputs))
        return self.opened[name]


@dataclass(frozen=True, kw_only=True)
class EagerWhole:
    """The user's function with the eager parts, the inputs of the whole, and the feeds."""

    checkpoint: Checkpoint
    compose: ComposeFunction
    parts: EagerParts
    signature: Signature
    feeds: tuple[NamedFeed, ...]
    samples: tuple[str, str] | None = None  # where the user's samples are from, and their digest

    def run(self, feed: NamedFeed, how: EagerRun = run_plain) -> Outputs:
        """Run the whole on one feed with all parts in eager.

        Raises:
            ModelcError: the user's function or a part raises.
            NoFloat64Error: a part cannot run in float64.
        """
        return self.run_with(feed, {}, how)

    def run_with(
        self, feed: NamedFeed, others: Mapping[str, RunPart], how: EagerRun = run_plain
    ) -> Outputs:
        """Run the whole with `others` in place of the eager parts of their names."""
        eagerly: RunPart = partial(self.parts.run, how)
        calls = {
            name: PartCall(name, loaded.takes, others.get(name, eagerly))
            for name, loaded in self.parts.modules.items()
        }
        return self.compose.run(calls, feed)

    def try_with(
        self, feed: NamedFeed, others: Mapping[str, RunPart]
    ) -> tuple[Outputs | None, str]:
        """Return the outputs with these parts, or None and why the run failed."""
        try:
            return self.run_with(feed, others), ""
        except ModelcError as error:  # of a part, or of the function on what a part returned
            return None, error.message

    def find_ignored_part(self) -> str:
        """Return a part whose outputs the function does not use; empty if there is none.

        Its result is then the same with any other values in their place, on every feed.
        """
        feeds = sorted(self.feeds, key=lambda feed: feed.elements)
        for name in self.parts.modules:
            if not any(self._follows(name, feed) for feed in feeds):
                return name
        return ""

    def _follows(self, name: str, feed: NamedFeed) -> bool:
        """Whether the result changes with a part's outputs; an error is a change, too."""
        expected = self.run(feed)
        for sign in (1.0, -1.0):

            def run(part: str, arrays: Feed, sign: float = sign) -> Outputs:
                outputs = self.parts.run(run_plain, part, arrays)
                return {key: _replace_values(array, sign) for key, array in outputs.items()}

            found, _ = self.try_with(feed, {name: run})
            if found is None or found.keys() != expected.keys():
                return True
            if not all(_is_equal(found[key], expected[key]) for key in expected):
                return True
        return False

    def check_repeatable(self, feed: NamedFeed) -> tuple[str, ...]:
        """Check that two runs of one feed agree, and return the names of the outputs.

        Raises:
            CheckpointError: they do not.
        """
        first, second = self.run(feed), self.run(feed)
        unstable = find_unstable_outputs(first, second)
        if unstable:
            raise self.compose.error(
                f"returns other values for the same arrays, of feed {describe_named_feed(feed)}: "
                f"{', '.join(unstable)}",
                "take noise as an input, or seed its generator in the function",
            )
        return tuple(first)


def _replace_values(array: Array, sign: float) -> Array:
    """Return values far from those of the array; integers in another order, or less by one."""
    import numpy as np

    if array.dtype.kind == "b":
        return np.asarray(np.logical_not(array))
    if array.dtype.kind != "f":
        return np.array(np.flip(array)) if sign > 0 else np.asarray(array - array.dtype.type(1))
    finite = np.abs(array[np.isfinite(array)])
    far = sign * (1 + finite.max(initial=0))
    return np.asarray(far - np.flip(array), array.dtype)


def _is_equal(one: Array, other: Array) -> bool:
    import numpy as np

    return np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")
