"""`--custom-op NS::OP=PKG.MOD:FN`: the functions of the user's that write operators in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..core.errors import UsageError
from ..sources.factory import import_object


def load_functions(custom_ops: Mapping[str, str]) -> dict[str, Callable[..., object]]:
    """The function that each `package.module:fn` names, by operator.

    Raises:
        UsageError: there is none, or it cannot be called.
    """
    return {name: _load_function(spec) for name, spec in custom_ops.items()}


def _load_function(spec: str) -> Callable[..., object]:
    found = import_object(spec, "--custom-op")
    if not callable(found):
        raise UsageError(
            f"--custom-op {spec} is of type {type(found).__name__}, which cannot be called",
            hint="name a function that writes the operator: def fn(op, x): return op.Relu(x)",
            option="custom-op",
        )
    return found
