"""README and docs: what they tell people to type works, and what they show is what comes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from modelc.cli.app import make_app

from .doc_pages import as_reader, blocks_of, check_output, commands_of, run_command

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "quickstarts").glob("*.md")),
]
GROUP: Any = typer.main.get_command(make_app())  # typer's own classes are private
COMMANDS: dict[str, Any] = GROUP.commands
ENDS = {"modelc debug": {1}, "modelc doctor": {0, 4}}  # a layer is wrong; as this machine is


def shown_arguments(page: Path) -> Iterator[list[str]]:
    """The arguments of every modelc command that a page shows."""
    for _, block in blocks_of(page):
        for line in block.splitlines():
            if line.removeprefix("$ ").startswith("modelc "):
                yield shlex.split(line.removeprefix("$ "), comments=True)[1:]


def options_of(command: Any) -> set[str]:
    own = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return own.union(*map(options_of, getattr(command, "commands", {}).values()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_on_a_page_exist_with_their_options(page: Path) -> None:
    unknown = [
        (name, argument)
        for name, *arguments in shown_arguments(page)
        if name in COMMANDS or re.fullmatch("[a-z-]+", name)
        for argument in arguments
        if name not in COMMANDS
        or (
            argument.startswith("-")
            and argument.partition("=")[0] not in options_of(COMMANDS[name])
        )
    ]
    assert not unknown


def readme_commands() -> list[tuple[str, list[str]]]:
    """Each command in README.md with the lines of output below it."""
    blocks = blocks_of(ROOT / "README.md")
    return [one for block in blocks if block[0] in {"console", "sh"} for one in commands_of(*block)]


def test_readme_installs_and_then_runs_modelc() -> None:
    programs = [command.split()[0] for command, _ in readme_commands()]
    assert {"pip", "modelc", "python"} == set(programs)
    assert programs[:2] == ["pip", "pip"]


@pytest.mark.slow
def test_every_command_of_readme_works_and_prints_what_it_shows(tmp_path: Path) -> None:
    reader = as_reader(tmp_path / "bin")
    (tmp_path / "sample_models").symlink_to(ROOT / "sample_models")
    for command, shown in readme_commands():
        if not command.startswith("pip "):
            ran = run_command(command, tmp_path, reader)
            expected = ENDS.get(" ".join(command.split()[:2]), {0})
            assert ran.returncode in expected, (command, ran.stdout)
            check_output(shown, ran.stdout)


def test_the_picture_is_what_its_script_draws() -> None:
    script = [sys.executable, str(ROOT / "docs" / "draw_flow.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "warning"),
    [
        ("[domain](domain.md#sizes-outside-the-domain)", ""),
        ("[domain](domain.md#nothing-of-this-name)", "myst.xref_missing"),
        ("[domain](no-such-page.md)", "myst.xref_missing"),
        ("![flow](images/nothing.svg)", "image file not readable"),
    ],
)
def test_the_site_is_not_built_with_a_broken_link(tmp_path: Path, link: str, warning: str) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "domain.md").write_text("# Domain\n\n## Sizes outside the domain\n")
    (pages / "index.md").write_text(f"# Start\n\n## Guides\n\n{link}\n\n[all](domain.md)\n")
    command = [
        *(sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"),
        *("-c", str(ROOT / "docs"), str(pages), str(tmp_path / "site")),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == (not warning), ran.stderr
    assert warning in ran.stderr
