"""The loaded module, and what a checkpoint records of its inputs and of the factory's arguments."""

from __future__ import annotations

import json
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Mapping
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

if TYPE_CHECKING:
    Module: TypeAlias = torch.nn.Module
else:
    Module: TypeAlias = Any  # a record's fields are read by type at run time, without torch


@dataclass(frozen=True, kw_only=True)
class LoadedModule:
    """An eager module in eval mode on the CPU.

    `kind` is the checkpoint's, or `pickle` where a pickled object was allowed. `known` is what the
    checkpoint itself says of its inputs, in order; where they are `assumed`, the model takes others
    as well. `takes` are the parameters of what is called, `call` its name, `drop` names of outputs
    to leave out.
    """

    kind: str
    module: Module
    takes: tuple[Parameter, ...]
    known: dict[str, InputSpec] = field(default_factory=dict)
    assumed: bool = False
    call: str = "forward"
    notes: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in order, without *args and **kwargs."""
        return tuple(p.name for p in self.takes if not p.kind.value.startswith("*"))


# What a checkpoint says of its inputs, beside what the user says.


def merge_known_inputs(
    loaded: LoadedModule, patterns: Sequence[InputPattern]
) -> dict[str, InputSpec]:
    """What is known, where that is only assumed in the form that the user gives it.

    An input that the user states whole (dtype and every dim) then stands in for the known one, or
    beside it; its values stay as they are known unless others are given. A range that is given to a
    dim once holds in all known inputs. What the checkpoint's own program says is left as it is: the
    user cannot change it.

    Raises:
        UsageError: two inputs contradict each other.
    """
    if not loaded.assumed:
        return loaded.known
    ranges = {dim.name: dim for one in patterns for dim in one.dims or () if dim and dim.bounded}
    known = {name: _with_ranges(spec, ranges) for name, spec in loaded.known.items()}
    whole = [p for p in patterns if p.whole]
    # What follows a dim may follow one that is known alone: it is settled with all the others.
    plain = [replace(p, values=None) if p.values and p.values.follows else p for p in whole]
    stated = {spec.name: spec for spec in merge_inputs(plain, {}).inputs} if whole and known else {}
    for name, spec in stated.items():
        usual = known.get(name)
        values = spec.values or (usual.values if usual else None)
        known[name] = replace(spec, values=values)
    return known


def _with_ranges(spec: InputSpec, ranges: Mapping[str | None, Dim]) -> InputSpec:
    """The input with the ranges that are given to its named dims."""
    dims = (dim if dim.name is None else ranges.get(dim.name, dim) for dim in spec.dims)
    return replace(spec, dims=tuple(dims))


# The inputs that modelc itself recorded in an archive of torch's when it made it.


_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError)
_MAX_RECORD_BYTES = 1 << 20  # bytes; a record is a few hundred


def read_recorded_inputs(path: Path) -> dict[str, InputSpec]:
    """The input specs by name, in order; nothing where the archive has no readable record."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [i for i in archive.infolist() if i.filename.endswith(f"/extra/{RECORD}")]
            if not entries or entries[0].file_size > _MAX_RECORD_BYTES:
                return {}
            text = archive.read(entries[0])
        specs = json.loads(text).get("signature", [])
        signature = merge_inputs([parse_input(str(spec)) for spec in specs], {})
    except (ValueError, AttributeError, TypeError, RecursionError, UsageError, *_ARCHIVE_ERRORS):
        return {}  # somebody else's record: the archive's own types say what they can
    return {spec.name: spec for spec in signature.inputs}


# The arguments that a Lightning checkpoint records beside its weights, for the factory.


HPARAMS, _NAME_KEY = "hyper_parameters", "hparams_name"  # as Lightning writes them
_LIGHTNING_MARK = b"pytorch-lightning_version"
_HEAD_BYTES = 1 << 20  # bytes of the pickle that are looked at for it
_PLAIN_TYPES = (str, int, float, bool, type(None))


@dataclass(frozen=True, kw_only=True)
class HyperParameters:
    """What the module was built with when it was trained.

    `name` is the parameter that takes all of it as one dict, where there is such a one.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    name: str = ""

    def arguments(
        self, signature: inspect.Signature, given: Mapping[str, str]
    ) -> dict[str, object]:
        """Those that a factory of this signature takes and the user did not give.

        Raises:
            UsageError: one of them is no plain data.
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
    """The hyper-parameters in what a checkpoint file holds; none where it is not Lightning's."""
    if not isinstance(found, Mapping):
        return HyperParameters()
    values = found.get(HPARAMS)
    values = vars(values) if isinstance(values, Namespace) else values
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        return HyperParameters()
    name = found.get(_NAME_KEY)
    return HyperParameters(values=values, name=name if isinstance(name, str) else "")


def is_lightning(path: Path) -> bool:
    """Whether the file, which may not be opened, says that Lightning wrote it."""
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
    """That it is numbers, text, lists and dicts of them: an object may be anything.

    Raises:
        UsageError: it is not.
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
        f"{HPARAMS} of the checkpoint hold {name}, a {type(value).__name__}: no plain data",
        hint=Hint(
            "give it with ",
            Option("model-arg", f"{name.partition('.')[0]}=VALUE"),
            ", or name a factory that builds the module without it",
        ),
        option="model-arg",
    )
