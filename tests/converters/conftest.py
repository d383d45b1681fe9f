"""One conversion of digits for each target, capture and precision; and jobs of modules at hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest

from modelc.converters.registry import TARGETS, target_named
from modelc.core.contract import EAGER, Array, Converted, Job, Target
from modelc.core.kinds import INTEGER_WEIGHTS, QUANTIZED, Capture, Precision
from modelc.pipeline.eager_reference import EagerReference, open_reference, read_checkpoint
from modelc.pipeline.order import Judging, Source, Wanted
from modelc.pipeline.run_progress import Progress

from ..conftest import COMPILED, exported, quantized
from .quantizers.conftest import ready

if TYPE_CHECKING:
    import openvino

OnnxFile = Callable[..., Path]
DATA_FREE = ("onnx", "openvino")  # targets whose INT4 needs no data
NO_LAYER = {
    ("openvino", Precision.INT4)
}  # NNCF leaves convolutions in 8 bits, and digits has no more
Way: TypeAlias = tuple[Target, Capture | None, Precision]


def ways() -> list[object]:
    """Every target by every capture in every precision."""
    return [
        pytest.param(
            (target, capture, precision),
            id="-".join(filter(None, (target.NAME, capture, precision))),
            marks=[
                pytest.mark.needs(target.NAME),
                *(() if origin == EAGER else [pytest.mark.needs(origin.partition(":")[0])]),
                *([ready("modelopt")] if precision in QUANTIZED - {Precision.INT8} else []),
                *([pytest.mark.slow] if target.NAME in COMPILED else []),
            ],
        )
        for target in TARGETS
        for precision, origin in target.MADE_FROM.items()
        for capture in (target.CAPTURES if origin == EAGER else (None,))
        if capture is not Capture.MIXED  # of digits, without a branch, it would be a trace
        if (target.NAME, precision) not in NO_LAYER
    ]


@pytest.fixture(scope="session", params=ways())
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture(scope="session")
def target(way: Way) -> Target:
    return way[0]


@pytest.fixture(scope="session")
def digits(digits_source: Source, tmp_path_factory: pytest.TempPathFactory) -> EagerReference:
    """Digits opened, with the feeds and what eager says on each."""
    stage = Progress(tell=lambda _: None, logs=tmp_path_factory.mktemp("logs"))
    checkpoint = read_checkpoint(digits_source, stage)
    return open_reference(digits_source, checkpoint, Judging(), stage)


@pytest.fixture(scope="session")
def fp8_digits(tmp_path_factory: pytest.TempPathFactory, digits_source: Source) -> Path:
    return quantized(digits_source, tmp_path_factory.mktemp("fp8"), Precision.FP8, "modelopt")


@pytest.fixture(scope="session")
def int4_digits(tmp_path_factory: pytest.TempPathFactory, digits_source: Source) -> Path:
    out = tmp_path_factory.mktemp("int4")
    return quantized(digits_source, out, Precision.INT4, "modelopt", without=DATA_FREE)


@pytest.fixture(scope="session")
def weights_digits(tmp_path_factory: pytest.TempPathFactory, digits_source: Source) -> Path:
    """Digits with integer weights alone, made without data."""
    each = [(target_named(name), one) for name in DATA_FREE for one in sorted(INTEGER_WEIGHTS)]
    wanted = [
        Wanted(target=target.NAME, precision=one)
        for target, one in each
        if (target.NAME, one) not in NO_LAYER and one in target.MADE_FROM
    ]
    return exported(digits_source, tmp_path_factory.mktemp("weights") / "out", *wanted)


@pytest.fixture(scope="session")
def job(
    way: Way,
    digits: EagerReference,
    exported_digits: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Job:
    """What the pipeline would hand the target for digits."""
    target, capture, precision = way
    parent = None
    origin = target.MADE_FROM[precision]
    if precision in QUANTIZED:
        free = target.NAME in DATA_FREE and precision is not Precision.INT8
        folder: Path = request.getfixturevalue(f"{'weights' if free else precision}_digits")
        suffix = ".onnx" if target.NAME in DATA_FREE else ".trt.onnx"
        suffix = target.SUFFIX if free else suffix
        parent = folder / f"model.{precision}{suffix}"
    elif origin != EAGER:
        parent = exported_digits / f"model{target_named(origin.partition(':')[0]).SUFFIX}"
    return Job(
        signature=digits.signature,
        precision=precision,
        folder=tmp_path_factory.mktemp(target.NAME),
        stem="model",
        example=digits.example,
        model=digits.model if parent is None else None,
        parent=parent,
        capture=capture,
        metadata={"checkpoint": digits.checkpoint.digest},
    )


@pytest.fixture(scope="session")
def converted(target: Target, job: Job) -> Converted:
    """The conversion itself, made once for all tests of one way."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the frameworks' own; the pipeline sends them to a log
        return target.convert(job)


@pytest.fixture(scope="session")
def model_file(job: Job, converted: Converted) -> Path:
    return job.folder / converted.files[0][0]


def run_openvino(model: openvino.Model, *arrays: Array, **settings: str) -> list[Array]:
    """The outputs of a model that computes in float32 on the CPU."""
    import openvino

    config = {"INFERENCE_PRECISION_HINT": "f32", **settings}
    compiled = openvino.Core().compile_model(model, "CPU", config)
    return [array.copy() for array in compiled(list(arrays)).values()]


def operators(model: openvino.Model) -> list[str]:
    return [node.get_type_name() for node in model.get_ordered_ops()]


@pytest.fixture
def onnx_file(tmp_path: Path) -> OnnxFile:
    """`onnx_file("g (float[N,4] x) => (...) {...}", modules={"mul": "layers.0"}, w=array)`."""

    def write(
        graph: str,
        *,
        modules: Mapping[str, str] | None = None,
        opset: int = 20,
        external: bool = False,
        **weights: Array,
    ) -> Path:
        import onnx
        from onnx import numpy_helper, parser

        model = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {graph}')
        for name, values in weights.items():
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        path = tmp_path / "model.onnx"
        onnx.save(
            model, path, save_as_external_data=external, size_threshold=0, location="model.data"
        )
        if modules is not None:
            nodes = {name: {"module": module} for name, module in modules.items()}
            document = {"schema_version": 1, "nodes": nodes}
            path.with_suffix(".debug.json").write_text(json.dumps(document), "utf-8")
        return path

    return write
