"""Compile an exported program with AOTInductor, in a child process."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..capture.framework_errors import call_framework
from ..core.children.child_call import CallEnd, ChildCall, ParentConnection, run_in_child
from ..core.children.messages import Returned, StoppedByError
from ..core.children.processes import OutputLog, ProcessEnd, capture_output
from ..core.errors import LOGGED, ConversionError, MissingError
from .aoti_compiler_child import (
    CACHE_FOLDER,
    PACKAGE_FILE,
    PROGRAM_FILE,
    CompileRequest,
    compile_in_child,
)

if TYPE_CHECKING:
    import torch

_COMPILERS = ("g++", "clang++")
# What the generated code includes of the system's, and the flag for its threads.
_PROBE_SOURCE = "#include <cstdlib>\n#include <vector>\n#include <omp.h>\n"
_SHOWN_LINES = 3  # last lines of the compiler that a message shows
_GRACE = 1.0  # seconds that a cancelled compilation may take to stop
CompileFunction: TypeAlias = Callable[[CompileRequest, ParentConnection], None]


def find_compiler() -> str:
    """The C++ compiler that is here, as a path.

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
    """Why the compiler cannot take what AOTInductor includes; empty where it can."""
    command = (path, "-x", "c++", "-std=c++20", "-fopenmp", "-fsyntax-only", "-")
    try:
        end, printed = capture_output(command, text=needed)
    except OSError as error:
        return f"does not run: {error}"
    if end.overrun is not None:
        return f"does not run: {end.overrun.text}"
    lines = [line for line in printed.splitlines() if "error" in line]
    return f"lacks headers: {(lines or ['it says nothing'])[0]}" if end.code else ""


def find_torch_headers() -> Path:
    """Where torch keeps the headers that the code is compiled with; asked without importing it.

    Raises:
        MissingError: this torch came without them.
    """
    spec = util.find_spec("torch")
    place = Path(spec.origin).parent / "include" if spec and spec.origin else Path("include")
    if not (place / "torch" / "csrc" / "inductor").is_dir():
        raise MissingError(
            f"torch's headers are not in {place}", hint="pip install --force-reinstall torch"
        )
    return place


def compile_package(
    program: torch.export.ExportedProgram,
    folder: Path,
    *,
    from_one: bool = True,
    compile_program: CompileFunction = compile_in_child,
) -> Path:
    """Compile the program; all that is written lies in `folder`.

    Args:
        program: with its example inputs.
        folder: empty, and the caller's to delete.
        from_one: whether a dim's range begins at 1. Inductor has 2 for that, which the library's
            own check of its inputs would hold it to.
        compile_program: the function to call in the child.

    Raises:
        ConversionError: it could not be compiled.
        MissingError: there is no compiler, or no headers.
    """
    import torch

    folder = folder.resolve()
    _write_wrapper(find_compiler(), folder)
    options = {"aot_inductor.check_lowerbound": not from_one}
    call_framework("torch.export.save", lambda: torch.export.save(program, folder / PROGRAM_FILE))
    request = CompileRequest(folder=folder, options=options)
    call = ChildCall(
        function=compile_program,
        argument=request,
        messages=(type(None),),
        grace=_GRACE,
        quiet=True,
    )
    end = run_in_child(call, lambda _: None, log=OutputLog(echo=True))
    package = folder / PACKAGE_FILE
    if not isinstance(end, Returned) or not package.is_file():
        raise ConversionError(
            f"AOTInductor did not compile the model: {_failure_reason(end)}",
            hint=LOGGED,
        )
    return package


def _write_wrapper(path: str, folder: Path) -> None:
    """A compiler of the same name that leaves the folders of this machine out of its messages.

    Generated code quotes `__FILE__` in its errors, and the library ships with them.
    """
    place = folder / "bin" / Path(path).name
    place.parent.mkdir()
    maps = {folder / CACHE_FOLDER: "aoti", find_torch_headers(): "torch"}
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
    return " | ".join((errors or lines)[-_SHOWN_LINES:]) or "it said nothing"
