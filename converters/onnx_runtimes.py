"""What ONNX each release of a runtime loads, and what was named with `--for`.

ONNX Runtime: the table of https://onnxruntime.ai/docs/reference/compatibility.html for 1.14 to
1.20; for 1.21 to 1.24, which it leaves out, what the released wheels load and refuse. From 1.15 on
`benchmarks/runtimes.py` asks the wheels themselves; 1.15's loads IR 9, where the table says 8, and
1.18 to 1.20 load ai.onnx.ml 5, where it says 4: here stands the less.

TensorRT: `docs/operators.md` of onnx-tensorrt, which says up to which opset a parser goes (10.6:
22, 10.15: 24), and TensorRT's release notes (25 with 11.5). A release between two of these has at
least what the earlier one has. No limit of the IR is documented: it is that of the ONNX release
with the same opset.

OpenVINO documents no opset limit, and its frontend reads what is newer as the newest it knows, so
nothing can be promised for it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..core.errors import Hint, Option, UsageError
from ..core.names import unknown

_SPEC = re.compile(r"(?P<name>[A-Za-z][\w-]*)==(?P<version>\d+(?:\.\d+){0,3})")
_NAME = re.compile(r"[A-Za-z][\w-]*")
_UNPROMISED = {
    "openvino": "it documents no ONNX opset limit, and reads what is newer as what it knows",
}


@dataclass(frozen=True, kw_only=True)
class OnnxLimits:
    """The newest ONNX that loads: opset of ai.onnx, version of the IR, opset of ai.onnx.ml.

    `best` is the opset to write. A release may know an opset and lack kernels for it: 1.15 loads
    opset 19 and cannot run its Reshape, 1.23 loads 23 and cannot run its QuantizeLinear. `ml` 0 is
    a runtime without those operators, `contrib` one with those of com.microsoft.
    """

    opset: int
    ir: int
    best: int
    ml: int = 0
    contrib: bool = False


def _ort_limits(opset: int, ir: int, ml: int, *, best: int) -> OnnxLimits:
    return OnnxLimits(opset=opset, ir=ir, best=best, ml=ml, contrib=True)


# `best` of ONNX Runtime: what `benchmarks/runtimes.py` saw run in 1.15 (but for LayerNormalization
# in FP16, which it cannot), 1.17 and 1.20, and so in what came after each; 18 is the least that
# torch writes. Of TensorRT: ours.
_RELEASES: Mapping[str, Mapping[tuple[int, int], OnnxLimits]] = {
    "onnxruntime": {
        (1, 14): _ort_limits(18, 8, 3, best=18),
        (1, 15): _ort_limits(19, 8, 3, best=18),
        (1, 16): _ort_limits(19, 9, 3, best=18),
        (1, 17): _ort_limits(20, 9, 4, best=20),
        (1, 18): _ort_limits(21, 10, 4, best=20),
        (1, 19): _ort_limits(21, 10, 4, best=20),
        (1, 20): _ort_limits(21, 10, 4, best=21),
        (1, 21): _ort_limits(22, 10, 5, best=21),
        (1, 22): _ort_limits(22, 10, 5, best=21),
        (1, 23): _ort_limits(23, 11, 5, best=21),
        (1, 24): _ort_limits(25, 13, 5, best=21),
    },
    "tensorrt": {
        (10, 6): OnnxLimits(opset=22, ir=10, best=20),
        (10, 15): OnnxLimits(opset=24, ir=12, best=20),
        (11, 0): OnnxLimits(opset=24, ir=12, best=20),
        (11, 5): OnnxLimits(opset=25, ir=13, best=20),
    },
}
_CONTINUED = ("tensorrt",)  # a release that is not listed has at least what the one before it has


@dataclass(frozen=True, kw_only=True)
class RuntimeRelease:
    """One runtime that was named: its release, and what that loads."""

    name: str
    version: str
    limits: OnnxLimits

    def __str__(self) -> str:
        return f"{self.name} {self.version} (opset <= {self.limits.opset}, IR <= {self.limits.ir})"


def parse_runtime(text: str) -> RuntimeRelease:
    """Read one `--for`, as `onnxruntime==1.20`.

    Raises:
        UsageError: it is not of this form, or nothing is known of that runtime or release.
    """
    match = _SPEC.fullmatch(text.strip())
    name = match["name"] if match else (_NAME.match(text.strip()) or [""])[0]
    if name in _UNPROMISED:
        raise UsageError(
            f"--for {text}: nothing can be promised for {name}: {_UNPROMISED[name]}",
            hint=Hint("make its own format instead: ", Option("to", "openvino")),
            option="for",
        )
    if name not in _RELEASES:
        raise unknown("runtime in --for:", name or text, list(_RELEASES))
    table = _RELEASES[name]
    if match is None:
        raise UsageError(
            f"--for {text!r} is not RUNTIME==VERSION",
            hint=Hint("for example ", Option("for", f"{name}=={_version_text(max(table))}")),
            option="for",
        )
    return RuntimeRelease(
        name=name, version=match["version"], limits=_release_limits(name, match["version"])
    )


def _release_limits(name: str, version: str) -> OnnxLimits:
    """What a release loads; patch releases are as their minor one."""
    table = _RELEASES[name]
    parts = [int(part) for part in version.split(".")]
    first = min((one for one in table if one[0] == parts[0]), default=(parts[0], 0))
    release = (parts[0], parts[1]) if len(parts) > 1 else first
    if release in table:
        return table[release]
    earlier = sorted(table)[: bisect_right(sorted(table), release)]
    continued = name in _CONTINUED and release <= max(table)
    if continued and earlier and earlier[-1][0] == release[0]:
        return table[earlier[-1]]
    known = ", ".join(map(_version_text, table))
    raise UsageError(
        f"what {name} {version} loads is not known here", hint=f"known releases: {known}"
    )


def _version_text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


@dataclass(frozen=True, kw_only=True)
class AllowedOnnx:
    """What several runtimes all load."""

    runtimes: tuple[RuntimeRelease, ...]

    @property
    def opset(self) -> int:
        """The newest opset that all of them load."""
        return min(runtime.limits.opset for runtime in self.runtimes)

    @property
    def best(self) -> int:
        """The newest opset that is known to run in all of them."""
        return min(runtime.limits.best for runtime in self.runtimes)

    @property
    def ir(self) -> int:
        """The newest version of the IR that all of them load."""
        return min(runtime.limits.ir for runtime in self.runtimes)

    @property
    def ml(self) -> int:
        """The newest opset of ai.onnx.ml; 0 where one of them has none."""
        return min(runtime.limits.ml for runtime in self.runtimes)

    @property
    def contrib(self) -> bool:
        """Whether all of them have operators of com.microsoft."""
        return all(runtime.limits.contrib for runtime in self.runtimes)

    def __str__(self) -> str:
        return ", ".join(map(str, self.runtimes))


def combine_runtimes(texts: Iterable[str]) -> AllowedOnnx | None:
    """What all the runtimes of an order's `--for` load; None where none was named.

    Raises:
        UsageError: a text names no runtime or no release that is known.
    """
    runtimes = tuple(parse_runtime(text) for text in texts)
    return AllowedOnnx(runtimes=runtimes) if runtimes else None
