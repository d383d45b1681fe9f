"""A model of several parts to convert: the order of the whole, and those of its parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.errors import ErrorCode, Hint, Option, UsageError
from ...core.grammar import parse_input
from ...core.kinds import QUANTIZED
from ...core.manifest import Manifest
from ...core.part_records import WHOLE, PlannedPart
from ..cache.step_keys import canonical_bytes
from ..call_options import CallOptions, PartsChoice
from ..option_spec import Given, read_record, specs_of
from ..option_table import JudgingOptions
from ..order import Judging, Order
from ..plan import Step
from .joined_manifest import rename_step
from .parts_file import check_part_name
from .run_parts import PartsRequest

_PART = Option("part", "NAME=METHOD")
# Options that a model of several parts has; the others are of single models.
_RECORDS = (CallOptions, JudgingOptions, PartsChoice)
_OPTIONS = {
    "checkpoint", "precision", "model", "model-arg", "weights-key", "input", "samples",
    "allow-pickle", "trust", "no-strict", "to", "fp16", "bf16", "int8-weights", "int8-dynamic",
    "int4", "int8", "calib", "calib-samples", "calib-select", "calib-seed", "preprocess",
    "quantizer", "calib-method", "rest", "group-size", "overwrite", "capture", "opset",
    "external-data", "guard", "capture-timeout", "custom-op", "for", "depends",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PartsOrder:
    """The parts of a model by name, the user's function, and inputs of parts that were stated.

    What is to be made of each part, and how, is in the order of the whole.
    """

    methods: Mapping[str, str]
    compose: str
    part_inputs: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, given: Given, order: Order) -> tuple[PartsOrder | None, Order]:
        """Return the parts that are given, if any, and the order of the whole.

        Raises:
            UsageError: one of both options is missing, or something has no effect on parts.
        """
        choice = read_record(PartsChoice, given)
        if choice.compose is None and not choice.parts:
            return None, order
        if choice.compose is None or not choice.parts:
            missing = Option("compose", "PKG.MOD:FN") if choice.parts else _PART
            mine = "part" if choice.parts else "compose"
            raise UsageError(
                f"--{mine} has no effect without --{missing.name}",
                hint=Hint("add ", missing),
                option=mine,
                code=ErrorCode.NO_EFFECT,
            )
        for name in choice.parts:
            check_part_name(name)
        _check_options(given)
        check_limits(order.judging)
        inputs, of_parts = split_inputs(order.source.inputs, [*choice.parts])
        parts = cls(methods=choice.parts, compose=choice.compose, part_inputs=of_parts)
        return parts, replace(order, source=replace(order.source, inputs=inputs))

    def request(self, order: Order, keys: Mapping[str, str]) -> PartsRequest:
        """Return the request that records the calls of the parts, and judges the whole."""
        quantizes = any(one.precision in QUANTIZED for one in order.wanted)
        return PartsRequest(
            source=order.source,
            methods=self.methods,
            compose=self.compose,
            out=order.out,
            judging=order.judging,
            part_inputs=self.part_inputs,
            keys=keys,
            depends=order.depends,
            calibration=order.lowering.calibration if quantizes else None,
        )

    def keys(self, step_keys: Mapping[str, str]) -> dict[str, str]:
        """Return the cache keys of the verdicts on the whole, from those of the steps."""
        mine = [dict(self.methods), self.compose, dict(self.part_inputs)]
        return {
            name: hashlib.sha256(canonical_bytes([key, *mine])).hexdigest()
            for name, key in step_keys.items()
        }

    def names(self, plan: Sequence[Step], *, asked: bool = False) -> Iterator[str]:
        """Yield the names of all artifacts, those of the whole last."""
        steps = [step for step in plan if step.asked or not asked]
        yield from (rename_step(part, step.name) for part in self.methods for step in steps)
        yield from (f"{WHOLE}/{step.name}" for step in plan if step.asked)


def split_inputs(
    texts: Sequence[str], parts: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the inputs of the whole, and by part those that are named `PART.INPUT`.

    Raises:
        UsageError: an input is not in the `--input` language.
    """
    whole: list[str] = []
    of_parts: dict[str, tuple[str, ...]] = {}
    for text in texts:
        head, dot, rest = parse_input(text).name.partition(".")
        if dot and head in parts:
            mine = text.strip()[len(head) + 1 :]
            of_parts[head] = (*of_parts.get(head, ()), mine)
        elif dot:
            raise UsageError(
                f"--input {head}.{rest}: there is no part {head!r}",
                hint=f"the parts are {', '.join(parts)}; an input of the whole has no dot",
                option="input",
                code=ErrorCode.UNKNOWN_INPUT,
            )
        else:
            whole.append(text)
    return tuple(whole), of_parts


def order_part(order: Order, part: PlannedPart) -> Order:
    """Return the order of one part, in its own folder."""
    source = replace(
        order.source, method=part.method, inputs=part.inputs, samples=Path(part.samples)
    )
    lowering, calibration = order.lowering, order.lowering.calibration
    if part.calibration and calibration is not None:
        found = replace(calibration, source=part.calibration, selection="", preprocess=None)
        lowering = replace(lowering, calibration=found)
    return replace(order, source=source, out=order.out / part.name, lowering=lowering)


def list_whole(plan: Sequence[Step], parts: Iterable[Manifest]) -> tuple[str, ...]:
    """Return the artifacts to judge end to end: those that no part waits for another host with."""
    pending = {one.step for manifest in parts for one in manifest.pending}
    return tuple(step.name for step in plan if step.asked and step.name not in pending)


def _check_options(given: Given) -> None:
    """Check that what was given may be of parts.

    Raises:
        UsageError: an option is of single models.
    """
    mine = {*_OPTIONS, *(one.name for kind in _RECORDS for one in specs_of(kind))}
    for other in (name for name, one in given.items() if name not in mine and one is not None):
        raise UsageError(
            f"--{other} has no effect with --part",
            hint="remove it",
            option=other,
            code=ErrorCode.NO_EFFECT,
        )


def check_limits(judging: Judging) -> None:
    """Check that limits are for all outputs; parts and the whole have outputs of other names.

    Raises:
        UsageError: one is for one output.
    """
    if judging.by_output:
        raise UsageError(
            f"--tolerance {next(iter(judging.by_output))}: parts and the whole have other outputs",
            hint="give a limit for all outputs, as --tolerance min-sqnr=60",
            option="tolerance",
            code=ErrorCode.NO_EFFECT,
        )
