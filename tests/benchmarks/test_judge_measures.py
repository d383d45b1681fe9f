"""What benchmarks/judge.py measures with: float64, the peers' checks, the results file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.benchmarks.judge import Results
from modelc.benchmarks.judge_exact import distance, exactly
from modelc.benchmarks.judge_measures import PEERS, Case, shows
from modelc.benchmarks.judge_table import tables
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs
from modelc.tests.nets import zoo

SIGNATURE = replace(merge_inputs([parse_input("x:float32[4]")], {}), outputs=("output",))
CASE = Case(
    group="good",
    model="net",
    seed=0,
    target="onnx",
    precision="fp32",
    kind="",
    label="",
    state="passed",
    reason="",
)


class Casting(nn.Module):
    """Asks for float32 by name, in three ways."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() / 3 + x.to(torch.float32) / 7
        return y + torch.ones(4, dtype=torch.float32) / 9


def test_the_exact_twin_is_float64_whatever_the_code_asks_for() -> None:
    x = np.arange(4, dtype=np.float32)
    (found,) = exactly(Casting(), SIGNATURE, [{"x": x}])
    wide = x.astype(np.float64)
    assert found["output"].dtype == np.float64
    assert found["output"] == pytest.approx(wide / 3 + wide / 7 + 1 / 9, rel=1e-15)


def test_the_exact_twin_leaves_the_default_dtype_alone() -> None:
    exactly(Casting(), SIGNATURE, [{"x": np.zeros(4, np.float32)}])
    assert torch.get_default_dtype() == torch.float32


def test_weights_are_those_of_the_seed() -> None:
    first, again, other = (zoo.build("perceptron", seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_arrays_of_other_shapes_are_infinitely_far() -> None:
    assert distance(np.zeros(3), np.zeros(4)) == np.inf


def test_nan_in_one_alone_is_infinitely_far() -> None:
    assert distance(np.array([np.nan, 1]), np.array([0.0, 1])) == np.inf


def test_a_size_is_over_eagers_own_distance() -> None:
    exact, wrong = [{"y": np.ones(4)}], [{"y": np.full(4, 1 + 1e-4)}]
    eager = [{"y": np.full(4, 1 + 1e-6)}]
    size, over = shows(exact, wrong, eager)
    assert size == pytest.approx(1e-4)
    assert over == pytest.approx(100, rel=1e-3)


@pytest.mark.parametrize(
    ("check", "off", "accepted"),
    [
        ("1e-5", 1e-6, True),
        ("1e-5", 1e-4, False),
        ("1e-3", 9e-4, True),
        ("1e-3", 2e-3, False),
        ("cos", 1e-2, True),
        ("cos", 0.3, False),
    ],
)
def test_a_peers_check_has_its_limit(check: str, off: float, accepted: bool) -> None:
    eager = np.ones(8)
    found = eager + off * np.array([1, -1] * 4)
    assert PEERS[check](found, eager) is accepted


def test_a_scaled_output_is_nothing_to_a_cosine() -> None:
    assert PEERS["cos"](np.arange(5) * 3.0, np.arange(5.0))


def test_results_are_read_back(tmp_path: Path) -> None:
    written = Results(path=tmp_path / "r.jsonl")
    written.add(replace(CASE, ratio=1.5, peers={"cos one": True}))
    written.add(replace(CASE, model="other", visible=float("inf")))
    known = Results(path=tmp_path / "r.jsonl")
    known.read()
    assert known.known == written.known
    assert known.cases[0] == written.cases[0]


def test_a_half_written_line_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    Results(path=path).add(CASE)
    path.write_text(path.read_text() + '{"group": "good", "mod')
    known = Results(path=path)
    known.read()
    assert known.cases == [CASE]


def test_a_visible_fault_that_passed_is_a_false_pass() -> None:
    fault = replace(CASE, group="fault", kind="epsilon", label="norm", visible=12.0)
    last = tables([CASE, fault]).splitlines()[-1]
    assert last.split()[:6] == ["false", "pass", "net", "0", "fp32", "onnx:"]
    assert "12.0" in last


def test_a_fault_that_a_converter_removed_is_none() -> None:
    fault = replace(CASE, group="fault", kind="cast", visible=12.0, undone=True)
    assert not fault.is_visible
    assert "false pass" not in tables([CASE, fault]).splitlines()[-1]


def test_a_rejected_good_conversion_is_a_false_fail() -> None:
    found = tables([replace(CASE, state="failed", reason="too far", ratio=5.0)])
    last = found.splitlines()[-1]
    assert last.split()[:6] == ["false", "fail", "net", "0", "fp32", "onnx:"]
    assert "5.00" in last
