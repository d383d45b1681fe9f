"""One export, step by step in JSON lines: python benchmarks/cost_steps.py '{"to": ["onnx"]}'.

The argument holds what `modelc.pipeline.api.export` takes. After each step comes what the process
holds: VmHWM is its peak so far in bytes, RssAnon and RssFile what it holds now of memory of its
own and of mapped files; `disk` is the most that the output folder took on disk, temporary files
counted. Linux only: the figures are the kernel's.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelc.core.events import Event

_FIELDS = ("VmHWM", "VmRSS", "RssAnon", "RssFile")
_EVERY = 0.02  # seconds between two looks at the folder


def memory() -> dict[str, int]:
    """What the kernel says of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(found[name].split()[0]) * 1024 for name in _FIELDS}


class Disk:
    """The most bytes that a folder took on disk while this was open, a file that grows counted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0

    def __enter__(self) -> Disk:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY):
            self.peak = max(self.peak, _disk_use(self._folder))


def _disk_use(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:  # it went meanwhile
            continue
    return total


def main(text: str) -> int:
    """Export as the JSON says; one line a step, and one at the end."""
    began = time.perf_counter()
    asked: dict[str, Any] = json.loads(text)
    from modelc.core.events import Finished
    from modelc.pipeline.api import export

    def tell(event: Event) -> None:
        if isinstance(event, Finished):
            line = {"step": event.step, "seconds": event.seconds, "passed": event.passed}
            print(json.dumps({**line, **memory()}), flush=True)

    with Disk(Path(asked["out"])) as disk:
        manifest = export(**asked, tell=tell).manifest
    end = {"passed": manifest.passed, "wall": time.perf_counter() - began, "disk": disk.peak}
    print(json.dumps({**end, "cpu": time.process_time(), **memory()}))
    return 0 if manifest.passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
