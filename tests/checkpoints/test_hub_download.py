from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelc.core.errors import CheckpointError, ErrorCode, MissingError, ModelcError, UsageError
from modelc.core.events import Advanced, Event, Finished, Noted, Started, Tell, ignore_events
from modelc.core.hub_ids import HubOrigin

from ..hub_server import HubModel, HubServer, use_hub

pytest.importorskip("huggingface_hub")

from modelc.checkpoints.hub_cache import (
    find_cached,
    find_recorded_place,
    parse_hub_id,
    snapshot_folder,
)
from modelc.checkpoints.hub_download import HubFetch

NAME = "org/net"
HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)
FILES = {"config.json": b'{"model_type": "bert"}', "model.safetensors": WEIGHTS}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def hub(cache: Path) -> Iterator[HubServer]:
    with use_hub(cache) as server:
        yield server


@pytest.fixture
def model(hub: HubServer) -> HubModel:
    found = hub.model(NAME)
    found.push(FILES)
    return found


def fetch(
    text: str = f"hf://{NAME}", tell: Tell = ignore_events, *, cached_first: bool = False
) -> tuple[HubOrigin, Path]:
    return HubFetch(hub=parse_hub_id(text), tell=tell).run(cached_first=cached_first)


def refused(text: str = f"hf://{NAME}") -> ModelcError:
    with pytest.raises(ModelcError) as caught:
        fetch(text)
    return caught.value


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def files_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_a_branch_becomes_its_commit(model: HubModel) -> None:
    origin, place = fetch(f"hf://{NAME}@main")
    assert (origin.repo, origin.revision) == (NAME, "main")
    assert origin.commit == model.refs["main"]
    assert {path.name: path.read_bytes() for path in place.iterdir()} == FILES


def test_what_is_in_the_cache_is_not_downloaded_again(hub: HubServer, model: HubModel) -> None:
    first = fetch()
    hub.requests.clear()
    assert fetch() == first
    assert len(hub.requests) == 1
    assert model.refs["main"] in str(first[1])


def test_a_recorded_commit_in_the_cache_needs_no_request(hub: HubServer, model: HubModel) -> None:
    pinned = f"hf://{NAME}@{model.refs['main']}"
    first = fetch(pinned)
    hub.requests.clear()
    assert fetch(pinned, cached_first=True) == first
    assert not hub.requests


def test_a_moved_branch_is_another_commit(model: HubModel) -> None:
    before, place = fetch()
    model.push({**FILES, "config.json": b'{"model_type": "vit"}'})
    after, other = fetch()
    assert before.commit != after.commit
    assert place != other
    assert (place / "config.json").read_bytes() == FILES["config.json"]


def test_a_folder_and_a_file(hub: HubServer) -> None:
    hub.model(NAME).push({f"text/{name}": data for name, data in FILES.items()})
    origin, folder = fetch(f"hf://{NAME}/text")
    assert (origin.place, files_below(folder)) == ("text", set(FILES))
    _, file = fetch(f"hf://{NAME}/text/model.safetensors")
    assert file == folder / "model.safetensors"


def test_size_and_progress_are_reported(model: HubModel) -> None:
    events: list[Event] = []
    fetch(tell=events.append)
    kinds = [type(event) for event in events if not isinstance(event, Advanced)]
    assert kinds == [Noted, Started, Finished]
    total = sum(map(len, FILES.values()))
    reached = [event for event in events if isinstance(event, Advanced)]
    assert {(one.total, one.in_bytes) for one in reached} == {(total, True)}
    assert all(0 <= one.done <= total for one in reached)
    assert model.refs


def test_nothing_is_printed(model: HubModel, capfd: pytest.CaptureFixture[str]) -> None:
    fetch()
    assert capfd.readouterr() == ("", "")
    assert model.refs


