"""An artifact is judged as a server serves it: right, wrong, absent, and mixed up."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.converters.registry import target_named
from modelc.core.errors import ErrorCode, RunnerError, UsageError
from modelc.core.kinds import ReasonCode
from modelc.core.manifest import Manifest
from modelc.core.verdict import State, Verdict
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_served import ServedRequest, choose_artifact, validate_served
from modelc.runtimes.served_runtime import FoundModel
from modelc.runtimes.v2_client import V2Config, V2Model, V2Server

from ..reasons import reason_codes
from ..runtimes.v2_double import Arrays, ServedDouble, serve


def recorded(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    assert manifest is not None
    return manifest


@pytest.fixture(scope="module")
def exported_gate(gate_source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    wanted = tuple(Wanted.parse(text) for text in ("torchscript", "onnx"))
    out = tmp_path_factory.mktemp("gate") / "out"
    source = replace(gate_source, inputs=("x:float32[batch=1..8,16]",))
    run(Order(source=source, wanted=wanted, out=out, judging=Judging()))
    return out


@pytest.fixture
def folder(exported_gate: Path, tmp_path: Path) -> Path:
    """A copy at the same depth, as the manifest has the checkpoint's relative path."""
    return Path(shutil.copytree(exported_gate, tmp_path / "out"))


@pytest.fixture
def double(folder: Path) -> Iterator[ServedDouble]:
    """A server that runs the ONNX artifact itself."""
    manifest = recorded(folder)
    path = folder / manifest.artifacts[1].files[0].name
    spec = manifest.signature.inputs[0]
    lock = threading.Lock()
    with target_named("onnx").open_runner(path, "cpu", manifest.signature) as runner:

        def answer(feed: Arrays) -> Arrays:
            with lock:
                return runner.run(feed)

        shape = [-1 if dim.dynamic else dim.opt for dim in spec.dims]
        shown = ServedDouble(
            answer=answer,
            inputs=((spec.name, "FP32", shape),),
            outputs=(("output", "FP32", [-1, 4]),),
        )
        with serve(shown) as running:
            yield running


def judge(folder: Path, double: ServedDouble, **options: Any) -> Verdict:
    report = validate_served(folder, ServedRequest(url=double.url, **options))
    assert [one.verdict.artifact for one in report.judged] == ["onnx"]
    return report.judged[0].verdict


def change(double: ServedDouble, edit: Callable[[Any], Any]) -> None:
    right = double.answer
    double.answer = lambda feed: {name: edit(array) for name, array in right(feed).items()}


@pytest.mark.parametrize("binary", [True, False])
def test_a_right_server_passes_and_is_recorded(
    folder: Path, double: ServedDouble, *, binary: bool
) -> None:
    double.extensions = ("binary_tensor_data",) if binary else ()
    assert judge(folder, double).passed
    found = recorded(folder).external[0]
    assert found.versions["server"] == "double 9"
    assert found.versions["platform"] == "onnxruntime_onnx"
    assert found.runtime == f"{double.url}/net"


