"""The Order: what was asked, frozen and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.capture import Capture
from ..core.errors import UsageError
from ..core.names import unknown
from ..core.precision import Precision
from ..core.signature import Signature
from ..validators.feeds import LEAST_FEEDS


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One artifact that was asked for: a format and a precision."""

    target: str
    precision: Precision = Precision.FP32

    @classmethod
    def parse(cls, text: str) -> Wanted:
        """Read `NAME` or `NAME:PRECISION`, as in `openvino:fp16`."""
        name, _, precision = text.partition(":")
        known = [p.value for p in Precision]
        if precision and precision not in known:
            raise unknown("precision", precision, known)
        return cls(target=name, precision=Precision(precision or "fp32"))

    @property
    def name(self) -> str:
        """The artifact's name: the target's, with the precision unless it is fp32."""
        if self.precision is Precision.FP32:
            return self.target
        return f"{self.target}-{self.precision}"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The eager side of an order: the checkpoint, how to build it, what goes into it."""

    checkpoint: Path
    model: str | None = None
    model_args: Mapping[str, str] = field(default_factory=dict)
    strict: bool = True
    allow_pickle: bool = False
    inputs: tuple[str, ...] = ()
    samples: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Judging:
    """How artifacts are judged: how many feeds, from which seed, within what, on which device.

    None is the default (`LEAST_FEEDS`, 0, the table's tolerance), or what a manifest recorded.
    """

    feeds: int | None = None
    seed: int | None = None
    atol: float | None = None
    rtol: float | None = None
    min_sqnr: float | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.feeds is not None and self.feeds < LEAST_FEEDS:
            raise UsageError(
                f"--feeds {self.feeds} is too few to judge by", hint=f"use {LEAST_FEEDS} or more"
            )
        if self.device not in ("cpu", "cuda"):
            raise unknown("device", self.device, ["cpu", "cuda"])
        for name in ("atol", "rtol"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"--{name} {value} is not a tolerance", hint="use 0 or more")
        if self.min_sqnr is not None and not math.isfinite(self.min_sqnr):
            raise UsageError(f"--min-sqnr {self.min_sqnr} is not a number", hint="use dB: 60")


@dataclass(frozen=True, kw_only=True)
class Order:
    """One run: a source, what to make of it, and where.

    `parent` is a converted model to start from instead of the eager one, `signature` what a
    manifest recorded for it. `capture` None is auto.
    """

    source: Source
    wanted: tuple[Wanted, ...]
    out: Path
    judging: Judging = field(default_factory=Judging)
    parent: Path | None = None
    capture: Capture | None = None
    opset: int | None = None
    external_data: bool = False
    overwrite: bool = False
    signature: Signature | None = None

    def __post_init__(self) -> None:
        if not self.wanted:
            raise UsageError("nothing to make", hint="name a target: --to onnx")

    def summary(self) -> dict[str, str]:
        """What the manifest keeps of the order."""
        entries = {
            "to": " ".join(f"{w.target}:{w.precision}" for w in self.wanted),
            "capture": str(self.capture or "auto"),
            "opset": str(self.opset or "default"),
            "external_data": str(self.external_data).lower(),
            "inputs": " ".join(self.source.inputs),
            "device": self.judging.device,
        }
        return {key: value for key, value in entries.items() if value}
