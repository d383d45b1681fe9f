"""The user's function that composes the parts, and the parts as it calls them.

`compose(parts, **inputs)` gets the parts by name and the inputs as numpy arrays; it returns a dict
of arrays, or one array. A part takes arrays by position or by name, as its method does, and returns
an array, a tuple of arrays, or a dict of arrays by name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ...checkpoints.user_code import locate_user_code
from ...core.call import Parameter, ParameterKind
from ...core.contract import Array, Feed, Outputs
from ...core.errors import (
    CheckpointError,
    ErrorCode,
    Hint,
    ModelcError,
    Option,
    UsageError,
    first_line,
)
from ...core.signature import DTYPES, Signature
from ...core.torch_tools import is_tensor
from ...validators.feeds import NamedFeed, describe_named_feed
from ...validators.metrics import is_numeric
from ..python_pipeline import load_user_function, restore_globals

if TYPE_CHECKING:
    from collections.abc import Sequence

RunPart: TypeAlias = Callable[[str, Feed], Outputs]
"""Runs the part of this name on arrays by the names of its inputs."""

_UNNAMED = re.compile(r"output\.\d+")  # what modelc calls the outputs of a tuple
_OUTPUT = "output"  # what modelc calls the only output of a function
_VARIADIC = (ParameterKind.REST, ParameterKind.REST_BY_NAME)


class PartCall:
    """A part as the user's function calls it."""

    def __init__(self, name: str, takes: Sequence[Parameter], run: RunPart) -> None:
        self._name, self._run = name, run
        self._names = [one.name for one in takes if one.kind not in _VARIADIC]
        self._takes_more = any(one.kind is ParameterKind.REST_BY_NAME for one in takes)

    def __call__(self, *arrays: object, **named: object) -> Array | tuple[Array, ...] | Outputs:
        """Run the part once.

        Raises:
            CheckpointError: an argument is not an array, or has no parameter; or eager raises.
            RunnerError: the artifact raises.
        """
        feed = self._bind(arrays, named)
        outputs = self._run(self._name, feed)
        if len(outputs) == 1:
            return next(iter(outputs.values()))
        if all(map(_UNNAMED.fullmatch, outputs)):
            return tuple(outputs.values())
        return dict(outputs)

    def _bind(self, arrays: Sequence[object], named: Mapping[str, object]) -> Feed:
        listed = ", ".join(self._names) or "none"
        if len(arrays) > len(self._names):
            raise self._call_error(f"got {len(arrays)} arguments by position, it takes {listed}")
        given = dict(zip(self._names, arrays, strict=False))
        for key, value in named.items():
            if key in given:
                raise self._call_error(f"got {key!r} by position and by name")
            if key not in self._names and not self._takes_more:
                raise self._call_error(f"got {key!r}, it takes {listed}")
            given[key] = value
        order = [*(name for name in self._names if name in given), *given]
        return {key: self._check_array(key, given[key]) for key in dict.fromkeys(order)}

    def _check_array(self, key: str, value: object) -> Array:
        """Return a copy in C order, as the user's function may write into its array later."""
        import numpy as np

        if isinstance(value, (np.ndarray, np.generic)):
            array = np.array(value, order="C")
            if array.dtype.name in DTYPES:
                return array
            raise self._call_error(f"got {key!r} as {array.dtype}, which no input can be")
        what = type(value).__name__
        hint = "pass numpy arrays: np.array([step], np.int64) for a number"
        if value is None:
            hint = "leave the argument out where it is None"
        elif is_tensor(value):
            hint = f"pass {key}.numpy()"
        raise self._call_error(f"got {key!r} as {what}, not as a numpy array", hint)

    def _call_error(self, problem: str, hint: str = "") -> CheckpointError:
        return CheckpointError(
            f"part {self._name!r} {problem}",
            hint=hint or "call it as its method is declared",
            option="compose",
            code=ErrorCode.INVALID_VALUE,
        )


class _Parts(dict[str, PartCall]):
    """The parts by name, as the user's function gets them."""

    def __missing__(self, name: object) -> PartCall:
        raise CheckpointError(
            f"--compose asks for the part {name!r}, the parts are {', '.join(self)}",
            hint=Hint("add ", Option("part", f"{name}=METHOD")),
            option="part",
            code=ErrorCode.NOT_FOUND,
        )


class ComposeFunction:
    """The function `package.module:function` of the user."""

    def __init__(self, spec: str) -> None:
        """Import the function.

        Raises:
            UsageError: there is no such function.
            CheckpointError: its module raises.
        """
        hint = "name a function of the parts and the inputs that returns the outputs"
        self._function, self.sha256 = load_user_function(spec, "--compose", hint)
        self.spec = spec

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of its inputs: those of its parameters after the first."""
        return tuple(inspect.signature(self._function).parameters)[1:]

    def check_inputs(self, signature: Signature) -> None:
        """Check that the inputs can be passed to it by name.

        Raises:
            UsageError: they cannot.
        """
        names = [spec.name for spec in signature.inputs]
        try:
            inspect.signature(self._function).bind({}, **dict.fromkeys(names))
        except TypeError as error:
            raise UsageError(
                f"--compose {self.spec} takes the parts and {', '.join(self.takes) or 'no input'}, "
                f"the inputs are {', '.join(names)}",
                hint="give one --input for each parameter after the first; those of a part are "
                "named PART.INPUT",
                option="compose",
                code=ErrorCode.UNKNOWN_INPUT,
            ) from error

    def run(self, parts: Mapping[str, PartCall], feed: NamedFeed) -> Outputs:
        """Run it on copies of a feed's arrays, and return its outputs by name.

        Raises:
            CheckpointError: it raises, or does not return arrays.
            ModelcError: as a part raises.
        """
        import torch

        arrays = {name: array.copy() for name, array in feed.arrays.items()}
        try:
            with restore_globals(), torch.random.fork_rng(devices=[]):
                found = self._function(_Parts(parts), **arrays)
        except ModelcError:
            raise
        except (Exception, SystemExit) as error:
            raise self.error(
                f"raised {type(error).__name__}{locate_user_code(error)} on feed "
                f"{describe_named_feed(feed)}: {first_line(error)}",
                "it gets the parts by name, as parts['NAME'](array), and numpy arrays as inputs",
            ) from error
        return self._read_outputs(found)

    def error(self, problem: str, hint: str | Hint) -> CheckpointError:
        """Return the error for a function that does something else than compose."""
        return CheckpointError(
            f"--compose {self.spec} {problem}",
            hint=hint,
            option="compose",
            code=ErrorCode.COMPOSE_FAILED,
        )

    def _read_outputs(self, value: object) -> Outputs:
        import numpy as np

        found: Mapping[Any, object] = {_OUTPUT: value}
        if isinstance(value, Mapping):
            found = value
        elif isinstance(value, (tuple, list)):
            found = {f"{_OUTPUT}.{number}": one for number, one in enumerate(value)}
        outputs: Outputs = {}
        for name, one in found.items():
            if not isinstance(one, (np.ndarray, np.generic)) or not is_numeric(np.asarray(one)):
                raise self.error(
                    f"returned a {type(one).__name__} as {name!r}, not a numpy array of numbers",
                    "return a dict of numpy arrays by name, or one array",
                )
            outputs[str(name)] = np.array(one)
        if not outputs:
            raise self.error("returned nothing", "return a dict of numpy arrays, or one array")
        return outputs
