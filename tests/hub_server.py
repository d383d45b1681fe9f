"""A small server that answers as the Hugging Face Hub does, with faults on request."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pytest

LARGE = (".safetensors", ".bin")  # as files of Git LFS, which the server redirects to its store


@dataclass
class HubModel:
    """A repository: its commits, with the bytes of each file, and what its branches point to."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def push(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Make a commit of these files; the branch points to it."""
        text = json.dumps([sorted((k, hashlib.sha256(v).hexdigest()) for k, v in files.items())])
        commit = hashlib.sha1(f"{len(self.commits)}{text}".encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.refs[branch] = commit
        return commit

    def find(self, revision: str) -> str | None:
        """Return the commit of a revision."""
        revision = unquote(revision)
        return revision if revision in self.commits else self.refs.get(revision)


@dataclass
class HubFaults:
    """What the server does wrong."""

    status: int = 0  # of every answer
    torn: int = 0  # bytes after which a download breaks off, each time
    delay: float = 0.0  # seconds between two blocks of a download
    hang: float = 0.0  # seconds before any answer
    garbage: bytes = b""  # in place of JSON
    commit: str = ""  # in place of the commit that is listed
    named: str = ""  # in place of the commit of a file
    etag: str = ""  # in place of the ETag
    extra: tuple[str, ...] = ()  # further names in the list of files
    flip: str = ""  # a file whose bytes are not those listed


class HubServer:
    """The models of a hub, its faults, and the requests that came."""

    def __init__(self) -> None:
        self.models: dict[str, HubModel] = {}
        self.faults = HubFaults()
        self.requests: list[str] = []
        self.tokens: set[tuple[str, str]] = set()  # by host
        self._http = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self})
        )
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.store = self.url.replace("127.0.0.1", "localhost")  # large files: another host
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    def model(self, name: str) -> HubModel:
        """Return the model of that name, which is made if it is not there."""
        return self.models.setdefault(name, HubModel())

    def start(self) -> None:
        """Serve on a free port."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port: connections are refused from now on."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextmanager
def serve_hub() -> Iterator[HubServer]:
    """Serve a hub without models until the block ends."""
    server = HubServer()
    server.start()
    stopped: list[None] = []
    stop = server.stop
    server.stop = lambda: stopped.append(stop())  # type: ignore[method-assign] # once
    try:
        yield server
    finally:
        if not stopped:
            stop()


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by their path in it."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def git_sha1(data: bytes) -> str:
    """Return the name that git gives to the bytes."""
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection; `hub` is set by a subclass."""

    protocol_version = "HTTP/1.0"  # no connection outlives its answer
    hub: ClassVar[HubServer]

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer with a listing, a redirection or the bytes of a file."""
        hub = self.hub
        hub.requests.append(f"{self.command} {self.path}")
        if (token := self.headers.get("Authorization")) is not None:
            hub.tokens.add((self.headers["Host"].partition(":")[0], token))
        time.sleep(hub.faults.hang)
        parts = urlsplit(self.path).path.strip("/").split("/")
        if hub.faults.status:
            self._answer(hub.faults.status, b"")
        elif parts[:2] == ["api", "models"] and "tree" in parts[4:5]:
            self._list("/".join(parts[2:4]), parts[5])
        elif parts[:2] == ["api", "models"]:
            self._describe("/".join(parts[2:4]), "/".join(parts[5:]))
        elif parts[0] == "store":
            self._send(hub.models["/".join(parts[1:3])].commits[parts[3]]["/".join(parts[4:])])
        elif "resolve" in parts[2:3]:
            self._resolve("/".join(parts[:2]), parts[3], unquote("/".join(parts[4:])))
        else:
            self._answer(404, b"")

    def _find(self, name: str, revision: str) -> tuple[HubModel, str] | None:
        model = self.hub.models.get(name)
        if model is None:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif model.private and "Authorization" not in self.headers:
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif model.gated:
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif (commit := model.find(revision or "main")) is None:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return model, commit
        return None

    def _describe(self, name: str, revision: str) -> None:
        found = self._find(name, revision)
        if found is None:
            return
        model, commit = found
        faults = self.hub.faults
        files = [_describe_file(*one) for one in model.commits[commit].items()]
        files += [{"rfilename": one, "size": 1, "blobId": "0" * 40} for one in faults.extra]
        document = {
            "id": name, "sha": faults.commit or commit, "siblings": files, "tags": [],
            "private": model.private, "gated": False, "downloads": 0, "likes": 0,
        }  # fmt: skip
        body = faults.garbage or json.dumps(document).encode()
        self._answer(200, body, {"Content-Type": "application/json"})

    def _list(self, name: str, revision: str) -> None:
        """Answer as `hf download` asks."""
        found = self._find(name, revision)
        if found is not None:
            files = [_describe_file(*one) for one in found[0].commits[found[1]].items()]
            listed = [
                {**one, "type": "file", "path": one["rfilename"], "oid": one["blobId"]}
                for one in files
            ]
            for one in listed:
                if isinstance(large := one.get("lfs"), dict):
                    one["lfs"] = {**large, "oid": large["sha256"]}
            self._answer(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, file: str) -> None:
        found = self._find(name, revision)
        if found is None:
            return
        model, commit = found
        faults, data = self.hub.faults, model.commits[commit].get(file)
        headers = {"X-Repo-Commit": faults.named or commit}
        if data is None:
            self._answer(404, b"", {**headers, "X-Error-Code": "EntryNotFound"})
            return
        large = file.endswith(LARGE)
        digest = hashlib.sha256(data).hexdigest() if large else git_sha1(data)
        tag = f'"{faults.etag or digest}"'
        if faults.flip == file:
            self._send(bytes([data[0] ^ 1]) + data[1:], {**headers, "ETag": tag})
        elif large:
            linked = {"X-Linked-Etag": tag, "X-Linked-Size": str(len(data))}
            where = f"{self.hub.store}/store/{name}/{commit}/{file}"
            self._answer(302, b"", {**headers, **linked, "Location": where})
        else:
            self._send(data, {**headers, "ETag": tag})

    def _send(self, data: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        faults, begin = self.hub.faults, 0
        if (asked := self.headers.get("Range")) is not None:
            begin = int(asked.removeprefix("bytes=").split("-")[0])
        rest = data[begin:]
        if faults.torn and self.command == "GET":
            self._answer(206 if begin else 200, rest, headers, least=faults.torn)
        else:
            self._answer(206 if begin else 200, rest, headers)

    def _answer(
        self,
        code: int,
        body: bytes,
        headers: Mapping[str, str] = MappingProxyType({}),
        least: int | None = None,
    ) -> None:
        """Send an answer; of the body the first `least` bytes, before the connection closes."""
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        delay, sent = self.hub.faults.delay, body[:least]
        step = 1 << 12 if delay else len(sent) or 1
        for at in range(0, len(sent), step):
            time.sleep(delay)
            self.wfile.write(sent[at : at + step])


def _describe_file(name: str, data: bytes) -> dict[str, object]:
    listed: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
    if name.endswith(LARGE):
        sha256 = hashlib.sha256(data).hexdigest()
        listed["lfs"] = {"size": len(data), "sha256": sha256, "pointerSize": 130}
    return listed


@contextmanager
def use_hub(cache: Path) -> Iterator[HubServer]:
    """Serve a hub that huggingface_hub asks, in this process and in children, with this cache."""
    from huggingface_hub import constants

    with serve_hub() as hub, pytest.MonkeyPatch.context() as patch:
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HOME", str(cache))
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        patch.delenv("HF_HUB_CACHE", raising=False)
        patch.delenv("HF_TOKEN", raising=False)
        yield hub
