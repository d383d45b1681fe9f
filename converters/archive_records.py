"""Records in torch archives: how to call a program, its origin, sizes and operators."""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import RECORD, Inspection, Job, TensorInfo
from ..core.errors import ErrorCode, RunnerError, UsageError, first_line
from ..core.grammar import parse_input
from ..core.records import sha256_of
from ..core.signature import InputSpec, merge_inputs

if TYPE_CHECKING:
    import torch

ENGINE_OPERATORS = "torch.ops.tensorrt."  # of torch-tensorrt, which run engines
_GRAPH = re.compile(r"/models/[^/]*\.json$")
_MAX_GRAPH_BYTES = 1 << 29  # bytes of all graphs; BERT-base has half a megabyte
_MAX_RECORD_BYTES = 1 << 26  # bytes of a record; that of a large model has a few thousand names


def build_call_record(job: Job, form: str) -> str:
    """Return an archive's record as JSON: how to call it, and its origin."""
    return json.dumps(
        {
            **job.metadata,
            "call": form,
            "inputs": [spec.name for spec in job.signature.inputs],
            "outputs": list(job.signature.outputs),
            "signature": [str(spec) for spec in job.signature.inputs],
        }
    )


def parse_call_record(text: str) -> dict[str, Any]:
    """Parse the record of `build_call_record`; empty if an archive has none."""
    record: dict[str, Any] = json.loads(text) if text else {}
    return record


def read_torch_metadata(path: Path) -> dict[str, str]:
    """Read the origin of an archive's model without loading anything.

    Raises:
        RunnerError: it is not an archive, or its record is invalid.
    """
    return record_origin(read_record(path))


def read_record(path: Path) -> dict[str, Any]:
    """Read the record of `build_call_record` without loading anything; empty if there is none.

    Raises:
        RunnerError: it is not an archive, or its record is invalid.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [e for e in archive.infolist() if e.filename.endswith(f"/extra/{RECORD}")]
            sound = len(inside) == 1 and inside[0].file_size <= _MAX_RECORD_BYTES
            record = json.loads(archive.read(inside[0])) if sound else {}
    except Exception as error:  # zipfile and JSON raise anything on damaged members
        raise RunnerError(f"{path.name}: {first_line(error)}", hint="export it again") from error
    if inside and not sound:
        raise RunnerError(
            f"{path.name} has {len(inside)} records of {inside[0].file_size} bytes",
            hint="export it again; modelc writes one short record",
        )
    if not isinstance(record, dict):
        raise RunnerError(f"{path.name} contains no valid modelc metadata", hint="export it again")
    return record


def read_targets(path: Path) -> tuple[str, ...]:
    """Return what each node of an archive's programs calls, without loading it: none if unreadable.

    Names are as torch writes them: `torch.ops.aten.sin.default`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            graphs = [one for one in archive.infolist() if _GRAPH.search(one.filename)]
            if sum(one.file_size for one in graphs) > _MAX_GRAPH_BYTES:
                return ()
            modules = [json.loads(archive.read(one))["graph_module"] for one in graphs]
            nodes = (node for module in modules for node in module["graph"]["nodes"])
            return tuple(str(node["target"]) for node in nodes)
    except Exception:  # noqa: BLE001 - zipfile and JSON raise anything on damaged members
        return ()


INSIDE = "inside"  # the record of the contents of a file that is not opened to describe it


