"""Models that cast to half precision in their own code: what they then meet must be half too."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Models that cast to half precision in their own code: what they then meet must be half too.


_HALVES = frozenset({"half", "float16", "bfloat16"})
_LIBRARIES = frozenset({"torch", "torchvision", "transformers", "timm"})  # follow their weights


def find_half_cast(module: torch.nn.Module) -> str | None:
    """Where forward of a module of the user's casts to half: `file.py:12`; None where none does.

    Casts to the dtype of something else (`x.to(self.weight.dtype)`) are none.
    """
    for kind in dict.fromkeys(type(part) for part in module.modules()):
        forward = getattr(kind, "forward", None)
        if kind.__module__.partition(".")[0] in _LIBRARIES or not inspect.isfunction(forward):
            continue
        line = _first_cast_line(forward)
        if line is not None:
            return f"{forward.__code__.co_filename.rpartition('/')[2]}:{line}"
    return None


def _first_cast_line(function: object) -> int | None:
    """The line of a function's source that casts; None also where there is no source."""
    try:
        lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]  # a function
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return None
    found = [
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_half_cast(node)
    ]
    return min(found) + first - 1 if found else None


def _is_half_cast(call: ast.Call) -> bool:
    """Whether it is `x.half()`, `x.bfloat16()`, or `x.to(torch.float16)` and its like."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in {"half", "bfloat16"}:
        return not call.args
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return call.func.attr in {"to", "type"} and any(
        isinstance(one, ast.Attribute) and one.attr in _HALVES for one in given
    )
