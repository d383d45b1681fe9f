"""Optional contracts of a target: runtime settings, planted faults, metadata, and probing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Protocol, runtime_checkable

from .contract import Array, Feed, Outputs, Runner, Target
from .kinds import Precision
from .signature import Signature


@runtime_checkable
class Settled(Target, Protocol):
    """A target that judges artifacts under named settings of its runtime."""

    def judge_settings(self, device: str) -> Mapping[str, str]:
        """Return the settings, by the runtime's own names."""
        ...


def runtime_settings(target: Target, device: str) -> dict[str, str]:
    """Return the device and runtime settings that judge artifacts of a format."""
    settings = target.judge_settings(device) if isinstance(target, Settled) else {}
    return {"device": device, **settings}


@runtime_checkable
class Preparing(Runner, Protocol):
    """A runner whose runs can be timed without the conversion of arrays before and after."""

    def prepare(self, feed: Feed) -> Callable[[], object]:
        """Return a call that runs a feed, whose arrays are already in the runtime's own form."""
        ...


@runtime_checkable
class HostBound(Target, Protocol):
    """A target whose files are built for one host; `RUN_SETTINGS` do not change what is built."""

    RUN_SETTINGS: frozenset[str]

    def is_for_host(self, path: Path) -> bool:
        """Return whether a file was built for this host and the runtime that it has now."""
        ...


@runtime_checkable
class HostVersioned(Target, Protocol):
    """A target whose verdicts hold for the driver and the library that ran its files."""

    def host_versions(self) -> Mapping[str, str]:
        """Return the versions of both on this host, and its GPU; what is unknown is left out."""
        ...


