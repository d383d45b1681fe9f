"""A capture that holds in a part of the domain: rejected, or narrowed where that is accepted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import openvino
import pytest
import torch

from modelc.core.domain import Domain
from modelc.core.errors import CheckpointError
from modelc.core.kinds import Capture
from modelc.core.manifest import Manifest
from modelc.core.signature import Dim, InputSpec, Signature
from modelc.pipeline.dim_constraints import RejectedSizesError
from modelc.pipeline.narrow_domain import SizeInterval
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_folder import validate_folder
from modelc.reports.result_rows import domain_lines

CODE = '''
import torch
from torch import nn


class Long(nn.Module):
    """Goes another way above nine tokens; `*rest` keeps torch.jit.script from taking it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, *rest):
        y = self.inner(x)
        if x.shape[1] > 9:
            y = y * 2
        return y


class Plain(Long):
    """The same, as torch.jit.script takes it."""

    def forward(self, x):
        y = self.inner(x)
        if x.shape[1] > 9:
            y = y * 2
        return y


class Keyed(Long):
    """Doubles what has 13 tokens, by a key made of text: a program of torch.export has no guard."""

    def forward(self, x, *rest):
        return self.inner(x) * {"rows13": 2.0}.get(f"rows{x.shape[1]}", 1.0)


class Clipped(Plain):
    """A hook that values decide; what is wrong on large values is so at any size."""

    def __init__(self):
        super().__init__()
        self.inner.register_forward_hook(self.clip)

    def clip(self, part, given, y):
        if y.abs().max() > 30:
            y.clamp_(-30, 30)

    def forward(self, x):
        return self.inner(x)


class Hooked(Plain):
    """A hook that goes another way at one size, which its removal in a copy would hide."""

    def __init__(self):
        super().__init__()
        self.inner.register_forward_hook(
            lambda part, given, y: y * 2 if y.shape[1] == 6 else None
        )

    def forward(self, x):
        return self.inner(x)


class Picky(Long):
    """Accepts all sizes but one."""

    def forward(self, x):
        if x.shape[1] == 255:
            raise ValueError("not 255")
        return self.inner(x)


class Holes(Long):
    """Goes another way at some sizes."""

    def forward(self, x, *rest):
        y = self.inner(x)
        for number, size in enumerate((11, 23, 37, 59, 83, 101, 151, 211), start=1):
            if x.shape[1] == size:
                y = y + number
        return y
