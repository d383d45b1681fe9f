"""Feeds openings with damaged files, in a child process that may crash or hang; the parent counts.

The input of a number is always the same one, so nothing is kept but numbers:
`python -m modelc.tests.fuzz.fuzzing OPENING FIRST COUNT` is the child, `OPENING --show N` writes
one input.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from modelc.core.errors import ModelcError
from modelc.tests.fuzz.openings import BY_NAME, Opening

HANG = 5.0  # seconds that one input may take
GROWTH = 512 * 2**20  # bytes that the child's memory may grow by over one input
_START = 120.0  # seconds for the child's imports
_IMPORTING = 40  # lines until which it may still import
_NUMBERS = (0, 1, -1, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1,
            2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))  # fmt: skip
_TOKENS = (
    b"..", b"/", b"../../etc/passwd", b"\0", b"null", b"true", b"-1", b"1e999", b"1e308", b"NaN",
    b"9" * 30, b"99999999999999999999", b"[" * 300, b"{}", b"[]", b'""', b"\xff\xfe", b"\x1b[2J",
    b"]]>", b"<script>", b"%s", b"{0..", b"=", b"*", b"(", b"_", b"4294967296", b"\xe2\x80\xae",
    b"PK\x05\x06", b"PK\x01\x02", b"\n", b"\x80\x02c", b"c__builtin__\neval\n", b"R.", b"0..0",
)  # fmt: skip


@dataclass
class Tally:
    """How an opening fared: inputs given, how many were read, seconds, and what went wrong."""

    name: str
    inputs: int = 0
    read: int = 0
    seconds: float = 0.0
    findings: dict[str, int] = field(default_factory=dict)  # what, and the first input's number


def made(seeds: list[bytes], number: int) -> bytes:
    """The input of this number: a seed with one to eight faults; the first are the seeds."""
    if number < len(seeds):
        return seeds[number]
    drawn = random.Random(number)
    data = bytearray(drawn.choice(seeds))
    for _ in range(min(1 + int(drawn.expovariate(0.6)), 8)):
        _damage(data, drawn, seeds)
    return bytes(data)


def _damage(  # noqa: C901 - a case for each kind of damage
    data: bytearray, drawn: random.Random, seeds: list[bytes]
) -> None:
    at = drawn.randrange(len(data) + 1)
    end = min(len(data), at + drawn.choice((1, 1, 2, 4, 8, 40)))
    match drawn.randrange(9):
        case 0:
            data[at:end] = bytes(drawn.randrange(256) for _ in range(end - at))
        case 1 if at < len(data):
            data[at] ^= 1 << drawn.randrange(8)
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = data[at:end] * drawn.choice((1, 2, 50))
        case 4:
            del data[at:]
        case 5:
            other = drawn.choice(seeds)
            start = drawn.randrange(len(other) + 1)
            data[at:end] = other[start : start + drawn.choice((4, 30, 400))]
        case 6:
            size = drawn.choice((1, 2, 4, 8))
            number = drawn.choice(_NUMBERS) % (1 << 8 * size)
            data[at : at + size] = number.to_bytes(size, drawn.choice(("little", "big")))
        case 7:
            data[at:end] = str(drawn.choice(_NUMBERS)).encode()
        case _:
            data[at:end] = drawn.choice(_TOKENS)


def main() -> None:
    """The child: prints a line before each input, and one for what it may not do."""
    names, first, count = sys.argv[1].split("+"), int(sys.argv[2]), int(sys.argv[3])
    found = [BY_NAME[name] for name in names]
    seeds = [one.seeds() for one in found]
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # native readers print too
    os.dup2(1, 2)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for number in range(first, first + count):
            round_, turn = divmod(number, len(names))
            output.write(f"{number}\n")
            ended = _open(found[turn], made(seeds[turn], round_), Path(folder))
            output.write(f"{json.dumps(ended)}\n")


def _open(opening: Opening, data: bytes, folder: Path) -> str:
    """How one input ended: `read`, `rejected`, or what is a finding."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        opening.open(data, folder)
        ended = "read"
    except ModelcError as error:
        text = f"{error.message}{error.hint}"
        ended = "rejected" if text and "Traceback" not in text else f"a message: {text[:80]!r}"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        kind = type(error).__name__
        place = _own_frame(error)
        allowed = kind in opening.allowed
        ended = "rejected" if allowed else f"{kind} at {Path(place.filename).name}:{place.lineno}"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return f"memory grew by {grown >> 20} MiB" if grown > GROWTH else ended


def _own_frame(error: BaseException) -> traceback.FrameSummary:
    """The innermost line of the project's own."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if "site-packages" not in one.filename and _is_ours(one.filename)]
    return (own or frames)[-1]


def _is_ours(file: str) -> bool:
    return Path(file).resolve().is_relative_to(Path(__file__).parents[2])


def fuzz(name: str, count: int, *, first: int = 0) -> Tally:
    """Give an opening, or several in turn (`a+b`), so many inputs.

    A child that dies or hangs is a finding; another goes on behind that input.
    """
    tally = Tally(name)
    began = time.perf_counter()
    number, end = first, first + count
    while number < end:
        number = _batch(name, number, end - number, tally)
    tally.seconds = time.perf_counter() - began
    return tally


def _batch(name: str, first: int, count: int, tally: Tally) -> int:
    """One child; the number to go on with."""
    command = [sys.executable, "-m", "modelc.tests.fuzz.fuzzing", name, str(first), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        number = first - 1
        for line in _lines(child):
            if line.isdigit():
                number = int(line)
                continue
            tally.inputs += 1
            ended = json.loads(line)
            tally.read += ended == "read"
            if ended not in ("read", "rejected"):
                tally.findings.setdefault(ended, number)
        hung = child.poll() is None and number < first + count - 1
        if hung:
            child.kill()
        code = child.wait()
    if code == 0:
        return first + count
    tally.inputs += 1
    tally.findings.setdefault(f"a hang of {HANG} s" if hung else f"exit {code}", number)
    return max(number, first) + 1


def _lines(child: subprocess.Popen[str]) -> Iterator[str]:
    """What the child prints, until it ends or prints nothing for too long.

    The first inputs, one of each opening, have longer: they import what they need.
    """
    stream = child.stdout
    if stream is None:
        return
    os.set_blocking(stream.fileno(), False)
    held, count = b"", 0
    while True:
        ready, _, _ = select.select([stream], [], [], HANG if count > _IMPORTING else _START)
        if not ready:
            return
        data = os.read(stream.fileno(), 1 << 16)
        if not data:
            return
        *lines, held = (held + data).split(b"\n")
        count += len(lines)
        yield from (line.decode() for line in lines)


if __name__ == "__main__":
    if "--show" in sys.argv:
        sys.stdout.buffer.write(made(BY_NAME[sys.argv[1]].seeds(), int(sys.argv[3])))
    else:
        main()
