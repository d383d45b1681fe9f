"""What kills the process of a run ends one step: it is recorded, and the others go on."""

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
from modelc.core.errors import CheckpointError
from modelc.core.events import Event, Finished, Started
from modelc.core.manifest import Failure
from modelc.pipeline.isolation.supervisor import run_isolated
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Order
from modelc.pipeline.recorded_run import describe_changed_file

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
        ("killed", "SIGKILL (killed from outside"),
    ],
)
def test_a_death_while_converting_is_a_failure_of_that_step(
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
def test_a_segmentation_fault_is_told_with_the_line_that_it_happened_at(isolated: Isolated) -> None:
    failure = the_failure(isolated("torchscript", patch="segfault"))
    assert "Fatal Python error: Segmentation fault" in failure.message
    assert "ctypes" in failure.message


@pytest.mark.slow
def test_a_death_while_an_artifact_runs_is_exit_code_6(isolated: Isolated) -> None:
    failure = the_failure(isolated("torchscript", model="probed"))
    assert (failure.exit_code, "validate torchscript" in failure.message) == (6, True)


@pytest.mark.slow
def test_the_others_go_on_in_a_new_process(isolated: Isolated) -> None:
    ran = isolated("torchscript", "onnx", patch="untraceable")
    assert [artifact.name for artifact in ran.manifest.artifacts] == ["onnx"]
    assert [failure.step for failure in ran.manifest.failures] == ["torchscript"]
    assert ran.manifest.steps == ("torchscript", "onnx")
    assert read_manifest(ran.out) == ran.manifest
    assert not describe_changed_file(ran.manifest.artifacts[0], ran.out)


@pytest.mark.slow
def test_what_was_proven_before_stays_beside_the_failure(isolated: Isolated) -> None:
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
def test_memory_without_end_ends_at_the_bound(isolated: Isolated) -> None:
    bounds = ProcessLimits(memory=1536 * MIB, timeout=MANY)
    failure = the_failure(isolated("torchscript", patch="grow", bounds=bounds))
    assert "and --memory is 1536 MiB" in failure.message
    assert failure.hint.endswith("--memory 3072MiB")


@pytest.mark.slow
def test_words_without_end_end_at_the_bound_and_fill_no_disk(isolated: Isolated) -> None:
    bounds = ProcessLimits(chatter=4 * MIB, timeout=MANY)
    ran = isolated("torchscript", patch="shout", bounds=bounds)
    assert "4 MiB" in the_failure(ran).message
    log = (ran.out / "logs" / "torchscript.log").read_bytes()
    assert len(log) < MIB
    assert b"bytes are left out here" in log


@pytest.mark.slow
def test_a_death_before_the_first_step_stops_the_model(ordered: Ordered) -> None:
    order = ordered("torchscript", model="dies_at_once")
    with pytest.raises(CheckpointError, match=r"SIGSEGV .* during 'load model'"):
        run_isolated(order)
    assert read_manifest(order.out) is None


@pytest.mark.parametrize(("said", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(
    ordered: Ordered, said: str | None, found: str
) -> None:
    """Threads that spin make two runs on one machine wait for each other."""
    environment = {name: text for name, text in os.environ.items() if name != process.WAIT_VARIABLE}
    given = {} if said is None else {process.WAIT_VARIABLE: said}
    order = ordered("torchscript", model="tells_how_threads_wait")
    with pytest.raises(CheckpointError, match=f"threads wait: {found}"):
        run_isolated(order, environment={**environment, **given})


def test_an_error_crosses_as_itself_with_the_childs_traceback(
    ordered: Ordered, tmp_path: Path
) -> None:
    (tmp_path / "words.pt").write_text("only words\n")
    with pytest.raises(CheckpointError) as caught:
        run_isolated(ordered("torchscript", checkpoint=tmp_path / "words.pt"))
    assert caught.value.hint
    assert "Traceback (most recent call last)" in str(caught.value.__cause__)
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


def test_a_run_with_nothing_left_needs_a_plan_that_can_be_made(ordered: Ordered) -> None:
    from modelc.core.errors import UsageError

    with pytest.raises(UsageError, match="nowhere"):
        run_isolated(ordered("nowhere"))


@pytest.mark.slow
def test_a_run_in_a_thread_stops_when_it_is_told_to(ordered: Ordered) -> None:
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