'''


@pytest.fixture
def ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Order]:
    """`ordered("Long", "onnx", narrow=True)` -> an order that states no range of `seq`."""
    (tmp_path / "long_nets.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "long_nets", raising=False)
    import long_nets  # type: ignore[import-not-found]

    def make(name: str, *to: str, inputs: str = "x:float32[batch,seq,4]", **parts: object) -> Order:
        torch.manual_seed(0)
        path = tmp_path / f"{name}.pt"
        torch.save(getattr(long_nets, name)().state_dict(), path)
        source = Source(checkpoint=path, model=f"long_nets:{name}", inputs=(inputs,))
        wanted = tuple(Wanted.parse(one) for one in to)
        return Order(source=source, wanted=wanted, out=tmp_path / "out", **parts)  # type: ignore[arg-type]

    return make


def sizes(manifest: Manifest, name: str) -> tuple[int, int]:
    """The lowest and the highest `seq` of an artifact's domain."""
    artifact = next(one for one in manifest.artifacts if one.name == name)
    assert artifact.domain is not None
    dim = artifact.domain.free_dims["seq"]
    return dim.low, dim.high


def test_the_capture_with_the_whole_domain_wins(ordered: Callable[..., Order]) -> None:
    manifest = run(ordered("Plain", "onnx"))
    assert manifest.passed
    assert [one.capture for one in manifest.artifacts] == ["script"]
    assert sizes(manifest, "onnx") == (1, 256)


def test_a_rejected_size_in_a_chosen_range_is_excluded(ordered: Callable[..., Order]) -> None:
    manifest = run(ordered("Picky", "onnx"))
    assert manifest.passed
    assert sizes(manifest, "onnx") == (1, 254)
    with pytest.raises(RejectedSizesError, match="not 255"):
        run(ordered("Picky", "onnx", inputs="x:float32[batch,seq=1..256,4]"))


def test_a_part_of_the_domain_is_a_rejection_with_a_size_that_fails(
    ordered: Callable[..., Order],
) -> None:
    manifest = run(ordered("Long", "onnx"))
    (failure,) = manifest.failures
    assert manifest.exit_code == 1
    assert "seq=1," in f"{failure.message}," or "seq=1 " in failure.message
    assert "--narrow" in failure.hint


def test_narrow_records_the_part_and_its_children_have_it(ordered: Callable[..., Order]) -> None:
    order = ordered("Long", "onnx", "openvino", narrow=True)
    manifest = run(order)
    assert manifest.passed
    assert sizes(manifest, "onnx") == sizes(manifest, "openvino") == (10, 256)
    model = openvino.Core().read_model(str(order.out / "model.xml"))
    dim = model.inputs[0].get_partial_shape()[1]
    assert (dim.get_min_length(), dim.get_max_length()) == (10, 256)
    session = onnxruntime.InferenceSession(order.out / "model.onnx")
    assert "seq=10.." in session.get_modelmeta().custom_metadata_map["modelc.domain"]
    assert session.run(None, {"x": np.zeros((1, 12, 4), np.float32)})[0].shape == (1, 12, 4)
    again = validate_folder(order.out)
    assert again.passed
    assert sizes(again, "onnx") == (10, 256)


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
def test_the_interval_between_two_wrong_sizes_is_hinted_and_used(
    ordered: Callable[..., Order], capture: Capture
) -> None:
    inputs = "x:float32[batch=1..4,seq=1..256,4]"
    told = run(ordered("Holes", "onnx", inputs=inputs, capture=capture))
    assert told.exit_code == 1
    assert "seq=102..150" in told.failures[0].hint
    manifest = run(ordered("Holes", "onnx", inputs=inputs, capture=capture, narrow=True))
    assert manifest.passed
    assert sizes(manifest, "onnx") == (102, 150)


def test_stated_bounds_are_narrowed_on_request_alone(ordered: Callable[..., Order]) -> None:
    stated = "x:float32[batch=1..2,seq=4..20,4]"
    assert run(ordered("Long", "onnx", inputs=stated)).exit_code == 1
    manifest = run(ordered("Long", "onnx", inputs=stated, narrow=True, overwrite=True))
    assert sizes(manifest, "onnx") == (10, 20)


def test_a_size_that_is_converted_to_text_is_judged(ordered: Callable[..., Order]) -> None:
    stated = "x:float32[batch=1..2,seq=4..30,4]"
    (verdict,) = run(ordered("Keyed", "onnx", inputs=stated, capture=Capture.EXPORT)).verdicts
    assert not verdict.passed
    assert "seq=13" in verdict.reason


@pytest.mark.parametrize(("seq", "kept"), [("4..20", (10, 20)), ("4..6..20", (4, 9))])
def test_a_trace_holds_on_the_side_that_it_was_made_on(
    ordered: Callable[..., Order], seq: str, kept: tuple[int, int]
) -> None:
    """Eager turns between 9 and 10, where every artifact is judged beside the run's feeds."""
    stated = f"x:float32[batch=1..2,seq={seq},4]"
    order = ordered("Long", "torchscript", inputs=stated, capture=Capture.TRACE, narrow=True)
    manifest = run(order)
    assert manifest.passed
    assert sizes(manifest, "torchscript") == kept
    (told,) = domain_lines(manifest.artifacts, manifest.signature)
    low, high = kept
    assert told.startswith(f"domain: batch 1..2, seq {low}..{high};")
    assert told.endswith(" 4..20")


def test_an_error_by_value_is_not_noted_as_one_of_sizes(
    ordered: Callable[..., Order],
) -> None:
    stated = "x:float32[batch=1..3,seq=4..20,4]"
    (verdict,) = run(ordered("Clipped", "torchscript", inputs=stated)).verdicts
    assert not verdict.passed
    assert not [note for note in verdict.notes if "--narrow" in note]


def test_a_copy_that_lost_a_branch_is_judged_at_that_size(
    ordered: Callable[..., Order], monkeypatch: pytest.MonkeyPatch
) -> None:
    from modelc.capture import training_rewrites

    monkeypatch.setattr(training_rewrites, "_is_observer", lambda _: True)
    stated = "x:float32[batch=1..2,seq=4..20,4]"
    manifest = run(ordered("Hooked", "torchscript", "onnx", inputs=stated))
    tried = [one for artifact in manifest.artifacts for one in artifact.attempts]
    assert "no-observers" in {name for one in tried for name in one.rewrites}
    assert manifest.exit_code == 1
    assert not [one for one in manifest.verdicts if one.passed]


def signature(*, chosen: bool = True) -> Signature:
    dim = Dim(name="d0", low=1, opt=4, high=8, chosen=chosen)
    return Signature(inputs=(InputSpec(name="x", dtype="float32", dims=(dim,)),))


@pytest.mark.parametrize(
    ("low", "high", "chosen", "expected"),
    [(2, 8, True, True), (2, 8, False, False), (3, 8, True, False), (2, 7, True, False)],
)
def test_size_one_alone_is_left_out_of_chosen_dims(
    low: int, high: int, chosen: bool, expected: bool
) -> None:
    interval = SizeInterval(dim="d0", low=low, high=high)
    assert interval.is_all_but_one(signature(chosen=chosen)) is expected


def test_the_opt_stays_inside_of_the_interval() -> None:
    found = SizeInterval(dim="d0", low=6, high=8).narrow(signature())
    assert Domain(inputs=found.inputs).free_dims["d0"].opt == 6


def test_a_domain_contains_what_its_dims_hold() -> None:
    domain = Domain(inputs=signature().inputs)
    assert domain.contains({"d0": 8, "other": 99})
    assert not domain.contains({"d0": 9})


def test_checkpoint_errors_are_not_hidden(ordered: Callable[..., Order]) -> None:
    with pytest.raises(CheckpointError):
        run(ordered("Long", "onnx", inputs="x:float32[batch,seq,5]"))
