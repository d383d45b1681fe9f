"""`modelc run --shard`, `merge` and `finish`, as typed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.cli.app import run_cli
from modelc.pipeline.cache.remote_files import open_remote_files
from modelc.pipeline.order import Source
from modelc.projects.merge_runs import publish_part
from modelc.projects.run_record import RunRecord, write_record
from modelc.projects.shards import ShardRun

MODEL = """\
[models.{name}]
checkpoint = "{name}.safetensors"
model = "modelc.sample_models.gate:gate"
input = "x:float32[batch=1..4,16]"
to = "torchscript"
"""


@pytest.fixture
def place(tmp_path: Path, gate_source: Source, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two models in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        shutil.copy(gate_source.checkpoint, f"{name}.safetensors")
    Path("modelc.toml").write_text("".join(MODEL.format(name=name) for name in ("one", "two")))
    return tmp_path


def errors(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(capsys.readouterr().out)["errors"]
    return found


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("run --shard 3/2", "shard"),
        ("run --run-id x", "run-id"),
        ("run --shard 1/2 --run-id x", "run-id"),
        ("run --storage far", "storage"),
        ("run --node-label a=b", "node-label"),
        ("run --on slurm", "on"),
        ("run --on ray", "on"),
        ("merge --remote-cache far", "run-id"),
        ("merge part --remote-cache far --run-id x", "remote-cache"),
        ("merge --remote-cache far --run-id x", "run-id"),
        ("finish", "all"),
        ("finish out --all", "all"),
        ("finish --all", "out"),
    ],
)
@pytest.mark.usefixtures("place")
def test_what_has_no_effect_or_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    assert run_cli([*command.split(), "--json"]) == 2
    assert errors(capsys)[0]["option"] == option


@pytest.mark.usefixtures("place")
def test_a_dry_run_of_a_part_shows_its_models(capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for part in ("1/2", "2/2"):
        assert run_cli(["run", "--shard", part, "--dry-run", "--json"]) == 0
        names += json.loads(capsys.readouterr().out)["models"]
    assert sorted(names) == ["one", "two"]


def test_the_exit_code_of_a_merge_is_that_of_the_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in (1, 2):
        part = ShardRun(index=index, count=2, project="p", models=())
        record = RunRecord(modelc="1", exit_code=index - 1, seconds=1.0, models=(), shard=part)
        write_record(record, tmp_path)
    assert run_cli(["merge", "-o", str(tmp_path), "--json"]) == 1
    assert (tmp_path / "run.json").is_file()
    capsys.readouterr()
    assert (
        run_cli(["merge", "-o", str(tmp_path), "--json"]) == 1
    )  # again: the parts are still there


def test_finish_says_so_if_nothing_is_pending(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["run"]) == 0
    capfd.readouterr()
    write_record(RunRecord(modelc="1", exit_code=0, seconds=1.0, models=()), place / "none")
    for command, folder in (("--all", "out"), ("out/one", "out/one"), ("--all -o none", "none")):
        assert run_cli(["finish", *command.split()]) == 0
        said = f"nothing is pending in {folder}"
        assert said in capfd.readouterr().err


def test_a_part_that_does_not_start_leaves_no_earlier_record(place: Path) -> None:
    part = ShardRun(index=1, count=2, project="p", models=())
    record = RunRecord(modelc="1", exit_code=0, seconds=1.0, models=(), shard=part)
    path = write_record(record, place / "out")
    far = open_remote_files(f"file://{place}/far")
    publish_part(replace(record, shard=replace(part, run="r")), place / "out", far)
    Path("modelc.toml").write_text("[models.one]\n")
    shared = ["--remote-cache", f"file://{place}/far", "--run-id", "r"]
    assert run_cli(["run", "--shard", "1/2", *shared, "--dry-run"]) == 2
    assert path.exists()
    assert far.names("runs/r") == ["run-1-of-2.json"]
    assert run_cli(["run", "--shard", "1/2", *shared]) == 2
    assert not path.exists()
    assert far.names("runs/r") == []


def test_the_hint_of_a_missing_part_names_the_run_as_typed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ["--remote-cache", f"{place}/far", "--run-id", "r"]
    for index in (1, 3):
        part = ShardRun(index=index, count=3, project="p", models=(), run="r")
        record = RunRecord(modelc="1", exit_code=0, seconds=1.0, models=(), shard=part)
        publish_part(record, place / "out", open_remote_files(f"{place}/far"))
    assert run_cli(["merge", *shared, "--json"]) == 2
    hint = errors(capsys)[0]["hint"]
    command = hint[hint.index("modelc run") :].split()[1:]
    assert command == ["run", "--shard", "2/3", *shared]
    assert run_cli([*command, "--dry-run"]) == 0


@pytest.mark.slow
def test_parts_meet_in_the_remote_cache(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--remote-cache", f"file://{place}/far", "--run-id", "r"]
    for index in (1, 2):
        folders = ["--cache-dir", f"cache{index}", "-o", f"host{index}"]
        assert run_cli(["run", "-q", "--shard", f"{index}/2", *shared, *folders]) == 0
    assert run_cli(["merge", *shared, "-o", "out", "-q"]) == 0
    capsys.readouterr()
    assert run_cli(["verify", "out", "--json"]) == 0
    assert not list(Path("host1").glob("run.json"))
    record = json.loads(Path("out/run.json").read_text())
    assert [one["name"] for one in record["models"]] == ["one", "two"]
