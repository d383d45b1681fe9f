"""The arguments that a Lightning checkpoint records beside its weights, for the factory."""

from __future__ import annotations

import zipfile
import zlib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.errors import Hint, Option, UsageError

if TYPE_CHECKING:
    import inspect
    from pathlib import Path

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
