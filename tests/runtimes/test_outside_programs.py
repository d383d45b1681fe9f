"""Artifacts are judged as programs in C++ run them, and faults planted in a program are caught."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from modelc.core.children.limits import ProcessLimits
from modelc.core.errors import MissingError, ModelcError, RunnerError
from modelc.core.external_runtime import ExternalReport
from modelc.core.installation import CheckState
from modelc.core.kinds import Capture, Precision
from modelc.core.records import Artifact
from modelc.core.verdict import State
from modelc.pipeline.isolation.supervisor import call_isolated
from modelc.pipeline.isolation.worker import ApiCall
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_external import validate_external
from modelc.runtimes.outside_programs import OutsidePrograms, ProgramRuntime, check_programs
from modelc.runtimes.program_build import (
    RECIPES,
    SOURCES,
    ProgramRecipe,
    build_program,
    read_versions,
)

from ..conftest import saved
from ..nets import program_nets as nets

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="built on Linux")
needs_compiler = pytest.mark.skipif(
    check_programs().state is not CheckState.OK, reason=check_programs().detail
)
NETS = "modelc.tests.nets.program_nets"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of programs of this session: libtorch's take a minute to compile."""
    return tmp_path_factory.mktemp("cache")


Exports = Callable[..., Path]


@pytest.fixture
def export(tmp_path: Path) -> Exports:
    """`export("pair", "onnx")`: that net in these formats."""

    def make(name: str, *formats: str, **parts: object) -> Path:
        source = Source(
            checkpoint=saved(name, getattr(nets, name)(), tmp_path),
            model=f"{NETS}:{name}",
            inputs=getattr(nets, f"{name.upper()}_INPUTS"),
        )
        wanted = tuple(Wanted(target=one) for one in formats)
        order = Order(source=source, wanted=wanted, out=tmp_path / "out")
        manifest = run(replace(order, **parts))  # type: ignore[arg-type]  # the fields are Order's own
        assert manifest.passed, manifest.verdicts or manifest.failures
        return tmp_path / "out"

    return make


def states(report: ExternalReport) -> dict[str, State]:
    return {one.runtime: one.verdict.state for one in report.judged}


@needs_compiler
@pytest.mark.slow
@pytest.mark.needs("aoti")
def test_every_format_computes_the_same_in_its_program(export: Exports, programs: Path) -> None:
    folder = export("mixed", "torchscript", "aoti", "onnx", "openvino")

    report = validate_external(
        folder, [OutsidePrograms(cache=programs)], settings={"trust_engine": "true"}
    )

    names = ("c++ libtorch", "c++ aoti", "c++ onnxruntime", "c++ openvino")
    assert states(report) == dict.fromkeys(names, State.PASSED)
    assert all(len(one.versions) == 2 for one in report.judged)
    counts = {len(one.outputs) for one in report.here}
    assert {len(one.verdict.outputs) for one in report.judged} == counts


