"""The name on the package index: `modelc` is another project's, so nothing installs it by name."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelc.core.installation import DISTRIBUTION, EXTRAS, hint_for_extra
from modelc.pipeline.diagnose import own_requirements

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NAME = r"modelc(?:[-_.]toolchain)?"
END = r"(?![\w./-])"
BY_NAME = re.compile(
    # an extra or a version, whatever installs it; `NAME[extra] @ URL` is no look-up by name
    rf"(?<![\w./@:-]){NAME}(?:\[[^\]\n]*\](?!\s*@)|(?:===?|~=|>=|<=|!=)\s*['\"$\d])"
    # the bare name behind an installer
    rf"|\b(?:pipx? +install|uv +add|uv +(?:pip|tool) +install|uvx)\b"
    rf"[^\n&|;#]*[ '\"]{NAME}{END}(?!\[|\s*@)"
    # the bare name as what a template installs
    rf"|(?:PACKAGE|package|requirement|REPOSITORY):\s*['\"]?{NAME}{END}"
)


def tracked() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a Git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if Path(name).name == Path(__file__).name or not (ROOT / name).is_file():
            continue
        data = (ROOT / name).read_bytes()
        if b"\0" not in data:
            yield name, data.decode("utf-8", "replace")


def test_no_tracked_file_installs_modelc_by_its_name_on_the_index() -> None:
    found = [
        f"{name}:{number} {line.strip()}"
        for name, text in tracked()
        for number, line in enumerate(text.splitlines(), 1)
        if BY_NAME.search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "pip install modelc", "pip install -c constraints.txt modelc", "uvx modelc --help",
        "pip install 'modelc[hf]'", 'hint="pip install modelc-toolchain[hf]"',
        '"${pip[@]}" "modelc==$VERSION"', "    RUN_PACKAGE: modelc # as modelc==0.1.0",
        "pipx install modelc-toolchain", "uv pip install modelc", "modelc>=0.1.0",
    ],
)  # fmt: skip
def test_the_check_finds_an_install_by_name(line: str) -> None:
    assert BY_NAME.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install .", "pip install '.[hf]'", "modelc run && pip install numpy",
        "pip install 'modelc-toolchain[hf] @ git+https://host/owner/modelc@v1'",
        "pip install git+https://github.com/OWNER/modelc@COMMIT", "pip install numpy; modelc run",
        "manifest.modelc == other", "pip install ./modelc",
    ],
)  # fmt: skip
def test_the_check_lets_an_install_from_the_repository_be(line: str) -> None:
    assert not BY_NAME.search(line)


def test_the_distribution_is_named_in_one_place_and_in_pyproject() -> None:
    assert PYPROJECT["project"]["name"] == DISTRIBUTION == "modelc-toolchain"
    assert PYPROJECT["project"]["scripts"] == {"modelc": "modelc.__main__:main"}


def test_the_hint_for_a_missing_extra_installs_its_package_by_itself() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert {name: [needed] for name, needed in EXTRAS.items()} == {
        name: extras[name] for name in EXTRAS
    }
    assert hint_for_extra("hf") == "pip install 'transformers>=5.0'"


def test_the_requirements_of_modelc_are_asked_under_its_own_distribution_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def requires(name: str) -> list[str]:
        asked.append(name)
        return ["torch"]

    monkeypatch.setattr("modelc.pipeline.diagnose.metadata.requires", requires)
    assert own_requirements() == ("torch",)
    assert asked == [DISTRIBUTION]
