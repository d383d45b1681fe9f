"""Compare what a server declares of a model with the artifact that it is said to serve."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..core.dims import Dim
from ..core.external_runtime import Declaration, OutputForm
from ..core.kinds import ReasonCode
from ..core.records import Artifact
from ..core.signature import Signature
from ..core.verdict import Reason
from .v2_client import V2Model, V2Tensor
from .v2_tensors import DATATYPES, dtype_of

_NUMBERED = re.compile(r".+__(\d{1,4})")  # how Triton's PyTorch backend names tensors
_HALVES = {"fp16": "FP16", "bf16": "BF16"}
_MAX_SHOWN = 80  # characters of a server's name of a tensor


@dataclass(frozen=True, kw_only=True)
class MatchedTensors:
    """The server's tensors by the signature's names, and what has no partner on the other side."""

    pairs: Mapping[str, V2Tensor]
    missing: tuple[str, ...] = ()
    extra: tuple[V2Tensor, ...] = ()


def match_tensors(tensors: Sequence[V2Tensor], names: Sequence[str]) -> MatchedTensors:
    """Match a server's tensors with the signature's names.

    By name if one is equal; otherwise by the number at the end of the names (`INPUT__0`), or by
    position, if there are as many.
    """
    own = {tensor.name: tensor for tensor in tensors}
    if own.keys().isdisjoint(names) and len(own) == len(names):
        return MatchedTensors(pairs=dict(zip(names, _by_number(tensors), strict=True)))
    return MatchedTensors(
        pairs={name: own[name] for name in names if name in own},
        missing=tuple(name for name in names if name not in own),
        extra=tuple(tensor for tensor in tensors if tensor.name not in names),
    )


def _by_number(tensors: Sequence[V2Tensor]) -> list[V2Tensor]:
    """Return tensors whose names end in 0, 1, 2 … in that order, others as they are."""
    found = [_NUMBERED.fullmatch(tensor.name) for tensor in tensors]
    numbers = [int(one.group(1)) for one in found if one is not None]
    if sorted(numbers) != list(range(len(tensors))):
        return list(tensors)
    return [tensor for _, tensor in sorted(zip(numbers, tensors, strict=True), key=lambda p: p[0])]


def half_datatype(artifact: Artifact) -> str:
    """Return the datatype of the floats of an artifact with half inputs; empty for others."""
    return _HALVES.get(artifact.options.get("io", ""), "")


def check_form(
    model: V2Model, artifact: Artifact, signature: Signature, outputs: Mapping[str, OutputForm]
) -> Declaration:
    """Compare a server's description with the signature and the forms of eager's outputs."""
    inputs = match_tensors(model.inputs, [spec.name for spec in signature.inputs])
    answers = match_tensors(model.outputs, signature.outputs)
    half = half_datatype(artifact)
    faults = [
        *_check_names(inputs, answers),
        *_check_inputs(inputs, signature, half),
        *_check_outputs(answers, outputs, half),
        *_check_batch(model, inputs, signature),
    ]
    notes = [f"the server takes no input {name!r}" for name in inputs.missing]
    return Declaration(
        reasons=tuple(Reason(code=code, text=text, fault=True) for code, text in faults),
        notes=(*notes, *_note_wider(model, inputs, signature)),
        runnable=all(code is not ReasonCode.DECLARED_FORM for code, _ in faults),
    )


_Fault = tuple[ReasonCode, str]


def _form_fault(text: str) -> _Fault:
    return ReasonCode.DECLARED_FORM, text


def _domain_fault(text: str) -> _Fault:
    return ReasonCode.DECLARED_DOMAIN, text


def _quote_name(tensor: V2Tensor) -> str:
    return repr(tensor.name[:_MAX_SHOWN])


def _check_names(inputs: MatchedTensors, outputs: MatchedTensors) -> Iterator[_Fault]:
    for tensor in inputs.extra:
        if not tensor.optional:
            yield _form_fault(
                f"the server requires an input {_quote_name(tensor)}, the model has none"
            )
    for name in outputs.missing:
        yield _form_fault(f"the server has no output {name!r}")
    for tensor in outputs.extra:
        yield _form_fault(f"the server has an output {_quote_name(tensor)}, the model has none")


def _check_inputs(matched: MatchedTensors, signature: Signature, half: str) -> Iterator[_Fault]:
    for spec in signature.inputs:
        tensor = matched.pairs.get(spec.name)
        if tensor is None:
            continue
        where = f"input {spec.name!r}"
        yield from _check_dtype(where, tensor, spec.dtype, half)
        shape = fit_rank(tensor.shape, len(spec.dims))
        if shape is None:
            dims = ",".join(map(str, spec.dims))
            yield _form_fault(f"{where} has the shape {_text(tensor)} on the server, not [{dims}]")
            continue
        for axis, (size, dim) in enumerate(zip(shape, spec.dims, strict=True)):
            yield from _check_size(f"dim {dim.name or axis} of {where}", size, dim)


def _check_size(where: str, size: int, dim: Dim) -> Iterator[_Fault]:
    if size == -1 or (not dim.dynamic and size == dim.opt):
        return
    if dim.dynamic and dim.low <= size <= dim.high:
        yield _domain_fault(f"{where} is always {size} on the server, and {dim} in the domain")
    else:
        yield _form_fault(f"{where} is {size} on the server, not {dim}")


def _check_dtype(where: str, tensor: V2Tensor, dtype: str, half: str) -> Iterator[_Fault]:
    wanted = {DATATYPES.get(dtype, "")}
    if dtype == "float32":
        wanted |= {half}
    if tensor.datatype not in wanted:
        yield _form_fault(f"{where} is {tensor.datatype or 'untyped'} on the server, not {dtype}")


def _check_outputs(
    matched: MatchedTensors, forms: Mapping[str, OutputForm], half: str
) -> Iterator[_Fault]:
    for name, tensor in matched.pairs.items():
        where, form = f"output {name!r}", forms.get(name)
        if form is None:
            continue
        if dtype_of(tensor.datatype) != form.dtype:
            yield from _check_dtype(where, tensor, form.dtype, half)
        shape = fit_rank(tensor.shape, len(form.dims))
        if shape is None or any(
            size not in (-1, dim) and dim != -1 for size, dim in zip(shape, form.dims, strict=True)
        ):
            dims = list(form.dims)
            yield _form_fault(f"{where} has the shape {_text(tensor)} on the server, not {dims}")
        elif any(size != -1 and dim == -1 for size, dim in zip(shape, form.dims, strict=True)):
            yield _domain_fault(f"{where} always has the shape {_text(tensor)} on the server")


def _text(tensor: V2Tensor) -> str:
    return str(list(tensor.shape))


def fit_rank(shape: tuple[int, ...], rank: int) -> tuple[int, ...] | None:
    """Return a shape without the 1 that servers add to scalars; None if the rank differs."""
    if len(shape) == rank:
        return shape
    return shape[:-1] if len(shape) == rank + 1 and shape[-1] == 1 else None


def _batch_dims(
    model: V2Model, matched: MatchedTensors, signature: Signature
) -> dict[str, tuple[int, Dim]]:
    """Return the dims that the server batches, by name, with its limit."""
    limit = model.config.max_batch if model.config is not None else None
    if not limit:
        return {}
    return {
        dim.name or "batch": (limit, dim)
        for spec in signature.inputs
        for dim in spec.dims[:1]
        if spec.name in matched.pairs
    }


def _check_batch(model: V2Model, matched: MatchedTensors, signature: Signature) -> Iterator[_Fault]:
    for name, (limit, dim) in _batch_dims(model, matched, signature).items():
        if dim.bounded and dim.high > limit:
            yield _domain_fault(
                f"the server accepts dim {name} up to {limit}, the artifact up to {dim.high}"
            )


def _note_wider(model: V2Model, matched: MatchedTensors, signature: Signature) -> Iterator[str]:
    for name, (limit, dim) in _batch_dims(model, matched, signature).items():
        if dim.bounded and dim.high < limit:
            yield f"the server accepts dim {name} up to {limit}: validated is {dim.low}..{dim.high}"
