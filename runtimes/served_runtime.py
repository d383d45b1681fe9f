"""A model on a server that speaks the V2 inference protocol, as a runtime for artifacts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError

from ..converters.runner_base import RunnerBase, order_inputs
from ..core.contract import Array, Feed, Outputs, Runner
from ..core.errors import ErrorCode, Hint, Option, RunnerError, UsageError, unknown_name_error
from ..core.external_runtime import Declaration, OutputForm, Versions
from ..core.records import Artifact
from ..core.signature import Signature
from .served_form import check_form, half_datatype, match_tensors
from .v2_client import ServerAddress, V2Client, V2Model, V2Server, V2Tensor, open_client
from .v2_tensors import SentTensor

_SENDERS = 4  # connections that send requests at the same time
_MEETING = 5.0  # seconds that a sender waits for the others
_MAX_LISTED = 20  # models of a server in a message


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A model on a server: what both say of themselves, and the name and version to ask for."""

    name: str
    server: V2Server
    model: V2Model
    version: str


def find_model(address: ServerAddress, name: str | None = None, version: str = "") -> FoundModel:
    """Find a model on a server that is ready; without a name, the only one.

    The newest version is asked by its number, so that it stays the same if another is loaded.

    Raises:
        UsageError: there is no such model, or no name was given and there are several.
        RunnerError: the server does not answer, or the model is not ready.
    """
    with _connect(address) as client:
        server = client.describe_server()
        name = name or _only_model(client)
        if not client.is_ready(name, version):
            raise _absence_error(client, name, version)
        model = client.describe_model(name, version)
    numbers = [one for one in model.versions if one.isascii() and one.isdecimal()]
    pinned = version or max(numbers, key=int, default="")
    return FoundModel(name=name, server=server, model=model, version=pinned)


# The target by what a server calls the format: a backend or platform of Triton, or another server's
_TARGETS = {
    "onnxruntime": "onnx", "onnx": "onnx", "tensorrt": "tensorrt", "openvino": "openvino",
    "pytorch": "torchscript", "torchscript": "torchscript",
}  # fmt: skip


def find_target(found: FoundModel) -> str:
    """Return the target of the format that the server names; empty if it names none."""
    backend = found.model.config.backend if found.model.config is not None else ""
    named = (backend or found.model.platform).lower()
    return next((target for word, target in _TARGETS.items() if word in named), "")


@contextmanager
def _connect(address: ServerAddress) -> Iterator[V2Client]:
    client = open_client(address)
    try:
        yield client
    finally:
        client.close()


def _only_model(client: V2Client) -> str:
    listed = client.list_models()
    names = sorted({one.name for one in listed or ()})
    if len(names) == 1:
        return names[0]
    known = f": {', '.join(map(repr, names[:_MAX_LISTED]))}" if names else ""
    raise UsageError(
        f"the server has {len(names)} models{known}" if listed is not None
        else "the server does not list its models",
        hint=Hint("name one: ", Option("model", "NAME")), option="model",
        code=ErrorCode.UNKNOWN_NAME,
    )  # fmt: skip


def _absence_error(client: V2Client, name: str, version: str) -> RunnerError | UsageError:
    """Return the error for a model that is not ready: unknown, unknown version, or not loaded."""
    listed = client.list_models() or ()
    mine = [one for one in listed if one.name == name]
    if listed and not mine:
        return unknown_name_error("model", name, sorted({one.name for one in listed}))
    versions = [one.version for one in mine if one.version]
    if version and versions and version not in versions:
        return unknown_name_error(f"version of {name}", version, versions)
    state = next((one.state for one in mine if version in ("", one.version)), "")
    shown = f" ({state})" if state else ""
    return RunnerError(
        f"model {name!r} {f'version {version} ' if version else ''}is not ready{shown}",
        hint="the server's log says why it did not load, or whether it knows the model",
        code=ErrorCode.SERVER_REJECTED,
    )


