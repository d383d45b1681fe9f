"""Read the user's sample inputs from files or a loader, and infer their dtypes and shapes."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ..core.call import Parameter, ParameterKind
from ..core.contract import Array
from ..core.errors import ErrorCode, Hint, Option, UsageError, first_line, nearest_files
from ..core.nested_values import (
    NamedItem,
    iterate_leaves,
    load_items,
    name_parts,
    wrap_loader_errors,
)
from ..core.signature import DTYPES, Dim, InputSpec
from ..core.torch_file import read_torch_file
from ..core.torch_tools import is_array, is_tensor, to_array
from ..core.untrusted_files import read_npz, read_safetensors_header
from .factory import import_object, use_fixed_seed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

_SAMPLE_SUFFIXES = (".npz", ".safetensors", ".pt", ".pth")


def read_samples(path: Path, parameters: Sequence[str] = ()) -> dict[str, Array]:
    """Read named arrays from .npz, .safetensors or .pt; half precision becomes float32.

    In a .pt, a tensor is the first parameter, a tuple or list follows the order of `parameters`,
    a dict has keyword arguments; nested values get dotted names.

    Raises:
        UsageError: the file does not exist, has another format, or has no arrays.
        CheckpointError: a .pt contains more than tensors and plain values.
    """
    if path.is_dir():
        raise _folder_error(path)
    if not path.is_file():
        near = nearest_files(path)
        hint = f"did you mean {near[0]}?" if near else "give an existing .npz file"
        raise UsageError(f"no such sample file: {path}", hint=hint, code=ErrorCode.NOT_FOUND)
    if path.suffix == ".npz":
        found = _from_npz(path)
    elif path.suffix == ".safetensors":
        found = _from_safetensors(path)
    elif path.suffix in _SAMPLE_SUFFIXES:
        found = _from_torch(path, parameters)
    else:
        raise UsageError(
            f"unsupported sample format {path.suffix or 'without suffix'}: {path}",
            hint=f"save them as {', '.join(_SAMPLE_SUFFIXES)}",
            code=ErrorCode.UNSUPPORTED,
        )
    if not found:
        raise UsageError(
            f"{path} contains no arrays",
            hint="save at least one named array",
            code=ErrorCode.NO_SAMPLES,
        )
    return found


def _folder_error(path: Path) -> UsageError:
    files = sorted(one for one in path.iterdir() if one.suffix in _SAMPLE_SUFFIXES)
    return UsageError(
        f"{path} is a folder; --samples takes one file",
        hint=f"--samples {files[0]}"
        if files
        else "save one sample with numpy.savez('sample.npz', NAME=array); a folder goes to --calib",
        option="samples",
    )


def infer_specs(samples: Mapping[str, Array]) -> dict[str, InputSpec]:
    """Return the input specs of the samples, with fixed dims.

    Raises:
        UsageError: an array has an unsupported dtype.
    """
    specs: dict[str, InputSpec] = {}
    for name, array in samples.items():
        dtype = str(array.dtype)
        if dtype not in DTYPES:
            raise UsageError(
                f"sample {name} is {dtype}", hint=f"convert it to one of {', '.join(DTYPES)}"
            )
        dims = tuple(Dim.of_size(size) for size in array.shape)
        specs[name] = InputSpec(name=name, dtype=dtype, dims=dims)
    return specs


def _from_npz(path: Path) -> dict[str, Array]:
    import numpy as np

    try:
        found = read_npz(path)
    except ValueError as error:
        raise UsageError(
            f"{path} cannot be read as .npz: {first_line(error)}",
            hint="write it with numpy.savez(path, name=array), without objects",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    half = np.float16
    return {n: a.astype(np.float32) if a.dtype == half else a for n, a in found.items()}


def _from_safetensors(path: Path) -> dict[str, Array]:
    from safetensors import safe_open

    try:
        read_safetensors_header(path)
        with safe_open(path, framework="pt") as file:
            return {name: _tensor_array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 - not a dict
    except Exception as error:  # the readers' edge: torch may not have a dtype, or numpy not
        raise UsageError(
            f"{path} cannot be read as safetensors: {first_line(error)}",
            hint="write it with safetensors.torch.save_file",
            code=ErrorCode.CORRUPT_FILE,
        ) from error


def _from_torch(path: Path, parameters: Sequence[str]) -> dict[str, Array]:
    import torch

    found: dict[str, Array] = {}
    tree = _name_arguments(read_torch_file(path), parameters, path)
    for place, leaf in iterate_leaves(tree, lambda value: isinstance(value, torch.Tensor)):
        name = ".".join(place)
        if not isinstance(leaf, torch.Tensor):
            raise UsageError(
                f"{path}: {name} is a {type(leaf).__name__}, not a tensor",
                hint=f"leave {name} out, or bind it in the factory",
            )
        found[name] = _tensor_array(leaf)
    return found


def _name_arguments(value: object, parameters: Sequence[str], path: Path) -> Mapping[str, object]:
    """Return the saved value as keyword arguments."""
    if isinstance(value, Mapping):
        return {str(key): child for key, child in value.items()}
    if not isinstance(value, (tuple, list)):
        return {next(iter(parameters), "x"): value}
    names: Iterable[str] = parameters or [f"input_{index}" for index in range(len(value))]
    if parameters and len(value) > len(parameters):
        raise UsageError(
            f"{path} has {len(value)} positional inputs; forward takes {', '.join(parameters)}",
            hint="save a dict of keyword arguments instead",
        )
    return dict(zip(names, value, strict=False))


def _tensor_array(tensor: torch.Tensor) -> Array:
    import torch

    half = tensor.dtype in (torch.float16, torch.bfloat16)
    array: Array = (tensor.float() if half else tensor.clone()).detach().numpy()
    return array


# Sample inputs from the user's own code: a DataLoader, a list, or a function that yields them.


_SAMPLES_OPTION = "--samples"
_SHOWN_NAMES = 5  # parts without an input that a note lists
# optional parameters for labels, which would add a loss to the outputs
_LABEL_NAME = re.compile(r"(\w*_)?(labels?|targets?|positions_label)|(start|end)_positions")


@dataclass(frozen=True, kw_only=True)
class LoaderSamples:
    """The items of a loader, as arrays by input name, and notes on omitted parts."""

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
    """Read the first `most` items of the loader `package.module:name`, with seed 0.

    Of a mapping, the parameters are used; a tuple has the required parameters in order.

    Args:
        spec: the loader.
        takes: the parameters of the called method.
        inputs: names of further inputs.
        settled: `inputs` are complete, in order.
        most: the number of items.

    Raises:
        UsageError: there is no such loader, it raised, or an item lacks an input.
        CheckpointError: the loader's module raised on import.
    """
    with _fix_seeds():
        items = load_items(spec, lambda name: import_object(name, _SAMPLES_OPTION))
        items_read = list(islice(wrap_loader_errors(items, spec), most))
    if not items_read:
        raise UsageError(
            f"the loader {spec} yields nothing",
            hint="yield at least one item",
            code=ErrorCode.NO_SAMPLES,
        )
    names = tuple(inputs) if settled else _input_names(items_read[0], takes, inputs, spec)
    found = [
        _item_arrays(item, names, f"{spec} item {index}") for index, item in enumerate(items_read)
    ]
    surplus = dict.fromkeys(name.partition(".")[0] for _, rest in found for name in rest)
    listed = ", ".join([*surplus][:_SHOWN_NAMES]) + (", ..." if len(surplus) > _SHOWN_NAMES else "")
    verb = "are" if len(surplus) > 1 else "is"
    inputs_text = (
        f"{names[0]} is the only input" if len(names) == 1 else f"inputs: {', '.join(names)}"
    )
    note = f"{listed} of each item of {spec} {verb} not used: {inputs_text}"
    return LoaderSamples(
        items=tuple(arrays for arrays, _ in found), notes=(note,) if surplus else ()
    )


@contextmanager
def _fix_seeds() -> Iterator[None]:
    """Seed random numbers, so that shuffling and augmentation repeat."""
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
    """Return the inputs in the first item, in the order of the parameters."""
    plain = [
        p
        for p in takes
        if p.kind not in (ParameterKind.REST, ParameterKind.REST_BY_NAME) and not p.constant
    ]
    heads = {name.partition(".")[0] for name in asked}
    if asked and not heads & {p.name for p in plain}:
        return tuple(asked)  # bound by position
    first = item[0] if isinstance(item, (tuple, list)) and item else None
    mapping = first if isinstance(first, Mapping) else item
    if not isinstance(mapping, Mapping):
        wanted = [p.name for p in plain if p.required or p.name in heads]
        return tuple(wanted or [p.name for p in plain[:1]] or ["x"])
    held = [".".join(path) for path, leaf in iterate_leaves(mapping, is_array) if is_array(leaf)]
    kept = {
        p.name for p in plain if p.required or p.name in heads or not _LABEL_NAME.fullmatch(p.name)
    }
    names = [n for p in plain if p.name in kept for n in held if n.partition(".")[0] == p.name]
    if not names and any(p.kind is ParameterKind.REST_BY_NAME for p in takes):
        names = held
    if not names:
        raise UsageError(
            f"the items of {spec} have {', '.join(held) or 'no arrays'}; the model takes "
            f"{', '.join(p.name for p in plain)}",
            hint=Hint(
                "name the parts like the model's parameters, or name the inputs with ",
                Option("input"),
            ),
            option="input",
        )
    return tuple(dict.fromkeys([*names, *asked]))


def _item_arrays(
    item: object, names: Sequence[str], where: str
) -> tuple[dict[str, Array], tuple[str, ...]]:
    found = name_parts(item, names, is_array)
    if found is None and is_array(item):
        # one array for several inputs
        found = NamedItem(parts={})
    parts = {} if found is None else found.parts
    lacking = [name for name in names if name not in parts]
    if lacking or found is None:
        held = ", ".join([*parts, *(found.surplus if found else ())]) or f"a {type(item).__name__}"
        raise UsageError(
            f"{where} lacks {', '.join(lacking) or ', '.join(names)}; it has {held}",
            hint="yield dicts by input name, or tuples in the order of the inputs",
        )
    return {name: _item_array(parts[name], f"{name} of {where}") for name in names}, found.surplus


def _item_array(value: object, what: str) -> Array:
    """Convert to NumPy; half precision becomes float32."""
    import numpy as np

    if not is_array(value):
        raise UsageError(
            f"{what} is a {type(value).__name__}, not an array or a tensor",
            hint="use tensors or NumPy arrays",
        )
    try:
        array: Array = to_array(value) if is_tensor(value) else np.array(value)  # type: ignore[arg-type]  # just asked
    except (RuntimeError, NotImplementedError, TypeError) as error:  # meta, nested, quantized
        raise UsageError(
            f"{what} is not a dense tensor: {first_line(error, limit=80)}",
            hint="use dense tensors",
        ) from error
    return array.astype(np.float32) if array.dtype == np.float16 else array
