"""Flags over environment over the model's table over [defaults] over what is built in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.projects.project_reader import read_project
from modelc.projects.project_records import Project, Setting, Settings
from modelc.projects.setting_layers import Overrides, resolve_settings

from ..reasons import has_code

TEXT = """\
jobs = 2
out = "build"
[tolerance]
rtol = 0.1
[defaults]
seed = 1
feeds = 6
[defaults.tolerance]
atol = 1e-3
[models.digits]
checkpoint = "d.pt"
to = "onnx"
seed = 2
[models.other]
checkpoint = "o.pt"
to = "onnx"
"""
UNKNOWN, INVALID = ErrorCode.UNKNOWN_NAME, ErrorCode.INVALID_VALUE


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "modelc.toml").write_text(TEXT)
    return read_project(tmp_path / "modelc.toml")


def of(settings: Settings, model: str, key: str) -> Setting:
    (found,) = (one for one in settings.models if one.name == model)
    return next(one for one in found.said.values() if one.name == key)


SEED = {"MODELC_SEED": "3"}


@pytest.mark.parametrize(
    ("given", "digits", "other", "told"),
    [
        (Overrides(), 2, 1, ":13 [models.digits]"),
        (Overrides(environment=SEED), 3, 3, "env MODELC_SEED"),
        (Overrides(environment=SEED, sets=("seed=4",)), 4, 4, "--set"),
        (Overrides(environment=SEED, sets=("digits.seed=5", "seed=4")), 5, 4, "--set"),
    ],
)
def test_the_stronger_layer_holds(
    project: Project, given: Overrides, digits: int, other: int, told: str
) -> None:
    settings = resolve_settings(project, given)
    assert of(settings, "digits", "seed").value == digits
    assert of(settings, "other", "seed").value == other
    assert str(of(settings, "digits", "seed").place).endswith(told)


def test_what_nobody_says_is_built_in(project: Project) -> None:
    said = of(resolve_settings(project), "digits", "precision")
    assert (said.value, said.place.key) == (("fp32",), "default")


def test_limits_go_over_each_other_one_by_one(project: Project) -> None:
    settings = resolve_settings(
        project, Overrides(sets=("digits.tolerance=logits:atol=1,rtol=0.2",))
    )
    assert of(settings, "digits", "tolerance.rtol").value == 0.1
    assert of(settings, "digits", "tolerance.atol").value == 1e-3
    assert of(settings, "digits", "tolerance.logits.atol").value == 1
    assert of(settings, "digits", "tolerance.logits.rtol").value == 0.2


def test_limits_of_a_flag_may_be_a_list(project: Project) -> None:
    settings = resolve_settings(project, Overrides(sets=('tolerance=["atol=1", "logits:atol=2"]',)))
    assert of(settings, "other", "tolerance.atol").value == 1
    assert of(settings, "other", "tolerance.logits.atol").value == 2


def test_settings_of_the_run_go_over_the_file(project: Project) -> None:
    given = Overrides(
        flags={"jobs": "4"}, environment={"MODELC_JOBS": "3", "MODELC_MEMORY": "1 GB"}
    )
    settings = resolve_settings(project, given)
    assert (settings.run.jobs, settings.run.memory) == (4, 10**9)
    assert settings.run.out == project.folder / "build"
    assert settings.run_said["jobs",].place.key == "--jobs"


def test_paths_of_flags_and_variables_begin_here(project: Project) -> None:
    given = Overrides(flags={"out": "here"}, environment={"MODELC_CACHE_DIR": "there"})
    run = resolve_settings(project, given).run
    assert (run.out, run.cache_dir) == (Path("here"), Path("there"))


def test_texts_of_flags_become_lists_and_numbers(project: Project) -> None:
    sets = ("to=onnx, openvino:fp16", 'input=["a:float32[1,2]"]', "half-io=yes", "min-sqnr=60")
    settings = resolve_settings(project, Overrides(sets=sets))
    assert of(settings, "other", "to").value == ("onnx", "openvino:fp16")
    assert of(settings, "other", "input").value == ("a:float32[1,2]",)
    assert of(settings, "other", "half-io").value is True
    assert of(settings, "other", "min-sqnr").value == 60


def test_a_gate_of_a_pattern_is_a_dotted_key(project: Project) -> None:
    sets = ('digits.gates."*-int8".max-size=20 kB', "gates.max-latency-ratio=1.5")
    environment = {"MODELC_GATES_MAX_SIZE": "1 MB"}
    settings = resolve_settings(project, Overrides(sets=sets, environment=environment))
    assert of(settings, "digits", 'gates."*-int8".max-size').value == 20_000
    assert of(settings, "other", "gates.max-size").value == 1_000_000
    assert of(settings, "other", "gates.max-latency-ratio").value == 1.5


def test_a_variable_of_the_commands_is_no_setting(project: Project) -> None:
    assert resolve_settings(project, Overrides(environment={"MODELC_ISOLATE": "0"})).warnings == ()


def test_a_variable_that_means_nothing_is_told_with_the_nearest(project: Project) -> None:
    settings = resolve_settings(project, Overrides(environment={"MODELC_SEDE": "3", "PATH": "x"}))
    (warning,) = settings.warnings
    assert re.findall(r"MODELC_\w+", warning) == ["MODELC_SEDE", "MODELC_SEED"]


@pytest.mark.parametrize(
    ("text", "code", "naming", "hint"),
    [
        ("seed", INVALID, "--set seed: ", "seed=3"),
        ("sede=3", UNKNOWN, "sede", "'seed'"),
        ("digits.sede=3", UNKNOWN, "sede", "'seed'"),
        ("digit.seed=3", UNKNOWN, "'digit'", "'digits'"),
        ("checkpoint=x", UNKNOWN, "checkpoint", "NAME.checkpoint"),
        ("digits=3", UNKNOWN, "(nothing)", ""),
        ("digits.gates=3", UNKNOWN, "gates", "gates.max-drop"),
        ("digits.gates.a.b.max-size=3", UNKNOWN, "max-size", ""),
        ("digits.jobs=3", UNKNOWN, "jobs", "--set jobs=3"),
        ("seed=x", INVALID, "'x'", "seed = 1"),
        ("seed=-1", INVALID, "from 0 to", "seed = 0"),
        ("to=[onnx", INVALID, "'[onnx'", '["one", "two"]'),
        ("to=", INVALID, "", "remove to"),
        ("a\nb=3", INVALID, "", ""),
    ],
)
def test_an_invalid_flag_is_named(
    project: Project, text: str, code: ErrorCode, naming: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_settings(project, Overrides(sets=(text,)))
    assert caught.value.text.startswith("--set ")
    assert caught.value.code is code
    assert naming in caught.value.text
    assert hint in caught.value.hint


def test_a_variable_that_cannot_be_is_named(project: Project) -> None:
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming="env MODELC_FEEDS=2: ")
    ):
        resolve_settings(project, Overrides(environment={"MODELC_FEEDS": "2"}))
