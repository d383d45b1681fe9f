"""Targets of other packages: loaded when they are used, and none can break modelc."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from modelc.converters import onnx_model
from modelc.converters.registry import (
    BUILT_IN,
    GROUP,
    PluginTarget,
    find_plugins,
    package_of,
    target_for,
    target_named,
)
from modelc.core.errors import ErrorCode, MissingError

from ..reasons import has_code

GOOD = """\
from modelc.core.contract import Readiness
from modelc.core.kinds import Precision
NAME, SUMMARY, SUFFIX = "mine", "a format of mine", ".mine"
MADE_FROM, CAPTURES, DEVICES = {Precision.FP32: "onnx"}, (), ("cpu",)
def readiness(): return Readiness(ready=True, version="7.7")
def claims(path): return path.suffix == SUFFIX
def convert(job): raise NotImplementedError
def open_runner(path, device, signature): raise NotImplementedError
def inspect(path): raise NotImplementedError
def coverage(path, example, device): return None
"""
Installed = Callable[..., Path]


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    """`installed("mine", code)`: a folder with a package that offers a target of that name."""

    def make(name: str, code: str, package: str = "modelc-mine") -> Path:
        module = package.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}\n")
        return tmp_path

    return make


def modelc(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(
        str(Path(one).absolute()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    )
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{path}"}
    order = [sys.executable, *arguments]
    return subprocess.run(
        order, env=environment, capture_output=True, text=True, check=False, cwd=folder
    )


def entry(name: str, value: str = "json") -> metadata.EntryPoint:
    return metadata.EntryPoint(name=name, value=value, group=GROUP)


def test_a_name_of_a_target_of_modelc_is_rejected() -> None:
    for name in (*(target.NAME for target in BUILT_IN), "checkpoint"):
        plugins, (rejected,) = find_plugins(BUILT_IN, [entry(name)])
        assert plugins == ()
        assert repr(name) in rejected


def test_two_packages_with_one_name_are_both_rejected() -> None:
    entries = [entry("mine", "a"), entry("mine", "b"), entry("other")]
    plugins, rejected = find_plugins(BUILT_IN, entries)
    assert [one.NAME for one in plugins] == ["other"]
    assert len(rejected) == 2


@pytest.mark.parametrize("name", ["Mine", "mine:fp16", "../mine", "", "mine-", "a b"])
def test_an_invalid_name_is_rejected(name: str) -> None:
    assert find_plugins(BUILT_IN, [entry(name)])[0] == ()


def test_a_package_is_not_loaded_for_its_name(installed: Installed) -> None:
    folder = installed("mine", "raise SystemExit('loaded')")
    code = "from modelc.converters.registry import TARGETS; print(TARGETS[-1].NAME)"
    ran = modelc(folder, "-c", code)
    assert (ran.returncode, ran.stdout) == (0, "mine\n"), ran.stderr


def test_a_target_of_another_package_is_listed_with_its_package(installed: Installed) -> None:
    ran = modelc(installed("mine", GOOD), "-m", "modelc", "targets")
    row = next(line for line in ran.stdout.splitlines() if line.split()[:1] == ["mine"])
    words = row.split()
    assert words[:2] == ["mine", "yes"]
    assert words[-4:] == ["fp32", "7.7", "modelc-mine", "1.5"]
    assert ran.stderr == ""


def test_a_target_of_modelc_has_no_package() -> None:
    assert find_plugins(BUILT_IN, []) == ((), ())
    assert package_of(onnx_model) == ""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError:"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (GOOD.replace("def claims", "def claimed"), "claims()"),
        (GOOD.replace('"mine", "a format', '"yours", "a format'), "'yours'"),
        (GOOD.replace('".mine"', '"mine"'), "its SUFFIX"),
        (GOOD.replace('{Precision.FP32: "onnx"}', "{}"), "its MADE_FROM"),
        (GOOD.replace("Precision.FP32:", '"fp32x":'), "its MADE_FROM"),
        (GOOD.replace('("cpu",)', '("tpu",)'), "its DEVICES"),
    ],
)
def test_a_broken_package_is_one_warning_that_names_it(
    installed: Installed, code: str, reason: str
) -> None:
    ran = modelc(installed("mine", code), "-m", "modelc", "targets")
    assert ran.returncode == 0, ran.stderr
    (line,) = ran.stderr.splitlines()
    assert {"warning:", "'mine'", "modelc-mine", "1.5"} <= set(line.split())
    assert reason in line
    assert "torchscript" in ran.stdout


def test_a_clash_is_a_warning_and_the_target_of_modelc_stays(installed: Installed) -> None:
    code = "from modelc.converters.registry import target_named as t; print(t('onnx').__name__)"
    folder = installed("onnx", GOOD)
    assert modelc(folder, "-c", code).stdout == "modelc.converters.onnx_model\n"
    assert "modelc-mine" in modelc(folder, "-m", "modelc", "targets").stderr


def broken() -> PluginTarget:
    return PluginTarget(entry("mine", "no_such_module_at_all"))


def test_a_broken_target_that_is_requested_is_missing() -> None:
    with pytest.raises(MissingError, check=has_code(ErrorCode.NOT_INSTALLED, naming="'mine'")):
        target_named("mine", (*BUILT_IN, broken()))


def test_a_broken_target_claims_no_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a")
    found = target_for(tmp_path / "model.onnx", (broken(), *BUILT_IN))
    assert found is onnx_model


def test_the_version_of_the_package_is_in_the_key_of_a_step(
    installed: Installed,
) -> None:
    code = """\
import pathlib, sys
from modelc.converters.registry import TARGETS
from modelc.pipeline.cache.file_digests import FileDigests
from modelc.pipeline.cache.step_keys import step_keys
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.plan import make_plan
pathlib.Path("net.safetensors").write_bytes(b"\\x02\\0\\0\\0\\0\\0\\0\\0{}")
order = Order(source=Source(checkpoint=pathlib.Path("net.safetensors"), model="m:f"),
              wanted=(Wanted(target="mine"),), out=pathlib.Path("out"))
with FileDigests(pathlib.Path("c")) as digests:
    keys = step_keys(order, make_plan(order), root=pathlib.Path.cwd(), digests=digests)
print(keys["onnx"], keys["mine"])
"""
    folder = installed("mine", GOOD)
    first = modelc(folder, "-c", code)
    again = modelc(folder, "-c", code)
    metadata_file = folder / "modelc_mine-1.5.dist-info" / "METADATA"
    metadata_file.write_text(metadata_file.read_text().replace("1.5", "1.6"))
    later = modelc(folder, "-c", code)
    assert first.returncode == 0, first.stderr
    assert again.stdout == first.stdout
    onnx, mine = first.stdout.split()
    assert later.stdout.split()[0] == onnx
    assert later.stdout.split()[1] != mine
