"""Triton's configurations as text: read whole, written as read, and hostile ones refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.serving.triton_schema import config_class, read_config, write_config

from ..reasons import has_code

STRANGERS = b"""
name: "tagger"
platform: "tensorrt_plan"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1, -1 ] } ]
output [ { name: "y" data_type: TYPE_FP16 dims: [ 10 ] label_filename: "labels.txt" } ]
version_policy: { specific { versions: [ 1, 3 ] } }
instance_group [ { kind: KIND_GPU count: 2 gpus: [ 0, 1 ] profile: "0"
  rate_limiter { resources [ { name: "R" count: 4 } ] priority: 2 } } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] priority_queue_policy { key: 1
  value: { timeout_action: DELAY max_queue_size: 9 } } }
optimization { cuda { graphs: true graph_spec { batch_size: 2 input { key: "x"
  value: { dim: [ 3, 8, 8 ] } } } } execution_accelerators {
  gpu_execution_accelerator : [ { name : "tensorrt" parameters { key: "precision_mode"
  value: "FP16" } } ] } }
parameters { key: "p" value: { string_value: "v" } }
cc_model_filenames [ { key: "8.6" value: "a.plan" } ]
model_warmup [ { name: "w" batch_size: 1 inputs { key: "x" value: {
  data_type: TYPE_FP32 dims: [ 3, 8, 8 ] zero_data: true } } } ]
response_cache { enable: true }
"""


def test_a_config_of_others_is_read_whole() -> None:
    config, unknown = read_config(STRANGERS, "config.pbtxt")
    assert not unknown
    assert list(config.version_policy.specific.versions) == [1, 3]
    assert config.instance_group[0].rate_limiter.resources[0].count == 4
    assert dict(config.cc_model_filenames) == {"8.6": "a.plan"}
    assert config.model_warmup[0].inputs["x"].WhichOneof("input_data_type") == "zero_data"
    assert read_config(write_config(config), "config.pbtxt") == (config, "")


def test_an_unknown_field_is_reported_and_the_rest_is_read() -> None:
    config, unknown = read_config(b'name: "a"\nbackends: "onnxruntime"\n', "config.pbtxt")
    assert "backends" in unknown
    assert config.name == "a"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\xff\xfe",
        b"name: 3",
        b"input {" * 5_000,
        b"max_batch_size: 99999999999999999999",
        b"input { data_type: TYPE_FLOAT }",
        b"[type.googleapis.com/a.B] { }",
    ],
)
def test_what_is_no_config_is_refused(raw: bytes) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.CORRUPT_FILE)):
        read_config(raw, "config.pbtxt")


def test_the_fields_are_those_of_tritons_own_class() -> None:
    """Where `tritonclient` is installed: every message, field, type and choice."""
    package = importlib.util.find_spec("tritonclient")
    if package is None:
        pytest.skip("tritonclient is not installed")
    folder = Path(next(iter(package.submodule_search_locations or ())))
    place = folder / "grpc" / "model_config_pb2.py"  # its package imports grpc, which is not needed
    spec = importlib.util.spec_from_file_location("model_config_pb2", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _compare(config_class().DESCRIPTOR, module.ModelConfig.DESCRIPTOR, set())


def _compare(one: Any, other: Any, seen: set[str]) -> None:
    if one.full_name in seen:
        return
    seen.add(one.full_name)
    fields, others = ({f.name: f for f in side.fields} for side in (one, other))
    assert fields.keys() == others.keys(), one.full_name
    for name, field in fields.items():
        theirs = others[name]
        assert (field.message_type is None) == (theirs.message_type is None), name
        choice, their_choice = field.containing_oneof, theirs.containing_oneof
        assert getattr(choice, "name", "") == getattr(their_choice, "name", "")
        if field.enum_type is not None:
            assert [*field.enum_type.values_by_name] == [*theirs.enum_type.values_by_name]
        if field.message_type is not None:
            _compare(field.message_type, theirs.message_type, seen)
