"""A Ray cluster: its options, and how to connect to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import ErrorCode, MissingError, UsageError, first_line
from ..core.installation import hint_for_extra


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where tasks run: `address` of Ray, and the URL of the storage of all hosts.

    Pending steps are finished on nodes with all of `labels`; with none, they stay pending.
    """

    address: str
    storage: str
    labels: Mapping[str, str] = field(default_factory=dict)


def parse_cluster(text: str) -> str:
    """Return the address for Ray of `ray` or `ray://HOST:PORT`.

    Raises:
        UsageError: it is neither.
    """
    if text == "ray":
        return "auto"
    if text.startswith("ray://") and len(text) > len("ray://"):
        return text
    raise UsageError(
        f"--on cannot be {text[:60]!r}",
        hint="write --on ray, or --on ray://HOST:10001",
        option="on",
        code=ErrorCode.INVALID_VALUE,
    )


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Parse labels as `ray.io/accelerator-type=L4`.

    Raises:
        UsageError: one has another form.
    """
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise UsageError(
                f"--node-label cannot be {text[:60]!r}",
                hint="write --node-label ray.io/accelerator-type=L4",
                option="node-label",
                code=ErrorCode.INVALID_VALUE,
            )
    return dict(text.split("=", 1) for text in texts)


def connect(address: str) -> Any:
    """Connect to a cluster, and return the module of Ray.

    Raises:
        MissingError: Ray is not installed, or the cluster cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingError(
            "--on ray needs Ray, which is not installed",
            hint=hint_for_extra("ray"),
            option="on",
            code=ErrorCode.NOT_INSTALLED,
        ) from error
    if not ray.is_initialized():
        try:
            ray.init(address, log_to_driver=False, logging_level="error")
        except Exception as error:
            raise MissingError(
                f"no Ray cluster at {address}: {first_line(error)}",
                hint="start one: ray start --head",
                option="on",
            ) from error
    return ray
