"""The worst feed of every judged artifact: kept, replayable as it is printed, gone with it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modelc.core.contract import Feed, Outputs, Target
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.findings import WorstFeed
from modelc.core.verdict import OutputVerdict, Verdict
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Judging, Order, Source
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file
from modelc.pipeline.validate_folder import validate_folder
from modelc.pipeline.worst_feed import keep_search_record, save_feed

from ..reasons import has_code
from .conftest import eagerly

Fakes = Callable[..., Target]
Orders = Callable[..., Order]


def wrong(feed: Feed) -> Outputs:
    return {name: array * np.float32(1.5) for name, array in eagerly(feed).items()}


def worst_of(verdict: Verdict) -> WorstFeed:
    assert verdict.worst is not None
    return verdict.worst


def figures(verdict: Verdict, feed: str) -> list[tuple[object, ...]]:
    def row(o: OutputVerdict) -> tuple[object, ...]:
        return (o.output, o.passed, o.max_abs, o.sqnr, o.times_floor, o.headroom)

    return [row(o) for o in verdict.outputs if o.feed == feed]


def files_in(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_a_passed_artifact_has_its_worst_feed(order: Orders, tmp_path: Path) -> None:
    (verdict,) = run(order("torchscript")).verdicts
    worst = worst_of(verdict)
    assert worst.file == "worst/torchscript.npz"
    assert worst.headroom == verdict.headroom
    with np.load(tmp_path / "out" / worst.file) as feed:
        assert feed.files == ["x"]


def test_a_rejected_artifact_has_its_worst_feed(order: Orders, fake: Fakes, tmp_path: Path) -> None:
    (verdict,) = run(order("fake"), targets=(fake(answer=wrong),)).verdicts
    worst = worst_of(verdict)
    assert worst.file == "worst/rejected/fake.npz"
    assert worst.headroom == verdict.headroom
    assert files_in(tmp_path / "out/worst") == {"rejected/fake.npz"}


def test_a_feed_that_the_artifact_rejects_is_the_worst(order: Orders, fake: Fakes) -> None:
    from modelc.core.errors import RunnerError

    def picky(feed: Feed) -> Outputs:
        if len(feed["x"]) == 3:
            raise RunnerError("no threes", hint="none")
        return eagerly(feed)

    (verdict,) = run(order("fake"), targets=(fake(answer=picky),)).verdicts
    assert worst_of(verdict).feed in verdict.reason


@pytest.fixture
def from_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current folder is the output folder's parent, as a user's may be."""
    monkeypatch.chdir(tmp_path)
    return Path("out")


