"""Orders of the build commands, which start from a converted model or from a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..converters.registry import target_named, target_of
from ..core.contract import EAGER
from ..core.errors import UsageError
from .order import Judging, Order, Source, Wanted
from .recorded import Moved, record_beside, recorded_source


def build_order(  # noqa: PLR0913 - what the build commands have in common
    path: Path,
    wanted: Wanted,
    out: Path,
    *,
    given: Source,
    judging: Judging,
    overwrite: bool = False,
) -> Order:
    """What to carry out for `modelc build-...`.

    Args:
        path: a model that the wanted target is made from, or a checkpoint.
        wanted: the artifact.
        out: the output folder.
        given: the eager side as the command line says it; its checkpoint is `path` itself
            where no other was named.
        judging: how to judge.
        overwrite: replace the record of another checkpoint in `out`.

    Raises:
        UsageError: `path` is a converted model and nothing says what eager is.
    """
    order = Order(source=given, wanted=(wanted,), out=out, judging=judging, overwrite=overwrite)
    if not _is_parent(path, wanted):
        return order
    if given.checkpoint != path:
        return replace(order, parent=path)
    beside = record_beside(path)
    if beside is None:
        raise UsageError(
            f"no manifest beside {path} knows it, so there is no eager reference to prove against",
            hint="add --against CHECKPOINT --model PKG.MOD:FACTORY --input …",
        )
    manifest, _ = beside
    source = recorded_source(manifest, path.parent, Moved(allow_pickle=given.allow_pickle))
    return replace(order, source=source, parent=path, signature=manifest.signature)


def _is_parent(path: Path, wanted: Wanted) -> bool:
    target = target_named(wanted.target)
    if target.MADE_FROM == EAGER:
        return False
    if not path.is_file() or path.suffix != target_named(target.MADE_FROM).SUFFIX:
        return False
    return target_of(path).NAME == target.MADE_FROM
