"""The commands of a report repeat the run of its manifest."""

from __future__ import annotations

import shlex
from dataclasses import replace
from types import ModuleType

from modelc.core.manifest import Manifest
from modelc.pipeline.replay_commands import list_commands


def export_command(manifest: Manifest) -> str:
    return next(one.text for one in list_commands(manifest) if " export " in one.text)


def test_the_request_is_a_command(records: ModuleType) -> None:
    program, *arguments = shlex.split(export_command(records.full()))
    assert program == "modelc"
    assert arguments == shlex.split(
        "export models/digits.safetensors --model nets.digits:build --model-arg 'depth=2 3' "
        "--samples models/samples.npz --to onnx:fp32 --to onnx:int8 "
        "--input 'x:float32[batch=1..8,64]' --feeds 5 --seed 3 -o out"
    )


def test_the_command_has_each_option_of_the_request(records: ModuleType) -> None:
    full: Manifest = records.full()
    order = {
        "min_sqnr": "43", "search": "20", "max_trials": "1", "data": "../held.npz",
        "preprocess": "resize=8x8,scale=1/255", "max_drop": "0.005", "label": "digit",
        "tolerance": "min-cosine=0.9 logits:rtol=0.01", "calibration": "my samples",
        "accept_branch": "gate.py:24", "static": "seq height", "patch": "nets:fast",
        "custom_op": "my::a=ops:a my::b=ops:b", "for": "onnxruntime==1.20", "half_io": "true",
        "opset": "default", "workspace": "1GB",
    }  # fmt: skip
    manifest = replace(full, order={**full.order, **order})
    command = export_command(manifest)
    for words in (
        "--min-sqnr 43", "--search 20", "--max-trials 1", "--data ../held.npz", "--max-drop 0.005",
        "--preprocess resize=8x8,scale=1/255", "--accept-branch gate.py:24", "--label digit",
        "--static seq --static height", "--patch nets:fast", "--for onnxruntime==1.20",
        "--custom-op my::a=ops:a --custom-op my::b=ops:b", "--calib 'my samples'", "--half-io",
        "--tolerance min-cosine=0.9 --tolerance logits:rtol=0.01",
    ):  # fmt: skip
        assert words in command, words
    assert "--opset" not in command
    assert "workspace" not in command  # an option of build-trt
    assert "workspace=1GB" in next(iter(list_commands(manifest))).purpose
