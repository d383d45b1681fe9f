"""`modelc cache`: its table, its JSON, its exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from modelc.cli.app import run_cli
from modelc.core.records import record_of
from modelc.pipeline.cache.result_store import RESULTS_FOLDER, ResultStore
from modelc.pipeline.cache.store_layout import CachedQuantization, CacheEntry

KEYS = ("1" * 64, "2" * 64)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of two results of 50 kB, the second not used for two days."""
    store = ResultStore(tmp_path / "cache" / RESULTS_FOLDER)
    for number, key in enumerate(KEYS):
        path = tmp_path / "model.onnx"
        path.write_bytes(bytes([number]) * 50_000)
        kept = CachedQuantization(model=path.name, versions={}, options={}, notes=())
        entry = CacheEntry(
            key=key,
            model=f"net{number}",
            artifact="onnx",
            files=(record_of(path),),
            calibrated=kept,
        )
        assert store.put(entry, {path.name: path})
    old = store.layout.entries()[-1][1] - 2 * 86400
    (second,) = store.layout.place(KEYS[1]).iterdir()
    os.utime(second, (old, old))
    return tmp_path / "cache"


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / RESULTS_FOLDER / "entries").iterdir())


def test_it_lists_what_is_kept_the_last_used_first(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["cache", "ls", "--cache-dir", str(cache)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "kB" in line]
    assert lines[0].split()[:4] == ["net0", "onnx", "50.0", "kB"]
    assert "2 d ago" in lines[1]
    assert lines[2].startswith("2 results, 100.")


def test_results_of_one_key_are_told_apart(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ResultStore(cache / RESULTS_FOLDER)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"another result")
    kept = CachedQuantization(model=path.name, versions={}, options={}, notes=())
    files = (record_of(path),)
    entry = CacheEntry(key=KEYS[0], model="net0", artifact="onnx", files=files, calibrated=kept)
    assert store.put(entry, {path.name: path})
    assert run_cli(["cache", "ls", "--cache-dir", str(cache)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if KEYS[0][:12] in line]
    entries = {entry.stem[:12] for entry in store.layout.place(KEYS[0]).iterdir()}
    assert {row[-1] for row in rows} == entries
    assert len(entries) == len(rows) == 2


def test_its_json_is_one_document(cache: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run_cli(["cache", "ls", "--cache-dir", str(cache), "--json"]) == 0
    rows = json.loads(capfdbinary.readouterr().out)["results"]
    assert [(row["model"], row["size"], row["key"]) for row in rows] == [
        ("net0", 50_000, KEYS[0]),
        ("net1", 50_000, KEYS[1]),
    ]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--older-than", "1d"], [KEYS[0]]),
        (["--older-than", "30d"], list(KEYS)),
        (["--limit", "60kB"], [KEYS[0]]),
        (["--limit", "2GB"], list(KEYS)),
        ([], list(KEYS)),
        (["--limit", "1B"], []),
    ],
)
def test_gc_keeps_what_the_size_and_the_age_allow(
    cache: Path, options: list[str], left: list[str]
) -> None:
    assert run_cli(["cache", "gc", "--cache-dir", str(cache), *options]) == 0
    assert names(cache) == left


def test_verify_tells_and_removes_what_is_wrong_and_exits_with_1(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["cache", "verify", "--cache-dir", str(cache)]) == 0
    blob = next((cache / RESULTS_FOLDER / "blobs").glob("*/*"))
    blob.write_bytes(b"!" * 50_000)
    assert run_cli(["cache", "verify", "--cache-dir", str(cache)]) == 1
    assert blob.name[:12] in capsys.readouterr().out
    assert not blob.exists()
    assert sum(path.is_file() for path in (cache / RESULTS_FOLDER / "entries").rglob("*")) == 1
    assert run_cli(["cache", "verify", "--cache-dir", str(cache)]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ls", "--cache-dir", "nowhere"], "nowhere"),
        (["gc", "--limit", "much"], "'much' is not a size"),
        (["gc", "--older-than", "long"], "'long' is not a time"),
        (["frob"], "frob"),
    ],
)
def test_what_is_no_order_is_refused(
    arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["cache", *arguments]) == 2
    assert told in capfd.readouterr().err


def test_a_cache_that_was_never_used_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("ls", "gc", "verify"):
        assert run_cli(["cache", command, "--cache-dir", str(tmp_path)]) == 0
    assert "0 results, 0 B" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
