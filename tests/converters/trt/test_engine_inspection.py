"""The inspector in a process of its own, on the strict double: a failure is a note."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from modelc.converters.trt.engine_inspection import (
    InspectFunction,
    inspect_engine,
    inspect_with_python,
)
from modelc.converters.trt.engine_records import BuildRequest
from modelc.core.errors import ConversionError, ErrorCode

from ...reasons import has_code

Stages: TypeAlias = Callable[..., Any]
Requests: TypeAlias = Callable[..., BuildRequest]
Inspectors: TypeAlias = Callable[..., InspectFunction]
Inspect: TypeAlias = Callable[..., tuple[Any, str]]


@pytest.fixture
def inspect(stage_of: Stages, request_of: Requests, tmp_path: Path) -> Inspect:
    """`inspect({"loads": False}, strip_weights=True)`: the layers of an engine on that stage."""
    (tmp_path / "model.engine").write_bytes(b"ftrt-engine")

    def run(stage: dict[str, Any] | None = None, **options: Any) -> tuple[Any, str]:
        staged = stage_of(**(stage or {}))
        return staged, inspect_engine(staged.trt, request_of(**options))

    return run


@pytest.mark.parametrize("trusted", [False, True])
def test_host_code_is_allowed_only_with_consent(inspect: Inspect, trusted: bool) -> None:
    stage, _ = inspect(trust_engine=trusted)
    assert stage.calls("host code") == [trusted]


def test_the_inspector_gets_the_opt_shapes(inspect: Inspect) -> None:
    stage, layers = inspect()
    assert layers == stage.layers
    assert stage.calls("set_input_shape") == [{"name": "x", "shape": (4, 3)}]
    json_form = {"format": stage.trt.LayerInformationFormat.JSON}
    assert stage.calls("information") == [json_form, json_form]  # without a context, and with one


def test_a_context_that_rejects_the_shapes_still_has_layers(inspect: Inspect) -> None:
    stage, layers = inspect({"failing": ("set_input_shape",)})
    assert layers == stage.layers
    assert len(stage.calls("information")) == 1


def test_a_stripped_engine_gets_no_context(inspect: Inspect) -> None:
    stage, _ = inspect(strip_weights=True)
    assert not stage.calls("set_input_shape")


def test_an_engine_that_cannot_be_loaded_is_an_error(inspect: Inspect) -> None:
    with pytest.raises(ConversionError, check=has_code(ErrorCode.RUNTIME_FAILED)):
        inspect({"loads": False})


@pytest.mark.parametrize("version", ["10.16", "11.4"])
def test_the_child_returns_the_layers(
    request_of: Requests, tmp_path: Path, inspector: Inspectors, version: str
) -> None:
    (tmp_path / "model.engine").write_bytes(b"ftrt-engine")
    found = inspect_with_python(request_of(), inspect=inspector(version=version))
    assert '"Layers"' in found.layers
    assert found.note == ""


def test_a_child_that_hangs_is_ended(
    request_of: Requests, tmp_path: Path, inspector: Inspectors
) -> None:
    (tmp_path / "model.engine").write_bytes(b"ftrt-engine")
    began = time.monotonic()
    hanging = inspector(before="time.sleep(600)")
    found = inspect_with_python(request_of(), inspect=hanging, seconds=3)
    assert found.note
    assert not found.layers
    assert time.monotonic() - began < 60


def test_a_missing_interpreter_is_a_note(request_of: Requests) -> None:
    assert inspect_with_python(request_of(), python=("/no/python",)).note
