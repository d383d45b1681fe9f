"""benchmarks/coverage.py: what it makes of manifests, raw files, processes that end badly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.benchmarks.coverage import Results, run_case
from modelc.benchmarks.coverage_against import capture_raw
from modelc.benchmarks.coverage_run import (
    RAW,
    TARGETS,
    Result,
    check_artifact,
    command,
    judge_targets,
    read_part,
    reference,
    save,
    unmade,
)
from modelc.benchmarks.coverage_table import beaten, page, plain
from modelc.tests.nets.cases import FAMILIES, Case, case_named, cases

CASE = Case(
    name="net", family="hard", build=lambda: nn.Linear(3, 2), inputs=("x:float32[batch=1..4,3]",)
)


class Gate(nn.Module):
    """The sign of the batch's mean chooses: a trace freezes one outcome."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3) to the same."""
        if bool(x.mean() > 0):
            return x + 1
        return x - 1


BOTH_SIGNS = [{"x": np.full((2, 3), value, np.float32)} for value in (1, -1)]
GATE = Case(
    name="gate", family="hard", build=Gate, inputs=CASE.inputs, more_feeds=lambda: list(BOTH_SIGNS)
)


def linear(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(3, 2).eval()


def traced(module: nn.Module, path: Path) -> None:
    record: Callable[..., Any] = torch.jit.trace
    record(module, torch.ones(2, 3)).save(str(path))


def manifest(state: str, **more: object) -> dict[str, Any]:
    file = {"name": "model.pt"}
    artifact = {"name": "torchscript", "target": "torchscript", "files": [file], "seconds": 1.0,
                "capture": "trace", "rewrites": []}  # fmt: skip
    verdict = {"artifact": "torchscript", "state": state, "reason": "too far"}
    return {"artifacts": [artifact], "verdicts": [verdict], "failures": [], **more}


def test_a_passed_artifact_that_equals_eager_is_right(tmp_path: Path) -> None:
    traced(linear(1), tmp_path / "model.pt")
    found = dict(judge_targets(manifest("passed"), tmp_path, reference(CASE, linear(1)), CASE))
    assert found["torchscript"].result == "right"
    assert found["torchscript"].capture == "trace"


def test_a_passed_artifact_with_other_weights_is_wrong(tmp_path: Path) -> None:
    traced(linear(2), tmp_path / "model.pt")
    found = dict(judge_targets(manifest("passed"), tmp_path, reference(CASE, linear(1)), CASE))
    assert found["torchscript"].result == "WRONG"
    assert "output: off" in found["torchscript"].reason


def test_a_passed_artifact_that_does_not_open_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"nothing")
    found = dict(judge_targets(manifest("passed"), tmp_path, reference(CASE, linear(1)), CASE))
    assert found["torchscript"].result == "WRONG"
    assert "not open" in found["torchscript"].reason


def test_what_modelc_rejected_keeps_its_reason(tmp_path: Path) -> None:
    found = dict(judge_targets(manifest("failed"), tmp_path, reference(CASE, linear(1)), CASE))
    assert (found["torchscript"].result, found["torchscript"].reason) == ("rejected", "too far")


def test_a_failed_step_is_rejected_with_its_hint_and_a_bug_has_crashed(tmp_path: Path) -> None:
    failures = [
        {"step": "onnx", "message": "no operator", "hint": "use another", "exit_code": 5},
        {"step": "pt2", "message": "a bug of modelc", "hint": "report it", "exit_code": 70},
    ]
    said = {**manifest("failed"), "failures": failures}
    found = dict(judge_targets(said, tmp_path, reference(CASE, linear(1)), CASE))
    assert found["onnx"].result == "rejected"
    assert found["onnx"].hint == "use another"
    assert found["pt2"].result == "crashed"


@pytest.mark.parametrize(
    ("exit_code", "stderr", "result", "hint"),
    [
        (3, "x\nerror: cannot be read\nhint:  give another\n", "rejected", "give another"),
        (70, "error: a bug of modelc\nhint:  report it\n", "crashed", "report it"),
        (-11, "", "crashed", ""),
        (1, "Traceback (most recent call last):\nerror: no\n", "crashed", ""),
    ],
)
def test_a_run_without_a_manifest_was_rejected_or_has_crashed(
    exit_code: int, stderr: str, result: str, hint: str
) -> None:
    found = unmade(exit_code, stderr)
    assert (found.result, found.hint) == (result, hint)


def test_the_command_is_that_of_a_user(tmp_path: Path) -> None:
    asked = command(CASE, tmp_path / "weights.pt")
    assert asked[2:5] == ["modelc", "export", str(tmp_path / "weights.pt")]
    assert [asked[at + 1] for at, word in enumerate(asked) if word == "--to"] == list(TARGETS)
    assert CASE.inputs[0] in asked


