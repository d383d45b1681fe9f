"""What a child process of the pipeline does: a run, or a call of the Python API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ...checkpoints.user_code import register_folders
from ...core.children.child_call import ParentConnection
from ...core.manifest import Manifest
from ..inspection import ApiCall, CallValue, perform_call
from ..recorded_run import AnyRequest, FinishRequest

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

    def begun(manifest: Manifest) -> None:
        parent.send(InitialManifest(manifest=manifest))

    match request.work:
        case ApiCall() as call:
            return perform_call(call, parent.send)
        case FinishRequest() as asked:
            from ..finish_pending import finish_pending

            return finish_pending(asked, parent.send, begun=begun)
        case order:
            from ..run_order import run

            return run(order, parent.send, begun=begun)
