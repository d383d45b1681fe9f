"""Environments are made whole or not at all, cached, and checked before each use."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from modelc.cli.app import run_cli
from modelc.core.children.processes import ProcessEnd
from modelc.core.errors import ErrorCode, MissingError
from modelc.core.events import Event, Finished, Noted
from modelc.runtimes import package_installer, runtime_environments
from modelc.runtimes.runtime_environments import (
    ENVIRONMENTS_FOLDER,
    RuntimeEnvironment,
    find_environment,
    list_environments,
    provide_environment,
    remove_environments,
)
from modelc.runtimes.runtime_requirement import RuntimeRequirement, parse_requirement

from .conftest import RIGHT

pytestmark = [
    pytest.mark.usefixtures("index"),
    pytest.mark.skipif(os.name == "nt", reason="the wheels are for POSIX"),
]
ASKED = parse_requirement(f"onnxruntime=={RIGHT}")


def made_in(events: list[Event]) -> int:
    return sum(isinstance(one, Finished) and one.passed for one in events)


def provide(cache: Path, requirement: RuntimeRequirement = ASKED) -> tuple[RuntimeEnvironment, int]:
    events: list[Event] = []
    return provide_environment(requirement, cache, events.append), made_in(events)


def overwrite_version(found: RuntimeEnvironment, version: str) -> None:
    (info,) = found.folder.glob("lib/**/onnxruntime-*.dist-info/METADATA")
    info.write_text(f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {version}\n")


def test_an_environment_is_made_once(cache: Path) -> None:
    first, _ = provide(cache)
    again, count = provide(cache)

    assert (again, count) == (first, 0)
    assert first.installed["onnxruntime"] == RIGHT
    assert first.installed["numpy"] == "2.9.9"
    assert first.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert find_environment(ASKED, cache) == first
    assert RIGHT in [one.version for one in list_environments(cache)]


def test_one_with_another_version_than_its_key_says_is_refused(tmp_path: Path) -> None:
    found, _ = provide(tmp_path)
    overwrite_version(found, "1.24.0")
    events: list[Event] = []

    again = provide_environment(ASKED, tmp_path, events.append)

    assert made_in(events) == 1
    assert any(isinstance(one, Noted) and one.warning for one in events)
    assert again.installed["onnxruntime"] == RIGHT


@pytest.mark.slow
def test_one_whose_module_is_that_of_another_release_is_refused(tmp_path: Path) -> None:
    found, _ = provide(tmp_path)
    (module,) = found.folder.glob("lib/**/onnxruntime/__init__.py")
    module.write_text(module.read_text().replace(f"'{RIGHT}'", "'1.19.2'"))

    assert provide(tmp_path)[1] == 1


@pytest.mark.slow
def test_one_whose_other_packages_changed_is_refused(tmp_path: Path) -> None:
    found, _ = provide(tmp_path)
    (info,) = found.folder.glob("lib/**/numpy-2.9.9.dist-info/METADATA")
    info.write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")

    assert provide(tmp_path)[1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("stamp", ["", "{", '{"requirement": 1}', "[]"])
def test_a_half_made_one_is_made_again(tmp_path: Path, stamp: str) -> None:
    found, _ = provide(tmp_path)
    (found.folder / "environment.json").write_text(stamp)
    (found.folder.with_name(f"{found.folder.name}.draft")).mkdir()

    again, count = provide(tmp_path)

    assert (again, count) == (found, 1)
    assert not list((tmp_path / ENVIRONMENTS_FOLDER).glob("*.draft"))


@pytest.mark.slow
def test_one_without_its_interpreter_is_made_again(tmp_path: Path) -> None:
    found, _ = provide(tmp_path)
    found.interpreter.unlink()

    assert provide(tmp_path)[1] == 1


def test_a_release_that_the_index_lacks_is_named_with_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(MissingError) as caught:
        provide(tmp_path, parse_requirement("onnxruntime==1.2.3"))

    assert caught.value.code is ErrorCode.NOT_FOUND
    assert RIGHT in caught.value.hint
    assert not [one for one in (tmp_path / ENVIRONMENTS_FOLDER).iterdir() if one.is_dir()]


def test_an_index_that_does_not_answer_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "https://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")

    with pytest.raises(MissingError) as caught:
        provide(tmp_path)

    assert "\n" not in caught.value.message
    assert "PIP_INDEX_URL" in caught.value.hint


def test_a_python_that_is_not_here_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        provide(tmp_path, parse_requirement(f"onnxruntime=={RIGHT},python=2.1"))


def test_a_failed_installation_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime_environments, "install_packages", interrupt)
    with pytest.raises(KeyboardInterrupt):
        provide(tmp_path)

    assert not [one for one in (tmp_path / ENVIRONMENTS_FOLDER).iterdir() if one.is_dir()]


def test_another_python_has_another_environment() -> None:
    names = {
        runtime_environments._name_of(parse_requirement(f"onnxruntime=={RIGHT}{python}"))
        for python in ("", ",python=3.9", ",python=3.12")
    }
    assert len(names) == 3


def test_environments_are_removed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELC_CACHE_DIR", str(tmp_path))
    stamp: dict[str, object] = {"python": "3.11.1", "installed": {}}
    for name in ("onnxruntime==1.0", "onnxruntime==1.1", "openvino==2025.1.0"):
        folder = tmp_path / ENVIRONMENTS_FOLDER / name.replace("==", "-")
        folder.mkdir(parents=True)
        stamp["requirement"] = name
        (folder / "environment.json").write_text(json.dumps(stamp))

    assert run_cli(["cache", "runtimes", "--remove", "onnxruntime==1.1"]) == 0
    left = sorted(one.requirement for one in list_environments(tmp_path))
    assert left == ["onnxruntime==1.0", "openvino==2025.1.0"]

    assert run_cli(["cache", "runtimes", "--remove", "openvino==2025.2.0"]) == 2
    assert "openvino==2025.1.0" in capfd.readouterr().err

    assert remove_environments(tmp_path) > 0
    assert not list_environments(tmp_path)
    assert not list((tmp_path / ENVIRONMENTS_FOLDER).glob("*/"))


def test_an_installer_writes_into_the_environment_whatever_the_user_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text(f"[install]\nuser = true\ntarget = {tmp_path / 'other'}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))

    assert provide(tmp_path)[0].installed["onnxruntime"] == RIGHT
    assert not (tmp_path / "other").exists()


def test_uv_is_given_the_whole_path_as_it_works_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []
    done = package_installer.ProgramOutput(end=ProcessEnd(code=0), lines=())

    def keep(command: tuple[str, ...]) -> package_installer.ProgramOutput:
        commands.append(command)
        return done

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(package_installer, "find_uv", lambda: "uv")
    monkeypatch.setattr(package_installer, "_run", keep)

    package_installer.install_packages(Path("cache"), ASKED)

    assert str(package_installer.python_of(tmp_path / "cache")) in commands[0]


@pytest.mark.slow
@pytest.mark.skipif(package_installer.find_uv() is None, reason="needs uv")
def test_uv_makes_the_same_environment(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))

    assert provide(tmp_path)[0].installed["onnxruntime"] == RIGHT
    with pytest.raises(MissingError):
        provide(tmp_path, parse_requirement("onnxruntime==1.2.3"))
