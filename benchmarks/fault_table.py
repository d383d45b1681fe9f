"""Injects faults into runs of the command, and prints a table of what happened.

Each row is a run of `modelc export` in a folder of its own with a fault of
`tests/nets/crash_net.py`: its error, its exit code, and whether the files that it leaves match the
digests of the manifest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from safetensors.torch import save_file

from modelc.pipeline.manifest_file import read_manifest_file
from modelc.pipeline.recorded_run import describe_changed_file
from modelc.tests.nets.crash_net import INPUT, net

_MODULE = "modelc.tests.nets.crash_net"
_SEEN = "look at branches"  # the last title before the first conversion


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row: what is injected, by which options, and the signal sent from outside."""

    name: str
    options: Sequence[str] = ()
    model: str = "net"
    to: Sequence[str] = ("torchscript", "onnx")
    sent: signal.Signals | None = None


FAULTS = (
    Fault(name="none"),
    Fault(name="segmentation fault in the tracer", options=["--patch", "untraceable"]),
    Fault(name="segmentation fault in every capture", options=["--patch", "segfault"]),
    Fault(name="abort()", options=["--patch", "abort"]),
    Fault(name="os._exit(3)", options=["--patch", "leave"]),
    Fault(name="SIGKILL from outside, as by the system", options=["--patch", "killed"]),
    Fault(name="hang in Python, --timeout 30", options=["--patch", "hang", "--timeout", "30"]),
    Fault(name="hang in C, --timeout 30", options=["--patch", "stuck", "--timeout", "30"]),
    Fault(name="memory without end, --memory 2GB", options=["--patch", "grow", "--memory", "2GB"]),
    Fault(name="print without end", options=["--patch", "shout"]),
    Fault(name="segmentation fault while the artifact runs", model="probed", to=["torchscript"]),
    Fault(name="segmentation fault in the factory", model="dies_at_once"),
    Fault(name="Ctrl-C while a step hangs", options=["--patch", "hang"], sent=signal.SIGINT),
    Fault(name="SIGTERM while a step hangs", options=["--patch", "hang"], sent=signal.SIGTERM),
    Fault(name="SIGHUP while a step hangs", options=["--patch", "hang"], sent=signal.SIGHUP),
    Fault(name="SIGKILL of the parent while a step hangs", options=["--patch", "stuck"],
          sent=signal.SIGKILL),
)  # fmt: skip


def command(fault: Fault, weights: Path) -> list[str]:
    """The command line of a row."""
    pairs = zip(["", *fault.options], fault.options, strict=False)
    patched = [f"{_MODULE}:{one}" if before == "--patch" else one for before, one in pairs]
    to = [word for target in fault.to for word in ("--to", target)]
    return [
        sys.executable, "-m", "modelc", "export", str(weights), "--model",
        f"{_MODULE}:{fault.model}", "--input", INPUT, *to, *patched, "-o", "out",
    ]  # fmt: skip


def inject(fault: Fault, weights: Path, folder: Path) -> list[str]:
    """Run one row; its cells."""
    log = folder / "stderr"
    environment = {**os.environ, "MODELC_ISOLATE": "1"}
    with log.open("w") as stream:
        began = time.perf_counter()
        process = subprocess.Popen(
            command(fault, weights), cwd=folder, env=environment,
            stdout=subprocess.DEVNULL, stderr=stream,
        )  # fmt: skip
        kin: list[psutil.Process] = []
        if fault.sent is not None:
            while f"✓ {_SEEN}" not in log.read_text():
                time.sleep(0.2)
            time.sleep(2)
            kin = psutil.Process(process.pid).children(recursive=True)
            began = time.perf_counter()
            process.send_signal(fault.sent)
        code = process.wait()
        seconds = time.perf_counter() - began
    left = psutil.wait_procs(kin, timeout=15)[1]
    alive = [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    said = f"{seconds:.1f} s" if fault.sent else ""
    shown = "killed" if code < 0 else str(code)
    return [
        fault.name,
        _describe_outcome(folder, log),
        shown,
        said,
        _on_disk(folder / "out", len(alive)),
    ]


def _describe_outcome(folder: Path, log: Path) -> str:
    manifest = folder / "out" / "manifest.json"
    if manifest.exists():
        found = [f"{one.step}: {one.message.partition('; its log ends')[0]}"
                 for one in read_manifest_file(manifest).failures]  # fmt: skip
        return "; ".join(found) or "all passed"
    errors = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
    return errors[-1].removeprefix("error: ").partition("; its log ends")[0] if errors else "-"


def _on_disk(out: Path, alive: int) -> str:
    """What is there, in words; what must not be there is in capitals."""
    parts = [f"{alive} PROCESSES LEFT"] if alive else []
    if not out.exists():
        return "; ".join([*parts, "no output folder"])
    named: set[str] = set()
    if (out / "manifest.json").exists():
        manifest = read_manifest_file(out / "manifest.json")
        named = {file.name for file in manifest.files}
        wrong = [one.name for one in manifest.artifacts if describe_changed_file(one, out)]
        names = ", ".join(one.name for one in manifest.artifacts) or "no artifact"
        parts += [f"manifest with {names}", *(f"{name} FAILS ITS DIGEST" for name in wrong)]
    strays = {path.name for path in out.glob("model*")} - named
    hidden = {path.name.partition("-")[0] for path in out.glob(".*")}
    parts += [f"STRAY {name}" for name in sorted(strays)]
    parts += [f"{name}, swept by the next run" for name in sorted(hidden)]
    size = sum(path.stat().st_size for path in (out / "logs").glob("*"))
    return "; ".join([*parts, f"logs of {size / 1000:.0f} kB"])


def main() -> None:
    """Inject every fault and print the table."""
    print("| fault | recorded failures or error | exit code | seconds to exit | left on disk |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        weights = Path(name) / "net.safetensors"
        save_file(net().state_dict(), weights)
        for number, fault in enumerate(FAULTS):
            folder = Path(name) / str(number)
            folder.mkdir()
            print(f"| {' | '.join(inject(fault, weights, folder))} |", flush=True)


if __name__ == "__main__":
    main()
