"""The V2 inference protocol over gRPC; its messages are described here instead of generated code.

Field numbers are those of the Open Inference Protocol and of Triton's `grpc_service.proto` and
`model_config.proto`. Fields that are not listed are skipped when a reply is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ..core.contract import Array, Outputs
from ..core.errors import ErrorCode, MissingError, RunnerError
from ..core.installation import hint_for_extra
from .v2_client import (
    MAX_REPLY,
    ListedModel,
    ServerAddress,
    V2Config,
    V2Model,
    V2Server,
    V2Tensor,
    check_replier,
    credentials_error,
    large_reply_error,
    late_error,
    read_sizes,
    rejection_error,
    reply_error,
    unreachable_error,
)
from .v2_tensors import SentTensor, pack_array, unpack_array, unpack_list

if TYPE_CHECKING:
    import grpc

_PACKAGE = "inference"
_SERVICE = f"/{_PACKAGE}.GRPCInferenceService/"
# `NAME: field=number:type`; a type is s(tring), y (bytes), b(ool), i(nt64), w (int32), u(int32),
# q (uint64), f(loat), d(ouble) or a message, with `*` where it is repeated and `@` in a map by text
_MESSAGES = """
ServerMetadataRequest:
ServerMetadataResponse: name=1:s version=2:s extensions=3:s*
ModelReadyRequest: name=1:s version=2:s
ModelReadyResponse: ready=1:b
ModelMetadataRequest: name=1:s version=2:s
TensorMetadata: name=1:s datatype=2:s shape=3:i*
ModelMetadataResponse: name=1:s versions=2:s* platform=3:s inputs=4:TensorMetadata* outputs=5:TensorMetadata*
RepositoryIndexRequest: repository_name=1:s ready=2:b
ModelIndex: name=1:s version=2:s state=3:s
RepositoryIndexResponse: models=1:ModelIndex*
ModelConfigRequest: name=1:s version=2:s
ModelTensorReshape: shape=1:i*
ModelInput: name=1:s reshape=5:ModelTensorReshape optional=8:b
ModelOutput: name=1:s reshape=5:ModelTensorReshape
ModelParameter: string_value=1:s
ModelConfig: backend=17:s max_batch_size=4:w input=5:ModelInput* output=6:ModelOutput* parameters=14:ModelParameter@
ModelConfigResponse: config=1:ModelConfig
InferTensorContents: bool_contents=1:b* int_contents=2:w* int64_contents=3:i* uint_contents=4:u* uint64_contents=5:q* \
 fp32_contents=6:f* fp64_contents=7:d* bytes_contents=8:y*
