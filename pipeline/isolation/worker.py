"""What a child process of the pipeline does: a run, or a call of the Python API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from ...checkpoints.user_code import register_folders
from ...core.children.child_call import ParentConnection
from ...core.compile_records import CompileReport
from ...core.events import Tell, ignore_events
from ...core.external_runtime import ExternalReport
from ...core.findings import Localisation
from ...core.manifest import Manifest
from ...core.part_records import PartsManifest, PartsPlan
from ...core.verdict import Verdict
from ..inspection import CheckpointContents, InspectedFile
from ..recorded_run import AnyRequest, FinishRequest

if TYPE_CHECKING:
    from ...core.children.limits import ProcessLimits

Returned = TypeVar("Returned")
# What children of the fork server have loaded: the imports of an export to ONNX. Other libraries
# start threads, change others, or few models use them. A module that the installed version of a
# library does not have is left out.
PRELOADED: tuple[str, ...] = (
    "modelc.pipeline.run_order",
    "modelc.pipeline.isolation.worker",
    "modelc.converters.onnx_complex",
    "torch",
    "torch.onnx._internal.exporter._core",
    "torch.onnx._internal.exporter._compat",
    "torch.onnx._internal.exporter._torchlib.ops",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch._functorch.aot_autograd",
    "torch._subclasses.complex_tensor",
    "torch._subclasses.schema_check_mode",
    "torch._export.passes.replace_autocast_with_hop_pass",
    "torch._export.passes.replace_set_grad_with_hop_pass",
    "onnx",
    "onnxscript",
    "onnxscript._framework_apis.torch_2_9",
    "onnxscript.function_libs.torch_lib.ops",
    "onnxscript.rewriter.onnx_fusions",
    "onnxruntime",
    "safetensors.torch",
    "sympy.tensor.tensor",
    "msgspec.json",
)


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """One function of `pipeline/api.py`, with its keyword arguments."""

    function: Literal[
        "validate", "validate_compiled", "validate_external", "validate_served", "localise",
        "inspect", "inspect_checkpoint", "inspect_breaks", "record_parts", "judge_parts",
    ]  # fmt: skip
    arguments: Mapping[str, object] = field(default_factory=dict)


CallValue: TypeAlias = (
    Manifest
    | Verdict
    | ExternalReport
    | Localisation
    | InspectedFile
    | CheckpointContents
    | CompileReport
    | PartsPlan
    | PartsManifest
)


def perform_call(call: ApiCall, tell: Tell = ignore_events) -> CallValue:
    """Call the function in this process; it raises what the function raises."""
    from .. import api

    function: Callable[..., CallValue] = getattr(api, call.function)
    match call.function:
        case "inspect" | "inspect_checkpoint":
            return function(**call.arguments)
        case "validate" | "localise":
            return function(**call.arguments, tell=tell)
        case _:
            return function(**call.arguments, on_event=tell)


def run_call(
    call: ApiCall, kind: type[Returned], bounds: ProcessLimits | None, tell: Tell = ignore_events
) -> Returned:
    """Run a call, in a child process where there are bounds, and return its result.

    Raises:
        ModelcError: the error of the call, or the end of its process.
    """
    if bounds is None:
        found = perform_call(call, tell)
    else:
        from .supervisor import call_isolated

        found = call_isolated(call, tell, bounds=bounds)
    if not isinstance(found, kind):
        raise TypeError(f"{call.function} returned a {type(found).__name__}")
    return found


def run_request(
    request: AnyRequest, bounds: ProcessLimits | None, tell: Tell = ignore_events
) -> Manifest:
    """Run an order, or what is pending in a folder; with bounds, in a child process.

    Raises:
        ModelcError: nothing was made.
    """
    if bounds is None:
        return _run_here(request, tell)
    from .supervisor import run_isolated

    return run_isolated(request, tell, bounds=bounds)


def _run_here(
    request: AnyRequest, tell: Tell, on_start: Callable[[Manifest], None] | None = None
) -> Manifest:
    if isinstance(request, FinishRequest):
        from ..finish_pending import finish_pending

        return finish_pending(request, tell, on_start=on_start)
    from ..run_order import run

    return run(request, tell, on_start=on_start)


ChildWork: TypeAlias = AnyRequest | ApiCall


@dataclass(frozen=True, kw_only=True)
class InitialManifest:
    """The manifest that the run begins with."""

    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class IsolatedWork:
    """What to do; `code_folders` are the folders of the user's code beside the current one."""

    work: ChildWork
    code_folders: tuple[str, ...] = ()


def perform_work(request: IsolatedWork, parent: ParentConnection) -> Manifest | CallValue:
    """Carry out the work in this process."""
    register_folders(request.code_folders)

    def on_start(manifest: Manifest) -> None:
        parent.send(InitialManifest(manifest=manifest))

    if isinstance(request.work, ApiCall):
        return perform_call(request.work, parent.send)
    return _run_here(request.work, parent.send, on_start)
