"""Describe a checkpoint without running it: kind, tensors, likely inputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError, ErrorCode, UsageError
from ..core.torch_file import read_torch_file
from .checkpoint_files import find_contents
from .factory import call_factory, wrap_built_module
from .loaded_module import HyperParameters, find_hyper_parameters
from .sniff import (
    HUGGINGFACE,
    PT2,
    SAFETENSORS,
    STATE_DICT,
    TORCHSCRIPT,
    find_pickled_class,
    sniff_kind,
)
from .weight_sets import find_states

if TYPE_CHECKING:
    import torch

    from .loaded_module import LoadedModule

_EMBEDDING_NAME = re.compile(r"(?:^|\.)(?:wte|[^.]*emb[^.]*)\.weight$", re.I)
# Ranks of the weights of 2-d and 1-d convolutions, and of matrices.
_IMAGE, _SERIES, _MATRIX = 4, 3, 2


@dataclass(frozen=True, kw_only=True)
class TensorSummary:
    """One tensor of a checkpoint; `dtype` by torch's name.

    `takes_ids` says whether it is an embedding of an input; None without a module.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    takes_ids: bool | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {list(self.shape)}"


@dataclass(frozen=True, kw_only=True)
class CheckpointDescription:
    """The description of a checkpoint.

    `unreadable` is why its weights were not read. `inputs` are likely inputs for `--input`, with
    EDIT_ words for unknown sizes; they are `certain` if they come from the model. `brings_code`
    says that no factory is needed; `whole` is the class of a pickled module.
    """

    path: Path
    kind: str
    tensors: tuple[TensorSummary, ...] = ()
    unreadable: str = ""
    inputs: tuple[str, ...] = ()
    certain: bool = False
    brings_code: bool = False
    whole: str = ""

    @property
    def parameters(self) -> int:
        """The number of elements of its tensors."""
        return sum(prod(one.shape) for one in self.tensors)


def describe_checkpoint(
    path: Path, model: str | None = None, arguments: Mapping[str, str] | None = None
) -> CheckpointDescription:
    """Describe a checkpoint; a factory is called only if one is named.

    Raises:
        UsageError: `path` or the factory does not exist.
        CheckpointError: it is not a checkpoint, or corrupt; the factory raised.
    """
    if not path.exists():
        raise UsageError(
            f"no such checkpoint: {path}",
            hint=f"list the folder: ls {path.parent}",
            code=ErrorCode.NOT_FOUND,
        )
    kind, files = find_contents(path, with_factory=model is not None)
    tensors, recorded, unreadable = _list_tensors(files)
    alone = kind in (STATE_DICT, SAFETENSORS)
    loaded = None
    if model is not None and alone:
        made = call_factory(model, arguments or {}, recorded)
        loaded = wrap_built_module(made.module, kind=kind, notes=made.notes)
    inputs, certain = _describe_inputs(loaded, tensors) if alone else ((), True)
    return CheckpointDescription(
        path=path,
        kind=kind,
        tensors=tensors,
        unreadable=unreadable,
        inputs=inputs,
        certain=certain,
        brings_code=kind in (TORCHSCRIPT, PT2, HUGGINGFACE),
        whole=(find_pickled_class(path) or "") if unreadable and path.is_file() else "",
    )


def _list_tensors(files: Sequence[Path]) -> tuple[tuple[TensorSummary, ...], HyperParameters, str]:
    """List names and shapes; archives with code are not opened."""
    found: list[TensorSummary] = []
    recorded = HyperParameters()
    for file in files:
        kind = "" if file.suffix == ".json" else sniff_kind(file)
        if kind == SAFETENSORS:
            found += _header_tensors(file)
        if kind != STATE_DICT:
            continue
        try:
            held = read_torch_file(file)
        except CheckpointError as error:
            return (), recorded, error.message
        recorded = find_hyper_parameters(held)
        found += _state_dict_tensors(held)
    return tuple(found), recorded, ""


def _header_tensors(path: Path) -> Iterator[TensorSummary]:
    """Yield the tensors of a safetensors file in the order of their bytes."""
    with path.open("rb") as file:
        entries = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    entries.pop("__metadata__", None)
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"][0]):
        yield TensorSummary(
            name=name, dtype=_torch_dtype_name(entry["dtype"]), shape=tuple(entry["shape"])
        )


