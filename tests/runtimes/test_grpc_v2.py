"""The gRPC client exchanges tensors of all datatypes, and survives servers that misbehave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from modelc.core.errors import ErrorCode, RunnerError
from modelc.runtimes import grpc_v2
from modelc.runtimes.grpc_v2 import GrpcV2Client, message_classes
from modelc.runtimes.v2_client import parse_address
from modelc.runtimes.v2_tensors import DATATYPES, SentTensor

grpc = pytest.importorskip("grpc")
Answer = Callable[[Any, Any], Any]


def echo(request: Any, _: Any) -> Any:
    return message_classes()["ModelInferResponse"](
        outputs=request.inputs, raw_output_contents=request.raw_input_contents
    )


@dataclass
class GrpcDouble:
    """A gRPC server whose answers are functions, by method; others are not implemented."""

    answers: dict[str, Answer] = field(default_factory=lambda: {"ModelInfer": echo})
    port: int = 0

    def client(self, timeout: float = 30.0, *headers: str) -> GrpcV2Client:
        return GrpcV2Client(parse_address(f"grpc://127.0.0.1:{self.port}", headers, timeout))


_REQUESTS = {
    "ModelInfer": "ModelInferRequest", "ModelMetadata": "ModelMetadataRequest",
    "ServerMetadata": "ServerMetadataRequest", "ModelConfig": "ModelConfigRequest",
    "ModelReady": "ModelReadyRequest", "RepositoryIndex": "RepositoryIndexRequest",
}  # fmt: skip


@pytest.fixture
def double() -> Iterator[GrpcDouble]:
    running = GrpcDouble()

    class Handler(grpc.GenericRpcHandler):  # type: ignore[name-defined,misc]  # without types
        def service(self, details: Any) -> Any:
            method = details.method.rsplit("/", 1)[1]
            answer = running.answers.get(method)
            if answer is None:
                return None
            return grpc.unary_unary_rpc_method_handler(
                answer,
                request_deserializer=message_classes()[_REQUESTS[method]].FromString,
                response_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            )

    server = grpc.server(ThreadPoolExecutor(2), handlers=(Handler(),))
    running.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield running
    server.stop(None).wait()


def ask(double: GrpcDouble, array: object, timeout: float = 30.0) -> dict[str, Any]:
    given = np.asarray(array)
    sent = SentTensor(name="x", datatype=DATATYPES[str(given.dtype)], array=given)
    with closing(double.client(timeout)) as client:
        return client.infer("net", "", [sent])


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
@pytest.mark.parametrize("dtype", DATATYPES)
def test_tensors_come_back_as_they_were_sent(
    double: GrpcDouble, dtype: str, shape: tuple[int, ...]
) -> None:
    array = (np.arange(np.prod(shape, dtype=int)).reshape(shape) - 1).astype(dtype)
    found = ask(double, array)["x"]
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert np.array_equal(found, array)


@pytest.mark.parametrize(("datatype", "field_name", "values"), [
    ("FP32", "fp32_contents", [1.5, 2.5]), ("FP64", "fp64_contents", [1.5, 2.5]),
    ("INT64", "int64_contents", [-(2**60) - 1, 3]), ("INT8", "int_contents", [-1, 3]),
    ("BOOL", "bool_contents", [True, False]), ("UINT8", "uint_contents", [1, 255]),
])  # fmt: skip
def test_typed_contents_are_read(
    double: GrpcDouble, datatype: str, field_name: str, values: list[Any]
) -> None:
    classes = message_classes()
    contents = classes["InferTensorContents"](**{field_name: values})
    tensor = classes["InferTensor"](name="x", datatype=datatype, shape=[2], contents=contents)
    double.answers["ModelInfer"] = lambda *_: classes["ModelInferResponse"](outputs=[tensor])
    assert ask(double, np.array([0], np.float32))["x"].tolist() == values


def respond(**fields: object) -> Answer:
    def answer(*_: object) -> Any:
        classes = message_classes()
        outputs = [classes["InferTensor"](**one) for one in fields.pop("outputs", [])]  # type: ignore[attr-defined]
        return classes["ModelInferResponse"](outputs=outputs, **fields)

    return answer


WRONG: dict[str, Answer] = {
    "few-bytes": respond(outputs=[{"name": "x", "datatype": "FP32", "shape": [2]}],
                         raw_output_contents=[b"1234"]),
    "no-bytes": respond(outputs=[{"name": "x", "datatype": "FP32", "shape": [2]}]),
    "bytes-for-none": respond(raw_output_contents=[b"1234"]),
    "negative-shape": respond(outputs=[{"name": "x", "datatype": "FP32", "shape": [-1]}],
                              raw_output_contents=[b"1234"]),
    "unknown-datatype": respond(outputs=[{"name": "x", "datatype": "BYTES", "shape": [1]}],
                                raw_output_contents=[b"1234"]),
    "repeated": respond(outputs=[{"name": "x", "datatype": "BOOL", "shape": [1]}] * 2,
                        raw_output_contents=[b"1", b"1"]),
    "not-a-message": lambda *_: b"\xff" * 100,
    "raises": lambda *_: 1 / 0,
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_reply_is_an_error(double: GrpcDouble, name: str) -> None:
    double.answers["ModelInfer"] = WRONG[name]
    with pytest.raises(RunnerError):
        ask(double, np.array([1], np.float32))


def test_a_huge_reply_is_an_error(double: GrpcDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_v2, "MAX_REPLY", 1 << 20)
    double.answers["ModelInfer"] = lambda *_: b"\x32" + b"\x80\x80\x80\x02" + bytes(1 << 22)
    with pytest.raises(RunnerError) as caught:
        ask(double, np.array([1], np.float32))
    assert caught.value.code is ErrorCode.SERVER_REPLY


@pytest.mark.parametrize(("status", "code"), [
    ("UNAVAILABLE", ErrorCode.SERVER_UNREACHABLE), ("UNAUTHENTICATED", ErrorCode.SERVER_REJECTED),
    ("INVALID_ARGUMENT", ErrorCode.SERVER_REJECTED), ("INTERNAL", ErrorCode.SERVER_REJECTED),
    ("RESOURCE_EXHAUSTED", ErrorCode.SERVER_REPLY), ("UNIMPLEMENTED", ErrorCode.SERVER_REJECTED),
])  # fmt: skip
def test_a_status_has_its_code(double: GrpcDouble, status: str, code: ErrorCode) -> None:
    def abort(_: Any, context: Any) -> None:
        context.abort(grpc.StatusCode[status], "no \x1b[31m secret-token")

    double.answers["ModelInfer"] = abort
    sent = SentTensor(name="x", datatype="FP32", array=np.array([1], np.float32))
    with (
        closing(double.client(30.0, "X-Key: secret-token")) as client,
        pytest.raises(RunnerError) as caught,
    ):
        client.infer("net", "", [sent])
    assert caught.value.code is code
    assert "secret" not in caught.value.message
    assert caught.value.message.isprintable()


def test_a_slow_reply_is_cut_off(double: GrpcDouble) -> None:
    def sleep(*_: object) -> Any:
        time.sleep(2)
        return message_classes()["ModelInferResponse"]()

    double.answers["ModelInfer"] = sleep
    began = time.monotonic()
    with pytest.raises(RunnerError) as caught:
        ask(double, np.array([1], np.float32), timeout=0.3)
    assert caught.value.code is ErrorCode.SERVER_UNREACHABLE
    assert time.monotonic() - began < 2


def test_headers_are_sent_as_metadata(double: GrpcDouble) -> None:
    def describe(_: Any, context: Any) -> Any:
        given = dict(context.invocation_metadata())
        return message_classes()["ServerMetadataResponse"](name=given["authorization"][:6])

    double.answers["ServerMetadata"] = describe
    with closing(double.client(30.0, "Authorization: Bearer token")) as client:
        assert client.describe_server().name == "Bearer"


def test_a_server_without_extensions_is_described(double: GrpcDouble) -> None:
    classes = message_classes()
    tensor = classes["TensorMetadata"](name="x", datatype="FP32", shape=[-1, 3])
    double.answers["ModelMetadata"] = lambda *_: classes["ModelMetadataResponse"](
        name="net", versions=["1"], platform="p", inputs=[tensor], outputs=[tensor]
    )
    with closing(double.client()) as client:
        model = client.describe_model("net", "")
        assert client.list_models() is None
        assert not client.is_ready("net", "")
    assert model.inputs[0].shape == (-1, 3)
    assert model.config is None


def test_a_configuration_is_read(double: GrpcDouble) -> None:
    classes = message_classes()
    config = classes["ModelConfig"](
        backend="onnxruntime", max_batch_size=4,
        input=[classes["ModelInput"](name="x", optional=True)],
        output=[classes["ModelOutput"](name="y", reshape=classes["ModelTensorReshape"]())],
        parameters={"digest": classes["ModelParameter"](string_value="abc")},
    )  # fmt: skip
    double.answers["ModelMetadata"] = lambda *_: classes["ModelMetadataResponse"](name="net")
    double.answers["ModelConfig"] = lambda *_: classes["ModelConfigResponse"](config=config)
    with closing(double.client()) as client:
        found = client.describe_model("net", "").config
    assert found is not None
    assert (found.backend, found.max_batch) == ("onnxruntime", 4)
    assert found.parameters == {"digest": "abc"}
    assert found.reshaped == {"y": ()}
    assert found.optional == {"x"}