def describe_program(
    program: torch.export.ExportedProgram, record: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entry `INSIDE` of a record: what `inspect_record` shows of a program."""
    inputs, outputs = tensor_infos(program, record)
    return {
        "inputs": [asdict(info) for info in inputs],
        "outputs": [asdict(info) for info in outputs],
        "ranges": size_ranges(program, record_specs(record)),
        "weights": count_weights(program),
        "operators": count_operators(program),
    }


def inspect_record(target: str, record: Mapping[str, Any], facts: Mapping[str, str]) -> Inspection:
    """Return the description of a file from its record, with the facts that it has besides.

    Raises:
        RunnerError: the record's entries have other types.
    """
    try:
        return _read_inspection(target, record, facts)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunnerError(
            f"its record of the model is invalid: {type(error).__name__}: {first_line(error)}",
            hint="export it again",
            code=ErrorCode.CORRUPT_FILE,
        ) from error


def _read_inspection(
    target: str, record: Mapping[str, Any], facts: Mapping[str, str]
) -> Inspection:
    inside = record.get(INSIDE, {})
    inputs, outputs = (
        tuple(
            TensorInfo(
                name=str(info["name"]), dtype=str(info["dtype"]), dims=tuple(map(str, info["dims"]))
            )
            for info in inside.get(key, ())
        )
        for key in ("inputs", "outputs")
    )
    return Inspection(
        target=target,
        inputs=inputs,
        outputs=outputs,
        facts={**facts, "ranges": str(inside.get("ranges", ""))},
        weights=_read_counts(inside.get("weights", {})),
        operators=_read_counts(inside.get("operators", {})),
        metadata=record_origin(record),
    )


def _read_counts(entry: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(count) for name, count in entry.items()}


_MADE_HERE: set[str] = set()  # digests of files that this process made, whose code is its own


def trust_file(path: Path) -> None:
    """Remember that this process made a file, as long as it stays the same."""
    _MADE_HERE.add(sha256_of(path))


def distrust_reason(path: Path, settings: Mapping[str, str], what: str) -> str:
    """Return why a file must not be opened; empty if this process made it.

    Args:
        path: the file.
        settings: `trust_engine` trusts its maker.
        what: the code in it, as `machine code`.
    """
    if settings.get("trust_engine") == "true" or sha256_of(path) in _MADE_HERE:
        return ""
    return f"{path.name} is {what}, which runs when it is opened"


def check_trust(reason: str) -> None:
    """Refuse to open a file for this reason, if there is one.

    Raises:
        RunnerError: there is.
    """
    if reason:
        hint = "add --trust, only if you trust its maker"
        raise RunnerError(reason, hint=hint, code=ErrorCode.CONSENT_REQUIRED)


def record_origin(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the record's entries on the model's origin, without those on calling it."""
    form = ("call", "inputs", "outputs", "signature", INSIDE)
    return {key: str(value) for key, value in record.items() if key not in form}


_SYMBOL = re.compile(r"\b[su]\d+\b")
_ENDLESS = 2**31  # torch's sizes without an upper bound are larger than this
_LEAST = 2  # least sizes at which torch's ranges begin for 0 or 1


def record_specs(record: Mapping[str, Any]) -> tuple[InputSpec, ...]:
    """Return the record's inputs; none if it has none that can be read."""
    texts = record.get("signature")
    if not isinstance(texts, list) or not texts:
        return ()
    try:
        return merge_inputs([parse_input(str(text)) for text in texts], {}).inputs
    except UsageError:
        return ()


def tensor_infos(
    program: torch.export.ExportedProgram, record: Mapping[str, Any]
) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Return inputs and outputs, under the record's names if it has them."""
    signature = program.graph_signature
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names = symbol_names(program, record_specs(record))
    return (
        _list_tensors(signature.user_inputs, record.get("inputs"), values, names),
        _list_tensors(signature.user_outputs, record.get("outputs"), values, names),
    )


def symbol_names(
    program: torch.export.ExportedProgram, specs: Sequence[InputSpec]
) -> dict[str, str]:
    """Return the user's name of each of torch's symbols, and of sizes that follow from one."""
    names: dict[str, str] = {}
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    ids = program.graph_signature.user_inputs
    if len(ids) != len(specs):
        return names
    for key, spec in zip(ids, specs, strict=True):
        sizes = getattr(values.get(str(key)), "shape", ())
        for size, dim in zip(sizes, spec.dims, strict=False):
            if dim.name is not None and not isinstance(size, int):
                names.setdefault(str(size), dim.name)
    return names


def size_ranges(program: torch.export.ExportedProgram, specs: Sequence[InputSpec]) -> str:
    """Return the sizes that the program accepts: `batch=1..8, seq=1..`."""
    names = symbol_names(program, specs)
    dims = {dim.name: dim for spec in specs for dim in spec.dims}
    ranges = []
    for symbol, found in program.range_constraints.items():
        name = _rename_symbols(str(symbol), names)
        low = int(found.lower)
        if low == _LEAST and name in dims:  # 2 means any size: torch specialises 0 and 1
            low = min(low, dims[name].low)
        high = int(found.upper) if found.upper < _ENDLESS else ""
        ranges.append(f"{name}={low}..{high}")
    return ", ".join(ranges)


def count_operators(program: torch.export.ExportedProgram) -> Counter[str]:
    """Count the calls of each operator."""
    return Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")


def count_weights(program: torch.export.ExportedProgram) -> Counter[str]:
    """Count the elements of parameters and buffers by dtype."""
    found: Counter[str] = Counter()
    for tensor in program.state_dict.values():
        found[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return found


def _rename_symbols(text: str, names: Mapping[str, str]) -> str:
    """Rewrite torch's text of a size with the user's names."""
    return names.get(text) or _SYMBOL.sub(lambda m: names.get(m.group(), m.group()), text)


def _list_tensors(
    ids: Sequence[object],
    shown: Sequence[str] | None,
    values: Mapping[str, Any],
    names: Mapping[str, str],
) -> tuple[TensorInfo, ...]:
    known = shown if shown is not None and len(shown) == len(ids) else [str(i) for i in ids]
    infos = []
    for name, key in zip(known, ids, strict=True):
        value = values.get(str(key))
        dtype = str(getattr(value, "dtype", "?")).removeprefix("torch.")
        dims = tuple(_rename_symbols(str(dim), names) for dim in getattr(value, "shape", ()))
        infos.append(TensorInfo(name=name, dtype=dtype, dims=dims))
    return tuple(infos)
