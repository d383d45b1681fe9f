"""README and docs: what they tell people to type works, and what they show is what comes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from modelc.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "quickstarts").glob("*.md")),
]
GROUP: Any = typer.main.get_command(app)  # typer's own classes are private
COMMANDS: dict[str, Any] = GROUP.commands
ENDS = {"modelc debug": {1}, "modelc doctor": {0, 4}}  # a layer is wrong; as this machine is


def fences(page: Path) -> list[str]:
    """The fenced blocks of a page, continued lines joined."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)


def commands_of(page: Path) -> Iterator[list[str]]:
    """The arguments of every modelc command that a page shows."""
    for block in fences(page):
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
        for name, *arguments in commands_of(page)
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
    """Each command in README.md with the lines of output below it.

    In a console block commands stand after `$`; in a sh block every line is one.
    """
    found: list[tuple[str, list[str]]] = []
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    for language, block in re.findall(r"^```(console|sh)\n(.*?)^```", text, re.M | re.S):
        for line in block.splitlines():
            if language == "sh" or line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found


def test_readme_installs_and_then_runs_modelc() -> None:
    programs = [command.split()[0] for command, _ in readme_commands()]
    assert {"pip", "modelc", "python"} == set(programs)
    assert programs[:2] == ["pip", "pip"]


@pytest.mark.slow
def test_every_command_of_readme_works_and_prints_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "sample_models").symlink_to(ROOT / "sample_models")
    for command, shown in readme_commands():
        if not command.startswith("pip "):
            ran = in_shell(command, tmp_path)
            expected = ENDS.get(" ".join(command.split()[:2]), {0})
            assert ran.returncode in expected, (command, ran.stderr)
            printed = set(map(without_numbers, ran.stdout.splitlines()))
            assert not [line for line in shown if without_numbers(line) not in printed]


def in_shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of README as a shell runs it, with this checkout's modelc."""
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = os.pathsep.join(str(Path(place).absolute()) for place in places if place)
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    kept.pop("PYTHONSAFEPATH", None)  # people do not set it, and python -m finds sample_models
    python = shlex.quote(sys.executable)
    shims = f'modelc() {{ {python} -P -m modelc "$@"; }}; python() {{ {python} "$@"; }}; '
    return subprocess.run(
        ["bash", "-c", shims + command],
        cwd=folder,
        env={**kept, "PYTHONPATH": paths, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def without_numbers(line: str) -> str:
    """The words of a line: times, sizes and the last digits of errors differ between machines."""
    return " ".join(re.sub(r"[-+]?\d[\d.e+-]*|─+", "", line).split())


def test_the_picture_is_what_its_script_draws() -> None:
    script = [sys.executable, str(ROOT / "docs" / "draw_flow.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "warning"),
    [
        ("[domain](domain.md#what-refuses-sizes-outside)", ""),
        ("[domain](domain.md#nothing-of-this-name)", "myst.xref_missing"),
        ("[domain](no-such-page.md)", "myst.xref_missing"),
        ("![flow](images/nothing.svg)", "image file not readable"),
    ],
)
def test_the_site_is_not_built_with_a_broken_link(tmp_path: Path, link: str, warning: str) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "domain.md").write_text("# Domain\n\n## What refuses sizes outside\n")
    (pages / "index.md").write_text(f"# Start\n\n## Guides\n\n{link}\n\n[all](domain.md)\n")
    command = [
        *(sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"),
        *("-c", str(ROOT / "docs"), str(pages), str(tmp_path / "site")),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == (not warning), ran.stderr
    assert warning in ran.stderr
