"""Engines on a real GPU: built, run, compared with eager. Skipped where TensorRT is not ready.

Their ONNX parents are made here with the libraries themselves, so that a wrong engine cannot be
the fault of modelc's own preparation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from modelc.converters import tensorrt_engine
from modelc.core.contract import Job
from modelc.core.errors import RunnerError
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import merge_inputs
from modelc.sample_models import digits

if TYPE_CHECKING:
    from numpy.typing import NDArray

READINESS = tensorrt_engine.readiness()
SAMPLES = Path(__file__).parents[3] / "sample_models"
SIGNATURE = merge_inputs([parse_input("x:float32[batch=1..8,1,8,8]")], {}).with_outputs(("output",))
# Least SQNR in dB against eager in float32. TF32 is off for fp32.
LEAST = {Precision.FP32: 80.0, Precision.FP16: 45.0, Precision.INT8: 15.0}


@pytest.fixture(scope="module")
def images() -> NDArray[np.float32]:
    with np.load(SAMPLES / "digits_samples.npz") as held:
        found: NDArray[np.float32] = held["x"].astype(np.float32)
    return found[:8]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    from safetensors.torch import load_file

    built = digits.build()
    built.load_state_dict(load_file(SAMPLES / "digits.safetensors"))
    return built.eval()


@pytest.fixture(scope="module")
def parent_of(
    model: torch.nn.Module,
    images: NDArray[np.float32],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Precision], Path]:
    """The ONNX for a precision: in float32, in half with float32 inputs, with Q/DQ."""
    folder = tmp_path_factory.mktemp("parents")

    def export(name: str, module: torch.nn.Module) -> Path:
        torch.onnx.export(
            module,
            (torch.from_numpy(images[:2]),),
            folder / name,
            dynamo=False,
            opset_version=20,
            input_names=["x"],
            output_names=["output"],
            dynamic_axes={"x": {0: "batch"}},
        )
        return folder / name

    def make(precision: Precision) -> Path:
        if precision is Precision.FP16:
            return export("half.onnx", Half(model))
        plain = export("plain.onnx", model)
        return plain if precision is Precision.FP32 else quantized(plain, images)

    return make


class Half(torch.nn.Module):
    """The model in half precision behind inputs and outputs in float32."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        import copy

        self.model = copy.deepcopy(model).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.model(x.half())
        return made.float()


def quantized(plain: Path, images: NDArray[np.float32]) -> Path:
    """Symmetric Q/DQ without quantized biases, which is what TensorRT takes."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # ships no types
        def __init__(self) -> None:
            self.left = [{"x": images[i : i + 1]} for i in range(len(images))]

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            return self.left.pop() if self.left else None

    target = plain.with_name("qdq.onnx")
    quantization.quantize_static(
        str(plain),
        str(target),
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QInt8,
        weight_type=quantization.QuantType.QInt8,
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
    )
    return target


def sqnr(wanted: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    noise = float(np.square(wanted - found).sum()) or 1e-30
    return 10 * float(np.log10(np.square(wanted).sum() / noise))


def job_for(parent: Path, precision: Precision, folder: Path, **settings: str) -> Job:
    return Job(
        signature=SIGNATURE,
        precision=precision,
        folder=folder,
        stem=f"model.{precision}",
        example={"x": np.zeros((4, 1, 8, 8), np.float32)},
        parent=parent,
        settings=settings,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", LEAST)
def test_the_onnx_parents_agree_with_eager(
    precision: Precision,
    parent_of: Callable[[Precision], Path],
    model: torch.nn.Module,
    images: NDArray[np.float32],
) -> None:
    from onnxruntime import InferenceSession

    session = InferenceSession(str(parent_of(precision)), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        wanted = model(torch.from_numpy(images)).numpy()
    assert sqnr(wanted, session.run(None, {"x": images})[0]) > LEAST[precision]


gpu = pytest.mark.skipif(not READINESS.ready, reason=READINESS.reason)


@pytest.mark.gpu
@gpu
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", LEAST)
def test_an_engine_agrees_with_eager_and_computes_in_its_precision(
    precision: Precision,
    parent_of: Callable[[Precision], Path],
    model: torch.nn.Module,
    images: NDArray[np.float32],
    tmp_path: Path,
) -> None:
    job = job_for(parent_of(precision), precision, tmp_path, tf32="false", timing_cache="off")
    made = tensorrt_engine.convert(job)
    engine = tmp_path / made.files[0][0]
    assert tensorrt_engine.claims(engine)
    found = tensorrt_engine.coverage(engine, {"x": images[:1]}, "cuda")
    assert found is not None
    assert found.layers.get(str(precision), 0) > 0
    assert tensorrt_engine.inspect(engine).facts["tensorrt"] == made.versions["tensorrt"]
    with tensorrt_engine.open_runner(engine, "cuda", SIGNATURE) as runner:
        for batch in (1, 3, 8):
            with torch.no_grad():
                wanted = model(torch.from_numpy(images[:batch])).numpy()
            outputs = runner.run({"x": images[:batch]})
            assert sqnr(wanted, outputs["output"]) > LEAST[precision]
        with pytest.raises(RunnerError, match=r"x \(9, 1, 8, 8\)"):
            runner.run({"x": np.zeros((9, 1, 8, 8), np.float32)})


@pytest.mark.gpu
@gpu
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_stripped_engine_gets_its_weights_from_the_onnx(
    parent_of: Callable[[Precision], Path],
    model: torch.nn.Module,
    images: NDArray[np.float32],
    tmp_path: Path,
) -> None:
    parent = parent_of(Precision.FP32)
    made = tensorrt_engine.convert(
        job_for(parent, Precision.FP32, tmp_path, strip_weights="true", tf32="false")
    )
    with torch.no_grad():
        wanted = model(torch.from_numpy(images)).numpy()
    engine = tmp_path / made.files[0][0]
    named = {"weights": str(parent)}
    with tensorrt_engine.open_runner(engine, "cuda", SIGNATURE, named) as runner:
        assert sqnr(wanted, runner.run({"x": images})["output"]) > LEAST[Precision.FP32]


@pytest.mark.gpu
@gpu
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_second_build_uses_the_timings_of_the_first(
    parent_of: Callable[[Precision], Path], tmp_path: Path
) -> None:
    parent = parent_of(Precision.FP32)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        job = job_for(parent, Precision.FP32, tmp_path / name)
        made = tensorrt_engine.convert(replace(job, cache=tmp_path / "cache"))
        assert not made.notes
    assert len(list((tmp_path / "cache").rglob("*.timing"))) == 1
