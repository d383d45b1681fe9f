"""Orders of a project: checked whole, and every setting in them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.converters import onnx_model
from modelc.core.contract import Readiness
from modelc.core.errors import (
    CheckpointError,
    ErrorCode,
    MissingError,
    ModelcError,
    Place,
    UsageError,
)
from modelc.core.kinds import Precision
from modelc.pipeline.option_spec import OptionSpec, ValueKind
from modelc.pipeline.order import Order, Wanted
from modelc.projects.model_orders import PlannedProject, make_model_order, plan_project
from modelc.projects.project_faults import split_faults
from modelc.projects.project_records import (
    KeyPath,
    Setting,
    SettingLayer,
    Value,
    gate_for,
)
from modelc.projects.setting_keys import ENGINE_KEYS, SHARED_KEYS
from modelc.projects.setting_layers import Overrides

SAMPLE_MODELS = Path(__file__).parents[2] / "sample_models"
DIGITS = f"""\
[models.digits]
checkpoint = "{SAMPLE_MODELS / "digits.safetensors"}"
model = "modelc.sample_models.digits:build"
input = "x:float32[batch=1..8,1,8,8]"
"""
ONNX = f'{DIGITS}to = "onnx"\n'
CALIB = f'calib = "{SAMPLE_MODELS / "digits_calib"}"\n'


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., PlannedProject]:
    """`plan(text)`: the project of that text."""

    def of(text: str, **options: object) -> PlannedProject:
        (tmp_path / "modelc.toml").write_text(text)
        return plan_project(tmp_path / "modelc.toml", **options)  # type: ignore[arg-type]  # as given

    return of


@pytest.fixture
def faults(plan: Callable[..., PlannedProject]) -> Callable[..., list[ModelcError]]:
    """`faults(text)`: all that is wrong with it."""

    def of(text: str, **options: object) -> list[ModelcError]:
        with pytest.raises(ModelcError) as caught:
            plan(text, **options)
        return list(split_faults(caught.value))

    return of


def test_a_model_goes_to_a_folder_of_its_name(
    plan: Callable[..., PlannedProject], tmp_path: Path
) -> None:
    (model,) = plan(f"{ONNX}precision = ['fp32', 'fp16']\n").models
    assert model.order.out == tmp_path / "out" / "digits"
    assert [step.name for step in model.plan] == ["onnx", "onnx-fp16"]
    assert model.order.source.model == "modelc.sample_models.digits:build"


def test_calibrations_are_kept_where_the_project_has_its_cache(
    plan: Callable[..., PlannedProject], tmp_path: Path
) -> None:
    """And nowhere else: a runner keeps that folder from one run to the next."""
    usual, own = tmp_path / "usual", tmp_path / "own"
    (model,) = plan(ONNX, cache=usual).models
    assert (model.order.cache, model.order.cache_limit) == (usual, None)
    said = f'cache-dir = "{own}"\ncache-limit = "2 GB"\n{ONNX}'
    (model,) = plan(said, cache=usual).models
    assert (model.order.cache, model.order.cache_limit) == (own, 2 * 10**9)
    (model,) = plan(said, cache=None).models
    assert model.order.cache is None
    (model,) = plan(f"{said}no-cache = true\n", cache=usual).models
    assert model.order.cache is None


def test_only_the_models_that_are_named_are_planned(plan: Callable[..., PlannedProject]) -> None:
    text = f"{ONNX}[models.broken]\ncheckpoint = 'none.pt'\nto = 'onnx'\n"
    assert [one.name for one in plan(text, names=["digits"]).models] == ["digits"]


def test_an_unknown_model_is_named_with_the_nearest(
    faults: Callable[..., list[ModelcError]],
) -> None:
    (fault,) = faults(ONNX, names=["digit"])
    assert "unknown model 'digit'" in fault.text
    assert "'digits'" in fault.hint


def test_a_project_file_in_place_of_a_model_is_hinted_at(
    faults: Callable[..., list[ModelcError]], tmp_path: Path
) -> None:
    file = tmp_path / "other.toml"
    file.touch()
    (fault,) = faults(ONNX, names=[str(file)])
    assert (fault.code, fault.hint.split()[-2:]) == (ErrorCode.UNKNOWN_NAME, ["-f", str(file)])


def test_errors_of_all_models_and_layers_are_reported_at_once(
    faults: Callable[..., list[ModelcError]], tmp_path: Path
) -> None:
    (tmp_path / "weight.pt").touch()
    text = (
        f"{ONNX}precision = 'int8'\nfeds = 3\n"
        "[models.other]\ncheckpoint = 'weights.pt'\nsamples = 'none.npz'\nto = 'onnx'\n"
        "[models.third]\nto = 'onnx'\n"
    )
    found = faults(text, given=Overrides(sets=("seed=x",)))
    wanted = [
        (ErrorCode.UNKNOWN_NAME, "'feds'", "'feeds'"),
        (ErrorCode.INVALID_VALUE, "--set seed=x: 'x'", ""),
        (ErrorCode.NO_SAMPLES, "onnx-int8", "calib"),
        (ErrorCode.NOT_FOUND, f"checkpoint: {tmp_path}/weights.pt", f"{tmp_path}/weight.pt"),
        (ErrorCode.NOT_FOUND, f"samples: {tmp_path}/none.npz", ""),
        (None, ":12 [models.third]: checkpoint", "checkpoint"),
    ]
    assert len(found) == len(wanted)
    for code, naming, hint in wanted:
        (one,) = (one for one in found if naming in one.text)
        assert (one.code, hint in one.hint) == (code, True)


NO_TO = ONNX.replace('to = "onnx"', "")
NO_MODEL = ONNX.replace('model = "modelc', '# "')


@pytest.mark.parametrize(
    ("text", "sets", "says"),
    [
        (f"{NO_TO}to = ['onxx']\n", (), "unknown target 'onxx'"),
        (f"{NO_TO}too = ['onnx']\n", (), "unknown key 'too'"),
        (f"[defaults]\nto = ['onxx']\n{NO_TO}", (), "unknown target 'onxx'"),
        (NO_TO, ("to=onxx",), "unknown target 'onxx'"),
        (NO_TO, ("digits.to=onxx",), "unknown target 'onxx'"),
        (f"[default]\nto = 'onnx'\n{NO_TO}", (), "unknown key 'default'"),
        (f"to = 'onnx'\n{NO_TO}", (), "unknown key 'to'"),
        (f"{NO_MODEL}model = 'nets.TwoHeads'\n", (), "is not of the form PKG.MOD:NAME"),
        (f"{ONNX}precision = 'int8'\ncalib = 3\n", (), "3 is not "),
        (f"{ONNX}precision = 'fp31'\nhalf-io = true\n", (), "unknown precision 'fp31'"),
        (f"{ONNX}data = 3\nmetric = 'top1'\n", (), "3 is not "),
        (f"{ONNX}data = 3\ngates.max-drop = '1%'\n", (), "3 is not "),
        (ONNX.replace("models.", "model."), (), "unknown table 'model'"),
        ("models.digits = 'd.pt'\n", (), "models.digits"),
    ],
)
def test_an_error_that_follows_from_another_is_not_reported(
    text: str, sets: tuple[str, ...], says: str, faults: Callable[..., list[ModelcError]]
) -> None:
    (fault,) = faults(text, given=Overrides(sets=sets))
    assert says in fault.text


def test_int8_without_samples_names_the_model(faults: Callable[..., list[ModelcError]]) -> None:
    (fault,) = faults(f"{ONNX}precision = ['int8']\n")
    assert "[models.digits]: onnx-int8 " in fault.text
    assert (fault.code, fault.option) == (ErrorCode.NO_SAMPLES, "calib")
    assert re.findall(r"calib = \S+\b", fault.hint) == ['calib = "DIR', 'calib = "random']


def test_a_contradiction_is_reported_at_its_line(
    faults: Callable[..., list[ModelcError]],
) -> None:
    (fault,) = faults(f"{ONNX}max-drop = '1%'\n")
    assert str(fault.place).endswith(":6 [models.digits] max-drop")
    assert (fault.code, fault.option) == (ErrorCode.NO_EFFECT, "max-drop")
    assert "--data" in fault.message


def test_weights_alone_need_a_factory(faults: Callable[..., list[ModelcError]]) -> None:
    text = ONNX.replace('model = "modelc', '# model = "modelc')
    (fault,) = faults(text)
    assert "--model" in fault.text
    assert isinstance(fault, UsageError)


def test_a_damaged_checkpoint_is_found_before_anything_is_run(
    faults: Callable[..., list[ModelcError]], tmp_path: Path
) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    (fault,) = faults("[models.a]\ncheckpoint = 'w.safetensors'\nto = 'onnx'\nmodel = 'a:b'\n")
    assert isinstance(fault, CheckpointError)


def test_defaults_without_effect_on_a_model_are_listed(
    plan: Callable[..., PlannedProject],
) -> None:
    (model,) = plan(f"[defaults]\n{CALIB}calib-samples = 8\nhalf-io = true\n{ONNX}").models
    assert model.order.lowering.calibration is None
    assert not model.order.lowering.half_io
    assert [text.partition(" ")[0] for text in model.unused] == [
        "calib",
        "calib-samples",
        "half-io",
    ]


def test_options_of_decoders_that_models_share_are_known_as_such(
    plan: Callable[..., PlannedProject],
) -> None:
    """Only a run shows which models are decoders."""
    limits = "[defaults.tolerance]\nmax-ppl-increase = 0.1\n"
    (model,) = plan(f"[defaults]\nmax-kl = 0.1\nfeeds = 6\n{limits}{ONNX}").models
    assert model.order.judging.shared == {"max-kl", "max-ppl-increase"}
    (model,) = plan(f"{ONNX}max-kl = 0.1\n").models
    assert not model.order.judging.shared


@pytest.mark.parametrize("line", [CALIB, "half-io = true\n", "workspace = '4G'\n"])
def test_a_setting_of_a_model_without_effect_is_an_error(
    line: str, faults: Callable[..., list[ModelcError]]
) -> None:
    (fault,) = faults(ONNX + line)
    assert fault.code is ErrorCode.NO_EFFECT
    assert ":6 [models.digits]" in fault.text


def test_a_limit_for_all_models_that_cannot_hold_is_a_fault(
    faults: Callable[..., list[ModelcError]],
) -> None:
    (option,) = faults(f"[defaults]\nmax-drop = '1%'\n{ONNX}")
    (gate,) = faults(f"[defaults.gates]\nmax-drop = '1%'\n{ONNX}")
    assert {option.code, gate.code} == {ErrorCode.NO_EFFECT}
    assert option.option == "max-drop"
    assert "--data" in option.message
    assert str(gate.place).endswith("gates.max-drop")


def test_a_gate_for_no_artifact_is_a_fault(faults: Callable[..., list[ModelcError]]) -> None:
    (fault,) = faults(f"{ONNX}[models.digits.gates.'*-int8']\nmax-size = '1 MB'\n")
    assert (fault.code, fault.message.split()[-1]) == (ErrorCode.NO_EFFECT, "onnx")


@pytest.mark.parametrize("said", ["models.digits", "defaults"])
def test_a_gate_for_no_artifact_names_the_nearest(
    said: str, faults: Callable[..., list[ModelcError]]
) -> None:
    (fault,) = faults(f"{ONNX}[{said}.gates.onx]\nmax-size = '1 MB'\n")
    assert str(fault.place).endswith(f":7 [{said}.gates.onx] gates.onx.max-size")
    assert fault.code is ErrorCode.NO_EFFECT
    assert "'onnx'" in fault.hint


def test_a_gate_of_the_defaults_may_be_for_one_model_alone(
    plan: Callable[..., PlannedProject],
) -> None:
    gate = "[defaults.gates.'*-fp16']\nmax-size = '1 MB'\n"
    twin = ONNX.replace("models.digits", "models.twin")
    text = f"{gate}{ONNX}{twin}precision = 'fp16'\n"
    assert [gate.pattern for model in plan(text).models for gate in model.gates] == ["*-fp16"] * 2
    (model,) = plan(text, names=["digits"]).models
    assert [gate.pattern for gate in model.gates] == ["*-fp16"]


def test_the_nearest_gate_goes_before_the_others(plan: Callable[..., PlannedProject]) -> None:
    gates = (
        "[models.digits.gates]\nmax-size = 1000\nmax-latency-ratio = 2\n"
        "[models.digits.gates.onnx-fp16]\nmax-size = 3000\n"
        "[models.digits.gates.'onnx*']\nmax-size = 2000\n"
    )
    (model,) = plan(f"{ONNX}precision = ['fp32', 'fp16']\n{gates}").models
    limits = {name: gate_for(model.gates, name) for name in ("openvino", "onnx", "onnx-fp16")}
    assert [gate.max_size for gate in limits.values()] == [1000, 2000, 3000]
    assert {gate.max_latency_ratio for gate in limits.values()} == {2}
    assert limits["onnx"].places["max_size"].key == '[models.digits.gates."onnx*"]'


def test_a_missing_dependency_alone_keeps_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Readiness(ready=False, reason="not here", mend="pip install it")
    monkeypatch.setattr(onnx_model, "readiness", lambda: absent)
    text = f"{ONNX}{ONNX.replace('models.digits', 'models.twin')}"
    (tmp_path / "modelc.toml").write_text(text)
    with pytest.raises(MissingError) as caught:
        plan_project(tmp_path / "modelc.toml")
    assert len(split_faults(caught.value)) == 2


def test_a_project_without_models_is_a_fault(faults: Callable[..., list[ModelcError]]) -> None:
    (fault,) = faults("jobs = 2\n")
    assert fault.code is ErrorCode.NOTHING_TO_DO


TEXTS: dict[str, Value] = {
    "patch": ("a:b",), "custom-op": ("a::b=c:d",), "for": ("onnxruntime==1.20",), "model": "a:b",
    "model-arg": ("a=b",), "input": ("y:float32[1]",), "accept-branch": ("gate.py:3",),
    "max-drop": "1%", "postprocess": "argmax", "calib-select": "random",
    "preprocess": "imagenet", "quantizer": "nncf",
    "capture": "trace", "profile": ("x=1x3:2x3:3x3",), "workspace": "4G", "timing-cache": "off",
    "precision": ("int8",), "compute-capabilities": ("8.9",),
}  # fmt: skip
BASE: dict[str, Value] = {
    "checkpoint": "d.pt", "calib": "c", "data": "d", "trust-engine": True, "preprocess": "raw",
}  # fmt: skip
WANTED = (Wanted(target="onnx", precision=Precision.INT8),)


def value_for(key: OptionSpec) -> Value:
    if key.name in TEXTS:
        return TEXTS[key.name]
    if key.name == "group-size":
        return 64
    if key.choices:
        return key.choices[-1]
    numbers: dict[ValueKind, Value] = {
        ValueKind.TRUTH: True,
        ValueKind.WHOLE: 5,
        ValueKind.NUMBER: 0.5,
    }
    if key.kind in numbers:
        return numbers[key.kind]
    if key.many:
        return ("named",)
    return "named"


def ordered(**said: Value) -> Order:
    paths: dict[KeyPath, Setting] = {
        (name,): Setting(
            path=(name,), value=value, layer=SettingLayer.FILE, place=Place(key="here")
        )
        for name, value in said.items()
    }
    return make_model_order(paths, WANTED, Path("out"), cache=Path("cache"))


@pytest.mark.parametrize(
    "key",
    [key for key in SHARED_KEYS if key.name not in ("to", "precision", "compose")],
    ids=lambda key: key.name,
)
def test_every_key_is_in_the_order(key: OptionSpec) -> None:
    base = {name: value for name, value in BASE.items() if name != key.name}
    assert ordered(**base, **{key.name: value_for(key)}) != ordered(**base)


def test_settings_of_an_engine_are_said_as_its_command_says_them() -> None:
    values = {key.name: value_for(key) for key in ENGINE_KEYS}
    found = ordered(**{**BASE, **values}).settings
    assert found["tf32"] == "false"
    assert found["profiles"] == "x=1x3:2x3:3x3"
    assert len(found) == len(ENGINE_KEYS)


def test_no_framework_is_loaded_for_a_plan(tmp_path: Path) -> None:
    (tmp_path / "modelc.toml").write_text(f"{ONNX}precision = ['fp32', 'int8']\n{CALIB}")
    code = (
        "import sys; from pathlib import Path\n"
        "from modelc.projects.model_orders import plan_project\n"
        f"plan_project(Path({str(tmp_path / 'modelc.toml')!r}))\n"
        "heavy = {'torch', 'numpy', 'onnx', 'onnxruntime', 'openvino', 'msgspec', 'safetensors', "
        "'transformers', 'nncf', 'modelopt', 'PIL', 'platformdirs', 'rich', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
