"""The architectures of transformers in benchmarks/coverage.py."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import torch

from modelc.benchmarks.coverage_check import truth
from modelc.benchmarks.coverage_feeds import fresh_feeds
from modelc.tests.nets.cases import Case, build, cases

ZOO: tuple[Case, ...] = sum(
    (
        import_module(f"modelc.tests.nets.transformers_{name}").CASES
        for name in ("text", "vision", "other")
    ),
    (),
)
# One of each family; all of them run in the benchmark itself.
SAMPLE = ("albert", "gemma2", "t5", "swinv2", "regnet", "yolos", "segformer", "hubert",
          "patchtst", "mamba2", "clip")  # fmt: skip


def test_there_are_architectures_of_every_family_of_the_library() -> None:
    assert len({case.name for case in ZOO}) >= 80
    assert {case.family for case in ZOO} == {
        "encoder", "decoder", "encoder-decoder", "vision-transformer", "cnn", "detection",
        "segmentation", "audio", "time-series", "state-space", "multi-modal",
    }  # fmt: skip


def test_every_case_has_a_dynamic_dim() -> None:
    assert [
        case.name for case in ZOO if not any(".." in text.partition("{")[0] for text in case.inputs)
    ] == []


def test_cases_are_listed_without_transformers() -> None:
    code = (
        "import sys; from modelc.tests.nets.cases import cases; assert list(cases());"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_case_runs_on_all_of_its_feeds_with_outputs_that_depend_on_them(name: str) -> None:
    (case,) = [case for case in cases() if case.name == name]
    found = truth(build(name), fresh_feeds(case))
    assert found.rejected == []
    for outputs in found.outputs:
        assert all(np.isfinite(array).all() for array in outputs.values())
    first = [next(iter(outputs.values())) for outputs in found.outputs]
    assert not np.array_equal(first[-1], first[-2])
    assert all(array.std() > 1e-3 for array in first if array.size > 1)


@pytest.mark.slow
def test_weights_are_those_of_the_seed_and_no_norm_is_left_at_one() -> None:
    first, again = build("bert").state_dict(), build("bert").state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    vectors = [name for name, value in first.items() if value.is_floating_point()]
    assert [name for name in vectors if first[name].numel() > 1 and first[name].std() == 0] == []
