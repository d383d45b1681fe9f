"""The user's own Python pipeline beside the model: what passes, and what each fault is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modelc.cli.render_manifest import show_manifest
from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.events import Event, Noted, ignore_events
from modelc.core.findings import PipelineComparison
from modelc.pipeline.eager_reference import EagerReference, open_reference, read_checkpoint
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Judging, Order, Source
from modelc.pipeline.python_pipeline import compare_pipeline
from modelc.pipeline.run_order import run
from modelc.pipeline.run_progress import Progress
from modelc.reports.html_page import render_html
from modelc.reports.markdown import render_markdown

Orders = Callable[..., Order]
# A pipeline as users of Pillow and torchvision write it, and others with one fault each.
CODE = """
import os, random, sys
import numpy as np, torch
from PIL import Image
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 16, 3, stride=2), nn.Conv2d(16, 16, 3)
        self.c = nn.Linear(16 * 4, 5)
    def forward(self, x):
        x = self.b(self.a(x).relu()).relu()
        return 4 * self.c(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
def new_size(h, w):
    return (int(24 * h / w), 24) if w <= h else (24, int(24 * w / h))
def crop(image, moved=0):
    top, left = (int(round((size - 20) / 2.0)) + moved for size in image.shape[1:])
    return image[:, top : top + 20, left : left + 20]
def pil(image, how=Image.BILINEAR):
    small = Image.fromarray(image).resize(new_size(*image.shape[:2])[::-1], how)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)
def tensor(image, antialias=True, dtype=torch.float32):
    image = torch.from_numpy(image).permute(2, 0, 1)[None].to(dtype)
    size = new_size(*image.shape[2:])
    return nn.functional.interpolate(image, size, mode="bilinear", antialias=antialias)[0]
def norm(image, scale=255, mean=MEAN, std=STD):
    return (image.float() / scale - mean) / std
@torch.no_grad()
def score(images, softmax=True):
    scores = NET(torch.stack(images))
    return (scores.softmax(1) if softmax else scores).topk(2)
def with_pillow(x): return score([norm(crop(pil(one))) for one in x])
def with_tensors(x): return score([norm(crop(tensor(one))) for one in x])
def with_bytes(image): return score([norm(crop(tensor(one, dtype=torch.uint8))) for one in image])
def as_dict(x):
    values, ids = with_pillow(x)
    os.write(1, b"a line")
    return {"class_ids": ids.int().tolist(), "scores": values.double().numpy(), "more": "text"}
def bgr(x): return with_pillow(x[..., ::-1].copy())
def no_std(x): return score([norm(crop(pil(one)), std=1) for one in x])
def other_scale(x): return score([norm(crop(pil(one)), scale=256) for one in x])
def nearest(x): return score([norm(crop(pil(one, Image.NEAREST))) for one in x])
def no_antialias(x): return score([norm(crop(tensor(one, antialias=False))) for one in x])
def moved(x): return score([norm(crop(pil(one), moved=2)) for one in x])
def no_softmax(x): return score([norm(crop(pil(one))) for one in x], softmax=False)
def from_one(x): return with_pillow(x)[0], with_pillow(x)[1] + 1
def exchanged(x): return with_pillow(x)[::-1]
def without_batch(x): return [one[0] for one in with_pillow(x)]
def one_output(x): return with_pillow(x)[0]
def of_text(x): return "cat", "dog"
def raising(x): raise KeyError("colour")
def exiting(x): sys.exit(3)
def as_nan(x): return with_pillow(x)[0] * float("nan"), with_pillow(x)[1]
def at_random(x): return with_pillow(x)[0] + random.random(), with_pillow(x)[1]
def overwriting(x):
    found = with_pillow(x)
    x[:] = 0
    return found
def plain(array): return NET(torch.from_numpy(array)).detach()
def halved(array): return plain(array) / 2
class Broken:
    def __array__(self, *_, **__): raise OSError("image file is truncated")
