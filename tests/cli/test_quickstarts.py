"""The pages of docs/quickstarts, run as a reader runs them: files, commands and their output.

A block of Python that begins with `# NAME.py` is saved as that file. A command fails where an error
is shown, and nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..doc_pages import as_reader, blocks_of, check_output, commands_of, run_command

PAGES = sorted((Path(__file__).parents[2] / "docs" / "quickstarts").glob("*.md"))
QUICK = {"vision"}
NEEDS = dict.fromkeys(("text-encoder", "decoder", "encoder-decoder"), "transformers")
FAILURE = re.compile(r"error: |[\w.]+(?:Error|Argument): ")  # of modelc; of Python


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return as_reader(tmp_path_factory.mktemp("bin"))


def marks(page: Path) -> list[pytest.MarkDecorator]:
    return [] if page.stem in QUICK else [pytest.mark.slow]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=marks(page)) for page in PAGES]
)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, reader: dict[str, str]) -> None:
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    printed: dict[str, str] = {}
    for language, block in blocks_of(page):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", block)
            assert name, f"no name of a file: {block[:60]}"
            (tmp_path / name[1]).write_text(block, encoding="utf-8")
            continue
        assert language == "console"
        for command, shown in commands_of(language, block):
            done = run_command(command, tmp_path, reader)
            fails = any(map(FAILURE.match, shown))
            assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}"
            check_output(shown, done.stdout)
            printed[command] = done.stdout
    assert printed
    if page.stem.endswith("decoder"):  # the loop gives what transformers' own generate gives
        own, loop = printed["python save.py"], printed["python generate.py"]
        assert own.splitlines()[-1] == loop.splitlines()[-1]


def test_every_family_has_a_page() -> None:
    text = {"text-encoder", "decoder", "encoder-decoder"}
    assert text | {"vision", "speech", "detection", "tabular"} == {page.stem for page in PAGES}
    for page in PAGES:
        assert 40 <= len(page.read_text(encoding="utf-8").splitlines()) <= 100


def test_a_line_that_was_not_printed_is_found(tmp_path: Path) -> None:
    check_output(["onnx  pass  1.2"], " onnx   pass   33.0 \n")
    with pytest.raises(AssertionError, match="not printed: openvino pass"):
        check_output(["openvino pass"], "openvino FAIL")
    page = tmp_path / "page.md"
    page.write_text("```console\n$ a \\\n  b\nc\n...\n$ d\n```\n\n```sh\ne\nf\n```\n")
    found = [one for block in blocks_of(page) for one in commands_of(*block)]
    assert found == [("a b", ["c"]), ("d", []), ("e", []), ("f", [])]
