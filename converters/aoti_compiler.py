"""Compile an exported program with AOTInductor, in a child process with a clean environment.

The child imports this module before it sets the environment: nothing here imports torch on loading.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..capture.framework_errors import call_framework
from ..core.children.child_call import CallEnd, ChildCall, ParentConnection, run_in_child
from ..core.children.messages import Returned, StoppedByError
from ..core.children.processes import OutputLog, ProcessEnd, capture_output
from ..core.errors import LOGGED, ConversionError, MissingError
from ..core.torch_file import register_operators

if TYPE_CHECKING:
    import torch

_PROGRAM_FILE, _PACKAGE_FILE, _CACHE_FOLDER = "program.pt2", "compiled.pt2", "inductor"
_SETTINGS = ("AOTINDUCTOR", "AOT_INDUCTOR", "TORCHINDUCTOR", "TORCH_COMPILE", "TRITON", "CXX")
_OPTIONS: dict[str, object] = {
    # Nothing that changes results, apart from the order of float32 sums.
    "use_fast_math": False,
    "cpp.enable_unsafe_math_opt_flag": False,
    "cpp.enable_floating_point_contract_flag": "off",
    # The number of threads of the host that runs it, not of the one that compiled it.
    "cpp.dynamic_threads": True,
    "aot_inductor.enable_line_tables": False,  # they name folders
    "aot_inductor.precompile_headers": False,  # pays from the second model on
    "compile_threads": 1,
}
_COMPILERS = ("g++", "clang++")
# What the generated code includes of the system's, and the flag for its threads.
_PROBE_SOURCE = "#include <cstdlib>\n#include <vector>\n#include <omp.h>\n"
_SHOWN_LINES = 3  # last lines of the compiler that a message shows
_GRACE = 1.0  # seconds that a cancelled compilation may take to stop


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """A folder with `program.pt2` and the compiler in `bin/`; options of Inductor."""

    folder: Path
    options: Mapping[str, object]


CompileFunction: TypeAlias = Callable[[CompileRequest, ParentConnection], None]


def find_compiler() -> str:
    """Return the path of the C++ compiler.

    Raises:
        MissingError: there is none, or it lacks headers.
    """
    found = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found is None:
        raise MissingError(
            "no C++ compiler (g++ or clang++) is on the path", hint="apt-get install g++"
        )
    lacking = find_header_fault(found)
    if lacking:
        package = "libomp-dev" if "clang" in Path(found).name else "g++"
        raise MissingError(f"{found} {lacking}", hint=f"apt-get install {package}")
    return found


@functools.cache
def find_header_fault(path: str, needed: str = _PROBE_SOURCE) -> str:
    """Return why the compiler cannot compile what AOTInductor includes; empty if it can."""
    command = (path, "-x", "c++", "-std=c++20", "-fopenmp", "-fsyntax-only", "-")
    try:
        end, printed = capture_output(command, text=needed)
    except OSError as error:
        return f"does not run: {error}"
    if end.overrun is not None:
        return f"does not run: {end.overrun.text}"
    lines = [line for line in printed.splitlines() if "error" in line]
    return f"lacks headers: {(lines or ['no message'])[0]}" if end.code else ""


def find_torch_headers() -> Path:
    """Return the folder of torch's headers, without importing torch.

    Raises:
        MissingError: this torch has none.
    """
    spec = util.find_spec("torch")
    place = Path(spec.origin).parent / "include" if spec and spec.origin else Path("include")
    if not (place / "torch" / "csrc" / "inductor").is_dir():
        raise MissingError(
            f"torch's headers are not in {place}", hint="pip install --force-reinstall torch"
        )
    return place


def compile_in_child(request: CompileRequest, parent: ParentConnection) -> None:  # noqa: ARG001
    """Compile the folder's program to `compiled.pt2`."""
    folder = request.folder
    _set_environment(folder / _CACHE_FOLDER)

    import torch
    from torch._inductor import aoti_compile_and_package

    compiler = next((folder / "bin").iterdir())
    register_operators(folder / _PROGRAM_FILE)
    program = torch.export.load(folder / _PROGRAM_FILE)
    options = {**_OPTIONS, **request.options, "cpp.cxx": (str(compiler),)}
    with torch.no_grad():
        aoti_compile_and_package(
            program, package_path=str(folder / _PACKAGE_FILE), inductor_configs=options
        )


def _set_environment(cache: Path) -> None:
    """Replace the environment that torch reads when it is imported."""
    cache.mkdir()
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TMPDIR"] = str(cache)
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    tempfile.tempdir = str(cache)


def compile_package(
    program: torch.export.ExportedProgram,
    folder: Path,
    *,
    from_one: bool = True,
    compile_program: CompileFunction = compile_in_child,
) -> Path:
    """Compile the program; everything is written to `folder`.

    Args:
        program: with its example inputs.
        folder: an empty folder, which the caller deletes.
        from_one: whether a dim's range begins at 1, where the library's own check of its inputs
            has 2.
        compile_program: the function to call in the child.

    Raises:
        ConversionError: it could not be compiled.
        MissingError: there is no compiler, or no headers.
    """
    import torch

    folder = folder.resolve()
    _write_wrapper(find_compiler(), folder)
    options = {"aot_inductor.check_lowerbound": not from_one}
    call_framework("torch.export.save", lambda: torch.export.save(program, folder / _PROGRAM_FILE))
    request = CompileRequest(folder=folder, options=options)
    call = ChildCall(
        function=compile_program,
        argument=request,
        messages=(type(None),),
        grace=_GRACE,
        quiet=True,
    )
    end = run_in_child(call, lambda _: None, log=OutputLog(echo=True))
    package = folder / _PACKAGE_FILE
    if not isinstance(end, Returned) or not package.is_file():
        raise ConversionError(
            f"AOTInductor did not compile the model: {_failure_reason(end)}",
            hint=LOGGED,
        )
    return package


def _write_wrapper(path: str, folder: Path) -> None:
    """Write a compiler of the same name that keeps the folders of this machine out of messages.

    Generated code quotes `__FILE__` in its errors, and the library ships with them.
    """
    place = folder / "bin" / Path(path).name
    place.parent.mkdir()
    maps = {folder / _CACHE_FOLDER: "aoti", find_torch_headers(): "torch"}
    flags = " ".join(f"'-ffile-prefix-map={old}={new}'" for old, new in maps.items())
    place.write_text(f"#!/bin/sh\nexec '{path}' \"$@\" {flags}\n", encoding="utf-8")
    place.chmod(0o700)


def _failure_reason(end: CallEnd) -> str:
    match end:
        case ProcessEnd() if end.code < 0:
            return f"it crashed with {end.signal_name}"
        case ProcessEnd():
            lines: Sequence[str] = end.tail
        case StoppedByError():
            lines = [line.strip() for line in end.trace.splitlines() if line.strip()]
        case _:
            lines = ()
    errors = [line for line in lines if "rror:" in line]
    return " | ".join((errors or lines)[-_SHOWN_LINES:]) or "no message"
