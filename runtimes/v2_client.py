"""What a server that speaks the V2 inference protocol is asked, over HTTP or gRPC.

A server is a stranger: its texts are cut and freed from control characters, its replies have a
largest size and a deadline, and it is never followed to another address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from ..core.contract import Outputs
from ..core.errors import ErrorCode, Hint, Option, RunnerError, UsageError
from .v2_tensors import SentTensor

MAX_REPLY = 1 << 30  # bytes of the outputs of one request
MAX_DESCRIPTION = 1 << 22  # bytes of metadata
MAX_TEXT = 240  # characters of a text of the server
_SCHEMES = {"http": 80, "https": 443, "grpc": None, "grpcs": 443}
_HEADER_NAME = re.compile(r"[a-z0-9._-]+(?<!-bin)", re.IGNORECASE | re.ASCII)  # as gRPC has them
_EXAMPLE = "as http://127.0.0.1:8000 or grpc://127.0.0.1:8001"
_AUTHORIZE = Hint("give what the server asks for: ", Option("header", "'Authorization: Bearer …'"))


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """Where a server is, and how requests to it are made.

    `headers` may hold secrets: they are sent and shown nowhere. `timeout` is in seconds, of one
    request.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)
    timeout: float = 60.0

    @property
    def url(self) -> str:
        """The address without headers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def is_secure(self) -> bool:
        """Whether requests are encrypted."""
        return self.scheme in ("https", "grpcs")

    def clean(self, text: object) -> str:
        """Return a text of the server in one short line, without what the headers hold."""
        shown = "".join(c if c.isprintable() else " " for c in str(text)[: 4 * MAX_TEXT])
        for _, value in self.headers:
            for secret in sorted({value, *value.split()}, key=len, reverse=True):
                if len(secret) >= _SHORTEST_SECRET and secret.lower() not in _SCHEME_WORDS:
                    shown = shown.replace(secret, "***")
        line = " ".join(shown.split())
        return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"


_SCHEME_WORDS = ("basic", "bearer", "token")
_SHORTEST_SECRET = 4  # characters: `to` in a header is no secret, and is in many words


_MIN_TIMEOUT, _MAX_TIMEOUT = 0.1, 86_400.0  # seconds of a request


def parse_address(url: str, headers: Sequence[str] = (), timeout: float = 60.0) -> ServerAddress:
    """Return the address of a server.

    Args:
        url: as `http://HOST:PORT` or `grpc://HOST:PORT`, with https or grpcs where it is encrypted.
        headers: each as `NAME: VALUE`.
        timeout: seconds of one request.

    Raises:
        UsageError: it is not such an address.
    """
    if "@" in url:  # checked before any message shows the text
        raise _secret_error()
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _address_error(url, str(error)) from error
    if parts.scheme not in _SCHEMES or not host:
        known = ", ".join(_SCHEMES)
        raise _address_error(url, f"it needs a scheme, one of {known}, and a host")
    if parts.query or parts.fragment:
        raise _secret_error()
    port = port or _SCHEMES[parts.scheme]
    if port is None:
        raise _address_error(url, "it names no port")
    if not _MIN_TIMEOUT <= timeout <= _MAX_TIMEOUT:
        raise UsageError(
            f"--request-timeout {timeout:g} is not from {_MIN_TIMEOUT:g} to {_MAX_TIMEOUT:g}",
            hint="give --request-timeout 60",
            option="request-timeout",
            code=ErrorCode.INVALID_VALUE,
        )
    path = parts.path.rstrip("/").removesuffix("/v2")
    if path and parts.scheme.startswith("grpc"):
        raise _address_error(url, "gRPC has no path")
    return ServerAddress(
        scheme=parts.scheme, host=host, port=port, path=path,
        headers=tuple(_parse_header(one) for one in headers), timeout=timeout,
    )  # fmt: skip


def _secret_error() -> UsageError:
    return UsageError(
        "--served must not hold a user, a password or a query",
        hint=_AUTHORIZE,
        option="served",
        code=ErrorCode.INVALID_VALUE,
    )


def _address_error(url: str, why: str) -> UsageError:
    return UsageError(
        f"--served {url} is not the address of a server: {why}", hint=f"give it {_EXAMPLE}",
        option="served", code=ErrorCode.INVALID_VALUE,
    )  # fmt: skip


def _parse_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    value = value.strip()
    is_text = value.isascii() and value.isprintable()
    if not colon or not _HEADER_NAME.fullmatch(name.strip()) or not is_text:
        raise UsageError(
            "--header is not a name and a value",
            hint="give it as 'Authorization: Bearer TOKEN'", option="header",
            code=ErrorCode.INVALID_VALUE,
        )  # fmt: skip
    return name.strip(), value


@dataclass(frozen=True, kw_only=True)
class V2Tensor:
    """An input or output as a server describes it; a size of -1 is free.

    `reshaped` is the shape, without the batch, that the server gives the model in place of this
    one; None if it gives the same. An `optional` input need not be sent.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    reshaped: tuple[int, ...] | None = None
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class V2Server:
    """A server's description of itself."""

    name: str
    version: str
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class V2Config:
    """The part of a server's configuration of a model that is used; Triton has one."""

    backend: str = ""
    max_batch: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    reshaped: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class V2Model:
    """A server's description of a model; `config` is None where the server has none to show."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[V2Tensor, ...]
    outputs: tuple[V2Tensor, ...]
    config: V2Config | None = None


@dataclass(frozen=True, kw_only=True)
class ListedModel:
    """A model in the index of a server's repository."""

    name: str
    version: str
    state: str


