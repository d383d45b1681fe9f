"""`--static DIM` in words: what is fixed, and at which size."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.signature import Signature


def describe_static_dims(signature: Signature, names: Iterable[str]) -> str:
    """A note on the dims that are fixed at their opt sizes, those that follow from them too.

    Raises:
        UsageError: a name is no dim that varies.
    """
    left = signature.fixed_at_opt(names).dynamic_dims
    fixed = {name: dim for name, dim in signature.dynamic_dims.items() if name not in left}
    told = ", ".join(f"{name} at {dim.opt} (was {dim})" for name, dim in fixed.items())
    return f"fixed by --static: {told}"
