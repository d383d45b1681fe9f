"""The page of coverage from the results of coverage.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from modelc.benchmarks.coverage_run import CRASHED, RAW, REJECTED, RIGHT, TARGETS, UNSTATED, WRONG
from modelc.tests.nets.cases import FAMILIES, Case

Record = Mapping[str, Any]
Found = Mapping[tuple[str, str], Record]
_SAME = {  # what each raw path is beside
    "onnx dynamo": "onnx", "onnx legacy": "onnx", "jit.trace": "torchscript",
    "jit.script": "torchscript", "torch.export": "pt2",
}  # fmt: skip
_PATHS = {"modelc": "modelc {}", UNSTATED: "modelc {}, ranges not stated", "raw": "{}"}
_MARKS = {RIGHT: "right", REJECTED: "rejected", WRONG: "**WRONG**", CRASHED: "crashed"}
_LONGEST = 240  # characters of a reason
_PLACES = re.compile(
    r"[^\s(]*(?:site-packages|\.dev/modelc)/|\S*/\.work-[^/]+/[^/]+/|"
    + re.escape(f"{Path(__file__).parents[1]}/")
)
_INTRODUCTION = """# Coverage: what modelc takes

Written by `make bench-slow`.

Each case is an unmodified model, small, with weights from a seed, given to `modelc export` with
dynamic dims as its user would: `--to torchscript --to onnx --to openvino --to pt2`. What modelc
says passed is then opened with the format's own runtime and compared with eager on fresh feeds
(each dynamic dim at its least, an odd middle and its most, in combination; every outcome of a
branch on data), without modelc's judge: shapes, dtypes, and values to rtol 1e-3 and atol 1e-3 of
eager's largest, integers exactly. *right*: passed, and so it is. *rejected*: not made or not
passed, with a reason. **WRONG**: said to be passed, and it is not. *crashed*: no answer, or none in
time.

*Ranges not stated*: the same from a sample (`--samples`), with names for the dims that vary and
nothing of their sizes, so that modelc chooses the bounds; checked on the feeds that lie in the
artifact's domain.

The raw paths run on the same cases and feeds, each as written in ten lines: a wrapper that binds
inputs by name and returns a tuple of tensors (scripting gets the module itself), the same dynamic
dims, `Dim.DYNAMIC` where torch.export does not accept the ranges. For them *rejected* is an
exception, at the capture or on a feed that eager takes; **WRONG** is other values without a word.
A cache of keys and values that a model returns is taken apart and compared state by state; the raw
paths leave it out. Their columns depend on torch and ONNX Runtime alone, not on modelc, and are
measured again when one of these changes.

The figures were measured within one day on two shared cores, while modelc changed: a case
was measured again when a change concerned it.
"""


def page(cases: Sequence[Case], found: Found) -> str:
    """The page: head figures, a row a case, refusals with reason and hint, what raw paths say."""
    run = [case for case in cases if (case.name, "modelc") in found]
    run.sort(key=lambda case: FAMILIES.index(case.family))
    return "\n".join(
        [
            _INTRODUCTION,
            f"## {len(run)} of {len(cases)} cases"
            if len(run) < len(cases)
            else f"## {len(run)} cases",
            "",
            *_figures(run, found),
            "",
            *_together(run, found),
            "",
            *_families(run, found),
            "",
            *_beyond(run, found),
            *_find_lost(run, found),
            *_rows(run, found),
            "",
            *_reasons(run, found),
            "",
            *_raw_wrong(run, found),
            "",
        ]
    )


def outcome(found: Found, name: str, part: str, key: str) -> str:
    """`right`, `rejected`, `WRONG`, `crashed`, or empty where it was not run."""
    result: str = found.get((name, part), {}).get("results", {}).get(key, {}).get("result", "")
    return result


def rate(count: int, of: int) -> str:
    """`41 (82 %)`."""
    return f"{count} ({count / of:.0%})".replace("%", " %") if of else "-"


def _figures(run: Sequence[Case], found: Found) -> Iterator[str]:
    columns = [
        *(("modelc", key) for key in TARGETS),
        *((UNSTATED, key) for key in TARGETS),
        *(("raw", key) for key in RAW),
    ]
    yield "| path | cases | right | rejected | WRONG | crashed |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for part, key in columns:
        results = [outcome(found, case.name, part, key) for case in run]
        ran = [one for one in results if one]
        if not ran:
            continue
        cells = " | ".join(
            rate(ran.count(one), len(ran)) for one in (RIGHT, REJECTED, WRONG, CRASHED)
        )
        yield f"| {_PATHS[part].format(key)} | {len(ran)} | {cells} |"


def _together(run: Sequence[Case], found: Found) -> Iterator[str]:
    """What several paths get right together, on the cases that raw paths ran on as well, if any."""
    raw = [case for case in run if (case.name, "raw") in found]
    both = raw or run

    def rate_of(part: str, keys: Sequence[str], take: Callable[[Iterable[bool]], bool]) -> str:
        rights = (
            take(outcome(found, case.name, part, key) == RIGHT for key in keys) for case in both
        )
        return rate(sum(rights), len(both))

    had = "every path" if raw else "modelc"
    yield f"On the {len(both)} cases that {had} had: modelc is right in all four formats in"
    yield f"{rate_of('modelc', TARGETS, all)}, in at least one in"
    yield f"{rate_of('modelc', TARGETS, any)}, in ONNX in {rate_of('modelc', ['onnx'], any)}."
    if raw:
        yield f"One raw ONNX path or the other is right in {rate_of('raw', RAW[:2], any)},"
        yield f"any raw path in {rate_of('raw', RAW, any)}."


def _families(run: Sequence[Case], found: Found) -> Iterator[str]:
    yield "| family | cases | " + " | ".join(TARGETS) + " |"
    yield "| --- | ---: |" + " ---: |" * len(TARGETS)
    for family in FAMILIES:
        ones = [case for case in run if case.family == family]
        if not ones:
            continue
        right = (
            sum(outcome(found, case.name, "modelc", key) == RIGHT for case in ones)
            for key in TARGETS
        )
        yield f"| {family} | {len(ones)} | " + " | ".join(map(str, right)) + " |"


def beaten(case: Case, found: Found) -> list[str]:
    """The raw paths that get the case right where modelc's same format does not."""
    return [
        key
        for key, target in _SAME.items()
        if outcome(found, case.name, "raw", key) == RIGHT
        and outcome(found, case.name, "modelc", target) != RIGHT
    ]