@dataclass(frozen=True, kw_only=True)
class ServedRuntime:
    """A model on a server that is said to serve an artifact; an empty version is the newest.

    All requests ask for the version `pinned`, so that the server may load a newer one meanwhile.
    """

    address: ServerAddress
    model: str
    version: str = ""
    pinned: str = ""

    @property
    def name(self) -> str:
        """The address of the model."""
        version = f"/versions/{self.version}" if self.version else ""
        return f"{self.address.url}/{self.model}{version}"

    def decline_reason(self, artifact: Artifact) -> str:  # noqa: ARG002 - the contract's
        """Return nothing: the user names the artifact that the server has."""
        return ""

    def prepare(self, path: Path, artifact: Artifact) -> Versions:  # noqa: ARG002 - the contract's
        """Return the server's name and version, and the model's name, version and platform.

        Raises:
            UsageError: the model is unknown.
            RunnerError: the server does not answer, or the model is not ready.
        """
        found = self._find()
        config = found.model.config
        facts = {
            "server": f"{found.server.name} {found.server.version}".strip(),
            "model": self.model,
            "version": found.version,
            "platform": found.model.platform or (config.backend if config else ""),
        }
        return {name: value for name, value in facts.items() if value}

    def _find(self) -> FoundModel:
        return find_model(self.address, self.model, self.version or self.pinned)

    def open(self, path: Path, artifact: Artifact, signature: Signature) -> Runner:  # noqa: ARG002
        """Connect to the server."""
        return self._open(artifact, signature)

    def _open(self, artifact: Artifact, signature: Signature) -> ServedRunner:
        found = self._find()
        return ServedRunner(open_client(self.address), found, signature, half_datatype(artifact))

    def check_declared(
        self, artifact: Artifact, signature: Signature, outputs: Mapping[str, OutputForm]
    ) -> Declaration:
        """Compare the server's description with the artifact."""
        return check_form(self._find().model, artifact, signature, outputs)

    def run_together(
        self, artifact: Artifact, signature: Signature, feeds: Sequence[Feed]
    ) -> list[list[Outputs | None]]:
        """Send all feeds over several connections, each in another order, in step."""
        send = partial(self._send_all, artifact, signature, feeds, Barrier(_SENDERS))
        with ThreadPoolExecutor(_SENDERS) as pool:
            rounds = list(pool.map(send, range(_SENDERS)))
        return [list(replies) for replies in zip(*rounds, strict=True)]

    def _send_all(
        self,
        artifact: Artifact,
        signature: Signature,
        feeds: Sequence[Feed],
        step: Barrier,
        sender: int,
    ) -> list[Outputs | None]:
        """Send each feed once; wait for the other senders before each, so that requests meet."""
        count = len(feeds)
        start = sender * count // _SENDERS
        found: dict[int, Outputs | None] = {}
        with self._open(artifact, signature) as runner:
            for number in (*range(start, count), *range(start)):
                with suppress(BrokenBarrierError):  # another sender is late, or has given up
                    step.wait(_MEETING)
                try:
                    found[number] = runner.run(feeds[number])
                except RunnerError as error:
                    if error.code is ErrorCode.SERVER_UNREACHABLE:
                        step.abort()
                        raise
                    found[number] = None
        return [found[number] for number in range(count)]


class ServedRunner(RunnerBase):
    """Sends feeds to a model on a server.

    Floats of an artifact with half inputs are converted on both ways, as in its own runtime.
    """

    def __init__(
        self, client: V2Client, found: FoundModel, signature: Signature, half: str
    ) -> None:
        self._client, self._found, self._half = client, found, half
        specs = {spec.name: spec for spec in signature.inputs}
        matched = match_tensors(found.model.inputs, list(specs))
        self._inputs = matched.pairs
        self._ranks = {name: len(specs[name].dims) for name in matched.pairs}
        self.inputs = tuple(matched.pairs)
        answers = match_tensors(found.model.outputs, signature.outputs)
        self._outputs = answers.pairs
        self._order = signature.outputs

    def run(self, feed: Feed) -> Outputs:
        """Send one request."""
        arrays = dict(zip(self.inputs, order_inputs(feed, self.inputs), strict=True))
        sent = [self._encode_input(name, array) for name, array in arrays.items()]
        found = self._client.infer(self._found.name, self._found.version, sent)
        ours = {tensor.name: name for name, tensor in self._outputs.items()}
        named = {ours.get(name, name): array for name, array in found.items()}
        ordered = [*filter(named.__contains__, self._order), *(set(named) - set(self._order))]
        return {name: self._decode_output(name, named[name]) for name in ordered}

    def _encode_input(self, name: str, array: Array) -> SentTensor:
        tensor = self._inputs[name]
        if tensor.datatype == "FP16" == self._half:
            array = array.astype("float16")
        if len(tensor.shape) == self._ranks[name] + 1:
            array = array.reshape(*array.shape, 1)
        return SentTensor(name=tensor.name, datatype=tensor.datatype, array=array)

    def _decode_output(self, name: str, array: Array) -> Array:
        tensor = self._outputs.get(name)
        if tensor is not None and _adds_one(tensor) and array.shape[-1:] == (1,):
            array = array.reshape(array.shape[:-1])
        return array.astype("float32") if self._half and array.dtype == "float16" else array

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _adds_one(tensor: V2Tensor) -> bool:
    """Whether the server adds a dim of 1 to what the model returns."""
    return tensor.reshaped == ()
