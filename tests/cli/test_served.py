"""`modelc validate --served`: exit codes, and options that have no effect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelc.converters.registry import target_named
from modelc.pipeline.manifest_file import read_manifest

from ..runtimes.v2_double import Arrays, ServedDouble, serve
from .conftest import Ran

Door = Callable[..., Ran]


@pytest.fixture
def double(digits_copy: Path) -> Iterator[ServedDouble]:
    """A server that runs the ONNX artifact itself."""
    manifest = read_manifest(digits_copy)
    assert manifest is not None
    path = digits_copy / "model.onnx"
    with target_named("onnx").open_runner(path, "cpu", manifest.signature) as runner:
        shown = ServedDouble(
            answer=lambda feed: runner.run(feed),  # noqa: PLW0108 - tests replace it
            inputs=(("x", "FP32", [-1, 1, 8, 8]),),
            outputs=(("output", "FP32", [-1, 10]),),
        )
        with serve(shown) as running:
            yield running


def validate(door: Door, folder: Path, url: str, *options: str) -> Ran:
    return door("validate", folder, "--served", url, "--artifact", "onnx", "-q", *options)


def test_a_right_server_passes(door: Door, digits_copy: Path, double: ServedDouble) -> None:
    ran = validate(door, digits_copy, double.url, "--model", "net", "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)["judged"][0]
    assert found["verdict"]["state"] == "passed"
    assert found["versions"]["model"] == "net"


def test_a_wrong_server_is_rejected(door: Door, digits_copy: Path, double: ServedDouble) -> None:
    right = double.answer

    def wrong(feed: Arrays) -> Arrays:
        return {name: array * 2 for name, array in right(feed).items()}

    double.answer = wrong
    assert validate(door, digits_copy, double.url).returncode == 1


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--served", "http://127.0.0.1:1"), 6),
        (("--served", "nowhere"), 2),
        (("--served", "http://127.0.0.1:1", "--header", "x"), 2),
        (("--served", "http://127.0.0.1:1", "--request-timeout", "0"), 2),
        (("--served", "http://127.0.0.1:1", "--artifact", "onxx"), 2),
        (("--served", "http://127.0.0.1:1", "--rejudge"), 2),
        (("--served", "http://127.0.0.1:1", "--device", "cuda"), 2),
        (("--artifact", "onnx"), 2),
        (("--header", "a: b"), 2),
        (("--model-version", "1"), 2),
    ],
)
def test_a_wrong_request_has_its_exit_code(
    door: Door, digits_copy: Path, options: tuple[str, ...], code: int
) -> None:
    ran = door("validate", digits_copy, *options)
    assert ran.returncode == code
    assert "error:" in ran.stderr
    assert "hint:" in ran.stderr


def test_a_file_has_no_server(door: Door, digits_copy: Path) -> None:
    ran = door("validate", digits_copy / "model.onnx", "--served", "http://127.0.0.1:1")
    assert ran.returncode == 2
