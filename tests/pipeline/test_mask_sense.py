"""Bool masks of which True hides a place: rows that are hidden whole are not drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from torch import Tensor, nn

from modelc.core.contract import Feed
from modelc.core.signature import Signature
from modelc.pipeline.size_probe import choose_mask_sense
from modelc.validators.edge_case_feeds import draw_edge_case_feeds
from modelc.validators.feeds import draw_example_feed, draw_feeds

from ..open_models import load, signature_of

INPUTS = ("x:float32[batch=1..3,seq=1..6,8]", "mask:bool[batch,seq]")


class Encoder(nn.Module):
    def __init__(self, *, fast: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=fast)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.encoder(x, src_key_padding_mask=mask)
        return y


class Keeping(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (x.mean(-1).masked_fill(~mask, float("-inf"))).softmax(-1)


class Either(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask[..., None]


class Picture(nn.Module):
    """Takes no image of fewer than 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        found, _ = self.attention(words, words, words, key_padding_mask=mask)
        both: Tensor = found + self.patches(x).mean((2, 3))[:, None]
        return both


class Both(nn.Module):
    def forward(self, x: Tensor, keep: Tensor, mask: Tensor) -> Tensor:
        scores = x.mean(-1)
        one = scores.masked_fill(~keep, float("-inf")).softmax(-1)
        return one + scores.masked_fill(mask, float("-inf")).softmax(-1)


UNBOUNDED = ("x:float32[batch,3,h,w]", "words:float32[batch,seq,8]", "mask:bool[batch,seq]")
TWO = ("x:float32[batch=1..3,seq=2..6,8]", "keep:bool[batch,seq]", "mask:bool[batch,seq]")


class Neither(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        raise ValueError(x.shape, mask.shape)


def found(module: nn.Module, *inputs: str, samples: Feed | None = None) -> Signature:
    signature = signature_of(*(inputs or INPUTS))
    return choose_mask_sense(load(module), signature, seed=0, samples=samples)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "inputs", "hiding"),
    [
        (lambda: Encoder(fast=True), INPUTS, ["mask"]),
        (lambda: Encoder(fast=False), INPUTS, ["mask"]),
        (Keeping, INPUTS, []),
        (Either, INPUTS, []),
        (Neither, INPUTS, []),
        (Picture, UNBOUNDED, ["mask"]),  # sizes that eager accepts are searched
        (Both, TWO, ["mask"]),
    ],
)
def test_eager_shows_whether_true_hides(
    make: Callable[[], nn.Module], inputs: tuple[str, ...], hiding: list[str]
) -> None:
    assert [spec.name for spec in found(make(), *inputs).inputs if spec.hides] == hiding


def test_no_drawn_row_is_hidden_whole() -> None:
    signature = found(Encoder(fast=False))
    feeds = [feed.arrays for feed in draw_feeds(signature)]
    feeds.append(draw_example_feed(signature))
    for arrays in feeds:
        assert not arrays["mask"].all(axis=-1).any()
    assert any(arrays["mask"].any() for arrays in feeds)
    ordinary = [one for one in draw_edge_case_feeds(signature) if not one.beyond]
    assert not any(one.arrays["mask"].all(axis=-1).any() for one in ordinary if one.kind == "value")


def test_a_row_that_is_hidden_whole_is_so_in_the_sense_of_the_mask() -> None:
    (empty,) = (
        one for one in draw_edge_case_feeds(found(Encoder(fast=False))) if one.name == "mask-empty"
    )
    assert empty.arrays["mask"][-1].all()
    assert not empty.arrays["mask"][:-1].all(axis=-1).any()
    assert empty.hiding == {"mask"}


def test_eager_shows_it_beside_a_sample_too() -> None:
    pad = np.array([[False] * 5, [False] * 3 + [True] * 2])
    samples = {"x": np.ones((2, 5, 8), np.float32), "mask": pad}
    signature = found(Encoder(fast=False), samples=samples)
    assert [spec.hides for spec in signature.inputs] == [False, True]
    for feed in draw_feeds(signature, samples=samples):
        assert not feed.arrays["mask"].all(axis=-1).any()


def test_it_is_on_record() -> None:
    import msgspec

    signature = found(Encoder(fast=False))
    again = msgspec.json.decode(msgspec.json.encode(signature), type=Signature)
    assert again == signature
