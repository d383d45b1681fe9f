"""The pages of docs/quickstarts, run as a reader runs them: files, commands and their output.

A block of Python that begins with `# NAME.py` is saved as that file. A console block has commands
after `$ `, each followed by lines of its output; a line that is `...` stands for any others.
Numbers are not compared, as sizes, seconds and decibels differ between machines. A command fails
where an error is shown, and nowhere else.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "quickstarts").glob("*.md"))
QUICK = {"vision"}
NEEDS = {"text-encoder": "transformers", "decoder": "transformers"}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FAILURE = re.compile(r"error: |[\w.]+(?:Error|Argument): ")  # of modelc; of Python
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block, lines that end in a backslash joined, and its output."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        joined = part.replace("\\\n", " ")
        command, _, output = joined.partition("\n")
        yield command, [line for line in output.splitlines() if line.strip() not in {"", "..."}]


def comparable(line: str) -> str:
    """The line without numbers, rules and the widths of columns."""
    return " ".join(NUMBER.sub("0", line.replace("─", "")).split())


def check_output(shown: list[str], printed: str) -> None:
    """Every line that the page shows was printed, in that order."""
    left = iter(map(comparable, printed.splitlines()))
    for line in map(comparable, shown):
        assert any(line == other for other in left), f"not printed: {line}\n{printed}"


@pytest.fixture(scope="session")
def reader(
    tmp_path_factory: pytest.TempPathFactory, surroundings: dict[str, str]
) -> dict[str, str]:
    """The environment of a reader, with `modelc` and `python` on the path."""
    folder = tmp_path_factory.mktemp("bin")
    for name, flags in (("modelc", "-m modelc"), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {flags} "$@"\n')
        (folder / name).chmod(0o755)
    unlike = {"PYTHONSAFEPATH", "MODELC_ISOLATE", "COLUMNS"}
    kept = {name: value for name, value in surroundings.items() if name not in unlike}
    return {**kept, "PATH": f"{folder}:{kept['PATH']}", "COLUMNS": "160"}


def marks(page: Path) -> list[pytest.MarkDecorator]:
    return [] if page.stem in QUICK else [pytest.mark.slow]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=marks(page)) for page in PAGES]
)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, reader: dict[str, str]) -> None:
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    printed: dict[str, str] = {}
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", block)
            assert name, f"no name of a file: {block[:60]}"
            (tmp_path / name[1]).write_text(block, encoding="utf-8")
            continue
        assert language == "console"
        for command, shown in commands(block):
            done = subprocess.run(
                ["/bin/sh", "-c", command], cwd=tmp_path, env=reader, check=False, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
            )  # fmt: skip
            fails = any(map(FAILURE.match, shown))
            assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}"
            check_output(shown, done.stdout)
            printed[command] = done.stdout
    assert printed
    if page.stem == "decoder":  # the loop gives what transformers' own generate gives
        own, loop = printed["python save.py"], printed["python generate.py"]
        assert own.splitlines()[-1] == loop.splitlines()[-1]


def test_every_family_has_a_page() -> None:
    families = {"vision", "text-encoder", "decoder", "speech", "detection", "tabular"}
    assert families == {page.stem for page in PAGES}
    for page in PAGES:
        assert 40 <= len(page.read_text(encoding="utf-8").splitlines()) <= 125


def test_a_line_that_was_not_printed_is_found() -> None:
    check_output(["onnx  pass  1.2"], " onnx   pass   33.0 \n")
    with pytest.raises(AssertionError, match="not printed: openvino pass"):
        check_output(["openvino pass"], "openvino FAIL")
    assert list(commands("$ a \\\n  b\nc\n...\n$ d\n")) == [("a    b", ["c"]), ("d", [])]
