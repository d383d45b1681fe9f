"""The options of a run on a cluster, and the executor that they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ErrorCode, UsageError
from ..projects.model_orders import PlannedProject
from ..projects.setting_layers import Overrides

if TYPE_CHECKING:
    from ..pipeline.cache.reuse import ReuseSources
    from ..projects.project_records import ModelOrder
    from ..projects.ready_models import TellOf
    from ..projects.run_models import Executor, ProjectLimits


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """Where a run goes: the address of Ray, the storage, and the labels of GPU nodes."""

    address: str
    storage: str | None
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """A planned project, with what overrides its file, and the words that select artifacts."""

    planned: PlannedProject
    given: Overrides
    only: tuple[str, ...]


def read_fleet(on: str | None, storage: str | None, labels: Sequence[str]) -> FleetOptions | None:
    """Read the options; None without `--on`.

    Raises:
        UsageError: a value is invalid, or has no effect.
    """
    from ..projects.ray_cluster import parse_cluster, parse_labels

    if on is None:
        for name, given in (("storage", storage), ("node-label", labels)):
            if given:
                raise UsageError(
                    f"--{name} has no effect without --on",
                    hint="add --on ray, or remove it",
                    option=name,
                    code=ErrorCode.NO_EFFECT,
                )
        return None
    return FleetOptions(address=parse_cluster(on), storage=storage, labels=parse_labels(labels))


def refuse_parts(models: Sequence[ModelOrder]) -> None:
    """Check that no model has several parts: a cluster runs steps of single models.

    Raises:
        UsageError: one has.
    """
    for model in models:
        if model.parts is not None:
            raise UsageError(
                f"--on has no effect on {model.name}, which has several parts",
                hint="name the other models, and run this one on a host of its own",
                option="on",
                code=ErrorCode.UNSUPPORTED,
            )


def make_executor(
    options: FleetOptions,
    run: FleetRun,
    tell_of: TellOf,
    caching: ReuseSources | None,
    limits: ProjectLimits,
) -> Executor:
    """Connect to the cluster.

    Raises:
        UsageError: there is no storage or no cache, or the run starts elsewhere.
        MissingError: Ray is not installed, or the cluster cannot be reached.
    """
    from ..projects.ray_cluster import ClusterOptions
    from ..projects.ray_executor import FleetProject, RayExecutor

    settings = run.planned.settings
    storage = options.storage or settings.run.remote_cache
    folder = settings.project.folder
    if storage is None or caching is None:
        needed = "--storage" if storage is None else "the cache"
        raise UsageError(
            f"--on needs {needed}",
            hint="add --storage URL, open to all hosts" if storage is None
            else "remove --no-cache", option="on", code=ErrorCode.UNSUPPORTED,
        )  # fmt: skip
    if folder.resolve() != Path.cwd():
        raise UsageError(
            "--on needs the project in the current folder",
            hint=f"cd {folder}",
            option="on",
            code=ErrorCode.UNSUPPORTED,
        )
    cluster = ClusterOptions(address=options.address, storage=storage, labels=options.labels)
    project = FleetProject(settings=settings, given=run.given, only=run.only)
    return RayExecutor(cluster, project, tell_of, caching, limits)
