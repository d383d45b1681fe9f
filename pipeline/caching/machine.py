"""What of this machine changes numbers: the system, the processor's instructions, the GPUs."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from ...converters.trt.trt_installation import query_driver

CPUINFO_FILE = Path("/proc/cpuinfo")
_VECTOR_FLAGS = re.compile(r"^(avx|amx|fma|f16c|sse4|neon|asimd|sve|sme|bf16|i8mm|fphp)")


def describe_machine(cpuinfo: Path = CPUINFO_FILE) -> str:
    """Python, the system and the instructions that libraries choose their kernels by.

    Where the system does not tell the instructions it is the processor's name.
    """
    python = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    return "\n".join((python, platform.system(), platform.machine(), _describe_processor(cpuinfo)))


def _describe_processor(cpuinfo: Path) -> str:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    flags: set[str] = set()
    for line in re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.M):
        flags.update(line.split())
    return " ".join(sorted(filter(_VECTOR_FLAGS.match, flags))) or platform.processor()


def describe_gpus() -> str:
    """The driver and the devices, for what runs on one."""
    driver = query_driver()
    return f"{driver.version} {', '.join(map(str, driver.devices))} {driver.reason}"
