"""Trace which outcome each branch of the model's code takes, without changing the code."""

from __future__ import annotations

import dis
from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType, FrameType
from typing import TypeAlias

from .run_limits import TraceFunction, trace_thread
from .source_decisions import BranchTest
from .source_positions import Span, is_within

Place: TypeAlias = tuple[str, int]  # file and line
_OTHER, _TESTING, _TAKEN, _NOWHERE = range(4)
_WORD = 2  # bytes of an instruction
_JUMPS = frozenset(code for name, code in dis.opmap.items() if "_IF_" in name)
_RETURNS = frozenset(
    dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap
)
_LOOP_STEP = dis.opmap["FOR_ITER"]
# Instructions of a comprehension that have the position of its last condition.
_IGNORED_INSTRUCTIONS = frozenset(
    dis.opmap[name]
    for name in ("LIST_APPEND", "SET_ADD", "MAP_ADD", "YIELD_VALUE", "RESUME", "POP_TOP")
) | frozenset(
    code
    for name, code in dis.opmap.items()
    if name.startswith(("JUMP", "RETURN")) and code not in _JUMPS
)


def trace_branch_outcomes(
    run: Callable[[], object], tests: Sequence[BranchTest]
) -> tuple[str, ...]:
    """Call `run` and return, for each test, its outcomes in order: `TTF`; empty if not executed.

    Instructions are traced, not lines, to cover `a if test else b` and the iterations of loops.
    """
    tracer = _BranchTracer(tests)
    with trace_thread(tracer.enter):
        run()
    return tuple("".join(one) for one in tracer.outcomes)


def trace_lines(run: Callable[[], object], places: Collection[Place]) -> frozenset[Place]:
    """Call `run` and return which of the places it executed."""
    files = {file for file, _ in places}
    found: set[Place] = set()

    def follow(frame: FrameType, *_: object) -> TraceFunction:
        found.add((frame.f_code.co_filename, frame.f_lineno))
        return follow

    with trace_thread(lambda frame, *_: follow if frame.f_code.co_filename in files else None):
        run()
    return frozenset(found.intersection(places))


class _BranchTracer:
    """Traces only the code objects that contain tests."""

    def __init__(self, tests: Sequence[BranchTest]) -> None:
        self.tests = tests
        self.outcomes: list[list[str]] = [[] for _ in tests]
        self.files = {test.file for test in tests}
        self.known: dict[int, tuple[CodeType, Mapping[int, bytes]]] = {}

    def enter(self, frame: FrameType, *_: object) -> TraceFunction | None:
        """Trace a frame whose code contains a test."""
        if frame.f_code.co_filename not in self.files:
            return None
        watched = self._instruction_parts(frame.f_code)
        if not watched:
            return None
        frame.f_trace_opcodes = True
        testing: set[int] = set()  # tests that the last instruction evaluated

        def follow(frame: FrameType, event: str, _: object) -> TraceFunction:
            if event == "exception":
                testing.clear()
            elif event == "return" and frame.f_code.co_code[frame.f_lasti] in _RETURNS:
                # a frame that ends at a test: an implicit return after it has its position
                for index in testing:
                    self.outcomes[index].append("F")
                testing.clear()
            elif event == "opcode":
                self._step(
                    {i: parts[frame.f_lasti // _WORD] for i, parts in watched.items()}, testing
                )
            return follow

        return follow

    def _step(self, parts: Mapping[int, int], testing: set[int]) -> None:
        """Process one instruction, by its role in each test."""
        for index, part in parts.items():
            if part == _TESTING:
                testing.add(index)
            elif part != _NOWHERE and index in testing:
                testing.discard(index)
                self.outcomes[index].append("T" if part == _TAKEN else "F")

    def _instruction_parts(self, code: CodeType) -> Mapping[int, bytes]:
        """Return, for each test in `code`, the role of each instruction."""
        if id(code) not in self.known:  # the code is kept, so that its id is not reused
            parts = {
                index: _classify_code(code, test)
                for index, test in enumerate(self.tests)
                if test.file == code.co_filename
            }
            held = {index: found for index, found in parts.items() if _TESTING in found}
            self.known[id(code)] = code, held
        return self.known[id(code)][1]


def _classify_code(code: CodeType, test: BranchTest) -> bytes:
    """Return the role of each instruction: part of the test, of the taken branch, or neither.

    A conditional jump has the position of the whole statement, so it counts as the instruction
    before it; instructions without a position are ignored.
    """
    found = bytearray()
    before = _OTHER
    for operation, place in zip(code.co_code[::_WORD], code.co_positions(), strict=True):
        first, last, column, end = place
        if operation in _JUMPS:
            found.append(before)
        elif first is None or last is None or column is None or end is None:
            found.append(_NOWHERE)
        else:
            found.append(_classify_instruction(operation, (first, column, last, end), test))
        before = found[-1]
    return bytes(found)


def _classify_instruction(operation: int, span: Span, test: BranchTest) -> int:
    if test.kind == "for":
        if operation == _LOOP_STEP and span in (test.span, test.whole):
            return _TESTING
    elif is_within(span, test.span):
        return _NOWHERE if operation in _IGNORED_INSTRUCTIONS else _TESTING
    return _TAKEN if any(is_within(span, taken) for taken in test.taken) else _OTHER
