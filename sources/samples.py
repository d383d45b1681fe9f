"""Reads the user's own sample inputs, and says what form they have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.errors import UsageError, first_line
from ..core.npz_file import read_npz
from ..core.safetensors_header import header_of
from ..core.signature import DTYPES, Dim, InputSpec
from ..core.torch_file import read_safely
from ..core.tree import leaves

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ..core.contract import Array

_SAMPLE_SUFFIXES = (".npz", ".safetensors", ".pt", ".pth")


def read_samples(path: Path, parameters: Sequence[str] = ()) -> dict[str, Array]:
    """Named arrays from .npz, .safetensors or .pt; half precision comes as float32.

    In a .pt, a tensor is the first parameter, a tuple or list goes by the order of `parameters`,
    a dict holds keyword arguments; nested values get dotted names.

    Raises:
        UsageError: the file is not there, of no such format, or holds something else than arrays.
        CheckpointError: a .pt holds more than tensors and plain values.
    """
    if path.is_dir():
        raise _folder_error(path)
    if not path.is_file():
        names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, names, n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "give an existing .npz file"
        raise UsageError(f"no such sample file: {path}", hint=hint)
    if path.suffix == ".npz":
        found = _from_npz(path)
    elif path.suffix == ".safetensors":
        found = _from_safetensors(path)
    elif path.suffix in _SAMPLE_SUFFIXES:
        found = _from_torch(path, parameters)
    else:
        raise UsageError(
            f"samples in {path.suffix or 'a file without suffix'} cannot be read: {path}",
            hint=f"save them as {', '.join(_SAMPLE_SUFFIXES)}",
        )
    if not found:
        raise UsageError(f"{path} holds no arrays", hint="save at least one named array")
    return found


def _folder_error(path: Path) -> UsageError:
    files = sorted(one for one in path.iterdir() if one.suffix in _SAMPLE_SUFFIXES)
    return UsageError(
        f"{path} is a folder, and --samples takes one file",
        hint=f"--samples {files[0]}"
        if files
        else "save one sample with numpy.savez('sample.npz', NAME=array); a folder goes to --calib",
        option="samples",
    )


def infer_specs(samples: Mapping[str, Array]) -> dict[str, InputSpec]:
    """The form of the samples, every dim fixed.

    Raises:
        UsageError: an array is of a dtype that models are not fed.
    """
    specs: dict[str, InputSpec] = {}
    for name, array in samples.items():
        dtype = str(array.dtype)
        if dtype not in DTYPES:
            raise UsageError(
                f"sample {name} is {dtype}", hint=f"convert it to one of {', '.join(DTYPES)}"
            )
        dims = tuple(Dim.fixed(size) for size in array.shape)
        specs[name] = InputSpec(name=name, dtype=dtype, dims=dims)
    return specs


def _from_npz(path: Path) -> dict[str, Array]:
    import numpy as np

    try:
        found = read_npz(path)
    except ValueError as error:
        raise UsageError(
            f"{path} cannot be read as .npz: {first_line(error)}",
            hint="write it with numpy.savez(path, name=array), no objects in it",
        ) from error
    half = np.float16
    return {n: a.astype(np.float32) if a.dtype == half else a for n, a in found.items()}


def _from_safetensors(path: Path) -> dict[str, Array]:
    from safetensors import safe_open

    try:
        header_of(path)
        with safe_open(path, framework="pt") as file:
            return {name: _tensor_array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 - no dict
    except Exception as error:  # the readers' edge: torch may not have a dtype, or numpy not
        raise UsageError(
            f"{path} cannot be read as safetensors: {first_line(error)}",
            hint="write it with safetensors.torch.save_file",
        ) from error


def _from_torch(path: Path, parameters: Sequence[str]) -> dict[str, Array]:
    import torch

    found: dict[str, Array] = {}
    tree = _name_arguments(read_safely(path), parameters, path)
    for place, leaf in leaves(tree, lambda value: isinstance(value, torch.Tensor)):
        name = ".".join(place)
        if not isinstance(leaf, torch.Tensor):
            raise UsageError(
                f"{path}: {name} is a {type(leaf).__name__}, not a tensor",
                hint=f"leave {name} out, or bind it in the factory",
            )
        found[name] = _tensor_array(leaf)
    return found


def _name_arguments(value: object, parameters: Sequence[str], path: Path) -> Mapping[str, object]:
    """What was saved, as keyword arguments."""
    if isinstance(value, Mapping):
        return {str(key): child for key, child in value.items()}
    if not isinstance(value, (tuple, list)):
        return {next(iter(parameters), "x"): value}
    names: Iterable[str] = parameters or [f"input_{index}" for index in range(len(value))]
    if parameters and len(value) > len(parameters):
        raise UsageError(
            f"{path} holds {len(value)} positional inputs; forward takes {', '.join(parameters)}",
            hint="save a dict of keyword arguments instead",
        )
    return dict(zip(names, value, strict=False))


def _tensor_array(tensor: torch.Tensor) -> Array:
    import torch

    half = tensor.dtype in (torch.float16, torch.bfloat16)
    array: Array = (tensor.float() if half else tensor.clone()).detach().numpy()
    return array
