"""An order of two steps of fakes, and what it takes to run it again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modelc.core.errors import ConversionError
from modelc.core.manifest import Manifest
from modelc.pipeline.cache.file_digests import FileDigests
from modelc.pipeline.cache.reuse import (
    ReuseResult,
    ReuseSources,
    UpToDate,
    find_up_to_date,
    reuse_results,
)
from modelc.pipeline.cache.step_cache import StepCache
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Order
from modelc.pipeline.plan import make_plan
from modelc.pipeline.run_order import run

KEYS = {"fake": "a" * 64, "child": "b" * 64}


class LastingError(ConversionError):
    """A failure that would occur again."""

    lasting = True


@dataclass
class Project:
    """An order of two steps, the second made from the first, and where it is cached."""

    order: Order
    targets: tuple[object, ...]
    cache: StepCache
    root: Path
    made: list[str]

    @property
    def manifest(self) -> Manifest:
        """The manifest in the output folder."""
        found = read_manifest(self.order.out)
        assert found is not None
        return found

    def take_up(self, keys: Mapping[str, str] = KEYS, order: Order | None = None) -> ReuseResult:
        order = order or self.order
        caching = ReuseSources(root=self.root, digests=FileDigests(None), steps=self.cache)
        return reuse_results(order, make_plan(order, self.targets), keys, caching)  # type: ignore[arg-type]  # fakes

    def standing(self) -> UpToDate:
        """The results in the output folder that are up to date, without a cache."""
        caching = ReuseSources(root=self.root, digests=FileDigests(None))
        return find_up_to_date(self.manifest, self.order.out, KEYS, caching)

    def run(self, keys: Mapping[str, str] = KEYS, order: Order | None = None) -> ReuseResult:
        """As `modelc run` does: what is not found is made, and kept."""
        order = order or self.order
        taken = self.take_up(keys, order)
        if not {"fake", "child"} <= taken.resume.done:
            manifest = run(replace(order, resume=taken.resume), targets=self.targets)  # type: ignore[arg-type]  # fakes
            self.cache.keep(manifest, order.out, "gate")
            return replace(taken, manifest=manifest)
        return taken

    def failing(self, which: int, error: ConversionError) -> None:
        """Have a target raise that error."""

        def fail(_: object) -> None:
            self.made.append("tried")
            raise error

        targets = list(self.targets)
        targets[which] = replace(targets[which], on_convert=fail)  # type: ignore[type-var]  # a fake
        self.targets = tuple(targets)
