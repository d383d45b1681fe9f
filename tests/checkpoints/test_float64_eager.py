"""The reference in float64: a copy, or weights that are cast one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modelc.checkpoints import eager_perturbations, weights_on_use
from modelc.checkpoints.eager_perturbations import perturb_weights
from modelc.checkpoints.float64_eager import Float64Error, open_float64
from modelc.core.call import bind_inputs, parameters_of
from modelc.core.contract import Array

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
IDS = np.array([1, 2, 0])


class Casting(nn.Module):
    """Asks for float32 in every way that a forward can."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 5)
        self.shift: torch.Tensor
        self.register_buffer("shift", torch.linspace(0, 1, 5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x).float().to(torch.float32).type(torch.float32)
        y = y.softmax(-1, dtype=torch.float32) + torch.zeros(5, dtype=torch.float32)
        y = y + torch.arange(5.0) / 3 + self.shift + torch.full((5,), 0.1)
        return y.exp(), y.argmax(-1)


def by_hand(module: Casting) -> Array:
    """The same in numpy's float64."""
    weight, bias, shift = (
        t.detach().numpy().astype(np.float64)
        for t in (module.linear.weight, module.linear.bias, module.shift)
    )
    y = X.astype(np.float64) @ weight.T + bias
    y = np.exp(y) / np.exp(y).sum(-1, keepdims=True)
    return np.asarray(np.exp(y + np.arange(5) / 3 + shift + 0.1))


def run(module: nn.Module, **feed: Array) -> dict[str, Array]:
    names = tuple(feed)
    return open_float64(module, names, bind_inputs(names, parameters_of(module))).run(feed)


def test_casts_in_forward_do_not_round_it() -> None:
    module = Casting().eval()
    outputs = run(module, x=X)
    first, second = outputs.values()
    assert first.dtype == np.float64
    np.testing.assert_allclose(first, by_hand(module), rtol=1e-14)
    assert second.dtype == np.int64


def test_the_users_module_and_the_default_dtype_stay_as_they_were() -> None:
    module = Casting().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run(module, x=X)
    assert torch.get_default_dtype() is torch.float32
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


class Experts(nn.Module):
    """Each row multiplied by the matrix of its group, by torch's kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([1, 3], dtype=torch.int32)
        found: torch.Tensor = nn.functional.grouped_mm(x, self.weight, offs=ends)
        return found


def test_experts_run_though_torch_multiplies_groups_in_float32_alone() -> None:
    module = Experts().eval()
    weight = module.weight.detach().numpy().astype(np.float64)
    (found,) = run(module, x=X).values()
    rows = X.astype(np.float64)
    np.testing.assert_allclose(found, np.vstack([rows[:1] @ weight[0], rows[1:] @ weight[1]]))


def test_an_exported_program_is_raised_too() -> None:
    module = Casting().eval()
    program = torch.export.export(module, (torch.from_numpy(X),)).module()
    outputs = open_float64(program, ("x",), bind_inputs(("x",), parameters_of(module))).run(
        {"x": X}
    )
    np.testing.assert_allclose(next(iter(outputs.values())), by_hand(module), rtol=1e-14)


def _traced(module: nn.Module) -> Any:
    return torch.jit.trace(module, torch.from_numpy(X))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("capture", [torch.jit.script, _traced])
def test_torchscript_that_rounds_inside_is_rejected(capture: Any) -> None:
    class Rounding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.float32) * 0.1

    with pytest.raises(Float64Error, match="TorchScript"):
        open_float64(
            capture(Rounding().eval()), ("x",), bind_inputs(("x",), parameters_of(Rounding()))
        )


def test_torchscript_that_does_not_is_run() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)).eval()
    script = _traced(module)
    binding = bind_inputs(("input",), parameters_of(module))
    found = open_float64(script, ("input",), binding).run({"input": X})
    wanted = module.double()(torch.from_numpy(X.astype(np.float64))).detach().numpy()
    np.testing.assert_allclose(next(iter(found.values())), wanted, rtol=1e-12)


def test_a_model_that_rejects_float64_says_why() -> None:
    class Strict(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype is not torch.float32:
                raise TypeError("float32 alone")
            return x

    with pytest.raises(Float64Error, match="float32 alone"):
        run(Strict(), x=X)


class Rounding(nn.Module):
    """Goes through float32 in a way that cannot be raised."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.linear = nn.Linear(4, 4)
        self.cache = torch.zeros(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        bias: torch.Tensor = self.linear.bias
        if self.how == "name":
            return y.type("torch.FloatTensor") * bias
        if self.how == "other":
            return y.to(self.cache) * bias
        if self.how == "slice":
            self.cache[:] = y
            return self.cache * bias
        return self.cache.copy_(y) * bias


@pytest.mark.parametrize("how", ["name", "other", "slice", "copy"])
def test_what_goes_through_float32_all_the_same_is_rejected(how: str) -> None:
    with pytest.raises(Float64Error, match="float32"):
        run(Rounding(how).eval(), x=X)


def test_a_model_that_ends_in_float32_all_the_same_is_rejected() -> None:
    class Numpy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy().astype(np.float32)).exp()

    with pytest.raises(Float64Error, match="float32"):
        run(Numpy(), x=X)


def test_constants_of_float32_are_no_rounding() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.linspace(0, 1, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.zeros(3, 4).masked_fill_(x > 0, 1.0)
            return (x * self.table + mask).exp()

    module = Table()
    (y,) = run(module, x=X).values()
    wanted = np.exp(X.astype(np.float64) * module.table.numpy() + (X > 0))
    np.testing.assert_allclose(y, wanted, rtol=1e-14)


BATCHES = np.random.default_rng(0).standard_normal((5, 3, 8)).astype(np.float32)


class Layers(nn.Module):
    """Recurrent, attending, normalising and parametrised layers, and a weight used by hand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = nn.LSTM(8, 16, 2, bidirectional=True)
        self.attention = nn.MultiheadAttention(32, 4)
        self.layer = nn.TransformerEncoderLayer(32, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(32)
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(32, 4, 1))
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.recurrent(x)
        y, _ = self.attention(y, y, y)
        y = self.layer(y).to(self.linear.weight.dtype)
        y = y @ self.linear.weight.T + self.linear.bias[None]
        out: torch.Tensor = self.conv(self.norm(y.permute(1, 2, 0)))
        return out


class Tied(nn.Module):
    """A table that is looked up, and multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(x.abs().long() % 9))
        return out


class Writing(nn.Module):
    """Writes to its weight, and uses it afterwards."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = {"in place": self.weight, "data": self.weight.data, "view": self.weight.detach()[:2]}
        ways[self.way].add_(1)
        return x * self.weight


def reference(module: nn.Module, whole: int) -> dict[str, Array]:
    module = module.eval().requires_grad_(False)
    binding = bind_inputs(("x",), parameters_of(module.forward))
    return open_float64(module, ("x",), binding, whole=whole).run({"x": BATCHES})


@pytest.mark.parametrize("build", [Layers, Tied])
def test_it_is_bit_for_bit_what_a_copy_gives(build: Callable[[], nn.Module]) -> None:
    module = build()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    copied, cast = reference(module, 2**40), reference(module, 0)
    assert all(array.dtype == np.float64 for array in cast.values())
    assert all(np.array_equal(copied[name], cast[name]) for name in copied)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("way", ["in place", "data", "view"])
def test_a_model_that_writes_to_its_weights_has_none(way: str) -> None:
    module = Writing(way)
    with pytest.raises(Float64Error, match="write"):
        reference(module, 0)
    assert torch.equal(module.weight, torch.ones(8))


class Wide(nn.Module):
    """A table, and linear layers with and without a bias that are used in blocks of rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 8)
        self.inner = nn.Linear(8, 31)
        self.head = nn.Linear(31, 20, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(self.table(x)).tanh())
        return out


