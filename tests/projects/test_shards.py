"""Each model is in one part, all hosts agree on which, and parts of one run alone are merged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.cache.remote_files import open_remote_files
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.projects.merge_runs import (
    check_parts,
    find_parts,
    find_published_parts,
    merge_records,
    place_models,
    publish_part,
    withdraw_part,
)
from modelc.projects.model_orders import plan_project
from modelc.projects.run_record import (
    ArtifactRun,
    ModelRun,
    RunRecord,
    clear_record,
    write_record,
)
from modelc.projects.setting_layers import Overrides
from modelc.projects.shards import (
    Shard,
    ShardRun,
    check_run_id,
    digest_project,
    find_shard_files,
    parse_shard,
    select_shard,
)
from modelc.reports.result_rows import Outcome

from ..reasons import has_code

NAMES = ("a", "b", "c")
Write = Callable[..., Path]


def record(index: int, count: int = 2, **changes: object) -> RunRecord:
    """The record of a part that ran the models of its turn."""
    part = ShardRun(index=index, count=count, project="p", models=NAMES, run="")
    part = replace(part, **{k: v for k, v in changes.items() if k in ("project", "run")})  # type: ignore[arg-type]
    models = tuple(
        ModelRun(name=name, folder=f"out/{name}", state=Outcome.FAILED, exit_code=5, seconds=1.0)
        for number, name in enumerate(NAMES)
        if number % count == index - 1
    )
    more = {k: v for k, v in changes.items() if k not in ("project", "run")}
    made = RunRecord(modelc="1", exit_code=5, seconds=float(index), models=models, shard=part)
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write("folder", record)`: the folder of a part."""

    def put(folder: str, one: RunRecord) -> Path:
        write_record(one, tmp_path / folder)
        return tmp_path / folder

    return put


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/", "a/b", "1/2/3", "-1/2", "1/0"])
def test_a_part_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, option="shard")):
        parse_shard(text)


@pytest.mark.parametrize("text", ["../x", "a/b", ".x", "a b", "x" * 101])
def test_a_name_of_a_run_that_is_no_folder_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, option="run-id")):
        check_run_id(text)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_every_model_is_in_one_part_and_the_parts_are_even(tmp_path: Path, count: int) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(1, np.float32)}, tmp_path / "w.safetensors")
    to = ('["onnx", "openvino"]', '"onnx"', '"onnx"')
    text = "".join(
        f'[models.m{n:02}]\ncheckpoint = "w.safetensors"\nmodel = "a:b"\n'
        f'input = "x:float32[2]"\nto = {to[n % 3]}\n'
        for n in range(30)
    )
    (tmp_path / "modelc.toml").write_text(text)
    models = plan_project(tmp_path / "modelc.toml").models
    parts = [select_shard(models, Shard(index=i + 1, count=count)) for i in range(count)]
    names = [model.name for part in parts for model in part]
    assert sorted(names) == [model.name for model in models]
    loads = [sum(len(model.plan) for model in part) for part in parts]
    assert max(loads) - min(loads) <= 2
    shuffled = select_shard(models[::-1], Shard(index=1, count=count))
    assert {one.name for one in shuffled} == {one.name for one in parts[0]}


def test_the_digest_is_of_what_has_to_agree(tmp_path: Path) -> None:
    file = tmp_path / "modelc.toml"
    file.write_text("jobs = 2\n")

    def digest(*sets: str, names: tuple[str, ...] = (), **variables: str) -> str:
        return digest_project(file, Overrides(sets=sets, environment=variables), (names, ()))

    usual = digest()
    assert digest("jobs=4", MODELC_OUT="elsewhere", MODELC_ISOLATE="0", HOME="/x") == digest(
        HOME="/x"
    )
    assert digest("jobs=4", MODELC_CACHE_DIR="/c") == usual
    others = [digest("seed=3"), digest(MODELC_SEED="3"), digest(names=("a",))]
    file.write_bytes(b"jobs = 2\r\n")
    assert digest() == usual
    file.write_text("jobs = 3\n")
    assert len({usual, *others, digest()}) == 5


