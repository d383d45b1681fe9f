"""Reading modelc.toml: its settings, and the errors of invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.projects.project_faults import ProjectError
from modelc.projects.project_reader import read_project
from modelc.projects.project_records import Project

from ..reasons import has_code

DIGITS = '[models.digits]\ncheckpoint = "d.pt"\nto = "onnx"\n'
UNKNOWN, INVALID = ErrorCode.UNKNOWN_NAME, ErrorCode.INVALID_VALUE


def read(folder: Path, text: str) -> Project:
    file = folder / "modelc.toml"
    file.write_bytes(text.encode())
    return read_project(file)


def error_of(folder: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(folder, text)
    return caught.value


def test_each_setting_knows_its_line_and_table(tmp_path: Path) -> None:
    text = f'# mine\nout = "build"\n[defaults]\nseed = 3\n\n{DIGITS}feeds = 7\n'
    project = read(tmp_path, text)
    file = project.file
    told = {one.name: str(one.place) for one in (*project.defaults, *project.models["digits"])}
    assert told["seed"] == f"{file}:4 [defaults]"
    assert told["feeds"] == f"{file}:9 [models.digits]"
    assert {name: str(place) for name, place in project.places.items()} == {
        "digits": f"{file}:6 [models.digits]"
    }


def test_paths_begin_in_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "nets.loader:feeds").touch()
    said = 'samples = "nets.loader:feeds"\ncalib = "nets.other:feeds"\ndata = "/abs"\n'
    values = {one.name: one.value for one in read(tmp_path, DIGITS + said).models["digits"]}
    assert values["checkpoint"] == str(tmp_path / "d.pt")
    assert values["samples"] == str(tmp_path / "nets.loader:feeds"), "a file of that name is there"
    assert values["calib"] == "nets.other:feeds"
    assert values["data"] == "/abs"


def test_a_word_is_no_path(tmp_path: Path) -> None:
    said = 'calib = "random"\ntiming-cache = "off"\n'
    values = {one.name: one.value for one in read(tmp_path, DIGITS + said).models["digits"]}
    assert (values["calib"], values["timing-cache"]) == ("random", "off")


def test_gates_and_limits_are_by_pattern_and_by_output(tmp_path: Path) -> None:
    tables = (
        "[models.digits.gates]\nmax-latency-ratio = 2\n"
        '[models.digits.gates."*-int8"]\nmax-size = "50 MB"\nmax-drop = "1%"\n'
        "[models.digits.tolerance]\natol = 1e-3\n"
        '[models.digits.tolerance."aux.energy"]\nmin-sqnr = 60\n'
    )
    said = {one.path: one.value for one in read(tmp_path, DIGITS + tables).models["digits"]}
    assert said["gates", "max-latency-ratio"] == 2
    assert said["gates", "*-int8", "max-size"] == 50_000_000
    assert said["gates", "*-int8", "max-drop"] == "1%"
    assert said["tolerance", "atol"] == 1e-3
    assert said["tolerance", "aux.energy", "min-sqnr"] == 60


def test_limits_may_be_texts_as_the_option_takes_them(tmp_path: Path) -> None:
    line = 'tolerance = ["logits:min-sqnr=60", "rtol=0.1"]\n'
    said = {one.path: one.value for one in read(tmp_path, DIGITS + line).models["digits"]}
    assert said["tolerance", "logits", "min-sqnr"] == 60
    assert said["tolerance", "rtol"] == 0.1


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = f'jobs = 0\nsede = 1\n{DIGITS}seed = "x"\n[models.other]\nfeeds = 2\n'
    error = error_of(tmp_path, text)
    assert isinstance(error, ProjectError)
    file = tmp_path / "modelc.toml"
    invalid, unknown = ErrorCode.INVALID_VALUE, ErrorCode.UNKNOWN_NAME
    assert {(str(fault.place), fault.code) for fault in error.faults} == {
        (f"{file}:1 jobs", invalid),
        (f"{file}:2", unknown),
        (f"{file}:6 [models.digits] seed", invalid),
        (f"{file}:8 [models.other] feeds", invalid),
    }
    named = ("0", "'sede'", "'x'", "2")
    assert all(any(name in fault.message for fault in error.faults) for name in named)


@pytest.mark.parametrize(
    ("text", "code", "naming", "hint"),
    [
        ("seed = 3\n", UNKNOWN, ":1: unknown key 'seed'", "[models.NAME]"),
        (f"{DIGITS}jobs = 3\n", UNKNOWN, ":4 [models.digits]: unknown key 'jobs'", "jobs"),
        (f"{DIGITS}min_sqnr = 3\n", UNKNOWN, "'min_sqnr'", "'min-sqnr'"),
        (f"{DIGITS}Seed = 3\n", UNKNOWN, "'Seed'", "'seed'"),
        ("[models.d]\nmax-size = 3\n", UNKNOWN, "'max-size'", "[models.NAME.gates]"),
        ("[models.d]\nmin-cosine = 1\n", UNKNOWN, "'min-cosine'", "[models.NAME.tolerance]"),
        ("[defaults]\ngate = 3\n", UNKNOWN, "'gate'", "'gates'"),
        ("[model.net]\nto = 'onnx'\n", UNKNOWN, ":1: unknown table 'model'", "[models.NAME]"),
        ("[models.d.gates]\nmax-sise = 3\n", UNKNOWN, "'max-sise'", "'max-size'"),
        ('[models.d.gates."*"]\nsize = 3\n', UNKNOWN, ':2 [models.d.gates."*"]', "max-size"),
        ("[models.d.tolerance]\nsqnr = 3\n", UNKNOWN, "'sqnr'", "'min-sqnr'"),
        (f"{DIGITS}feeds = true\n", INVALID, "true is not ", "feeds"),
        (f"{DIGITS}feeds = 7.0\n", INVALID, "7.0 is not ", "feeds"),
        (f"{DIGITS}atol = nan\n", INVALID, "nan is not ", "atol"),
        (f"{DIGITS}atol = 1{'0' * 400}\n", INVALID, "atol", "atol"),
        (f"{DIGITS}half-io = 1\n", INVALID, "1 is not ", "true or false"),
        (f"{DIGITS}static = [1]\n", INVALID, "1 is not ", "list"),
        (f"{DIGITS}static = []\n", INVALID, "static", "static"),
        (f'{DIGITS}method = " "\n', INVALID, "method", "method"),
        (f"{DIGITS}device = 'gpu'\n", UNKNOWN, "'gpu'", "cpu"),
        (f"{DIGITS}precision = ['fp32', 'int2']\n", UNKNOWN, "'int2'", "int8"),
        (f"{DIGITS}[models.b]\nto = ['onxx']\n", UNKNOWN, "'onxx'", "'onnx'"),
        (f"{DIGITS}input = ['x:float23[1]']\n", ErrorCode.INVALID_VALUE, "character 3", "float"),
        (f"{DIGITS}model = 'nets.py'\n", None, "PKG.MOD:NAME", "nets.resnet"),
        (f"{DIGITS}model-arg = ['depth']\n", None, "KEY=VALUE", "depth=50"),
        (f"{DIGITS}accept-branch = 'gate.py'\n", None, "FILE:LINE", "gate.py:23"),
        (f"{DIGITS}max-drop = 5\n", ErrorCode.INVALID_VALUE, "500 %", "5%"),
        (f"{DIGITS}preprocess = 'imagnet'\n", UNKNOWN, "preprocessing preset", "imagenet"),
        (f"{DIGITS}quantizer = 'nfcc'\n", UNKNOWN, "'nfcc'", "nncf"),
        (f"{DIGITS}tolerance = 'sqnr=3'\n", UNKNOWN, "'sqnr'", "min-sqnr"),
        (f"{DIGITS}tolerance = 'min-cosine=3'\n", INVALID, "3", "default"),
        (f"{DIGITS}gates = 3\n", INVALID, "gates", "[models.digits.gates]"),
        ("memory = '8 apples'\n", INVALID, "'8 apples'", "50 MB"),
        ("timeout = 0\n", INVALID, "'0'", "90 s"),
        ("models = 3\n", INVALID, "models", "[models]"),
        ("[models]\ndigits = 'd.pt'\n", INVALID, "models.digits", "[models.digits]"),
        ("report = 'pdf'\n", UNKNOWN, "'pdf'", "html"),
    ],
)
def test_an_invalid_setting_is_named_with_its_place(
    text: str, code: ErrorCode | None, naming: str, hint: str, tmp_path: Path
) -> None:
    error = error_of(tmp_path, text)
    assert str(tmp_path / "modelc.toml") in error.text
    assert error.code is code
    assert naming in error.text
    assert hint in error.hint


def test_a_key_of_one_model_alone_is_not_sent_to_the_defaults(tmp_path: Path) -> None:
    error = error_of(tmp_path, '[defaults]\ncheckpoint = "x"\n')
    assert str(error.place).endswith(":2 [defaults]")
    assert (error.code, "'checkpoint'" in error.message) == (ErrorCode.UNKNOWN_NAME, True)
    assert "[models.NAME]" in error.hint
    assert "[defaults]" not in error.hint


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".hidden", "a b", "", "CON", "nul.txt", "x" * 65, "a.", "é", "seed"]
)
def test_a_name_that_is_no_folder_everywhere_is_refused(name: str, tmp_path: Path) -> None:
    error = error_of(tmp_path, f'[models."{name}"]\ncheckpoint = "d.pt"\n')
    assert ":1 [models." in error.text
    assert error.code is ErrorCode.INVALID_VALUE
    assert repr(name) in error.message


def test_names_that_differ_by_case_alone_are_refused(tmp_path: Path) -> None:
    error = error_of(tmp_path, f'{DIGITS}[models.Digits]\ncheckpoint = "d.pt"\n')
    assert error.code is ErrorCode.SAME_FILE
    assert {"Digits", "digits"} <= set(error.message.split())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[models.x\n", ":1: not TOML: Expected"),
        ("out = 'a'\nout = 'b'\n", ":2: not TOML"),
        ("x = 1\n\n[y]\nz =\n", ":4: not TOML"),
        ("x = " + "[" * 5000, "not TOML"),
        ("x = 1" + "0" * 5000 + "\n", "not TOML"),
        ("a." * 40 + "b = 1\n", ":1: a key has more than 32 parts"),
        ("# " + "x" * (1 << 21), "larger than"),
        ("\ufeffout = 'a'\n", "not TOML"),
    ],
)
def test_what_is_no_toml_is_told_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    error = error_of(tmp_path, text)
    assert says in error.text
    assert error.hint


def test_the_example_of_the_guide_is_read(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "run.md").read_text(encoding="utf-8")
    project = read(tmp_path, guide.partition("```toml\n")[2].partition("```")[0])
    assert list(project.models) == ["digits"]
    assert {one.name for one in project.defaults} == {"to", "precision", "seed", "gates.max-size"}


def test_a_file_that_is_not_there_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.NOT_FOUND, naming="modelc.toml")
    ) as caught:
        read_project(tmp_path / "modelc.toml")
    assert "modelc init" in caught.value.hint


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "modelc.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not UTF-8"):
        read_project(tmp_path / "modelc.toml")
