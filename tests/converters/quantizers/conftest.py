"""Two small models and their samples, and each quantizer's result on them, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.checkpoints.eager_model import Eager
from modelc.converters import onnx_model, openvino_ir
from modelc.converters.quantizers.quantizer_registry import QUANTIZERS, find_quantizer
from modelc.core.call import bind_inputs, parameters_of
from modelc.core.contract import Feed, Job, Outputs, Quantized, QuantizeJob
from modelc.core.grammar import parse_input
from modelc.core.kinds import Capture, Precision
from modelc.core.records import CalibrationRecord
from modelc.core.signature import Signature, merge_inputs
from modelc.sample_models import digits as digits_model
from modelc.sample_models import encoder
from modelc.validators.feeds import draw_example_feed

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE_MODELS = Path(__file__).parents[3] / "sample_models"
Run: TypeAlias = Callable[[Feed], Outputs]


class Feeds:
    """Calibration feeds that are made when asked for, and counted while somebody holds them."""

    def __init__(self, make: Callable[[int], Feed], count: int) -> None:
        self._make = make
        self._count = count
        self.most = 0
        self.alive = 0
        self.record = CalibrationRecord(
            source="tests", kind="loader", found=count, used=count, held_out=0,
            selection="first", seed=0, digest="",
        )  # fmt: skip

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Feed]:
        for index in range(self._count):
            yield {name: self._counted(array) for name, array in self._make(index).items()}

    def _counted(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        import weakref

        held = array.copy()
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(held, self._let_go)
        return held

    def _let_go(self) -> None:
        self.alive -= 1


@dataclass(frozen=True, kw_only=True)
class FloatModel:
    """A float ONNX with what calibrates it, and what it gives on feeds held out."""

    name: str
    parent: Path
    signature: Signature
    make: Callable[[int], Feed]
    held_out: tuple[Feed, ...]
    expected: tuple[Outputs, ...]

    def feeds(self, count: int = 24) -> Feeds:
        return Feeds(self.make, count)

    def job(self, folder: Path, consumer: str) -> QuantizeJob:
        return QuantizeJob(
            parent=self.parent,
            consumer=consumer,
            signature=self.signature,
            calibration=self.feeds(),
            folder=folder,
        )


def float_model_of(
    folder: Path, name: str, module: nn.Module, inputs: tuple[str, ...], make: Callable[[int], Feed]
) -> FloatModel:
    """Export the module to ONNX in `folder`, and run it on eight feeds that calibrate nothing."""
    module.eval()
    held_out = tuple(make(index) for index in range(1000, 1008))
    names = [parse_input(text).name for text in inputs]
    with torch.no_grad():
        first = module(*(torch.tensor(held_out[0][n]) for n in names))
    outputs = tuple(first) if isinstance(first, dict) else ("output",)
    signature = merge_inputs([parse_input(text) for text in inputs], {}).with_outputs(outputs)
    job = Job(
        signature=signature,
        precision=Precision.FP32,
        folder=folder,
        stem="model",
        example=draw_example_feed(signature),
        model=Eager(module, tuple(names), bind_inputs(tuple(names), parameters_of(module.forward))),
        capture=Capture.EXPORT,
    )
    onnx_model.convert(job)
    with onnx_model.open_runner(folder / "model.onnx", "cpu", signature) as runner:
        expected = tuple(runner.run(feed) for feed in held_out)
    return FloatModel(
        name=name, parent=folder / "model.onnx", signature=signature, make=make,
        held_out=held_out, expected=expected,
    )  # fmt: skip


@lru_cache
def images() -> NDArray[np.float32]:
    from sklearn.datasets import load_digits

    scaled: NDArray[np.float32] = load_digits().images.astype(np.float32) / 16
    return scaled


def digit(index: int) -> Feed:
    return {"x": images()[index : index + 1, None]}


def sentence(index: int) -> Feed:
    """Ids and a mask of one sentence; all but the first are padded at the end."""
    draw = np.random.default_rng(index)
    length = int(draw.integers(8, 17))
    mask = np.ones((1, length), np.int64)
    mask[:, int(draw.integers(4, length)) if index else length :] = 0
    return {"ids": draw.integers(0, 100, (1, length)), "mask": mask}


class Additive(nn.Module):
    """Attention whose mask is added: the least float there is, as transformers does it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(100, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.out = nn.Linear(32, 32)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids)
        fill = (1.0 - mask.to(x.dtype))[:, None, :] * torch.finfo(x.dtype).min
        scores = self.query(x) @ self.key(x).transpose(1, 2) * 32**-0.5 + fill
        out: Tensor = self.out(scores.softmax(-1) @ self.value(x))
        return out