def test_parts_are_merged_in_the_order_of_the_project(write: Write, tmp_path: Path) -> None:
    folders = [write("y", record(2)), write("x", record(1))]
    parts = find_parts(folders)
    check_parts(parts)
    whole = merge_records(parts, tmp_path / "out")
    assert [one.name for one in whole.models] == list(NAMES)
    assert (whole.exit_code, whole.seconds, whole.shard) == (5, 2.0, None)
    assert whole.models[0].folder == str(tmp_path / "out" / "a")


def test_a_rejected_artifact_of_any_part_is_the_exit_code(write: Write, tmp_path: Path) -> None:
    folders = [write("x", record(1, exit_code=4)), write("y", record(2, exit_code=1))]
    assert merge_records(find_parts(folders), tmp_path).exit_code == 1


def test_parts_that_share_a_folder_are_found_there(write: Write) -> None:
    write("x", record(1))
    check_parts(find_parts([write("x", record(2))]))


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (record(1), ErrorCode.SHARD_DUPLICATE),
        (record(2, 3), ErrorCode.SHARD_MISMATCH),
        (record(2, project="q"), ErrorCode.SHARD_MISMATCH),
        (record(2, run="yesterday"), ErrorCode.SHARD_MISMATCH),
        (record(2, modelc="2"), ErrorCode.SHARD_MISMATCH),
        (record(2, models=record(1).models), ErrorCode.SHARD_MISMATCH),
        (record(2, models=()), ErrorCode.SHARD_MISMATCH),
    ],
    ids=["twice", "count", "project", "run", "version", "model-twice", "model-missing"],
)
def test_parts_that_are_not_one_run_are_refused(
    write: Write, other: RunRecord, code: ErrorCode
) -> None:
    parts = find_parts([write("x", record(1)), write("y", other)])
    with pytest.raises(UsageError, check=has_code(code)):
        check_parts(parts)


def test_a_missing_part_is_named(write: Write) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.SHARD_MISSING, naming="2/2")):
        check_parts(find_parts([write("x", record(1))]))


def test_a_changed_record_is_refused(write: Write) -> None:
    folder = write("x", record(1))
    path = folder / "run-1-of-2.json"
    path.write_text(path.read_text().replace('"exit_code": 5', '"exit_code": 0'))
    with pytest.raises(UsageError, check=has_code(ErrorCode.CORRUPT_FILE)):
        find_parts([folder])


def test_a_new_run_removes_records_of_other_splits_and_its_own(write: Write) -> None:
    folder = write("x", record(1))
    for one in (record(2), record(1, 3)):
        write("x", one)
    clear_record(folder, Shard(index=1, count=2))
    assert [str(one) for one in find_shard_files(folder).values()] == ["2/2"]
    clear_record(folder)
    assert not find_shard_files(folder)


def test_a_published_part_brings_its_folders_along(write: Write, tmp_path: Path) -> None:
    files = open_remote_files(f"file://{tmp_path}/far")
    for index in (1, 2):
        one = record(index, run="r")
        folder = write(f"host{index}", one)
        for model in one.models:
            (folder / model.name / "logs").mkdir(parents=True)
            (folder / model.name / "logs" / "x.log").write_text(model.name)
        publish_part(one, folder, files)
    parts = find_published_parts("r", files)
    check_parts(parts, "r")
    place_models(parts, tmp_path / "all")
    found = [(tmp_path / "all" / name / "logs" / "x.log").read_text() for name in NAMES]
    assert found == list(NAMES)
    place_models(parts, tmp_path / "all")  # again: nothing to do
    (tmp_path / "all" / "a" / "logs" / "x.log").write_text("other")
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_EXISTS, option="out")):
        place_models(parts, tmp_path / "all")


def test_a_part_that_begins_again_withdraws_its_record(write: Write, tmp_path: Path) -> None:
    files = open_remote_files(f"file://{tmp_path}/far")
    one = record(1, run="r")
    assert one.shard is not None
    publish_part(one, write("x", one), files)
    withdraw_part("r", one.shard.shard, files)
    with pytest.raises(UsageError, check=has_code(ErrorCode.SHARD_MISSING, option="run-id")):
        check_parts(find_published_parts("r", files), "r")
    withdraw_part("r", one.shard.shard, files)  # there is none any more


