"""Child process: `python -m modelc.converters.aoti_compiler_child FOLDER` compiles."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from threading import Thread

PROGRAM_FILE, PACKAGE_FILE, CACHE_FOLDER = "program.pt2", "compiled.pt2", "inductor"
OPTIONS_FILE = "options.json"  # of Inductor, for this program alone
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


def main(folder: Path) -> int:
    """Compile the folder's program.

    Args:
        folder: holds `program.pt2`, `options.json` and, in `bin/`, the compiler to use.
    """
    os.dup2(2, 1)
    Thread(target=_exit_with_parent, daemon=True).start()
    _set_environment(folder / CACHE_FOLDER)

    import torch
    from torch._inductor import aoti_compile_and_package

    compiler = next((folder / "bin").iterdir())
    program = torch.export.load(folder / PROGRAM_FILE)
    more = json.loads((folder / OPTIONS_FILE).read_text("utf-8"))
    options = {**_OPTIONS, **more, "cpp.cxx": (str(compiler),)}
    with torch.no_grad():
        aoti_compile_and_package(
            program, package_path=str(folder / PACKAGE_FILE), inductor_configs=options
        )
    return 0


def _set_environment(cache: Path) -> None:
    """An environment of our own; before torch is imported, which reads it then."""
    cache.mkdir()
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TMPDIR"] = str(cache)
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    tempfile.tempdir = str(cache)


def _exit_with_parent() -> None:
    """End with the parent: it holds our standard input open as long as it lives."""
    while os.read(0, 1):  # not sys.stdin, whose lock the interpreter wants at its end
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