InferTensor: name=1:s datatype=2:s shape=3:i* contents=5:InferTensorContents
ModelInferRequest: model_name=1:s model_version=2:s id=3:s inputs=5:InferTensor* raw_input_contents=7:y*
ModelInferResponse: model_name=1:s model_version=2:s outputs=5:InferTensor* raw_output_contents=6:y*
"""  # noqa: E501 - a table
_TYPES = {"s": 9, "y": 12, "b": 8, "i": 3, "w": 5, "u": 13, "q": 4, "f": 2, "d": 1}
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip


@cache
def message_classes() -> Mapping[str, Any]:
    """Return the message classes by name."""
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name="modelc_v2.proto", package=_PACKAGE, syntax="proto3")
    for line in filter(None, _MESSAGES.replace("\\\n", "").split("\n")):
        name, _, content = line.partition(":")
        message = file.message_type.add(name=name)
        for text in content.split():
            label, _, kind = text.partition(":")
            own, _, number = label.partition("=")
            if kind.endswith("@"):
                entry = message.nested_type.add(name=f"{own.title()}Entry")
                entry.options.map_entry = True
                _add_field(entry, "key", 1, "s")
                _add_field(entry, "value", 2, kind.removesuffix("@"))
                kind = f"{name}.{entry.name}*"
            _add_field(message, own, int(number), kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        one.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{one.name}")
        )
        for one in file.message_type
    }


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    field = message.field.add(name=name, number=number)
    repeated, kind = kind.endswith("*"), kind.removesuffix("*")
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    field.type = _TYPES.get(kind, field.TYPE_MESSAGE)
    if kind not in _TYPES:
        field.type_name = f".{_PACKAGE}.{kind}"


class GrpcV2Client:
    """A connection to a server's gRPC endpoint."""

    def __init__(self, address: ServerAddress) -> None:
        try:
            import grpc
        except ImportError as error:
            raise MissingError(
                f"{address.scheme}:// needs grpcio, which is not installed",
                hint=f"{hint_for_extra('serve')}, or give the http:// address of the server",
                code=ErrorCode.NOT_INSTALLED,
            ) from error
        self._address = address
        host = f"[{address.host}]" if ":" in address.host else address.host
        options = [
            ("grpc.max_receive_message_length", MAX_REPLY),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.compression_enabled_algorithms_bitset", 1),  # a compressed reply may be a bomb
        ]
        place = f"{host}:{address.port}"
        self._channel = (
            grpc.secure_channel(place, grpc.ssl_channel_credentials(), options)
            if address.is_secure
            else grpc.insecure_channel(place, options)
        )
        self._metadata = tuple((name.lower(), value) for name, value in address.headers)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def describe_server(self) -> V2Server:
        """Ask the server for its name, version and extensions."""
        found = self._call("ServerMetadata", "ServerMetadataRequest", "ServerMetadataResponse")
        clean = self._address.clean
        return V2Server(
            name=clean(found.name),
            version=clean(found.version),
            extensions=tuple(clean(one) for one in found.extensions),
        )

    def list_models(self) -> tuple[ListedModel, ...] | None:
        """Ask for the index of the repository; None where the server has none."""
        found = self._try("RepositoryIndex", "RepositoryIndexRequest", "RepositoryIndexResponse")
        if found is None:
            return None
        clean = self._address.clean
        return tuple(
            ListedModel(name=one.name, version=one.version, state=clean(one.state))
            for one in found.models
        )

    def is_ready(self, model: str, version: str) -> bool:
        """Ask whether a model is ready."""
        asked = {"name": model, "version": version}
        found = self._try("ModelReady", "ModelReadyRequest", "ModelReadyResponse", **asked)
        return found is not None and bool(found.ready)

    def describe_model(self, model: str, version: str) -> V2Model:
        """Ask for the description of a model, and for its configuration where there is one."""
        asked = {"name": model, "version": version}
        found = self._call(
            "ModelMetadata", "ModelMetadataRequest", "ModelMetadataResponse", **asked
        )
        config = self._read_config(
            self._try("ModelConfig", "ModelConfigRequest", "ModelConfigResponse", **asked)
        )
        clean = self._address.clean
        return V2Model(
            name=clean(found.name),
            versions=tuple(clean(one) for one in found.versions),
            platform=clean(found.platform),
            inputs=self._read_tensors(found.inputs, config),
            outputs=self._read_tensors(found.outputs, config),
            config=config,
        )

    def _read_tensors(self, tensors: Any, config: V2Config | None) -> tuple[V2Tensor, ...]:
        known, clean = config or V2Config(), self._address.clean
        return tuple(
            V2Tensor(
                name=one.name,
                datatype=clean(one.datatype),
                shape=read_sizes(list(one.shape), clean(one.name)),
                reshaped=known.reshaped.get(one.name),
                optional=one.name in known.optional,
            )
            for one in tensors
        )

    def _read_config(self, found: Any) -> V2Config | None:
        if found is None:
            return None
        config = found.config
        return V2Config(
            backend=self._address.clean(config.backend),
            max_batch=max(config.max_batch_size, 0),
            parameters={key: value.string_value for key, value in config.parameters.items()},
            reshaped={
                one.name: tuple(one.reshape.shape)
                for one in (*config.input, *config.output)
                if one.HasField("reshape")
            },
            optional=frozenset(one.name for one in config.input if one.optional),
        )

    def infer(self, model: str, version: str, inputs: Sequence[SentTensor]) -> Outputs:
        """Run a model, with tensors as bytes."""
        tensor = message_classes()["InferTensor"]
        found = self._call(
            "ModelInfer",
            "ModelInferRequest",
            "ModelInferResponse",
            model_name=model,
            model_version=version,
            inputs=[
                tensor(name=one.name, datatype=one.datatype, shape=one.array.shape)
                for one in inputs
            ],
            raw_input_contents=[pack_array(one) for one in inputs],
        )
        check_replier((model, version), (found.model_name, found.model_version))
        raw = list(found.raw_output_contents)
        if raw and len(raw) != len(found.outputs):
            raise reply_error(f"it has bytes for {len(raw)} of {len(found.outputs)} outputs")
        outputs: dict[str, Array] = {}
        for number, one in enumerate(found.outputs):
            if one.name in outputs:
                raise reply_error("an output repeats")
            if raw:
                array = unpack_array(one.name, one.datatype, list(one.shape), raw[number])
            else:
                values = getattr(one.contents, _CONTENTS.get(one.datatype, "bytes_contents"))
                array = unpack_list(one.name, one.datatype, list(one.shape), list(values))
            outputs[one.name] = array
        return outputs

    def _try(self, method: str, request: str, reply: str, **fields: object) -> Any:
        """Call a method that a server may not have; None if it rejects it."""
        try:
            return self._call(method, request, reply, **fields)
        except _RejectedCallError:
            return None

    def _call(self, method: str, request: str, reply: str, **fields: object) -> Any:
        import grpc

        classes = message_classes()
        call = self._channel.unary_unary(
            f"{_SERVICE}{method}",
            request_serializer=classes[request].SerializeToString,
            response_deserializer=classes[reply].FromString,
        )
        try:
            return call(
                classes[request](**fields), timeout=self._address.timeout, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise self._error_of(error) from error

    def _error_of(self, error: grpc.RpcError) -> RunnerError:
        """Return the error for a call that failed, by its status."""
        from grpc import StatusCode

        code, text = error.code(), error.details() or ""
        if code is StatusCode.DEADLINE_EXCEEDED:
            return late_error(self._address)
        if code is StatusCode.UNAVAILABLE:
            return unreachable_error(self._address, text)
        if code in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
            return credentials_error(self._address, code.name)
        if code is StatusCode.RESOURCE_EXHAUSTED:
            return large_reply_error(MAX_REPLY)
        if code is StatusCode.UNIMPLEMENTED or code is not StatusCode.INTERNAL:
            return _RejectedCallError.of(rejection_error(self._address, code.name, text))
        return rejection_error(self._address, code.name, text)


class _RejectedCallError(RunnerError):
    """A call that the server rejected, or does not have."""

    @classmethod
    def of(cls, error: RunnerError) -> _RejectedCallError:
        """Return the same error of this class."""
        return cls(error.message, hint=error.advice, code=error.code)
