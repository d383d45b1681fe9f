"""`modelc doctor` with planted faults."""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.converters.installed_packages import InstalledPackages
from modelc.converters.library_checks import LibraryHost
from modelc.converters.library_probe import LibraryReport, ProbeResult, probe_libraries
from modelc.converters.registry import TARGETS
from modelc.converters.trt import trt_installation
from modelc.converters.trt.trt_installation import CudaDevice, CudaDriver
from modelc.core.installation import Check, CheckState, Diagnosis
from modelc.pipeline.diagnose import Surroundings, collect_surroundings, examine, own_requirements

VERSIONS = {
    "torch": "2.13.0", "onnx": "1.21.0", "onnxruntime-gpu": "1.24.4", "openvino": "2026.4.1",
    "nncf": "3.4.0", "nvidia-modelopt": "0.47.0", "pillow": "13.0.0", "numpy": "2.4.6",
}  # fmt: skip
OWN = ("torch>=2.11", "onnx>=1.21,<1.22", "numpy>=2.0", "pillow>=11.0")
H200 = CudaDevice(index=0, name="NVIDIA H200", capability=(9, 0), memory=140 * 2**30)
DRIVER = CudaDriver(version=13010, devices=(H200,))
NONE = CudaDriver(version=None, devices=(), reason="no CUDA driver")
VNNI = "model name\t: A CPU\nflags\t\t: fpu avx2 avx512f avx512_vnni amx_bf16\n"
SAID = {
    "onnxruntime": LibraryReport(
        said=(
            ProbeResult(name="CUDAExecutionProvider", works=True, detail=""),
            ProbeResult(name="CPUExecutionProvider", works=True, detail=""),
        )
    ),
    "openvino": LibraryReport(said=(ProbeResult(name="CPU", works=True, detail="A CPU"),)),
    "tensorrt": LibraryReport(said=(ProbeResult(name="tensorrt", works=True, detail="11.4.0"),)),
}
TENSORRT = trt_installation.TensorrtInstallation(importable=True, package="11.4.0", program=None)


def packages(
    *left_out: str,
    cuda: Mapping[str, str] | None = None,
    needs: Mapping[str, Sequence[str]] | None = None,
    **versions: str,
) -> InstalledPackages:
    """Those that modelc needs, less some, and others: `nvidia_cudnn_cu12="9.1"`."""
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    kept = {name: v for name, v in VERSIONS.items() if name not in left_out}
    return InstalledPackages(versions=kept | named, needs=needs or {}, cuda=cuda or {})


def around(
    found: InstalledPackages | None = None,
    driver: CudaDriver = DRIVER,
    *,
    answers: Mapping[str, LibraryReport] | None = None,
    tensorrt: trt_installation.TensorrtInstallation = TENSORRT,
    cpu: str = VNNI,
    own: tuple[str, ...] = OWN,
) -> Surroundings:
    """A GPU host on which all is well, but for what is given."""
    said = {**SAID, **(answers or {})}

    def answer(libraries: Iterable[str]) -> Mapping[str, LibraryReport]:
        return {name: said[name] for name in libraries}

    host = LibraryHost(packages=found or packages(), driver=driver, tensorrt=tensorrt, ask=answer)
    return Surroundings(host=host, cpu=cpu, own=own)


def diagnose(given: Surroundings) -> Diagnosis:
    return examine(given, targets=(), quantizers=())


def check(given: Surroundings, name: str) -> Check:
    (only,) = [one for one in diagnose(given).checks if one.name == name]
    return only


def words(found: Check) -> set[str]:
    """The words of a check's text."""
    return set(re.sub(r"[:;()]|,(?= )", " ", found.detail).split())


