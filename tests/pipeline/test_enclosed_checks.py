"""Steps inside a model: judged in every format, and checked against Pillow and numpy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modelc.calibration.sample_content import ImageReader
from modelc.checkpoints import enclosed_module, image_steps
from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.model_meta import ModelMeta
from modelc.core.postprocess import Postprocess
from modelc.core.preprocess import Preprocess
from modelc.pipeline.enclosed_checks import check_channels, find_difference
from modelc.pipeline.make_order import include_steps
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_folder import validate_folder

Orders = Callable[..., Order]
NETS = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, channels: int = 3):
        super().__init__()
        self.a = nn.Conv2d(channels, 8, 3, stride=2, padding=1)
        self.b = nn.Linear(8, 5)
    def forward(self, x):
        return self.b(self.a(x).relu().mean((2, 3)))
class Two(Net):
    def forward(self, x, shift):
        return super().forward(x) + shift
def change(net, function):
    forward = net.forward
    net.forward = lambda x: forward(function(x))
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
def swap_channels(net):
    change(net, lambda x: x.flip(1))
def swap_mean_and_std(net):
    change(net, lambda x: (x * STD + MEAN - STD) / MEAN)
def move_by_a_pixel(net):
    change(net, lambda x: torch.roll(x, 1, dims=3))
def smooth(net):
    change(net, lambda x: nn.functional.avg_pool2d(x, 3, 1, 1))
"""
STEPS = "imagenet,resize=24,crop=20,channels=rgb,layout=NCHW"


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    before, name = list(sys.path), f"nets_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(NETS)
    sys.path.insert(0, str(tmp_path))
    yield name
    sys.path[:] = before


@pytest.fixture
def source(tmp_path: Path, nets: str) -> Source:
    module = __import__(nets).Net()
    torch.manual_seed(0)
    torch.save({name: torch.randn_like(one) for name, one in module.state_dict().items()},
               tmp_path / "net.pt")  # fmt: skip
    return Source(
        checkpoint=tmp_path / "net.pt",
        model=f"{nets}:Net",
        inputs=("x:uint8[batch=1..2,height=20..60,width=20..60,3]",),
        preprocess=STEPS,
        include_preprocess=True,
        postprocess="softmax,topk=2",
    )


@pytest.mark.slow
def test_the_raw_image_gives_what_the_model_gives_on_pillows_image(
    order: Orders, source: Source, nets: str, tmp_path: Path
) -> None:
    manifest = run(order("onnx", source=source, meta=ModelMeta(classes=tuple("abcde"))))
    assert manifest.passed
    assert manifest.meta.classes_output == "class_ids"
    assert manifest.meta.included_preprocess == Preprocess.parse(STEPS)
    assert manifest.meta.preprocess == Preprocess.parse("layout=NHWC,channels=rgb")
    import onnxruntime

    session = onnxruntime.InferenceSession(order("onnx").out / "model.onnx")
    net = __import__(nets).Net().eval()
    net.load_state_dict(torch.load(tmp_path / "net.pt"))
    rng = np.random.default_rng(0)
    for size in ((20, 20), (33, 57), (60, 21)):
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "one.png")
        given = ImageReader(preprocess=Preprocess.parse(STEPS))(tmp_path / "one.png")[0]
        with torch.no_grad():
            expected = torch.softmax(net(torch.from_numpy(given[None])), 1).topk(2)
        scores, ids = session.run(None, {"x": pixels[None]})
        assert ids.tolist() == expected.indices.tolist(), size
        assert np.abs(scores - expected.values.numpy()).max() < 0.01, size
    assert validate_folder(order("onnx").out).passed


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["swap_channels", "swap_mean_and_std", "move_by_a_pixel", "smooth"]
)
def test_a_fault_in_the_captured_copy_is_rejected(
    order: Orders, source: Source, nets: str, fault: str
) -> None:
    source = replace(source, postprocess="")
    manifest = run(order("torchscript", source=source, patches=(f"{nets}:{fault}",)))
    assert not manifest.passed
    assert manifest.artifacts[0].rejected


def _no_antialias(*args: Any) -> torch.Tensor:
    given, places, size, new_size, _ = args
    distance = (2 * given + 1)[None, :] * new_size - (2 * places + 1)[:, None] * size
    weights = (1 - distance.abs() / (2 * new_size)).clamp(min=0).to(torch.float32)
    total: torch.Tensor = weights.sum(dim=1, keepdim=True)
    found: torch.Tensor = weights / total
    return found


def _crop_off_by_one(size: torch.Tensor, kept: int, *, cropped: bool) -> torch.Tensor:
    places = torch.arange(kept)
    return places + (size - kept) // 2 - 1 if cropped else places


def _bicubic(ratio: torch.Tensor, *_: object) -> torch.Tensor:
    return FILTER(ratio, "bicubic")


def _swapped(steps: Preprocess) -> dict[str, torch.Tensor]:
    found = CONSTANTS(steps)
    return {**found, "mean": found["std"], "std": found["mean"]}


FILTER, CONSTANTS = image_steps._filter_values, image_steps.make_scale_constants


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("_filter_weights", _no_antialias),
        ("_crop_places", _crop_off_by_one),
        ("_filter_values", _bicubic),
    ],
)
def test_a_fault_in_our_own_preprocessing_stops_the_run(
    order: Orders, source: Source, monkeypatch: pytest.MonkeyPatch, name: str, fault: object
) -> None:
    monkeypatch.setattr(image_steps, name, fault)
    with pytest.raises(CheckpointError) as caught:
        run(order("torchscript", source=source))
    assert caught.value.code is ErrorCode.STEPS_DIFFER


