"""The HTTP client exchanges tensors of all datatypes, and survives servers that misbehave."""

from __future__ import annotations

import datetime
import gzip
import ipaddress
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest

from modelc.core.errors import ErrorCode, RunnerError
from modelc.runtimes import http_v2, v2_json
from modelc.runtimes.http_v2 import HttpV2Client
from modelc.runtimes.v2_client import parse_address
from modelc.runtimes.v2_tensors import DATATYPES, SentTensor

from .v2_double import LENGTH, Arrays, ServedDouble, drip, send, send_json, serve

Misbehave = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def double() -> Iterator[ServedDouble]:
    shown = (("x", "FP32", [-1]),)
    with serve(ServedDouble(answer=lambda feed: feed, inputs=shown, outputs=shown)) as running:
        yield running


def client_of(double: ServedDouble, timeout: float = 30.0, *headers: str) -> HttpV2Client:
    return HttpV2Client(parse_address(double.url, headers, timeout))


def ask(double: ServedDouble, array: object, timeout: float = 30.0, version: str = "") -> Arrays:
    given = np.asarray(array)
    sent = SentTensor(name="x", datatype=DATATYPES[str(given.dtype)], array=given)
    with closing(client_of(double, timeout)) as client:
        return client.infer("net", version, [sent])


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
@pytest.mark.parametrize("dtype", DATATYPES)
def test_tensors_come_back_as_they_were_sent(
    double: ServedDouble, dtype: str, shape: tuple[int, ...], *, binary: bool
) -> None:
    double.extensions = ("binary_tensor_data",) if binary else ()
    array = (np.arange(np.prod(shape, dtype=int)).reshape(shape) - 1).astype(dtype)
    if dtype == "int64" and array.size:
        array = array - 2**53  # a float would lose the last bit
    found = ask(double, array)["x"]
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert np.array_equal(found, array)


@pytest.mark.parametrize("binary", [True, False])
def test_not_a_number_and_infinity_arrive(double: ServedDouble, *, binary: bool) -> None:
    double.extensions = ("binary_tensor_data",) if binary else ()
    array = np.array([np.nan, np.inf, -np.inf], np.float32)
    assert np.array_equal(ask(double, array)["x"], array, equal_nan=True)


def test_bfloat16_arrives_as_float32(double: ServedDouble) -> None:
    import ml_dtypes

    raw = np.array([1.5, -2.0], np.float32).astype(ml_dtypes.bfloat16).tobytes()
    head = json.dumps({"outputs": [{
        "name": "x", "datatype": "BF16", "shape": [2], "parameters": {"binary_data_size": 4},
    }]}).encode()  # fmt: skip
    double.misbehave = lambda request: send(request, head + raw, {LENGTH: str(len(head))})
    found = ask(double, np.array([0], np.float32))["x"]
    assert found.dtype == np.float32
    assert found.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("other", [{"model_name": "twin"}, {"model_version": "7"}])
def test_a_reply_of_another_model_is_an_error(double: ServedDouble, other: dict[str, str]) -> None:
    reply = {"model_name": "net", "model_version": "1", "outputs": [output()]}
    array = np.array([0], np.float32)
    double.misbehave = lambda request: send_json(request, reply)
    assert ask(double, array, version="1")["x"].tolist() == [1.0]
    double.misbehave = lambda request: send_json(request, {**reply, **other})
    with pytest.raises(RunnerError) as caught:
        ask(double, array, version="1")
    assert caught.value.code is ErrorCode.SERVER_REPLY


def output(**changes: object) -> dict[str, object]:
    return {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0], **changes}


def replies(*outputs: object) -> Misbehave:
    return lambda request: send_json(request, {"outputs": list(outputs)})


