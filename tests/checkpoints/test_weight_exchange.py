"""Eager with an artifact's weights: each use gets its own, and what no call shows is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from modelc.checkpoints.weight_exchange import carry_weights
from modelc.core.weights import IntegerMatrix, IntegerWeights, RoundedWeight

from ..open_models import open_module

ROWS, WIDTH = 12, 8
TABLE, FACTOR = (np.full((ROWS, WIDTH), value, np.float32) for value in (2, 3))
IDS = torch.tensor([[3, 1], [3, 0]])


def round_to(values: np.ndarray, *, table: bool, turned: bool = False) -> RoundedWeight:
    stored = values.T if turned else values

    def read(first: int, last: int) -> IntegerWeights:
        part = stored[first:last]
        return IntegerWeights(values=part, radius=part, blocks=part.astype(np.int32))

    matrix = IntegerMatrix(shape=stored.shape, read_rows=read, table=table, factor=not table)
    return RoundedWeight(name="embed.weight", shape=(ROWS, WIDTH), matrix=matrix, turned=turned)


class Tied(nn.Module):
    """A table that is the matrix of the last product too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(ROWS, WIDTH)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(ids)
        return x, nn.functional.linear(torch.ones(1, WIDTH), self.embed.weight)


@pytest.mark.parametrize("turned", [False, True])
def test_a_tied_weight_has_two_roundings(turned: bool) -> None:
    module = Tied()
    before = module.embed.weight.detach().clone()
    own = [round_to(TABLE, table=True), round_to(FACTOR, table=False, turned=turned)]
    with torch.no_grad(), carry_weights(module, own) as uses:
        looked_up, product = module(IDS)
    assert torch.equal(looked_up, torch.full((2, 2, WIDTH), 2.0))
    assert torch.equal(product, torch.full((1, ROWS), 3.0 * WIDTH))
    assert list(uses.used) == ["embed.weight"]
    assert not uses.missed
    assert torch.equal(module.embed.weight, before)


def test_a_table_of_floats_stays_beside_integers_of_the_product() -> None:
    module = Tied()
    with torch.no_grad(), carry_weights(module, [round_to(FACTOR, table=False)]) as uses:
        looked_up, product = module(IDS)
    assert torch.equal(looked_up, module.embed.weight[IDS])
    assert torch.equal(product, torch.full((1, ROWS), 3.0 * WIDTH))
    assert list(uses.looked_up) == ["embed.weight"]
    assert not uses.missed


def test_a_script_reads_its_own_weights_and_is_found() -> None:
    module = torch.jit.trace(Tied(), IDS)  # type: ignore[no-untyped-call]  # torch's own
    own = [round_to(TABLE, table=True), round_to(FACTOR, table=False)]
    with torch.no_grad(), carry_weights(module, own) as uses:
        module(IDS)
    assert list(uses.missed) == ["embed.weight"]


def test_float64_has_the_artifacts_weights_too() -> None:
    eager, _ = open_module(Tied(), "ids:int64[2,2]{0..11}")
    feed = {"ids": IDS.numpy()}
    own = [round_to(TABLE / 7, table=True), round_to(FACTOR / 7, table=False)]
    with eager.carry_weights(own):
        plain, exact = eager.run(feed), eager.run_exact(feed)
    assert exact is not None
    for name, array in plain.items():
        assert exact[name].dtype == np.float64
        np.testing.assert_allclose(array, exact[name], rtol=1e-6)
    assert not np.allclose(eager.run(feed)["output.0"], plain["output.0"])
