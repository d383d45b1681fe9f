"""Read an ensemble of modelc.toml: steps that a server runs, and the tensors between them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..core.errors import ErrorCode, UsageError, unknown_name_error
from ..serving.ensembles import EnsembleSpec, EnsembleStep
from ..serving.version_folders import describe_name_fault

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_EXAMPLE = 'steps = [{ model = "digits", inputs = { x = "image" }, outputs = { y = "scores" } }]'
_KEYS, _STEP_KEYS = ("steps", "outputs"), ("model", "inputs", "outputs")


def read_ensemble(name: str, table: object) -> EnsembleSpec:
    """Read the table `[ensembles.NAME]`.

    Raises:
        UsageError: the name is not that of a folder, or a part has another form.
    """
    if not _NAME.fullmatch(name):
        raise _error(f"{name[:80]!r} is not the name of a folder", "use letters, digits, '-', '_'")
    if fault := describe_name_fault(name):
        raise _error(f"{name} {fault}", "give the ensemble another name")
    if not isinstance(table, Mapping):
        raise _error(f"{name} is not a table", f"write [ensembles.{name}] on its own line")
    _check_keys(table, _KEYS)
    steps = table.get("steps")
    if not isinstance(steps, list) or not steps:
        raise _error(f"{name} has no steps", f"add a line: {_EXAMPLE}")
    return EnsembleSpec(
        name=name,
        steps=tuple(_read_step(step) for step in steps),
        outputs=_read_names(table.get("outputs", [])),
    )


def _read_step(step: object) -> EnsembleStep:
    if not isinstance(step, Mapping):
        raise _error("a step is not a table", f"write it as in {_EXAMPLE}")
    _check_keys(step, _STEP_KEYS)
    model = step.get("model")
    if not isinstance(model, str) or not model:
        raise _error("a step has no model", f"name one, as in {_EXAMPLE}")
    return EnsembleStep(
        model=model,
        inputs=_read_map(model, "inputs", step.get("inputs")),
        outputs=_read_map(model, "outputs", step.get("outputs")),
    )


def _read_map(model: str, key: str, found: object) -> dict[str, str]:
    texts = isinstance(found, Mapping) and all(isinstance(one, str) for one in found.values())
    if not isinstance(found, Mapping) or not texts or not found:
        raise _error(
            f"the {key} of {model} do not map its tensors to names",
            f"write them as in {_EXAMPLE}",
        )
    return {str(name): str(tensor) for name, tensor in found.items()}


def _read_names(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _error("outputs is not a list of names", 'write outputs = ["scores"]')
    return tuple(map(str, found))


def _check_keys(table: Mapping[str, object], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise unknown_name_error("key", key, known)


def _error(message: str, hint: str) -> UsageError:
    return UsageError(message, hint=hint, code=ErrorCode.INVALID_VALUE)
