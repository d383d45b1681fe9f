"""How the inputs and outputs of each format are named in a program, and by eager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..converters.archive_records import read_record, record_specs
from ..converters.onnx_guard import read_graph
from ..converters.onnx_half_emulation import has_half_io
from ..converters.runner_base import check_feed, order_inputs
from ..core.call import Parameter, ParameterKind, bind_inputs
from ..core.contract import Array, Feed, Outputs
from ..core.errors import LOGGED, RunnerError
from ..core.nested_values import ValuePath, name_parts_of
from ..core.signature import InputSpec, Signature
from .program_files import BFLOAT16, DTYPES, SEPARATOR, ProgramTensor
from .program_runner import Records

_FLOAT32, _FLOAT16 = "float32", "float16"


@dataclass(frozen=True, kw_only=True)
class PathNames:
    """Names of torch formats: outputs are nested values, inputs have places in parameters.

    `outputs` are eager's names if the artifact returns them in order; None names them by path.
    `specs` are checked before each feed.
    """

    inputs: tuple[str, ...]
    places: tuple[ValuePath, ...]
    outputs: tuple[str, ...] | None
    specs: tuple[InputSpec, ...] = ()

    def read_feed(self, feed: Feed) -> list[ProgramTensor]:
        """Return the inputs with their places."""
        given = order_inputs(feed, self.inputs)
        check_feed(feed, self.specs)
        return [
            _as_tensor(SEPARATOR.join(place), array)
            for place, array in zip(self.places, given, strict=True)
        ]

    def name_outputs(self, tensors: Sequence[ProgramTensor]) -> Outputs:
        """Name the outputs as modelc names the leaves of a value."""
        if self.outputs is not None and len(self.outputs) == len(tensors):
            names = list(self.outputs)
        else:
            paths = [tuple(one.name.split(SEPARATOR)) if one.name else () for one in tensors]
            pairs = [(path, None) for path in paths]
            names = name_parts_of(pairs, lambda _: True, reserved=self.inputs)
        return {name: one.array for name, one in zip(names, tensors, strict=True)}


def name_torchscript(path: Path, signature: Signature, records: Records) -> PathNames:
    """Bind the inputs to the parameters of forward, as modelc's own runner does."""
    record = read_record(path)
    inputs = tuple(record.get("inputs") or (spec.name for spec in signature.inputs))
    parameters = [
        Parameter(
            name=name,
            kind=ParameterKind.KEYWORD if keyword else ParameterKind.EITHER,
            required=bool(required),
        )
        for kind, name, _, required, keyword in records
        if kind == "parameter"
    ]
    if record.get("call") == "flat":
        if len(parameters) != len(inputs):
            raise RunnerError(
                f"forward takes {len(parameters)} tensors, the record names {len(inputs)}",
                hint="export it again",
            )
        places: tuple[ValuePath, ...] = tuple((one.name,) for one in parameters)
        return PathNames(inputs=inputs, places=places, outputs=tuple(record["outputs"]))
    places = bind_inputs(inputs, parameters).places
    return PathNames(inputs=inputs, places=places, outputs=None)


def name_aoti(path: Path, signature: Signature, records: Records) -> PathNames:  # noqa: ARG001 - a package names nothing
    """Take the inputs in the order of the package's record; their sizes are checked here."""
    record = read_record(path)
    specs = record_specs(record) or signature.inputs
    inputs = tuple(spec.name for spec in specs)
    outputs = record.get("outputs")
    return PathNames(
        inputs=inputs,
        places=tuple((name,) for name in inputs),
        outputs=None if outputs is None else tuple(outputs),
        specs=specs,
    )


@dataclass(frozen=True, kw_only=True)
class PortNames:
    """Names of ONNX and OpenVINO: a flat list of inputs and outputs with dtypes.

    With `half_io`, modelc made float32 inputs and outputs half, and eager's stay float32.
    """

    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    outputs: tuple[str, ...]
    half_io: bool = False

    def read_feed(self, feed: Feed) -> list[ProgramTensor]:
        """Return the inputs in order, rounded where the artifact takes half."""
        given = order_inputs(feed, self.inputs)
        return [
            self._convert(name, dtype, array)
            for name, dtype, array in zip(self.inputs, self.dtypes, given, strict=True)
        ]

    def _convert(self, name: str, dtype: str, array: Array) -> ProgramTensor:
        is_float = str(array.dtype) == _FLOAT32
        if is_float and dtype == BFLOAT16:  # numpy has no such arrays
            return ProgramTensor(name=name, dtype=dtype, array=array)
        if is_float and dtype == _FLOAT16 and self.half_io:
            return ProgramTensor(name=name, dtype=dtype, array=array.astype(_FLOAT16))
        if str(array.dtype) != dtype:
            raise RunnerError(
                f"input {name!r} is {array.dtype}, the model takes {dtype}",
                hint=f"feed it as {dtype}",
            )
        return ProgramTensor(name=name, dtype=dtype, array=array)

    def name_outputs(self, tensors: Sequence[ProgramTensor]) -> Outputs:
        """Name the outputs in order; those that modelc made half become float32."""
        if len(tensors) != len(self.outputs):
            raise RunnerError(
                f"the program returned {len(tensors)} outputs, the model has {len(self.outputs)}",
                hint=LOGGED,
            )
        return {
            name: one.array.astype(_FLOAT32)
            if self.half_io and one.dtype == _FLOAT16
            else one.array
            for name, one in zip(self.outputs, tensors, strict=True)
        }


@dataclass(frozen=True, kw_only=True)
class _Ports:
    """The inputs and outputs that a program described: dtypes, and all names of each."""

    inputs: list[tuple[str, ...]] = field(default_factory=list)
    outputs: list[tuple[str, ...]] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)


def _read_ports(records: Records) -> _Ports:
    """Read the description; raises RunnerError if a dtype is not one."""
    ports = _Ports()
    for kind, code, *names in records:
        if not code.isdigit() or int(code) >= len(DTYPES) or not names:
            raise RunnerError(f"the program described an {kind} of dtype {code!r}", hint=LOGGED)
        if kind == "input":
            ports.inputs.append(tuple(names))
            ports.dtypes.append(DTYPES[int(code)])
        else:
            ports.outputs.append(tuple(names))
    return ports


def _choose_names(ports: Sequence[tuple[str, ...]], known: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each port that is known, else its first."""
    return tuple(next((name for name in known if name in names), names[0]) for names in ports)


def name_onnx(path: Path, signature: Signature, records: Records) -> PortNames:  # noqa: ARG001 - an ONNX has its own names
    """Take the names of the graph."""
    ports = _read_ports(records)
    return PortNames(
        inputs=_choose_names(ports.inputs, ()),
        dtypes=tuple(ports.dtypes),
        outputs=_choose_names(ports.outputs, ()),
        half_io=has_half_io(read_graph(path)),
    )


def name_openvino(path: Path, signature: Signature, records: Records) -> PortNames:  # noqa: ARG001 - the program has read it
    """Take the names of the signature among those that each port has."""
    ports = _read_ports(records)
    return PortNames(
        inputs=_choose_names(ports.inputs, [spec.name for spec in signature.inputs]),
        dtypes=tuple(ports.dtypes),
        outputs=_choose_names(ports.outputs, signature.outputs),
    )


def _as_tensor(name: str, array: Array) -> ProgramTensor:
    dtype = str(array.dtype)
    if dtype not in DTYPES:
        raise RunnerError(f"input {name!r} is {dtype}, which programs do not take", hint=LOGGED)
    return ProgramTensor(name=name, dtype=dtype, array=array)