def test_a_token_goes_to_the_hub_alone(
    hub: HubServer, model: HubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    model.private = True
    fetch()
    assert hub.tokens == {("127.0.0.1", "Bearer hf_secret")}  # not to the store of large files


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("token", ["hf_sec\x00ret", "hf_secret\u2026", "Bearer sec ret\x7f\x00"])
def test_a_token_that_no_header_can_have_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: token)
    error = refused()
    assert "sec" not in f"{error.message} {error.hint}"


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("hf://org/nothing", UsageError, ErrorCode.NOT_FOUND),
        (f"hf://{NAME}@v9", UsageError, ErrorCode.NOT_FOUND),
        (f"hf://{NAME}@{'0' * 40}", UsageError, ErrorCode.NOT_FOUND),
        (f"hf://{NAME}/nothing", UsageError, ErrorCode.NOT_FOUND),
        ("hf://org/gated", CheckpointError, ErrorCode.HUB_ACCESS),
        ("hf://org/private", UsageError, ErrorCode.NOT_FOUND),
    ],
)
@pytest.mark.usefixtures("model")
def test_what_the_hub_does_not_give(
    hub: HubServer, text: str, kind: type[ModelcError], code: ErrorCode
) -> None:
    hub.model("org/gated").gated = True
    hub.model("org/private").private = True
    error = refused(text)
    assert type(error) is kind
    assert error.code is code
    assert error.hint


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, ErrorCode.HUB_ACCESS), (403, ErrorCode.HUB_ACCESS), (418, ErrorCode.HUB_UNREACHABLE),
     (429, ErrorCode.HUB_UNREACHABLE), (500, ErrorCode.HUB_UNREACHABLE),
     (503, ErrorCode.HUB_UNREACHABLE)],
)  # fmt: skip
@pytest.mark.usefixtures("model")
def test_an_answer_of_no_success(hub: HubServer, status: int, code: ErrorCode) -> None:
    hub.faults.status = status
    error = refused()
    assert isinstance(error, CheckpointError)
    assert error.code is code


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"{}", b'{"id": "x"}', b'{"sha": null}'])
@pytest.mark.usefixtures("model")
def test_an_answer_that_is_not_the_hubs(hub: HubServer, body: bytes) -> None:
    hub.faults.garbage = body
    assert refused().code is ErrorCode.HUB_UNREACHABLE


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("commit", "../../x", ErrorCode.HUB_UNREACHABLE),
        ("extra", ("../../x.json",), ErrorCode.UNSAFE_PATH),
        ("etag", "../../../../x", ErrorCode.UNSAFE_PATH),
        ("etag", "..", ErrorCode.UNSAFE_PATH),
        ("named", "../../../x", ErrorCode.UNSAFE_PATH),
        ("named", "f" * 40, ErrorCode.UNSAFE_PATH),
    ],
)
@pytest.mark.usefixtures("model")
def test_a_hostile_server_writes_nothing_outside_of_the_cache(
    hub: HubServer, tmp_path: Path, field: str, value: Any, code: ErrorCode
) -> None:
    setattr(hub.faults, field, value)
    assert refused().code is code
    assert files_below(tmp_path) <= {"CACHEDIR.TAG", "main"}


@pytest.mark.usefixtures("model")
def test_bytes_that_are_not_those_listed_do_not_stay(hub: HubServer, cache: Path) -> None:
    for name in FILES:
        hub.faults.flip = name
        assert refused().code is ErrorCode.HUB_UNREACHABLE
        assert name not in files_below(cache / "hub")
    blobs = [path for path in cache.rglob("blobs/*") if path.is_file()]
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in blobs}
    assert digests <= {hashlib.sha256(data).hexdigest() for data in FILES.values()}
    hub.faults.flip = ""
    fetch()


@pytest.mark.slow
@pytest.mark.usefixtures("model")
def test_a_torn_download_is_an_error_and_then_complete(hub: HubServer, cache: Path) -> None:
    hub.faults.torn = 5
    assert refused().code is ErrorCode.HUB_UNREACHABLE
    assert not [path for path in cache.rglob("blobs/*") if path.is_file()]
    hub.faults.torn = 0
    _, place = fetch()
    assert (place / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.usefixtures("model")
def test_a_file_of_another_size_in_the_cache_is_downloaded_again(cache: Path) -> None:
    _, place = fetch()
    (place / "model.safetensors").resolve().write_bytes(WEIGHTS[:20])
    _, again = fetch()
    assert (again / "model.safetensors").read_bytes() == WEIGHTS
    assert cache.exists()


def test_a_commit_whose_file_has_other_bytes_of_the_same_size(model: HubModel) -> None:
    before, place = fetch()
    changed = WEIGHTS[:-1] + b"\x01"
    model.commits[before.commit]["model.safetensors"] = changed
    assert fetch() == (before, place)
    assert (place / "model.safetensors").read_bytes() == changed


@pytest.mark.usefixtures("model")
def test_without_links_a_whole_file_is_not_downloaded_again(hub: HubServer) -> None:
    _, place = fetch()
    for path in list(place.iterdir()):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    hub.requests.clear()
    fetch()
    assert len(hub.requests) == 1


@pytest.mark.usefixtures("model")
def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import file_download

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_download, "http_get", fail)
    error = refused()
    assert isinstance(error, UsageError)
    assert error.code is ErrorCode.NOT_WRITABLE


