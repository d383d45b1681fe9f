"""Half precision of the sample models: nothing is kept without need, and little is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from modelc.core.contract import Converted, Feed
from modelc.core.kinds import Precision

from .conftest import forecast, run, sqnr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("onnx"),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own; the pipeline logs them
]
Made = Callable[..., tuple[Path, Converted]]
RANDOM = np.random.default_rng(0)
FEEDS: dict[str, Feed] = {
    "bert": {
        "ids": RANDOM.integers(0, 100, (2, 16)),
        "mask": np.array([[1] * 16, [1] * 9 + [0] * 7]),
    },
    "lstm": {"tokens": RANDOM.integers(0, 50, (2, 12))},
    "gate": {"x": RANDOM.standard_normal((2, 16), np.float32)},
}


@pytest.mark.parametrize("name", ["bert", "lstm", "gate"])
@pytest.mark.parametrize(
    ("precision", "least"), [(Precision.FP16, 50), (Precision.BF16, 30)], ids=str
)
def test_a_sample_model_is_near_in_half_with_nothing_kept(
    exports: Callable[[str], Path], made: Made, name: str, precision: Precision, least: float
) -> None:
    parent, feed = exports(name) / "model.onnx", FEEDS[name]
    half, converted = made(parent, precision, feed)
    assert converted.notes == ()
    wanted, found = run(parent, feed), run(half, feed)
    assert wanted.keys() == found.keys()
    for output, values in wanted.items():
        assert values.dtype == found[output].dtype
        assert sqnr(values, found[output]) > least


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16], ids=str)
def test_a_dim_that_has_a_name_is_one_of_the_inputs(
    exports: Callable[[str], Path], made: Made, precision: Precision
) -> None:
    """AutoCast calls all others `unk`, and a runtime takes one name for one size."""
    import onnx

    half, _ = made(exports("bert") / "model.onnx", precision, FEEDS["bert"])
    graph = onnx.load(half).graph
    inputs = {d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim}
    inner = {d.dim_param for v in graph.value_info for d in v.type.tensor_type.shape.dim}
    assert graph.value_info
    assert inner <= inputs | {""}


def test_digits_have_nothing_to_forecast(exported_digits: Path) -> None:
    with np.load(Path(__file__).parents[3] / "sample_models" / "digits_samples.npz") as samples:
        feed = {"x": samples["x"]}
    assert forecast(exported_digits / "model.onnx", [feed], Precision.FP16) == ()