def list_host_changes(then: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return what differs between two hosts, as `tensorrt 10.13, now 11.4`."""
    return tuple(
        f"{name} {then[name]}, now {now[name]}"
        for name in then
        if name in now and then[name] != now[name]
    )


@runtime_checkable
class SettingsChecked(Target, Protocol):
    """A target with settings that name inputs."""

    def check_settings(self, signature: Signature, settings: Mapping[str, str]) -> None:
        """Raise a UsageError for a setting that does not fit the inputs, before any conversion."""
        ...


@runtime_checkable
class WideFloor(Target, Protocol):
    """A target whose kernels sum float32 in an order that errs more than other runtimes' do."""

    FLOOR_FACTOR: float  # of the noise floor, in place of the tolerance's own


@runtime_checkable
class RestLowered(Target, Protocol):
    """A target whose INT8 artifacts may have their other layers in half precision.

    `RESTS` are the precisions of these layers; the first is the default.
    """

    RESTS: tuple[Precision, ...]


@dataclass(frozen=True, kw_only=True)
class OpenedByDefault:
    """A model opened without settings, if its runtime then computes in less precision.

    `compute` is its compute dtype, such as `bf16`; `advice` the line of code that opens it as it is
    judged, with `PATH` for the model file.
    """

    runner: Runner
    compute: str
    advice: str


@runtime_checkable
class SelfTuned(Target, Protocol):
    """A target whose runtime may pick a lower precision by default."""

    def open_by_default(
        self, path: Path, device: str, signature: Signature
    ) -> OpenedByDefault | None:
        """Open a model file without settings; None if it then computes as it is judged.

        Raises:
            RunnerError: the runtime cannot open it.
        """
        ...


@runtime_checkable
class Deployable(Target, Protocol):
    """A target whose files are deployed in other ways than they are judged: a benchmark has all."""

    def list_deployments(self, device: str) -> tuple[str, ...]:
        """Return names of the ways on this device, besides the usual one, which is empty."""
        ...

    def open_deployment(
        self, path: Path, deployment: str, device: str, signature: Signature
    ) -> Runner:
        """Open a model file in one of these ways; an empty one is that of the judge's settings.

        Raises:
            RunnerError: the runtime cannot open it; with the code `NO_EFFECT` if this way does not
                exist here, or computes as the usual one does.
        """
        ...


@runtime_checkable
class Concurrent(Runner, Protocol):
    """A runner whose prepared call keeps several requests in flight."""

    in_flight: int
    rounds: int  # that each of them runs in a call


@runtime_checkable
class LimitsChosen(Target, Protocol):
    """A target whose files may compute in less than the precision that was asked for."""

    def limit_precision(self, precision: Precision, settings: Mapping[str, str]) -> Precision:
        """Return the precision whose limits a file built with these settings is held to."""
        ...


@dataclass(frozen=True, kw_only=True)
class DefaultOutputs:
    """What a runtime gives in a child process with its default options.

    `outputs` has one entry per feed, fewer where it failed; `failure` says why, and `unsupported`
    that this device lacks an operator of the model, which another device may have.
    """

    outputs: tuple[Outputs, ...]
    failure: str = ""
    unsupported: bool = False


@runtime_checkable
class DefaultChecked(Target, Protocol):
    """A target whose files may be judged by a copy, so that the file itself is run as well."""

    def run_by_default(
        self, path: Path, device: str, feeds: Sequence[Feed]
    ) -> DefaultOutputs | None:
        """Run the file itself in a child process; None where judging already does that."""
        ...


class FaultKind(StrEnum):
    """What a planted fault alters.

    An element of a weight; two swapped things; an attribute of an operator; an epsilon; an output
    at one size of a dynamic dim.
    """

    WEIGHT = "weight"
    SIZE = "size"
    SWAP = "swap"
    ATTRIBUTE = "attribute"
    EPSILON = "epsilon"


@dataclass(frozen=True, kw_only=True)
class PlantedFault:
    """A copy of a model file with one fault.

    `place` names the tensor, node or output, `change` describes the change. `sizes` are sizes of
    free dims, by name, at which the fault acts, and `where` describes them; both are empty if it
    acts at any.
    """

    path: Path
    place: str
    change: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    where: str = ""


@runtime_checkable
class FloatEnds(Target, Protocol):
    """A target whose half precision is of weights: inputs and outputs stay float32."""

    FLOAT_ENDS: bool


@runtime_checkable
class Stateful(Target, Protocol):
    """A target whose runtime can keep a decoder's cache between calls (`Job.stateful`)."""

    def check_states(self, signature: Signature) -> None:
        """Raise a UsageError if the inputs and outputs are not those of a decoder with a cache."""
        ...


@runtime_checkable
class Plantable(Target, Protocol):
    """A target that can plant faults in its model files, to measure what a verdict detects.

    `PLANTS_BY_DEFAULT` means that a copy is quickly made and opened.
    """

    PLANTS_BY_DEFAULT: bool

    def plant_fault(
        self, path: Path, kind: FaultKind, random: Random, signature: Signature, folder: Path
    ) -> PlantedFault | None:
        """Write a copy of a model file with one fault of this kind in `folder`.

        Args:
            path: the model file, which stays unchanged.
            kind: what is altered.
            random: draws the place.
            signature: the inputs, with their dims, and the outputs.
            folder: an empty folder for the copy.

        Returns:
            None if the model has no place for such a fault.

        Raises:
            RunnerError: the file cannot be read.
        """
        ...


@runtime_checkable
class Carrying(Target, Protocol):
    """A target that embeds job metadata in artifacts, readable without a framework."""

    def read_metadata(self, path: Path) -> Mapping[str, str]:
        """Return the metadata of the job that made the file; empty if it has none.

        Raises:
            RunnerError: it cannot be read.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ProbeNode:
    """An operator of an artifact and its origin, as far as the artifact records it.

    `inputs` and `outputs` are tensors that are computed or fed, `constants` those that are not.
    `source` is `file:line`; `attributes` are the operator's own, as text. `owner` is the module
    that a weight among its inputs is named after, if it is not `module`. `inside` belongs to a loop
    or a branch: the modules of the operators in its bodies, which run as one with it.
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
    """The values that a quantizer represents: `tensor` from `low` to `high` in steps of `scale`.

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
        """Whether it holds integers or bools, which are compared exactly."""
        return is_discrete_dtype(self.dtype)


def is_discrete_dtype(dtype: str) -> bool:
    """Return whether a dtype is one of integers or bools."""
    return dtype.startswith(("int", "uint", "bool"))


class Probe(Protocol):
    """An artifact opened for probing. Counts its runs in `runs`.

    `nodes` are in an execution order. Not a context manager: every run opens and drops what it
    uses.
    """

    nodes: tuple[ProbeNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ends: Mapping[str, str]  # the tensor by each name of an output
    runs: int
    loader: str  # Python that defines run(model: Path, given: dict, output: str) -> array

    def forms(self, feed: Feed) -> Mapping[str, TensorForm]:
        """Return shape and dtype of every tensor of known form on a feed.

        Raises:
            RunnerError: the runtime raised.
        """
        ...

    def tap(self, feed: Feed, tensors: Collection[str]) -> Outputs:
        """Run the whole artifact and return these tensors beside its outputs.

        Raises:
            RunnerError: the runtime raised.
        """
        ...

    def part(self, given: Feed, wanted: Collection[str]) -> Outputs:
        """Run only what lies between the given and the wanted tensors.

        A tensor that is both given and wanted is computed, but its readers read the given one.

        Raises:
            RunnerError: the runtime raised, or a required tensor is not given.
        """
        ...

    def constant(self, name: str) -> Array:
        """Return the values of one of `ProbeNode.constants`."""
        ...

    def range_of(self, node: ProbeNode) -> QuantizedRange | None:
        """Return the range of a node that quantizes a computed tensor; None for other nodes."""
        ...

    def extract(self, given: Feed, wanted: Sequence[str], folder: Path) -> str:
        """Write the part as a model of its own; return its file name. Inputs keep their names."""
        ...


@runtime_checkable
class Probed(Target, Protocol):
    """A target whose artifacts can be probed."""

    def open_probe(self, path: Path, signature: Signature) -> Probe:
        """Open a model file for probing.

        Raises:
            RunnerError: the runtime cannot open it.
            UsageError: the modules of its operators are unknown.
        """
        ...
