"""The page of costs, and whether the limits hold, from what cost.py measured."""

from __future__ import annotations

import math
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

LIMITS = {
    "peak memory until the file is written, in weights": 1.6,
    "peak memory with validation, in weights": 2.2,
    "disk taken at most, in weights": 1.1,
    "one run for three formats, in three runs": 0.7,
    "growth with layers, as an exponent": 1.0,
}
_PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime", "openvino", "numpy")
_HEAD = """# What an export costs

Written by `benchmarks/cost.py` from processes that ran in turn, the least of the runs of each. Peak
memory is the resident set as the kernel counts it, pages of mapped files among it.

Weights of safetensors files and of what `torch.save` wrote are mapped and not copied, where nobody
notices: not where a factory ties them by memory, casts them, or loads them its own way. While a
runtime holds an artifact's weights, the checkpoint's pages go back to the system. Beyond 1 GiB in
float64, the float64 reference casts each weight when it is used. A checkpoint that is written to
while a run reads it stops the run.
"""

_DEPTH = (
    "The sample encoder to ONNX. The plain script exports, opens the file and compares one feed; "
    "modelc also looks for branches, makes a float64 reference and judges every feed.\n"
)

_NETS = (
    "ResNet-18 and -50 (224 x 224, batch 1..8) and a BERT of 6 layers (hidden size 768, batch "
    "1..8, seq 2..128) to ONNX, validation of the whole domain included, beside a plain script "
    "that exports with the same dynamic dims and compares one feed (`tests/nets/cost_nets.py`). "
    "The aim is 1.25 times the CPU time of the plain script, and it is missed: eager and ONNX "
    "Runtime on every size and value of the domain are most of what is above it. "
    "`before` is commit 8c2adc4.\n"
)
_NETS_HEAD = (
    "| net | who | CPU s | peak MB | CPU of plain |",
    "| --- | --- | ---: | ---: | ---: |",
)


def page(results: dict[str, Any]) -> str:
    """The page, as far as there are results."""
    parts = [_HEAD, _machine()]
    if "nets" in results:
        parts.append(_nets(results["nets"]))
    if "memory" in results:
        parts.append(_memory(results["memory"]))
    if "targets" in results:
        parts.append(_targets(results["targets"]))
    if "depth" in results:
        parts.append(_depth(results["depth"]))
    return "\n".join(parts)


def find_misses(results: dict[str, Any]) -> list[str]:
    """The limits that do not hold, each in a line."""
    lines = []
    for (name, limit), found in zip(LIMITS.items(), _figures(results), strict=True):
        if found is not None and found > limit:
            lines.append(f"BEYOND: {name} is {found:.2f}, the limit {limit:.2f}")
    return lines


def _figures(results: dict[str, Any]) -> tuple[float | None, ...]:
    """As LIMITS; None for what was not measured."""
    written = whole = disk = None
    if "memory" in results:
        record = results["memory"]
        weights = record["weights"]
        written = _conversion_peak(record) / weights
        whole, disk = record["end"]["VmHWM"] / weights, record["end"]["disk"] / weights
    shares = _shares(results["targets"]) if "targets" in results else {}
    exponents = [e for e in _exponents(results.get("depth", {})).values() if e is not None]
    together = max(shares.values(), default=None)
    return written, whole, disk, together, max(exponents, default=None)


def _conversion_peak(record: dict[str, Any]) -> int:
    """The peak when the last conversion was done."""
    return max(int(s["VmHWM"]) for s in record["steps"] if s["step"].startswith("convert"))


def _shares(record: dict[str, Any]) -> dict[str, float]:
    """By measure: the run for all formats as a share of the runs for one each."""
    alone = [name for name in record if "+" not in name]
    whole = max(record, key=lambda name: name.count("+"))
    return {
        key: record[whole][key] / sum(record[name][key] for name in alone)
        for key in ("wall", "cpu")
    }


def _exponents(record: dict[str, Any]) -> dict[tuple[str, str], float | None]:
    """By width and who: the exponent of CPU time in layers, between the least and the most."""
    found: dict[tuple[str, str], float | None] = {}
    for width in sorted({key.partition("x")[2] for key in record}, key=int):
        layers = sorted(int(k.partition("x")[0]) for k in record if k.partition("x")[2] == width)
        low, high = layers[0], layers[-1]
        for who in ("plain", "modelc"):
            first, last = (record[f"{count}x{width}"][who]["cpu"] for count in (low, high))
            found[width, who] = (
                math.log(last / first) / math.log(high / low) if low < high else None
            )
    return found


def _machine() -> str:
    versions = []
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    load = os.getloadavg()[1]
    return (
        f"Machine: {cpu}, {os.cpu_count()} cores, Linux {platform.release()}; Python "
        f"{platform.python_version()}, {', '.join(versions)}. Others used the machine meanwhile "
        f"(load {load:.1f}): CPU time is more reliable than wall time.\n"
    )


def _memory(record: dict[str, Any]) -> str:
    weights = record["weights"]
    lines = [
        f"## A model of {weights / 2**30:.1f} GiB to ONNX\n",
        "In multiples of the weights; `own` is memory of the process, `mapped` pages of files.\n",
        "| step | seconds | peak so far | own | mapped |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for step in record["steps"]:
        sizes = (step[key] / weights for key in ("VmHWM", "RssAnon", "RssFile"))
        row = " | ".join(f"{size:.2f}" for size in sizes)
        lines.append(f"| {step['step']} | {step['seconds']:.1f} | {row} |")
    end = record["end"]
    lines.append(
        f"\nWritten at {_conversion_peak(record) / weights:.2f} times the weights, judged at "
        f"{end['VmHWM'] / weights:.2f}; on disk at most {end['disk'] / weights:.2f} times.\n"
    )
    return "\n".join(lines)


def _targets(record: dict[str, Any]) -> str:
    lines = [
        "## Formats in one run\n",
        "| to | wall s | CPU s | peak MB |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [f"| {name} | {_row(cost)} |" for name, cost in record.items()]
    shares = ", ".join(f"{share:.2f} of the {key} time" for key, share in _shares(record).items())
    lines.append(f"\nAll in one run: {shares} of a run for each.\n")
    return "\n".join(lines)


def _nets(record: dict[str, Any]) -> str:
    lines = ["## Nets of usual size\n", _NETS, *_NETS_HEAD]
    for name, costs in record.items():
        for who, cost in costs.items():
            ratio = cost["cpu"] / costs["plain"]["cpu"]
            lines.append(
                f"| {name} | {who} | {cost['cpu']:.1f} | {cost['peak'] / 1e6:.0f} | {ratio:.2f} |"
            )
    return "\n".join([*lines, ""])


def _depth(record: dict[str, Any]) -> str:
    lines = [
        "## Depth and width\n",
        _DEPTH,
        "| layers x width | who | wall s | CPU s | peak MB | CPU of plain |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name, costs in record.items():
        for who, cost in costs.items():
            ratio = cost["cpu"] / costs["plain"]["cpu"]
            lines.append(f"| {name} | {who} | {_row(cost)} | {ratio:.2f} |")
    for (width, who), exponent in _exponents(record).items():
        if exponent is not None:
            lines.append(f"\nWidth {width}, {who}: CPU time grows as layers^{exponent:.2f}.")
    return "\n".join([*lines, ""])


def _row(cost: dict[str, float]) -> str:
    return f"{cost['wall']:.1f} | {cost['cpu']:.1f} | {cost['peak'] / 1e6:.0f}"