def truncated(request: BaseHTTPRequestHandler) -> None:
    send(request, b'{"outputs": ', length=1000)
    request.close_connection = True


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    with suppress(OSError):
        while True:
            request.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def many_headers(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n")
    request.close_connection = True


def garbage(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"\x00\xff" * 100 + b"\r\n\r\n")
    request.close_connection = True


def hang_up(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True


WRONG: dict[str, Misbehave] = {
    "truncated": truncated,
    "endless": endless,
    "huge-length": lambda request: send(request, b"", length=1 << 60),
    "many-headers": many_headers,
    "garbage": garbage,
    "hang-up": hang_up,
    "not-json": lambda request: send(request, b"<html>hello</html>"),
    "not-utf8": lambda request: send(request, b'{"outputs": "\xff"}'),
    "deep": lambda request: send(request, b"[" * 100_000),
    "long-number": lambda request: send(request, b'{"outputs": ' + b"9" * 100_000 + b"}"),
    "list": lambda request: send_json(request, [1]),
    "no-outputs": lambda request: send_json(request, {}),
    "output-is-text": replies("x"),
    "few-values": replies(output(shape=[2])),
    "many-values": replies(output(data=[1.0, 2.0])),
    "no-values": replies(output(data=None)),
    "text-values": replies(output(data=["one"])),
    "ragged-values": replies(output(shape=[3], data=[[1.0], [2.0, 3.0]])),
    "fraction-as-integer": replies(output(datatype="INT64", data=[1.5])),
    "beyond-integer": replies(output(datatype="INT8", data=[300])),
    "negative-shape": replies(output(shape=[-1])),
    "text-shape": replies(output(shape="1")),
    "huge-shape": replies(output(shape=[1 << 40, 1 << 40])),
    "high-rank": replies(output(shape=[1] * 100)),
    "bytes": replies(output(datatype="BYTES", data=["one"])),
    "no-datatype": replies(output(datatype=None)),
    "repeated": replies(output(), output()),
    "zipped": lambda request: send(request, gzip.compress(b"{}"), {"Content-Encoding": "gzip"}),
    "header-beyond": lambda request: send(request, b"{}", {LENGTH: "1000"}),
    "header-negative": lambda request: send(request, b"{}", {LENGTH: "-1"}),
    "bytes-beyond": replies(output(parameters={"binary_data_size": 1 << 40})),
    "bytes-negative": replies(output(parameters={"binary_data_size": -4})),
    "bytes-misfit": lambda request: send(request, json.dumps(
        {"outputs": [output(parameters={"binary_data_size": 0})]}).encode()),
    "more-bytes": lambda request: send(request, b'{"outputs": []}????', {LENGTH: "15"}),
    "redirect": lambda request: send(request, b"", {"Location": "/v2"}, status=307),
    "status-500": lambda request: send_json(request, {"error": "broken"}, status=500),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_reply_is_an_error(
    double: ServedDouble, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_v2, "MAX_JSON", 1 << 20)
    monkeypatch.setattr(v2_json, "MAX_JSON", 1 << 20)
    double.misbehave = WRONG[name]
    with pytest.raises(RunnerError) as caught:
        ask(double, np.array([1], np.float32))
    assert caught.value.code in (
        None, ErrorCode.SERVER_REPLY, ErrorCode.SERVER_REJECTED, ErrorCode.SERVER_UNREACHABLE,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["huge-length", "garbage", "not-json", "deep", "list", "zipped"])
def test_a_wrong_description_is_an_error(double: ServedDouble, name: str) -> None:
    double.misbehave, double.everywhere = WRONG[name], True
    with closing(client_of(double)) as client, pytest.raises(RunnerError):
        client.describe_model("net", "")


SLOW: dict[str, Misbehave] = {
    "hang": lambda _: time.sleep(3),
    "slow-header": lambda request: drip(request, b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20),
    "slow-body": lambda request: drip(
        request, b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b" " * 1000, 0.01
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_reply_is_cut_off(double: ServedDouble, name: str) -> None:
    double.misbehave = SLOW[name]
    began = time.monotonic()
    with pytest.raises(RunnerError) as caught:
        ask(double, np.array([1], np.float32), timeout=0.4)
    assert caught.value.code is ErrorCode.SERVER_UNREACHABLE
    assert time.monotonic() - began < 2.5  # a machine under load included


def test_a_server_that_is_down_is_unreachable() -> None:
    gone = parse_address("http://127.0.0.1:1")
    with closing(HttpV2Client(gone)) as client, pytest.raises(RunnerError) as caught:
        client.describe_server()
    assert caught.value.code is ErrorCode.SERVER_UNREACHABLE


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "double")])
    now = datetime.datetime.now(datetime.UTC)
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1)).add_extension(place, critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    form = serialization.Encoding.PEM
    path = tmp_path / "server.pem"
    path.write_bytes(
        made.public_bytes(form)
        + key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


def test_a_certificate_has_to_be_trusted(
    double: ServedDouble, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serve(ServedDouble(answer=double.answer, inputs=(), outputs=()), context) as secure:
        with closing(client_of(secure)) as client, pytest.raises(RunnerError) as caught:
            client.describe_server()
        assert caught.value.code is ErrorCode.SERVER_UNREACHABLE
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with closing(client_of(secure)) as client:
            assert client.describe_server().name == "double"


def test_a_server_that_delays_encryption_is_cut_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = parse_address(f"https://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3)
        with closing(HttpV2Client(address)) as client, pytest.raises(RunnerError) as caught:
            client.describe_server()
    assert caught.value.code is ErrorCode.SERVER_UNREACHABLE


def test_a_redirect_is_not_followed(double: ServedDouble) -> None:
    double.misbehave = WRONG["redirect"]
    with pytest.raises(RunnerError):
        ask(double, np.array([1], np.float32))
    assert [path for path, _ in double.seen] == ["/v2", "/v2/models/net/infer"]


def test_a_connection_that_the_server_closed_is_opened_again(double: ServedDouble) -> None:
    with closing(client_of(double)) as client:
        client.describe_server()
        assert client._connection is not None
        client._connection.sock.shutdown(socket.SHUT_RDWR)
        assert client.describe_server().name == "double"


def test_credentials_are_sent_and_never_shown(double: ServedDouble) -> None:
    double.token = "Bearer right-secret"
    with closing(client_of(double, 30.0, "Authorization: Bearer right-secret")) as client:
        assert client.describe_server().version == "9"
    with (
        closing(client_of(double, 30.0, "Authorization: Bearer wrong-secret")) as client,
        pytest.raises(RunnerError) as caught,
    ):
        client.describe_server()
    assert caught.value.code is ErrorCode.SERVER_REJECTED
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(client._address)


def test_a_text_of_the_server_is_cut_cleaned_and_free_of_secrets(double: ServedDouble) -> None:
    text = "\x1b[31mred\n wrong-secret " + "x" * 10_000
    double.misbehave = lambda request: send_json(request, {"error": text}, status=400)
    address = parse_address(double.url, ["X-Key: wrong-secret"])
    sent = SentTensor(name="x", datatype="FP32", array=np.array([1], np.float32))
    with closing(HttpV2Client(address)) as client, pytest.raises(RunnerError) as caught:
        client.infer("net", "", [sent])
    message = caught.value.message
    assert message.isprintable()
    assert len(message) < 400
    assert "secret" not in message
