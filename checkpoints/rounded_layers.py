"""Eager with some layers rounded as a precision rounds them: what each layer costs alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.torch_tools import intercept_operators
from .mapped_weights import FileMappings, preserve_tensor

if TYPE_CHECKING:
    import torch

_RANK = 2  # of the weights of products and embeddings
_HALVES = {11: "float16", 8: "bfloat16"}  # by the bits of a significand
_TURNED = "Conv1D"  # of transformers: its rows are what is summed
_LEAST = 16  # rows and columns


@dataclass(frozen=True, kw_only=True)
class LayerRounding:
    """How a precision rounds a layer.

    With a group `size`, weights become integers of `bits` in blocks along the axis that is summed.
    Without, all that a module's own code reads and computes become floats with a significand of so
    many bits. Tables of embeddings are rounded with `tables`, to 8 bits a row.
    """

    bits: int
    size: int | None = None
    tables: bool = False

    def round_weight(self, weight: torch.Tensor, *, table: bool, turned: bool) -> torch.Tensor:
        """Return a matrix as its artifact has it."""
        assert self.size is not None
        if table:
            return _round_blocks(weight, 8, weight.shape[1])
        found = _round_blocks(weight.T if turned else weight, self.bits, self.size)
        return found.T if turned else found

    def round_floats(self, value: Any) -> Any:
        """Return tensors of floats in half precision, within its range; others as they are."""
        import torch
        from torch.utils._pytree import tree_map_only

        half = getattr(torch, _HALVES[self.bits])
        most = torch.finfo(half).max

        def round_tensor(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dtype is not torch.float32:
                return tensor
            return tensor.clamp(-most, most).to(half).to(tensor.dtype)

        return tree_map_only(torch.Tensor, round_tensor, value)


def _round_blocks(weight: torch.Tensor, bits: int, size: int) -> torch.Tensor:
    """Round rows in blocks to integers between their least and greatest weight."""
    import torch

    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % size)).reshape(rows, -1, size)
    low, high = padded.amin(-1, keepdim=True).clamp(max=0), padded.amax(-1, keepdim=True).clamp(0)
    most = 2**bits - 1
    step = ((high - low) / most).clamp(min=torch.finfo(weight.dtype).tiny)
    zero = (-low / step).round()
    whole = ((padded / step).round() + zero).clamp(0, most)
    found: torch.Tensor = ((whole - zero) * step).reshape(rows, -1)[:, :columns]
    return found


def list_matrix_layers(module: torch.nn.Module, *, tables: bool) -> tuple[str, ...]:
    """Return the paths of modules with a float32 matrix of their own; each matrix once."""
    import torch

    found = dict[int, list[str]]()
    for path, one in module.named_modules(remove_duplicate=False):
        weight = getattr(one, "weight", None)
        if not isinstance(weight, torch.nn.Parameter) or weight.dtype is not torch.float32:
            continue
        if weight.ndim != _RANK or min(weight.shape) < _LEAST:
            continue
        if tables or not isinstance(one, torch.nn.Embedding):
            found.setdefault(id(weight), []).append(path)
    return tuple(path for paths in found.values() for path in paths)


@contextmanager
def round_layers(
    module: torch.nn.Module, paths: Sequence[str], rounding: LayerRounding
) -> Iterator[None]:
    """Round these layers within the context: their weights, or all that they compute."""
    if rounding.size is None:
        chosen = {id(module.get_submodule(path)) for path in paths}
        with _intercept_modules(module, lambda one: id(one) in chosen, rounding.round_floats):
            yield
        return
    with ExitStack() as changed:
        _round_weights(module, paths, rounding, changed)
        yield


def _round_weights(
    module: torch.nn.Module, paths: Sequence[str], rounding: LayerRounding, changed: ExitStack
) -> None:
    import torch

    places, done = FileMappings(), set[int]()
    for path in paths:
        layer: Any = module.get_submodule(path)
        weight: torch.nn.Parameter = layer.weight
        if id(weight) in done:
            continue
        done.add(id(weight))
        changed.enter_context(preserve_tensor(weight, places))
        table, turned = isinstance(layer, torch.nn.Embedding), type(layer).__name__ == _TURNED
        with torch.no_grad():
            weight.copy_(rounding.round_weight(weight, table=table, turned=turned))


@contextmanager
def list_active_modules(module: torch.nn.Module, found: dict[str, None]) -> Iterator[None]:
    """Add the paths of modules whose own code computes floats to `found`, in order."""
    paths = {id(one): path for path, one in module.named_modules()}

    def note(one: torch.nn.Module) -> bool:
        if paths[id(one)]:
            found[paths[id(one)]] = None
        return False

    with _intercept_modules(module, note, lambda value: value):
        yield


@contextmanager
def _intercept_modules(
    module: torch.nn.Module,
    test: Callable[[torch.nn.Module], bool],
    change: Callable[[Any], Any],
) -> Iterator[None]:
    """Change what operators read and return in the own code of modules that pass a test."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    running: list[torch.nn.Module] = []

    def enter(one: torch.nn.Module, _: object) -> None:
        running.append(one)

    def leave(*_: object) -> None:
        running.pop()

    def handle(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        aliases = any(one.alias_info for one in (*func._schema.arguments, *func._schema.returns))
        if aliases or not running or not test(running[-1]):
            return func(*args, **kwargs)
        with _disable_current_modes():
            args, kwargs = change(tuple(args)), change(dict(kwargs))
        value = func(*args, **kwargs)
        with _disable_current_modes():
            return change(value)

    with ExitStack() as hooks:
        for one in module.modules():
            if isinstance(one, torch.jit.ScriptModule):
                continue
            hooks.callback(one.register_forward_pre_hook(enter).remove)
            hooks.callback(one.register_forward_hook(leave, always_call=True).remove)
        with intercept_operators(handle):
            yield