class V2Client(Protocol):
    """A connection to a server; one thread uses it at a time. Methods raise RunnerError."""

    def describe_server(self) -> V2Server:
        """Ask the server for its name, version and extensions."""
        ...

    def list_models(self) -> tuple[ListedModel, ...] | None:
        """Ask for the index of the repository; None where the server has none."""
        ...

    def is_ready(self, model: str, version: str) -> bool:
        """Ask whether a model is ready; an empty version is the server's choice."""
        ...

    def describe_model(self, model: str, version: str) -> V2Model:
        """Ask for the description of a model."""
        ...

    def infer(self, model: str, version: str, inputs: Sequence[SentTensor]) -> Outputs:
        """Run a model, and return its outputs under the server's names."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_client(address: ServerAddress) -> V2Client:
    """Return a client; nothing is sent yet.

    Raises:
        MissingError: gRPC is not installed.
    """
    if address.scheme.startswith("grpc"):
        from .grpc_v2 import GrpcV2Client

        return GrpcV2Client(address)
    from .http_v2 import HttpV2Client

    return HttpV2Client(address)


def unreachable_error(address: ServerAddress, why: object) -> RunnerError:
    """Return the error for a server that does not answer."""
    return RunnerError(
        f"no answer from {address.url}: {address.clean(why)}",
        hint="start the server, and check the address and the scheme",
        code=ErrorCode.SERVER_UNREACHABLE,
    )


def certificate_error(address: ServerAddress, why: object) -> RunnerError:
    """Return the error for a server whose certificate is not trusted."""
    return RunnerError(
        f"the certificate of {address.url} is not trusted: {address.clean(why)}",
        hint="name the file of its issuer's certificate in the variable SSL_CERT_FILE",
        code=ErrorCode.SERVER_UNREACHABLE,
    )


def late_error(address: ServerAddress) -> RunnerError:
    """Return the error for a server that takes too long."""
    return RunnerError(
        f"{address.url} did not answer a request within {address.timeout:g} s",
        hint=Hint("allow more time with ", Option("request-timeout", "SECONDS")),
        code=ErrorCode.SERVER_UNREACHABLE,
    )


def rejection_error(address: ServerAddress, status: str, text: object) -> RunnerError:
    """Return the error for a request that the server rejected."""
    detail = address.clean(text)
    return RunnerError(
        f"the server rejected a request ({status}): {detail}" if detail
        else f"the server rejected a request ({status})",
        hint="the server's log has more", code=ErrorCode.SERVER_REJECTED,
    )  # fmt: skip


def credentials_error(address: ServerAddress, status: str) -> RunnerError:
    """Return the error for a request without the right credentials."""
    return RunnerError(
        f"{address.url} demands other credentials ({status})", hint=_AUTHORIZE,
        code=ErrorCode.SERVER_REJECTED,
    )  # fmt: skip


def reply_error(what: str) -> RunnerError:
    """Return the error for a reply that is not of the protocol."""
    return RunnerError(
        f"the server's reply is not of the V2 protocol: {what}",
        hint="check that the address is that of a server with the V2 (Open Inference) protocol",
        code=ErrorCode.SERVER_REPLY,
    )


def check_replier(asked: tuple[str, str], found: tuple[str, str]) -> None:
    """Check that the model that was asked replied; an empty name or version is any.

    Raises:
        RunnerError: another model or version replied.
    """
    for what, wanted, name in zip(("model", "version"), asked, found, strict=True):
        if wanted and name and wanted != name:
            raise RunnerError(
                f"{what} {wanted} was asked, and {what} {name[:80]!r} replied",
                hint="check what stands between modelc and the server, such as a proxy",
                code=ErrorCode.SERVER_REPLY,
            )


def large_reply_error(limit: int) -> RunnerError:
    """Return the error for a reply beyond the largest size."""
    return RunnerError(
        f"the server's reply is larger than {limit >> 20} MiB",
        hint="narrow the sizes in --input, or check what the server sends",
        code=ErrorCode.SERVER_REPLY,
    )


def read_sizes(values: object, name: str) -> tuple[int, ...]:
    """Return the sizes of a described tensor, where any negative one is free.

    Raises:
        RunnerError: they are not whole numbers.
    """
    if not isinstance(values, list) or len(values) > _MAX_DIMS:
        raise reply_error(f"the shape of {name} is not a list of sizes")
    found: list[int] = []
    for one in values:
        try:
            found.append(max(int(one), -1))
        except (TypeError, ValueError, OverflowError) as error:
            raise reply_error(f"the shape of {name} is not a list of sizes") from error
    return tuple(found)


_MAX_DIMS = 64
