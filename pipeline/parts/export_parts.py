"""Convert or finish every part of a model, and judge the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...core.children.limits import ProcessLimits
from ...core.errors import ErrorCode, ModelcError, Place, UsageError
from ...core.events import Noted, Tell
from ...core.manifest import Manifest
from ...core.part_records import PartsManifest, PartsPlan
from ..isolation.worker import ApiCall, run_call, run_request
from ..order import Order
from ..plan import make_plan
from ..recorded_run import FinishRequest
from .joined_manifest import join_parts
from .parts_file import list_built, list_judged, part_folder, read_parts
from .parts_order import PartsOrder, check_limits, list_whole, order_part, split_inputs
from .run_parts import PartsRequest

# What single models alone have, with what is passed where it is not given.
_SOURCE = ("method", "static", "drop_outputs", "include_preprocess", "postprocess")
_ORDER = ("narrow", "stateful", "against_pipeline", "patches", "measuring", "meta")


def export_parts(
    choice: tuple[Mapping[str, str], str | None],
    order: Order,
    bounds: ProcessLimits | None,
    on_event: Tell,
) -> Manifest:
    """Convert the parts, each judged alone, and judge them end to end.

    Args:
        choice: the submodule or method of each part by its name, and the user's function, as
            `"package.module:function"`.
        order: that of the whole.
        bounds: the limits of the child processes; None does the work in this one.
        on_event: receives progress events.

    Returns:
        The parts and the whole as one manifest.

    Raises:
        ModelcError: the checkpoint, a part or the function cannot be used.
    """
    parts, order = _read_parts(order, *choice)
    return join_parts(*make_parts(order, parts, bounds, on_event))


def make_parts(
    order: Order, parts: PartsOrder, bounds: ProcessLimits | None, on_event: Tell
) -> tuple[PartsManifest, dict[str, Manifest]]:
    """Convert the parts, each judged alone, and judge them end to end.

    Returns:
        The whole, and the manifest of each part by name.

    Raises:
        ModelcError: the checkpoint, a part or the function cannot be used.
    """
    request = parts.request(order, {})
    plan = plan_parts(request, bounds, on_event)
    manifests = {}
    for part in plan.parts:
        on_event(Noted(text=f"part {part.name}"))
        try:
            manifests[part.name] = run_request(order_part(order, part), bounds, on_event)
        except ModelcError as error:
            place = error.place or Place(key=f"part {part.name}")
            raise error.at(place, hint=error.advice) from error
    names = list_whole(make_plan(order), manifests.values())
    whole = judge_whole(request, names, bounds, on_event)
    return replace(whole, notes=(*whole.notes, *plan.all_notes)), manifests


def plan_parts(request: PartsRequest, bounds: ProcessLimits | None, on_event: Tell) -> PartsPlan:
    """Run the user's function on the eager parts, which shows what each is called with.

    Raises:
        ModelcError: the checkpoint, a part or the function cannot be used.
    """
    record = ApiCall(function="record_parts", arguments={"request": request})
    return run_call(record, PartsPlan, bounds, on_event)


def judge_whole(
    request: PartsRequest, names: Sequence[str], bounds: ProcessLimits | None, on_event: Tell
) -> PartsManifest:
    """Judge the artifacts of these names in all parts end to end.

    Raises:
        ModelcError: the checkpoint or the pipeline cannot be used.
    """
    arguments = {"request": request, "artifacts": tuple(names)}
    judge = ApiCall(function="judge_parts", arguments=arguments)
    return run_call(judge, PartsManifest, bounds, on_event)


def finish_parts(
    request: PartsRequest,
    request_of: Callable[[Path], FinishRequest],
    bounds: ProcessLimits | None,
    on_event: Tell,
) -> tuple[PartsManifest, dict[str, Manifest]]:
    """Finish what is pending in each part, then judge end to end what all parts have since.

    Args:
        request: the parts and the whole, as recorded.
        request_of: returns the request for the folder of a part.
        bounds: the limits of the child processes; None does the work in this one.
        on_event: receives progress events.

    Returns:
        The whole, and the manifest of each part by name.

    Raises:
        ModelcError: a part cannot be finished, or the checkpoint or the pipeline cannot be used.
    """
    manifests = {}
    for name in request.methods:
        on_event(Noted(text=f"part {name}"))
        one = request_of(part_folder(request.out, name))
        manifests[name] = run_request(one, bounds, on_event)
    then = read_parts(request.out)
    names = list_built(then, request.out)
    if {*names} == {*list_judged(then)}:
        on_event(Noted(text="no artifact was finished in all parts: nothing is judged end to end"))
        return then, manifests
    return judge_whole(request, names, bounds, on_event), manifests


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
