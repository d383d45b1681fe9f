"""Bags, circular padding and attention, so that OpenVINO reads them too: as eager computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.converters import onnx_model
from modelc.core.contract import Feed

from .eager_agreement import JobOf, assert_agrees, job_of_calls

pytestmark = [
    pytest.mark.needs("onnx"),
    pytest.mark.needs("openvino"),
    pytest.mark.filterwarnings("ignore"),  # torch's own; the pipeline sends them to a log
]
TABLE = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
OFFSETS = torch.tensor([0, 2, 2, 5])


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def bag(x: Tensor, offsets: Tensor = OFFSETS, **named: Any) -> Tensor:
    return functional.embedding_bag(x, TABLE, offsets, **named)


BAGS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: bag(x, mode="sum"),
    "mean": lambda x: bag(x, mode="mean"),
    "max": lambda x: bag(x, mode="max"),
    "padding": lambda x: bag(x, mode="sum", padding_idx=3),
    "mean-padding": lambda x: bag(x, mode="mean", padding_idx=3),
    "max-padding": lambda x: bag(x, mode="max", padding_idx=3),
    "padding-from-the-end": lambda x: bag(x, mode="mean", padding_idx=-6),
    "weights": lambda x: bag(x, mode="sum", per_sample_weights=x / 7),
    "ends": lambda x: bag(
        x,
        torch.cat([OFFSETS, torch.tensor([x.shape[0]])]),
        mode="sum",
        include_last_offset=True,
    ),
    "rows": lambda x: functional.embedding_bag(torch.stack([x, x.flip(0)]), TABLE, mode="mean"),
}


def test_bags_are_as_eager_computes_them(job_of: JobOf) -> None:
    job = job_of_calls(job_of, BAGS, "x:int64[n=6..9]{0..8}")
    assert_agrees(job, [{"x": np.array([3, 1, 8, 3, 0, 3, 2], np.int64)}], openvino=True)


PADS: dict[str, Callable[[Tensor], Tensor]] = {
    "one-side": lambda x: functional.pad(x, (0, 2), mode="circular"),
    "both": lambda x: functional.pad(x, (3, 1), mode="circular"),
    "two-dims": lambda x: functional.pad(x[:, None], (1, 2, 2, 0), mode="circular"),
    "reflect": lambda x: functional.pad(x, (1, 2), mode="reflect"),
    "constant": lambda x: functional.pad(x, (1, -1), value=2.5),
    "replicate": lambda x: functional.pad(x, (2, 1), mode="replicate"),
    "convolution": lambda x: functional.conv1d(
        functional.pad(x, (1, 1), mode="circular"), torch.ones(2, 3, 3)
    ),
}


def test_padding_is_as_eager_computes_it(job_of: JobOf) -> None:
    job = job_of_calls(job_of, PADS, "x:float32[batch=1..4,3,n=4..9]")
    assert_agrees(job, [{"x": normal(2, 3, 7)}], openvino=True)


HIDING = torch.tensor([[True, True, False], [False, False, False], [False, True, True]])


def hidden(mask: Tensor) -> Tensor:
    """As what transformers adds: -inf where nothing is to be seen."""
    return torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))


@pytest.mark.parametrize("mask", [HIDING, hidden(HIDING)], ids=["bool", "float"])
def test_a_query_that_sees_no_key_gets_zeros(job_of: JobOf, mask: Tensor) -> None:
    def attend(x: Tensor) -> Tensor:
        q = x.view(2, 1, 3, 4)
        return functional.scaled_dot_product_attention(q, q + 1, q, attn_mask=mask)

    x = normal(2, 3, 4)
    assert not attend(torch.tensor(x))[:, :, 1].any()
    job = job_of_calls(job_of, {"attended": attend}, "x:float32[2,3,4]")
    assert_agrees(job, [{"x": x}], openvino=True)


def test_all_and_any_of_a_tensor(job_of: JobOf) -> None:
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "all": lambda x: torch._is_all_true(x > 0).float(),
        "any": lambda x: torch._is_any_true(x > 0).float(),
    }
    job = job_of_calls(job_of, calls, "x:float32[n=1..8,3]")
    feeds = [{"x": normal(5, 3) + shift} for shift in np.array([-9, 0, 9], np.float32)]
    assert_agrees(job, feeds, openvino=True)


DIVISIONS: dict[str, Callable[[int], int]] = {
    "upwards": lambda size: -(-size // 4),
    "shifted": lambda size: (size - 9) // 4 + 9,
    "negative-step": lambda size: 30 + size // -4,
    "number-by-size": lambda size: 30 + -25 // size,
    "twice": lambda size: -((-size // 3) // 2),
    "downwards": lambda size: size // 4 + 1,
}


def test_sizes_are_divided_as_in_python(job_of: JobOf) -> None:
    def pad_by(divide: Callable[[int], int]) -> Callable[[Tensor], Tensor]:
        return lambda x: functional.pad(x, (0, divide(x.shape[1])))

    calls = {name: pad_by(divide) for name, divide in DIVISIONS.items()}
    job = job_of_calls(job_of, calls, "x:float32[batch=1..4,n=1..48]")
    assert_agrees(job, [{"x": normal(2, size)} for size in (3, 7, 8, 13)], openvino=True)


def test_a_division_of_non_negative_sizes_is_one_operator(job_of: JobOf) -> None:
    calls = {"padded": lambda x: functional.pad(x, (0, (x.shape[1] * 2 + 3) // 4))}
    job = job_of_calls(job_of, calls, "x:float32[batch=1..4,n=1..48]")
    onnx_model.convert(job)
    found = [node.op_type for node in onnx.load(job.folder / "model.onnx").graph.node]
    assert "Div" in found
    assert "Mod" not in found


class MaskedAttention(nn.Module):
    """Keys that a mask of one row for all queries leaves out, and a mask of all."""

    def forward(self, x: Tensor, keys: Tensor) -> dict[str, Tensor]:
        whole = keys[:, None, None, :] & keys[:, None, :, None]
        return {
            name: functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
            for name, mask in (("one_row", keys[:, None, None, :]), ("whole", whole))
        }


@pytest.mark.parametrize("opset", [20, 23])
def test_a_mask_of_attention_may_have_one_row(job_of: JobOf, opset: int) -> None:
    specs = ("x:float32[batch=1..4,2,seq=2..9,8]", "keys:bool[batch,seq]")
    job = job_of(MaskedAttention(), *specs, outputs=("one_row", "whole"), opset=opset)
    draw = np.random.default_rng(3)
    feeds: list[Feed] = []
    for batch, length in ((1, 2), (3, 9), (4, 5)):
        x = draw.normal(size=(batch, 2, length, 8)).astype(np.float32)
        keys = draw.random((batch, length)) < 0.5
        keys[:, 0] = True
        feeds.append({"x": x, "keys": keys})
    assert_agrees(job, feeds)


ATTENTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "without-heads": lambda x: functional.scaled_dot_product_attention(x, x + 1, x),
    "causal": lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
    "scaled": lambda x: functional.scaled_dot_product_attention(x, x, x, scale=0.3),
    "mask-of-all": lambda x: functional.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    ),
    "mask-of-each": lambda x: functional.scaled_dot_product_attention(
        x, x, x, attn_mask=(x[:, :, :1] * x[:, None, :, 0])
    ),
    "mask-of-keys": lambda x: functional.scaled_dot_product_attention(
        x, x, x, attn_mask=x[:, None, :, 0] > -9
    ),
    "matrices": lambda x: functional.scaled_dot_product_attention(x[0], x[0] + 1, x[0]),
    "mask-of-one-dim": lambda x: functional.scaled_dot_product_attention(
        x, x, x, attn_mask=x[0, :, 0]
    ),
    "other-lengths": lambda x: functional.scaled_dot_product_attention(
        x, x[:, :1] + x[0, :3, :1], x[:, :1, :5] + x[0, :3, :1] + 1
    ),
    "grouped": lambda x: functional.scaled_dot_product_attention(
        x[:1].repeat(4, 1, 1), x[:1].repeat(2, 1, 1), x[:1].repeat(2, 1, 1) + 1, enable_gqa=True
    ),
    "grouped-mask": lambda x: functional.scaled_dot_product_attention(
        x[:1].repeat(4, 1, 1),
        x[:1].repeat(2, 1, 1),
        x[:1].repeat(2, 1, 1),
        enable_gqa=True,
        attn_mask=x[:1, :, :1] * x[:1, None, :, 0],
    ),
}


@pytest.mark.parametrize("opset", [20, 23])
def test_attention_without_heads_or_batch(job_of: JobOf, opset: int) -> None:
    job = job_of_calls(job_of, ATTENTIONS, "x:float32[batch=1..4,seq=2..9,8]")
    job = replace(job, opset=opset)
    assert_agrees(job, [{"x": normal(2, size, 8)} for size in (2, 5, 9)])
    assert_agrees(job, [{"x": normal(batch, 3, 8)} for batch in (1, 4)])
