"""Shared by all tests: sources of the sample models, one export of digits, and `needs(target)`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from modelc.checkpoints.eager_model import Eager
from modelc.converters.registry import TARGETS, target_named
from modelc.core.call import bind_inputs, parameters_of
from modelc.core.contract import EAGER, Job, Target
from modelc.core.grammar import parse_input
from modelc.core.kinds import QUANTIZED, Capture, Precision
from modelc.core.signature import merge_inputs
from modelc.pipeline import fault_sensitivity
from modelc.pipeline.benchmark import timed_turns
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.validators.feeds import draw_example_feed

if TYPE_CHECKING:
    from torch import nn

# Workers share the cores: torch's threads on top of them would double the time.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Processes of their own are what tests/pipeline/isolation is about; elsewhere they only cost time.
os.environ.setdefault("MODELC_ISOLATE", "0")

# Faults planted in every artifact would take as long as the rest of most tests.
_PLANTED, fault_sensitivity.DEFAULT_FAULTS = fault_sensitivity.DEFAULT_FAULTS, 0

SAMPLE_MODELS = Path(__file__).parent.parent / "sample_models"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that rewrites tests/cli/snapshots."""
    parser.addoption("--update-snapshots", action="store_true", help="rewrite tests/cli/snapshots")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a target that is not ready here, with the target's reason."""
    for mark in item.iter_markers("needs"):
        reason = why_not(target_named(mark.args[0]))
        if reason:
            pytest.skip(reason)


_SECONDS = 0.2  # of each model that is timed


@pytest.fixture(scope="session", autouse=True)
def short_turns() -> Iterator[None]:
    """Time in short turns: the tests look at what is done with a latency, not at the last digit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timed_turns, "_TURN", 0.005)
        patch.setattr(timed_turns, "_MIN_WARMUP", 0.02)
        plan = timed_turns.plan_rounds
        patch.setattr(timed_turns, "plan_rounds", lambda _, runs: plan(_SECONDS, runs))
        yield


@pytest.fixture(autouse=True)
def planting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant faults by default in tests marked so, as users have it."""
    if request.node.get_closest_marker("plants_faults"):
        monkeypatch.setattr(fault_sensitivity, "DEFAULT_FAULTS", _PLANTED)


def why_not(target: Target) -> str:
    """The target's reason why it is not ready here; empty if it is."""
    readiness = target.readiness()
    return "" if readiness.ready else readiness.reason


COMPILED = ("aoti",)  # a C++ compiler takes half a minute for each model: their own tests make one


def made_here(target: Target) -> bool:
    """Whether the target and what it is made from are ready, quick to make, and run on the CPU."""
    if target.NAME in COMPILED or why_not(target) or "cpu" not in target.DEVICES:
        return False
    origins = {origin.partition(":")[0] for origin in target.MADE_FROM.values()} - {target.NAME}
    return all(origin == EAGER or made_here(target_named(origin)) for origin in origins)


@pytest.fixture(autouse=True)
def _unlisted() -> Iterator[None]:
    """What the pipeline lets frameworks warn of into a log is not listed by pytest."""
    with warnings.catch_warnings(record=True):
        yield


def exported(source: Source, out: Path, *wanted: Wanted) -> Path:
    """The folder `out` with what was wanted; all of it passed."""
    with warnings.catch_warnings(record=True):
        manifest = run(Order(source=source, wanted=wanted, out=out))
    assert manifest.passed, manifest.verdicts or manifest.failures
    return out


@pytest.fixture(scope="session")
def digits_source() -> Source:
    """The shipped checkpoint and sample, batches of 1 to 8."""
    return Source(
        checkpoint=SAMPLE_MODELS / "digits.safetensors",
        model="modelc.sample_models.digits:build",
        inputs=("x[batch=1..8,_,_,_]",),
        samples=SAMPLE_MODELS / "digits_samples.npz",
    )


@pytest.fixture(scope="session")
def exported_digits(tmp_path_factory: pytest.TempPathFactory, digits_source: Source) -> Path:
    """Digits in every format and precision that can be made here. To change it, copy it."""
    wanted = [
        Wanted(target=target.NAME, precision=precision)
        for target in filter(made_here, TARGETS)
        for precision in target.MADE_FROM
        if precision not in QUANTIZED
    ]
    return exported(digits_source, tmp_path_factory.mktemp("digits") / "out", *wanted)


@pytest.fixture(scope="session")
def int8_digits(tmp_path_factory: pytest.TempPathFactory, digits_source: Source) -> Path:
    """Digits in INT8 in every format that has it, calibrated with images. Copy it to change it."""
    out = tmp_path_factory.mktemp("int8") / "out"
    return quantized(digits_source, out, Precision.INT8, "onnxruntime")


def quantized(
    source: Source, out: Path, precision: Precision, quantizer: str, without: Collection[str] = ()
) -> Path:
    """The folder `out` with digits in this precision in every format that has it; all passed."""
    from modelc.calibration.calibration_options import CalibrationOptions
    from modelc.pipeline.order import Lowering

    wanted = tuple(
        Wanted(target=target.NAME, precision=precision)
        for target in filter(made_here, TARGETS)
        if precision in target.MADE_FROM and target.NAME not in without
    )
    calibration = CalibrationOptions(source=str(SAMPLE_MODELS / "digits_calib"))
    lowering = Lowering(calibration=calibration, quantizer=quantizer)
    with warnings.catch_warnings(record=True):
        manifest = run(Order(source=source, wanted=wanted, out=out, lowering=lowering))
    assert manifest.passed, manifest.verdicts or manifest.failures
    return out


