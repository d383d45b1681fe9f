"""What each command prints: one file per command in `snapshots/`, with typical errors.

`pytest tests/cli/test_snapshots.py --update-snapshots` rewrites the files; read their diff. No
other test asserts the wording of messages.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.cli import console
from modelc.converters.registry import target_named

from .conftest import DIGITS, SAMPLE_MODELS, Ran

SNAPSHOTS = Path(__file__).parent / "snapshots"
MODEL = ("digits.safetensors", *DIGITS[1:])
CALIBRATION = str(SAMPLE_MODELS / "digits_calib")
PROJECT = """\
out = "project"

[defaults]
to = ["onnx"]
seed = 0

[models.digits]
checkpoint = "digits.safetensors"
model = "modelc.sample_models.digits:build"
input = ["x:float32[batch=1..8,1,8,8]"]
"""
# The commands that write what the others read; each runs once.
EXPORTS = {
    "out": ("export", *MODEL, "--to", "onnx", "--seed", "0", "-o", "out"),
    "rejected": ("export", "GATE", "--to", "onnx", "--capture", "trace", "-o", "rejected"),
    "trt": ("build-trt", "out/model.onnx", "--prepare-only", "-o", "trt"),
    "run": ("run",),
    "pack": ("pack", "out", "--to", "triton", "-o", "repository"),
}
# An entry that names a key of EXPORTS stands for what that command printed.
SCENES: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "export": (
        "out", "rejected",
        ("export", *MODEL, "--to", "onnx", "-o", "new", "--dry-run"),
        ("export", "missing.safetensors", "--to", "onnx"),
        ("export", *MODEL, "--to", "onx"),
        ("export", *MODEL, "--to", "onnx", "--timeout", "0"),
        ("export", *MODEL, "--to", "onnx", "--seeds", "1"),
    ),
    "build-ov": (
        ("build-ov", "out/model.onnx", "--fp16", "-o", "openvino", "-q"),
        ("build-ov", "missing.onnx"),
        ("build-ov", "out/model.onnx", "--fp16", "--bf16"),
    ),
    "build-trt": ("trt", ("build-trt", "missing.onnx"), ("build-trt", "out/model.onnx", "--int8")),
    "validate": (
        ("validate", "out", "-q"), ("validate", "rejected", "-q"), ("validate", "trt", "-q"),
        ("validate", "out", "--in", "onnxruntime>=1.20"),
        ("validate", "out", "--in", "tensorrt==10.13"),
        ("validate", "out", "--in", "openvino==2025.3.0"),
        ("validate", "out", "--in", "onnxruntime==1.20.1", "--rejudge"),
        ("validate", "out/model.onnx", "-q"), ("validate", "missing"),
        ("validate", "out", "--rtol", "-1"),
    ),
    "debug": (
        ("debug", "out/model.onnx", "-q"), ("debug", "missing.onnx"),
        ("debug", "out/model.onnx", "--feeds", "0"),
    ),
    "report": (
        ("report", "out"), ("report", "rejected", "--report", "md"), ("report", "out", "rejected"),
        ("report", "missing"), ("report", "out", "--report", "pdf"),
        ("report", "out", "out", "--report", "junit"),
    ),
    "run": (
        "run", ("run", "-q"), ("run", "--dry-run"), ("run", "nothing"),
        ("run", "--file", "missing.toml"),
    ),
    "config": (("config",), ("config", "--check"), ("config", "nothing")),
    "init": (
        ("init", "digits.safetensors", "--model", "modelc.sample_models.digits:build",
         "-o", "new.toml"),
        ("init", "missing.safetensors", "-o", "other.toml"), ("init", "digits.safetensors"),
    ),
    "cache": (("cache", "ls"), ("cache", "verify"), ("cache", "gc")),
    "calibrate": (
        ("calibrate", CALIBRATION, "--input", DIGITS[4], "--preprocess", "unit"),
        ("calibrate", "missing", "--input", DIGITS[4]),
    ),
    "inspect": (("inspect", "out/model.onnx"), ("inspect", "digits.safetensors"),
                ("inspect", "missing.onnx"), ("inspect", "modelc.toml")),
    "pack": (
        "pack", ("pack", "out", "--to", "triton", "-o", "repository", "-q"),
        ("pack", "repository", "--check"), ("pack", "damaged", "--check"),
        ("pack", "out", "--to", "ovms", "-o", "served"),
        ("pack", "out", "--to", "onxx", "-o", "new"), ("pack", "out", "-o", "new"),
        ("pack", "rejected", "--to", "triton", "-o", "new"), ("pack", "missing", "--check"),
    ),
    "verify": (("verify", "out"), ("verify", "changed"), ("verify", "missing")),
    "sbom": (("sbom", "missing"),),
    "targets": (("targets", "--jsn"),),
    "doctor": (("doctor", "--jsn"),),
}  # fmt: skip
_NORMAL = (
    (r"^ *\S+: with its default settings, the runtime computes in .*\n", ""),  # on some CPUs
    (r"\x1b\[[0-9;]*m", ""),
    (r"\b[0-9a-f]{12,64}\b…?", "HASH"),
    (r"\b\d+(?:\.\d+)? (?:B|kB|MB|GB)\b", "SIZE"),
    (r"[-+]?\b\d+(?:\.\d+)+(?:e[-+]\d+)?(?:\+cpu)?\b", "N"),  # times, figures, versions
    (r"[-+]\d+ dB|\bexact\b", "N"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d\S*(?: UTC)?", "DATE"),
    (r"\b(?:(?:seed|batch)-\d+|negated|small|large|huge|zeros|opt|one-hot)\b", "FEED"),
    (r"[·▁▂▃▄▅▆▇█]{5,}", "BARS"),
    (r"─+", "──"),
    (r" {2,}", "  "),
    (r" +$", ""),
    (r"(?:^ \w+  \w+  \w+  N  N  N  .*\n)+", " LAYERS\n"),  # sorted by error
)


def _normalise(text: str, folders: dict[str, str]) -> str:
    """Replace what differs between machines and runs; collapse the widths of columns."""
    for folder, name in folders.items():
        text = text.replace(folder, name)
    for pattern, name in _NORMAL:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of all commands, with the digits checkpoint and a project file."""
    made = tmp_path_factory.mktemp("snapshots")
    shutil.copy(SAMPLE_MODELS / "digits.safetensors", made)
    (made / "modelc.toml").write_text(PROJECT, encoding="utf-8")
    return made


