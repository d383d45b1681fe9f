"""The report of a GPU host: what is in it, and what must not be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelc.core.contract import Target
from modelc.core.errors import ConversionError, ErrorCode, UsageError
from modelc.core.installation import Diagnosis
from modelc.core.manifest import Manifest
from modelc.pipeline.finish_pending import finish_pending
from modelc.pipeline.gpu_report import VARIABLES, encode_report, make_gpu_report, mask
from modelc.pipeline.manifest_file import write_manifest
from modelc.pipeline.recorded_run import FinishRequest
from modelc.pipeline.run_order import run

from .test_doctor import DRIVER, H200, NONE, around
from .test_pending import Orders, engine, table

EMPTY = Diagnosis(checks=(), targets=())


def report(folder: Path | None = None, driver: Any = DRIVER, **variables: str) -> dict[str, Any]:
    found = make_gpu_report(around(driver=driver).host, EMPTY, folder, variables)
    decoded: dict[str, Any] = json.loads(encode_report(found))
    return decoded


def test_it_names_driver_gpus_and_packages() -> None:
    found = report()
    assert found["cuda"] == "13.1"
    assert [one["name"] for one in found["devices"]] == [H200.name]
    assert found["packages"]["torch"] == "2.13.0"
    assert "pillow" not in found["packages"]
    assert found["contains"]


def test_a_host_without_a_gpu_has_one_too() -> None:
    found = report(driver=NONE)
    assert found["devices"] == []
    assert found["no_devices"] == NONE.reason


def test_only_listed_variables_are_in_it() -> None:
    found = report(CUDA_VISIBLE_DEVICES="0", HF_TOKEN="hf_abcdefgh1234", AWS_SECRET_KEY="x")
    assert found["environment"] == {"CUDA_VISIBLE_DEVICES": "0"}
    assert "hf_abcdefgh1234" not in json.dumps(found)
    assert not [name for name in VARIABLES if "TOKEN" in name or "KEY" in name]


@pytest.mark.parametrize(
    "text",
    [
        "https://me:s3cret@host/simple", "token=s3cret", "api_key: s3cret", "PASSWORD=s3cret",
        "hf_s3cretS3CRETs3cret", 'HF_TOKEN="s3cret"',
    ],
)  # fmt: skip
def test_secrets_are_masked(text: str) -> None:
    assert "s3cret" not in mask(text)


def test_the_home_folder_is_masked() -> None:
    assert mask(f"{Path.home()}/nets/net.py:3") == f"~{os.sep}nets/net.py:3"


def test_a_failed_step_is_reported_with_its_log(
    order: Orders, fake: Callable[..., Target], tmp_path: Path
) -> None:
    run(order("engine"), targets=table(fake, ready=False))

    def breaks(_: object) -> None:
        raise ConversionError("no memory", hint="free some")

    finish_pending(
        FinishRequest(out=tmp_path / "out"),
        targets=(fake(), engine(ready=True, on_convert=breaks)),
    )
    lines = [f"line {number}" for number in range(999)]
    (tmp_path / "out" / "logs" / "engine.log").write_text("\n".join(lines))
    found = report(tmp_path / "out")["folder"]
    assert [one["message"] for one in found["failures"]] == ["no memory"]
    assert [one["step"] for one in found["pending"]] == ["engine"]
    assert found["logs"]["engine.log"][-1] == "line 998"
    assert len(found["logs"]["engine.log"]) < len(lines)
    assert found["missing"] == []
    (step,) = found["steps"]
    assert step["verdict"]["state"] == "passed"
    assert step["outputs"]
    assert step["verdict"]["histograms"] == []


def test_sidecars_of_engines_are_in_it(exported_digits: Path, tmp_path: Path) -> None:
    out = shutil.copytree(exported_digits, tmp_path / "out")
    manifest = _with_file(out, "model.engine.json", b'{"gpu": "H200"}')
    write_manifest(manifest, out)
    (out / "other.engine.json").write_text("{}")
    assert report(out)["folder"]["sidecars"] == {"model.engine.json": {"gpu": "H200"}}
    (out / "model.engine.json").write_bytes(b"\xff")
    assert isinstance(report(out)["folder"]["sidecars"]["model.engine.json"], str)
    (out / "model.engine.json").unlink()
    assert report(out)["folder"]["missing"] == ["model.engine.json"]


def _with_file(out: Path, name: str, content: bytes) -> Manifest:
    from modelc.core.records import record_of
    from modelc.pipeline.recorded_run import load_manifest

    (out / name).write_bytes(content)
    manifest = load_manifest(out)
    first, *others = manifest.artifacts
    files = (*first.files, record_of(out / name, role="config"))
    return replace(manifest, artifacts=(replace(first, files=files), *others))


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        report(tmp_path)
    assert caught.value.code is ErrorCode.NO_MANIFEST
