"""Count the functions of the checkout that one export executes.

`python tests/count_calls.py` exports the digits model to ONNX in a temporary folder and prints how
many functions of how many files ran; `--list` names them with the number of calls.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

Profile: TypeAlias = Callable[[FrameType, str, object], None]
ROOT = Path(__file__).resolve().parent.parent
_NO_FUNCTIONS = ("<module>", "<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
_ARGUMENTS = (
    "export",
    str(ROOT / "sample_models" / "digits.safetensors"),
    "--model=sample_models.digits:build",
    "--input=x:float32[batch=1..8,1,8,8]",
    "--to=onnx",
    "--quiet",
    "--no-cache",
    "--no-isolate",
)


def count_calls() -> Counter[tuple[str, str]]:
    """Export digits; return the number of calls by file, relative to the checkout, and function.

    The bodies of modules and classes are not functions; neither are comprehensions and lambdas.
    """
    called: Counter[CodeType] = Counter()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event == "call":
            called[frame.f_code] += 1

    with tempfile.TemporaryDirectory() as folder:
        _run_profiled([*_ARGUMENTS, f"--out={folder}/out"], profile)
    found: Counter[tuple[str, str]] = Counter()
    for code, times in list(called.items()):  # threads of frameworks go on
        file = Path(code.co_filename).resolve()
        is_body = not code.co_flags & 0x2  # CO_NEWLOCALS: modules and classes have none
        is_ours = not code.co_filename.startswith("<") and file.is_relative_to(ROOT)
        is_ours = is_ours and not file.is_relative_to(ROOT / ".venv")
        if is_ours and not is_body and code.co_name not in _NO_FUNCTIONS:
            found[file.relative_to(ROOT).as_posix(), code.co_qualname] += times
    return found


def _run_profiled(arguments: list[str], profile: Profile) -> None:
    from modelc.cli.app import run_cli

    sys.path.insert(0, str(ROOT))
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        with redirect_stdout(StringIO()):
            code = run_cli(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if code:
        raise SystemExit(code)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name every function")
    found_all = parser.parse_args().list
    found = count_calls()
    print(f"{len(found)} functions in {len({file for file, _ in found})} files")  # noqa: T201
    for (file, name), times in sorted(found.items()) if found_all else ():
        print(f"{times:8} {file}:{name}")  # noqa: T201


if __name__ == "__main__":
    _main()