@pytest.mark.usefixtures("model")
def test_a_model_larger_than_the_disk_is_not_begun(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    error = refused()
    assert error.code is ErrorCode.NOT_WRITABLE
    assert not [one for one in hub.requests if "resolve" in one]


@pytest.mark.usefixtures("model")
def test_without_a_network_the_cached_commit_is_used_with_a_warning(hub: HubServer) -> None:
    first = fetch()
    hub.stop()
    events: list[Event] = []
    assert fetch(tell=events.append) == first
    assert [event.warning for event in events if isinstance(event, Noted)] == [True]


@pytest.mark.usefixtures("model")
def test_without_a_network_and_a_cache(hub: HubServer) -> None:
    hub.stop()
    error = refused()
    assert error.code is ErrorCode.HUB_UNREACHABLE
    assert str(hub.url) not in error.message


def test_offline_the_cache_answers(
    hub: HubServer, model: HubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch()
    hub.requests.clear()
    go_offline(monkeypatch)
    assert fetch() == first
    assert fetch(f"hf://{NAME}@{model.refs['main']}")[1] == first[1]
    assert not hub.requests


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("revision", ["v2", "0" * 40])
def test_offline_a_revision_that_is_not_cached_names_the_command(
    monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    fetch()
    go_offline(monkeypatch)
    error = refused(f"hf://{NAME}@{revision}")
    assert error.code is ErrorCode.HUB_UNREACHABLE
    assert f"hf download {NAME} --revision {revision}" in error.hint


def test_what_the_command_of_the_hint_downloads_is_found_offline(
    hub: HubServer, model: HubModel, cache: Path
) -> None:
    commit = model.refs["main"]
    hf = Path(sys.executable).with_name("hf")
    environment = {**os.environ, "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    subprocess.run(
        [hf, "download", NAME, "--revision", commit],
        env=environment, check=True, capture_output=True,
    )  # fmt: skip
    hub.requests.clear()
    origin, place = fetch(f"hf://{NAME}@{commit}", cached_first=True)
    assert (origin.commit, place.is_relative_to(cache)) == (commit, True)
    assert not hub.requests


@pytest.mark.usefixtures("model")
def test_a_part_of_a_commit_is_not_taken_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, place = fetch()
    (place / "model.safetensors").unlink()
    go_offline(monkeypatch)
    assert refused().code is ErrorCode.HUB_UNREACHABLE


def test_a_download_that_broke_off_after_a_shard_is_not_a_checkpoint(
    model: HubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = json.dumps({"weight_map": {"w": shards[0], "v": shards[1]}}).encode()
    names = dict.fromkeys(shards, WEIGHTS)
    model.push({"config.json": b"{}", **names, "model.safetensors.index.json": index})
    _, place = fetch()
    for name in (shards[1], "model.safetensors.index.json"):
        (place / name).unlink()
    go_offline(monkeypatch)
    assert refused().code is ErrorCode.HUB_UNREACHABLE


def test_a_cache_that_another_program_filled_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch, hub: HubServer
) -> None:
    commit, root = "a" * 40, cache / "hub" / "models--org--net"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(commit)
    (root / "blobs").mkdir()
    (root / "snapshots" / commit).mkdir(parents=True)
    for name, data in FILES.items():
        blob = root / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (root / "snapshots" / commit / name).symlink_to(f"../../blobs/{blob.name}")
    go_offline(monkeypatch)
    origin, place = fetch()
    assert (origin.commit, place) == (commit, root / "snapshots" / commit)
    assert not hub.requests


@pytest.mark.parametrize(
    "text",
    ["hf://", "hf://net", "hf://org/", "hf://datasets/org/net", "hf://org/net@", "hf://org/net@..",
     "hf://org/net@a/../b", "hf://org/net/../x", "hf://org--x/net", "hf://-org/net",
     "hf://org/net@a b", "hf://org/net@-x", "hf://org/net@a\n", "hf://org/net.git",
     f"hf://org/{'x' * 200}", "hf://org/net/a\\b"],
)  # fmt: skip
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hub_id(text)
    assert caught.value.code is ErrorCode.INVALID_VALUE


@pytest.mark.parametrize(
    "origin",
    [
        HubOrigin(repo="../../etc", commit="a" * 40),
        HubOrigin(repo="org/net", commit="../../.."),
        HubOrigin(repo="org/net", commit="main"),
        HubOrigin(repo="org/net", commit="a" * 40, place="../../.."),
        HubOrigin(repo="org/net", commit="a" * 40, place="/etc"),
        HubOrigin(repo="org/net@x", commit="a" * 40),
    ],
)
@pytest.mark.usefixtures("hub")
def test_an_edited_record_leads_to_no_path(origin: HubOrigin) -> None:
    with pytest.raises(UsageError):
        snapshot_folder(origin)


@pytest.mark.usefixtures("model")
def test_a_recorded_place_is_found_or_none() -> None:
    origin, place = fetch()
    assert find_recorded_place(origin) == find_cached(origin) == place
    other = HubOrigin(repo=NAME, commit="b" * 40)
    assert find_recorded_place(other) is None


def test_without_the_library_the_hint_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingError) as caught:
        parse_hub_id(f"hf://{NAME}")
    assert caught.value.hint == "pip install 'huggingface_hub>=2.4'"


def test_the_library_is_left_as_it_was(model: HubModel) -> None:
    from huggingface_hub import get_session
    from huggingface_hub.utils import logging

    client = get_session()
    before = (client.event_hooks, client.timeout, logging.get_verbosity())
    fetch()
    refused(f"hf://{NAME}@v9")
    assert (client.event_hooks, client.timeout, logging.get_verbosity()) == before
    assert model.refs
