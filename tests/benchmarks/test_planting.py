"""The faults of benchmarks/judge.py are in the files, and they change what the nets compute."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from modelc.benchmarks.faults import Fault, faults_for
from modelc.benchmarks.judge_bed import Bed, bed
from modelc.benchmarks.judge_exact import distance
from modelc.benchmarks.judge_measures import shows, undone
from modelc.benchmarks.planting import Planted, plant
from modelc.core.contract import Outputs

pytestmark = pytest.mark.needs("onnx")

# Values that the net never has: such faults are planted to see that they count as not showing.
HARMLESS = {"clamp at 6"}
NETS = ("perceptron", "pointing", "attention", "convolutions", "upsampling")


Beds = Callable[[str], Bed]


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Beds:
    """`beds("perceptron")`: one of the zoo's own nets with its good ONNX, made once."""

    @functools.cache
    def opened(name: str) -> Bed:
        model = bed(name, tmp_path_factory.mktemp("beds"))
        assert model.exports(["onnx"], "good").passed
        return model

    return opened


def clean(model: Bed) -> Path:
    return model.folder / "good" / "model.onnx"


def planted(fault: Fault, model: Bed, folder: Path) -> Planted:
    return plant(fault, model, clean(model), folder)


def eager(model: Bed) -> list[Outputs]:
    return [reference.outputs for reference in model.subject.references]


def is_silent(fault: Fault, model: Bed, folder: Path) -> bool:
    """Whether the fault changes nothing, in float64, on drawn feeds and on its own."""
    found = planted(fault, model, folder)
    truth = model.exactly(model.module, found.elsewhere) if found.elsewhere else []
    on_drawn = shows(model.exact, found.exact, eager(model))[0]
    own = shows(truth, found.exact_elsewhere, truth)[0] if truth else 0.0
    return on_drawn == own == 0


def quick(model: Bed) -> list[Fault]:
    """Those that need no export."""
    return [
        fault
        for fault in faults_for(model)
        if fault.edit is not None or fault.kind.startswith(("one ", "two ", "square ", "a norm's"))
    ]


def test_every_fault_of_weights_and_graphs_changes_the_exact_outputs(
    beds: Beds, tmp_path: Path
) -> None:
    faults = quick(beds("perceptron"))
    assert len(faults) > 20
    silent = [fault.kind for fault in faults if is_silent(fault, beds("perceptron"), tmp_path)]
    assert silent == []


def test_what_is_planted_is_what_the_file_computes(beds: Beds, tmp_path: Path) -> None:
    model, lost = beds("perceptron"), []
    for fault in quick(model):
        found = planted(fault, model, tmp_path)
        if undone(model.exact, found.exact, model.answers(found.path, "onnx")):
            lost.append(fault.kind)
    assert lost == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_every_fault_that_is_exported_is_in_the_file(beds: Beds, tmp_path: Path, name: str) -> None:
    model = beds(name)
    wrong: list[str] = []
    for fault in faults_for(model):
        if fault.edit is not None or fault.kind in HARMLESS:
            continue
        found = planted(fault, model, tmp_path)
        size, _ = shows(model.exact, found.exact, eager(model))
        if size == 0 or undone(model.exact, found.exact, model.answers(found.path, "onnx")):
            wrong.append(fault.kind)
    assert wrong == []


@pytest.mark.slow
def test_a_fault_beyond_all_values_shows_nowhere(beds: Beds, tmp_path: Path) -> None:
    model = beds("perceptron")
    (fault,) = [fault for fault in faults_for(model) if fault.kind == "clamp at 6"]
    assert is_silent(fault, model, tmp_path)


def test_the_good_file_counts_as_undone(beds: Beds, tmp_path: Path) -> None:
    model = beds("perceptron")
    fault = next(iter(faults_for(model)))
    found = planted(fault, model, tmp_path)
    assert undone(model.exact, found.exact, model.answers(clean(model), "onnx"))


def test_the_original_is_left_as_it_was(beds: Beds, tmp_path: Path) -> None:
    model = beds("perceptron")
    before, file = model.exactly(model.module), clean(model).read_bytes()
    for fault in quick(model)[:8]:
        planted(fault, model, tmp_path)
    assert clean(model).read_bytes() == file
    assert same(before, model.exactly(model.module))


def same(one: Sequence[Outputs], other: Sequence[Outputs]) -> bool:
    return all(
        distance(found[name], array) == 0
        for found, wanted in zip(one, other, strict=True)
        for name, array in wanted.items()
    )


def test_a_weight_is_moved_by_a_thousandth_and_no_other(beds: Beds, tmp_path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    model = beds("perceptron")
    (fault,) = [one for one in faults_for(model) if one.kind == "one weight off by 0.1 %"]
    path = planted(fault, model, tmp_path).path
    before, after = (
        {t.name: numpy_helper.to_array(t) for t in onnx.load(file).graph.initializer}
        for file in (clean(model), path)
    )
    moved = {name: after[name] / array for name, array in before.items() if array.size}
    changed = np.concatenate([ratio[ratio != 1].ravel() for ratio in moved.values()])
    assert changed == pytest.approx([1.001], rel=1e-6)
