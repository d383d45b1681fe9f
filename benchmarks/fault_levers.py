"""Where a fault is planted: parameters that do something, and what is done to them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modelc.checkpoints.eager_model import open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.core.call import parameters_of
from modelc.core.contract import Feed
from modelc.core.signature import Signature
from modelc.tests.nets import zoo

Alter = Callable[[nn.Module], None]
_VALUES = re.compile(r"(^|\.)(value|v_proj|v|v_lin|to_v)$")
_NORMS = re.compile(r"(Layer|RMS|Group|Instance|Batch)Norm", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Levers:
    """How much each element of each parameter moves the outputs: |w * gradient|, as float64."""

    pull: Mapping[str, Tensor]

    def live(self, *kinds: type[nn.Module], module: nn.Module, part: str = "weight") -> list[str]:
        """Names of the parameters called `part` of such layers, those that move the outputs."""
        found = [
            f"{name}.{part}"
            for name, layer in module.named_modules()
            if isinstance(layer, kinds) and getattr(layer, part, None) is not None
        ]
        return [name for name in found if name in self.pull and self.pull[name].max() > 0]

    def typical(self, name: str) -> int:
        """The flat index of the parameter's element of median pull, of those with any."""
        pull = self.pull[name].flatten()
        alive = pull[pull > 0]
        return int((pull - alive.median()).abs().argmin())


def levers(module: nn.Module, signature: Signature, feed: Feed) -> Levers:
    """Differentiate the outputs, each element with a weight of its own, for every parameter."""
    twin = copy.deepcopy(module).double()
    for value in twin.parameters():
        value.requires_grad_(True)
    eager = open_eager(
        LoadedModule(kind="module", module=twin, takes=parameters_of(twin.forward)), signature
    )
    given = [torch.from_numpy(feed[name].copy()) for name in eager.inputs]
    outputs = eager.flat(*(one.double() if one.is_floating_point() else one for one in given))
    generator = torch.Generator().manual_seed(0)
    floats = [one for one in outputs if one.is_floating_point() and one.requires_grad]
    total = torch.stack(
        [
            (one * torch.randn(one.shape, generator=generator, dtype=one.dtype)).sum()
            for one in floats
        ]
    ).sum()
    torch.autograd.backward(total)
    pull = {
        name: (value * value.grad).abs().detach()
        for name, value in twin.named_parameters()
        if value.grad is not None
    }
    return Levers(pull=pull)


def at(names: Sequence[str], where: float) -> str:
    """The name at that part of the way through."""
    return names[round(where * (len(names) - 1))]


def element(name: str, index: int, factor: float) -> Alter:
    """One element of a parameter times `factor`."""

    def alter(module: nn.Module) -> None:
        with torch.no_grad():
            module.get_parameter(name).view(-1)[index] *= factor

    return alter


def whole(name: str, change: Callable[[Tensor], Tensor]) -> Alter:
    """A parameter changed as a whole."""

    def alter(module: nn.Module) -> None:
        with torch.no_grad():
            value = module.get_parameter(name)
            value.copy_(change(value.detach().clone()))

    return alter


def every(change: Callable[[Tensor], Tensor]) -> Alter:
    """All parameters of more than one dim changed."""

    def alter(module: nn.Module) -> None:
        with torch.no_grad():
            for value in module.parameters():
                if value.ndim > 1:
                    value.copy_(change(value.detach().clone()))

    return alter


def head(name: str, heads: int, factor: float) -> Alter:
    """The first attention head's share of a value projection, weight and bias, times `factor`."""

    def alter(module: nn.Module) -> None:
        layer = module.get_submodule(name)
        with torch.no_grad():
            for value in layer.parameters(recurse=False):
                value[: len(value) // heads] *= factor

    return alter


def value_layers(module: nn.Module) -> list[str]:
    """Names of the value projections of attention."""
    return [
        name
        for name, layer in module.named_modules()
        if _VALUES.search(name) and isinstance(layer, nn.Linear)
    ]


def norms(module: nn.Module) -> list[str]:
    """Names of the normalisation layers, by their class."""
    return [name for name, layer in module.named_modules() if _NORMS.search(type(layer).__name__)]


def epsilon(name: str, value: float) -> Alter:
    """Another epsilon in one normalisation layer."""

    def alter(module: nn.Module) -> None:
        layer = module.get_submodule(name)
        setattr(layer, "eps" if hasattr(layer, "eps") else "variance_epsilon", value)

    return alter


def set_attribute(name: str, value: object) -> Alter:
    """Another value of an attribute, by its dotted name."""
    path, _, last = name.rpartition(".")

    def alter(module: nn.Module) -> None:
        setattr(module.get_submodule(path), last, value)

    return alter


def tanh_gelu(module: nn.Module) -> None:
    """Every exact GELU as its tanh approximation, and the other way round."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            kind = type(child).__name__
            if isinstance(child, nn.GELU) or kind == "GELUActivation":
                exact = getattr(child, "approximate", "none") == "none"
                setattr(parent, name, nn.GELU("tanh" if exact else "none"))
            elif kind in {"NewGELUActivation", "GELUTanh"}:
                setattr(parent, name, nn.GELU("none"))


class _Scaled(nn.Module):
    """What a dropout that was left on does on average, but for its noise."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Map x to a multiple of it."""
        return x * self.factor


def dropout_scaled(factor: float) -> Alter:
    """The last dropout layer that is a module of its own scales by `factor`."""

    def alter(module: nn.Module) -> None:
        found = [name for name, layer in module.named_modules() if isinstance(layer, nn.Dropout)]
        path, _, last = found[-1].rpartition(".")
        setattr(module.get_submodule(path), last, _Scaled(factor))

    return alter


def stale(name: str, seed: int, *, only: str = "") -> Alter:
    """The weights of another seed: all of them, or one parameter's."""

    def alter(module: nn.Module) -> None:
        other = zoo.build(name, seed).state_dict()
        mine = module.state_dict()
        taken = [key for key in mine if not only or key == only]
        module.load_state_dict({**mine, **{key: other[key] for key in taken}})

    return alter


def round_through(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Through a smaller dtype and back."""
    return lambda value: value.to(dtype).to(value.dtype)


def eight_bits(value: Tensor) -> Tensor:
    """As 8-bit weights with a scale for each output channel."""
    scale = value.abs().amax(dim=tuple(range(1, value.ndim)), keepdim=True) / 127
    return torch.round(value / scale) * scale


def truncate(value: Tensor) -> Tensor:
    """Elements below 1e-3 dropped."""
    return value.where(value.abs() >= 1e-3, 0.0)  # noqa: PLR2004 - the fault itself


def two_swapped(value: Tensor) -> Tensor:
    """The first two output channels in each other's place."""
    order = [1, 0, *range(2, len(value))]
    return value[order]
