"""action.yml, ci/gitlab.yml and the hooks: against their schemas, and their scripts carried out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
ACTION, GITLAB, HOOKS = (
    ROOT / name for name in ("action.yml", "ci/gitlab.yml", ".pre-commit-hooks.yaml")
)
PLACEHOLDER = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")
PROJECT = """\
[models.one]
checkpoint = "one.safetensors"
model = "modelc.sample_models.gate:gate"
input = "x:float32[batch=1..4,16]"
to = "torchscript"
"""


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(ACTION)["runs"]["steps"]
    return found


def scripts() -> Iterator[tuple[str, str, str]]:
    """Every script: its name, its shell, its text."""
    yield from ((step["name"], "bash", step["run"]) for step in steps() if "run" in step)
    job = read(GITLAB)[".modelc"]
    for name in ("before_script", "script"):
        yield name, "sh", "\n".join(job[name])


def schema_says(name: str, path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    order = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{name}", *more]
    return subprocess.run([*order, str(path)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "path", "more"),
    [
        ("github-actions", ACTION, ()),
        ("gitlab-ci", GITLAB, ("--data-transform", "gitlab-ci")),
    ],
)
def test_a_template_is_what_its_schema_wants(
    name: str, path: Path, more: tuple[str, ...], tmp_path: Path
) -> None:
    # GitLab's schema does not look at hidden jobs: it is checked as one that extends it is
    text = path.read_text(encoding="utf-8").replace("\n.modelc:", "\nmodels:")
    copy = tmp_path / path.name
    copy.write_text(text)
    ran = schema_says(name, copy, *more)
    assert ran.returncode == 0, ran.stdout
    spoiled = text.replace("using: composite", "using: composit")
    copy.write_text(spoiled.replace("when: always", "when: sometimes"))
    assert schema_says(name, copy, *more).returncode == 1


def test_every_action_is_pinned_to_a_commit_with_its_version() -> None:
    uses = [line for line in ACTION.read_text().splitlines() if "uses:" in line]
    assert len(uses) == sum("uses" in step for step in steps())
    for line in uses:
        assert re.search(r"uses: actions/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_no_script_has_an_input_in_it() -> None:
    assert not [name for name, _, text in scripts() if "${{" in text]


def test_every_input_is_used_and_every_one_that_is_used_is_there() -> None:
    declared = set(read(ACTION)["inputs"])
    text = ACTION.read_text(encoding="utf-8").partition("runs:")[2]
    assert set(re.findall(r"inputs\.([a-z-]+)", text)) == declared


@pytest.mark.parametrize(("name", "shell", "text"), list(scripts()), ids=lambda value: value[:20])
def test_shellcheck_finds_nothing_in_a_script(name: str, shell: str, text: str) -> None:
    order = [
        str(Path(sys.executable).with_name("shellcheck")),
        f"--shell={shell}",
        "--exclude=SC1091",
    ]
    ran = subprocess.run([*order, "-"], input=text, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, ""), name


def test_shellcheck_would_find_an_unquoted_variable() -> None:
    order = [str(Path(sys.executable).with_name("shellcheck")), "--shell=bash", "-"]
    ran = subprocess.run(order, input="rm $x\n", capture_output=True, text=True, check=False)
    assert ran.returncode == 1


@dataclass
class Runner:
    """A runner with a checkout, a temporary folder and a PATH of its own."""

    root: Path
    base: dict[str, str]
    inputs: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """What GitHub gives each step."""
        bin_ = self.root / "bin"
        return {
            **self.base,
            "PATH": f"{bin_}{os.pathsep}{self.base['PATH']}",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.root / "checkout"),
            "GITHUB_OUTPUT": str(self.root / "output"),
            "GITHUB_STEP_SUMMARY": str(self.root / "summary"),
        }

    def filled(self, text: str) -> str:
        """The text with inputs and contexts in it, as GitHub evaluates `env` and folders."""
        given = {f"inputs.{name}": one["default"] for name, one in read(ACTION)["inputs"].items()}
        given |= {f"inputs.{name}": text for name, text in self.inputs.items()}
        given |= {"runner.temp": str(self.root), "github.action_path": str(ROOT)}
        return PLACEHOLDER.sub(lambda found: given[found.group(1)], text)

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        """One step of the action, as the runner starts bash for it."""
        (step,) = (one for one in steps() if one["name"] == name)
        env = {key: self.filled(text) for key, text in step.get("env", {}).items()}
        folder = self.root / "checkout" / self.filled(step.get("working-directory", "."))
        script = self.root / "script.sh"
        script.write_text(step["run"])
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=folder,
            env={**self.environment(), **env},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def outputs(self) -> dict[str, str]:
        lines = (self.root / "output").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def shim(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)


@pytest.fixture
def runner(tmp_path: Path, surroundings: dict[str, str], gate: tuple[str, ...]) -> Runner:
    """A project of one small model in `ml` of the checkout; `modelc` is this one."""
    project = tmp_path / "checkout" / "ml"
    project.mkdir(parents=True)
    (project / "modelc.toml").write_text(PROJECT)
    (project / "one.safetensors").write_bytes(Path(gate[0]).read_bytes())
    made = Runner(tmp_path, surroundings, {"working-directory": "ml"})
    made.shim("modelc", f'exec "{sys.executable}" -m modelc "$@"')
    return made


@pytest.mark.parametrize(
    ("inputs", "last"),
    [
        ({}, str(ROOT)),
        ({"extras": "hf,sign"}, f"{ROOT}[hf,sign]"),
        ({"requirements": "a b.txt"}, f"{ROOT} --requirement a b.txt"),
    ],
    ids=["itself", "extras", "requirements"],
)
def test_the_action_installs_from_its_checkout_by_the_pinned_constraints(
    runner: Runner, inputs: dict[str, str], last: str
) -> None:
    runner.inputs |= inputs
    runner.shim("python", f'printf "%s\\n" "$*" >> "{runner.root}/asked"')
    assert runner.step("Install modelc").returncode == 0
    torch, own = (runner.root / "asked").read_text().splitlines()
    pinned = f"--constraint {ROOT}/constraints.txt"
    assert torch.endswith(
        f"{pinned} --no-deps --index-url https://download.pytorch.org/whl/cpu torch"
    )
    assert own.endswith(f"{pinned} {last}")
    assert (ROOT / "constraints.txt").is_file()


def test_the_key_of_the_pip_cache_follows_what_is_installed(runner: Runner) -> None:
    runner.shim("python", f'exec "{sys.executable}" "$@"')
    project = runner.root / "checkout" / "ml"

    def key() -> str:
        (runner.root / "output").unlink(missing_ok=True)
        ran = runner.step("Digest what is to be installed")
        assert ran.returncode == 0, ran.stderr
        return runner.outputs["digest"]

    plain = key()
    assert re.fullmatch("[0-9a-f]{64}", plain)
    assert key() == plain
    runner.inputs["requirements"] = "own.txt"
    (project / "own.txt").write_text("numpy\n")
    first = key()
    (project / "own.txt").write_text("numpy>=2\n")
    assert len({plain, first, key()}) == 3
    runner.inputs["extras"] = "hf"
    assert key() not in {plain, first}


def test_what_an_input_says_is_never_run(runner: Runner) -> None:
    evil = '$(touch pwned) `touch pwned`\n"; touch pwned; "\n--set=a=$(touch pwned)'
    runner.inputs |= {"args": evil, "base": "$(touch pwned)"}
    runner.shim("modelc", f'printf "%s\\n" "$@" > "{runner.root}/asked"')
    (runner.root / "checkout" / "ml" / "$(touch pwned)" / "one").mkdir(parents=True)
    (runner.root / "checkout" / "ml" / "$(touch pwned)" / "one" / "manifest.json").touch()
    assert runner.step("Run modelc").returncode == 0
    asked = (runner.root / "asked").read_text().splitlines()
    assert asked[-3:] == evil.splitlines()
    assert asked[asked.index("--fail-on-regression") + 1] == "$(touch pwned)"
    assert not list(runner.root.rglob("pwned"))


BASES = {
    "nothing": ((), "base", "true", False),
    "nothing, which is an error": ((), "base", "false", True),
    "an empty folder": (("base/",), "base", "true", True),
    "a run": (("base/my net/manifest.json",), "base", "false", True),
    "its record": (("base/one/manifest.json", "base/run.json"), "base/run.json", "true", True),
    "a folder with a blank": (("a [b] c/one/manifest.json",), "a [b] c", "true", True),
}


def base_in(project: Path, files: Sequence[str]) -> None:
    for name in files:
        path = project / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()


@pytest.mark.parametrize(("files", "base", "optional", "compared"), BASES.values(), ids=BASES)
def test_a_base_that_is_not_there_is_passed_over_where_that_is_allowed(
    runner: Runner, files: tuple[str, ...], base: str, optional: str, *, compared: bool
) -> None:
    base_in(runner.root / "checkout" / "ml", files)
    runner.inputs |= {"base": base, "base-optional": optional}
    runner.shim("modelc", f'printf "%s\\n" "$@" > "{runner.root}/asked"')
    ran = runner.step("Run modelc")
    asked = (runner.root / "asked").read_text().splitlines()
    assert ran.returncode == 0, ran.stderr
    assert (base in asked) is compared
    assert ("::warning title=modelc::base " in ran.stdout) is not compared


@pytest.mark.parametrize(("files", "base", "optional", "compared"), BASES.values(), ids=BASES)
def test_gitlabs_script_passes_it_over_as_well(
    runner: Runner, files: tuple[str, ...], base: str, optional: str, *, compared: bool
) -> None:
    job = read(GITLAB)[".modelc"]
    project = runner.root / "checkout" / "ml"
    base_in(project, files)
    runner.shim("modelc", f'printf "%s\\n" "$@" > "{runner.root}/asked"')
    given = {"RUN_BASE": base, "RUN_BASE_OPTIONAL": optional}
    ran = subprocess.run(
        ["sh", "-e", "-c", "\n".join(job["script"])],
        cwd=project,
        env={**runner.environment(), **job["variables"], **given},
        capture_output=True,
        text=True,
        check=False,
    )
    asked = (runner.root / "asked").read_text().splitlines()
    assert ran.returncode == 0, ran.stderr
    assert (base in asked) is compared
    assert ("RUN_BASE " in ran.stdout) is not compared


def test_the_steps_exit_code_is_modelcs(runner: Runner) -> None:
    runner.shim("modelc", "exit 5")
    assert runner.step("Run modelc").returncode == 5
    assert runner.outputs["exit-code"] == "5"


@pytest.mark.slow
def test_the_action_makes_models_a_summary_and_a_comment(runner: Runner) -> None:
    runner.inputs["args"] = "--jobs=1\n\n--keep-going"
    ran = runner.step("Run modelc")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert runner.outputs == {
        "exit-code": "0",
        "out": "ml/out",
        "comment": "ml/out/comment.md",
    }
    checkout = runner.root / "checkout"
    assert "✅" in (checkout / runner.outputs["comment"]).read_text()
    assert "✅" in (runner.root / "summary").read_text()
    suite = ET.parse(checkout / "ml" / "out" / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    assert (runner.root / "modelc-cache").is_dir()
    runner.inputs["base"] = "out"
    again = runner.step("Run modelc")
    assert again.returncode == 0, again.stdout
    assert re.search(r"\b0 of \d+ measures worse", again.stdout)
    (forget,) = (one["name"] for one in steps() if one["name"].startswith("Forget "))
    assert runner.step(forget).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_gitlabs_script_makes_them_as_well(runner: Runner, shell: str) -> None:
    job = read(GITLAB)[".modelc"]
    project = runner.root / "checkout" / "ml"
    variables = {**job["variables"], "RUN_ARGUMENTS": "--jobs=1\n--keep-going"}
    ran = subprocess.run(
        [shell, "-e", "-c", "\n".join(job["script"])],
        cwd=project,
        env={**runner.environment(), **variables, "GITLAB_CI": "true",
             "CI_PROJECT_DIR": str(project)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "section_end:" in ran.stdout
    assert (project / "out" / "junit.xml").is_file()


URL = "git+https://github.com/OWNER/modelc@COMMIT"
PIP = "-m pip install --disable-pip-version-check"
TORCH = f"{PIP} --no-deps --index-url https://download.pytorch.org/whl/cpu torch"
BARE = {"RUN_CONSTRAINTS": "c.txt", "RUN_TORCH_INDEX": ""}


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"RUN_REPOSITORY": URL}, [TORCH, f"{PIP} modelc-toolchain @ {URL}"]),
        (
            {**BARE, "RUN_REPOSITORY": URL, "RUN_EXTRAS": "hf,sign"},
            [f"{PIP} --constraint c.txt modelc-toolchain[hf,sign] @ {URL}"],
        ),
        (
            {**BARE, "RUN_REPOSITORY": "../modelc", "RUN_REQUIREMENTS": "own.txt"},
            [f"{PIP} --constraint c.txt ../modelc --requirement own.txt"],
        ),
        ({}, []),
    ],
    ids=["a Git URL", "extras", "a checkout", "nothing"],
)
def test_gitlabs_job_installs_what_its_variables_say(
    runner: Runner, inputs: dict[str, str], expected: list[str]
) -> None:
    job = read(GITLAB)[".modelc"]
    runner.shim("python", f'printf "%s\\n" "$*" >> "{runner.root}/asked"')
    (runner.root / ".venv" / "bin").mkdir(parents=True)
    (runner.root / ".venv" / "bin" / "activate").touch()
    ran = subprocess.run(
        ["sh", "-e", "-c", "\n".join(job["before_script"])],
        cwd=runner.root,
        env={**runner.environment(), **job["variables"], **inputs},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode == 0) is bool(expected)
    assert ("RUN_REPOSITORY" in ran.stderr) is not bool(expected)
    assert (runner.root / "asked").read_text().splitlines()[1:] == expected


@pytest.mark.parametrize("hook", read(HOOKS), ids=lambda hook: hook["id"])
def test_a_hook_lets_a_sound_project_pass_and_stops_at_a_fault(
    runner: Runner, hook: dict[str, Any]
) -> None:
    assert {"id", "name", "entry", "language", "files"} <= set(hook)
    assert re.search(hook["files"], "ml/modelc.toml")
    assert not re.search(hook["files"], "ml/modelc.toml.bak")
    project = runner.root / "checkout" / "ml"

    def checked() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            hook["entry"].split(), cwd=project, env=runner.environment(),
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    sound = checked()
    assert sound.returncode == 0
    assert sound.stdout.startswith("modelc.toml: 1 model, 1 artifact, ")
    (project / "modelc.toml").write_text(PROJECT.replace("input", "inptu"))
    wrong = checked()
    assert wrong.returncode == 2
    assert "unknown key 'inptu'" in wrong.stderr


def test_a_check_loads_no_framework(
    modelc: Callable[..., subprocess.CompletedProcess[str]], runner: Runner
) -> None:
    project = runner.root / "checkout" / "ml"
    ran = modelc("config", "--check", "--json", cwd=project, flags=("-X", "importtime"))
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert json.loads(ran.stdout)["models"]
    assert "modelc.projects.model_orders" in loaded
    assert not loaded & {"torch", "numpy", "onnx", "onnxruntime", "openvino"}
