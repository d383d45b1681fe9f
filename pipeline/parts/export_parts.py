"""Convert every part of a model and judge the whole, for the Python API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...core.children.limits import ProcessLimits
from ...core.errors import ErrorCode, UsageError
from ...core.events import Tell
from ...core.manifest import Manifest
from ...core.part_records import PartsManifest, PartsPlan
from ..isolation.worker import ApiCall, CallValue, perform_call
from ..order import Order
from ..plan import make_plan
from .joined_manifest import join_parts
from .parts_order import PartsOrder, check_limits, list_whole, order_part, split_inputs

# What single models alone have, with what is passed where it is not given.
_SOURCE = ("method", "static", "drop_outputs", "include_preprocess", "postprocess")
_ORDER = ("narrow", "stateful", "against_pipeline", "patches", "measuring", "meta")


def export_parts(
    choice: tuple[Mapping[str, str], str | None],
    order: Order,
    on_event: Tell,
    bounds: ProcessLimits | None,
) -> Manifest:
    """Convert the parts, each judged alone, and judge them end to end.

    Args:
        choice: the submodule or method of each part by its name, and the user's function, as
            `"package.module:function"`.
        order: that of the whole.
        on_event: receives progress events.
        bounds: the limits of the child processes; None does the work in this one.

    Returns:
        The parts and the whole as one manifest.

    Raises:
        ModelcError: the checkpoint, a part or the function cannot be used.
    """
    parts, order = _read_parts(order, *choice)
    call = _make_caller(on_event, bounds)
    request = parts.request(order, {})
    plan = call(ApiCall(function="record_parts", arguments={"request": request}))
    if not isinstance(plan, PartsPlan):
        raise TypeError(f"record_parts returned a {type(plan).__name__}")
    run = _make_runner(on_event, bounds)
    manifests = {part.name: run(order_part(order, part)) for part in plan.parts}
    pending = {one.step for manifest in manifests.values() for one in manifest.pending}
    names = list_whole(make_plan(order), pending)
    judge = ApiCall(function="judge_parts", arguments={"request": request, "artifacts": names})
    whole = call(judge)
    if not isinstance(whole, PartsManifest):
        raise TypeError(f"judge_parts returned a {type(whole).__name__}")
    return join_parts(replace(whole, notes=(*whole.notes, *plan.all_notes)), manifests)


def _read_parts(
    order: Order, methods: Mapping[str, str], compose: str | None
) -> tuple[PartsOrder, Order]:
    """Return the parts, and the order with the inputs of the whole alone.

    Raises:
        UsageError: one of both arguments is missing, or another has no effect on parts.
    """
    if compose is None or not methods:
        given, missing = ("parts", "compose") if methods else ("compose", "parts")
        raise UsageError(
            f"{given} has no effect without {missing}",
            hint=f"pass {missing} too",
            option=given,
            code=ErrorCode.NO_EFFECT,
        )
    sides = ((order.source, _SOURCE), (order, _ORDER))
    found = (name for side, names in sides for name in names if getattr(side, name))
    for name in found:
        raise UsageError(
            f"{name} has no effect with parts", hint="leave it out", option=name,
            code=ErrorCode.NO_EFFECT,
        )  # fmt: skip
    check_limits(order.judging)
    inputs, of_parts = split_inputs(order.source.inputs, [*methods])
    parts = PartsOrder(methods=dict(methods), compose=compose, part_inputs=of_parts)
    return parts, replace(order, source=replace(order.source, inputs=inputs))


def _make_caller(on_event: Tell, bounds: ProcessLimits | None) -> Callable[[ApiCall], CallValue]:
    if bounds is None:
        return lambda call: perform_call(call, on_event)
    from ..isolation.supervisor import call_isolated

    return lambda call: call_isolated(call, on_event, bounds=bounds)


def _make_runner(on_event: Tell, bounds: ProcessLimits | None) -> Callable[[Order], Manifest]:
    if bounds is None:
        from ..run_order import run

        return lambda order: run(order, on_event)
    from ..isolation.supervisor import run_isolated

    return lambda order: run_isolated(order, on_event, bounds=bounds)