@needs_compiler
@pytest.mark.slow
def test_nested_values_go_through_a_script(export: Exports, programs: Path) -> None:
    folder = export("nested", "torchscript", capture=Capture.SCRIPT)
    report = validate_external(folder, [OutsidePrograms(cache=programs)])
    assert states(report) == {"c++ libtorch": State.PASSED}


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A fault in a program: what stands in its file, and what stands there instead."""

    file: str
    old: str
    new: str


def patched(patch: Patch, folder: Path) -> Path:
    """A copy of the sources with a fault."""
    shutil.copytree(SOURCES, folder)
    path = folder / patch.file
    text = path.read_text("utf-8")
    assert text.count(patch.old) == 1
    path.write_text(text.replace(patch.old, patch.new), "utf-8")
    return folder


RUN = "Writer(line.substr(second + 1)).tensors(model.run(reader.tensors()));"
COPIED = "std::memcpy(made.data.data(), place, made.data.size());"
WRONG_OUTPUTS = {
    "swapped inputs": Patch(
        file="run_onnx.cpp", old="const Tensor& given = feed[index];",
        new="const Tensor& given = feed[feed.size() - 1 - index];",
    ),
    "swapped outputs": Patch(
        file="run_onnx.cpp", old="    return found;\n  }\n\n private:",
        new="    std::swap(found[0].data, found[1].data); return found;\n  }\n\n private:",
    ),
    "stale outputs": Patch(
        file="program.hpp", old=RUN,
        new="static std::vector<Tensor> kept = model.run(reader.tensors());"
        "Writer(line.substr(second + 1)).tensors(kept);",
    ),
    "stale values": Patch(
        file="program.hpp", old=RUN,
        new="static std::vector<Tensor> last; auto now = model.run(reader.tensors());"
        "if (last.empty() || last[0].dims != now[0].dims) last = now;"
        "Writer(line.substr(second + 1)).tensors(last); last = now;",
    ),
    "lost bits": Patch(
        file="run_onnx.cpp", old=COPIED,
        new=f"{COPIED} for (size_t at = 0; at < made.data.size(); at += 4)"
        "made.data[at] = made.data[at + 1] = 0;",
    ),
    "wrong dtype": Patch(
        file="run_onnx.cpp", old="made.dtype = dtype_of(type);", new="made.dtype = DType::Int32;"
    ),
    "lost last row": Patch(
        file="run_onnx.cpp", old=COPIED,
        new="std::memcpy(made.data.data(), place, made.data.size() - 12);",
    ),
}  # fmt: skip


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("fault", WRONG_OUTPUTS)
def test_a_program_with_a_fault_is_rejected(export: Exports, tmp_path: Path, fault: str) -> None:
    folder = export("pair", "onnx")
    sources = patched(WRONG_OUTPUTS[fault], tmp_path / "sources")
    faulty = ProgramRuntime(program="onnx", cache=tmp_path / "cache", sources=sources)

    report = validate_external(folder, [faulty])

    assert states(report) == {"c++ onnxruntime": State.FAILED}


@needs_compiler
@pytest.mark.slow
def test_a_crash_in_a_program_is_a_failed_run(export: Exports, tmp_path: Path) -> None:
    folder = export("pair", "onnx")
    crash = Patch(file="program.hpp", old=RUN, new="raise(11);")
    sources = patched(crash, tmp_path / "sources")
    faulty = ProgramRuntime(program="onnx", cache=tmp_path / "cache", sources=sources)

    report = validate_external(folder, [faulty])

    assert states(report) == {"c++ onnxruntime": State.ERROR}
    assert report.exit_code == RunnerError.exit_code


@needs_compiler
@pytest.mark.slow
def test_another_torchscript_module_is_rejected(export: Exports, tmp_path: Path) -> None:
    import torch

    folder = export("pair", "torchscript")
    example = (torch.ones(2, 3), torch.ones(2, 3))
    other = tmp_path / "other.pt"
    traced = torch.jit.trace(nets.pair(seed=1), example)  # type: ignore[no-untyped-call]  # torch's own
    torch.jit.save(traced, str(other))
    swap = Patch(
        file="run_torchscript.cpp", old="module_(torch::jit::load(path, at::kCPU))",
        new=f'module_(torch::jit::load(path.empty() ? path : "{other}", at::kCPU))',
    )  # fmt: skip
    sources = patched(swap, tmp_path / "sources")
    faulty = ProgramRuntime(program="torchscript", cache=tmp_path / "cache", sources=sources)

    report = validate_external(folder, [faulty])

    assert states(report) == {"c++ libtorch": State.FAILED}


def artifact(target: str, precision: Precision = Precision.FP32) -> Artifact:
    return Artifact(
        name=target, target=target, precision=precision, files=(), parent="", made_from="checkpoint"
    )


@pytest.mark.parametrize(
    "declined",
    [
        artifact("pt2"), artifact("tensorrt-onnx"), artifact("tensorrt"),
        artifact("onnx", Precision.BF16), artifact("onnx", Precision.FP8),
    ],
)  # fmt: skip
def test_what_has_no_program_is_declined(declined: Artifact, tmp_path: Path) -> None:
    runtime = OutsidePrograms(cache=tmp_path).member_for(declined)
    assert runtime.decline_reason(declined)


@pytest.mark.parametrize("target", ["torchscript", "aoti", "onnx", "openvino"])
def test_each_format_has_a_program_of_its_own(target: str, tmp_path: Path) -> None:
    family, wanted = OutsidePrograms(cache=tmp_path), artifact(target)
    runtime = family.member_for(wanted)
    assert not runtime.decline_reason(wanted)
    others = {"torchscript", "aoti", "onnx", "openvino"} - {target}
    assert all(runtime.decline_reason(artifact(other)) for other in others)


def test_a_missing_compiler_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError):
        build_program(RECIPES["onnx"], tmp_path)
    assert check_programs().state is CheckState.MISSING


def test_programs_are_built_on_linux_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    wanted = artifact("onnx")
    assert OutsidePrograms(cache=tmp_path).member_for(wanted).decline_reason(wanted)
    assert check_programs().state is CheckState.MISSING


def tiny_recipe() -> ProgramRecipe:
    link = replace(RECIPES["onnx"].link(), flags=(), beside={})
    return replace(RECIPES["onnx"], source="tiny.cpp", link=lambda: link)


@needs_compiler
def test_a_program_is_built_once_and_again_if_its_source_changes(tmp_path: Path) -> None:
    source, cache = tmp_path / "tiny.cpp", tmp_path / "cache"
    source.write_text("int main() { return 3; }")
    recipe = tiny_recipe()
    first = build_program(recipe, cache, tmp_path)
    made = first.stat().st_mtime_ns
    assert build_program(recipe, cache, tmp_path).stat().st_mtime_ns == made
    source.write_text("int main() { return 4; }")
    assert build_program(recipe, cache, tmp_path) != first
    assert len(list(cache.iterdir())) == 2


@needs_compiler
@pytest.mark.slow
def test_the_wheel_is_used_and_not_what_the_users_variables_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "openvino" / "core" / "version.hpp"
    other.parent.mkdir(parents=True)
    other.write_text("#error of another release")
    recipe = replace(RECIPES["openvino"], source="tiny.cpp")
    (library,) = (Path(one) for one in recipe.link().flags if "libopenvino.so" in one)
    (tmp_path / "other" / library.name).write_text("another release")
    (tmp_path / "tiny.cpp").write_text(
        "#include <cstdio>\n#include <openvino/core/version.hpp>\n"
        "int main() { std::puts(ov::get_openvino_version().buildNumber); }"
    )
    monkeypatch.setenv("CPATH", str(tmp_path / "other"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "other"))

    program = build_program(recipe, tmp_path / "cache", tmp_path)

    assert read_versions(recipe, program)["openvino"].startswith(metadata.version("openvino"))


@needs_compiler
def test_an_incomplete_program_is_built_again(tmp_path: Path) -> None:
    (tmp_path / "tiny.cpp").write_text("int main() { return 3; }")
    program = build_program(tiny_recipe(), tmp_path / "cache", tmp_path)
    program.unlink()
    assert build_program(tiny_recipe(), tmp_path / "cache", tmp_path) == program


@needs_compiler
def test_a_program_that_does_not_compile_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tiny.cpp").write_text("int main() { return x; }")
    with pytest.raises(RunnerError):
        build_program(tiny_recipe(), tmp_path / "cache", tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["sleep(600);", "static std::vector<char> held(size_t{4} << 30, 1);"]
)
def test_limits_of_the_step_count_the_program(export: Exports, tmp_path: Path, fault: str) -> None:
    folder = export("pair", "onnx")
    sources = patched(
        Patch(file="program.hpp", old=RUN, new=f"{fault} {RUN}"), tmp_path / "sources"
    )
    faulty = ProgramRuntime(program="onnx", cache=tmp_path / "cache", sources=sources)
    program = build_program(RECIPES["onnx"], tmp_path / "cache" / "programs", sources)
    call = ApiCall(
        function="validate_external", arguments={"folder": folder, "runtimes": (faulty,)}
    )

    with pytest.raises(ModelcError):
        call_isolated(call, bounds=ProcessLimits(timeout=30.0, memory=3 << 29))

    running = [one.info["exe"] for one in psutil.process_iter(["exe"])]
    assert str(program) not in running