@pytest.mark.parametrize(("index", "count"), [(0, 0), (3, 2), (-1, 1), (1, 10**9)])
def test_a_part_that_cannot_be_is_refused(
    write: Write, tmp_path: Path, index: int, count: int
) -> None:
    files = open_remote_files(f"file://{tmp_path}/far")
    one = record(1, run="r")
    assert one.shard is not None
    odd = replace(one, shard=replace(one.shard, index=index, count=count))
    publish_part(odd, write("x", one), files)
    with pytest.raises(UsageError, check=has_code(ErrorCode.CORRUPT_FILE)):
        find_published_parts("r", files)


def test_the_record_of_another_part_is_refused(write: Write, tmp_path: Path) -> None:
    files = open_remote_files(f"file://{tmp_path}/far")
    one = record(1, run="r")
    name = publish_part(one, write("x", one), files)
    files.write("runs/other/run-1-of-2.json", files.read(name) or b"")
    with pytest.raises(UsageError, check=has_code(ErrorCode.CORRUPT_FILE)):
        find_published_parts("other", files)


@pytest.mark.parametrize("torn", [lambda raw: raw[:-40], lambda raw: raw.replace(b'"b"', b'"c"')])
def test_a_torn_published_record_is_refused(
    write: Write, tmp_path: Path, torn: Callable[[bytes], bytes]
) -> None:
    files = open_remote_files(f"file://{tmp_path}/far")
    one = record(2, run="r")
    name = publish_part(one, write("x", one), files)
    raw = files.read(name)
    assert raw is not None
    files.write(name, torn(raw))
    with pytest.raises(UsageError, check=has_code(ErrorCode.CORRUPT_FILE)):
        find_published_parts("r", files)


def test_a_model_whose_passed_artifact_is_not_there_is_refused(
    write: Write, tmp_path: Path
) -> None:
    passed = ArtifactRun(name="onnx", state=Outcome.PASSED, source="made", digest="0" * 64)
    one = record(1)
    models = tuple(replace(model, artifacts=(passed,)) for model in one.models)
    parts = find_parts([write("x", replace(one, models=models)), write("y", record(2))])
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_CHANGED)):
        place_models(parts, tmp_path / "out")


@pytest.mark.parametrize("change", ["none", "damaged", "missing"])
def test_files_of_a_part_are_those_of_its_manifest(
    write: Write, tmp_path: Path, exported_digits: Path, change: str
) -> None:
    folders = [write("x", record(1)), write("y", record(2))]
    for model in record(1).models:
        shutil.copytree(exported_digits, tmp_path / "x" / model.name)
    file = tmp_path / "x" / record(1).models[0].name / "model.onnx"
    if change == "damaged":
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    if change == "missing":
        file.unlink()
    parts = find_parts(folders)
    if change == "none":
        place_models(parts, tmp_path / "out")
        return
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_CHANGED)):
        place_models(parts, tmp_path / "out")


@pytest.mark.parametrize("name", ["nets.py", "data.json"])
def test_parts_of_different_code_are_refused(
    write: Write, tmp_path: Path, exported_digits: Path, name: str
) -> None:
    """The code of a project is the same on all hosts; other files that it reads may not be."""
    manifest = read_manifest(exported_digits)
    assert manifest is not None
    made = tuple(
        ArtifactRun(name=one.name, state=Outcome.PASSED, source="made", digest=one.digest)
        for one in manifest.artifacts
        if one.name == "onnx"
    )
    folders = []
    for index in (1, 2):
        one = record(index)
        models = tuple(replace(model, artifacts=made) for model in one.models)
        folders.append(write(f"host{index}", replace(one, models=models)))
        for model in models:
            place = folders[-1] / model.name
            shutil.copytree(exported_digits, place)
            files = {**manifest.needs.files, name: f"{index}" * 64}
            write_manifest(replace(manifest, needs=replace(manifest.needs, files=files)), place)
    parts = find_parts(folders)
    if name == "data.json":
        place_models(parts, tmp_path / "out")
        return
    with pytest.raises(UsageError, check=has_code(ErrorCode.SHARD_MISMATCH)):
        place_models(parts, tmp_path / "out")


def test_the_record_of_a_whole_run_says_so(tmp_path: Path) -> None:
    write_record(replace(record(1), shard=None), tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["shard"] is None
