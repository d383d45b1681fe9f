"""Repositories of Triton: what is packed, under which names, and as which version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import Capture
from modelc.core.records import record_of, sha256_of
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.projects.ensemble_tables import read_ensemble
from modelc.serving import version_folders
from modelc.serving.ensembles import EnsembleSpec, EnsembleStep
from modelc.serving.pack_models import check_repository
from modelc.serving.pick_artifacts import check_served_name
from modelc.serving.repository_kinds import KSERVE, MLFLOW, OVMS, TRITON
from modelc.serving.repository_records import PackReport, ServingOptions

from ..conftest import exported
from ..reasons import has_code
from .conftest import artifact_file, config_of

Pack = Callable[..., PackReport]
ONNX = "detector-onnx"
ONLY_ONNX = (Wanted.parse("onnx"),)


def test_names_dtypes_and_dims_are_those_of_the_artifact(packed: Path) -> None:
    config = config_of(packed / ONNX)
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 4)
    found = [(one.name, one.data_type, list(one.dims)) for one in (*config.input, *config.output)]
    assert found[:2] == [("inputs.image", 11, [3, 32, 32]), ("inputs.meta", 11, [6])]
    assert [name for name, _, _ in found[2:]] == [one["name"] for one in _record(packed)["outputs"]]


def test_a_number_per_row_is_reshaped(packed: Path) -> None:
    """Triton takes no tensor without dims: the energy of each row is `[1]`."""
    config = config_of(packed / ONNX)
    (energy,) = (one for one in config.output if "energy" in one.name)
    assert list(energy.dims) == [1]
    assert energy.HasField("reshape")
    assert list(energy.reshape.shape) == []


@pytest.mark.parametrize(
    ("model", "backend", "files"),
    [
        (ONNX, "onnxruntime", {"model.onnx"}),
        ("detector-openvino", "openvino", {"model.xml", "model.bin"}),
        ("detector-torchscript", "pytorch", {"model.pt"}),
    ],
)
def test_each_format_has_its_backend_and_files(
    packed: Path, model: str, backend: str, files: set[str]
) -> None:
    assert config_of(packed / model).backend == backend
    names = {path.name for path in (packed / model / "1").iterdir()}
    assert names == files | {"modelc.json"}


def test_warm_up_data_is_one_row_of_a_recorded_feed(packed: Path) -> None:
    config = config_of(packed / ONNX)
    one = config.model_warmup[0].inputs["inputs.image"]
    raw = (packed / ONNX / "warmup" / one.input_data_file).read_bytes()
    assert list(one.dims) == [3, 32, 32]
    assert np.frombuffer(raw, np.float32).size == 3 * 32 * 32


def test_digests_verdict_and_domain_are_beside_the_model(packed: Path, detector: Path) -> None:
    record = json.loads((packed / ONNX / "1" / "modelc.json").read_text())
    assert record["files"][0]["sha256"] == sha256_of(artifact_file(detector, "onnx"))
    assert record["verdict"]["state"] == "passed"
    assert record["domain"].startswith("inputs.image:float32[batch=1..4,3,32,32]")
    assert record["manifest"] == sha256_of(detector / "manifest.json")


def test_the_same_artifact_is_not_packed_twice(
    repository: Path, detector: Path, pack: Pack
) -> None:
    before = _contents(repository)
    report = pack(detector, repository)
    assert [(one.version, one.is_new) for one in report.models] == [(1, False)] * 3
    assert _contents(repository) == before


def test_another_artifact_of_the_same_interface_is_the_next_version(
    repository: Path, detector: Path, pack: Pack, tmp_path: Path
) -> None:
    """And no more of the repository is changed than its digest, nor what an operator tuned."""
    other = _with_other_bytes(detector, tmp_path)
    tuned = repository / ONNX / "config.pbtxt"
    text = tuned.read_text().replace("max_batch_size: 4", "max_batch_size: 2")
    tuned.write_text(text + 'parameters { key: "a" value { string_value: "b" } }\n')
    (repository / "theirs").mkdir()
    before = _contents(repository)
    report = pack(other, repository, name="detector")
    new = {one.name: one.version for one in report.models if one.is_new}
    assert new == {ONNX: 2}
    after = _contents(repository)
    config = config_of(repository / ONNX)
    records = [
        json.loads((repository / ONNX / number / "modelc.json").read_text()) for number in "12"
    ]
    for number, record in enumerate(records, 1):
        stated = config.parameters[f"modelc_sha256_{number}"].string_value
        assert stated == record["files"][0]["sha256"]
    changed = f"{ONNX}/config.pbtxt"
    assert after[changed].startswith(before.pop(changed).rstrip())
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[1] for name in after.keys() - {changed} - before.keys()} == {"2"}
    assert check_repository(repository).faults == ()


def test_a_model_of_another_interface_needs_another_name(
    repository: Path, exported_digits: Path, pack: Pack
) -> None:
    before = _contents(repository)
    with pytest.raises(UsageError, check=has_code(ErrorCode.FOLDER_OCCUPIED, option="name")):
        pack(exported_digits, repository, name=ONNX, only=("onnx",))
    assert _contents(repository) == before


def test_one_artifact_has_the_name_of_its_folder(
    detector: Path, pack: Pack, tmp_path: Path
) -> None:
    report = pack(detector, tmp_path / "repository", only=("onnx",))
    assert [one.name for one in report.models] == ["detector"]


def test_a_changed_file_is_refused(detector: Path, pack: Pack, tmp_path: Path) -> None:
    folder = shutil.copytree(detector, tmp_path / "detector")
    path = artifact_file(folder, "onnx")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_CHANGED)):
        pack(folder, tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_a_file_of_other_dims_is_refused_though_its_digest_is_right(
    detector: Path, pack: Pack, tmp_path: Path
) -> None:
    import onnx

    folder = shutil.copytree(detector, tmp_path / "detector")
    path = artifact_file(folder, "onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, path)
    _record_again(folder, path)
    with pytest.raises(UsageError):
        pack(folder, tmp_path / "repository", only=("onnx",))


def test_a_rejected_artifact_is_packed_only_if_allowed(
    gate_source: Source, pack: Pack, tmp_path: Path
) -> None:
    folder = tmp_path / "gate"
    run(Order(source=gate_source, wanted=ONLY_ONNX, out=folder, capture=Capture.TRACE))
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOTHING_TO_DO)):
        pack(folder, tmp_path / "repository")
    report = pack(folder, tmp_path / "repository", allow=("onnx",))
    record = json.loads((tmp_path / "repository" / "gate" / "1" / "modelc.json").read_text())
    assert record["allowed"] is True
    assert record["verdict"]["state"] != "passed"
    assert len(report.models) == 1
    _pass(folder)
    report = pack(folder, tmp_path / "repository")
    record = json.loads((tmp_path / "repository" / "gate" / "2" / "modelc.json").read_text())
    assert (record["allowed"], record["verdict"]["state"]) == (False, "passed")


def _pass(folder: Path) -> None:
    """Record that the artifact passed, as when it is judged again by other limits."""
    manifest = read_manifest(folder)
    assert manifest is not None
    artifacts = tuple(replace(one, name=one.step, rejected=False) for one in manifest.artifacts)
    verdicts = tuple(
        replace(one, artifact=artifacts[0].name, state=State.PASSED, reasons=())
        for one in manifest.verdicts
    )
    write_manifest(replace(manifest, artifacts=artifacts, verdicts=verdicts), folder)


def test_an_unknown_name_to_allow_is_refused(detector: Path, pack: Pack, tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="onyx")):
        pack(detector, tmp_path / "repository", allow=("onyx",))


def test_a_model_whose_rows_depend_on_each_other_has_no_batch(
    gate_source: Source, pack: Pack, tmp_path: Path
) -> None:
    """Joined requests would take the branch of their common mean."""
    exported(gate_source, tmp_path / "gate", Wanted.parse("torchscript"))
    pack(tmp_path / "gate", tmp_path / "repository")
    config = config_of(tmp_path / "repository" / "gate")
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == [-1, 16]


def test_options_are_in_the_config(detector: Path, pack: Pack, tmp_path: Path) -> None:
    options = ServingOptions(gpu=True, instances=3, keep=2)
    pack(detector, tmp_path / "repository", only=("onnx",), options=options)
    config = config_of(tmp_path / "repository" / "detector")
    group = config.instance_group[0]
    assert (group.kind, group.count) == (group.KIND_GPU, 3)
    assert config.version_policy.latest.num_versions == 2


def test_nothing_is_left_where_the_disk_fails(
    repository: Path, detector: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three models cannot be moved: the first is removed again."""
    before = _contents(repository)
    moved: list[str] = []
    move = version_folders._move_model

    def fail(place: Path, staging: Path, model: Any) -> Path:
        moved.append(model.name)
        if len(moved) == 2:
            raise OSError(28, "No space left on device", str(place))
        return move(place, staging, model)

    monkeypatch.setattr(version_folders, "_move_model", fail)
    with pytest.raises(OSError, match="No space"):
        pack(detector, repository, name="other")
    assert moved == ["other-torchscript", "other-onnx"]
    assert _contents(repository) == before


