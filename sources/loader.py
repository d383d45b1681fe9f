"""Sample inputs from the user's own code: a DataLoader, a list, or a function that yields them."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ..core.arrays import to_array
from ..core.call import Kind, Parameter
from ..core.contract import Array
from ..core.errors import Hint, Option, UsageError, first_line
from ..core.loading import Named, items_of, named, watched
from ..core.tree import leaves
from .factory import import_object, use_fixed_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Sample inputs from the user's own code: a DataLoader, a list, or a function that yields them.


_SAMPLES_OPTION = "--samples"
_SHOWN_NAMES = 5  # parts without an input that a note lists
# optional parameters that take what a model learns from: fed, they would add a loss to the outputs
_LABEL_NAME = re.compile(r"(\w*_)?(labels?|targets?|positions_label)|(start|end)_positions")


@dataclass(frozen=True, kw_only=True)
class LoaderSamples:
    """What a loader gave: arrays by input name, an item each, and notes on what was left out."""

    items: tuple[dict[str, Array], ...]
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The SHA-256 of the first item: names, dtypes, shapes and bytes."""
        import numpy as np

        digest = hashlib.sha256()
        for name, array in self.items[0].items():
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def read_loader(
    spec: str,
    takes: Sequence[Parameter],
    *,
    inputs: Sequence[str] = (),
    settled: bool = False,
    most: int = 1,
) -> LoaderSamples:
    """The first `most` items of the loader `package.module:name`, drawn from seed 0.

    A mapping gives what is a parameter, a tuple goes to the required parameters in order.

    Args:
        spec: where it is.
        takes: the parameters of what the model is called by.
        inputs: names that are inputs beside these.
        settled: `inputs` are all there are, in order.
        most: how many items to take.

    Raises:
        UsageError: there is no such loader, it raised, or an item lacks an input.
        CheckpointError: the module that holds it raised while it was imported.
    """
    with _fix_seeds():
        items = items_of(spec, lambda name: import_object(name, _SAMPLES_OPTION))
        taken = list(islice(watched(items, spec), most))
    if not taken:
        raise UsageError(f"the loader {spec} gives nothing", hint="yield at least one item")
    names = tuple(inputs) if settled else _input_names(taken[0], takes, inputs, spec)
    found = [_item_arrays(item, names, f"{spec} item {index}") for index, item in enumerate(taken)]
    surplus = dict.fromkeys(name.partition(".")[0] for _, rest in found for name in rest)
    listed = ", ".join(
        [*list(surplus)[:_SHOWN_NAMES], *(["..."] if len(surplus) > _SHOWN_NAMES else [])]
    )
    verb = "are" if len(surplus) > 1 else "is"
    taken_in = f"{names[0]} is the only input" if len(names) == 1 else f"inputs: {', '.join(names)}"
    told = f"{listed} of each item of {spec} {verb} left out: {taken_in}"
    return LoaderSamples(
        items=tuple(arrays for arrays, _ in found), notes=(told,) if surplus else ()
    )


@contextmanager
def _fix_seeds() -> Iterator[None]:
    """Shuffle and augment the same each time, so that a run can be judged again."""
    import numpy as np

    plain, arrays = random.getstate(), np.random.get_state()  # the loader may use it
    random.seed(0)
    np.random.seed(0)
    try:
        with use_fixed_seed():
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)


def _input_names(
    item: object, takes: Sequence[Parameter], asked: Sequence[str], spec: str
) -> tuple[str, ...]:
    """The inputs that the first item gives, in the order of the parameters."""
    plain = [p for p in takes if p.kind not in (Kind.REST, Kind.REST_BY_NAME) and not p.constant]
    heads = {name.partition(".")[0] for name in asked}
    if asked and not heads & {p.name for p in plain}:
        return tuple(asked)  # they are bound by order
    first = item[0] if isinstance(item, (tuple, list)) and item else None
    mapping = first if isinstance(first, Mapping) else item
    if not isinstance(mapping, Mapping):
        wanted = [p.name for p in plain if p.required or p.name in heads]
        return tuple(wanted or [p.name for p in plain[:1]] or ["x"])
    held = [
        ".".join(path) for path, leaf in leaves(mapping, _is_array_like) if _is_array_like(leaf)
    ]
    kept = {
        p.name for p in plain if p.required or p.name in heads or not _LABEL_NAME.fullmatch(p.name)
    }
    names = [n for p in plain if p.name in kept for n in held if n.partition(".")[0] == p.name]
    if not names and any(p.kind is Kind.REST_BY_NAME for p in takes):
        names = held
    if not names:
        raise UsageError(
            f"the items of {spec} hold {', '.join(held) or 'no arrays'}; the model takes "
            f"{', '.join(p.name for p in plain)}",
            hint=Hint(
                "name the parts as the model's parameters, or say which are inputs with ",
                Option("input"),
            ),
            option="input",
        )
    return tuple(dict.fromkeys([*names, *asked]))


def _is_array_like(value: object) -> bool:
    import numpy as np
    import torch

    return isinstance(value, (np.ndarray, np.generic, torch.Tensor))


def _item_arrays(
    item: object, names: Sequence[str], where: str
) -> tuple[dict[str, Array], tuple[str, ...]]:
    found = named(item, names, _is_array_like)
    if found is None and _is_array_like(item):
        # a lone array beside several inputs: only a call that requires no more can take it
        found = Named(parts={})
    parts = {} if found is None else found.parts
    lacking = [name for name in names if name not in parts]
    if lacking or found is None:
        held = ", ".join([*parts, *(found.surplus if found else ())]) or f"a {type(item).__name__}"
        raise UsageError(
            f"{where} lacks {', '.join(lacking) or ', '.join(names)}; it holds {held}",
            hint="give dicts by input name, or tuples in the order of the inputs",
        )
    return {name: _item_array(parts[name], f"{name} of {where}") for name in names}, found.surplus


def _item_array(value: object, what: str) -> Array:
    """As numpy, half precision as float32."""
    import numpy as np
    import torch

    if not _is_array_like(value):
        raise UsageError(
            f"{what} is a {type(value).__name__}, not an array or a tensor",
            hint="give tensors or numpy arrays",
        )
    try:
        array: Array = to_array(value) if isinstance(value, torch.Tensor) else np.array(value)
    except (RuntimeError, NotImplementedError, TypeError) as error:  # meta, nested, quantized
        raise UsageError(
            f"{what} is a tensor that holds no plain array: {first_line(error, limit=80)}",
            hint="give dense tensors",
        ) from error
    return array.astype(np.float32) if array.dtype == np.float16 else array
