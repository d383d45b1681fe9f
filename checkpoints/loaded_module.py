"""The loaded module, its recorded inputs, and recorded arguments of the factory."""

from __future__ import annotations

import json
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.call import Parameter
from ..core.contract import RECORD
from ..core.errors import Hint, Option, UsageError
from ..core.grammar import parse_input
from ..core.signature import InputPattern, InputSpec, merge_inputs

if TYPE_CHECKING:
    import inspect
    from collections.abc import Sequence

    import torch

    from ..core.dims import Dim

    Module: TypeAlias = torch.nn.Module
else:
    Module: TypeAlias = Any  # a record's fields are read by type at run time, without torch


@dataclass(frozen=True, kw_only=True)
class LoadedModule:
    """An eager module in eval mode on the CPU.

    `kind` is the checkpoint's, or `pickle` for an unpickled object. `known` are the inputs that the
    checkpoint states, in order; if they are `assumed`, the model accepts others as well. `takes`
    are the parameters of the called method `call`; `drop` are names of outputs to omit. A model
    without a module has an `opener` of what answers in its place. `positions` are those of a text,
    with its past, if the checkpoint states them.
    """

    kind: str
    module: Module
    takes: tuple[Parameter, ...]
    known: dict[str, InputSpec] = field(default_factory=dict)
    assumed: bool = False
    call: str = "forward"
    notes: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    opener: Callable[[Any], Any] | None = None
    positions: int | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in order, without *args and **kwargs."""
        return tuple(p.name for p in self.takes if not p.kind.value.startswith("*"))


# What a checkpoint says of its inputs, beside what the user says.


def merge_known_inputs(
    loaded: LoadedModule, patterns: Sequence[InputPattern]
) -> dict[str, InputSpec]:
    """Return the known inputs, adjusted to the user's patterns if they are only assumed.

    An input with dtype and every dim replaces the known one or is added; known values stay unless
    others are given. The range of a dim applies to all known inputs. The inputs of a program cannot
    be changed.

    Raises:
        UsageError: two inputs contradict each other.
    """
    if not loaded.assumed:
        return loaded.known
    ranges = {dim.name: dim for one in patterns for dim in one.dims or () if dim and dim.bounded}
    known = {name: _with_ranges(spec, ranges) for name, spec in loaded.known.items()}
    whole = [p for p in patterns if p.whole]
    # Values relative to a dim may depend on known dims: they are resolved with all inputs.
    plain = [replace(p, values=None) if p.values and p.values.follows else p for p in whole]
    stated = {spec.name: spec for spec in merge_inputs(plain, {}).inputs} if whole and known else {}
    for name, spec in stated.items():
        usual = known.get(name)
        values = spec.values or (usual.values if usual else None)
        known[name] = replace(spec, values=values)
    return known


def _with_ranges(spec: InputSpec, ranges: Mapping[str | None, Dim]) -> InputSpec:
    """Return the input with the given ranges of its named dims."""
    dims = (dim if dim.name is None else ranges.get(dim.name, dim) for dim in spec.dims)
    return replace(spec, dims=tuple(dims))


# The inputs that modelc itself recorded in an archive of torch's when it made it.


_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError)
_MAX_RECORD_BYTES = 1 << 20  # bytes; a record has a few hundred


def read_recorded_inputs(path: Path) -> dict[str, InputSpec]:
    """Return the inputs that modelc recorded in an archive, by name; empty without a record."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [i for i in archive.infolist() if i.filename.endswith(f"/extra/{RECORD}")]
            if not entries or entries[0].file_size > _MAX_RECORD_BYTES:
                return {}
            text = archive.read(entries[0])
        specs = json.loads(text).get("signature", [])
        signature = merge_inputs([parse_input(str(spec)) for spec in specs], {})
    except (ValueError, AttributeError, TypeError, RecursionError, UsageError, *_ARCHIVE_ERRORS):
        return {}  # not a record of modelc
    return {spec.name: spec for spec in signature.inputs}


# The arguments that a Lightning checkpoint records beside its weights, for the factory.


HPARAMS, _NAME_KEY = "hyper_parameters", "hparams_name"  # as Lightning writes them
_LIGHTNING_MARK = b"pytorch-lightning_version"
_HEAD_BYTES = 1 << 20  # bytes of the pickle to search for it
_PLAIN_TYPES = (str, int, float, bool, type(None))


@dataclass(frozen=True, kw_only=True)
class HyperParameters:
    """The arguments that built the module for training.

    `name` is the parameter that takes all of them as one dict, if any.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    name: str = ""

    def arguments(
        self, signature: inspect.Signature, given: Mapping[str, str]
    ) -> dict[str, object]:
        """Return those that the factory accepts and the user did not give.

        Raises:
            UsageError: one of them is not plain data.
        """
        if self.name in signature.parameters and self.name not in (*given, *self.values):
            _check_plain(self.name, dict(self.values))
            return {self.name: dict(self.values)}
        rest = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        named = {
            name
            for name, p in signature.parameters.items()
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }
        found = {
            name: value
            for name, value in self.values.items()
            if name not in given and (rest or name in named)
        }
        for name, value in found.items():
            _check_plain(name, value)
        return found


def find_hyper_parameters(found: object) -> HyperParameters:
    """Return the hyper-parameters of a Lightning checkpoint; empty for others."""
    if not isinstance(found, Mapping):
        return HyperParameters()
    values = found.get(HPARAMS)
    values = vars(values) if isinstance(values, Namespace) else values
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        return HyperParameters()
    name = found.get(_NAME_KEY)
    return HyperParameters(values=values, name=name if isinstance(name, str) else "")


def is_lightning(path: Path) -> bool:
    """Whether Lightning wrote the file, without unpickling it."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((n for n in archive.namelist() if n.endswith("/data.pkl")), None)
            if name is None:
                return False
            with archive.open(name) as data:
                return _LIGHTNING_MARK in data.read(_HEAD_BYTES)
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError, EOFError, zlib.error):
        return False


def _check_plain(name: str, value: object) -> None:
    """Check that the value consists of numbers, text, lists and dicts.

    Raises:
        UsageError: it does not.
    """
    if isinstance(value, _PLAIN_TYPES):
        return
    if isinstance(value, Mapping):
        for key, child in value.items():
            _check_plain(f"{name}.{key}", child)
        return
    if isinstance(value, (list, tuple)):
        for child in value:
            _check_plain(name, child)
        return
    raise UsageError(
        f"{HPARAMS} of the checkpoint contain {name}, a {type(value).__name__}: not plain data",
        hint=Hint(
            "give it with ",
            Option("model-arg", f"{name.partition('.')[0]}=VALUE"),
            ", or name a factory that builds the module without it",
        ),
        option="model-arg",
    )
