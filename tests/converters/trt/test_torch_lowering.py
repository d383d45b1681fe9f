"""The lowering of a program for the plan: it computes the same, and has the package's operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.converters.trt.torch_decompositions import decomposition_table
from modelc.converters.trt.torch_lowering import lower_program, operator_name
from modelc.converters.trt.torch_segments import plan_segments
from modelc.core.segments import LeftOutReason, SegmentOptions

Forward = Callable[[Tensor], Tensor | tuple[Tensor, ...]]
X = torch.linspace(-2, 2, 48).reshape(2, 4, 6)
PLACES = torch.tensor([[[0, 1, 1, 3, 2, 0]], [[3, 3, 2, 1, 0, 1]]])


class Called(nn.Module):
    """A module of a function."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.called = forward

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.called(x)


def export(
    forward: Forward, x: Tensor = X, *, dynamic: bool = False
) -> torch.export.ExportedProgram:
    shapes = ({0: torch.export.Dim("n", min=2, max=8)},) if dynamic else None
    return torch.export.export(Called(forward).eval(), (x,), dynamic_shapes=shapes)


def write_slice(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 1:-1, ::2] = x[:, :2, :3]
    y[:, 0] = x[:, 3]
    return y


def reduce_into(kind: str) -> Forward:
    return lambda x: x.scatter_reduce(1, PLACES, x[:, :1] + 1, kind)


