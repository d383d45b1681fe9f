"""The JSON of the V2 inference protocol: descriptions, configurations, requests and outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.contract import Array, Outputs
from .v2_client import V2Config, check_replier, large_reply_error, read_sizes, reply_error
from .v2_tensors import SentTensor, pack_array, unpack_array, unpack_list

JSON_LENGTH = "Inference-Header-Content-Length"
MAX_JSON = 1 << 26  # bytes; lists of numbers take ten times that in memory


@dataclass(frozen=True, kw_only=True)
class HttpReply:
    """A reply: its status, the length of its JSON part if tensors follow it, and its body."""

    status: int
    body: bytes
    json_length: str | None = None
    detail: str = ""


def parse_json(body: bytes) -> Any:
    """Parse a reply.

    Raises:
        RunnerError: it is not JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise reply_error("it is not JSON") from error


def read_config(found: Mapping[str, Any]) -> V2Config:
    """Return what is used of a model's configuration; odd parts are left out."""
    limit = found.get("max_batch_size")
    parameters = found.get("parameters")
    inputs, outputs = _dicts(found.get("input")), _dicts(found.get("output"))
    reshaped: dict[str, tuple[int, ...]] = {}
    for one in (*inputs, *outputs):
        shape = one.get("reshape")
        if isinstance(shape, dict):
            sizes = shape.get("shape") or []
            reshaped[str(one.get("name"))] = read_sizes(sizes, "a reshaped tensor")
    return V2Config(
        backend=str(found.get("backend") or ""),
        max_batch=limit if isinstance(limit, int) and limit >= 0 else None,
        parameters={
            str(key): str(value.get("string_value", ""))
            for key, value in (parameters if isinstance(parameters, dict) else {}).items()
            if isinstance(value, dict)
        },
        reshaped=reshaped,
        optional=frozenset(str(one.get("name")) for one in inputs if one.get("optional") is True),
    )


def _dicts(values: object) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def describe_input(tensor: SentTensor, *, binary: bool) -> dict[str, object]:
    """Return an input as a request describes it, with its values unless they follow as bytes."""
    described: dict[str, object] = {
        "name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.array.shape),
    }  # fmt: skip
    if binary:
        described["parameters"] = {"binary_data_size": len(pack_array(tensor))}
    else:
        described["data"] = tensor.array.ravel().tolist()
    return described


def read_outputs(reply: HttpReply, asked: tuple[str, str]) -> Outputs:
    """Read the outputs of an inference.

    Raises:
        RunnerError: lengths, shapes and datatypes contradict each other, or another model than
            `asked` (its name and version, empty for any) replied.
    """
    length = _json_length(reply)
    found = parse_json(reply.body[:length])
    described = found.get("outputs") if isinstance(found, dict) else None
    if isinstance(found, dict):
        check_replier(
            asked, (str(found.get("model_name", "")), str(found.get("model_version", "")))
        )
    if not isinstance(described, list) or not all(isinstance(one, dict) for one in described):
        raise reply_error("it has no list of outputs")
    outputs: dict[str, Array] = {}
    place = length
    for one in described:
        name, shape = str(one.get("name", "")), one.get("shape")
        if name in outputs or not isinstance(shape, list):
            raise reply_error("an output repeats, or has no shape")
        datatype, size = str(one.get("datatype", "")), _binary_size(one)
        if size is None:
            outputs[name] = unpack_list(name, datatype, shape, one.get("data"))
            continue
        if size > len(reply.body) - place:
            raise reply_error("it ends within the bytes of an output")
        outputs[name] = unpack_array(name, datatype, shape, reply.body[place : place + size])
        place += size
    if place != len(reply.body):
        raise reply_error(f"{len(reply.body) - place} bytes follow the outputs")
    return outputs


def _json_length(reply: HttpReply) -> int:
    """Return how many bytes of the body are JSON; the bytes of tensors follow."""
    length = len(reply.body)
    if reply.json_length is not None:
        text = reply.json_length.strip()
        if not (text.isascii() and text.isdecimal()) or int(text) > length:
            raise reply_error(f"{JSON_LENGTH} is not a length within the reply")
        length = int(text)
    if length > MAX_JSON:
        raise large_reply_error(MAX_JSON)
    return length


def _binary_size(output: Mapping[str, Any]) -> int | None:
    """Return how many bytes of an output follow the JSON; None if it is a list in there."""
    parameters = output.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is not None and (not isinstance(size, int) or size < 0):
        raise reply_error("the number of bytes of an output is not a size")
    return size
