"""Ensembles: models that a server runs one after another, with the tensors between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.errors import ErrorCode, UsageError, unknown_name_error
from .repository_records import ModelInterface, ServedTensor


@dataclass(frozen=True, kw_only=True)
class EnsembleStep:
    """One model of an ensemble: the ensemble's tensor for each of its inputs and outputs."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class EnsembleSpec:
    """An ensemble as a project declares it; without `outputs`, what no step takes is given out."""

    name: str
    steps: tuple[EnsembleStep, ...]
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EnsembleModel:
    """An ensemble with the dtype and the dims of its inputs and outputs."""

    name: str
    steps: tuple[EnsembleStep, ...]
    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]


def build_ensemble(spec: EnsembleSpec, interfaces: Mapping[str, ModelInterface]) -> EnsembleModel:
    """Derive the inputs and outputs of an ensemble from its models.

    Args:
        spec: the ensemble.
        interfaces: the interface of each model that it may use, by name.

    Raises:
        UsageError: a model or tensor is unknown, or two ends of a tensor do not fit.
    """
    for step in spec.steps:
        if step.model not in interfaces:
            raise unknown_name_error(
                f"model in the ensemble {spec.name}:", step.model, sorted(interfaces)
            )
    faults = list(find_ensemble_faults(spec.steps, interfaces))
    if faults:
        raise _error(spec, faults[0])
    inputs = {
        tensor: _end(interfaces[step.model].inputs, name, tensor)
        for step in spec.steps
        for name, tensor in step.inputs.items()
    }
    outputs = {
        tensor: _end(interfaces[step.model].outputs, name, tensor)
        for step in spec.steps
        for name, tensor in step.outputs.items()
    }
    given_out = spec.outputs or tuple(name for name in outputs if name not in inputs)
    for name in given_out:
        if name not in outputs:
            raise unknown_name_error(f"output of the ensemble {spec.name}:", name, [*outputs])
    if not given_out:
        raise _error(spec, ("no tensor is left as its output", "name some: outputs = [...]"))
    return EnsembleModel(
        name=spec.name,
        steps=spec.steps,
        inputs=tuple(one for name, one in inputs.items() if name not in outputs),
        outputs=tuple(outputs[name] for name in given_out),
    )


def _error(spec: EnsembleSpec, fault: tuple[str, str]) -> UsageError:
    text, hint = fault
    return UsageError(f"the ensemble {spec.name}: {text}", hint=hint, code=ErrorCode.INVALID_VALUE)


def _end(tensors: Sequence[ServedTensor], name: str, tensor: str) -> ServedTensor:
    found = next(one for one in tensors if one.name == name)
    return replace(found, name=tensor)


def find_ensemble_faults(
    steps: Sequence[EnsembleStep], interfaces: Mapping[str, ModelInterface]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the tensor maps of known models, each with a hint."""
    made: dict[str, ServedTensor] = {}
    for step in steps:
        yield from _output_faults(step, interfaces[step.model], made)
    ends = dict(made)
    for step in steps:
        yield from _input_faults(step, interfaces[step.model], ends)
    if _has_cycle(steps):
        yield "its steps wait for each other", "let no step take what follows from its own outputs"


def _output_faults(
    step: EnsembleStep, model: ModelInterface, made: dict[str, ServedTensor]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the outputs of a step, and add its tensors to `made`."""
    outputs = {one.name: one for one in model.outputs}
    for name, tensor in step.outputs.items():
        if name not in outputs:
            yield _unknown("output", step.model, name, model.outputs)
        elif tensor in made:
            yield f"{tensor} comes from two steps", "give one of them another name"
        else:
            made[tensor] = outputs[name]


def _input_faults(
    step: EnsembleStep, model: ModelInterface, ends: dict[str, ServedTensor]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the inputs of a step; `ends` has one end of each tensor."""
    inputs = {one.name: one for one in model.inputs}
    for name in inputs.keys() - step.inputs.keys():
        yield f"the input {name} of {step.model} gets no tensor", "add it to the step's inputs"
    for name, tensor in step.inputs.items():
        if name not in inputs:
            yield _unknown("input", step.model, name, model.inputs)
            continue
        wrong = describe_misfit(ends.setdefault(tensor, inputs[name]), inputs[name])
        if wrong:
            yield (
                f"{tensor} does not fit the input {name} of {step.model}: {wrong}",
                "map a tensor of the same dtype and dims",
            )


def _unknown(noun: str, model: str, name: str, tensors: Sequence[ServedTensor]) -> tuple[str, str]:
    known = ", ".join(one.name for one in tensors)
    return f"{model} has no {noun} {name}", f"its {noun}s are {known}"


def find_exchanged_maps(steps: Sequence[EnsembleStep]) -> Iterator[str]:
    """Yield which tensors have each other's names: dtypes and dims alone do not show a mistake."""
    for step in steps:
        for noun, maps in (("input", step.inputs), ("output", step.outputs)):
            for name, tensor in maps.items():
                if name < tensor and maps.get(tensor) == name:
                    yield f"the {noun}s {name} and {tensor} of {step.model} have each other's names"


def describe_map_change(steps: Sequence[EnsembleStep], packed: Sequence[EnsembleStep]) -> str:
    """Return how the steps of an ensemble differ from the packed ones; empty if they do not."""
    if [one.model for one in steps] != [one.model for one in packed]:
        return f"its steps are {', '.join(one.model for one in packed)} as packed"
    for step, other in zip(steps, packed, strict=True):
        for noun, own, known in (
            ("input", step.inputs, other.inputs), ("output", step.outputs, other.outputs)
        ):  # fmt: skip
            for name in sorted(own.keys() | known.keys()):
                if own.get(name) != known.get(name):
                    now, then = own.get(name, "nothing"), known.get(name, "nothing")
                    return f"the {noun} {name} of {step.model} is {now}, packed was {then}"
    return ""


def describe_misfit(one: ServedTensor, other: ServedTensor) -> str:
    """Return how two ends of a tensor differ; empty if they may be equal."""
    if one.dtype != other.dtype:
        return f"{one.dtype} is not {other.dtype}"
    same_rank = len(one.dims) == len(other.dims)
    if not same_rank or any(
        a != b and -1 not in (a, b) for a, b in zip(one.dims, other.dims, strict=True)
    ):
        return f"{list(one.dims)} is not {list(other.dims)}"
    return ""


def _has_cycle(steps: Sequence[EnsembleStep]) -> bool:
    made = {tensor for step in steps for tensor in step.outputs.values()}
    left = list(steps)
    known: set[str] = set()
    while left:
        ready = [
            step for step in left if all(t in known or t not in made for t in step.inputs.values())
        ]
        if not ready:
            return True
        known |= {tensor for step in ready for tensor in step.outputs.values()}
        left = [step for step in left if step not in ready]
    return False
