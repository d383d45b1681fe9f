"""The models of seeds.py, and the published figures that its results stand beside.

The figures are those of two comparisons of BERT and ResNet in eager PyTorch, TorchScript and
TensorRT. Their machines are unknown but for the one GPU that is named, so only ratios of two rows
of the same comparison say anything here. Where it is unknown which of both has a figure, the source
is "one of both".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from modelc.sample_models import digits, resnet
from modelc.tests.nets.cost_nets import resnet18

ROOT = Path(__file__).resolve().parent.parent
TOKENS = 14
_VOCABULARY = 30522  # of BertConfig
_IMAGE = ("image:float32[1,3,224,224]",)
_TARGETS = ("torchscript", "pt2", "onnx", "onnx:int8", "openvino", "openvino:int8")
RANDOM_SAMPLES = 32  # calibration samples of models with random weights


@dataclass(frozen=True, kw_only=True)
class SeedModel:
    """One model: how it is built, its domain, its artifacts, and its data.

    Without a `checkpoint`, `build` draws the weights from a fixed seed. `calibration` and `data`
    are folders or files of samples; without them INT8 is calibrated on random samples, and no
    accuracy is measured. `batch` is the size of a batch dim that varies.
    """

    title: str
    factory: str
    build: Callable[[], nn.Module]
    inputs: tuple[str, ...]
    targets: tuple[str, ...] = _TARGETS
    checkpoint: Path | None = None
    calibration: Path | None = None
    data: Path | None = None
    batch: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PublishedRatio:
    """How many times as fast as eager a row was, elsewhere.

    `eager` and `row_ms` are the published milliseconds; `ratio` is given where only that was
    published. Without any of them, the row is one that was not published for this device.
    """

    model: str
    row: str
    device: str
    source: str = ""
    eager: float | None = None
    row_ms: float | None = None
    ratio: float | None = None

    @property
    def speedup(self) -> float | None:
        """Eager's time divided by the row's."""
        if self.eager is not None and self.row_ms is not None:
            return self.eager / self.row_ms
        return self.ratio


@dataclass(frozen=True, kw_only=True)
class PublishedLoss:
    """Points of accuracy that a row lost, elsewhere."""

    title: str
    row: str
    source: str
    points: float


def bert_base() -> nn.Module:
    """Build BERT-base of transformers: 12 layers, hidden size 768, 110 million parameters."""
    from transformers import BertConfig, BertModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = BertModel(BertConfig(vocab_size=_VOCABULARY))
    return model.eval()


def resnet50() -> nn.Module:
    """Build ResNet-50."""
    return resnet.resnet50().eval()


MODELS: Mapping[str, SeedModel] = {
    "bert-base": SeedModel(
        title="BERT-base",
        factory="modelc.benchmarks.seed_models:bert_base",
        build=bert_base,
        inputs=(  # a pair of sentences, without padding
            f"input_ids:int64[1,{TOKENS}]{{0..{_VOCABULARY - 1}}}",
            f"token_type_ids:int64[1,{TOKENS}]{{0..1}}",
        ),
    ),
    "resnet18": SeedModel(
        title="ResNet-18",
        factory="modelc.tests.nets.cost_nets:resnet18",
        build=resnet18,
        inputs=_IMAGE,
    ),
    "resnet50": SeedModel(
        title="ResNet-50",
        factory="modelc.sample_models.resnet:resnet50",
        build=resnet50,
        inputs=_IMAGE,
    ),
    "digits": SeedModel(
        title="Digits",
        factory="modelc.sample_models.digits:build",
        build=digits.build,
        inputs=digits.SIGNATURE,
        targets=(*_TARGETS, "onnx:fp16", "openvino:fp16"),
        checkpoint=ROOT / "sample_models" / "digits.safetensors",
        calibration=ROOT / "sample_models" / "digits_calib",
        data=ROOT / "sample_models" / "digits_heldout.npz",
        batch=(1,),
    ),
}

_FIRST, _SECOND, _EITHER, _V100 = "first", "second", "one of both", "TensorRT on a V100"
_CPU_INT8 = ("onnx-int8", "openvino-int8")

PUBLISHED: tuple[PublishedRatio, ...] = (
    PublishedRatio(model="bert-base", row="torchscript", device="cpu", source=_FIRST,
                   eager=86.2, row_ms=81.6),
    PublishedRatio(model="bert-base", row="torchscript", device="cpu", source=_SECOND,
                   eager=171.3, row_ms=165.2),
    PublishedRatio(model="bert-base", row="torchscript", device="cuda", source=_EITHER,
                   eager=16.5, row_ms=10.5),
    PublishedRatio(model="bert-base", row="torchscript", device="cuda", source=_EITHER,
                   eager=30.4, row_ms=13.5),
    PublishedRatio(model="resnet18", row="torchscript", device="cpu", source=_EITHER,
                   eager=77.5, row_ms=74.2),
    PublishedRatio(model="resnet18", row="torchscript", device="cuda", source=_EITHER,
                   eager=3.0, row_ms=1.6),
    PublishedRatio(model="resnet50", row="tensorrt-int8", device="cuda", source=_V100, ratio=4.1),
    *(PublishedRatio(model=model, row=row, device="cpu")
      for model in ("resnet50", "resnet18", "bert-base") for row in _CPU_INT8),
)  # fmt: skip

PUBLISHED_LOSSES: tuple[PublishedLoss, ...] = (
    PublishedLoss(title="ResNet-50", row="tensorrt-int8", source=_V100, points=0.28),
)