SENTENCES = ("ids:int64[batch=1..4,seq=2..16]{0..99}", "mask:int64[batch=1..4,seq=2..16]{0..1}")


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> FloatModel:
    from safetensors.torch import load_file

    module = digits_model.build()
    module.load_state_dict(load_file(SAMPLE_MODELS / "digits.safetensors"))
    inputs = ("x:float32[batch=1..8,1,8,8]",)
    return float_model_of(tmp_path_factory.mktemp("digits"), "digits", module, inputs, digit)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> FloatModel:
    module = encoder.bert(2, 64, heads=4, vocab=100)
    return float_model_of(tmp_path_factory.mktemp("bert"), "bert", module, SENTENCES, sentence)


@pytest.fixture(scope="session")
def additive(tmp_path_factory: pytest.TempPathFactory) -> FloatModel:
    folder = tmp_path_factory.mktemp("additive")
    return float_model_of(folder, "additive", Additive(), SENTENCES, sentence)


Quantize: TypeAlias = Callable[[str, str, str], Quantized]


@pytest.fixture(scope="session")
def quantized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Quantize:
    """`quantized("nncf", "digits", "openvino")`: that quantizer's default result, made once."""
    made: dict[tuple[str, str, str], Quantized] = {}

    def quantize(quantizer: str, name: str, consumer: str) -> Quantized:
        key = (quantizer, name, consumer)
        if key not in made:
            floats: FloatModel = request.getfixturevalue(name)
            job = floats.job(tmp_path_factory.mktemp("-".join(key)), consumer)
            made[key] = find_quantizer(quantizer).quantize(job)
        return made[key]

    return quantize


def ways() -> list[object]:
    """Every quantizer by every consumer."""
    return [
        pytest.param(
            (quantizer.NAME, consumer),
            id=f"{quantizer.NAME}-{consumer}",
            marks=ready(quantizer.NAME),
        )
        for quantizer in QUANTIZERS
        for consumer, precision in quantizer.METHODS
        if precision is Precision.INT8
    ]


def ready(name: str) -> pytest.MarkDecorator:
    """Skip, with the quantizer's reason, where it is not installed."""
    found = find_quantizer(name).readiness()
    return pytest.mark.skipif(not found.ready, reason=found.reason or "ready")


@pytest.fixture(scope="session", params=ways())
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


def outputs_of(path: Path, floats: FloatModel) -> list[Outputs]:
    """What a model file gives on the feeds held out; IR is bounded, ONNX runs in ONNX Runtime."""
    target = openvino_ir if path.suffix == ".xml" else onnx_model
    with target.open_runner(path, "cpu", floats.signature) as runner:
        return [runner.run(feed) for feed in floats.held_out]


def sqnr(path: Path, floats: FloatModel) -> float:
    """The worst output's ratio of signal to error, in dB, over all the feeds held out."""
    found = outputs_of(path, floats)
    worst = np.inf
    for name in floats.signature.outputs:
        signal = sum(float(np.square(e[name]).sum()) for e in floats.expected)
        noise = sum(
            float(np.square(e[name] - f[name]).sum())
            for e, f in zip(floats.expected, found, strict=True)
        )
        worst = min(worst, 10 * np.log10(signal / noise))
    return float(worst)


def job_in(floats: FloatModel, folder: Path, consumer: str, **changes: object) -> QuantizeJob:
    """The float model's job with changes."""
    return replace(floats.job(folder, consumer), **changes)  # type: ignore[arg-type]  # by name
