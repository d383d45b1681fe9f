"""The contract of an artifact that can be looked into: its operators, and runs of parts of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from .contract import Array, Feed, Outputs, Target
from .signature import Signature


@dataclass(frozen=True, kw_only=True)
class ProbeNode:
    """One operator of an artifact and where it comes from, as far as the artifact tells.

    `inputs` and `outputs` are tensors that are computed or fed, `constants` those that are not.
    `source` is `file:line`; `attributes` are the operator's own, as text. `owner` is the module
    that a weight among its inputs is named after, where that is another than `module`. `inside` is
    of a loop or a branch: the modules of the operators in its bodies, which run as one with it.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...] = ()
    module: str = ""
    kind: str = ""  # the module's class
    source: str = ""
    attributes: Mapping[str, str]
    owner: str = ""
    inside: tuple[str, ...] | None = None
    half: bool = False  # it rounds to float16 or bfloat16


@dataclass(frozen=True, kw_only=True)
class QuantizedRange:
    """What a quantizer can tell apart: values of `tensor` from `low` to `high` in steps of `scale`.

    The arrays broadcast against the tensor.
    """

    tensor: str
    low: Array
    high: Array
    scale: Array


@dataclass(frozen=True, kw_only=True)
class TensorForm:
    """Shape and dtype of a tensor on one feed."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def is_floating(self) -> bool:
        """Whether it holds floating-point numbers."""
        return "float" in self.dtype

    @property
    def discrete(self) -> bool:
        """Whether it holds integers or bools, which are equal or not."""
        return is_discrete_dtype(self.dtype)


def is_discrete_dtype(dtype: str) -> bool:
    """Whether a dtype is one of integers or bools."""
    return dtype.startswith(("int", "uint", "bool"))


class Probe(Protocol):
    """An artifact opened to be looked into. It counts its runs in `runs`.

    `nodes` are in an order of execution. A context manager would hold nothing: every run opens
    what it needs and drops it.
    """

    nodes: tuple[ProbeNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ends: Mapping[str, str]  # the tensor by each name that an output goes by
    runs: int
    loader: str  # Python that defines run(model: Path, given: dict, output: str) -> array

    def forms(self, feed: Feed) -> Mapping[str, TensorForm]:
        """Shape and dtype of every tensor that a feed gives; tensors of unknown form are left out.

        Raises:
            RunnerError: the runtime refused.
        """
        ...

    def tap(self, feed: Feed, tensors: Collection[str]) -> Outputs:
        """Run the whole artifact and read these tensors beside its outputs.

        Raises:
            RunnerError: the runtime refused.
        """
        ...

    def part(self, given: Feed, wanted: Collection[str]) -> Outputs:
        """Run only what lies between the tensors given and those wanted.

        A tensor that is both given and wanted is computed, but whoever reads it reads what was
        given.

        Raises:
            RunnerError: the runtime refused, or something needed is not given.
        """
        ...

    def constant(self, name: str) -> Array:
        """The values of one of `ProbeNode.constants`."""
        ...

    def reach(self, node: ProbeNode) -> QuantizedRange | None:
        """What a node can tell apart, if it is a quantizer of something that is computed."""
        ...

    def extract(self, given: Feed, wanted: Sequence[str], folder: Path) -> str:
        """Write the part as a model of its own; returns its file name. Inputs keep their names."""
        ...


@runtime_checkable
class Probed(Target, Protocol):
    """A target whose artifacts can be looked into."""

    def open_probe(self, path: Path, signature: Signature) -> Probe:
        """Open a model file for looking into.

        Raises:
            RunnerError: the runtime would not open it.
            UsageError: nothing says which modules its operators come from.
        """
        ...
