"""What a check of a Triton repository finds: a planted fault for each rule, and hostile folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.serving.pack_models import check_repository
from modelc.serving.repository_records import CheckedRepository, FaultCode, PackedVersion
from modelc.serving.triton_schema import write_config

from ..reasons import has_code
from .conftest import artifact_file, change_config, config_of, empty_config

ONNX, OPENVINO, SCRIPT = "detector-onnx", "detector-openvino", "detector-torchscript"


def codes(found: CheckedRepository) -> set[FaultCode]:
    return {fault.code for fault in found.faults}


def test_what_was_packed_is_sound(packed: Path) -> None:
    found = check_repository(packed)
    assert (found.faults, found.exit_code) == ((), 0)
    assert set(found.versions) == {f"{name}/1" for name in (ONNX, OPENVINO, SCRIPT)}


def _swap_names(config: Any) -> None:
    """Give each of the two inputs the name of the other."""
    first, second = config.input
    first.name, second.name = second.name, first.name


def _swap_order(config: Any) -> None:
    first, second = list(config.input)
    del config.input[:]
    config.input.extend([second, first])


def _shift_names(config: Any) -> None:
    """Give the first input the name of the second, and that another one."""
    first, second = config.input
    first.name, second.name = second.name, "other"


def _set(path: str, value: object) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        *parts, last = path.split(".")
        place = config
        for part in parts:
            place = place[int(part)] if part.isdecimal() else getattr(place, part)
        setattr(place, last, value)

    return change


def _set_dims(*dims: int) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        config.input[0].dims[:] = dims

    return change


PLANTED: list[tuple[str, Callable[[Any], None], FaultCode]] = [
    (ONNX, _swap_names, FaultCode.TENSOR_DIMS),
    (OPENVINO, _swap_names, FaultCode.TENSOR_DIMS),
    (SCRIPT, _swap_order, FaultCode.TENSOR_ORDER),
    (SCRIPT, _shift_names, FaultCode.TENSOR_ORDER),
    (ONNX, _set_dims(3, 64, 64), FaultCode.TENSOR_DIMS),
    (OPENVINO, _set_dims(3, 32), FaultCode.TENSOR_DIMS),
    (SCRIPT, _set_dims(3, 64, 64), FaultCode.TENSOR_DIMS),
    (ONNX, _set_dims(3, 0, 32), FaultCode.TENSOR_DIMS),
    (ONNX, _set_dims(), FaultCode.TENSOR_DIMS),
    (ONNX, _set("input.0.data_type", 10), FaultCode.TENSOR_DTYPE),
    (ONNX, _set("output.0.data_type", 0), FaultCode.TENSOR_DTYPE),
    (SCRIPT, _set("output.0.data_type", 12), FaultCode.TENSOR_DTYPE),
    (ONNX, _set("output.0.name", "logits"), FaultCode.TENSOR_NAME),
    (ONNX, _set("input.1.name", "meta"), FaultCode.TENSOR_NAME),
    (SCRIPT, lambda config: config.output.pop(), FaultCode.TENSOR_NAME),
    (ONNX, _set("max_batch_size", 0), FaultCode.TENSOR_DIMS),
    (ONNX, _set("max_batch_size", 64), FaultCode.BATCH),
    (ONNX, _set("max_batch_size", -1), FaultCode.BATCH),
    (ONNX, _set("name", "other"), FaultCode.NAME),
    (ONNX, _set("default_model_filename", "best.onnx"), FaultCode.MISSING_FILE),
    (ONNX, _set("default_model_filename", "../../../model.onnx"), FaultCode.UNSAFE_FILE),
    (ONNX, _set("output.0.label_filename", "names.txt"), FaultCode.MISSING_FILE),
    (ONNX, _set("input.0.optional", True), FaultCode.BATCH),
    (ONNX, _set("input.0.allow_ragged_batch", True), FaultCode.BATCH),
    (ONNX, _set("backend", "openvino"), FaultCode.BACKEND),
    (ONNX, lambda c: c.parameters["modelc_sha256_1"].Clear(), FaultCode.OTHER_FILE),
    (ONNX, lambda c: c.version_policy.specific.versions.append(7), FaultCode.VERSION_POLICY),
    (ONNX, lambda c: c.model_warmup[0].inputs.pop("inputs.meta"), FaultCode.WARMUP),
    (ONNX, lambda c: c.model_warmup[0].inputs["x"].dims.append(1), FaultCode.WARMUP),
]


@pytest.mark.parametrize(("model", "change", "code"), PLANTED)
def test_a_fault_in_a_config_is_found(
    repository: Path, model: str, change: Callable[[Any], None], code: FaultCode
) -> None:
    change_config(repository / model, change)
    found = check_repository(repository)
    assert code in codes(found)
    assert {fault.model for fault in found.faults} == {model}
    assert found.exit_code == 1


def test_another_versions_file_is_named(repository: Path, detector: Path) -> None:
    second = shutil.copytree(repository / ONNX / "1", repository / ONNX / "2")
    model = second / "model.onnx"
    model.write_bytes(artifact_file(detector, "onnx").read_bytes() + b"\0")
    (fault,) = check_repository(repository).faults
    assert (fault.code, fault.version, fault.place) == (FaultCode.OTHER_FILE, "2", "model.onnx")


def test_a_file_of_the_wrong_version_is_found(repository: Path) -> None:
    """The record of version 2 is right, its file is that of version 1."""
    import msgspec

    second = shutil.copytree(repository / ONNX / "1", repository / ONNX / "2")
    record = msgspec.json.decode((second / "modelc.json").read_bytes(), type=PackedVersion)
    other = msgspec.to_builtins(record)
    other["files"][0]["sha256"] = "0" * 64
    (second / "modelc.json").write_bytes(msgspec.json.encode(other))
    (fault,) = check_repository(repository).faults
    assert fault.code is FaultCode.OTHER_FILE
    assert "version 1" in fault.message


def test_a_copied_version_with_its_record_is_found(repository: Path) -> None:
    """The newest version is served: here the first one, or that of another model."""
    shutil.copytree(repository / ONNX / "1", repository / ONNX / "2")
    (fault,) = check_repository(repository).faults
    assert (fault.code, fault.version) == (FaultCode.OTHER_FILE, "2")
    assert "modelc_sha256_2" in fault.hint


def test_another_model_is_found_by_its_tensors_without_a_record(
    repository: Path, exported_digits: Path
) -> None:
    (repository / ONNX / "1" / "modelc.json").unlink()
    shutil.copy(artifact_file(exported_digits, "onnx"), repository / ONNX / "1" / "model.onnx")
    assert codes(check_repository(repository)) == {FaultCode.OTHER_FILE}
    change_config(repository / ONNX, lambda config: config.parameters.clear())
    assert FaultCode.TENSOR_NAME in codes(check_repository(repository))


@pytest.mark.parametrize(
    ("model", "name", "code"),
    [
        (ONNX, "1/model.onnx", FaultCode.MISSING_FILE),
        (OPENVINO, "1/model.bin", FaultCode.MISSING_FILE),
        (ONNX, "warmup/opt.0", FaultCode.MISSING_FILE),
    ],
)
def test_a_missing_file_is_found(repository: Path, model: str, name: str, code: FaultCode) -> None:
    (repository / model / name).unlink()
    assert codes(check_repository(repository)) == {code}


def test_warm_up_data_that_is_too_short_is_found(repository: Path) -> None:
    (repository / ONNX / "warmup" / "opt.0").write_bytes(b"\0" * 8)
    assert codes(check_repository(repository)) == {FaultCode.WARMUP}


def test_a_model_without_a_version_is_found(repository: Path) -> None:
    shutil.rmtree(repository / ONNX / "1")
    assert codes(check_repository(repository)) == {FaultCode.NO_VERSION}


def test_an_unknown_field_is_found(repository: Path) -> None:
    path = repository / ONNX / "config.pbtxt"
    path.write_text(path.read_text() + "max_batchsize: 3\n")
    assert codes(check_repository(repository)) == {FaultCode.UNKNOWN_FIELD}


def _make_ensemble(repository: Path, change: Callable[[Any], object]) -> None:
    own = config_of(repository / ONNX)
    config = empty_config()
    config.name, config.platform, config.max_batch_size = "look", "ensemble", 4
    config.input.extend(own.input)
    config.output.add(name="scores", data_type=own.output[0].data_type, dims=own.output[0].dims)
    step = config.ensemble_scheduling.step.add(model_name=ONNX, model_version=-1)
    step.input_map.update({one.name: one.name for one in own.input})
    step.output_map.update({own.output[0].name: "scores"})
    change(config)
    (repository / "look" / "1").mkdir(parents=True)
    (repository / "look" / "config.pbtxt").write_bytes(write_config(config))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: setattr(c.ensemble_scheduling.step[0], "model_name", "missing"),
        lambda c: c.ensemble_scheduling.step[0].input_map.pop("inputs.meta"),
        lambda c: c.ensemble_scheduling.step[0].input_map.update({"inputs.meta": "inputs.image"}),
        lambda c: c.ensemble_scheduling.step[0].input_map.update({"unknown": "inputs.image"}),
        lambda c: c.ensemble_scheduling.step[0].output_map.update({"unknown": "scores2"}),
        lambda c: setattr(c.output[0], "name", "logits"),
        lambda c: setattr(c.output[0], "data_type", 12),
        lambda c: c.input.pop(),
        lambda c: setattr(c.ensemble_scheduling.step[0], "model_version", 7),
    ],
)
def test_a_fault_in_an_ensemble_is_found(repository: Path, change: Callable[[Any], object]) -> None:
    _make_ensemble(repository, change)
    found = check_repository(repository)
    assert codes(found) == {FaultCode.ENSEMBLE}
    assert {fault.model for fault in found.faults} <= {"look"}


def test_exchanged_maps_of_an_ensemble_are_found(repository: Path) -> None:
    """By its record, as is a step that is held at a version; without one, they are shown."""
    names = [one.name for one in config_of(repository / ONNX).input]
    _make_ensemble(repository, lambda _: None)
    step = {"model": ONNX, "inputs": {n: n for n in names}, "outputs": {}}
    config = config_of(repository / "look").ensemble_scheduling.step[0]
    step["outputs"] = dict(config.output_map)
    record = repository / "look" / "1" / "ensemble.json"
    record.write_bytes(msgspec.json.encode({"ensemble": "look", "steps": [step]}))
    assert check_repository(repository).faults == ()
    path = repository / "look"
    change_config(path, _set("ensemble_scheduling.step.0.model_version", 1))
    assert codes(check_repository(repository)) == {FaultCode.ENSEMBLE}
    change_config(path, _set("ensemble_scheduling.step.0.model_version", -1))
    step["inputs"] = dict(zip(names, reversed(names), strict=True))
    record.write_bytes(msgspec.json.encode({"ensemble": "look", "steps": [step]}))
    (fault,) = check_repository(repository).faults
    assert (fault.code, fault.model) == (FaultCode.ENSEMBLE, "look")


def test_a_sound_ensemble_has_no_fault(repository: Path) -> None:
    _make_ensemble(repository, lambda _: None)
    assert check_repository(repository).faults == ()


def test_a_program_without_a_record_is_opened_only_if_trusted(repository: Path) -> None:
    (repository / SCRIPT / "1" / "modelc.json").unlink()
    change_config(repository / SCRIPT, _swap_order)
    found = check_repository(repository)
    assert (found.faults, len(found.unchecked)) == ((), 1)
    assert FaultCode.TENSOR_ORDER in codes(check_repository(repository, trust=True))


@pytest.mark.parametrize("trust", [False, True])
def test_a_record_that_does_not_name_the_program_is_none(repository: Path, trust: bool) -> None:
    place = repository / SCRIPT / "1" / "modelc.json"
    record = msgspec.json.decode(place.read_bytes())
    place.write_bytes(msgspec.json.encode({**record, "files": []}))
    found = check_repository(repository, trust=trust)
    assert codes(found) == {FaultCode.OTHER_FILE}
    assert f"{SCRIPT}/1" not in found.versions


# Hostile folders: a fault, never a crash.


def _huge_config(repository: Path) -> None:
    with (repository / ONNX / "config.pbtxt").open("wb") as stream:
        stream.truncate(1 << 34)


def _binary_config(repository: Path) -> None:
    (repository / ONNX / "config.pbtxt").write_bytes(os.urandom(4096))


def _nested_config(repository: Path) -> None:
    text = b"ensemble_scheduling {" * 100_000
    (repository / ONNX / "config.pbtxt").write_bytes(text[: 1 << 20])


def _linked_config(repository: Path) -> None:
    (repository / ONNX / "config.pbtxt").unlink()
    (repository / ONNX / "config.pbtxt").symlink_to("/etc/passwd")


def _linked_model(repository: Path) -> None:
    (repository / ONNX / "1" / "modelc.json").unlink()
    (repository / ONNX / "1" / "model.onnx").unlink()
    (repository / ONNX / "1" / "model.onnx").symlink_to("/dev/zero")


def _pipe(repository: Path) -> None:
    (repository / ONNX / "1" / "modelc.json").unlink()
    (repository / ONNX / "1" / "model.onnx").unlink()
    os.mkfifo(repository / ONNX / "1" / "model.onnx")


def _linked_folder(repository: Path) -> None:
    (repository / "outside").symlink_to("/usr")


def _loop(repository: Path) -> None:
    (repository / ONNX / "1" / "model.onnx").unlink()
    (repository / ONNX / "1" / "model.onnx").symlink_to("model.onnx")


def _nested_record(repository: Path) -> None:
    (repository / ONNX / "1" / "modelc.json").write_bytes(b"[" * 1_000_000)


def _escaping_record(repository: Path) -> None:
    path = repository / ONNX / "1" / "modelc.json"
    path.write_text(path.read_text().replace('"model.onnx"', '"../../../../etc/passwd"'))


def _garbage_model(repository: Path) -> None:
    (repository / ONNX / "1" / "modelc.json").unlink()
    change_config(repository / ONNX, lambda config: config.parameters.clear())
    (repository / ONNX / "1" / "model.onnx").write_bytes(b"\xff" * 1000)


def _deep_folders(repository: Path) -> None:
    place = repository / ONNX
    for _ in range(200):
        place /= "1"
    place.mkdir(parents=True)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (_huge_config, FaultCode.UNSAFE_FILE),
        (_binary_config, FaultCode.CONFIG),
        (_nested_config, FaultCode.CONFIG),
        (_linked_config, FaultCode.UNSAFE_FILE),
        (_linked_model, FaultCode.UNSAFE_FILE),
        (_pipe, FaultCode.UNSAFE_FILE),
        (_linked_folder, FaultCode.UNSAFE_FILE),
        (_loop, FaultCode.MISSING_FILE),
        (_nested_record, FaultCode.CONFIG),
        (_escaping_record, FaultCode.UNSAFE_FILE),
        (_garbage_model, FaultCode.UNREADABLE),
        (_deep_folders, None),
    ],
)
def test_a_hostile_folder_is_a_fault_and_no_crash(
    repository: Path, spoil: Callable[[Path], None], code: FaultCode | None
) -> None:
    spoil(repository)
    assert codes(check_repository(repository)) == ({code} if code else set())


def test_a_folder_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND)):
        check_repository(tmp_path)