def broken(x): return Broken(), Broken()
def changing(x):
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    return [one.float() if one.is_floating_point() else one for one in with_pillow(x)]
def itself(array): return SHARED(torch.from_numpy(array)).detach()
class Sorted(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.c = nn.Conv2d(3, 5, 2, stride=2)
    def forward(self, x):
        y = torch.tanh(self.c(x)).flatten(2).transpose(1, 2)
        _, best = y[..., 4].topk(50, dim=1)
        return y[..., :4].gather(1, best[..., None].expand(-1, -1, 4))
class Boxes(nn.Module):
    def __init__(self, bias=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.b, self.s, self.bias = nn.Conv2d(3, 4, 8, stride=8), nn.Conv2d(3, 2, 8, stride=8), bias
        y, x = torch.meshgrid(torch.arange(4.0) * 16, torch.arange(4.0) * 16, indexing="ij")
        self.register_buffer("grid", torch.stack([x, y, x + 12, y + 12], -1).view(1, 16, 4))
    def forward(self, x):
        boxes = self.grid + self.b(x).flatten(2).transpose(1, 2)
        return {"boxes": boxes, "scores": self.s(x).flatten(2).transpose(1, 2) + self.bias}
def small(x, how=Image.BILINEAR):
    images = [np.asarray(Image.fromarray(one).resize((32, 32), how)) for one in x]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
@torch.no_grad()
def in_order(x): return SORTED(small(x))
def in_order_bgr(x): return in_order(x[..., ::-1].copy())
@torch.no_grad()
def suppressed(x):
    from modelc.checkpoints.box_suppression import suppress_boxes
    from modelc.core.postprocess import Suppression
    found = BOXES(small(x))
    steps = Suppression(most=8, candidates=32)
    return suppress_boxes(found["boxes"], found["scores"].sigmoid(), steps)
def suppressed_bgr(x): return suppressed(x[..., ::-1].copy())
def shifted(x):
    found = suppressed(x)
    return {**found, "boxes": torch.where(found["scores"][..., None] > 0, found["boxes"] + 2, 0.0)}
def no_boxes(x):
    n = len(x)
    return {
        "boxes": np.zeros((n, 8, 4), "f"), "scores": np.zeros((n, 8), "f"),
        "class_ids": np.zeros((n, 8), int), "count": np.zeros(n, int),
    }
NET, SHARED, SORTED, BOXES = Net().eval(), Net().eval(), Sorted().eval(), Boxes().eval()
NUMBER = 3
"""
STEPS = "imagenet,resize=24,crop=20,channels=rgb,layout=NCHW"
IMAGE = "x:uint8[batch=1..2,height=20..60,width=20..60,3]{0..255}"


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "own_pipeline.py").write_text(CODE)
    sys.path.insert(0, str(folder))
    module = importlib.import_module("own_pipeline")
    for name in ("NET", "SORTED", "BOXES"):
        torch.save(getattr(module, name).state_dict(), folder / f"{name.lower()}.pt")
    yield module
    sys.path.remove(str(folder))


def open_source(code: Any, **changes: Any) -> Source:
    steps = {"preprocess": STEPS, "postprocess": "softmax,topk=2", "inputs": (IMAGE,), **changes}
    place = Path(code.__file__).parent / "net.pt"
    return Source(checkpoint=place, model="own_pipeline:Net", include_preprocess=True, **steps)


@pytest.fixture(scope="module")
def eager(code: Any, tmp_path_factory: pytest.TempPathFactory) -> EagerReference:
    progress = Progress(tell=ignore_events, logs=tmp_path_factory.mktemp("logs"))
    source = open_source(code)
    return open_reference(source, read_checkpoint(source, progress), Judging(), progress)


def compare(name: str, eager: EagerReference, logs: Path, told: list[Event]) -> PipelineComparison:
    progress = Progress(tell=told.append, logs=logs)
    found = compare_pipeline(f"own_pipeline:{name}", eager, progress)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "name", ["with_pillow", "with_tensors", "with_bytes", "as_dict", "overwriting"]
)
def test_a_pipeline_with_the_declared_steps_passes(
    eager: EagerReference, tmp_path: Path, name: str
) -> None:
    told: list[Event] = []
    found = compare(name, eager, tmp_path, told)
    assert (found.feeds, len(found.sha256)) == (len(eager.references), 64)
    scores, ids = found.drifts
    assert (scores.output, ids.output) == ("scores", "class_ids")
    assert scores.sqnr is not None
    assert scores.allowed is not None
    assert scores.sqnr > scores.allowed
    assert ids.differing <= ids.compared / 50
    notes = [one.text for one in told if isinstance(one, Noted)]
    assert any("pipeline.log" in one for one in notes) is (name == "as_dict")


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("bgr", "agrees with channels=bgr"),
        ("no_std", "agrees with no std"),
        ("other_scale", "agrees with scale=1/256"),
        ("nearest", "agrees with interpolation=nearest"),
        ("no_antialias", "agrees with a resize without antialias"),
        ("moved", "agrees with the crop +2 rows and +2 columns from the center"),
        ("no_softmax", "agrees with scores without an activation"),
        ("from_one", "agrees with 'class_ids' counted from 1"),
        ("exchanged", "it is exchanged with 'class_ids'"),
        ("without_batch", "returns 'scores' as float32[2]"),
        ("one_output", "returns a Tensor, and the model returns scores, class_ids"),
        ("of_text", "which is not an array of numbers"),
        ("raising", "raised KeyError at "),
        ("exiting", "raised SystemExit at "),
        ("as_nan", "returns NaN or Inf in 2 of 2 values of 'scores'"),
        ("broken", "which is not an array of numbers: OSError: image file is truncated"),
        ("at_random", "returns other values for the same arrays"),
    ],
)
def test_another_pipeline_is_refused_with_its_cause(
    eager: EagerReference, tmp_path: Path, name: str, cause: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        compare(name, eager, tmp_path, [])
    assert caught.value.code is ErrorCode.PIPELINE_DIFFERS
    assert cause in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["missing", "NUMBER", "a b"])
def test_what_is_no_function_is_a_usage_error(
    eager: EagerReference, tmp_path: Path, name: str
) -> None:
    with pytest.raises(UsageError) as caught:
        compare(name, eager, tmp_path, [])
    assert "--against-pipeline" in caught.value.message


@pytest.mark.slow
def test_the_record_is_in_the_manifest_and_in_reports(
    order: Orders, code: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    given = order("torchscript", source=open_source(code), against_pipeline="own_pipeline:as_dict")
    manifest = run(given)
    assert manifest.passed
    assert manifest.order["against_pipeline"] == "own_pipeline:as_dict"
    assert read_manifest(given.out) == manifest
    assert manifest.pipeline is not None
    show_manifest(manifest, "out")
    shown = capsys.readouterr().out
    for text in (render_html(manifest), render_markdown(manifest), shown):
        assert f"on {manifest.pipeline.feeds} feeds" in " ".join(text.split())
    again = run(order("torchscript", source=open_source(code), against_pipeline=None))
    assert again.pipeline is None


def test_a_pipeline_of_the_models_own_inputs(order: Orders, code: Any) -> None:
    source = open_source(code, preprocess="", postprocess="", inputs=("x:float32[batch,3,9,9]",))
    assert run(order("torchscript", source=source, against_pipeline="own_pipeline:plain")).passed
    with pytest.raises(CheckpointError) as caught:
        run(order("torchscript", source=source, against_pipeline="own_pipeline:halved"))
    assert caught.value.option == "against-pipeline"


def test_what_the_pipeline_changes_of_the_process_is_undone(
    eager: EagerReference, tmp_path: Path
) -> None:
    before = Path.cwd()
    compare("changing", eager, tmp_path, [])
    assert Path.cwd() == before
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_pipeline_that_runs_the_compared_module_is_refused(order: Orders, code: Any) -> None:
    source = open_source(code, preprocess="", postprocess="", inputs=("x:float32[batch,3,9,9]",))
    source = replace(source, model="own_pipeline:SHARED")
    with pytest.raises(CheckpointError, match="very module"):
        run(order("torchscript", source=source, against_pipeline="own_pipeline:itself"))


def open_other(code: Any, name: str, folder: Path, **changes: Any) -> EagerReference:
    steps = {"preprocess": "scale=1/255,resize=32x32,channels=rgb,layout=NCHW", **changes}
    source = replace(
        open_source(code, **steps),
        checkpoint=Path(code.__file__).parent / f"{name.lower()}.pt",
        model=f"own_pipeline:{name.title()}",
    )
    progress = Progress(tell=ignore_events, logs=folder)
    return open_reference(source, read_checkpoint(source, progress), Judging(), progress)


@pytest.mark.slow
def test_feeds_where_rounding_decides_the_order_compare_nothing(code: Any, tmp_path: Path) -> None:
    eager = open_other(code, "SORTED", tmp_path, postprocess="")
    for name in ("in_order", "in_order_bgr"):
        with pytest.raises(CheckpointError) as caught:
            compare(name, eager, tmp_path, [])
        assert "interpolation=" not in caught.value.message
        if name == "in_order":
            assert "not compared" in caught.value.message


@pytest.mark.slow
def test_boxes_of_the_pipeline_must_be_a_right_choice(code: Any, tmp_path: Path) -> None:
    nms = "sigmoid,nms,max=8,candidates=32"
    eager = open_other(code, "BOXES", tmp_path, postprocess=nms)
    compare("suppressed", eager, tmp_path, [])
    for name in ("suppressed_bgr", "shifted", "no_boxes"):
        with pytest.raises(CheckpointError, match="differs from"):
            compare(name, eager, tmp_path, [])


@pytest.mark.slow
def test_feeds_without_boxes_compare_nothing(code: Any, tmp_path: Path) -> None:
    nms = "sigmoid,nms,max=8,candidates=32,score=0.99"
    eager = open_other(code, "BOXES", tmp_path, postprocess=nms)
    with pytest.raises(CheckpointError, match="no box") as caught:
        compare("no_boxes", eager, tmp_path, [])
    assert "--samples" in str(caught.value.hint)
