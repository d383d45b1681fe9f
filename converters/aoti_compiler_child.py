"""What the child process of AOTInductor does: compile a program in a clean environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.children.child_call import ParentConnection

PROGRAM_FILE, PACKAGE_FILE, CACHE_FOLDER = "program.pt2", "compiled.pt2", "inductor"
_SETTINGS = ("AOTINDUCTOR", "AOT_INDUCTOR", "TORCHINDUCTOR", "TORCH_COMPILE", "TRITON", "CXX")
_OPTIONS: dict[str, object] = {
    # Nothing that changes what is computed: float32 sums may only be taken in another order.
    "use_fast_math": False,
    "cpp.enable_unsafe_math_opt_flag": False,
    "cpp.enable_floating_point_contract_flag": "off",
    # As many threads as where it runs, not as where it was compiled.
    "cpp.dynamic_threads": True,
    "aot_inductor.enable_line_tables": False,  # they name folders
    "aot_inductor.precompile_headers": False,  # pays from the second model on
    "compile_threads": 1,
}


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """A folder with `program.pt2` and, in `bin/`, the compiler; `options` of Inductor."""

    folder: Path
    options: Mapping[str, object]


def compile_in_child(request: CompileRequest, parent: ParentConnection) -> None:  # noqa: ARG001
    """Compile the folder's program to `compiled.pt2`."""
    folder = request.folder
    _set_environment(folder / CACHE_FOLDER)

    import torch
    from torch._inductor import aoti_compile_and_package

    compiler = next((folder / "bin").iterdir())
    program = torch.export.load(folder / PROGRAM_FILE)
    options = {**_OPTIONS, **request.options, "cpp.cxx": (str(compiler),)}
    with torch.no_grad():
        aoti_compile_and_package(
            program, package_path=str(folder / PACKAGE_FILE), inductor_configs=options
        )


def _set_environment(cache: Path) -> None:
    """An environment of our own; before torch is imported, which reads it then."""
    cache.mkdir()
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TMPDIR"] = str(cache)
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    tempfile.tempdir = str(cache)
