"""Plant faults in copies of model files, to measure what a verdict detects.

What is planted and how its place is drawn is the same for all formats; each supplies access to its
graph as an `EditableGraph`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeAlias

from ..core.contract import Array
from ..core.signature import Signature
from ..core.target_extensions import FaultKind, PlantedFault

FACTOR = 1.5  # for a scalar, an attribute, and an output at one size
SMALL_NUMBER = 1e-3  # a constant addend up to this is taken for an epsilon
_EPSILON_FACTOR = 1000.0
_FaultChange: TypeAlias = tuple[str, str]  # the place, and the change made there
_ArrayChange: TypeAlias = Callable[[Array, Random], tuple[Array, str] | None]
_MAX_TRIES = 20  # attempts to draw two rows
_QUARTER = 0x40  # of the 256 steps of 8 bits
_OTHER_WORDS = {  # of attributes of type string
    "none": "tanh", "tanh": "none", "ERF": "TANH", "TANH": "ERF",
    "DCR": "CRD", "CRD": "DCR", "blocks_first": "depth_first", "depth_first": "blocks_first",
    "half_pixel": "asymmetric", "pytorch_half_pixel": "asymmetric",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SizeFault:
    """A size of an input's axis at which, or from which on, an output is made wrong.

    `sizes` are the sizes of the free dims that give that size.
    """

    input: str
    axis: int
    size: int
    dim: str
    sizes: Mapping[str, int]
    onward: bool

    @property
    def where(self) -> str:
        """Describe the sizes at which it acts."""
        return f"{self.dim} is {self.size}{' or more' if self.onward else ''}"


def _draw_size(signature: Signature, random: Random) -> SizeFault | None:
    """Draw a size of a dynamic dim, alone or with all above it; None if no dim is dynamic."""
    places = [
        (spec.name, axis, dim)
        for spec in signature.inputs
        for axis, dim in enumerate(spec.dims)
        if dim.dynamic and not dim.is_sum and dim.free.low < dim.free.high
    ]
    if not places:
        return None
    name, axis, dim = random.choice(places)
    sizes = {dim.free.name or "": random.randint(dim.free.low, dim.free.high)}
    return SizeFault(
        input=name,
        axis=axis,
        size=dim.size(sizes),
        dim=dim.name or "",
        sizes=sizes,
        onward=random.random() < 1 / 2,
    )


def _alter_element(array: Array, random: Random) -> tuple[Array, str] | None:
    """Copy an array with one element shifted by the array's RMS, or 8-bit integers by 64.

    Returns None if that changes nothing: an array without elements, of zeros, or of another dtype.
    """
    import numpy as np

    if not array.size:
        return None
    flat = array.copy().reshape(-1)
    at = random.randrange(flat.size)
    index = ", ".join(str(int(i)) for i in np.unravel_index(at, array.shape))
    if array.dtype in (np.int8, np.uint8):
        flat[at] ^= flat.dtype.type(_QUARTER)
        return flat.reshape(array.shape), f"element [{index}] off by {_QUARTER}"
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        return None
    step = float(np.sqrt(np.mean(np.square(array.astype(np.float64)))))
    if not np.isfinite(step) or step == 0.0:
        return None
    flat[at] += np.asarray(step, flat.dtype)
    return flat.reshape(array.shape), f"element [{index}] off by {step:.3g}"


def _swap_rows(array: Array, random: Random) -> tuple[Array, str] | None:
    """Copy an array with two different entries of the first axis swapped."""
    import numpy as np

    if array.ndim == 0 or len(array) < 2:  # noqa: PLR2004 - two to swap
        return None
    for _ in range(_MAX_TRIES):
        one, other = random.sample(range(len(array)), 2)
        if not np.array_equal(array[one], array[other]):
            copy = array.copy()
            copy[[one, other]] = array[[other, one]]
            return copy, f"rows {one} and {other} swapped"
    return None


@dataclass(frozen=True, kw_only=True)
class EditableConstant:
    """A constant of a model in memory."""

    name: str
    read: Callable[[], Array]
    write: Callable[[Array], object]


def _alter_constant(
    constants: Sequence[EditableConstant], change: _ArrayChange, random: Random
) -> _FaultChange | None:
    """Alter one of the constants, each as likely; None if none can be changed."""
    for constant in random.sample(constants, len(constants)):
        found = change(constant.read(), random)
        if found is not None:
            constant.write(found[0])
            return constant.name, found[1]
    return None


def _scale_constant(
    scalars: Iterable[EditableConstant], random: Random, *, small: bool
) -> _FaultChange | None:
    """Scale a scalar other than zero; `small` selects those that may be an epsilon."""
    found = []
    for scalar in scalars:
        value = float(scalar.read().reshape(-1)[0])
        if value and isfinite(value) and (abs(value) <= SMALL_NUMBER) == small:
            found.append((scalar, value))
    if not found:
        return None
    scalar, value = random.choice(found)
    times = _EPSILON_FACTOR if small else FACTOR
    array = scalar.read()
    scalar.write((array * array.dtype.type(times)).astype(array.dtype))
    return scalar.name, f"{value:.4g} -> {value * times:.4g}"


@dataclass(frozen=True, kw_only=True)
class EditableAttribute:
    """An attribute of a node of a model in memory; that of paddings has them before and after."""

    node: str  # its operator and name
    name: str  # empty for an argument without one
    value: bool | float | str | tuple[list[int], list[int]]
    write: Callable[[Any], object]


@dataclass(frozen=True, kw_only=True)
class SwappableInputs:
    """Two inputs of a node that do not commute.

    They hold floats: integers may be indices, which not every runtime checks.
    """

    node: str
    places: tuple[int, int]
    swap: Callable[[], object]


class EditableGraph(Protocol):
    """A model in memory in which one fault is planted; lists are in the same order for one file."""

    def has_open_loop(self) -> bool:
        """Return whether a loop's end is computed in its body, so that a fault may prevent it."""
        ...

    def constants(self, *, scalar: bool) -> list[EditableConstant]:
        """Return float constants of one element, or constants of floats and bytes with more."""
        ...

    def swappable_inputs(self) -> list[SwappableInputs]:
        """Return the pairs of inputs, one of each node that has one."""
        ...

    def attributes(self) -> list[EditableAttribute]:
        """Return the attributes that change what is computed, one of each node that has one."""
        ...

    def epsilons(self) -> list[EditableAttribute]:
        """Return the epsilons of normalizations."""
        ...

    def float_outputs(self) -> Sequence[Any]:
        """Return the computed outputs that hold floats."""
        ...

    def multiply_output(self, output: Any, fault: SizeFault) -> str | None:
        """Multiply an output at one size of an input, and name it; None without that input."""
        ...

    def save(self, copy: Path) -> None:
        """Write the model."""
        ...


