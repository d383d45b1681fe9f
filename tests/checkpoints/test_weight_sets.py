"""Checkpoints that hold several sets of weights: raw and EMA, student and teacher, GANs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.checkpoints.weight_sets import describe_weight_sets
from modelc.core.errors import CheckpointError, ErrorCode, UsageError

Write = Callable[[str], str]
LINEAR = {"in_features": "3", "out_features": "2"}
PAIRS = [
    ("state_dict", "state_dict_ema"),
    ("model", "ema"),
    ("generator", "discriminator"),
    ("student", "teacher"),
]


def state(value: float, shape: tuple[int, int] = (2, 3)) -> dict[str, torch.Tensor]:
    return {"weight": torch.full(shape, value), "bias": torch.full(shape[:1], value)}


def saved(path: Path, value: object) -> Path:
    torch.save(value, path)
    return path


def opened(path: Path, key: str | None = None, *, strict: bool = True) -> LoadedModule:
    return load_checkpoint(
        identify(
            path,
            factory="torch.nn:Linear",
            factory_args=LINEAR,
            strict=strict,
            weights_key=key,
        )
    )


def value(loaded: LoadedModule) -> float:
    return float(loaded.module.weight[0, 0])  # type: ignore[index]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_sets_that_fit_are_rejected_with_names_sizes_and_difference(
    tmp_path: Path, one: str, other: str
) -> None:
    path = saved(tmp_path / "a.pt", {one: state(1.0), other: state(1.1), "epoch": 3})
    with pytest.raises(CheckpointError) as caught:
        opened(path)
    assert f"{one!r} and {other!r}" in caught.value.message
    assert "2 tensors, 8 parameters" in caught.value.message
    assert "10%" in caught.value.message
    assert caught.value.hint == f"add --weights-key {one}, or --weights-key {other}"


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_key_picks_its_set(tmp_path: Path, one: str, other: str) -> None:
    path = saved(tmp_path / "a.pt", {one: state(1.0), other: state(2.0)})
    assert value(opened(path, one)) == 1.0
    loaded = opened(path, other)
    assert value(loaded) == 2.0
    assert len(loaded.notes) == 1
    assert repr(other) in loaded.notes[0]


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("fitting", [0, 1])
def test_the_only_set_that_fits_is_taken_and_named(
    tmp_path: Path, one: str, other: str, fitting: int
) -> None:
    shapes = [(2, 3), (5, 4)] if fitting == 0 else [(5, 4), (2, 3)]
    path = saved(tmp_path / "a.pt", {one: state(1.0, shapes[0]), other: state(2.0, shapes[1])})
    loaded = opened(path)
    taken, left = (one, other) if fitting == 0 else (other, one)
    assert value(loaded) == float(fitting + 1)
    assert len(loaded.notes) == 1
    assert loaded.notes[0].index(repr(taken)) < loaded.notes[0].index(repr(left))


def test_equal_sets_are_no_question(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"model": state(1.0), "ema": state(1.0)})
    (note,) = opened(path).notes
    assert "'model'" in note
    assert "'ema'" in note


def test_an_optimizers_state_is_no_set(tmp_path: Path) -> None:
    linear = nn.Linear(3, 2)
    adam = torch.optim.Adam(linear.parameters())
    linear(torch.ones(1, 3)).sum().backward()
    adam.step()
    path = saved(tmp_path / "a.pt", {"model": state(1.0), "optimizer": adam.state_dict()})
    (note,) = opened(path).notes
    assert "'model'" in note
    assert [one.key for one in describe_weight_sets(path)] == ["model"]


def test_a_set_deeper_down_has_a_dotted_key(tmp_path: Path) -> None:
    held = {"nets": {"a": state(1.0), "b": state(2.0)}, "callbacks": {"EMA": {"w": state(3.0)}}}
    path = saved(tmp_path / "a.pt", held)
    assert value(opened(path, "nets.b")) == 2.0
    assert value(opened(path, "callbacks.EMA.w")) == 3.0


def test_an_unknown_key_is_rejected_with_those_there_are(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"model": state(1.0), "model_ema": state(2.0)})
    with pytest.raises(UsageError, match="unknown --weights-key 'model_emma'") as caught:
        opened(path, "model_emma")
    assert "'model_ema'?" in caught.value.hint


def test_a_set_that_does_not_fit_is_rejected_as_ever(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"model": state(1.0), "head": state(2.0, (5, 4))})
    with pytest.raises(CheckpointError, match=r"\(5, 4\).*\(2, 3\)"):
        opened(path, "head")


def test_without_strict_sets_that_fit_as_well_are_rejected(tmp_path: Path) -> None:
    held = {"model": {"weight": torch.ones(2, 3)}, "ema": {"weight": torch.zeros(2, 3)}}
    path = saved(tmp_path / "a.pt", held)
    with pytest.raises(CheckpointError, match="'model' and 'ema'"):
        opened(path, strict=False)
    assert value(opened(path, "ema", strict=False)) == 0.0


def test_weights_at_the_top_are_a_set_as_well(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {**state(1.0), "ema": state(2.0)})
    with pytest.raises(CheckpointError, match=r"'\.' and 'ema'"):
        opened(path)
    assert value(opened(path, ".")) == 1.0


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_names_that_begin_with_two_parts_are_two_sets(tmp_path: Path, suffix: str) -> None:
    names = {f"student.{name}": tensor for name, tensor in state(1.0).items()}
    names |= {f"teacher.{name}": tensor for name, tensor in state(2.0).items()}
    path = tmp_path / f"a.{suffix}"
    if suffix == "pt":
        torch.save(names, path)
    else:
        save_file(names, path)
    with pytest.raises(CheckpointError, match="'student' and 'teacher'"):
        opened(path)
    loaded = opened(path, "teacher")
    assert value(loaded) == 2.0
    assert len(loaded.notes) == 1
    assert "'teacher'" in loaded.notes[0]


def test_a_part_is_not_taken_where_other_weights_would_be_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"net.weight": torch.ones(2, 3), "extra.x": torch.ones(1)})
    with pytest.raises(CheckpointError) as caught:
        opened(path)
    assert caught.value.code is ErrorCode.MISFIT_WEIGHTS


def test_the_manifest_records_the_key(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"model": state(1.0), "ema": state(2.0)})
    found = identify(path, factory="torch.nn:Linear", factory_args=LINEAR, weights_key="ema")
    assert found.weights_key == "ema"


def test_a_key_has_no_effect_on_a_program(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(nn.Linear(3, 2)).save(path)  # type: ignore[no-untyped-call]
    checkpoint = identify(path, factory=None, factory_args={}, weights_key="ema")
    with pytest.raises(UsageError, match="--weights-key") as caught:
        load_checkpoint(checkpoint)
    assert caught.value.code is ErrorCode.NO_EFFECT


def test_sets_are_described_with_size_and_difference(tmp_path: Path) -> None:
    held = {"model": state(1.0), "ema": state(1.1), "head": state(1.0, (5, 4))}
    found = describe_weight_sets(saved(tmp_path / "a.pt", held))
    assert [(one.key, one.tensors, one.parameters) for one in found] == [
        ("model", 2, 8),
        ("ema", 2, 8),
        ("head", 2, 25),
    ]
    assert found[0].differs == {"ema": pytest.approx(0.1)}