WRONG: dict[str, Callable[[Any], Any]] = {
    "nan": lambda array: array * np.float32(np.nan),
    "scaled": lambda array: array * np.float32(1.01),
    "other-dtype": lambda array: array.astype("float64"),
    "other-shape": lambda array: array[..., :-1],
    "transposed": lambda array: np.ascontiguousarray(array.T),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_outputs_are_rejected(folder: Path, double: ServedDouble, name: str) -> None:
    change(double, WRONG[name])
    verdict = judge(folder, double)
    assert verdict.state is State.FAILED
    assert ReasonCode.OUTPUT_DIFFERS in reason_codes(verdict)


@pytest.mark.parametrize("size", range(1, 9))
def test_a_fault_at_one_batch_size_is_found(folder: Path, double: ServedDouble, size: int) -> None:
    """As of an engine or a graph that a server has for this size alone."""
    change(double, lambda array: array + np.float32(len(array) == size))
    assert reason_codes(judge(folder, double)) == [ReasonCode.OUTPUT_DIFFERS]


def test_an_output_under_another_name_is_rejected(folder: Path, double: ServedDouble) -> None:
    right = double.answer
    double.answer = lambda feed: {"z": right(feed)["output"]}
    assert ReasonCode.OUTPUT_NAMES in reason_codes(judge(folder, double))


def test_a_declared_form_that_differs_is_rejected(folder: Path, double: ServedDouble) -> None:
    double.outputs = (("output", "FP32", [-1, 5]),)
    verdict = judge(folder, double)
    assert reason_codes(verdict) == [ReasonCode.DECLARED_FORM]


def test_a_smaller_batch_is_rejected(folder: Path, double: ServedDouble) -> None:
    double.config = {"max_batch_size": 1, "backend": "onnxruntime"}
    assert ReasonCode.DECLARED_DOMAIN in reason_codes(judge(folder, double))


def test_a_server_that_mixes_up_requests_is_rejected(folder: Path, double: ServedDouble) -> None:
    right, waiting = double.answer, threading.Condition()
    queue: list[tuple[Arrays, list[Arrays]]] = []

    def mixed(feed: Arrays) -> Arrays:
        """Wait a moment for another request of the same shape, and swap the replies."""
        mine: list[Arrays] = []
        with waiting:
            shape = feed["x"].shape
            other = next((o for o in queue if o[0]["x"].shape == shape and not o[1]), None)
            if other is not None:
                other[1].append(right(feed))
                waiting.notify_all()
                return right(other[0])
            queue.append((feed, mine))
            waiting.wait_for(lambda: bool(mine), timeout=0.02)
            queue.remove(next(one for one in queue if one[1] is mine))
        return mine[0] if mine else right(feed)

    double.answer = mixed
    assert reason_codes(judge(folder, double)) == [ReasonCode.CONCURRENT_REQUESTS]


def test_a_server_that_goes_down_gives_no_verdict_on_values(
    folder: Path, double: ServedDouble
) -> None:
    def vanish(request: Any) -> None:
        request.close_connection = True

    double.misbehave = vanish
    verdict = judge(folder, double)
    assert verdict.state is State.ERROR
    assert verdict.outputs == ()


def test_a_server_that_is_down_records_nothing(folder: Path) -> None:
    with pytest.raises(RunnerError) as caught:
        validate_served(folder, ServedRequest(url="http://127.0.0.1:1"))
    assert caught.value.code is ErrorCode.SERVER_UNREACHABLE
    assert recorded(folder).external == ()


def test_credentials_are_never_recorded(folder: Path, double: ServedDouble) -> None:
    double.token = "Bearer planted-secret"

    def tell(feed: Arrays) -> Arrays:
        raise ValueError(f"bad {double.token} {sorted(feed)}")

    headers = (f"Authorization: {double.token}",)
    assert judge(folder, double, headers=headers).passed
    double.answer = tell
    assert judge(folder, double, headers=headers).state is State.ERROR
    for path in folder.rglob("*"):
        assert not path.is_file() or b"planted-secret" not in path.read_bytes(), path


def found_model(platform: str = "", **parameters: str) -> FoundModel:
    config = V2Config(parameters=parameters)
    model = V2Model(
        name="net", versions=(), platform=platform, inputs=(), outputs=(), config=config
    )
    return FoundModel(
        name="net", server=V2Server(name="double", version="9"), model=model, version=""
    )


@pytest.mark.parametrize(("platform", "artifact"), [
    ("onnxruntime_onnx", "onnx"), ("pytorch_libtorch", "torchscript"), ("ONNX", "onnx"),
])  # fmt: skip
def test_the_platform_chooses_the_artifact(folder: Path, platform: str, artifact: str) -> None:
    assert choose_artifact(recorded(folder), found_model(platform)) == artifact


def test_a_digest_in_the_configuration_chooses_the_artifact(folder: Path) -> None:
    manifest = recorded(folder)
    digest = manifest.artifacts[0].files[0].sha256
    found = found_model("onnxruntime_onnx", modelc_sha256=digest)
    assert choose_artifact(manifest, found) == "torchscript"


@pytest.mark.parametrize(("version", "artifact"), [("1", "torchscript"), ("2", "onnx")])
def test_the_digest_of_the_asked_version_chooses(folder: Path, version: str, artifact: str) -> None:
    manifest = recorded(folder)
    digests = {
        f"modelc_sha256_{number}": one.files[0].sha256
        for number, one in enumerate(manifest.artifacts, 1)
    }
    found = replace(found_model("unknown", **digests), version=version)
    assert choose_artifact(manifest, found) == artifact


def test_all_requests_are_for_the_version_that_was_there_first(
    folder: Path, double: ServedDouble
) -> None:
    right = double.answer

    def load_another(feed: Arrays) -> Arrays:
        double.versions = ("1", "2")
        return right(feed)

    double.answer = load_another
    assert judge(folder, double).passed
    paths = {path for path, _ in double.seen if path.endswith("infer")}
    assert paths == {"/v2/models/net/versions/1/infer"}
    assert recorded(folder).external[0].versions["version"] == "1"


def test_several_artifacts_need_a_name(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        choose_artifact(recorded(folder), found_model("unknown"))
    assert caught.value.option == "artifact"


def test_without_a_passed_artifact_there_is_nothing_to_judge(folder: Path) -> None:
    with pytest.raises(UsageError):
        choose_artifact(replace(recorded(folder), verdicts=()), found_model())


def test_an_unknown_artifact_is_named_before_the_server_is_asked(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        validate_served(folder, ServedRequest(url="http://127.0.0.1:1", artifact="onxx"))
    assert caught.value.code is ErrorCode.UNKNOWN_NAME
