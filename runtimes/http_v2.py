"""The V2 inference protocol over HTTP, with the standard library's client.

Redirects are not followed, as they would carry headers elsewhere; proxies are not used. A timer
closes the socket at the deadline, because a socket's own timeout starts again with every byte.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from ..core.contract import Outputs
from ..core.errors import ModelcError, RunnerError
from .v2_client import (
    MAX_DESCRIPTION,
    MAX_REPLY,
    ListedModel,
    ServerAddress,
    V2Config,
    V2Model,
    V2Server,
    V2Tensor,
    certificate_error,
    credentials_error,
    large_reply_error,
    late_error,
    read_sizes,
    rejection_error,
    reply_error,
    unreachable_error,
)
from .v2_json import (
    JSON_LENGTH,
    MAX_JSON,
    HttpReply,
    describe_input,
    parse_json,
    read_config,
    read_outputs,
)
from .v2_tensors import SentTensor, pack_array

_BINARY = "binary_tensor_data"  # the extension for tensors as bytes after the JSON
_MAX_ERROR = 1 << 16  # bytes of a refusal that are read
_CHUNK = 1 << 20
_OK, _UNAUTHORIZED, _MISSING = 200, (401, 403), (404, 405, 501)


class HttpV2Client:
    """A connection to a server's HTTP endpoint."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._connection: http.client.HTTPConnection | None = None
        self._handle: socket.socket | None = None  # of the same connection, to shut it down
        self._binary: bool | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def describe_server(self) -> V2Server:
        """Ask the server for its name, version and extensions."""
        found = self._ask_object("GET", "v2")
        clean = self._address.clean
        extensions = found.get("extensions", [])
        listed = extensions if isinstance(extensions, list) else []
        return V2Server(
            name=clean(found.get("name", "")),
            version=clean(found.get("version", "")),
            extensions=tuple(clean(one) for one in listed),
        )

    def list_models(self) -> tuple[ListedModel, ...] | None:
        """Ask for the index of the repository; None where the server has none."""
        reply = self._send("POST", "v2/repository/index", b"{}", MAX_DESCRIPTION)
        if reply.status != _OK:
            return None
        found = parse_json(reply.body)
        if not isinstance(found, list):
            raise reply_error("the index of models is not a list")
        clean = self._address.clean
        return tuple(
            ListedModel(
                name=str(one.get("name", "")),
                version=str(one.get("version", "")),
                state=clean(one.get("state", "READY")),
            )
            for one in found
            if isinstance(one, dict)
        )

    def is_ready(self, model: str, version: str) -> bool:
        """Ask whether a model is ready."""
        reply = self._send("GET", f"{_place(model, version)}/ready", b"", MAX_DESCRIPTION)
        if reply.status in _UNAUTHORIZED:
            raise credentials_error(self._address, str(reply.status))
        return reply.status == _OK

    def describe_model(self, model: str, version: str) -> V2Model:
        """Ask for the description of a model, and for its configuration where there is one."""
        found = self._ask_object("GET", _place(model, version))
        clean, versions = self._address.clean, found.get("versions") or []
        config = self._ask_config(model, version)
        return V2Model(
            name=clean(found.get("name", "")),
            versions=tuple(clean(one) for one in versions if isinstance(versions, list)),
            platform=clean(found.get("platform", "")),
            inputs=self._read_tensors(found.get("inputs"), config),
            outputs=self._read_tensors(found.get("outputs"), config),
            config=config,
        )

    def _read_tensors(self, values: object, config: V2Config | None) -> tuple[V2Tensor, ...]:
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise reply_error("the model's description has no list of tensors")
        known = config or V2Config()
        found = []
        for one in values:
            name = str(one.get("name", ""))
            sizes = read_sizes(one.get("shape"), self._address.clean(name))
            found.append(
                V2Tensor(
                    name=name,
                    datatype=self._address.clean(one.get("datatype", "")),
                    shape=sizes,
                    reshaped=known.reshaped.get(name),
                    optional=name in known.optional,
                )
            )
        return tuple(found)

    def _ask_config(self, model: str, version: str) -> V2Config | None:
        reply = self._send("GET", f"{_place(model, version)}/config", b"", MAX_DESCRIPTION)
        if reply.status != _OK:
            return None
        try:
            found = parse_json(reply.body)
        except RunnerError:
            return None
        return read_config(found) if isinstance(found, dict) else None

    def infer(self, model: str, version: str, inputs: Sequence[SentTensor]) -> Outputs:
        """Run a model, with tensors as bytes where the server has the extension for them."""
        if self._binary is None:
            self._binary = _BINARY in self.describe_server().extensions
        described = [describe_input(one, binary=self._binary) for one in inputs]
        request: dict[str, object] = {"inputs": described}
        raw = [pack_array(one) for one in inputs] if self._binary else []
        if self._binary:
            request["parameters"] = {"binary_data_output": True}
        head = json.dumps(request).encode()
        headers = {"Content-Type": "application/json"}
        if self._binary:
            headers = {"Content-Type": "application/octet-stream", JSON_LENGTH: str(len(head))}
        path = f"{_place(model, version)}/infer"
        reply = self._send("POST", path, b"".join([head, *raw]), MAX_REPLY, headers)
        self._check_status(reply)
        return read_outputs(reply, (model, version))

    def _ask_object(self, method: str, path: str) -> dict[str, Any]:
        reply = self._send(method, path, b"", MAX_DESCRIPTION)
        self._check_status(reply)
        found = parse_json(reply.body)
        if not isinstance(found, dict):
            raise reply_error(f"/{path} is not a JSON object")
        return found

    def _check_status(self, reply: HttpReply) -> None:
        if reply.status in _UNAUTHORIZED:
            raise credentials_error(self._address, str(reply.status))
        if reply.status != _OK:
            raise rejection_error(self._address, f"HTTP {reply.status}", reply.detail)

    def _send(
        self, method: str, path: str, body: bytes, limit: int,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:  # fmt: skip
        """Send one request; once more if a connection that was kept open proves to be closed."""
        sent = {"Accept-Encoding": "identity", **(headers or {}), **dict(self._address.headers)}
        request = (method, f"{self._address.path}/{path}", body or None, sent)
        kept = self._connection is not None
        try:
            return self._exchange(request, limit)
        except (ConnectionError, http.client.HTTPException, OSError, ValueError) as error:
            self.close()
            if not kept or not isinstance(error, ConnectionError):
                raise self._transport_error(error) from error
        try:
            return self._exchange(request, limit)
        except (http.client.HTTPException, OSError, ValueError) as error:
            self.close()
            raise self._transport_error(error) from error

    def _exchange(
        self, request: tuple[str, str, bytes | None, Mapping[str, str]], limit: int
    ) -> HttpReply:
        method, path, body, headers = request
        try:
            connection = self._connect()
            with _deadline(self._handle, self._address):
                connection.request(method, path, body=body, headers=headers)
                response = connection.getresponse()
                reply = _read_reply(response, limit)
        except ModelcError:
            self.close()
            raise
        if response.will_close or not response.isclosed():
            self.close()
        return reply

    def _connect(self) -> http.client.HTTPConnection:
        """Connect, unless it is; TLS has to be agreed on before the deadline too."""
        if self._connection is None:
            address = self._address
            host, port, seconds = address.host, address.port, address.timeout
            plain = socket.create_connection((host, port), seconds)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._handle = plain.dup()  # stays valid where TLS takes the socket over
            kind = http.client.HTTPSConnection if address.is_secure else http.client.HTTPConnection
            connection = kind(host, port, timeout=seconds)
            connection.sock = plain
            self._connection = connection
            if address.is_secure:
                context = ssl.create_default_context()
                with _deadline(self._handle, address):
                    connection.sock = context.wrap_socket(plain, server_hostname=host)
        return self._connection

    def _transport_error(self, error: Exception) -> RunnerError:
        if isinstance(error, TimeoutError):
            return late_error(self._address)
        if isinstance(error, ssl.SSLCertVerificationError):
            return certificate_error(self._address, error.verify_message)
        if isinstance(error, OSError):
            return unreachable_error(self._address, error)
        return reply_error(self._address.clean(f"{type(error).__name__} {error}"))


@contextmanager
def _deadline(connected: socket.socket | None, address: ServerAddress) -> Iterator[None]:
    """Shut the socket down at the deadline.

    Raises:
        RunnerError: the deadline passed.
    """
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        if connected is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(address.timeout, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (http.client.HTTPException, OSError, ValueError, RunnerError) as error:
        if expired.is_set():
            raise late_error(address) from error
        raise
    finally:
        timer.cancel()
    if expired.is_set():
        raise late_error(address)


def _read_reply(response: http.client.HTTPResponse, limit: int) -> HttpReply:
    """Read a reply up to its limit; of a refusal only the beginning."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if response.status != _OK:
        start = response.read(_MAX_ERROR)
        return HttpReply(status=response.status, body=b"", detail=_refusal_text(start))
    if encoding != "identity":
        raise reply_error("it is compressed, which no request allowed")
    json_length = response.headers.get(JSON_LENGTH)
    limit = limit if json_length is not None else min(limit, MAX_JSON)
    declared = response.length
    if declared is not None and declared > limit:
        raise large_reply_error(limit)
    parts: list[bytes] = []
    size = 0
    while part := response.read(_CHUNK):
        size += len(part)
        if size > limit:
            raise large_reply_error(limit)
        parts.append(part)
    if declared is not None and size != declared:
        raise reply_error(f"it ends after {size} of {declared} bytes")
    return HttpReply(status=_OK, body=b"".join(parts), json_length=json_length)


def _refusal_text(start: bytes) -> str:
    """Return the text of a refusal: that of the protocol, or the first lines of another one."""
    try:
        found = json.loads(start)
    except (ValueError, RecursionError):
        return start.decode(errors="replace")
    if isinstance(found, dict):
        return str(found.get("error") or found.get("detail") or "")
    return ""


def _place(model: str, version: str) -> str:
    place = f"v2/models/{quote(model, safe='')}"
    return f"{place}/versions/{quote(version, safe='')}" if version else place
