"""Watches which way Python branches of a model's code go, without changing the code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ..core.contract import Branch

# (from instruction, to instruction, how often), for every step that starts on the branch's line
Arm: TypeAlias = frozenset[tuple[int, int, int]]
_Trace: TypeAlias = Callable[[FrameType, str, Any], Any]  # the type that sys.settrace wants


def arms_of(run: Callable[[], object], branches: Sequence[Branch]) -> tuple[Arm, ...]:
    """Call `run` and say, for each branch, which way it went and how often; to be compared.

    Steps are of instructions, not lines, so that `a if test else b` and the number of turns of
    a loop are told apart. A branch whose line was not reached gets an empty set.
    """
    watch = _Watch(branches)
    with watch.on():
        run()
    return tuple(
        frozenset((start, end, count) for (start, end), count in steps.items())
        for steps in watch.steps
    )


class _Watch:
    """A trace function that follows only the code objects which hold the branches."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self.branches = branches
        self.steps: list[Counter[tuple[int, int]]] = [Counter() for _ in branches]
        self.known: dict[int, tuple[CodeType, dict[int, frozenset[int]]]] = {}
        self.files: dict[str, frozenset[int]] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Trace this thread while in the block."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, *_: object) -> _Trace | None:
        watched = self._watched(frame.f_code)
        if not watched:
            return None
        frame.f_trace_opcodes = True
        last = -1

        def follow(frame: FrameType, event: str, _: object) -> _Trace:
            nonlocal last
            if event == "opcode":
                for index, offsets in watched.items():
                    if last in offsets:
                        self.steps[index][last, frame.f_lasti] += 1
                last = frame.f_lasti
            return follow

        return follow

    def _watched(self, code: CodeType) -> dict[int, frozenset[int]]:
        """For each branch that lies in `code`: the instructions of the branch's line."""
        if id(code) not in self.known:  # the code is kept, so that its id stays its own
            found = {index: self._offsets(code, index) for index in self._in_file(code.co_filename)}
            self.known[id(code)] = code, {i: offsets for i, offsets in found.items() if offsets}
        return self.known[id(code)][1]

    def _offsets(self, code: CodeType, index: int) -> frozenset[int]:
        line = self.branches[index].line
        return frozenset(
            offset
            for start, end, number in code.co_lines()
            if number == line
            for offset in range(start, end, 2)
        )

    def _in_file(self, name: str) -> frozenset[int]:
        if name not in self.files:
            path = Path(name).resolve()
            self.files[name] = frozenset(
                index
                for index, branch in enumerate(self.branches)
                if branch.file == name or Path(branch.file).resolve() == path
            )
        return self.files[name]
