"""Samples that the user's own loader gives: judged on, on record, and fed again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.core.errors import UsageError
from modelc.core.events import Event, Noted
from modelc.pipeline.order import Judging, Order, Source
from modelc.pipeline.run_order import run
from modelc.pipeline.user_samples import (
    describe_outliers,
    further_feeds,
    load_user_samples,
    sample_without_model,
)
from modelc.pipeline.validate_folder import validate_folder
from modelc.validators.feeds import NamedFeed

from ..open_models import signature_of

Orders = Callable[..., Order]

NETS = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)
    def forward(self, x, labels=None):
        return self.line(x)
def loader():
    data = torch.utils.data.TensorDataset(torch.randn(15, 4), torch.arange(15))
    return torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
"""


@pytest.fixture
def source(tmp_path: Path, write_module: Callable[[str], str]) -> Source:
    """A checkpoint whose inputs a shuffling DataLoader gives: batches of 4, 4, 4 and 3."""
    name = write_module(NETS)
    weights = {f"line.{k}": v for k, v in torch.nn.Linear(4, 2).state_dict().items()}
    torch.save(weights, tmp_path / "net.pt")
    return Source(
        checkpoint=tmp_path / "net.pt", model=f"{name}:Net", samples=Path(f"{name}:loader")
    )


def test_batches_of_a_loader_are_feeds_and_are_fed_again(order: Orders, source: Source) -> None:
    manifest = run(order("torchscript", source=source))
    assert manifest.passed
    assert str(manifest.signature.inputs[0]) == "x:float32[4,4]"
    drawn = {record.name: record.skipped for record in manifest.feeds.drawn}
    assert {"sample", "sample-2", "sample-3"} <= set(drawn)
    assert "sample-4" not in drawn  # of 3, where the signature says 4
    assert any(note.startswith("1 sample ") for note in manifest.notes)
    assert any(note.startswith("position 1") for note in manifest.notes)
    assert manifest.feeds.samples == str(source.samples)
    told: list[Event] = []
    again = validate_folder(order("torchscript").out, told.append)
    assert again.passed
    assert again.feeds == manifest.feeds
    assert not [one for one in told if isinstance(one, Noted) and "other samples" in one.text]


def test_a_loader_that_gives_other_samples_is_noted(
    order: Orders, source: Source, tmp_path: Path
) -> None:
    run(order("torchscript", source=source))
    path = tmp_path / f"{str(source.samples).partition(':')[0]}.py"
    path.write_text(NETS.replace("torch.randn(15, 4)", "torch.rand(15, 4) + 1"))
    del sys.modules[path.stem]
    told: list[Event] = []
    assert validate_folder(order("torchscript").out, told.append).passed
    warned = [one.text for one in told if isinstance(one, Noted) and one.warning]
    assert any(line.startswith(str(source.samples)) for line in warned)


def test_a_loader_gives_at_most_as_many_samples_as_feeds(source: Source) -> None:
    loaded = load_checkpoint(identify(source.checkpoint, factory=source.model, factory_args={}))
    for feeds, more in ((None, 3), (6, 3)):
        found = load_user_samples(source, loaded, Judging(feeds=feeds), None)
        assert found is not None
        assert len(found.more) == more


def test_items_of_a_dynamic_size_are_all_feeds(source: Source) -> None:
    loaded = load_checkpoint(identify(source.checkpoint, factory=source.model, factory_args={}))
    found = load_user_samples(source, loaded, Judging(), None)
    signature = signature_of("x:float32[batch=1..8,4]")
    feeds, notes = further_feeds(found, signature)
    assert [(feed.name, feed.sizes["batch"]) for feed in feeds] == [
        ("sample-2", 4), ("sample-3", 4), ("sample-4", 3),
    ]  # fmt: skip
    assert notes == ()
    assert found is not None
    assert np.array_equal(feeds[0].arrays["x"], found.more[0]["x"])


@pytest.mark.parametrize(
    ("ids", "share", "named"),
    [
        ([0, 1, 3], [0.1, 1], []),
        ([0, -1, 3], [0.1, 1], ["ids"]),
        ([0, 1, 4], [0.05, 1], ["ids", "share"]),  # below n, which is 4
    ],
)
def test_a_sample_outside_the_domain_is_noted(
    ids: list[int], share: list[float], named: list[str]
) -> None:
    specs = ("ids:int64[k]{0..n-1}", "share:float32[2]{0.1..1}", "x:float32[n=1..8]")
    signature = signature_of(*specs)
    arrays = {
        "ids": np.array(ids),
        "share": np.array(share, np.float32),
        "x": np.zeros(4, np.float32),
    }
    sizes = {"n": 4, "k": 3}
    feed = NamedFeed(name="sample-2", arrays=arrays, sizes=sizes, kind="sample")
    notes = describe_outliers([feed, replace(feed, name="min")], signature)
    assert [note.partition(" ")[0] for note in notes] == named


def test_a_loader_that_is_not_there_is_the_users_error(order: Orders, source: Source) -> None:
    asked = order("torchscript", source=replace(source, samples=Path("no.such:loader")))
    with pytest.raises(UsageError, match=r"--samples no\.such:loader: no module 'no'"):
        run(asked)


def test_a_loader_is_a_sample_without_a_model_by_the_names_of_inputs(source: Source) -> None:
    assert source.samples is not None
    assert sample_without_model(source.samples, ["image"])["image"].shape == (4, 4)
    assert list(sample_without_model(source.samples, ["image", "label"])) == ["image", "label"]
