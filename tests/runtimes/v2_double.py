"""A server in this process that speaks the V2 protocol over HTTP, and misbehaves on request."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from modelc.runtimes.v2_tensors import DATATYPES

LENGTH = "Inference-Header-Content-Length"
Arrays = Mapping[str, Any]
DTYPES = {name: dtype for dtype, name in DATATYPES.items()}


@dataclass
class ServedDouble:
    """What the server says and does; tests change it while it runs.

    `misbehave` writes the reply to an inference itself. `config` None means that the server has
    no configuration to show.
    """

    answer: Callable[[Arrays], Arrays]
    inputs: tuple[tuple[str, str, list[int]], ...]
    outputs: tuple[tuple[str, str, list[int]], ...]
    name: str = "net"
    platform: str = "onnxruntime_onnx"
    versions: tuple[str, ...] = ("1",)
    index: tuple[dict[str, str], ...] | None = ({"name": "net", "version": "1", "state": "READY"},)
    extensions: tuple[str, ...] = ("binary_tensor_data",)
    config: dict[str, object] | None = None
    ready: bool = True
    token: str = ""
    misbehave: Callable[[BaseHTTPRequestHandler], None] | None = None
    everywhere: bool = False  # misbehave at every path
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def describe(self) -> dict[str, object]:
        def listed(tensors: tuple[tuple[str, str, list[int]], ...]) -> list[dict[str, object]]:
            return [{"name": n, "datatype": d, "shape": s} for n, d, s in tensors]

        return {
            "name": self.name, "versions": list(self.versions), "platform": self.platform,
            "inputs": listed(self.inputs), "outputs": listed(self.outputs),
        }  # fmt: skip


@contextmanager
def serve(double: ServedDouble, tls: ssl.SSLContext | None = None) -> Iterator[ServedDouble]:
    """Run the server until the end of the context; its address is `double.url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            handle(self, double)

        do_POST = do_GET  # noqa: N815 - http.server's name

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    double.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def handle(request: BaseHTTPRequestHandler, double: ServedDouble) -> None:
    body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
    double.seen.append((request.path, dict(request.headers)))
    if double.token and request.headers.get("Authorization") != double.token:
        send_json(request, {"error": f"not {request.headers.get('Authorization')}"}, status=401)
        return
    path = request.path.removeprefix("/v2").removeprefix("/models").strip("/")
    if double.misbehave is not None and (double.everywhere or path.endswith("infer")):
        double.misbehave(request)
    elif path.endswith("infer") and path.startswith(double.name):
        infer(request, double, body)
    else:
        describe(request, double, path)


def describe(request: BaseHTTPRequestHandler, double: ServedDouble, path: str) -> None:
    if path == "":
        found = {"name": "double", "version": "9", "extensions": list(double.extensions)}
        send_json(request, found)
    elif path == "repository/index":
        send_json(request, double.index, status=404 if double.index is None else 200)
    elif path.split("/", maxsplit=1)[0] != double.name:
        send_json(request, {"error": "unknown model"}, status=404)
    elif path.endswith("ready"):
        send_json(request, {}, status=200 if double.ready else 503)
    elif path.endswith("config"):
        send_json(request, double.config, status=404 if double.config is None else 200)
    else:
        send_json(request, double.describe())


def infer(request: BaseHTTPRequestHandler, double: ServedDouble, body: bytes) -> None:
    try:
        outputs = double.answer(read_feed(request, body))
    except ValueError as error:
        send_json(request, {"error": str(error)}, status=400)
        return
    if "binary_tensor_data" in double.extensions:
        send_outputs(request, outputs)
    else:
        send_json(request, {"outputs": [
            {**describe_array(n, a), "data": np.asarray(a).ravel().tolist()}
            for n, a in outputs.items()
        ]})  # fmt: skip


def read_feed(request: BaseHTTPRequestHandler, body: bytes) -> dict[str, Any]:
    length = int(request.headers.get(LENGTH, len(body)))
    found, place = {}, length
    for one in json.loads(body[:length])["inputs"]:
        dtype = DTYPES[one["datatype"]]
        size = one.get("parameters", {}).get("binary_data_size")
        if size is None:
            array = np.array(one["data"], dtype)
        else:
            array = np.frombuffer(body[place : place + size], dtype)
            place += size
        found[one["name"]] = array.reshape(one["shape"])
    return found


def describe_array(name: str, array: Any) -> dict[str, object]:
    array = np.asarray(array)
    return {"name": name, "datatype": DATATYPES[str(array.dtype)], "shape": list(array.shape)}


def send_outputs(request: BaseHTTPRequestHandler, outputs: Arrays) -> None:
    raw = [np.ascontiguousarray(array).tobytes() for array in outputs.values()]
    described = [
        {**describe_array(name, array), "parameters": {"binary_data_size": len(data)}}
        for (name, array), data in zip(outputs.items(), raw, strict=True)
    ]
    head = json.dumps({"outputs": described}).encode()
    send(request, head + b"".join(raw), {LENGTH: str(len(head))})


def send_json(request: BaseHTTPRequestHandler, value: object, *, status: int = 200) -> None:
    send(request, json.dumps(value).encode(), {"Content-Type": "application/json"}, status=status)


def send(
    request: BaseHTTPRequestHandler, body: bytes, headers: Mapping[str, str] | None = None,
    *, status: int = 200, length: int | None = None,
) -> None:  # fmt: skip
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body) if length is None else length))
    request.end_headers()
    request.wfile.write(body)


def drip(request: BaseHTTPRequestHandler, data: bytes, seconds: float = 0.05) -> None:
    """Write one byte at a time, until the client is gone."""
    try:
        for byte in data:
            request.wfile.write(bytes([byte]))
            request.wfile.flush()
            time.sleep(seconds)
    except OSError:
        pass
    request.close_connection = True