def test_a_link_in_place_of_a_model_is_not_written_through(
    detector: Path, pack: Pack, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "detector").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSAFE_PATH)):
        pack(detector, tmp_path / "repository", only=("onnx",))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_server_never_sees_a_folder_that_is_being_written(
    detector: Path, pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton takes every folder for a model, and does not start with half of one."""
    repository = tmp_path / "repository"
    seen: set[str] = set()
    move = version_folders._move_model

    def look(*given: Any) -> Path:
        seen.update(path.name for path in repository.iterdir() if path.is_dir())
        return move(*given)

    left = tmp_path / ".repository.modelc-pack-999999999-ab" / "half"
    left.mkdir(parents=True)  # of a call that was killed
    monkeypatch.setattr(version_folders, "_move_model", look)
    pack(detector, repository, only=("onnx", "openvino"))
    assert seen == {ONNX}  # moved before the second
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_each_name_of_an_artifact_must_be_known(detector: Path, pack: Pack, tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME)) as caught:
        pack(detector, tmp_path / "repository", only=("onnx", "opnvino"))
    assert "'openvino'" in caught.value.hint


@pytest.mark.parametrize("name", ["CON", "nul", "com1.net", "config.json", "MLmodel", "net."])
def test_a_name_that_is_no_folder_everywhere_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, option="name")):
        check_served_name(name)
    step = {"model": "a", "inputs": {"x": "x"}, "outputs": {"y": "y"}}
    with pytest.raises(UsageError):
        read_ensemble(name, {"steps": [step]})


def _ensemble(outputs: dict[str, str], inputs: dict[str, str]) -> EnsembleSpec:
    step = EnsembleStep(model="detector", inputs=inputs, outputs=outputs)
    return EnsembleSpec(name="look", steps=(step,))


def test_an_ensemble_takes_dtypes_and_dims_from_its_models(
    detector: Path, pack: Pack, tmp_path: Path, packed: Path
) -> None:
    scores = _record(packed)["outputs"][0]["name"]
    spec = _ensemble({scores: "scores"}, {"inputs.image": "picture", "inputs.meta": "numbers"})
    pack(detector, tmp_path / "repository", only=("onnx",), ensembles=(spec,))
    config = config_of(tmp_path / "repository" / "look")
    assert config.platform == "ensemble"
    assert config.max_batch_size == 4
    assert [(one.name, list(one.dims)) for one in config.input] == [
        ("picture", [3, 32, 32]), ("numbers", [6]),
    ]  # fmt: skip
    assert check_repository(tmp_path / "repository").faults == ()


def test_an_ensemble_that_does_not_feed_an_input_is_refused(
    detector: Path, pack: Pack, tmp_path: Path, packed: Path
) -> None:
    scores = _record(packed)["outputs"][0]["name"]
    spec = _ensemble({scores: "scores"}, {"inputs.image": "picture"})
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming="inputs.meta")):
        pack(detector, tmp_path / "repository", only=("onnx",), ensembles=(spec,))


def test_kinds_have_their_own_names() -> None:
    names = [kind.name for kind in (TRITON, OVMS, KSERVE, MLFLOW)]
    assert names == ["triton", "ovms", "kserve", "mlflow"]


def _record(repository: Path) -> Any:
    return json.loads((repository / ONNX / "1" / "modelc.json").read_text())["interface"]


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _with_other_bytes(folder: Path, place: Path) -> Path:
    """A copy whose ONNX has other bytes of the same meaning, recorded as such."""
    import onnx

    copy = shutil.copytree(folder, place / "again")
    path = artifact_file(copy, "onnx")
    model = onnx.load(path)
    model.doc_string = "again"
    onnx.save(model, path)
    _record_again(copy, path)
    return copy


def _record_again(folder: Path, path: Path) -> None:
    """Record the current bytes of a file in the manifest."""
    manifest = read_manifest(folder)
    assert manifest is not None
    artifacts = tuple(
        replace(
            one,
            files=tuple(
                record_of(path, role=file.role) if file.name == path.name else file
                for file in one.files
            ),
        )
        for one in manifest.artifacts
    )
    write_manifest(replace(manifest, artifacts=artifacts), folder)