OLD_GPU = CudaDriver(version=13010, devices=(replace(H200, name="V100", capability=(7, 0)),))
OLD_DRIVER = replace(DRIVER, version=12080)
OLD_TENSORRT = trt_installation.TensorrtInstallation(importable=True, package="10.3.0")
OF_OLD_TENSORRT = LibraryReport(said=(ProbeResult(name="tensorrt", works=True, detail="10.3.0"),))
PINS = {"torch": ("nvidia-cudnn-cu13==9.13.0",)}
FAULTS: dict[str, tuple[Surroundings, str, CheckState, set[str]]] = {
    "no fault": (around(), "GPU 0", CheckState.OK, {"H200", "9.0", "140"}),
    "a GPU before Turing": (around(driver=OLD_GPU), "GPU 0", CheckState.WARN, {"Turing"}),
    "TensorRT for a newer driver": (
        around(packages(tensorrt_cu13="11.4.0"), OLD_DRIVER),
        "CUDA driver", CheckState.BROKEN, {"r580"},
    ),
    "TensorRT crashes": (
        around(answers={"tensorrt": LibraryReport(failure="SIGSEGV")}),
        "tensorrt", CheckState.BROKEN, {"SIGSEGV"},
    ),
    "an old TensorRT": (
        around(tensorrt=OLD_TENSORRT, answers={"tensorrt": OF_OLD_TENSORRT}),
        "tensorrt", CheckState.WARN, {"10.3.0"},
    ),
    "a library for two CUDAs": (
        around(packages(nvidia_cudnn_cu12="9.1", nvidia_cudnn_cu13="9.13")),
        "nvidia-cudnn", CheckState.BROKEN, {"nvidia-cudnn-cu12", "nvidia-cudnn-cu13"},
    ),
    "TensorRT and torch of two CUDAs": (
        around(packages(cuda={"torch": "13.0"}, tensorrt_cu12="11.4.0")),
        "tensorrt and torch", CheckState.BROKEN, {"12", "13"},
    ),
    "ONNX Runtime and torch of two CUDAs": (
        around(packages(cuda={"torch": "13.0", "onnxruntime": "12.8"})),
        "onnxruntime and torch", CheckState.WARN, {"12", "13"},
    ),
    "a cuDNN that torch did not pin": (
        around(packages(needs=PINS, nvidia_cudnn_cu13="9.20.0")),
        "requirements of torch", CheckState.BROKEN, {"nvidia-cudnn-cu13", "9.20.0", "==9.13.0"},
    ),
    "an unmet requirement": (
        around(packages(needs={"nncf": ("numpy<2.4",)})),
        "requirements of nncf", CheckState.WARN, {"numpy"},
    ),
    "a package of another version than modelc requires": (
        around(packages("onnx", onnx="1.20.0")),
        "requirements of modelc", CheckState.BROKEN, {"onnx", "1.20.0", "<1.22,>=1.21"},
    ),
    "a missing package that modelc requires": (
        around(packages("pillow")),
        "requirements of modelc", CheckState.BROKEN, {"pillow", ">=11.0"},
    ),
    "an installed package of an extra": (
        around(packages(tensorrt="10.3.0"), own=("tensorrt>=10.13; extra == 'tensorrt'",)),
        "requirements of modelc", CheckState.BROKEN, {"tensorrt", "10.3.0"},
    ),
    "a package whose import hangs": (
        around(packages(timm="1.0"), answers={"timm": LibraryReport(failure="within 30 s")}),
        "timm", CheckState.BROKEN, {"30"},
    ),
    "a library that is not installed": (
        around(packages("openvino"), answers={"openvino": LibraryReport(failure="no module")}),
        "OpenVINO", CheckState.MISSING, set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_described(fault: str) -> None:
    given, name, state, named = FAULTS[fault]
    found = check(given, name)
    assert found.state is state
    assert named <= words(found)


def test_a_host_without_faults() -> None:
    found = diagnose(around())
    named = {one.name: one.state for one in found.checks}
    assert {name for name, state in named.items() if state is not CheckState.OK} == {
        "lean runtime",
        "tensorrt-rtx",
        "trtexec",
    }
    assert found.exit_code == 0


def test_on_a_host_without_gpu_nothing_is_broken() -> None:
    cpu_only = replace(SAID["onnxruntime"].said[0], works=False, detail="no libcublasLt.so.12")
    given = around(
        driver=NONE,
        tensorrt=trt_installation.TensorrtInstallation(),
        answers={"onnxruntime": LibraryReport(said=(cpu_only, SAID["onnxruntime"].said[1]))},
    )
    found = diagnose(given)
    missing = {one.name for one in found.checks if one.state is CheckState.MISSING}
    assert missing == {
        "CUDA driver",
        "tensorrt",
        "tensorrt-rtx",
        "trtexec",
        "CUDAExecutionProvider",
    }
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("version", "cuda", "state", "branch"),
    [
        (13000, "13.0", CheckState.OK, ""),
        (12080, "13.0", CheckState.BROKEN, "r580"),
        (12020, "12.8", CheckState.OK, ""),
        (12010, "12.8", CheckState.BROKEN, "r535"),
    ],
)
def test_a_driver_too_old_for_the_installed_packages_is_broken(
    version: int, cuda: str, state: CheckState, branch: str
) -> None:
    given = around(packages(cuda={"torch": cuda}), replace(DRIVER, version=version))
    found = check(given, "CUDA driver")
    assert found.state is state
    assert branch in found.detail


def test_a_driver_without_device_gives_its_reason() -> None:
    blind = CudaDriver(version=13010, devices=(), reason="no device")
    assert check(around(driver=blind), "GPU").detail == "no device"


def test_a_tensorrt_that_cannot_be_imported_is_broken_with_its_reason() -> None:
    reason = "libnvonnxparser.so.11: cannot open shared object file"
    said = LibraryReport(said=(ProbeResult(name="tensorrt", works=False, detail=reason),))
    found = diagnose(around(answers={"tensorrt": said}))
    (broken,) = found.failures
    assert broken.name == "tensorrt"
    assert reason in broken.detail
    assert found.exit_code == 4


def test_two_onnx_runtimes_overwrite_one_another() -> None:
    found = diagnose(around(packages(onnxruntime="1.24.4")))
    (broken,) = found.failures
    assert {"onnxruntime", "onnxruntime-gpu"} <= set(broken.detail.split())
    assert broken.fix.startswith("pip uninstall -y ")


@pytest.mark.parametrize(
    "found",
    [
        packages(nvidia_cudnn_cu13="9.13", nvidia_cusparselt_cu13="0.8"),
        packages(cuda={"torch": "13.0"}, tensorrt_cu13="11.4.0", tensorrt="11.4.0"),
        packages(cuda={"onnxruntime": "12.8"}),  # torch is for the CPU
    ],
)
def test_packages_of_one_cuda_are_no_clash(found: InstalledPackages) -> None:
    assert check(around(found), "clashes").detail == "none"


def test_a_torchvision_for_another_torch_is_named_with_the_fix_and_first() -> None:
    reason = "RuntimeError: operator torchvision::nms does not exist"
    broken = {
        name: LibraryReport(said=(ProbeResult(name=name, works=False, detail=reason),))
        for name in ("torchvision", "transformers")
    }
    timm = {"timm": LibraryReport(said=(ProbeResult(name="timm", works=True, detail="1.0"),))}
    given = around(
        packages(torchvision="0.20.0", timm="1.0", transformers="5.1", torch="2.13.0+cpu"),
        answers={**broken, **timm},
    )
    fix = "pip uninstall -y torchvision && pip install torchvision torch==2.13.0"
    for name in broken:
        found = check(given, name)
        assert (found.state, found.fix) == (CheckState.BROKEN, fix)
        assert reason in found.detail
    assert check(given, "timm").state is CheckState.OK
    assert diagnose(given).exit_code == 4


def test_without_a_broken_torchvision_a_package_gets_its_own_fix() -> None:
    lost = LibraryReport(said=(ProbeResult(name="timm", works=False, detail="OSError"),))
    found = check(around(packages(timm="1.0"), answers={"timm": lost}), "timm")
    remove, install = (command.split() for command in found.fix.split(" && "))
    assert remove == ["pip", "uninstall", "-y", "timm"]
    assert install == ["pip", "install", "timm"]


@pytest.mark.parametrize(
    ("library", "code", "works", "detail"),
    [
        ("torchvision", "raise RuntimeError('nms')", False, "RuntimeError: nms"),
        ("torchvision",
         "try:\n    import no_such_one\nexcept ImportError as e:\n    raise ValueError('x') from e",
         False, "ModuleNotFoundError: No module named 'no_such_one'"),
        ("torchvision", "import sys; sys.exit('no')", False, "SystemExit: no"),
        ("tensorrt", "print('chatter')\nraise ImportError('nvonnx.so: none')",
         False, "nvonnx.so: none"),
        ("tensorrt", "__version__ = '11.4.0.106'", True, "11.4.0.106"),
    ],
)  # fmt: skip
def test_the_version_of_a_library_or_the_innermost_cause_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    code: str,
    works: bool,
    detail: str,
) -> None:
    (tmp_path / library).mkdir()
    (tmp_path / library / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (answer,) = probe_libraries([library])[library].said
    assert (answer.works, answer.detail) == (works, detail)


def test_the_other_project_called_modelc_is_a_clash() -> None:
    given = around(packages(modelc="0.1.0", modelc_toolchain="0.1.0"))
    (found,) = [one for one in diagnose(given).checks if one.state is CheckState.BROKEN]
    assert found.name == "modelc"
    assert found.fix.startswith("pip uninstall -y modelc,")


@pytest.mark.parametrize(
    "need",
    [
        "onnx>=9; sys_platform == 'nowhere'",
        "tensorrt>=10.13; extra == 'tensorrt'",
        "numpy>=2.0",
        "torch>=2.13.0rc1",
    ],
)
def test_requirements_that_are_met_or_do_not_apply_are_not_reported(need: str) -> None:
    assert check(around(own=(need,)), "requirements").state is CheckState.OK


def test_a_provider_that_does_not_load_is_a_warning_with_a_gpu() -> None:
    lost = ProbeResult(name="CUDAExecutionProvider", works=False, detail="libcublasLt.so.12")
    given = around(answers={"onnxruntime": LibraryReport(said=(lost, SAID["onnxruntime"].said[1]))})
    found = check(given, "CUDAExecutionProvider")
    assert (found.state, found.detail) == (CheckState.WARN, "libcublasLt.so.12")
    assert check(given, "ONNX Runtime").detail == "loads CPUExecutionProvider"


@pytest.mark.parametrize(
    ("name", "label"), [("onnxruntime", "ONNX Runtime"), ("openvino", "OpenVINO")]
)
def test_an_installed_library_without_an_answer_is_broken(name: str, label: str) -> None:
    given = around(answers={name: LibraryReport(failure="it crashed (SIGILL)")})
    found = check(given, label)
    assert found.state is CheckState.BROKEN
    assert "SIGILL" in found.detail
    assert "--force-reinstall" in found.fix


def test_a_crash_keeps_earlier_answers() -> None:
    said = LibraryReport(said=SAID["onnxruntime"].said[:1], failure="it crashed (SIGSEGV)")
    states = [
        one.state
        for one in diagnose(around(answers={"onnxruntime": said})).checks
        if one.name == "ONNX Runtime"
    ]
    assert states == [CheckState.OK, CheckState.BROKEN]


@pytest.mark.parametrize(
    ("text", "state", "detail"),
    [
        (VNNI, CheckState.OK, "A CPU; INT8 by AVX-512 VNNI; BF16 by AMX"),
        (
            "model name : Old\nflags : sse2 avx2\n",
            CheckState.WARN,
            "Old; INT8 by none; BF16 by none",
        ),
        ("Features : fp asimd asimddp\n", CheckState.OK, "dot product"),
        ("", CheckState.OK, "unknown"),
        ("processor : 0\n", CheckState.OK, "unknown"),
    ],
)
def test_the_features_of_the_cpu_are_described(text: str, state: CheckState, detail: str) -> None:
    found = check(around(cpu=text), "CPU")
    assert found.state is state
    assert detail in found.detail


def test_free_space_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    given = replace(around(), folders={"cache": tmp_path / "not" / "yet"})
    assert str(tmp_path / "not" / "yet") in check(given, "cache space").detail


def test_every_target_is_ready_or_has_a_hint() -> None:
    found = examine(around(), quantizers=())
    assert [one.name for one in found.targets] == [target.NAME for target in TARGETS]
    assert all(one.detail for one in found.targets)
    assert all(one.ready or one.fix for one in found.targets)


def test_the_requirements_of_a_checkout_are_in_its_pyproject(tmp_path: Path) -> None:
    source = tmp_path / "pyproject.toml"
    source.write_text('[project]\ndependencies = ["torch>=2.11"]\n')
    assert own_requirements("no-such-distribution", source) == ("torch>=2.11",)


def test_the_requirements_of_an_installed_package_are_in_its_metadata() -> None:
    assert "packaging" in " ".join(own_requirements("pytest"))


def test_this_host_can_be_examined(tmp_path: Path) -> None:
    start = time.perf_counter()
    found = examine(collect_surroundings({"work": tmp_path}))
    assert time.perf_counter() - start < 20
    named = {one.name: one for one in found.checks}
    assert "CPUExecutionProvider" in named["ONNX Runtime"].detail
    assert "CPU" in named["OpenVINO"].detail
    assert named["torch"].state is CheckState.OK


FAULTY = """
import os, time
from modelc.converters.library_probe import ProbeResult
def crash(name, parent):
    parent.send(ProbeResult(name="A", works=True, detail=""))
    os.write(parent._channel, b"{cut")
    os.abort()
def lack(name, parent):
    import no_such_library
def leave(name, parent):
    os._exit(3)
def hang(name, parent):
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("probe", "said", "failure"),
    [
        ("crash", (ProbeResult(name="A", works=True, detail=""),), "SIGABRT"),
        ("lack", (), "no_such_library"),
        ("leave", (), "3"),
        ("hang", (), "0.5 s"),
    ],
)
def test_a_probe_that_fails_keeps_earlier_answers_and_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: str,
    said: tuple[ProbeResult, ...], failure: str,
) -> None:  # fmt: skip
    (tmp_path / "faulty_probes.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty_probes", raising=False)
    faulty = importlib.import_module("faulty_probes")
    start = time.perf_counter()
    timeout = {"timeout": 0.5} if probe == "hang" else {}
    found = probe_libraries(["any"], probe=getattr(faulty, probe), **timeout)["any"]
    assert time.perf_counter() - start < 50  # not as long as it hangs
    assert found.said == said
    assert failure in found.failure