@pytest.fixture
def digits_copy(exported_digits: Path, tmp_path: Path) -> Path:
    """A copy of the exported digits to be changed; as deep, so that relative paths hold."""
    return shutil.copytree(exported_digits, tmp_path / "out")


def saved(name: str, module: nn.Module, folder: Path) -> Path:
    """The module's weights as `folder/name.safetensors`."""
    from safetensors.torch import save_file

    save_file(module.state_dict(), folder / f"{name}.safetensors")
    return folder / f"{name}.safetensors"


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the checkpoints that are not shipped are written."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def gate_source(checkpoints: Path) -> Source:
    """A model with a branch on its input's values."""
    from modelc.sample_models import gate

    return Source(
        checkpoint=saved("gate", gate.gate(), checkpoints),
        model="modelc.sample_models.gate:gate",
        inputs=gate.SIGNATURE,
    )


@pytest.fixture(scope="session")
def nested_source(checkpoints: Path) -> Source:
    """A model with a dict of inputs and nested outputs."""
    from modelc.sample_models import nested

    return Source(
        checkpoint=saved("nested", nested.detector(), checkpoints),
        model="modelc.sample_models.nested:detector",
        inputs=nested.SIGNATURE,
    )


@pytest.fixture(scope="session")
def lstm_source(checkpoints: Path) -> Source:
    """A small LSTM."""
    from modelc.sample_models import lstm

    return Source(
        checkpoint=saved("lstm", lstm.tagger(50, 8, tags=3), checkpoints),
        model="modelc.sample_models.lstm:tagger",
        model_args={"vocab": "50", "hidden": "8", "tags": "3"},
        inputs=("tokens:int64[batch=1..4,seq=2..16]{0..49}",),
    )


@pytest.fixture(scope="session")
def bert_source(checkpoints: Path) -> Source:
    """A tiny BERT: two inputs that share two dynamic dims, two outputs."""
    from modelc.sample_models import encoder

    return Source(
        checkpoint=saved("bert", encoder.bert(2, 64, heads=4, vocab=100), checkpoints),
        model="modelc.sample_models.encoder:bert",
        model_args={"layers": "2", "hidden": "64", "heads": "4", "vocab": "100"},
        inputs=(
            "ids:int64[batch=1..4,seq=2..16]{0..99}",
            "mask:int64[batch=1..4,seq=2..16]{0..1}",
        ),
    )


@pytest.fixture(scope="session")
def sources(request: pytest.FixtureRequest) -> Callable[[str], Source]:
    """`sources("nested")` is the fixture `nested_source`: for names that come from a table."""

    def source(name: str) -> Source:
        found = request.getfixturevalue(f"{name}_source")
        assert isinstance(found, Source)
        return found

    return source


@pytest.fixture(scope="session")
def exports(
    tmp_path_factory: pytest.TempPathFactory, sources: Callable[[str], Source]
) -> Callable[[str], Path]:
    """`exports("nested")`: that model in every format that can hold it, made once."""
    made: dict[str, Path] = {}

    def export(name: str) -> Path:
        if name not in made:
            # torch.export alone refuses gate and lstm
            sound = {Capture.EXPORT, Capture.EXPORT_STRICT}
            made_so = filter(made_here, TARGETS)
            able = [t for t in made_so if not t.CAPTURES or set(t.CAPTURES) - sound]
            wanted = [Wanted(target=t.NAME) for t in able if Precision.FP32 in t.MADE_FROM]
            out = tmp_path_factory.mktemp(name) / "out"
            made[name] = exported(sources(name), out, *wanted)
        return made[name]

    return export


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children get the defaults of signals, even where this process runs in the background."""
    before = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        (signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL)),
    ]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def records() -> ModuleType:
    """`tests/reports/records.py`, which makes manifests."""
    from .reports import records as module

    return module


@pytest.fixture
def job_of(tmp_path: Path) -> Callable[..., Job]:
    """`job_of(module, "x:float32[batch,3]", capture=..., outputs=("y",))` -> a Job for it."""

    def make(
        module: nn.Module,
        *inputs: str,
        capture: Capture = Capture.EXPORT,
        outputs: tuple[str, ...] = ("output",),
        opset: int | None = None,
        external_data: bool = False,
    ) -> Job:
        signature = merge_inputs([parse_input(text) for text in inputs], {}).with_outputs(outputs)
        names = tuple(spec.name for spec in signature.inputs)
        module.eval()
        return Job(
            signature=signature,
            precision=Precision.FP32,
            folder=tmp_path,
            stem="model",
            example=draw_example_feed(signature),
            model=Eager(module, names, bind_inputs(names, parameters_of(module.forward))),
            capture=capture,
            opset=opset,
            external_data=external_data,
        )

    return make


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a user's module into the working folder; gives its name, new for each call."""
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)

    def write(text: str) -> str:
        name = f"nets_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    yield write
    sys.path[:] = before
