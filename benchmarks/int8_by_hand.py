"""The INT8 libraries called as their manuals say; int8.py sets modelc's quantizers beside them.

Each way is a function (parent, out folder, feeds) -> model file, by the consumer it is meant for.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Feeds: TypeAlias = Sequence[Mapping[str, NDArray[Any]]]
Way: TypeAlias = Callable[[Path, Path, Feeds], Path]


class Reader:
    """Feeds as ONNX Runtime's calibrators ask for them."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self.rewind()

    def get_next(self) -> Mapping[str, NDArray[Any]] | None:
        """The next feed."""
        return next(self._left, None)

    def get_first(self) -> Mapping[str, NDArray[Any]]:
        """The first feed."""
        return self._feeds[0]

    def rewind(self) -> None:
        """Start anew."""
        self._left: Iterator[Mapping[str, NDArray[Any]]] = iter(self._feeds)


def onnxruntime(**options: Any) -> Way:
    """`quantize_static` with these options."""

    def make(parent: Path, out: Path, feeds: Feeds) -> Path:
        from onnxruntime.quantization import quantize_static

        path = out / "q.onnx"
        quantize_static(str(parent), str(path), Reader(feeds), **options)
        return path

    return make


def dynamic(parent: Path, out: Path, _: Feeds) -> Path:
    """ONNX Runtime's `quantize_dynamic`, per channel."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(parent), str(out / "q.onnx"), per_channel=True)
    return out / "q.onnx"


def modelopt(method: str) -> Way:
    """ModelOpt with this calibration method, floats elsewhere."""

    def make(parent: Path, out: Path, feeds: Feeds) -> Path:
        from modelopt.onnx.quantization import quantize

        path = out / "q.onnx"
        quantize(
            str(parent),
            calibration_data_reader=Reader(feeds),
            calibration_method=method,
            calibration_eps=["cpu"],
            output_path=str(path),
            high_precision_dtype="fp32",
            log_level="CRITICAL",
        )
        return path

    return make


def nncf(preset: str, *, transformer: bool = False) -> Way:
    """NNCF on the model that OpenVINO reads."""

    def make(parent: Path, out: Path, feeds: Feeds) -> Path:
        import nncf as library
        import openvino

        library.set_log_level(logging.ERROR)
        made = library.quantize(
            openvino.Core().read_model(str(parent)),
            library.Dataset(feeds),
            preset=library.QuantizationPreset(preset),
            model_type=library.ModelType.TRANSFORMER if transformer else None,
            subset_size=len(feeds),
        )
        openvino.save_model(made, str(out / "q.xml"), compress_to_fp16=False)
        return out / "q.xml"

    return make


def ways(consumer: str) -> dict[str, Way]:
    """By name, what a reader of the manuals would try for this consumer."""
    from onnxruntime.quantization import QuantType

    unsigned = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    symmetric = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
    channels = onnxruntime(per_channel=True, **unsigned)
    optimized = {f"ModelOpt {method}": modelopt(method) for method in ("max", "entropy")}
    if consumer == "onnx":
        plain = {"ORT static, defaults": onnxruntime(), "ORT static u8s8 channels": channels}
        return {**plain, "ORT dynamic": dynamic, **optimized}
    if consumer == "openvino":
        kinds = {f"NNCF {preset}": nncf(preset) for preset in ("performance", "mixed")}
        kinds["NNCF mixed transformer"] = nncf("mixed", transformer=True)
        return {"ORT static u8s8 channels": channels, **kinds, **optimized}
    pairs = onnxruntime(per_channel=True, extra_options={**symmetric, "AddQDQPairToWeight": True})
    return {"ORT static s8s8, float bias": pairs, **optimized}


def make(consumer: str, name: str, parent: Path, feeds: Feeds) -> tuple[Path, float]:
    """The model by one way, beside a copy of the parent; and the seconds that it took.

    For a process of its own: ModelOpt patches ONNX Runtime's quantizer for the rest of it.
    """
    out = Path(tempfile.mkdtemp(dir=parent.parent))
    copy = Path(shutil.copy(parent, out / "parent.onnx")).resolve()
    start = time.perf_counter()
    with quiet(), contextlib.chdir(out):  # where shape inference gives up, it leaves files
        path = ways(consumer)[name](copy, out, feeds)
    taken = time.perf_counter() - start
    copy.unlink()
    return path, taken


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Swallow what the libraries print."""
    sink = io.StringIO()
    with (
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
        np.errstate(all="ignore"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
