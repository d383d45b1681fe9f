"""Artifacts are judged as NVIDIA's tritonserver serves them; `make test-serve` runs this."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from modelc.benchmarks.served_nets import build_halves, build_twin
from modelc.benchmarks.served_repository import (
    GOOD,
    ServedCase,
    export_folders,
    plant_faults,
    write_repository,
)
from modelc.benchmarks.triton_server import TritonHost, host_environment, run_triton
from modelc.core.errors import ErrorCode, RunnerError, UsageError
from modelc.core.kinds import ReasonCode
from modelc.core.verdict import Verdict
from modelc.pipeline.validate_served import ServedRequest, validate_served
from modelc.runtimes.v2_client import open_client, parse_address
from modelc.runtimes.v2_tensors import SentTensor
from modelc.serving.ensembles import EnsembleSpec, EnsembleStep
from modelc.serving.pack_models import PackRequest, check_repository, pack_models
from modelc.serving.pick_artifacts import ArtifactChoice, ModelFolder
from modelc.serving.repository_kinds import TRITON
from modelc.serving.repository_records import FaultCode
from modelc.serving.triton_schema import read_config, write_config

from ..reasons import reason_codes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        host_environment() is None, reason="tritonserver is not installed: make test-serve"
    ),
]
pytest.importorskip("grpc")
_LOADING = 60.0  # seconds that the models may take


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server with good models and faults, and the folders that they come from."""

    host: TritonHost
    work: Path

    def judge(self, case: ServedCase, protocol: str = "grpc", version: str = "") -> Verdict:
        url = self.host.grpc if protocol == "grpc" else self.host.http
        asked = ServedRequest(url=url, model=case.model, version=version, artifact=case.artifact)
        return validate_served(self.work / case.folder, asked).judged[0].verdict


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("served")
    export_folders(work)
    write_repository(work, work / "repository")
    plant_faults(work, work / "repository")
    packed = _pack_chain(work)
    more = f"--model-repository={packed}"
    with run_triton(work / "repository", work / "server", more, ready=False) as host:
        found = Served(host=host, work=work)
        _wait_for_models(found)
        yield found


def _pack_chain(work: Path) -> Path:
    """Pack two nets and an ensemble of them; then add one with exchanged maps, by hand."""
    steps = (
        EnsembleStep(model="halves", inputs={"x": "x"}, outputs={"output.0": "a", "output.1": "b"}),
        EnsembleStep(model="twin", inputs={"left": "a", "right": "b"}, outputs={"output.0": "y"}),
    )
    request = PackRequest(
        folders=tuple(ModelFolder(name=name, folder=work / name) for name in ("halves", "twin")),
        repository=work / "packed", kind=TRITON, choice=ArtifactChoice(only=("onnx",)),
        ensembles=(EnsembleSpec(name="chain", steps=steps),),
    )  # fmt: skip
    pack_models(request)
    place = shutil.copytree(work / "packed/chain", work / "packed/exchanged")
    config, _ = read_config((place / "config.pbtxt").read_bytes(), "config.pbtxt")
    config.name = "exchanged"
    config.ensemble_scheduling.step[1].input_map.update({"left": "b", "right": "a"})
    (place / "config.pbtxt").write_bytes(write_config(config))
    return work / "packed"


def _wait_for_models(served: Served) -> None:
    from modelc.runtimes.served_runtime import find_model

    end = time.monotonic() + _LOADING
    for name in (*(case.model for case in GOOD), "chain", "exchanged"):
        while time.monotonic() < end:
            try:
                find_model(parse_address(served.host.http), name)
                break
            except (RunnerError, UsageError):
                time.sleep(0.2)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(("model", "right"), [("chain", True), ("exchanged", False)])
def test_an_ensemble_gives_what_the_nets_give_one_after_another(
    served: Served, model: str, protocol: str, *, right: bool
) -> None:
    address = parse_address(served.host.grpc if protocol == "grpc" else served.host.http)
    client = open_client(address)
    for rows in (1, 3, 8):
        x = torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows))
        with torch.inference_mode():
            expected, _ = build_twin()(*build_halves()(x))
        sent = SentTensor(name="x", datatype="FP32", array=x.numpy())
        found = torch.from_numpy(client.infer(model, "", [sent])["y"])
        assert torch.allclose(found, expected, atol=1e-5) is right
    client.close()


def test_exchanged_maps_of_an_ensemble_are_found_without_the_server(served: Served) -> None:
    found = check_repository(served.work / "packed")
    assert [(one.code, one.model) for one in found.faults] == [(FaultCode.ENSEMBLE, "exchanged")]
    assert "left" in found.faults[0].message


def fault(name: str) -> ServedCase:
    return ServedCase(model=name, folder="twin", artifact="onnx")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.model)
def test_what_the_server_returns_passes(served: Served, case: ServedCase, protocol: str) -> None:
    assert served.judge(case, protocol).passed


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("swapped-inputs", ReasonCode.OUTPUT_DIFFERS),
        ("wrong-input-dims", ReasonCode.DECLARED_FORM),
        ("wrong-output-dims", ReasonCode.DECLARED_FORM),
        ("wrong-dtype", ReasonCode.DECLARED_FORM),
        ("missing-output", ReasonCode.DECLARED_FORM),
        ("smaller-batch", ReasonCode.DECLARED_DOMAIN),
        ("other-version", ReasonCode.OUTPUT_DIFFERS),
        ("mixed-replies", ReasonCode.CONCURRENT_REQUESTS),
    ],
)
def test_a_planted_fault_is_found(served: Served, name: str, code: ReasonCode) -> None:
    assert code in reason_codes(served.judge(fault(name)))


def test_a_version_that_the_server_does_not_load_is_unknown(served: Served) -> None:
    with pytest.raises((UsageError, RunnerError)):
        served.judge(fault("other-version"), version="1")  # Triton loads the newest alone


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_model_that_did_not_load_is_not_ready(served: Served, protocol: str) -> None:
    with pytest.raises(RunnerError) as caught:
        served.judge(fault("damaged-file"), protocol)
    assert caught.value.code is ErrorCode.SERVER_REJECTED


def test_artifacts_of_one_format_need_a_name(served: Served) -> None:
    asked = ServedRequest(url=served.host.grpc, model="digits-onnx")
    with pytest.raises(UsageError) as caught:
        validate_served(served.work / "digits", asked)
    assert caught.value.option == "artifact"


def test_the_backend_names_the_artifact(served: Served) -> None:
    asked = ServedRequest(url=served.host.grpc, model="twin-torchscript")
    report = validate_served(served.work / "twin", asked)
    assert [one.verdict.artifact for one in report.judged] == ["torchscript"]
    assert report.judged[0].versions["server"] == "triton 2.51.0"
