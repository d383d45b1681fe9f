"""Weights stay in their mapped file where nobody can tell, and are what the file says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from modelc.checkpoints.eager_perturbations import perturb_weights
from modelc.checkpoints.mapped_weights import FileMappings, preserve_tensor, release_pages
from modelc.checkpoints.state_dict_checkpoint import read_portions
from modelc.checkpoints.weight_loading import KeyRenaming, ModuleFiller

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's /proc")
Built = TypeVar("Built", bound=nn.Module)
SIDE = 80  # a weight of 25 kB: several pages


class Tied(nn.Module):
    """One Parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIDE, SIDE)
        self.head = nn.Linear(SIDE, SIDE, bias=False)
        self.head.weight = self.embed.weight


class Halves(nn.Module):
    """Two Parameters that are halves of one memory."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.zeros(2 * SIDE, SIDE)
        self.a, self.b = nn.Parameter(whole[:SIDE]), nn.Parameter(whole[SIDE:])
        self.whole = whole

    def seen(self) -> list[tuple[torch.Tensor, str]]:
        return [(self.whole[:SIDE], "a"), (self.whole[SIDE:], "b")]


class Viewed(nn.Module):
    """Keeps a view of its weight beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIDE, SIDE))
        self.rows = self.weight.detach()[:1]

    def seen(self) -> list[tuple[torch.Tensor, str]]:
        return [(self.rows, "weight")]


def filled(module: Built, path: Path, weights: dict[str, torch.Tensor]) -> Built:
    save_file(weights, path / "a.safetensors")
    filling = ModuleFiller(module=module, rename=KeyRenaming(prefixes=()))
    for portion in read_portions(path / "a.safetensors"):
        filling.add(portion)
    filling.finish("a", strict=False)
    module.requires_grad_(False)
    return module


def saved(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: torch.randn_like(tensor) for name, tensor in module.state_dict().items()}


def test_weights_lie_in_the_file_and_are_what_it_says(tmp_path: Path) -> None:
    wanted = saved(nn.Linear(SIDE, SIDE))
    module = filled(nn.Linear(SIDE, SIDE), tmp_path, wanted)
    assert FileMappings().hold(module.weight)
    assert all(torch.equal(module.state_dict()[name], wanted[name]) for name in wanted)


def test_a_tied_weight_stays_one(tmp_path: Path) -> None:
    wanted = torch.randn(SIDE, SIDE)
    module = filled(Tied(), tmp_path, {"embed.weight": wanted})
    assert module.head.weight is module.embed.weight
    assert torch.equal(module.head.weight, wanted)
    assert FileMappings().hold(module.head.weight)


@pytest.mark.parametrize("build", [Halves, Viewed])
def test_memory_that_others_share_is_copied_into(
    tmp_path: Path, build: Callable[[], Halves | Viewed]
) -> None:
    module = build()
    wanted = saved(module)
    filled(module, tmp_path, wanted)
    assert not any(FileMappings().hold(parameter) for parameter in module.parameters())
    for found, name in module.seen():
        assert torch.equal(found, wanted[name][: len(found)])


def test_what_the_file_ties_and_the_module_does_not_stays_two(tmp_path: Path) -> None:
    one = torch.randn(SIDE, SIDE)
    torch.save({"0.weight": one, "1.weight": one}, tmp_path / "a.pt")
    read = torch.load(tmp_path / "a.pt", mmap=True)
    two = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(2)))
    ModuleFiller(module=two, rename=KeyRenaming(prefixes=())).add(read)
    with torch.no_grad():
        two.get_parameter("0.weight").zero_()
    assert torch.equal(two.get_parameter("1.weight"), one)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_another_dtype_is_cast_as_ever(tmp_path: Path, dtype: torch.dtype) -> None:
    wanted = torch.randn(SIDE, SIDE).to(dtype)
    module = filled(nn.Linear(SIDE, SIDE, bias=False), tmp_path, {"weight": wanted})
    assert torch.equal(module.get_parameter("weight"), wanted.float())


def test_buffers_that_no_file_fills_are_as_the_module_made_them(tmp_path: Path) -> None:
    module = nn.Linear(SIDE, SIDE, bias=False)
    module.register_buffer("ramp", torch.arange(SIDE * SIDE).float(), persistent=False)
    filled(module, tmp_path, saved(module))
    assert torch.equal(module.get_buffer("ramp"), torch.arange(SIDE * SIDE).float())


def test_a_module_that_loads_its_weights_its_own_way_still_does(tmp_path: Path) -> None:
    module = nn.Linear(SIDE, SIDE, bias=False)
    module.register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]  # torch's own
        lambda _, state, *__: state.update(weight=state["weight"] * 2)
    )
    wanted = torch.randn(SIDE, SIDE)
    filled(module, tmp_path, {"weight": wanted})
    assert torch.equal(module.weight, 2 * wanted)


def test_memory_that_was_given_back_is_read_again(tmp_path: Path) -> None:
    wanted = saved(nn.Linear(SIDE, SIDE))
    module = filled(nn.Linear(SIDE, SIDE), tmp_path, wanted)
    module.weight[0] = 7.0  # private memory now: it is in no file
    release_pages(module)
    assert torch.equal(module.weight[1:], wanted["weight"][1:])
    assert (module.weight[0] == 7.0).all()


@pytest.mark.parametrize("written", [False, True], ids=["clean", "written"])
def test_what_was_changed_is_as_before(tmp_path: Path, *, written: bool) -> None:
    module = filled(nn.Linear(SIDE, SIDE), tmp_path, saved(nn.Linear(SIDE, SIDE)))
    if written:
        module.weight[SIDE // 2] = 3.0
    before = module.weight.detach().clone()
    with preserve_tensor(module.weight, FileMappings()):
        module.weight.mul_(2)
        assert torch.equal(module.weight, 2 * before)
    assert torch.equal(module.weight, before)


def test_weights_off_by_a_share_are_the_same_mapped_or_not(tmp_path: Path) -> None:
    wanted = saved(nn.Linear(SIDE, SIDE))
    plain = nn.Linear(SIDE, SIDE).requires_grad_(False)
    plain.load_state_dict(wanted)
    mapped = filled(nn.Linear(SIDE, SIDE), tmp_path, wanted)
    with perturb_weights(plain, 1e-3, 5), perturb_weights(mapped, 1e-3, 5):
        assert torch.equal(plain.weight, mapped.weight)
        assert not torch.equal(mapped.weight, wanted["weight"])
    assert torch.equal(mapped.weight, wanted["weight"])
    assert torch.equal(plain.bias, wanted["bias"])
