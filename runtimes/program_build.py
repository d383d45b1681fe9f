"""Build a program in C++ against the libraries of the installed wheels, once for each of them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from ..converters.aoti_compiler import find_compiler, find_torch_headers
from ..converters.installed_packages import package_versions
from ..core.children.processes import OutputLog, capture_output
from ..core.errors import LOGGED, MissingError, RunnerError

SOURCES = Path(__file__).parent / "programs"
_SHARED = ("*.hpp", "*.h")  # headers of all programs
_COMPILE_TIMEOUT = 1800.0  # seconds; libtorch's headers take one minute on a loaded machine
_RUN_TIMEOUT = 60.0  # seconds to print a version
_PROGRAM_FILE = "program"
_ABI = re.compile(r"_GLIBCXX_USE_CXX11_ABI=([01])")
_KEY_LENGTH = 32
_FLAGS = (
    "-O1", "-Wl,--unresolved-symbols=ignore-in-shared-libs", "-Wl,-rpath,$ORIGIN",
    "-Wl,--disable-new-dtags",  # these libraries, not others in LD_LIBRARY_PATH
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LibraryLink:
    """How a program is compiled against a library: flags, and files to link to beside it."""

    flags: tuple[str, ...]
    beside: Mapping[str, Path]


def _link_torch() -> LibraryLink:  # headers by -I: those in the user's CPATH come after
    headers = find_torch_headers()
    libraries = headers.parent / "lib"
    include = (headers, headers / "torch" / "csrc" / "api" / "include")
    return LibraryLink(
        flags=(
            "-std=c++20",
            f"-D_GLIBCXX_USE_CXX11_ABI={_read_abi(headers.parent)}",
            *(flag for folder in include for flag in ("-I", str(folder))),
            f"-L{libraries}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}",
        ),
        beside={},
    )  # fmt: skip


def _read_abi(torch: Path) -> str:
    """Return the ABI of libstdc++ that torch was built with, without importing torch."""
    config = torch / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    found = _ABI.search(config.read_text("utf-8")) if config.is_file() else None
    return found.group(1) if found else "1"


def _link_onnxruntime() -> LibraryLink:
    library = _find_library("onnxruntime", "capi/libonnxruntime.so.*")
    soname = "libonnxruntime.so.1"  # which the wheel does not have as a file
    return LibraryLink(flags=("-std=c++17", str(library)), beside={soname: library})


def _link_openvino() -> LibraryLink:
    library = _find_library("openvino", "libs/libopenvino.so.*")
    headers = library.parent.parent / "include"
    if not (headers / "openvino").is_dir():
        raise MissingError(
            f"OpenVINO's headers are not in {headers}",
            hint="pip install --force-reinstall openvino",
        )
    flags = ("-std=c++17", "-I", str(headers), str(library), f"-Wl,-rpath,{library.parent}")
    return LibraryLink(flags=flags, beside={})


def _find_library(package: str, pattern: str) -> Path:
    """Return the shared library in the folder of an installed package, without importing it.

    Raises:
        MissingError: there is none.
    """
    spec = util.find_spec(package)
    found = sorted(Path(spec.origin).parent.glob(pattern)) if spec and spec.origin else []
    if not found:
        raise MissingError(
            f"the shared library of {package} is not installed", hint=f"pip install {package}"
        )
    return found[0]


@dataclass(frozen=True, kw_only=True)
class ProgramRecipe:
    """A program: its source in `programs/`, and the library that it uses with its packages."""

    source: str
    library: str
    packages: tuple[str, ...]
    link: Callable[[], LibraryLink]


RECIPES: Mapping[str, ProgramRecipe] = {
    "torchscript": ProgramRecipe(
        source="run_torchscript.cpp", library="libtorch", packages=("torch",), link=_link_torch
    ),
    "aoti": ProgramRecipe(
        source="run_aoti.cpp", library="libtorch", packages=("torch",), link=_link_torch
    ),
    "onnx": ProgramRecipe(
        source="run_onnx.cpp", library="onnxruntime",
        packages=("onnxruntime", "onnxruntime-gpu"), link=_link_onnxruntime,
    ),
    "openvino": ProgramRecipe(
        source="run_openvino.cpp", library="openvino", packages=("openvino",), link=_link_openvino
    ),
}  # fmt: skip


def build_program(recipe: ProgramRecipe, cache: Path, sources: Path = SOURCES) -> Path:
    """Return the program, compiled now or earlier.

    Args:
        recipe: the program.
        cache: the folder of all programs, by what they were made of.
        sources: the folder of the source files.

    Raises:
        MissingError: there is no compiler, library or header.
        RunnerError: it does not compile.
    """
    compiler, link = find_compiler(), recipe.link()
    source = sources / recipe.source
    command = (compiler, str(source), "-I", str(sources), *link.flags, *_FLAGS)
    key = _key_of(command, source, recipe)
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / key
    if not (place / _PROGRAM_FILE).is_file():
        with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as name:
            made = Path(name) / key
            made.mkdir()
            for soname, library in link.beside.items():
                (made / soname).symlink_to(library)
            _compile((*command, "-o", str(made / _PROGRAM_FILE)), recipe)
            _move_into_place(made, place)
    return place / _PROGRAM_FILE


def _key_of(command: tuple[str, ...], source: Path, recipe: ProgramRecipe) -> str:
    """Return a digest of all that the program is made of."""
    headers = (path for pattern in _SHARED for path in source.parent.glob(pattern))
    digest = hashlib.sha256()
    for path in (source, *sorted(headers)):
        digest.update(path.read_bytes())
    versions = sorted(package_versions(*recipe.packages).items())
    digest.update(repr((command, read_compiler_version(command[0]), versions)).encode())
    return digest.hexdigest()[:_KEY_LENGTH]


def _move_into_place(made: Path, place: Path) -> None:
    try:
        made.replace(place)
    except OSError:  # another process was faster, or left an incomplete folder
        if (place / _PROGRAM_FILE).is_file():
            return
        shutil.rmtree(place)
        made.replace(place)


def _compile(command: tuple[str, ...], recipe: ProgramRecipe) -> None:
    end, printed = capture_output(command, seconds=_COMPILE_TIMEOUT)
    OutputLog(echo=True).add(printed.encode())
    if end.overrun is not None or end.code:
        lines = [line for line in printed.splitlines() if "error" in line]
        reason = end.overrun.text if end.overrun else (lines or [end.name])[0]
        name = Path(command[0]).name
        raise RunnerError(f"{name} does not compile {recipe.source}: {reason}", hint=LOGGED)


def read_compiler_version(compiler: str) -> str:
    """Return the version that a compiler prints; empty if it prints none."""
    try:
        end, printed = capture_output((compiler, "-dumpfullversion", "-dumpversion"))
    except OSError:
        return ""
    return printed.strip() if not end.code else ""


def read_versions(recipe: ProgramRecipe, program: Path) -> dict[str, str]:
    """Return the versions of the library as it was loaded, and of the compiler.

    Raises:
        RunnerError: the program does not start.
    """
    try:
        end, printed = capture_output((str(program), "--version"), seconds=_RUN_TIMEOUT)
    except OSError as error:
        raise RunnerError(f"{program} does not start: {error}", hint="remove it") from error
    if end.code or end.overrun is not None:
        raise RunnerError(
            f"the program for {recipe.library} does not start: {(printed or end.name).strip()}",
            hint=f"remove {program.parent}{os.sep} to build it again",
        )
    compiler = find_compiler()
    return {
        recipe.library: printed.strip(), Path(compiler).name: read_compiler_version(compiler),
    }  # fmt: skip
