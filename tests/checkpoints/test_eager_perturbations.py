"""Other valid outputs of eager: sequential sums, and ties broken by index."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from modelc.checkpoints.eager_model import Eager
from modelc.checkpoints.eager_perturbations import (
    LONGEST_SUM,
    TieChoices,
    order_ties,
    sum_sequentially,
)
from modelc.core.call import bind_inputs, parameters_of


def one_by_one(values: np.ndarray) -> np.float32:
    total = np.float32(0)
    for value in values:
        total = np.float32(total + value)
    return total


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_a_long_sum_is_made_in_order(name: str) -> None:
    x = torch.full((1, 2, 30, 30), 0.1)
    with sum_sequentially():
        found = getattr(x, name)((2, 3))
    wanted = one_by_one(x[0, 0].flatten().numpy())
    assert found.shape == (1, 2)
    assert found[0, 0].item() == wanted / np.float32(900 if name == "mean" else 1)
    assert found[0, 0].item() != getattr(x, name)((2, 3))[0, 0].item()


@pytest.mark.parametrize(
    "pool", [torch.nn.AdaptiveAvgPool2d(1), torch.nn.AdaptiveAvgPool2d((1, 1))]
)
def test_a_global_pool_errs_by_more_and_keeps_its_shape(pool: torch.nn.Module) -> None:
    x = torch.full((2, 3, 56, 56), 0.3)
    with sum_sequentially():
        found = pool(x)
    assert found.shape == (2, 3, 1, 1)
    truth = x[..., :1, :1]
    assert abs(found - truth).max() > 1e-6
    assert abs(pool(x) - truth).max() < 1e-7


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum(),
        lambda x: x.mean(),
        lambda x: x.sum(-1),
        lambda x: x.mean(dim=(0, 2), keepdim=True),
        lambda x: x.sum((0, 1, 2), keepdim=True),
        lambda x: x.double().mean(0),
        lambda x: x.sum(1, dtype=torch.float64),
        lambda x: x.to(torch.int64).sum(),
        lambda x: x[:, :0].sum(1),
        lambda x: x[0, 0, 0].sum(),
        lambda x: x.transpose(0, 2).mean(1),
    ],
)
def test_every_other_form_is_as_torch_gives_it(call: object) -> None:
    assert callable(call)
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    with sum_sequentially():
        found = call(x)
    torch.testing.assert_close(found, call(x))


def test_sums_beyond_the_longest_are_left_to_torch() -> None:
    x = torch.full((LONGEST_SUM + 1,), 0.1)
    with sum_sequentially():
        found = x.sum()
    assert found.item() == x.sum().item()


NORMS = {
    "layer": (torch.nn.LayerNorm((6, 5, 4)), (3, 6, 5, 4)),
    "layer, last axis": (torch.nn.LayerNorm(7, elementwise_affine=False), (2, 3, 7)),
    "group": (torch.nn.GroupNorm(2, 6), (3, 6, 5, 4)),
    "group, no size": (torch.nn.GroupNorm(3, 6), (3, 6)),
    "group, plain": (torch.nn.GroupNorm(3, 6, affine=False), (2, 6, 5)),
    "instance": (torch.nn.InstanceNorm2d(6, affine=True), (3, 6, 5, 4)),
    "instance, 1d": (torch.nn.InstanceNorm1d(6), (3, 6, 5)),
    "batch": (torch.nn.BatchNorm2d(6).eval(), (3, 6, 5, 4)),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_gives_what_torch_gives_but_for_roundoff(name: str) -> None:
    norm, shape = NORMS[name]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        x = torch.randn(shape, generator=generator)
        wanted = norm(x)
        with sum_sequentially():
            found = norm(x)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize(
    "norm",
    [torch.nn.GroupNorm(6, 6, affine=False), torch.nn.InstanceNorm2d(6)],
    ids=["group", "instance"],
)
def test_a_norm_of_equal_elements_shows_what_its_mean_errs_by(norm: torch.nn.Module) -> None:
    x = torch.linspace(0.1, 0.9, 6)[:, None, None].expand(2, 6, 31, 31)
    with sum_sequentially():
        found = norm(x)
    assert 1e-4 < found.abs().max() < 1e-1
    assert norm(x).abs().max() < found.abs().max() / 5


ATTENTION_FORMS: tuple[dict[str, object], ...] = (
    {},
    {"is_causal": True},
    {"scale": 0.3},
    {"enable_gqa": True},
    {"attn_mask": torch.tensor([[True, False, True, False, False]])},
    {"attn_mask": torch.tensor([[0.5, -1.0, 0.0, 2.0, -torch.inf]])},
)


@pytest.mark.parametrize("given", ATTENTION_FORMS)
def test_attention_keeps_its_meaning(given: dict[str, object]) -> None:
    draw = torch.Generator().manual_seed(0)
    heads = 2 if "enable_gqa" in given else 4
    query = torch.randn(2, 4, 5, 8, generator=draw)
    key, value = (torch.randn(2, heads, 5, 8, generator=draw) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    with sum_sequentially():
        found = attend(query, key, value, **given)  # type: ignore[arg-type]
    torch.testing.assert_close(found, attend(query, key, value, **given))  # type: ignore[arg-type]


def test_attention_over_equal_values_errs_by_more() -> None:
    """As ONNX Runtime does: 1,500 encoder positions of a constant feed to Whisper."""
    query, value = torch.zeros(1, 2, 3, 8), torch.full((1, 2, 1500, 8), 0.3)
    attend = torch.nn.functional.scaled_dot_product_attention
    with sum_sequentially():
        fused, plain = attend(query, value, value), torch.full((2, 3, 1500), 0.1) @ value[0]
    assert fused.shape == (1, 2, 3, 8)
    assert 3e-6 < (fused / 0.3 - 1).abs().max() < 1e-4
    terms = np.float32(0.1) * value[0, 0, :, 0].numpy()
    assert plain[0, 0, 0].item() == pytest.approx(one_by_one(terms), rel=1e-6)
    assert plain[0, 0, 0].item() != pytest.approx(45, rel=3e-6)


def resized(x: torch.Tensor, mode: str, **given: object) -> torch.Tensor:
    return torch.nn.functional.interpolate(x, mode=mode, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("given", [{"size": (3, 5)}, {"scale_factor": 0.4}])
def test_a_resize_is_off_by_its_scale_alone(mode: str, given: dict[str, object]) -> None:
    x = torch.randn(2, 3, 40, 255, generator=torch.Generator().manual_seed(0))
    with sum_sequentially():
        found = resized(x, mode, **given)
    off = (found - resized(x, mode, **given)).abs().max()
    assert 0 < off < 1e-3


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("bilinear", {"size": (3, 5), "align_corners": True}),
        ("bilinear", {"size": (3, 5), "antialias": True}),
        ("nearest", {"size": (3, 5)}),
        ("area", {"size": (3, 5)}),
    ],
)
def test_other_resizes_are_left_to_torch(mode: str, given: dict[str, object]) -> None:
    x = torch.randn(2, 3, 12, 20, generator=torch.Generator().manual_seed(0))
    with sum_sequentially():
        found = resized(x, mode, **given)
    torch.testing.assert_close(found, resized(x, mode, **given))


SCORES = torch.tensor([[1.0, 3.0, 2.0, 3.0, 3.0], [5.0, 5.0, 5.0, 5.0, 1.0]])


def settled(call: Callable[[], object], *, last: bool) -> tuple[object, int]:
    choices = TieChoices(last=last)
    with order_ties(choices):
        found = call()
    return found, choices.made


def test_of_equal_scores_the_first_or_the_last_are_taken() -> None:
    for last, wanted in ((False, [[1, 3], [0, 1]]), (True, [[4, 3], [3, 2]])):
        choices = TieChoices(last=last)
        with order_ties(choices):
            places = SCORES.topk(2).indices
        assert (places.tolist(), choices.made) == (wanted, 1)


def test_scores_that_roundoff_tells_apart_are_equal_and_a_thousandth_is_not() -> None:
    near = torch.tensor([1.0, 1.0 + 1.2e-7, 1.001])
    with order_ties(TieChoices(last=False)):
        values, indices = near.topk(2)
    assert indices.tolist() == [2, 0]
    assert torch.equal(values, near[[2, 0]])


@pytest.mark.parametrize("dim", [0, -1])
def test_a_sort_is_settled_along_its_dim_either_way(dim: int) -> None:
    x = torch.tensor([[2.0, 1.0, 1.0], [2.0, 2.0, 1.0]])
    for downwards in (False, True):
        found, _ = settled(lambda d=downwards: x.sort(dim, d), last=False)  # type: ignore[misc]
        wanted = x.sort(dim=dim, descending=downwards, stable=True)
        assert torch.equal(found[0], wanted.values)  # type: ignore[index]
        assert torch.equal(found[1], wanted.indices)  # type: ignore[index]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sort(dim=-1, stable=True).indices,
        lambda x: torch.argsort(x, stable=True),
        lambda x: x.argmax(dim=-1),
        lambda x: x.max(dim=-1).indices,
        lambda x: (x > 0).nonzero(),
        lambda x: x[0, 0].sort().values,
    ],
)
def test_what_torch_leaves_no_choice_in_is_as_it_gives_it(
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    found, made = settled(lambda: call(SCORES), last=True)
    assert torch.equal(found, call(SCORES))  # type: ignore[arg-type]
    assert made == 0


class Best(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places: torch.Tensor = x.topk(2).indices
        return places.to(x.dtype)


def test_eager_is_run_so_in_float32_and_in_float64() -> None:
    module = Best().eval()
    eager = Eager(module, ("x",), bind_inputs(("x",), parameters_of(module.forward)))
    for exact, dtype in ((False, np.float32), (True, np.float64)):
        found = eager.run_with_tie_order({"x": SCORES.numpy()}, last=True, exact=exact)
        assert found is not None
        assert found["output"].dtype == dtype
        assert found["output"].tolist() == [[4, 3], [3, 2]]


def test_without_a_choice_there_is_no_answer() -> None:
    module = nn.Linear(5, 2).eval()
    eager = Eager(module, ("input",), bind_inputs(("input",), parameters_of(module.forward)))
    assert eager.run_with_tie_order({"input": SCORES.numpy()}, last=True) is None
