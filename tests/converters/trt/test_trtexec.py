"""trtexec as the builder: its command line, and a program that stands in for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.converters.trt.build_launcher import (
    build_with_trtexec,
    trtexec_command,
    trtexec_version,
)
from modelc.converters.trt.engine_options import HardwareLevel, ShapeRange
from modelc.converters.trt.engine_records import BuildRequest
from modelc.core.errors import ConversionError, ErrorCode, MissingError

from ...reasons import has_code

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
Requests = Callable[..., BuildRequest]
LAYERS = '{"Layers": [], "Bindings": ["x", "y"]}'


def flags_of(request: BuildRequest, major: int = 11) -> list[str]:
    return trtexec_command("trtexec", major, request, Path("/layers.json"))[1:]


def test_the_command_line_of_default_options(request_of: Requests) -> None:
    request = request_of()
    assert flags_of(request) == [
        f"--onnx={request.onnx}",
        f"--saveEngine={request.engine}",
        "--skipInference",
        "--profilingVerbosity=detailed",
        "--exportLayerInfo=/layers.json",
        "--builderOptimizationLevel=3",
        "--minShapes=x:1x3",
        "--optShapes=x:4x3",
        "--maxShapes=x:8x3",
    ]


def test_only_ten_gets_the_flag_of_strong_typing(request_of: Requests) -> None:
    assert "--stronglyTyped" in flags_of(request_of(), major=10)
    assert "--stronglyTyped" not in flags_of(request_of(), major=11)


def test_options_become_flags(request_of: Requests) -> None:
    request = request_of(
        cache="/t.cache",
        workspace=1 << 30,
        refittable=True,
        strip_weights=True,
        version_compatible=True,
        weight_streaming=True,
        tf32=False,
        hardware_compatible=HardwareLevel.AMPERE_PLUS,
        plugins=("/a.so", "/b.so"),
    )
    assert {
        "--memPoolSize=workspace:1073741824B",
        "--timingCacheFile=/t.cache",
        "--staticPlugins=/a.so",
        "--staticPlugins=/b.so",
        "--refit",
        "--stripWeights",
        "--versionCompatible",
        "--allowWeightStreaming",
        "--noTF32",
        "--hardwareCompatibilityLevel=ampere+",
    } <= set(flags_of(request))


def test_no_flag_asks_for_a_precision(request_of: Requests) -> None:
    for major in (10, 11):
        flags = flags_of(request_of(), major)
        assert not {"--fp16", "--bf16", "--int8", "--fp8", "--best"} & set(flags)


def test_several_profiles_are_numbered(request_of: Requests) -> None:
    scalar = ShapeRange(name="s", low=(), opt=(), high=())
    one = ShapeRange(name="x", low=(1, 3), opt=(2, 3), high=(4, 3))
    flags = flags_of(request_of(profiles=((one, scalar), (one, scalar))))
    assert flags[6:10] == [
        "--profile=0",
        "--minShapes=x:1x3,s:scalar",
        "--optShapes=x:2x3,s:scalar",
        "--maxShapes=x:4x3,s:scalar",
    ]
    assert flags[10] == "--profile=1"


def test_fixed_shapes_need_no_flags(request_of: Requests) -> None:
    one = ShapeRange(name="x", low=(4, 3), opt=(4, 3), high=(4, 3))
    assert not [flag for flag in flags_of(request_of(profiles=((one,),))) if "Shapes" in flag]


def test_inputs_that_set_a_size_are_given_by_value(request_of: Requests) -> None:
    x = ShapeRange(name="x", low=(4, 3), opt=(4, 3), high=(4, 3))
    k = ShapeRange(name="k", low=(), opt=(), high=(), values=(1, 5, 10))
    sizes = ShapeRange(name="sizes", low=(2,), opt=(2,), high=(2,), values=(0, 3, 7))
    request = request_of(profiles=((x, k, sizes),))
    flags = flags_of(replace(request, size_inputs=("k", "sizes")))
    assert flags[-3:] == [
        "--minShapes=x:4x3,k:1,sizes:0x0",
        "--optShapes=x:4x3,k:5,sizes:3x3",
        "--maxShapes=x:4x3,k:10,sizes:7x7",
    ]


def test_trtexec_needs_the_range_of_an_input_that_sets_a_size(request_of: Requests) -> None:
    k = ShapeRange(name="k", low=(2,), opt=(2,), high=(2,))
    with pytest.raises(
        ConversionError, check=has_code(ErrorCode.MISSING_DIMS, option="input", naming="'k'")
    ):
        flags_of(replace(request_of(profiles=((k,),)), size_inputs=("k",)))


def program(folder: Path, body: str, banner: str = "v101600") -> str:
    """A script that prints trtexec's banner, then runs `body`."""
    file = folder / "trtexec"
    file.write_text(
        f"#!/bin/sh\necho '&&&& RUNNING TensorRT.trtexec [TensorRT {banner}] [b26]'\n{body}\n"
    )
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(("banner", "version"), [("v101600", (10, 16, 0)), ("v110401", (11, 4, 1))])
def test_the_version_is_read_from_the_banner(tmp_path: Path, banner: str, version: object) -> None:
    assert trtexec_version(program(tmp_path, "exit 0", banner)) == version


@pytest.mark.parametrize(("banner", "value"), [("v100600", "10.6.0"), ("8", "--help")])
def test_a_program_of_an_old_or_unknown_version_is_missing(
    tmp_path: Path, banner: str, value: str
) -> None:
    with pytest.raises(MissingError, check=has_code(ErrorCode.NOT_INSTALLED, naming=value)):
        trtexec_version(program(tmp_path, "exit 0", banner))


SAVE = f"""
for argument in "$@"; do case "$argument" in
--saveEngine=*) printf ftrt > "${{argument#*=}}";;
--exportLayerInfo=*) echo '{LAYERS}' > "${{argument#*=}}";;
esac; done
"""


def test_a_build_returns_version_and_layers(
    request_of: Requests, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = build_with_trtexec(program(tmp_path, SAVE), request_of(), tmp_path, version=(10, 16, 0))
    assert (made.tensorrt, made.layers.strip(), made.notes) == ("10.16.0", LAYERS, ())
    assert (tmp_path / "model.engine").read_bytes() == b"ftrt"
    assert "TensorRT.trtexec" in capfd.readouterr().err


def test_a_build_without_layers_succeeds(request_of: Requests, tmp_path: Path) -> None:
    body = SAVE.replace("--exportLayerInfo", "--other")
    made = build_with_trtexec(program(tmp_path, body), request_of(), tmp_path, version=(11, 4, 0))
    assert (made.layers, made.inputs) == ("", ())


def test_a_program_that_fails_after_it_wrote_the_engine_is_a_note(
    request_of: Requests, tmp_path: Path
) -> None:
    body = f"{SAVE}\nkill -SEGV $$"
    made = build_with_trtexec(program(tmp_path, body), request_of(), tmp_path, version=(11, 4, 0))
    assert len(made.notes) == 1
    assert "SIGSEGV" in made.notes[0]


@pytest.mark.parametrize("body", ["echo '[E] no luck' >&2; exit 1", "echo '[E] no luck' >&2"])
def test_without_an_engine_the_build_failed_at_any_exit_code(
    request_of: Requests, tmp_path: Path, body: str
) -> None:
    with pytest.raises(ConversionError, check=has_code(ErrorCode.RUNTIME_FAILED, naming="no luck")):
        build_with_trtexec(program(tmp_path, body), request_of(), tmp_path, version=(11, 4, 0))
