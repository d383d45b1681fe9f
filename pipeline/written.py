"""What an order says of its inputs, looked at before anything is loaded."""

from __future__ import annotations

import difflib

from ..core.grammar import parse_input
from ..core.names import unknown
from ..core.typos import check_typos
from .order import Source


def check_input_specs(source: Source) -> None:
    """Refuse what is wrong whatever the checkpoint holds: syntax, and misspelt names of dims.

    Names are looked at where all dims are written and a factory builds the model: a sample or a
    checkpoint with its own code may name more of them.

    Raises:
        UsageError: `--input` or `--static` is wrong.
    """
    patterns = [parse_input(text) for text in source.inputs]
    whole = all(pattern.whole for pattern in patterns)
    if source.model is None or source.samples is not None or not whole:
        return
    dims = [dim for pattern in patterns for dim in pattern.dims or () if dim is not None]
    check_typos(dims, ())
    names = [name for dim in dims if dim.dynamic for name in (dim.free.name, dim.name) if name]
    for name in source.static:
        if name not in names and difflib.get_close_matches(name, names, n=1):
            raise unknown("dim in --static:", name, names)