def _torch_dtype_name(text: str) -> str:
    """Return torch's name for a dtype such as `F32`."""
    kinds = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint"}
    parts = re.fullmatch(r"([A-Z]+)(\d+)", str(text))
    return f"{kinds[parts[1]]}{parts[2]}" if parts and parts[1] in kinds else str(text).lower()


def _state_dict_tensors(held: object) -> Iterator[TensorSummary]:
    import torch

    state = next(iter(find_states(held).values()), {})
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            yield TensorSummary(name=str(name), dtype=dtype, shape=tuple(value.shape))


def _describe_inputs(
    loaded: LoadedModule | None, tensors: Sequence[TensorSummary]
) -> tuple[tuple[str, ...], bool]:
    """Return the model's inputs and True, or a guess from its first layer and False."""
    if loaded is None:
        return (_guess_input("x", find_first_layer(tensors)),), False
    if loaded.known:
        return tuple(map(str, loaded.known.values())), True
    own = _module_tensors(loaded.module)
    names = [p.name for p in loaded.takes if p.required] or ["x"]
    rest = (f"{name}:float32[batch=1..8,EDIT_SIZES]" for name in names[1:])
    return (_guess_input(names[0], find_first_layer(own)), *rest), False


def _module_tensors(module: torch.nn.Module) -> list[TensorSummary]:
    """List the tensors of a module; an embedding takes ids if it is first or named so."""
    from torch import nn

    parts = [(name, part) for name, part in module.named_modules() if part._parameters]
    tables = [name for name, part in parts if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    first = {name for name, _ in parts[:1]}
    weights = {f"{name}.weight".lstrip("."): name in first for name in tables}
    return [
        TensorSummary(
            name=name,
            dtype="",
            shape=tuple(value.shape),
            takes_ids=name in weights and (weights[name] or bool(_EMBEDDING_NAME.search(name))),
        )
        for name, value in module.state_dict().items()
    ]


def find_first_layer(tensors: Sequence[TensorSummary]) -> TensorSummary | None:
    """Return the weight that most likely consumes the input; files may have any order.

    An embedding; else a convolution, else a matrix, whose input size is no other weight's output
    size.
    """
    weights = [one for one in tensors if len(one.shape) > 1]
    tokens = [one for one in weights if _is_embedding(one)]
    if tokens:
        return tokens[0]
    if weights and _is_embedding_shape(weights[0], tensors):
        return replace(weights[0], takes_ids=True)
    convolutions = [one for one in weights if len(one.shape) > _MATRIX]
    given = {one.shape[0] for one in weights}
    among = convolutions or weights
    outer = [one for one in among if one.shape[1] not in given] or among
    return max(outer, key=lambda one: one.shape[1] if convolutions else 0, default=None)


def _is_embedding(weight: TensorSummary) -> bool:
    """Whether it is an embedding of an input, by its module or its name."""
    if len(weight.shape) != _MATRIX or weight.takes_ids is not None:
        return bool(weight.takes_ids)
    return bool(_EMBEDDING_NAME.search(weight.name))


def _is_embedding_shape(weight: TensorSummary, tensors: Sequence[TensorSummary]) -> bool:
    """Whether the first weight has the shape of an embedding.

    It has no bias and more rows than columns; its columns are the input size of other weights,
    its rows are not.
    """
    if len(weight.shape) != _MATRIX or weight.takes_ids is not None:
        return False
    rows, columns = weight.shape
    stem = weight.name.rpartition(".")[0]
    others = {one.shape[1] for one in tensors if len(one.shape) > 1 and one is not weight}
    has_bias = any(one.name == f"{stem}.bias".lstrip(".") for one in tensors)
    return rows > columns and not has_bias and columns in others and rows not in others


def _guess_input(name: str, first: TensorSummary | None) -> str:
    """Guess an input from the weight of the first layer."""
    if first is None:
        return f"{name}:float32[batch=1..8,EDIT_SIZES]"
    if _is_embedding(first):
        return f"{name}:int64[batch=1..8,seq=1..64]{{0..{first.shape[0] - 1}}}"
    rest = {_IMAGE: ",EDIT_HEIGHT,EDIT_WIDTH", _SERIES: ",EDIT_LENGTH", _MATRIX: ""}
    return f"{name}:float32[batch=1..8,{first.shape[1]}{rest.get(len(first.shape), ',EDIT_SIZES')}]"
