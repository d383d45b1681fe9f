"""Orders of the build commands, which start from a converted model or from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..converters.registry import target_for, target_named
from ..core.contract import EAGER, Target
from ..core.errors import Hint, Option, UsageError
from ..core.precision import Precision
from .branches import accept_recorded
from .order import Order, Wanted
from .recorded import Moved, record_beside, source_from_record


def build_order(path: Path, order: Order) -> Order:
    """What to carry out for `modelc build-...`.

    Args:
        path: a checkpoint, or a model that the wanted artifact is made from, at once or by way
            of others.
        order: as the command line says it; its source's checkpoint is `path` itself where no
            other was named.

    Raises:
        UsageError: `path` is a converted model and nothing says what eager is.
    """
    if not _is_parent_model(path, order.wanted[0]):
        return order
    beside = record_beside(path)
    if order.source.checkpoint != path:
        precision = _assume_precision(path) if beside is None else beside[1].precision
        return replace(order, parent=path, parent_precision=precision)
    if beside is None:
        raise UsageError(
            f"no manifest beside {path} knows it, so there is no eager reference to prove against",
            hint=Hint(
                "add --against CHECKPOINT ",
                Option("model", "PKG.MOD:FACTORY"),
                " ",
                Option("input", "…"),
            ),
            option="model",
        )
    manifest, artifact = beside
    moved = Moved(allow_pickle=order.source.allow_pickle, trust=order.source.trust)
    return replace(
        order,
        source=source_from_record(manifest, path.parent, moved),
        parent=path,
        parent_precision=artifact.precision,
        signature=manifest.signature,
        judging=accept_recorded(order.judging, manifest),
    )


def _assume_precision(path: Path) -> Precision:
    """INT8 where the model is quantized already; else it is taken for full precision."""
    quantized = target_for(path).inspect(path).quantized
    return Precision.INT8 if quantized else Precision.FP32


def _is_parent_model(path: Path, wanted: Wanted) -> bool:
    """Whether the path is a model that `wanted` can start from, not a checkpoint."""
    origins = {target.NAME: target for target in _iter_origins(wanted)}
    if not path.is_file() or not any(path.name.endswith(t.SUFFIX) for t in origins.values()):
        return False
    return target_for(path).NAME in origins


def _iter_origins(wanted: Wanted) -> Iterator[Target]:
    """The targets that `wanted` is made from, the nearest first."""
    target = target_named(wanted.target)
    origin = target.MADE_FROM.get(wanted.precision, EAGER)
    if origin != EAGER:
        parent = Wanted.parse(origin)
        yield target_named(parent.target)
        yield from _iter_origins(parent)
