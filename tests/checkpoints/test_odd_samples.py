"""Samples of dtypes that torch or numpy do not have are refused, in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modelc.checkpoints.sample_inputs import read_samples
from modelc.core.errors import ErrorCode, UsageError


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E8M0", "NONE", "BF8"])
def test_a_dtype_that_arrays_cannot_have_is_refused(tmp_path: Path, dtype: str) -> None:
    header = json.dumps({"x": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(UsageError) as caught:
        read_samples(path)
    assert caught.value.code is ErrorCode.CORRUPT_FILE
    assert "\n" not in caught.value.message
