"""The copy that rewrites and the user's patch change, and what it shares with the reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from modelc.capture.model_copy import copy_sharing_weights, weight_checksums
from modelc.capture.rewrite_table import apply_rewrites, describe_rewrite
from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.eager_model import open_eager
from modelc.checkpoints.method_wrapper import find_owner, with_method
from modelc.core.errors import CheckpointError, ConversionError, ModelcError, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.validators.feeds import draw_feeds

from ...conftest import saved
from . import rewritten_nets as nets
from .conftest import Opened

Open = Callable[..., Opened]
HERE = nets.__name__


def patch(name: str) -> tuple[str]:
    return (f"patch:{HERE}:{name}",)


def test_a_patch_changes_the_copy_alone(opened: Open) -> None:
    eager, _ = opened(nets.Gate(), nets.X)

    with apply_rewrites(eager, patch("widened")) as copied:
        assert hasattr(copied.module, "extra")
        assert copied.module is not eager.module

    assert not hasattr(eager.module, "extra")
    assert describe_rewrite(patch("widened")[0]) == f"--patch {HERE}:widened"


def test_a_patch_may_return_another_module(opened: Open) -> None:
    eager, _ = opened(nets.Gate(), nets.X)

    with apply_rewrites(eager, patch("branchless")) as copied:
        assert isinstance(copied.module, nets.Branchless)
        assert not copied.module.training


def test_the_copy_is_made_once(opened: Open) -> None:
    eager, _ = opened(nets.Gate(), nets.X)

    with (
        apply_rewrites(eager, patch("widened")) as one,
        apply_rewrites(eager, patch("widened")) as other,
    ):
        assert one is other


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (f"{HERE}:raising", "KeyError.*rewritten_nets.py:[0-9]+"),
        (f"{HERE}:no_module", " str"),
        (f"{HERE}:spoilt", "a.weight"),
        (f"{HERE}:doubled", "output.0, output.1"),
    ],
)
def test_errors_of_a_patch_are_reported(spec: str, message: str, opened: Open) -> None:
    torch.manual_seed(0)
    eager, signature = opened(nets.Gate(), nets.X)
    feed = draw_feeds(signature)[0].arrays

    with (
        pytest.raises(CheckpointError, match=message),
        apply_rewrites(eager, (f"patch:{spec}",), example=feed),
    ):
        pytest.fail("it was taken")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nets.py", "nets.py"),
        (f"{HERE}:widen", "'widen'"),
        (f"{HERE}:X", " str"),
        ("no_such_place:fn", "no module 'no_such_place'"),
    ],
)
def test_a_patch_that_is_not_there_is_a_wrong_order(spec: str, message: str, opened: Open) -> None:
    eager, _ = opened(nets.Gate(), nets.X)

    with pytest.raises(UsageError, match=message), apply_rewrites(eager, (f"patch:{spec}",)):
        pytest.fail("it was taken")


def test_weights_changed_while_the_patched_model_runs_are_detected(opened: Open) -> None:
    eager, _ = opened(nets.Gate(), nets.X)

    with (
        pytest.raises(CheckpointError, match="weight"),
        apply_rewrites(eager, patch("widened")) as copied,
    ):
        next(copied.module.parameters()).data.add_(1)


def test_an_unknown_rewrite_is_named(opened: Open) -> None:
    eager, _ = opened(nets.Gate(), nets.X)

    with pytest.raises(ModelcError, match="scann"), apply_rewrites(eager, ("scann",)):
        pytest.fail("it was taken")


def ordered(tmp_path: Path, name: str, module: nn.Module) -> Order:
    source = Source(
        checkpoint=saved("gate", module, tmp_path), model=f"{HERE}:Gate", inputs=(nets.X,)
    )
    return Order(
        source=source,
        wanted=(Wanted(target="pt2"),),
        out=tmp_path / "out",
        judging=Judging(),
        patches=(f"{HERE}:{name}",),
    )


@pytest.mark.slow
def test_what_is_exported_of_a_patched_copy_is_judged_by_the_model_as_it_is(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True):
        manifest = run(ordered(tmp_path, "branchless", nets.Gate()))

    assert manifest.passed, manifest.failures
    artifact = manifest.artifacts[0]
    assert artifact.rewrites == artifact.attempts[0].rewrites == patch("branchless")
    assert manifest.order["patch"] == f"{HERE}:branchless"
    written = read_manifest(tmp_path / "out")
    assert written is not None
    assert written.artifacts[0].rewrites == patch("branchless")


@pytest.mark.slow
def test_the_patch_of_the_guide_takes_what_no_capture_of_pt2_takes(
    tmp_path: Path, gate_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = Path(__file__).parents[3] / "docs" / "captures.md"
    code = guide.read_text().partition("```python\n# my_patches.py")[2].partition("```")[0]
    (tmp_path / "my_patches.py").write_text(f"#{code}")
    monkeypatch.chdir(tmp_path)
    plain = Order(source=gate_source, wanted=(Wanted(target="pt2"),), out=tmp_path / "plain")
    with warnings.catch_warnings(record=True):
        refused = run(plain)
        taken = run(replace(plain, out=tmp_path / "out", patches=("my_patches:both_heads",)))

    assert not refused.passed
    assert taken.passed, taken.failures
    assert taken.artifacts[0].rewrites == ("patch:my_patches:both_heads",)


@pytest.mark.parametrize("name", ["widened", "branchless"])
def test_with_a_method_the_hook_gets_the_users_module(tmp_path: Path, name: str) -> None:
    weights = saved("gate", nets.Gate(), tmp_path)
    loaded = with_method(
        load_checkpoint(identify(weights, factory=f"{HERE}:Gate", factory_args={})), "forward"
    )
    eager = open_eager(loaded, merge_inputs([parse_input(nets.X)], {}))

    with apply_rewrites(eager, patch(name)) as copied:
        inner = find_owner(copied.module)
        assert hasattr(inner, "extra") if name == "widened" else isinstance(inner, nets.Branchless)
    assert type(find_owner(eager.module)) is nets.Gate
    assert not hasattr(find_owner(eager.module), "extra")


def test_a_module_without_the_method_is_rejected(tmp_path: Path) -> None:
    weights = saved("gate", nets.Gate(), tmp_path)
    checkpoint = identify(weights, factory=f"{HERE}:Named", factory_args={})
    loaded = with_method(load_checkpoint(checkpoint), "named")
    eager = open_eager(loaded, merge_inputs([parse_input(nets.X)], {}))

    with (
        pytest.raises(CheckpointError, match="--method named: the Branchless that --patch"),
        apply_rewrites(eager, patch("branchless")),
    ):
        pytest.fail("it was taken")


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.register_buffer("small", torch.zeros(2))
        self.register_buffer("large", torch.zeros(1 << 19))
        self.plain = torch.ones(1 << 19)


def test_parameters_and_large_tensors_share_their_memory() -> None:
    module = Holder()
    copied = copy_sharing_weights(module)

    for name in ("a.weight", "large", "plain"):
        owner, _, leaf = name.rpartition(".")
        mine, theirs = (getattr(m.get_submodule(owner), leaf) for m in (copied, module))
        assert mine.data_ptr() == theirs.data_ptr(), name
        assert mine is not theirs, name


def test_small_buffers_are_copied_since_forward_may_write_into_them() -> None:
    module = Holder()
    copied = copy_sharing_weights(module)

    copied.get_buffer("small").add_(1)

    assert not module.get_buffer("small").any()


def test_tied_weights_stay_tied() -> None:
    copied = copy_sharing_weights(Holder())

    assert copied.get_parameter("a.weight") is copied.get_parameter("b.weight")


def test_a_weight_replaced_in_the_copy_is_not_replaced_in_the_reference() -> None:
    module = Holder()
    before = module.a.weight.clone()
    copied = copy_sharing_weights(module)

    copied.get_parameter("a.weight").data = torch.full((4, 4), 7.0)

    assert torch.equal(module.a.weight, before)


def test_what_cannot_be_copied_is_noted() -> None:
    module = nn.Linear(2, 2)
    module.iterator = iter(range(3)).__iter__  # type: ignore[assignment]  # any attribute
    module.frames = (one for one in range(2))  # type: ignore[assignment]  # generators cannot be

    with pytest.raises(ConversionError, match="copied"):
        copy_sharing_weights(module)


def test_checksums_see_one_changed_bit_past_versions() -> None:
    module = nn.Linear(3, 3)
    before = weight_checksums(module)
    module.weight.data[1, 2] = torch.nextafter(module.weight.data[1, 2], torch.tensor(9.0))

    after = weight_checksums(module)

    assert [name for name in before if before[name] != after[name]] == ["weight"]
