"""Integer inputs that nobody stated a range for: eager decides which values there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.core.signature import Signature, ValueRange
from modelc.pipeline.value_search import choose_values

from ..open_models import open_module

LARGE = 2**40


class Embedded(nn.Module):
    """A table of 300 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 4)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        return found


class Indexed(nn.Module):
    """A table without a parameter of as many rows, indexed from its end too."""

    def forward(self, ids: Tensor) -> Tensor:
        return torch.arange(77.0)[ids]


class Passed(nn.Module):
    """Any value will do."""

    def forward(self, ids: Tensor) -> Tensor:
        return ids + 1


class Lengths(nn.Module):
    """Lengths from 1 to the length of x."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        found: Tensor = self.cell(packed)[1][0]
        return found


class Graph(nn.Module):
    """Indices of nodes."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])


class Cut(nn.Module):
    """Any length from 1 on: rows are cut, and an empty row has no maximum."""

    def __init__(self, least: int = 1) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if int(lengths.min()) < self.least:
            raise ValueError("too short")
        return torch.stack([row[: int(n)].amax(0) for row, n in zip(x, lengths, strict=True)])


class Counted(nn.Module):
    """The value says how much there is to do."""

    def forward(self, n: Tensor) -> Tensor:
        found = torch.zeros(1)
        for step in range(int(n)):
            found = found + step
        return found


class Powers(nn.Module):
    """Inf above 127."""

    def forward(self, n: Tensor) -> Tensor:
        return 2.0 ** n.float()


class Ordered(nn.Module):
    """Takes constants, but not what is drawn: each value is at least the one before."""

    def forward(self, ids: Tensor) -> Tensor:
        if bool((ids[1:] < ids[:-1]).any()):
            raise ValueError("not in order")
        return ids * 2


class Columns(nn.Module):
    """Looks two columns up in tables of two sizes, beside whole numbers of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(12, 4), nn.Embedding(100, 4)])

    def forward(self, columns: Tensor, seconds: Tensor) -> Tensor:
        looked = torch.cat([table(columns[:, n]) for n, table in enumerate(self.tables)], 1)
        return looked * (seconds % 24)[:, None]


def chosen(module: nn.Module, *inputs: str, **samples: np.ndarray) -> Signature:
    """The signature with what is chosen."""
    return choose_values(*open_module(module, *inputs), samples=samples or None)


def test_a_range_is_looked_for_among_values_that_eager_takes_of_the_others() -> None:
    columns = np.array([[row % 12, 40 + row] for row in range(16)])
    samples = {"columns": columns, "seconds": np.arange(16)}
    found = chosen(Columns(), "columns:int64[n=1..64,2]", "seconds:int64[n]", **samples)
    assert found.inputs[0].values == ValueRange(low=0, high=11, chosen=True)
    assert found.inputs[1].values is not None


@pytest.mark.parametrize("least", [1, 3])
def test_the_range_holds_the_values_of_the_sample(least: int) -> None:
    lengths = np.array([8, 3, 4])
    x = np.zeros((3, 9, 2), np.float32)
    found = chosen(
        Cut(least),
        "x:float32[batch=1..4,seq=4..12,2]",
        "lengths:int64[batch]",
        x=x,
        lengths=lengths,
    )
    values = found.inputs[1].values
    assert values is not None
    assert (values.low, values.high, values.usual) == (least, LARGE, (3, 8))


class Packed(nn.Module):
    """The last state of packed sequences, which must come sorted by their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        last: Tensor = self.layer(packed)[1][-1]
        return last


class Masked(nn.Module):
    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return x * attention_mask


class Alternating(nn.Module):
    """Takes nothing that is drawn, sorted or not."""

    def forward(self, ids: Tensor) -> Tensor:
        steps = ids[1:] - ids[:-1]
        if bool((steps[1:] * steps[:-1] > 0).any()) or bool((ids[0] > ids[1:]).any()):
            raise ValueError("not in order")
        return ids * 2


GRAPH = "x:float32[nodes=2..20,3]", "edges:int64[2,edges=1..30]"


@pytest.mark.parametrize(
    ("module", "inputs", "expected"),
    [
        (Embedded(), ("ids:int64[batch=1..4,seq=1..9]",), "{0..299}"),
        (Indexed(), ("ids:int64[n=1..4]",), "{-77..76}"),
        (Lengths(), ("x:float32[batch=1..4,seq=2..12,3]", "lengths:int64[batch]"), "{1..seq}"),
        (Graph(), GRAPH, "{0..nodes-1}"),
        (Graph(), ("x:float32[12,3]", GRAPH[1]), "{0..11}"),
        (Counted(), ("n:int64[]",), "{0..64}"),  # more is much work
        (Powers(), ("n:int64[3]",), "{0..127}"),  # more overflows
        (Masked(), ("x:float32[n=1..4]", "attention_mask:int64[n]"), "{0..1}"),
        (Ordered(), ("ids:int64[n=4..9]",), "{0..1023 ascending}"),
        (
            Packed(),
            ("x:float32[batch=2..4,seq=3..9,3]", "lengths:int64[batch]"),
            "{1..seq descending}",
        ),
        (Alternating(), ("ids:int64[n=6..9]",), "None"),
        (Passed(), ("ids:int64[n=1..4]{3..4}",), "{3..4}"),  # as stated
    ],
)
def test_the_range_is_what_eager_accepts(
    module: nn.Module, inputs: tuple[str, ...], expected: str
) -> None:
    assert str(chosen(module, *inputs).inputs[-1].values) == expected


@pytest.mark.parametrize(
    ("spec", "sample", "expected"),
    [
        ("int64[n=1..4]", None, (-LARGE, LARGE, (0, 1))),
        ("int32[n=1..4]", None, (-(2**31) + 1, 2**31 - 1, (0, 1))),
        ("int16[n=1..4]", None, (-32767, 32767, (0, 1))),
        ("int8[n=1..4]", None, (-127, 127, (0, 1))),
        ("uint8[n=1..4]", None, (0, 255, (0, 255))),  # all of them are usual
        ("int64[2]", [30, 70], (-LARGE, LARGE, (30, 70))),  # usual as in the sample
    ],
)
def test_an_input_that_takes_any_value_has_the_range_of_its_dtype(
    spec: str, sample: list[int] | None, expected: tuple[object, ...]
) -> None:
    samples = {} if sample is None else {"ids": np.array(sample)}
    values = chosen(Passed(), f"ids:{spec}", **samples).inputs[0].values
    assert values is not None
    assert values.chosen
    assert (values.low, values.high, values.usual) == expected


def test_an_index_from_the_end_of_a_table_is_not_usual() -> None:
    values = chosen(Indexed(), "ids:int64[n=1..4]").inputs[0].values
    assert values is not None
    assert values.usual == (0, 76)


def test_a_sample_is_widened_to_the_table() -> None:
    spec = chosen(Embedded(), "ids:int64[1,2]", ids=np.array([[5, 17]])).inputs[0]
    assert spec.values == ValueRange(low=0, high=299, chosen=True)
