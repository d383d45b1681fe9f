"""`--custom-op`: its functions are loaded before anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.stated_inputs import load_functions

from ..reasons import has_code


def test_a_custom_op_is_loaded() -> None:
    import math

    assert load_functions({"my::op": "math:sqrt"}) == {"my::op": math.sqrt}


def test_an_object_that_is_not_callable_is_an_error() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_CALLABLE)):
        load_functions({"my::op": "math:pi"})


@pytest.mark.parametrize("module", ["math", "sys"])  # sys has no file, in some Pythons math neither
def test_a_missing_function_is_an_error_before_eager_runs(
    digits_source: Source, tmp_path: Path, module: str
) -> None:
    out = tmp_path / "out"
    order = Order(
        source=digits_source,
        wanted=(Wanted(target="onnx"),),
        out=out,
        custom_ops={"my::op": f"{module}:no_such"},
    )
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND, naming="no_such")):
        run(order)
    assert not out.exists()