def test_blocks_of_rows_give_the_same_product(monkeypatch: pytest.MonkeyPatch) -> None:
    module, feed = Wide().eval().requires_grad_(False), {"x": np.arange(12).reshape(2, 6)}
    binding = bind_inputs(("x",), parameters_of(module.forward))
    copied = open_float64(module, ("x",), binding).run(feed)["output"]
    monkeypatch.setattr(weights_on_use, "_BLOCK", 50)
    seen: list[int] = []
    cast = torch.Tensor.double

    def watch(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.numel())
        return cast(tensor)

    monkeypatch.setattr(torch.Tensor, "double", watch)
    found = open_float64(module, ("x",), binding, whole=0).run(feed)["output"]
    assert np.allclose(found, copied, rtol=1e-14, atol=1e-15)
    assert max(seen) <= 12 * 8  # rows of the table, and never a whole weight of 620


def test_large_weights_are_perturbed_in_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Wide().eval().requires_grad_(False)
    x = torch.arange(12).reshape(2, 6)
    monkeypatch.setattr(eager_perturbations, "_LARGE", 0)
    monkeypatch.setattr(weights_on_use, "_BLOCK", 50)
    versions = [one._version for one in module.parameters()]
    plain, found = module(x), []
    for share, seed in ((1e-3, 0), (1e-3, 0), (-1e-3, 0), (1e-3, 1)):
        with perturb_weights(module, share, seed):
            found.append(module(x) - plain)
    assert [one._version for one in module.parameters()] == versions  # never written to
    one, again, opposite, other = found
    scale = float(plain.norm())
    assert 3e-4 < float(one.norm()) / scale < 1e-2
    assert one.equal(again)
    assert float((one + opposite).norm()) < 0.02 * float(one.norm())
    assert float((one - other).norm()) > 0.5 * float(one.norm())
    assert module(x).equal(plain)