@pytest.mark.parametrize("fault", ["flip", "constants"])
def test_swapped_channels_and_constants_stop_the_run(
    order: Orders, source: Source, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    from modelc.pipeline import enclosed_checks

    if fault == "constants":
        monkeypatch.setattr(enclosed_checks, "make_scale_constants", _swapped)
    else:
        real = image_steps.preprocess_images
        swapped = lambda image, *rest: real(image.flip(3), *rest)  # noqa: E731
        monkeypatch.setattr(enclosed_checks, "preprocess_images", swapped)
    with pytest.raises(CheckpointError) as caught:
        run(order("torchscript", source=source))
    assert caught.value.code is ErrorCode.STEPS_DIFFER


def test_top_k_in_another_order_stops_the_run(
    order: Orders, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backwards(scores: torch.Tensor, steps: Postprocess) -> dict[str, torch.Tensor]:
        found = apply(scores, steps)
        return {name: one.flip(1) for name, one in found.items()}

    apply = enclosed_module.apply_postprocess
    monkeypatch.setattr(enclosed_module, "apply_postprocess", backwards)
    with pytest.raises(CheckpointError) as caught:
        run(order("torchscript", source=source))
    assert caught.value.code is ErrorCode.STEPS_DIFFER


def test_scores_in_half_precision_and_without_an_order() -> None:
    scores = np.array([[1.0, 2.0, -np.inf, 1.5]], np.float16)
    exact = np.exp(scores.astype(np.float64)) / np.exp(scores.astype(np.float64)).sum()
    softmax, argmax = Postprocess.parse("softmax"), Postprocess.parse("argmax")

    assert not find_difference(scores, {"probabilities": exact.astype(np.float16)}, softmax)
    assert find_difference(scores, {"probabilities": exact + 0.01}, softmax)
    nan = np.array([[1.0, np.nan]], np.float32)
    assert not find_difference(nan, {"class_ids": np.array([1])}, argmax)  # as torch orders them
    infinite = np.array([[1.0, np.inf]], np.float32)
    assert not find_difference(infinite, {"class_ids": np.array([1])}, argmax)
    assert find_difference(infinite, {"class_ids": np.array([0])}, argmax)


def test_ties_may_be_in_any_order_and_values_may_not() -> None:
    scores = np.array([[1.0, 2.0, 2.0, 0.0]], dtype=np.float32)
    steps = Postprocess.parse("topk=2")
    for ids in ([1, 2], [2, 1]):
        outputs = {"scores": np.array([[2.0, 2.0]]), "class_ids": np.array([ids])}
        assert not find_difference(scores, outputs, steps)
    wrong = {"scores": np.array([[2.0, 2.0]]), "class_ids": np.array([[1, 0]])}
    assert find_difference(scores, wrong, steps)
    assert not find_difference(scores, {"class_ids": np.array([2])}, Postprocess.parse("argmax"))
    assert find_difference(scores, {"class_ids": np.array([0])}, Postprocess.parse("argmax"))


def test_a_folder_of_images_is_fed_and_judged(
    order: Orders, source: Source, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    for number, size in enumerate(((40, 31), (59, 60), (23, 23))):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    source = replace(source, samples=tmp_path / "photos")
    manifest = run(order("torchscript", source=source))
    assert manifest.passed
    assert [one.name for one in manifest.feeds.drawn if "sample" in one.name]
    assert validate_folder(order("torchscript").out).passed
    (tmp_path / "photos" / "0.png").write_bytes((tmp_path / "photos" / "1.png").read_bytes())
    with pytest.raises(CheckpointError) as caught:
        validate_folder(order("torchscript").out)
    assert caught.value.code is ErrorCode.FILE_CHANGED


def test_two_inputs_need_the_name_of_the_image(order: Orders, source: Source, nets: str) -> None:
    inputs = ("x:float32[batch=1..2,3,8,8]", "shift:float32[batch,5]")
    two = replace(source, model=f"{nets}:Two", inputs=inputs, preprocess="", postprocess="")
    meta = ModelMeta(preprocess=Preprocess.parse("resize=8x8"), preprocess_input="image")
    with pytest.raises(UsageError) as caught:
        run(order("torchscript", source=two, meta=meta))
    assert caught.value.option == "meta"
    named = run(order("torchscript", source=two, meta=replace(meta, preprocess_input="x")))
    assert named.passed


@pytest.mark.parametrize(
    "text",
    ["resize=32", "resize=32,crop=40", "resize=32x32,interpolation=nearest", "imagenet,crop=300"],
)
def test_preprocessing_that_no_model_can_include(source: Source, text: str) -> None:
    source = replace(source, preprocess="")
    with pytest.raises(UsageError) as caught:
        include_steps(source, ModelMeta(preprocess=Preprocess.parse(text)))
    assert caught.value.code is ErrorCode.UNSUPPORTED
    with pytest.raises(UsageError) as nothing:
        include_steps(source, None)
    assert nothing.value.code is ErrorCode.NO_EFFECT


@pytest.mark.parametrize(("channels", "declared"), [(1, "rgb"), (3, "gray")])
def test_images_of_other_channels_are_named_before_values_are_compared(
    channels: int, declared: str
) -> None:
    image, steps = np.zeros((4, 4, channels), "uint8"), Preprocess.parse(f"channels={declared}")
    with pytest.raises(CheckpointError) as caught:
        check_channels("x", image, steps)
    assert caught.value.code is ErrorCode.STEPS_DIFFER
    check_channels("x", np.zeros((4, 4, 4 - channels), "uint8"), steps)