def _beyond(run: Sequence[Case], found: Found) -> Iterator[str]:
    behind = [(case, beaten(case, found)) for case in run]
    lost = [f"{case.name} ({', '.join(keys)})" for case, keys in behind if keys]
    if any((case.name, "raw") in found for case in run):
        said = "; ".join(lost) or "none"
        yield f"Cases that a raw path gets right and modelc's same format does not: {said}."
        yield ""


def _find_lost(run: Sequence[Case], found: Found) -> Iterator[str]:
    """The cases that are right with ranges stated, and not without."""
    ran = [case for case in run if (case.name, UNSTATED) in found]
    if not ran:
        return
    lost = {
        case.name: [
            key
            for key in TARGETS
            if outcome(found, case.name, "modelc", key) == RIGHT
            and outcome(found, case.name, UNSTATED, key) != RIGHT
        ]
        for case in ran
    }
    said = "; ".join(f"{name} ({', '.join(keys)})" for name, keys in lost.items() if keys)
    yield f"Right with ranges stated and not without: {said or 'none'}."
    yield ""


def _rows(run: Sequence[Case], found: Found) -> Iterator[str]:
    yield "## Case by case"
    yield ""
    yield "| case | family | " + " | ".join([*TARGETS, "captures", *RAW]) + " |"
    yield "| --- |" + " --- |" * (len(TARGETS) + len(RAW) + 2)
    for case in run:
        results = found[case.name, "modelc"]["results"]
        marks = [_MARKS[results[key]["result"]] for key in TARGETS]
        raw = [_MARKS.get(outcome(found, case.name, "raw", key), "") for key in RAW]
        cells = " | ".join([*marks, _captures(results), *raw])
        yield f"| {case.name} | {case.family} | {cells} |"


def _captures(results: Mapping[str, Record]) -> str:
    """What the formats that are right were captured by, each way once."""
    used: dict[str, list[str]] = {}
    for key in TARGETS:
        if results[key]["result"] == RIGHT and results[key]["capture"]:
            used.setdefault(results[key]["capture"], []).append(key)
    return "; ".join(f"{way}: {', '.join(keys)}" for way, keys in used.items())


def _reasons(run: Sequence[Case], found: Found) -> Iterator[str]:
    yield "## What modelc did not take, and why"
    yield ""
    for case in run:
        results = found[case.name, "modelc"]["results"]
        misses = [key for key in TARGETS if results[key]["result"] != RIGHT]
        if misses:
            yield f"**{case.name}**" + (f" ({case.why})" if case.why else "")
            yield ""
            yield from _group_reasons(misses, results)
            yield ""


def _group_reasons(misses: Sequence[str], results: Mapping[str, Record]) -> Iterator[str]:
    """A line for each reason, with the formats that have it."""
    said: dict[tuple[str, int, str, str], list[str]] = {}
    for key in misses:
        one = results[key]
        fields = (one["result"], one["exit_code"], one["reason"], one["hint"])
        said.setdefault(fields, []).append(key)
    for (result, code, reason, hint), keys in said.items():
        way_out = f" Hint: {plain(hint)}" if hint else ""
        yield f"- {', '.join(keys)} {_MARKS[result]}, exit {code}: {plain(reason)}.{way_out}"


def _raw_wrong(run: Sequence[Case], found: Found) -> Iterator[str]:
    yield "## Where raw paths are silently wrong"
    yield ""
    for case in run:
        results = found.get((case.name, "raw"), {}).get("results", {})
        for key, one in results.items():
            if one["result"] == WRONG:
                yield f"- {case.name}, {key}: {plain(one['reason'])}"


def plain(text: str) -> str:
    """One line without what Markdown would take for its own, or what only one machine has."""
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    line = line.replace("](", "] (")
    line = _PLACES.sub("", line)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
