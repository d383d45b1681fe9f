"""Side effects of the libraries: patches, telemetry, errors."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelc.converters.quantizers.quantizer_registry import find_quantizer
from modelc.core.contract import Feed
from modelc.core.errors import ConversionError, UsageError

from .conftest import Feeds, FloatModel, job_in, ready

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own; the pipeline logs them


def quantizer_state() -> dict[str, dict[str, object]]:
    """Every class, function and table of ONNX Runtime's quantizer, by name."""
    found: dict[str, dict[str, object]] = {}
    for name in ("base_quantizer", "calibrate", "qdq_quantizer", "quant_utils", "registry"):
        module = importlib.import_module(f"onnxruntime.quantization.{name}")
        for key, value in vars(module).items():
            if isinstance(value, type):
                found[f"{name}.{key}"] = dict(vars(value))
            elif callable(value):
                found[f"{name}.{key}"] = {"it": value}
            elif key.endswith("Registry"):
                found[f"{name}.{key}"] = dict(value)
    return found


@ready("modelopt")
def test_modelopt_restores_onnxruntimes_quantizer(digits: FloatModel, tmp_path: Path) -> None:
    before = quantizer_state()
    find_quantizer("modelopt").quantize(digits.job(tmp_path, "tensorrt-onnx"))
    assert quantizer_state() == before


@pytest.mark.slow
@ready("nncf")
def test_nncf_is_imported_without_its_telemetry() -> None:
    code = (
        "import sys; from modelc.converters.quantizers import nncf_ptq as q; q._import_nncf();"
        "from nncf.telemetry.wrapper import telemetry;"
        "print(type(telemetry).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "unittest.mock"


UNREADABLE = UsageError("shard 3 is truncated", hint="copy it")


class UnreadableFeeds(Feeds):
    """Samples that raise an error of modelc's."""

    def __iter__(self) -> Iterator[Feed]:
        raise UNREADABLE


@pytest.mark.parametrize("name", ["onnxruntime", "modelopt", "nncf"])
def test_an_error_of_the_samples_is_raised_unchanged(
    name: str, digits: FloatModel, tmp_path: Path
) -> None:
    job = job_in(digits, tmp_path, "openvino", calibration=UnreadableFeeds(digits.make, 3))
    with pytest.raises(UsageError) as caught:
        find_quantizer(name).quantize(job)
    assert caught.value is UNREADABLE


@pytest.mark.parametrize("name", ["onnxruntime", "modelopt", "nncf"])
def test_a_file_that_is_not_a_model_is_a_conversion_error(
    name: str, digits: FloatModel, tmp_path: Path
) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07 nothing of the kind")
    folder = tmp_path / "made"
    folder.mkdir()
    job = job_in(digits, folder, "openvino", parent=tmp_path / "broken.onnx")
    with pytest.raises(ConversionError) as caught:
        find_quantizer(name).quantize(job)
    assert caught.value.__cause__ is not None  # the library's own
