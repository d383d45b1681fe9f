"""Programs in C++ that run artifacts without Python: `modelc validate OUT --outside`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ..converters.aoti_compiler import find_compiler
from ..core.contract import Runner
from ..core.errors import MissingError
from ..core.external_runtime import ExternalRuntime, Versions
from ..core.installation import Check, CheckState
from ..core.kinds import Precision
from ..core.records import Artifact
from ..core.signature import Signature
from .program_build import (
    RECIPES,
    SOURCES,
    build_program,
    read_compiler_version,
    read_versions,
)
from .program_runner import FEED_TIMEOUT, ProgramCall, ProgramRunner, Records, TensorNames
from .tensor_names import name_aoti, name_onnx, name_openvino, name_torchscript

_FOLDER = "programs"  # of the cache
_NAMES = {
    "torchscript": "c++ libtorch", "aoti": "c++ aoti", "onnx": "c++ onnxruntime",
    "openvino": "c++ openvino",
}  # fmt: skip
_PROGRAM_OF = {  # by format
    "torchscript": "torchscript", "aoti": "aoti", "onnx": "onnx", "openvino": "openvino",
}  # fmt: skip
_NamesOf: TypeAlias = Callable[[Path, Signature, Records], TensorNames]
_NAME_TENSORS: Mapping[str, _NamesOf] = {
    "torchscript": name_torchscript, "aoti": name_aoti, "onnx": name_onnx,
    "openvino": name_openvino,
}  # fmt: skip
_REASONS = {  # of formats without a program
    "pt2": "torch has no C++ loader of .pt2 programs: export --to aoti, or torchscript",
    "tensorrt-onnx": "it is made for TensorRT, and ONNX Runtime optimizes it in its own way",
}
PRECISION_REASONS = {  # of ONNX that ONNX Runtime's CPU does not run as modelc judges it
    Precision.BF16: "ONNX Runtime has no bfloat16 kernels for CPUs; modelc judges a float32 copy",
    Precision.FP8: "ONNX Runtime fuses FP8 as if it were int8; modelc judges it without that",
}


@dataclass(frozen=True, kw_only=True)
class ProgramRuntime:
    """The program for a format; it is built in `cache`, and has `seconds` for each feed.

    `sources` is the folder of its source files.
    """

    program: str
    cache: Path
    seconds: float = FEED_TIMEOUT
    sources: Path = SOURCES

    @property
    def name(self) -> str:
        """Its language and library."""
        return _NAMES[self.program]

    def decline_reason(self, artifact: Artifact) -> str:
        """Return why it cannot run this artifact."""
        if not sys.platform.startswith("linux"):
            return f"programs in C++ are built on Linux, not on {sys.platform}"
        if _PROGRAM_OF.get(artifact.target) != self.program:
            return f"{self.name} does not run {artifact.target}"
        if artifact.is_stateful:
            return "its cache is in states"
        return PRECISION_REASONS.get(artifact.precision, "") if self.program == "onnx" else ""

    def prepare(self, path: Path, artifact: Artifact) -> Versions:  # noqa: ARG002 - one program for all
        """Build the program if it is not in the cache, and return the versions of its library."""
        return read_versions(RECIPES[self.program], self._build())

    def open(self, path: Path, artifact: Artifact, signature: Signature) -> Runner:  # noqa: ARG002 - its file says all
        """Open the artifact in a process of its own."""
        call = ProgramCall(program=self._build(), model=path, seconds=self.seconds)
        return ProgramRunner(call, partial(_NAME_TENSORS[self.program], path, signature))

    def _build(self) -> Path:
        return build_program(RECIPES[self.program], self.cache / _FOLDER, self.sources)


@dataclass(frozen=True, kw_only=True)
class NoProgram:
    """What runs a format that has no program: nothing."""

    name: str = "c++"

    def decline_reason(self, artifact: Artifact) -> str:
        """Return what the format lacks."""
        return _REASONS.get(artifact.target, f"{artifact.target} has no program in C++")

    def prepare(self, path: Path, artifact: Artifact) -> Versions:
        """Raise: there is nothing to start."""
        raise MissingError(f"{path.name}: {self.decline_reason(artifact)}", hint="choose others")

    def open(self, path: Path, artifact: Artifact, signature: Signature) -> Runner:  # noqa: ARG002 - the contract's
        """Raise: there is nothing to open."""
        raise MissingError(f"{path.name}: {self.decline_reason(artifact)}", hint="choose others")


@dataclass(frozen=True, kw_only=True)
class OutsidePrograms:
    """The programs of all formats, built in `cache`."""

    cache: Path
    seconds: float = FEED_TIMEOUT

    def member_for(self, artifact: Artifact) -> ExternalRuntime:
        """Return the program of the artifact's format."""
        program = _PROGRAM_OF.get(artifact.target)
        if program is None:
            return NoProgram()
        return ProgramRuntime(program=program, cache=self.cache, seconds=self.seconds)


def check_programs() -> Check:
    """Check whether programs can be built here, for `modelc doctor`."""
    name = "C++ programs"
    if not sys.platform.startswith("linux"):
        detail = f"validate --outside needs Linux, not {sys.platform}"
        return Check(name=name, state=CheckState.MISSING, detail=detail, fix="run modelc on Linux")
    try:
        compiler = find_compiler()
        for recipe in RECIPES.values():
            recipe.link()
    except MissingError as error:
        detail = f"validate --outside is not available: {error.message}"
        return Check(name=name, state=CheckState.MISSING, detail=detail, fix=error.hint)
    version = f"{Path(compiler).name} {read_compiler_version(compiler)}"
    return Check(name=name, state=CheckState.OK, detail=f"validate --outside builds with {version}")