def plant_in_graph(
    graph: EditableGraph, kind: FaultKind, random: Random, signature: Signature, copy: Path
) -> PlantedFault | None:
    """Plant a fault of this kind and save the copy; None if the graph has no place for it.

    None, too, for a model with a conditional loop, which a fault might keep from ending.
    """
    if graph.has_open_loop():
        return None
    size = _draw_size(signature, random) if kind is FaultKind.SIZE else None
    if kind is FaultKind.SIZE:
        done = None if size is None else _alter_at_size(graph, size, random)
    else:
        done = _CHANGES[kind](graph, random)
    if done is None:
        return None
    graph.save(copy)
    return PlantedFault(
        path=copy,
        place=done[0],
        change=done[1],
        sizes=size.sizes if size else {},
        where=size.where if size else "",
    )


def _alter_weight(graph: EditableGraph, random: Random) -> _FaultChange | None:
    return _alter_constant(graph.constants(scalar=False), _alter_element, random)


def _swap(graph: EditableGraph, random: Random) -> _FaultChange | None:
    """Swap two inputs of an operator, or two rows of a weight."""
    pairs = graph.swappable_inputs()
    if pairs and random.random() < 1 / 2:
        pair = random.choice(pairs)
        pair.swap()
        return pair.node, f"inputs {pair.places[0]} and {pair.places[1]} swapped"
    return _alter_constant(graph.constants(scalar=False), _swap_rows, random)


def _alter_number(graph: EditableGraph, random: Random) -> _FaultChange | None:
    """Alter an attribute, or a scalar that an operator reads."""
    found = graph.attributes()
    scaled = None
    if not found or random.random() < 1 / 2:
        scaled = _scale_constant(graph.constants(scalar=True), random, small=False)
    if scaled is None and found:
        attribute = random.choice(found)
        return attribute.node, _alter_attribute(attribute)
    return scaled


def _alter_attribute(attribute: EditableAttribute) -> str:
    """Move the padding to one side, scale a number, flip a flag, or take another word."""
    name, value = attribute.name, attribute.value
    if isinstance(value, tuple):
        begin, end = value
        attribute.write(([begin[0] - 1, *begin[1:]], [end[0] + 1, *end[1:]]))
        return "padding moved by one"
    if isinstance(value, float):
        attribute.write(value * FACTOR)
        return f"{name} {value:.4g} -> {value * FACTOR:.4g}".lstrip()
    if isinstance(value, str):
        other: int | str = _OTHER_WORDS.get(value, "half_pixel")
    else:
        other = type(value)(not value)
    attribute.write(other)
    return f"{name} {value} -> {other}"


def _scale_epsilon(graph: EditableGraph, random: Random) -> _FaultChange | None:
    """Scale the epsilon of a normalization, else a small addend, by 1000."""
    found = graph.epsilons()
    if not found:
        return _scale_constant(graph.constants(scalar=True), random, small=True)
    epsilon = random.choice(found)
    value = float(epsilon.value)  # type: ignore[arg-type]  # an epsilon is a number
    epsilon.write(value * _EPSILON_FACTOR)
    change = f"{epsilon.name} {value:.3g} -> {value * _EPSILON_FACTOR:.3g}"
    return epsilon.node, change.lstrip()


def _alter_at_size(graph: EditableGraph, size: SizeFault, random: Random) -> _FaultChange | None:
    outputs = graph.float_outputs()
    name = graph.multiply_output(random.choice(outputs), size) if outputs else None
    return None if name is None else (f"output {name}".rstrip(), f"times {FACTOR:g}")


_CHANGES: Mapping[FaultKind, Callable[[EditableGraph, Random], _FaultChange | None]] = {
    FaultKind.WEIGHT: _alter_weight,
    FaultKind.SWAP: _swap,
    FaultKind.ATTRIBUTE: _alter_number,
    FaultKind.EPSILON: _scale_epsilon,
}
