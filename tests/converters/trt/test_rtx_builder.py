"""NVIDIA's own parser and builder, of TensorRT-RTX, in the child process that builds engines.

They need no GPU. One process per model; nothing is loaded or run.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from importlib import util
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from modelc.converters.trt.build_launcher import build_with_python
from modelc.converters.trt.engine_options import (
    EngineOptions,
    ShapeRange,
    check_libraries,
    parse_options,
)
from modelc.converters.trt.engine_records import BuildRequest, BuildResult
from modelc.converters.trt.trt_installation import TrtLibrary
from modelc.core.contract import no_progress
from modelc.core.errors import ConversionError, ErrorCode, UsageError

from ...reasons import has_code
from .rtx_models import LENGTH, TYPES, WIDTH, cnn, one_node, saved, top_k, transformer

MISSING = util.find_spec("tensorrt_rtx") is None
pytestmark = [
    pytest.mark.rtx,
    pytest.mark.slow,
    pytest.mark.skipif(MISSING, reason="the TensorRT-RTX wheels are not installed"),
]
NETS = {"cnn": (cnn, (3, 16, 16)), "transformer": (transformer, (LENGTH, WIDTH))}
MAGIC = b"vtrt"
Rest = tuple[int, ...]
Ask = Callable[..., BuildRequest]


def batches(rest: Rest, low: int, opt: int, high: int) -> ShapeRange:
    return ShapeRange(name="x", low=(low, *rest), opt=(opt, *rest), high=(high, *rest))


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """`ask(model, shapes, tf32=False)`: the request to build it, with these options."""

    def make(
        model: onnx.ModelProto,
        *profiles: tuple[ShapeRange, ...],
        external: bool = False,
        ranges: dict[str, tuple[int, int, int]] | None = None,
        **options: str,
    ) -> BuildRequest:
        path = saved(model, tmp_path / "model.onnx", external=external)
        return BuildRequest(
            onnx=str(path),
            engine=str(tmp_path / "model.rtx.engine"),
            profiles=profiles or ((),),
            options=parse_options(options) if options else EngineOptions(),
            library=TrtLibrary.RTX,
            values=ranges or {},
        )

    return make


def build(request: BuildRequest) -> BuildResult:
    built = build_with_python(request, no_progress)
    assert Path(request.engine).read_bytes()[:4] == MAGIC
    return built


@pytest.mark.parametrize("opset", range(18, 24))
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("net", NETS)
def test_each_precision_builds_from_opset_18_to_23(
    ask: Ask, net: str, precision: str, opset: int
) -> None:
    make, rest = NETS[net]
    request = ask(make(precision, opset, "batch"), (batches(rest, 1, 4, 8),))
    built = build(request)
    (given,) = built.inputs
    assert given.dims == ("?", *map(str, rest))


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("net", NETS)
def test_each_precision_builds_with_fixed_sizes(ask: Ask, net: str, precision: str) -> None:
    make, rest = NETS[net]
    built = build(ask(make(precision, 23, 2), (batches(rest, 2, 2, 2),)))
    assert built.inputs[0].dims == ("2", *map(str, rest))


IMAGES = batches((3, 16, 16), 1, 4, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"workspace": "64M"},
        {"optimization_level": "0"},
        {"optimization_level": "5"},
        {"tf32": "false"},
        {"weight_streaming": "true"},
        {"compute_capabilities": "8.6,8.9,12.0"},
    ],
    ids=lambda options: "-".join(map("=".join, options.items())),
)
def test_options_build(ask: Ask, options: dict[str, str]) -> None:
    build(ask(cnn("fp32", 18, "batch"), (IMAGES,), **options))


def test_turing_is_built_for_in_half_and_refused_in_float32(ask: Ask) -> None:
    turing = {"compute_capabilities": "7.5"}
    build(ask(cnn("fp16", 18, "batch"), (IMAGES,), **turing))
    with pytest.raises(ConversionError, check=has_code(ErrorCode.RUNTIME_FAILED, naming="SM75")):
        build(ask(cnn("fp32", 18, "batch"), (IMAGES,), **turing))


def test_a_capability_that_the_builder_lacks_is_an_error_that_names_it(ask: Ask) -> None:
    request = ask(cnn("fp16", 18, 1), (batches((3, 16, 16), 1, 1, 1),))
    unknown = replace(request, options=EngineOptions(compute_capabilities=("6.1",)))
    with pytest.raises(ConversionError, check=has_code(ErrorCode.UNSUPPORTED, naming="6.1")):
        build(unknown)


@pytest.mark.parametrize("option", ["refittable", "strip_weights"])
def test_what_needs_a_gpu_is_refused_before_the_build(option: str) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT)):
        check_libraries(parse_options({option: "true"}), [TrtLibrary.RTX])


def test_a_crash_of_the_child_is_an_error_with_its_signal(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    crash = importlib.import_module("staged_build").crash_at_the_first_step
    request = ask(cnn("fp32", 18, "batch"), (IMAGES,))
    with pytest.raises(ConversionError) as caught:
        build_with_python(request, no_progress, build=crash)
    assert "SIGABRT" in caught.value.message
    assert not Path(request.engine).exists()


def test_several_profiles_and_external_weights_build(ask: Ask, tmp_path: Path) -> None:
    more = batches((3, 16, 16), 16, 16, 32)
    build(ask(cnn("fp16", 18, "batch"), (IMAGES,), (more,), external=True))
    assert (tmp_path / "model.onnx.data").is_file()


def test_an_input_that_sets_a_shape_builds_with_its_range(ask: Ask) -> None:
    fixed = (
        ShapeRange(name="x", low=(2, 16), opt=(2, 16), high=(2, 16)),
        ShapeRange(name="k", low=(), opt=(), high=()),
    )
    built = build(ask(top_k(), fixed, ranges={"k": (1, 5, 10)}))
    assert built.outputs[0].dims == ("2", "?")
    with pytest.raises(ConversionError, check=has_code(ErrorCode.MISSING_DIMS, naming="'k'")):
        build(ask(top_k(), fixed))


def test_an_engine_has_float32_where_the_model_has_float64(ask: Ask) -> None:
    built = build(ask(one_node("Relu", TensorProto.DOUBLE)))
    assert [one.dtype for one in (*built.inputs, *built.outputs)] == ["float32", "float32"]


@pytest.mark.parametrize(
    ("kind", "domain"), [("Frobnicate", "acme.ops"), ("Det", "")], ids=["custom", "unsupported"]
)
def test_a_node_that_the_parser_refuses_is_named_with_module_and_source(
    ask: Ask, tmp_path: Path, kind: str, domain: str
) -> None:
    request = ask(one_node(kind, domain=domain))
    origin = {"module": "head.attention", "class": "Attention", "source": "/net.py:7"}
    sidecar = {"nodes": {"node_of_it": origin}}
    (tmp_path / "model.debug.json").write_text(json.dumps(sidecar))
    with pytest.raises(ConversionError, check=has_code(ErrorCode.RUNTIME_FAILED)) as caught:
        build_with_python(request, no_progress)
    values = ("head.attention", kind, "node_of_it", "/net.py:7")
    assert [value for value in values if value not in caught.value.message] == []
    assert not Path(request.engine).exists()


def test_progress_is_reported_and_grows(ask: Ask) -> None:
    progress: list[tuple[int, int]] = []
    request = ask(cnn("fp32", 18, "batch"), (IMAGES,))
    build_with_python(request, lambda *at: progress.append(at))
    assert len(progress) > 10
    assert progress == sorted(progress)
    assert all(done <= total for done, total in progress)


def test_an_interrupt_ends_the_build_and_leaves_nothing(ask: Ask, tmp_path: Path) -> None:
    request = ask(transformer("fp32", 18, "batch"), (batches((LENGTH, WIDTH), 1, 4, 8),))

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_with_python(request, interrupt)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx"}