DECOMPOSED: dict[str, tuple[str, Forward]] = {
    "rsqrt": ("aten.rsqrt.default", lambda x: torch.rsqrt(x + 3)),
    "reciprocal": ("aten.reciprocal.default", lambda x: torch.reciprocal(x + 3)),
    "log_softmax": ("aten._log_softmax.default", lambda x: torch.log_softmax(x, 1)),
    "silu": ("aten.silu.default", functional.silu),
    "view": ("aten.view.default", lambda x: x.reshape(2, 24)),
    "slices": ("aten.slice_scatter.default", write_slice),
    "full_like": ("aten.full_like.default", lambda x: x + torch.full_like(x, 2)),
    "scatter_add": ("aten.scatter_add.default", lambda x: x.scatter_add(1, PLACES, x[:, :1])),
    "sum": ("aten.scatter_reduce.two", reduce_into("sum")),
    "prod": ("aten.scatter_reduce.two", reduce_into("prod")),
    "amax": ("aten.scatter_reduce.two", reduce_into("amax")),
    "masked": ("aten.masked_scatter.default", lambda x: x.masked_scatter(x > 0, x.flip(0))),
    "instance_norm": ("aten.instance_norm.default", functional.instance_norm),
    "var": ("aten.var.correction", lambda x: x.var(-1, keepdim=True)),
    "repeat": ("aten.repeat.default", lambda x: x.repeat(1, 2, 1)),
    "unfold": ("aten.unfold.default", lambda x: x.unfold(1, 2, 1)),
    "norm": ("aten.linalg_vector_norm.default", lambda x: torch.linalg.vector_norm(x, dim=-1)),
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_a_decomposition_computes_what_the_operator_does(name: str) -> None:
    operator, forward = DECOMPOSED[name]
    lowered = export(forward).run_decompositions(decomposition_table())
    assert operator not in {str(node.target) for node in lowered.graph.nodes}
    torch.testing.assert_close(lowered.module()(X), forward(X))


def operators_of(program: torch.export.ExportedProgram) -> list[str]:
    return [operator_name(n) for n in lower_program(program).graph.nodes if n.op == "call_function"]


def test_constants_are_folded_and_random_numbers_are_not() -> None:
    found = operators_of(export(lambda x: x * torch.arange(6.0).exp() + torch.rand(6)))
    assert found == ["aten.mul.Tensor", "aten.rand.default", "aten.add.Tensor"]


@pytest.mark.parametrize(
    ("dim", "operator"),
    [(0, "aten.max_pool2d.default"), (1, "aten.max_pool2d_with_indices.default")],
)
def test_max_pools_lose_indices_that_nobody_reads(dim: int, operator: str) -> None:
    found = operators_of(
        export(lambda x: functional.max_pool2d(x, 2, return_indices=True)[dim] * 2)
    )
    assert found[0] == operator


def test_a_variance_that_keeps_its_dims_leaves_engines_at_dynamic_sizes() -> None:
    def forward(x: Tensor) -> tuple[Tensor, ...]:
        return torch.var_mean(x, -1, keepdim=True)

    fixed = operators_of(export(forward))
    assert (fixed.count("aten.sum.dim_IntList"), "prims.sum.default" in fixed) == (2, False)
    assert reasons(export(forward)) == {}
    free = reasons(export(forward, dynamic=True))
    assert free == {"broadcast_in_dim": LeftOutReason.DYNAMIC_SIZES}


def test_the_program_is_left_as_it_is() -> None:
    program = export(lambda x: functional.silu(x).reshape(2, 24))
    before = str(program.graph)
    lower_program(program)
    assert str(program.graph) == before


def reasons(program: torch.export.ExportedProgram) -> dict[str, LeftOutReason]:
    plan = plan_segments(program, SegmentOptions(min_block_size=1))
    return {one.operator.split(".")[1]: one.reason for one in plan.left_out}


ARGUMENTS: dict[str, tuple[Forward, Forward]] = {  # rejected, taken
    "max": (lambda x: tuple(x.max(1)), lambda x: x.max(1).values),
    "max_pool2d": (
        lambda x: functional.max_pool2d(x, 3, ceil_mode=True),
        lambda x: functional.max_pool2d(x, 3),
    ),
    "avg_pool2d": (
        lambda x: functional.avg_pool2d(x, 3, ceil_mode=True),
        lambda x: functional.avg_pool2d(x, 3),
    ),
    "topk": (
        lambda x: x.repeat(1, 1, 700).topk(4000).values,
        lambda x: x.repeat(1, 1, 700).topk(3000).values,
    ),
    "bitwise_and": (lambda x: x.long() & 3, lambda x: (x > 0) & (x < 1)),
    "_to_copy": (lambda x: (x + 1).double(), lambda x: (x + 1).half()),
    "cat": (lambda x: torch.cat([x * 2, torch.ones(0)]), lambda x: torch.cat([x * 2, x])),
    "scaled_dot_product_attention": (
        lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None, ..., :3]),
        lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_converter_rejects_some_arguments(name: str) -> None:
    rejected, taken = (reasons(export(one)) for one in ARGUMENTS[name])
    assert rejected[name] is LeftOutReason.ARGUMENTS
    assert name not in taken


def test_a_sort_of_a_dynamic_dim_stays_in_torch() -> None:
    found = reasons(export(lambda x: x.sort(0).values, dynamic=True))
    assert found["sort"] is LeftOutReason.ARGUMENTS


def test_results_of_an_operator_in_torch_are_taken_in_torch() -> None:
    found = reasons(export(lambda x: torch.linalg.qr(x)[1] + 1))
    assert found["getitem"] is LeftOutReason.NO_CONVERTER


def test_sizes_stay_with_the_nodes_that_read_them() -> None:
    """The group of `n` waits for the search, so the first engine holds none of it."""

    def forward(x: Tensor) -> Tensor:
        y = torch.special.i0(x + 1)
        found: Tensor = torch.full((x.shape[0], 4, 6), 2.0) * x.exp() * y
        return found

    plan = plan_segments(export(forward, dynamic=True), SegmentOptions(min_block_size=1))
    assert [one.engine for one in plan.segments] == [True, False, True]


def test_complex_products_run_in_engines_and_transforms_do_not() -> None:
    def turn(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(2, 4, 3, 2).contiguous())
        return torch.view_as_real(pairs * pairs)

    assert reasons(export(turn)) == {}
    found = reasons(export(lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x + 1))))
    assert {found["_fft_r2c"], found["_fft_c2r"]} == {LeftOutReason.COMPLEX}


def test_a_product_of_complex_matrices_is_planned() -> None:
    def multiply(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(torch.unflatten(x, -1, (3, 2)))
        return torch.view_as_real(torch.bmm(pairs, pairs.transpose(1, 2)))

    assert reasons(export(multiply)) == {}


def test_a_copy_of_an_input_is_kept() -> None:
    assert operators_of(export(lambda x: x.clone())) == ["aten.clone.default"]
    assert reasons(export(lambda x: x.clone(), dynamic=True))["clone"] is LeftOutReason.ARGUMENTS


def test_a_program_with_fewer_converted_nodes_than_a_block_stays_in_torch() -> None:
    plan = plan_segments(export(lambda x: x + 1), SegmentOptions(min_block_size=2))
    assert [one.engine for one in plan.segments] == [False]