_printed: dict[str, str] = {}


@pytest.fixture
def transcript(
    door: Callable[..., Ran],
    folder: Path,
    gate: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str | tuple[str, ...]], str]:
    """Run a command in the folder; return its normalised output and exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(console, "_WIDE_CONSOLE", 80)
    monkeypatch.setenv("MODELC_CACHE_DIR", "cache")
    folders = {
        str(folder): "WORK",
        str(SAMPLE_MODELS): "SAMPLES",
        "modelc/sample_models": "SAMPLES",  # where the checkout is imported by another path
        str(Path(gate[0]).parent): "GATE",
    }

    def run(*arguments: str) -> str:
        given = [two for one in arguments for two in (gate if one == "GATE" else (one,))]
        ran = door(*given)
        shown = f"$ modelc {' '.join(given)}\n{ran.stdout}{ran.stderr}exit code: {ran.returncode}\n"
        return _normalise(shown, folders)

    for name, command in EXPORTS.items():
        if name not in _printed:
            _printed[name] = run(*command)
    if not (folder / "changed").exists():
        shutil.copytree(folder / "out", folder / "changed")
        with (folder / "changed" / "model.onnx").open("ab") as stream:
            stream.write(b"x")
        shutil.copytree(folder / "repository", folder / "damaged")
        config = folder / "damaged" / "out" / "config.pbtxt"
        text = config.read_text(encoding="utf-8").replace("dims: 8\n", "dims: 9\n", 1)
        config.write_text(f"{text}max_batchsize: 3\n", encoding="utf-8")
    return lambda scene: _printed[scene] if isinstance(scene, str) else run(*scene)


@pytest.mark.needs("onnx")
@pytest.mark.needs("openvino")
@pytest.mark.parametrize("command", SCENES)
def test_a_command_prints_its_snapshot(
    command: str,
    transcript: Callable[[str | tuple[str, ...]], str],
    request: pytest.FixtureRequest,
) -> None:
    if command == "build-trt" and target_named("tensorrt").readiness().ready:
        pytest.skip("nothing is pending here")
    text = "\n".join(map(transcript, SCENES[command]))
    file = SNAPSHOTS / f"{command}.txt"
    if request.config.getoption("--update-snapshots"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "read the diff, then --update-snapshots"
