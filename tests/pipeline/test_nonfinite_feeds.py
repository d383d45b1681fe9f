"""NaN and Inf where a model asks about them, and rows that a mask hides altogether."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from modelc.core.contract import Feed, Outputs, Runner, Target
from modelc.core.manifest import Manifest
from modelc.core.signature import Signature
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.validators.edge_case_feeds import NONFINITE
from modelc.validators.edge_case_values import EMPTY_MASK

from ..conftest import saved
from .conftest import Fake, FakeRunner


class Plain(nn.Module):
    """Gives NaN for NaN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(x)
        return found


class Imputed(Plain):
    """What is missing is 0."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.where(torch.isnan(x), torch.zeros_like(x), x))
        return found


class Masked(Plain):
    """A masked mean; a row of which all is masked is 0."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]  # on purpose
        kept = mask[..., None].float()
        found: Tensor = self.out((x * kept).sum(1) / kept.sum(1).clamp(min=1e-6))
        return found


class Halves(Plain):
    """Of large inputs the first output is NaN, the second is not."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # on purpose
        return torch.asin(x / 30), self.out(x)


NETS = {net.__name__: net for net in (Plain, Imputed, Masked, Halves)}
SEQUENCES = ("x:float32[batch=1..4,seq=2..5,6]", "mask:int64[batch,seq]")


@dataclass(frozen=True, kw_only=True)
class Answering(Fake):
    """A format that answers as eager does, changed by a function."""

    reply: Callable[[Feed], Outputs]

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:
        assert path.exists()
        assert device == "cpu"
        return FakeRunner(signature, self.reply)


def answers(name: str) -> Callable[[Feed], Outputs]:
    """Eager's own answers."""
    net = NETS[name]().eval()

    def reply(feed: Feed) -> Outputs:
        with torch.no_grad():
            found = net(*(torch.tensor(one) for one in feed.values()))
        many = isinstance(found, tuple)
        outputs = found if many else (found,)
        return {f"output.{n}" if many else "output": one.numpy() for n, one in enumerate(outputs)}

    return reply


def exported(
    name: str, folder: Path, *inputs: str, reply: Callable[[Feed], Outputs] | None = None
) -> Manifest:
    """The manifest of the net in a format that answers so, or in ONNX."""
    module = f"nonfinite_{name}"
    sys.modules[module] = sys.modules[__name__]
    source = Source(
        checkpoint=saved(name, NETS[name](), folder), model=f"{module}:{name}", inputs=inputs
    )
    wanted = (Wanted.parse("fake" if reply else "onnx"),)
    order = Order(source=source, wanted=wanted, out=folder / "out", judging=Judging())
    if reply is None:
        return run(order)
    return run(order, targets=(cast("Target", Answering(reply=reply)),))


def kinds(manifest: Manifest) -> set[str]:
    return {record.kind for record in manifest.feeds.drawn}


def test_a_model_that_never_asks_gets_none(tmp_path: Path) -> None:
    manifest = exported("Plain", tmp_path, "x:float32[batch=1..4,6]", reply=answers("Plain"))
    assert manifest.passed
    assert NONFINITE not in kinds(manifest)


def test_imputation_is_judged_and_kept_by_onnx(tmp_path: Path) -> None:
    manifest = exported("Imputed", tmp_path, "x:float32[batch=1..4,6]")
    assert manifest.passed
    names = {one.name for one in manifest.feeds.drawn if one.kind == NONFINITE}
    assert names == {"nan"}  # Inf is Inf in eager


def test_an_imputation_that_was_dropped_is_rejected(tmp_path: Path) -> None:
    manifest = exported("Imputed", tmp_path, "x:float32[batch=1..4,6]", reply=answers("Plain"))
    (verdict,) = manifest.verdicts
    assert not verdict.passed
    assert {one.feed for one in verdict.outputs if not one.passed} == {"nan"}


def test_stated_values_hold_no_nan(tmp_path: Path) -> None:
    manifest = exported("Imputed", tmp_path, "x:float32[4,6]{0..1}", reply=answers("Plain"))
    assert manifest.passed
    assert NONFINITE not in kinds(manifest)


def test_an_output_beside_one_of_nan_is_judged(tmp_path: Path) -> None:
    right = answers("Halves")

    def clamped(feed: Feed) -> Outputs:
        return {**right(feed), "output.1": right({"x": feed["x"].clip(-40, 40)})["output.1"]}

    def arbitrary(feed: Feed) -> Outputs:
        found = right(feed)
        return {**found, "output.0": np.nan_to_num(found["output.0"])}

    inputs = "x:float32[batch=1..4,6]"
    for name in ("passed", "rejected"):
        (tmp_path / name).mkdir()
    assert exported("Halves", tmp_path / "passed", inputs, reply=arbitrary).passed
    (verdict,) = exported("Halves", tmp_path / "rejected", inputs, reply=clamped).verdicts
    assert {one.output for one in verdict.outputs if not one.passed} == {"output.1"}


def with_last_row(reply: Callable[[Feed], Outputs], *, others: bool) -> Callable[[Feed], Outputs]:
    """Other answers where the last row is masked: in that row, or in the others too."""

    def changed(feed: Feed) -> Outputs:
        found = reply(feed)["output"].copy()
        if not feed["mask"][-1].any():
            found[-1] += 1
            if others:
                found[:-1] += 1
        return {"output": np.asarray(found)}

    return changed


def test_a_row_that_is_masked_may_differ_alone(tmp_path: Path) -> None:
    reply = with_last_row(answers("Masked"), others=False)
    manifest = exported("Masked", tmp_path, *SEQUENCES, reply=reply)
    (verdict,) = manifest.verdicts
    assert verdict.passed
    assert any(EMPTY_MASK in note for note in verdict.notes)


def test_rows_beside_a_masked_one_must_be_right(tmp_path: Path) -> None:
    reply = with_last_row(answers("Masked"), others=True)
    (verdict,) = exported("Masked", tmp_path, *SEQUENCES, reply=reply).verdicts
    assert not verdict.passed
    assert verdict.faults
