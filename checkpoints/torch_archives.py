"""Archives of torch.export.save and torch.jit.save: programs with their own code."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ..core.call import Parameter, ParameterKind, parameters_of_schema
from ..core.errors import CheckpointError, ErrorCode, first_line
from ..core.nested_values import iterate_leaves
from ..core.signature import DTYPES, UNBOUNDED, Dim, InputSpec, ValueRange
from ..core.torch_file import refuse_archive_code, register_operators
from .checkpoint_files import weight_files
from .loaded_module import LoadedModule, read_recorded_inputs
from .quantized_program import note_steps
from .sniff import PT2, TORCHSCRIPT

if TYPE_CHECKING:
    from pathlib import Path

    import sympy  # type: ignore[import-untyped] # it has no type stubs
    import torch
    from torch.export import ExportedProgram

    from ..core.records import Checkpoint

_ENDLESS_SIZE = 2**31  # larger upper bounds mean "no bound"


def load_exported_program(checkpoint: Checkpoint) -> LoadedModule:
    """Load the program and read its inputs: names, dtypes, sizes and ranges."""
    import torch

    (path,) = weight_files(checkpoint)
    try:
        if not checkpoint.allow_pickle:
            refuse_archive_code(path)
        register_operators(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about older archive versions, which still load
            with path.open("rb") as file:  # a path would have to end in .pt2
                program = torch.export.load(file)
        module = program.module(check_guards=False)  # guards cannot be captured again
    except CheckpointError:
        raise
    except Exception as error:  # torch's edge: its reader raises anything at garbage
        raise CheckpointError(
            f"{path} cannot be opened as an exported program: {first_line(error)}",
            hint="export it again with torch.export.save, on this version of torch",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    inputs = _program_inputs(program)
    sizes = _SymbolicSizes(program, inputs)
    inferred = {name: spec for name, value in inputs.items() if (spec := sizes.spec(name, value))}
    known = read_recorded_inputs(path) or inferred
    return LoadedModule(
        kind=PT2,
        module=module,
        takes=_program_parameters(program),
        known=known,
        notes=(*sizes.notes, *note_steps(module)),
    )


def _sample_arguments(program: ExportedProgram) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the args and kwargs of the export, with torch's argument records as values."""
    from torch.export.graph_signature import InputKind
    from torch.utils._pytree import tree_unflatten

    records = [
        spec.arg
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    args, kwargs = tree_unflatten(records, program.call_spec.in_spec)
    return args, kwargs


def _argument_names(program: ExportedProgram) -> list[str]:
    """Return forward's parameter names, positional ones first."""
    signature = program.module_call_graph[0].signature
    args, kwargs = _sample_arguments(program)
    names = (signature.forward_arg_names if signature else None) or [
        *(f"arg_{index}" for index in range(len(args))),
        *kwargs,
    ]
    return list(names)


def _program_parameters(program: ExportedProgram) -> tuple[Parameter, ...]:
    """Return the program's parameters, by position or name as they were exported."""
    from torch.export.graph_signature import ConstantArgument

    args, kwargs = _sample_arguments(program)
    kinds = [ParameterKind.POSITIONAL] * len(args) + [ParameterKind.KEYWORD] * len(kwargs)
    values = [*args, *kwargs.values()]
    return tuple(
        Parameter(
            name=name,
            kind=kind,
            listed=isinstance(value, list),
            constant=(value.value,) if isinstance(value, ConstantArgument) else (),
        )
        for name, kind, value in zip(_argument_names(program), kinds, values, strict=True)
    )


def _program_inputs(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the program's tensor inputs by dotted name, as fake tensors."""
    from torch.export.graph_signature import TensorArgument

    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    args, kwargs = _sample_arguments(program)
    tree = dict(zip(_argument_names(program), [*args, *kwargs.values()], strict=True))
    return {
        ".".join(path): nodes[record.name].meta["val"]
        for path, record in iterate_leaves(tree, lambda value: isinstance(value, TensorArgument))
        if isinstance(record, TensorArgument)
    }


class _SymbolicSizes:
    """Turns symbolic sizes into named dims; each symbol has one name."""

    def __init__(self, program: ExportedProgram, inputs: dict[str, torch.Tensor]) -> None:
        self.ranges = program.range_constraints
        self.notes: list[str] = []
        self.names: dict[object, str] = {}
        self.largest = _largest_integers(program)
        self.tied: set[object] = set()  # symbols inside expressions such as 2*s0
        for value in inputs.values():
            sizes: tuple[int | torch.SymInt, ...] = tuple(value.shape)
            for expression in (size.node.expr for size in sizes if not isinstance(size, int)):
                if not expression.is_symbol:
                    self.tied.update(expression.free_symbols)
                    self.notes.append(f"a size is {expression}: it and its symbols are fixed")

    def spec(self, name: str, value: torch.Tensor) -> InputSpec | None:
        """Return one input; None, with a note, if its dtype is unsupported."""
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            self.notes.append(f"input {name} is {dtype}, which feeds do not support")
            return None
        dims = tuple(self._dim(size, name, axis) for axis, size in enumerate(value.shape))
        top = self.largest.get(name)
        values = None if top is None else ValueRange(low=0, high=max(top, 1))
        return InputSpec(name=name, dtype=dtype, dims=dims, values=values)

    def _dim(self, size: int | torch.SymInt, name: str, axis: int) -> Dim:
        if isinstance(size, int):
            return Dim.of_size(size)
        symbol, hint = size.node.expr, size.node.hint
        if not symbol.is_symbol or symbol in self.tied:
            return Dim.of_size(int(hint))
        if symbol not in self.names:
            has_batch = "batch" in self.names.values()
            plain = name.replace(".", "_")
            self.names[symbol] = "batch" if axis == 0 and not has_batch else f"{plain}_{axis}"
        low, high = self._range(symbol)
        opt = max(low, int(hint) if hint is not None else UNBOUNDED[1])
        if high is None:
            top = max(opt, UNBOUNDED[2])
            return Dim(name=self.names[symbol], low=low, opt=opt, high=top, bounded=False)
        return Dim(name=self.names[symbol], low=low, opt=min(opt, high), high=high)

    def _range(self, symbol: sympy.Symbol) -> tuple[int, int | None]:
        """Return the smallest and largest size; None without an upper bound."""
        found = self.ranges.get(symbol)
        if found is None:
            return UNBOUNDED[0], None
        finite = found.upper.is_Integer and int(found.upper) < _ENDLESS_SIZE
        return max(int(found.lower), 1), int(found.upper) if finite else None


def _largest_integers(program: ExportedProgram) -> dict[str, int]:
    """Return the largest value of each integer input that the program was exported with."""
    import torch

    if program.example_inputs is None:
        return {}
    args, kwargs = program.example_inputs
    tree = dict(zip(_argument_names(program), [*args, *kwargs.values()], strict=True))
    return {
        ".".join(path): int(sample.max())
        for path, sample in iterate_leaves(tree, lambda value: isinstance(value, torch.Tensor))
        if isinstance(sample, torch.Tensor)
        and sample.numel()
        and not sample.is_floating_point()
        and not sample.is_complex()
    }


# Archives that torch.jit.save wrote: they bring their own code.


def load_torchscript(checkpoint: Checkpoint) -> LoadedModule:
    """Load the archive on the CPU; a traced one has the shapes of its example."""
    (path,) = weight_files(checkpoint)
    try:
        module = _open_archive(path)
    except Exception as error:  # torch's edge: its reader raises anything at garbage
        raise CheckpointError(
            f"{path} cannot be opened as TorchScript: {first_line(error)}",
            hint="save it again with torch.jit.save, on this version of torch",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    if not hasattr(module, "forward"):
        raise CheckpointError(
            f"{path} is a TorchScript archive without a forward method",
            hint="save a module that has forward",
            code=ErrorCode.UNSUPPORTED,
        )
    method = module._c._get_method("forward")
    takes = parameters_of_schema(method.schema)
    known = read_recorded_inputs(path) or _infer_inputs(method, takes)
    return LoadedModule(kind=TORCHSCRIPT, module=module, takes=takes, known=known)


def _open_archive(path: Path) -> torch.jit.ScriptModule:
    import torch

    with warnings.catch_warnings():
        # TorchScript is deprecated as a whole; warn in the docs, not per file
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.jit")
        module: torch.jit.ScriptModule = torch.jit.load(  # type: ignore[no-untyped-call]
            path, map_location="cpu", _restore_shapes=True
        )
    return module


def _infer_inputs(method: Any, takes: tuple[Parameter, ...]) -> dict[str, InputSpec]:
    """Return the inputs' dtypes and sizes, if the archive has them for all its tensors."""
    known: dict[str, InputSpec] = {}
    inputs = list(method.graph.inputs())[1:]
    for parameter, value in zip(takes, inputs, strict=True):
        kind = value.type()
        if kind.kind() != "TensorType":
            return {}
        sizes, dtype = kind.sizes(), str(kind.dtype()).removeprefix("torch.")
        if sizes is None or None in sizes or dtype not in DTYPES:
            return {}
        dims = tuple(Dim.of_size(size) for size in sizes)
        known[parameter.name] = InputSpec(name=parameter.name, dtype=dtype, dims=dims)
    return known
