"""The eager module under torch.compile is judged on the feeds of the domain, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modelc.core.compile_records import CompiledVerdict
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import ReasonCode
from modelc.core.manifest import Manifest
from modelc.core.verdict import State, Verdict
from modelc.pipeline.benchmark.benchmark_plan import BenchmarkOptions, plan_rows
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Judging, Order, Source
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_compiled import validate_compiled
from modelc.tests.nets import compile_nets
from modelc.tests.nets.compile_nets import FACTORY, INPUT

from ..reasons import reason_codes

Orders = Callable[..., Order]
Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
_LARGE = 4  # the planted backend is wrong for larger batches


@pytest.fixture
def use_backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Backend | str], None]:
    """Compile with another backend than inductor."""
    compile_with = torch.compile

    def use(backend: Backend | str) -> None:
        def compile_module(module: torch.nn.Module, **_: object) -> Any:
            return compile_with(module, backend=backend)

        monkeypatch.setattr(torch, "compile", compile_module)

    return use


@pytest.fixture
def folder_of(order: Orders, tmp_path: Path) -> Callable[[str], Path]:
    """An output folder of a model of compile_nets, in which no artifact has to pass."""

    def export(name: str) -> Path:
        torch.manual_seed(0)
        path = tmp_path / "net.pt"
        torch.save(compile_nets.build(name).state_dict(), path)
        source = Source(checkpoint=path, model=FACTORY, model_args={"name": name}, inputs=(INPUT,))
        run(replace(order("torchscript"), source=source))
        return tmp_path / "out"

    return export


def wrong_for_large_batches(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """Add 0.1 to all outputs if a tensor has more than four rows."""

    def run_graph(*given: Any) -> Any:
        large = any(
            isinstance(one, torch.Tensor) and one.shape[:1] > (_LARGE,) and one.shape != (4, 4)
            for one in given
        )
        return [one + 0.1 if large else one for one in graph.forward(*given)]

    return run_graph


def read_records(folder: Path) -> tuple[CompiledVerdict, ...]:
    manifest = read_manifest(folder)
    assert manifest is not None
    return manifest.compiled


def test_a_good_compiled_module_passes_on_all_feeds(
    folder_of: Callable[[str], Path], use_backend: Callable[[Backend | str], None]
) -> None:
    folder = folder_of("Layered")
    use_backend("eager")
    found = validate_compiled(folder)
    assert (found.state, found.artifact) == (State.PASSED, "torch.compile")
    assert {"min", "opt", "max", "batch-2"} <= set(found.feeds)
    assert [(one.mode, one.verdict) for one in read_records(folder)] == [("default", found)]


@pytest.mark.slow
def test_inductor_itself_passes(folder_of: Callable[[str], Path]) -> None:
    assert validate_compiled(folder_of("Branching")).passed


def test_a_module_that_is_wrong_for_some_sizes_is_rejected_with_the_feed(
    folder_of: Callable[[str], Path], use_backend: Callable[[Backend | str], None]
) -> None:
    folder = folder_of("Layered")
    use_backend(wrong_for_large_batches)
    found = validate_compiled(folder)
    wrong = {one.feed for one in found.outputs if not one.passed}
    assert (found.state, ReasonCode.OUTPUT_DIFFERS in reason_codes(found)) == (State.FAILED, True)
    assert {"opt", "max"} <= wrong
    assert not {"min", "batch-2", "batch-3"} & wrong
    assert read_records(folder)[0].verdict.state is State.FAILED


def test_a_module_that_is_wrong_at_one_size_between_the_feeds_is_rejected(
    folder_of: Callable[[str], Path], use_backend: Callable[[Backend | str], None]
) -> None:
    def compile_wrong(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        def run_graph(*given: Any) -> Any:
            wrong = any(isinstance(one, torch.Tensor) and 13 in one.shape for one in given)
            return [one + 0.1 if wrong else one for one in graph.forward(*given)]

        return run_graph

    folder = folder_of("Layered")
    use_backend(compile_wrong)
    verdict = validate_compiled(folder)
    assert verdict.state is State.FAILED
    assert "sweep:batch=13" in {one.feed for one in verdict.outputs if not one.passed}


def test_a_backend_that_raises_is_an_error(
    folder_of: Callable[[str], Path], use_backend: Callable[[Backend | str], None]
) -> None:
    def fail(_: torch.fx.GraphModule, __: Sequence[Any]) -> Callable[..., Any]:
        raise RuntimeError("no compiler")

    folder = folder_of("Layered")
    use_backend(fail)
    assert validate_compiled(folder).state is State.ERROR


def test_the_limit_of_recompiles_is_a_note(
    folder_of: Callable[[str], Path], use_backend: Callable[[Backend | str], None]
) -> None:
    folder = folder_of("Unrolled")
    use_backend("eager")
    found = validate_compiled(folder)
    assert found.passed
    assert len([note for note in found.notes if note.startswith("forward ")]) == 1


def test_another_verdict_of_the_mode_replaces_the_first(
    folder_of: Callable[[str], Path], use_backend: Callable[[Backend | str], None]
) -> None:
    folder = folder_of("Layered")
    use_backend("eager")
    validate_compiled(folder)
    validate_compiled(folder)
    validate_compiled(folder, "max-autotune")
    assert [one.mode for one in read_records(folder)] == ["default", "max-autotune"]


def test_only_a_folder_on_the_cpu_is_judged(folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("Layered")
    with pytest.raises(UsageError) as file:
        validate_compiled(folder / "manifest.json")
    with pytest.raises(UsageError) as device:
        validate_compiled(folder, judging=Judging(device="cuda"))
    assert (file.value.code, device.value.code) == (ErrorCode.NO_EFFECT, ErrorCode.NO_EFFECT)


@pytest.mark.parametrize(
    ("torch_version", "state", "expected"),
    [
        (torch.__version__, State.PASSED, "passed"),
        (torch.__version__, State.FAILED, "rejected"),
        ("1.0", State.PASSED, "not judged"),
    ],
)
def test_a_benchmark_has_the_verdict_of_this_torch(
    exported_digits: Path, digits_source: Source, torch_version: str, state: State, expected: str
) -> None:
    manifest = read_manifest(exported_digits)
    assert isinstance(manifest, Manifest)
    verdict: Verdict = replace(
        manifest.verdicts[0], artifact="torch.compile", device="cpu", state=state
    )
    record = CompiledVerdict(mode="default", torch=torch_version, verdict=verdict)
    rows, _ = plan_rows(replace(manifest, compiled=(record,)), digits_source, BenchmarkOptions())
    assert {row.name: row.verdict for row in rows}["torch.compile"] == expected