def test_shared_weights_are_saved_as_torch_has_them(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert save(tied, tmp_path).suffix == ".safetensors"
    tied[1].weight = tied[0].weight
    assert save(tied, tmp_path).suffix == ".pt"
    assert set(torch.load(tmp_path / "weights.pt")) == set(tied.state_dict())


def test_half_weights_are_compared_in_float32() -> None:
    found = reference(CASE, linear(1).to(torch.bfloat16))
    assert found.outputs[0]["output"].dtype == "float32"


def raw(name: str, case: Case, folder: Path) -> tuple[str, bool]:
    """What is said of a raw path, and whether it is silently wrong."""
    made = capture_raw(name, case, case.build().eval(), folder)
    if made.rejected:
        return made.rejected, False
    wrong = check_artifact(made.target, made.path, reference(case, case.build().eval()), case)
    return wrong.said, wrong.silent


def test_a_trace_of_a_branch_is_silently_wrong_and_a_script_is_right(tmp_path: Path) -> None:
    said, silent = raw("jit.trace", GATE, tmp_path)
    assert silent
    assert "output: off by 2" in said
    assert raw("jit.script", GATE, tmp_path) == ("", False)


def test_torch_export_of_a_branch_is_rejected(tmp_path: Path) -> None:
    said, _ = raw("torch.export", GATE, tmp_path)
    assert "data-dependent" in said


@pytest.mark.slow
@pytest.mark.needs("onnx")
@pytest.mark.parametrize("name", RAW)
def test_every_raw_path_takes_a_plain_net(name: str, tmp_path: Path) -> None:
    case = Case(name="net", family="hard", build=lambda: linear(1), inputs=CASE.inputs)
    assert raw(name, case, tmp_path) == ("", False)


def test_a_process_that_dies_or_hangs_is_a_result_of_its_case(tmp_path: Path) -> None:
    lost = Case(name="no such case", family="hard", build=nn.Identity, inputs=())
    died = run_case(lost, ["modelc", "raw"], tmp_path / "died", 60)
    assert {one["result"] for one in died["modelc"]["results"].values()} == {"crashed"}
    assert "KeyError" in died["modelc"]["results"]["onnx"]["reason"]
    assert {one["result"] for one in died["raw"]["results"].values()} == {"crashed"}
    hung = run_case(lost, ["modelc"], tmp_path / "hung", 0.05)
    assert "no end" in hung["modelc"]["results"]["onnx"]["reason"]


def test_results_are_read_back_a_later_line_first_and_a_cut_one_never(tmp_path: Path) -> None:
    results = Results(path=tmp_path / "r.jsonl")
    results.add(CASE, "modelc", {"results": {}, "seconds": 1})
    results.add(CASE, "modelc", {"results": {}, "seconds": 2})
    with results.path.open("a") as stream:
        stream.write('{"name": "net", "part": "raw", "rec')
    assert results.read() == {("net", "modelc"): {"results": {}, "seconds": 2}}
    results.add(CASE, "raw", {"results": {}})
    assert ("net", "raw") in results.read()


def recorded(**results: str) -> dict[str, Any]:
    made = {
        key: asdict(Result(result=one, reason=f"of {key}", exit_code=5))
        for key, one in results.items()
    }
    return {"results": made}


FOUND = {
    ("net", "modelc"): recorded(
        torchscript="right", onnx="rejected", openvino="WRONG", pt2="right"
    ),
    ("net", "raw"): {
        "results": {
            "onnx legacy": asdict(Result(result="right")),
            "jit.trace": asdict(Result(result="WRONG", reason="off by 2")),
        }
    },
}


def test_the_page_counts_by_format_and_lists_what_was_not_taken() -> None:
    said = page([CASE], FOUND)
    assert "| modelc onnx | 1 | 0 (0 %) | 1 (100 %) | 0 (0 %) | 0 (0 %) |" in said
    assert "| modelc openvino | 1 | 0 (0 %) | 0 (0 %) | 1 (100 %) | 0 (0 %) |" in said
    assert "- onnx rejected, exit 5: of onnx." in said
    assert "- net, jit.trace: off by 2" in said


def test_the_page_sums_up_the_raw_paths() -> None:
    said = " ".join(page([CASE], FOUND).split())
    assert re.search(r"in ONNX in 0 \(0 %\)\. One raw ONNX path .*? 1 \(100 %\)", said)
    alone = {key: record for key, record in FOUND.items() if key[1] == "modelc"}
    assert "raw ONNX path" not in page([CASE], alone)
    assert "## 1 of 2" in page([CASE, GATE], FOUND)


def test_the_page_names_what_a_raw_path_gets_right_alone() -> None:
    assert beaten(CASE, FOUND) == ["onnx legacy"]
    assert "does not: net (onnx legacy)." in page([CASE], FOUND)


def test_a_reason_is_one_line_that_markdown_leaves_alone_and_names_no_ones_folders() -> None:
    shown = plain("off\n  (at /home/me/lib/site-packages/torch/nn.py:3) a|b <x> *y*")
    assert shown == "off (at torch/nn.py:3) a\\|b &lt;x> \\*y\\*"


def test_every_case_has_a_name_of_its_own_a_known_family_and_an_input() -> None:
    found = list(cases())
    names = [case.name for case in found]
    assert len(names) == len(set(names))
    assert {case.family for case in found} <= set(FAMILIES)
    assert all(case.inputs for case in found)


def test_no_case_builds_before_it_is_asked_for() -> None:
    assert case_named("bert").build is not None
    with pytest.raises(KeyError, match="no such"):
        case_named("no such")


def test_a_part_that_ended_half_way_keeps_the_paths_before(tmp_path: Path) -> None:
    done = asdict(Result(result="right"))
    (tmp_path / "raw.json").write_text(json.dumps({"results": {"onnx dynamo": done}}))
    assert read_part(tmp_path / "raw.json", "it ended")["results"] == {"onnx dynamo": done}