def typed(command: str) -> subprocess.CompletedProcess[str]:
    """The command as a shell hands it to the program, in a process of its own."""
    words = shlex.split(command)
    assert words[:2] == ["modelc", "validate"]
    return subprocess.run(
        [sys.executable, "-m", "modelc", *words[1:]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.needs("onnx")
@pytest.mark.parametrize(
    ("judging", "code", "place"),
    [
        (Judging(), 0, ""),
        (Judging(atol=0.0, rtol=0.0), 1, "rejected/"),  # only equal bits pass
    ],
)
def test_the_command_replays_an_artifact(
    order: Orders, from_folder: Path, judging: Judging, code: int, place: str
) -> None:
    manifest = run(order("onnx", out=from_folder, judging=judging))
    (verdict,) = manifest.verdicts
    assert manifest.exit_code == code
    worst = worst_of(verdict)
    file, feed = f"out/{place}model.onnx", f"out/worst/{place}onnx.npz"
    assert worst.replay.split() == ["modelc", "validate", file, "--replay", feed]
    ended = typed(worst.replay)
    assert ended.returncode == code, ended.stderr
    assert worst.feed in ended.stdout
    assert f"{worst.headroom:+.0f} dB" in ended.stdout
    again = validate_file(Path(file), replay=Path("out") / worst.file)
    assert figures(again, again.feeds[0]) == figures(verdict, worst.feed)
    assert again.reason == verdict.reason


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_the_replay_of_a_passed_artifact_shows_the_same_figures(
    order: Orders, tmp_path: Path
) -> None:
    (verdict,) = run(order("onnx", judging=Judging(search=1.0))).verdicts
    worst, out = worst_of(verdict), tmp_path / "out"
    again = validate_file(out / "model.onnx", replay=out / worst.file)
    (shown,) = again.feeds
    assert figures(again, shown) == figures(verdict, worst.feed)
    assert again.headroom == worst.headroom


@pytest.fixture
def found(exported_digits: Path, tmp_path: Path) -> WorstFeed:
    """A feed that a search found, on record in a copy of an output folder at `tmp_path/out`."""
    out = tmp_path / "out"
    shutil.copytree(exported_digits, out)
    manifest = read_manifest(out)
    assert manifest is not None
    images = np.random.default_rng(7).uniform(0, 1, (3, 1, 8, 8)).astype(np.float32)
    save_feed({"x": images}, out / "worst/onnx.npz")
    worst = WorstFeed(feed="search-7", output="output", headroom=1.0, file="worst/onnx.npz",
                      replay="", searched=9, seed=0, seconds=1.5, before=3.0)  # fmt: skip
    verdicts = (replace(v, worst=worst if v.artifact == "onnx" else v.worst)
                for v in manifest.verdicts)  # fmt: skip
    checkpoint = (exported_digits / manifest.checkpoint.path).resolve()
    manifest = replace(manifest, checkpoint=replace(manifest.checkpoint, path=str(checkpoint)))
    write_manifest(replace(manifest, verdicts=tuple(verdicts)), out)
    return worst


def test_a_file_is_judged_on_the_feed_that_a_search_found(found: WorstFeed, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert found.feed in validate_file(out / "model.onnx").feeds
    replayed = validate_file(out / "model.onnx", replay=out / found.file)
    assert replayed.feeds == (found.feed,), "it is not judged on it twice"


def test_a_missing_found_feed_is_noted(found: WorstFeed, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / found.file).unlink()
    note = f"{found.feed}, which an earlier search found, is not judged on: no {found.file}"
    assert note in validate_file(out / "model.onnx").notes
    verdict = validate_folder(out).verdict_of("onnx")
    assert verdict is not None
    assert note in verdict.notes


def test_the_record_of_a_search_stays(found: WorstFeed) -> None:
    same = replace(found, searched=0, seconds=0.0, before=None)
    assert keep_search_record(same, found) == found
    other = replace(same, feed="max")
    assert keep_search_record(other, found) == other


def test_a_feed_of_the_user_can_be_replayed(exported_digits: Path, tmp_path: Path) -> None:
    image = np.full((3, 1, 8, 8), 7, np.float32)
    np.savez(tmp_path / "own.npz", x=image)
    verdict = validate_file(exported_digits / "model.onnx", replay=tmp_path / "own.npz")
    assert verdict.feeds == ("replay",)
    assert verdict.outputs[0].shape == (3, 10)
    assert verdict.passed


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 broken"])
def test_a_file_that_is_not_a_feed_is_rejected(
    exported_digits: Path, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_MANIFEST)):
        validate_file(exported_digits / "model.onnx", replay=tmp_path / "bad.npz")


def test_a_feed_of_another_model_is_rejected(exported_digits: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", y=np.zeros(3))
    with pytest.raises(UsageError, match="lacks x"):
        validate_file(exported_digits / "model.onnx", replay=tmp_path / "other.npz")


# What is left when artifacts come and go.


def test_a_passed_artifact_replaces_the_feed_of_a_rejected_one_and_not_the_reverse(
    order: Orders, fake: Fakes, tmp_path: Path
) -> None:
    run(order("fake"), targets=(fake(answer=wrong),))
    run(order("fake"), targets=(fake(),))
    assert files_in(tmp_path / "out/worst") == {"fake.npz"}
    run(order("fake"), targets=(fake(answer=wrong),))
    assert files_in(tmp_path / "out/worst") == {"fake.npz", "rejected/fake.npz"}


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_an_artifact_that_fails_later_takes_its_feed_along(order: Orders, tmp_path: Path) -> None:
    run(order("onnx"))
    again = validate_folder(tmp_path / "out", judging=Judging(min_sqnr=400.0))
    assert again.exit_code == 1
    assert worst_of(again.verdicts[0]).file == "worst/rejected/onnx.npz"
    assert files_in(tmp_path / "out/worst") == {"rejected/onnx.npz"}


def test_an_artifact_that_was_changed_has_no_worst_feed(order: Orders, tmp_path: Path) -> None:
    run(order("torchscript"))
    path = tmp_path / "out/model.torchscript.pt"
    path.write_bytes(path.read_bytes() + b"more")
    (verdict,) = validate_folder(tmp_path / "out").verdicts
    assert verdict.worst is None
    assert not (tmp_path / "out/worst").exists()


def test_another_checkpoints_worst_feeds_go(
    order: Orders, fake: Fakes, gate_source: Source, tmp_path: Path
) -> None:
    run(order("fake"), targets=(fake(),))
    other = replace(gate_source, inputs=("x:float32[batch=1..6,16]",))
    run(
        order("other", source=other, overwrite=True),
        targets=(fake(NAME="other", SUFFIX=".other"),),
    )
    assert files_in(tmp_path / "out/worst") == {"other.npz"}


# The record of the feeds.


def test_the_record_has_every_feed_with_its_kind(order: Orders) -> None:
    manifest = run(order("torchscript"))
    names = tuple(record.name for record in manifest.feeds.drawn if not record.skipped)
    assert names == manifest.verdicts[0].feeds
    kinds = {record.name: record.kind for record in manifest.feeds.drawn}
    assert (kinds["min"], kinds["seed-1"], kinds["batch-3"], kinds["large"]) == (
        "shape",
        "seed",
        "batch",
        "value",
    )
    assert [r.name for r in manifest.feeds.drawn if r.beyond] == ["large"]


def test_a_folder_without_a_record_of_its_feeds_is_validated(order: Orders, tmp_path: Path) -> None:
    made = run(order("torchscript"))
    older = replace(
        made,
        feeds=replace(made.feeds, drawn=()),
        verdicts=tuple(replace(verdict, worst=None) for verdict in made.verdicts),
    )
    write_manifest(older, tmp_path / "out")
    shutil.rmtree(tmp_path / "out/worst")
    again = validate_folder(tmp_path / "out")
    assert again.passed
    assert again.feeds.drawn == made.feeds.drawn
    assert read_manifest(tmp_path / "out") == again
