"""Find the places where a capture froze tensor data, with a second capture if needed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoints.data_branches import are_library_shortcuts, symbol_places
from ..checkpoints.taint import watch_capture
from ..checkpoints.user_code import shorten_path
from ..core.kinds import Capture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..checkpoints.data_branches import DataBranch
    from ..core.contract import Branch
    from .branch_coverage import BranchCoverage
    from .eager_reference import EagerReference


def find_frozen_places(
    capture: Capture,
    warned: Sequence[Branch],
    branches: BranchCoverage,
    eager: EagerReference,
    second: RepeatableCapture,
) -> tuple[str, ...]:
    """Return the places where a capture froze tensor data, as `file:line`.

    Tracer warnings on lines that depend on sizes only do not count. A branch with one observed
    outcome counts even without a warning, because a trace and torch.export record at most one
    outcome. Exceptions are branches in scripted submodules, values that torch.export keeps
    symbolic (found by a second capture) and known library shortcuts.

    Args:
        capture: how the artifact was captured; a script keeps all branches.
        warned: where the tracer saw a tensor become a Python value.
        branches: the branches observed in eager.
        eager: the eager reference.
        second: the repeatable capture, with its scripted submodules.
    """
    if capture is Capture.SCRIPT:
        return ()
    watched = branches.watched
    places = {(branch.file, branch.line) for branch in warned}
    frozen = [one for one in watched.found if one.places & places]
    known = frozenset(place for one in frozen for place in one.places) | watched.idle
    left = places - known
    if left and not watched.incomplete:
        left -= eager.model.find_reached_lines(eager.example, left)  # these depend on sizes
    frozen += [
        one
        for one in watched.found
        if one not in frozen
        and one.record.gap_text
        and not are_library_shortcuts(one.places)
        and not _is_kept(one, capture, second)
    ]
    observed = [one.record.place for one in frozen]
    others = (f"{shorten_path(file)}:{line}" for file, line in sorted(left))
    return tuple(dict.fromkeys([*observed, *others]))


def _is_kept(found: DataBranch, capture: Capture, second: RepeatableCapture) -> bool:
    """Return whether the capture keeps a branch or value that it did not report."""
    if capture is Capture.MIXED:
        module = f"{found.record.module}."
        return any(not path or module.startswith(f"{path}.") for path in second.scripted)
    # torch._dynamo reads the code and does not run it: there is nothing to observe
    if capture is not Capture.EXPORT or found.record.kind != "value":
        return False
    return bool(found.places & second.symbolic_places)


@dataclass(frozen=True, kw_only=True)
class RepeatableCapture:
    """A capture that can be repeated under observation: `again` captures into a folder.

    `scripted` holds the paths of the submodules that keep their branches.
    """

    again: Callable[[Path], object]
    scripted: tuple[str, ...] = ()

    @cached_property
    def symbolic_places(self) -> frozenset[tuple[str, int]]:
        """Places where the capture makes symbols of tensor data, from a lazy second capture."""
        with tempfile.TemporaryDirectory(prefix="modelc-") as folder:
            try:
                with watch_capture() as seen:
                    self.again(Path(folder))
            except Exception:  # noqa: BLE001 - observing it may make it raise anything
                return frozenset()
        return symbol_places(seen)
