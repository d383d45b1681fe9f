"""The files that `modelc bench` writes: checked before anything is measured, then written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ErrorCode, UsageError
from ..pipeline.manifest_file import MANIFEST_FILE

if TYPE_CHECKING:
    from ..pipeline.benchmark.benchmark_records import BenchmarkReport
    from ..pipeline.call_options import BenchmarkChoice

_EXAMPLES = {"csv": "rows.csv", "html": "benchmark.html"}


def check_files(choice: BenchmarkChoice, read: Iterable[Path | None]) -> None:
    """Check that the files can be written, and that none of them is one that is read.

    Raises:
        UsageError: it is a folder or in none, or another file of this call.
    """
    kept = {one.resolve() for one in (*read, choice.compare) if one is not None}
    for option, file in _list_written(choice):
        if file.is_dir() or not file.absolute().parent.is_dir():
            text = (
                f"--{option} {file} cannot be written: it is a folder, or its folder does not exist"
            )
            raise _refusal(option, text, ErrorCode.INVALID_VALUE)
        if file.resolve() in kept:
            text = f"--{option} {file} would replace a file that this call reads or writes"
            raise _refusal(option, text, ErrorCode.FILE_EXISTS)
        kept.add(file.resolve())


def check_folders(choice: BenchmarkChoice, folders: Iterable[Path]) -> None:
    """Check that no file of these output folders, and none of their checkpoints, is replaced.

    Raises:
        UsageError: one would be.
    """
    from ..pipeline.manifest_file import read_manifest

    for folder in folders if choice.csv or choice.html else ():
        manifest = read_manifest(folder)
        if manifest is None:
            continue
        names = [MANIFEST_FILE, *(one.name for one in manifest.files)]
        if manifest.checkpoint.hub is None:
            names.append(manifest.checkpoint.path)
        check_files(choice, (folder / name for name in names))


def write_files(
    reports: Sequence[BenchmarkReport], choice: BenchmarkChoice, *, several: bool
) -> list[Path]:
    """Write the rows of all reports, and a page for each: of a project's, with the model's name.

    Returns:
        the files.
    """
    from ..core.atomic_write import atomic_write
    from ..pipeline.benchmark.benchmark_page import render_benchmark_page
    from ..pipeline.output_folder import translate_write_errors
    from .render_benchmark import write_csv

    written = []
    if choice.csv is not None:
        with translate_write_errors(choice.csv.parent):
            write_csv(reports, choice.csv)
        written.append(choice.csv)
    if choice.html is not None:
        for one in reports:
            name = f"{choice.html.stem}-{Path(one.folder).name}{choice.html.suffix}"
            place = choice.html.with_name(name) if several else choice.html
            with translate_write_errors(choice.html.parent):
                atomic_write(place, render_benchmark_page(one).encode())
            written.append(place)
    return written


def _list_written(choice: BenchmarkChoice) -> list[tuple[str, Path]]:
    pairs = (("csv", choice.csv), ("html", choice.html))
    return [(option, file) for option, file in pairs if file is not None]


def _refusal(option: str, text: str, code: ErrorCode) -> UsageError:
    hint = f"name another file: {_EXAMPLES[option]}"
    return UsageError(text, hint=hint, option=option, code=code)
