"""A crash of the child process ends one step: it is recorded, and the others continue."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelc.core import process
from modelc.core.children.limits import MIB, ProcessLimits
from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.events import Event, Finished, Started
from modelc.core.manifest import Failure
from modelc.pipeline.isolation.supervisor import run_isolated
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Order
from modelc.pipeline.recorded_run import describe_changed_file

from ...reasons import has_code

if TYPE_CHECKING:
    from .conftest import Ran

Isolated = Callable[..., "Ran"]
Ordered = Callable[..., Order]
MANY = 600.0  # seconds; no test takes as long


def the_failure(ran: Ran) -> Failure:
    (failure,) = ran.manifest.failures
    assert ran.manifest.artifacts == ()
    assert {path.name for path in ran.out.iterdir()} == {"logs", "manifest.json"}
    assert read_manifest(ran.out) == ran.manifest
    return failure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patch", "named"),
    [
        ("segfault", "SIGSEGV (a segmentation fault)"),
        ("abort", "SIGABRT (an abort)"),
        ("leave", "exit code 3"),
        ("killed", "SIGKILL (killed"),
    ],
)
def test_a_crash_during_conversion_is_a_failure_of_that_step(
    isolated: Isolated, patch: str, named: str
) -> None:
    ran = isolated("torchscript", patch=patch)
    failure = the_failure(ran)
    assert (failure.step, failure.exit_code, ran.manifest.exit_code) == ("torchscript", 5, 5)
    assert named in failure.message
    assert "convert torchscript (trace)" in failure.message
    finished = [event for event in ran.told if isinstance(event, Finished)]
    assert (finished[-1].step, finished[-1].passed) == ("convert torchscript (trace)", False)


@pytest.mark.slow
def test_a_segmentation_fault_is_reported_with_its_line(isolated: Isolated) -> None:
    failure = the_failure(isolated("torchscript", patch="segfault"))
    assert "Fatal Python error: Segmentation fault" in failure.message
    assert "ctypes" in failure.message


@pytest.mark.slow
def test_a_crash_of_a_running_artifact_is_exit_code_6(isolated: Isolated) -> None:
    failure = the_failure(isolated("torchscript", model="probed"))
    assert (failure.exit_code, "validate torchscript" in failure.message) == (6, True)


@pytest.mark.slow
def test_the_other_steps_continue_in_a_new_process(isolated: Isolated) -> None:
    ran = isolated("torchscript", "onnx", patch="untraceable")
    assert [artifact.name for artifact in ran.manifest.artifacts] == ["onnx"]
    assert [failure.step for failure in ran.manifest.failures] == ["torchscript"]
    assert ran.manifest.steps == ("torchscript", "onnx")
    assert read_manifest(ran.out) == ran.manifest
    assert not describe_changed_file(ran.manifest.artifacts[0], ran.out)


@pytest.mark.slow
def test_an_artifact_that_passed_before_stays_beside_the_failure(isolated: Isolated) -> None:
    before = isolated("torchscript").manifest
    ran = isolated("torchscript", patch="segfault")
    assert ran.manifest.artifacts == before.artifacts
    assert not describe_changed_file(ran.manifest.artifacts[0], ran.out)
    assert (ran.manifest.passed, ran.manifest.exit_code) == (False, 5)


@pytest.mark.slow
@pytest.mark.parametrize("patch", ["hang", "stuck"])
def test_a_hang_ends_at_the_timeout(isolated: Isolated, patch: str) -> None:
    failure = the_failure(isolated("torchscript", patch=patch, bounds=ProcessLimits(timeout=25)))
    assert failure.exit_code == 5
    assert failure.hint.endswith("--timeout 50s")
    assert "--timeout 25 s" in failure.message


@pytest.mark.slow
def test_a_step_beyond_the_memory_limit_is_ended(isolated: Isolated) -> None:
    bounds = ProcessLimits(memory=1536 * MIB, timeout=MANY)
    failure = the_failure(isolated("torchscript", patch="grow", bounds=bounds))
    assert "--memory is 1.61 GB" in failure.message
    assert failure.hint.endswith("--memory 3072MiB")


@pytest.mark.slow
def test_a_step_beyond_the_output_limit_is_ended_and_its_log_is_trimmed(isolated: Isolated) -> None:
    bounds = ProcessLimits(chatter=4 * MIB, timeout=MANY)
    ran = isolated("torchscript", patch="shout", bounds=bounds)
    assert "4.2 MB" in the_failure(ran).message
    log = (ran.out / "logs" / "torchscript.log").read_bytes()
    assert len(log) < MIB
    assert b"bytes are left out here" in log


@pytest.mark.slow
def test_a_crash_before_the_first_step_ends_the_run(ordered: Ordered) -> None:
    order = ordered("torchscript", model="dies_at_once")
    with pytest.raises(CheckpointError, match=r"SIGSEGV .* during 'load model'"):
        run_isolated(order)
    assert read_manifest(order.out) is None


@pytest.mark.parametrize(("said", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_passively_unless_the_user_chooses_otherwise(
    ordered: Ordered, said: str | None, found: str
) -> None:
    """Threads that spin make two runs on one machine wait for each other."""
    environment = {name: text for name, text in os.environ.items() if name != process.WAIT_VARIABLE}
    given = {} if said is None else {process.WAIT_VARIABLE: said}
    order = ordered("torchscript", model="tells_how_threads_wait")
    with pytest.raises(CheckpointError, match=f"threads wait: {found}"):
        run_isolated(order, environment={**environment, **given})


def test_an_error_of_the_child_is_raised_with_its_traceback(
    ordered: Ordered, tmp_path: Path
) -> None:
    (tmp_path / "words.pt").write_text("only words\n")
    with pytest.raises(CheckpointError) as caught:
        run_isolated(ordered("torchscript", checkpoint=tmp_path / "words.pt"))
    assert caught.value.hint
    assert "Traceback" in str(caught.value.__cause__)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_parent_loads_no_framework(weights: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from modelc.pipeline.order import Order, Source, Wanted\n"
        "from modelc.pipeline.isolation.supervisor import run_isolated\n"
        f"source = Source(checkpoint=Path({str(weights)!r}),"
        " model='modelc.tests.nets.crash_net:net',"
        " inputs=('x:float32[batch=1..4,4]',))\n"
        f"out = Path({str(tmp_path / 'out')!r})\n"
        "order = Order(source=source, wanted=(Wanted(target='torchscript'),), out=out)\n"
        "assert run_isolated(order).passed\n"
        "print(sorted({'torch', 'numpy', 'onnx', 'onnxruntime', 'openvino'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
    found = read_manifest(tmp_path / "out")
    assert found is not None
    assert found.passed


def test_a_run_of_an_unknown_target_is_an_error(ordered: Ordered) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="nowhere")):
        run_isolated(ordered("nowhere"))


@pytest.mark.slow
def test_a_run_in_a_thread_stops_on_request(ordered: Ordered) -> None:
    order = ordered("torchscript", patch="stuck")
    hanging: list[bool] = []

    def tell(event: Event) -> None:
        if isinstance(event, Started) and event.step.startswith("convert"):
            hanging.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_isolated(order, tell, bounds=ProcessLimits(stop=lambda: bool(hanging), grace=0.5))
    assert hanging
    assert not list(order.out.glob(".*"))
    assert read_manifest(order.out) is None
