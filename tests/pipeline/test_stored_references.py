"""A prepared folder is finished with stored references as it is with the checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from modelc.calibration.calibration_options import LabelledOptions
from modelc.checkpoints.eager_model import Eager
from modelc.core.contract import Feed, Outputs, Target
from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.events import Event, Noted, Tell, ignore_events
from modelc.core.findings import SkippedCheck
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.manifest import Manifest
from modelc.core.verdict import Limits, State, Verdict
from modelc.pipeline.finish_pending import finish_pending
from modelc.pipeline.limit_text import Measuring
from modelc.pipeline.manifest_file import write_manifest
from modelc.pipeline.order import Judging, Order, ResumeState, Source, Wanted
from modelc.pipeline.provenance.verify_folder import verify_folder
from modelc.pipeline.recorded_run import FinishRequest, Moved
from modelc.pipeline.run_order import run
from modelc.pipeline.stored_use import SKIPPED_TEXTS

from ..conftest import saved
from ..nets.second_look_nets import FACTORY, NETS, build
from ..open_models import open_module
from .conftest import Fake
from .test_pending import NO_GPU, Engine

READY = replace(NO_GPU, ready=True, version="1", reason="")
Answer = Callable[[Eager, Feed], Outputs]
# torch's own word on the layout of nested tensors, which the encoder chooses
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def exactly(eager: Eager, feed: Feed) -> Outputs:
    return eager.run(feed)


def noisily(eager: Eager, feed: Feed) -> Outputs:
    """As a runtime that sums in another order."""
    return eager.run_perturbed(feed, 6e-8, 7)


def with_last_ties(eager: Eager, feed: Feed) -> Outputs:
    return eager.run_with_tie_order(feed, last=True) or eager.run(feed)


def plainly(eager: Eager, feed: Feed) -> Outputs:
    return eager.run_plain_attention(feed)


def wrongly(eager: Eager, feed: Feed) -> Outputs:
    outputs = eager.run(feed)
    return {n: (a * 1.1).astype(a.dtype) if a.dtype.kind == "f" else a for n, a in outputs.items()}


def half(eager: Eager, feed: Feed) -> Outputs:
    """As a runtime that computes in half precision."""
    return eager.run_perturbed(feed, 3e-4, 7)


def targets(
    name: str, answer: Answer, *, ready: bool, precision: Precision = Precision.FP32
) -> tuple[Target, ...]:
    """The parent's format, and the engine that answers by a function of eager."""
    eager, _ = open_module(build(name), *NETS[name][1])

    def answer_as(given: Answer) -> Callable[[Feed], Outputs]:
        return lambda feed: {n: np.array(a) for n, a in given(eager, feed).items()}

    parent: Any = Fake(answer=answer_as(exactly))
    engine: Any = Engine(
        NAME="engine",
        SUFFIX=".engine",
        MADE_FROM={precision: "fake"},
        CAPTURES=(),
        ready=READY if ready else NO_GPU,
        answer=answer_as(answer),
    )
    return (parent, engine)


class Tf32(Engine):
    """An engine that is held to the limits of FP16."""

    def limit_precision(self, _: Precision, __: Mapping[str, str]) -> Precision:
        return Precision.FP16


@pytest.fixture
def source(tmp_path: Path) -> Callable[[str], Source]:
    """A net of `NETS`, with its checkpoint in the folder `source`."""
    (tmp_path / "source").mkdir()

    def make(name: str) -> Source:
        path = saved(name, build(name), tmp_path / "source")
        return Source(
            checkpoint=path, model=FACTORY, model_args={"name": name}, inputs=NETS[name][1]
        )

    return make


@pytest.fixture
def prepare(source: Callable[[str], Source], tmp_path: Path) -> Callable[..., Manifest]:
    """`prepare("gated")`: a folder `out` with the engine left for another host."""

    def make(
        name: str = "gated", precision: Precision = Precision.FP32, **parts: object
    ) -> Manifest:
        order = Order(
            source=source(name),
            wanted=(Wanted(target="engine", precision=precision),),
            out=tmp_path / "out",
            judging=Judging(),
        )
        order = replace(order, **parts)  # type: ignore[arg-type]  # the fields are Order's own
        return run(order, targets=targets(name, exactly, ready=False, precision=precision))

    return make


@pytest.fixture
def finish(tmp_path: Path) -> Callable[..., Manifest]:
    """`finish("gated", answer)`: finish a copy of `out`, alone or where the checkpoint is."""

    def make(
        name: str = "gated",
        answer: Answer = exactly,
        precision: Precision = Precision.FP32,
        *,
        alone: bool = True,
        change: Callable[[Path], object] = lambda _: None,
        tell: Tell = ignore_events,
        **request: Any,
    ) -> Manifest:
        folder = (tmp_path / "elsewhere" if alone else tmp_path) / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "out", folder)
        change(folder)
        asked = FinishRequest(out=folder, **request)
        host = targets(name, answer, ready=True, precision=precision)
        return finish_pending(asked, tell, targets=host)

    return make


def decision(verdict: Verdict | None) -> Verdict:
    """What the verdict says, without the words around it."""
    assert verdict is not None
    return replace(
        verdict, artifact="", notes=(), seconds=0.0, stored=None, worst=None, histograms=()
    )


CASES = [
    ("gated", exactly, Precision.FP32, State.PASSED),
    ("gated", wrongly, Precision.FP32, State.FAILED),
    ("ranking", exactly, Precision.FP32, State.PASSED),
    ("ranking", with_last_ties, Precision.FP32, State.PASSED),
    ("ranking", with_last_ties, Precision.FP16, State.PASSED),
    ("ranking", wrongly, Precision.FP16, State.FAILED),
    ("argmax", noisily, Precision.FP32, State.PASSED),
    ("argmax", half, Precision.FP16, State.PASSED),
    ("normed", noisily, Precision.FP32, None),
    ("normed", half, Precision.FP16, None),
    ("encoder", plainly, Precision.FP32, State.PASSED),
    ("encoder", plainly, Precision.FP16, State.PASSED),
    ("encoder", wrongly, Precision.FP32, State.FAILED),
]


@pytest.mark.parametrize(("name", "answer", "precision", "state"), CASES)
def test_the_verdict_is_the_same_without_the_source(
    prepare: Callable[..., Manifest],
    finish: Callable[..., Manifest],
    name: str,
    answer: Answer,
    precision: Precision,
    state: State | None,
) -> None:
    step = prepare(name, precision).pending[0].step
    found = []
    for alone in (False, True):
        done = finish(name, answer, precision, alone=alone)
        verdict = done.verdict_of(step) or done.verdict_of(f"rejected/{step}")
        assert not done.pending
        assert not done.failures
        assert verdict is not None
        assert verdict.stored is not None
        assert verdict.stored.source is not alone
        found.append(verdict)
    with_source, without = found
    assert (with_source.state, with_source.reason) == (without.state, without.reason)
    assert state in (None, without.state), without.reason
    assert decision(without) == decision(with_source)
    assert with_source.stored is not None
    assert with_source.stored.differing == ()
    assert without.stored is not None
    assert {*without.stored.skipped} <= {SkippedCheck.DIAGNOSIS, SkippedCheck.SECOND_LOOK}
    assert (SkippedCheck.SECOND_LOOK in without.stored.skipped) <= (not without.passed)


def test_limits_of_the_preparation_hold_elsewhere(
    prepare: Callable[..., Manifest], finish: Callable[..., Manifest]
) -> None:
    prepared = prepare(judging=Judging(min_sqnr=12.0, rtol=0.5))
    assert prepared.pending[0].limits == {"": Limits(min_sqnr=12.0, rtol=0.5)}
    assert finish(answer=wrongly).exit_code == 0
    assert finish(answer=wrongly, judging=Judging(rtol=1e-3)).exit_code == 1
    assert finish(answer=wrongly, judging=Judging(trusts_record=False)).exit_code == 1


def test_what_needs_eager_is_noted(
    prepare: Callable[..., Manifest], finish: Callable[..., Manifest]
) -> None:
    prepare("buckets")
    asked = Judging(search=1.0, seed=3)
    for alone in (True, False):
        verdict = finish("buckets", judging=asked, alone=alone).verdict_of("engine")
        assert verdict is not None
        assert verdict.passed
        assert verdict.stored is not None
        found = {SkippedCheck.SWEEP, SkippedCheck.SEARCH, SkippedCheck.FEEDS} if alone else set()
        assert {*verdict.stored.skipped} == found
        assert bool([note for note in verdict.notes if "stored" in note]) is alone


def test_a_branch_stays_known_elsewhere(
    prepare: Callable[..., Manifest], finish: Callable[..., Manifest]
) -> None:
    prepared = prepare("gated")
    assert prepared.branches
    assert finish("gated").branches == prepared.branches


def test_references_are_removed_with_their_step(
    prepare: Callable[..., Manifest], finish: Callable[..., Manifest], tmp_path: Path
) -> None:
    (pending,) = prepare().pending
    assert len(pending.references) == 2
    assert all((tmp_path / "out" / file.name).is_file() for file in pending.references)
    assert verify_folder(tmp_path / "out").passed
    finish()
    assert not [*(tmp_path / "elsewhere").rglob("references/*")]


def test_references_can_be_left_out(
    prepare: Callable[..., Manifest], finish: Callable[..., Manifest], tmp_path: Path
) -> None:
    (pending,) = prepare(references=False).pending
    assert pending.references == ()
    assert not (tmp_path / "out" / "references").exists()
    with pytest.raises(CheckpointError) as caught:
        finish()
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert {"checkpoint", "no-references"} <= {*caught.value.options}
    assert finish(alone=False).exit_code == 0


def test_a_named_checkpoint_must_be_the_recorded_one(
    prepare: Callable[..., Manifest], finish: Callable[..., Manifest], tmp_path: Path
) -> None:
    prepare()
    other = tmp_path / "other.safetensors"
    with pytest.raises(CheckpointError):
        finish(moved=Moved(checkpoint=other))
    (tmp_path / "source" / "gated.safetensors").rename(other)
    done = finish(moved=Moved(checkpoint=other))
    verdict = done.verdict_of("engine")
    assert verdict is not None
    assert verdict.stored is not None
    assert verdict.stored.source


def test_a_changed_checkpoint_is_not_used(
    prepare: Callable[..., Manifest], finish: Callable[..., Manifest], tmp_path: Path
) -> None:
    prepare()
    with (tmp_path / "source" / "gated.safetensors").open("ab") as stream:
        stream.write(b" ")
    verdict = finish(alone=False).verdict_of("engine")
    assert verdict is not None
    assert verdict.stored is not None
    assert not verdict.stored.source


@pytest.fixture
def labelled(tmp_path: Path) -> Callable[[int], Measuring]:
    """`labelled(seed)`: samples with the labels that `gated` gives, and a gate of 1 %."""

    def make(seed: int = 0) -> Measuring:
        folder = tmp_path / f"labelled-{seed}"
        folder.mkdir()
        generator = np.random.default_rng(seed)
        eager, _ = open_module(build("gated"), *NETS["gated"][1])
        for number in range(40):
            x = generator.standard_normal(8).astype(np.float32)
            label = next(iter(eager.run({"x": x[None]}).values())).argmax()
            np.savez(folder / f"{number}.npz", x=x, label=np.int64(label))
        data = LabelledOptions(source=str(folder))
        return Measuring(data=data, metric="top1", max_drop=0.01)

    return make


def backwards(eager: Eager, feed: Feed) -> Outputs:
    """Right on drawn feeds by lenient limits, with other classes."""
    return {name: -array for name, array in eager.run(feed).items()}


def test_accuracy_is_measured_with_stored_predictions(
    prepare: Callable[..., Manifest],
    finish: Callable[..., Manifest],
    labelled: Callable[..., Measuring],
) -> None:
    data = labelled()
    prepare("gated", measuring=data)
    for alone in (False, True):
        done = finish("gated", measuring=data, alone=alone)
        accuracy = done.artifacts[-1].accuracy
        assert accuracy is not None
        assert (accuracy.samples, accuracy.drop) == (40, 0.0)
    lenient = Judging(min_sqnr=-60.0, rtol=1e3, atol=1e3, min_cosine=-1.0, min_agreement=0.0)
    for alone in (False, True):
        done = finish("gated", backwards, measuring=data, alone=alone, judging=lenient)
        verdict = done.verdict_of("rejected/engine")
        assert verdict is not None
        assert ReasonCode.ACCURACY in {reason.code for reason in verdict.reasons}


def test_accuracy_that_is_not_measured_is_noted(
    prepare: Callable[..., Manifest],
    finish: Callable[..., Manifest],
    labelled: Callable[..., Measuring],
) -> None:
    prepare("gated", measuring=labelled())
    verdict = finish("gated").verdict_of("engine")
    assert verdict is not None
    assert verdict.stored is not None
    assert verdict.stored.skipped == (SkippedCheck.ACCURACY,)


def test_other_labelled_data_needs_the_source(
    prepare: Callable[..., Manifest],
    finish: Callable[..., Manifest],
    labelled: Callable[..., Measuring],
) -> None:
    prepare("gated", measuring=labelled())
    other = labelled(1)
    with pytest.raises(UsageError) as caught:
        finish("gated", measuring=other)
    assert caught.value.option == "data"
    assert finish("gated", measuring=other, alone=False).artifacts[-1].accuracy is not None


def test_unknown_branches_are_refused(
    prepare: Callable[..., Manifest], finish: Callable[..., Manifest]
) -> None:
    prepare("gated")
    with pytest.raises(UsageError) as caught:
        finish("gated", judging=Judging(accept=("other.py:1",)))
    assert caught.value.code is ErrorCode.UNKNOWN_NAME


def corrupt(folder: Path) -> None:
    for path in folder.glob("references/*.npz"):
        path.write_bytes(path.read_bytes()[:-40])


def remove(folder: Path) -> None:
    shutil.rmtree(folder / "references")


@pytest.mark.parametrize("change", [corrupt, remove])
def test_changed_references_fail_the_step(
    prepare: Callable[..., Manifest],
    finish: Callable[..., Manifest],
    change: Callable[[Path], None],
) -> None:
    prepared = prepare()
    done = finish(change=change)
    assert [failure.step for failure in done.failures] == ["engine"]
    assert "\n" not in done.failures[0].message
    assert done.exit_code == 1
    assert done.pending == prepared.pending
    with_source = finish(change=change, alone=False)
    assert with_source.exit_code == 0
    assert with_source.verdicts[-1].stored is None


def test_other_outputs_of_this_host_are_noted(
    prepare: Callable[..., Manifest],
    finish: Callable[..., Manifest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a torch version that computes something else."""
    prepare()
    real = Eager.run_reference

    def other(self: Eager, feed: Feed, *, extreme: bool) -> Outputs:
        found = real(self, feed, extreme=extreme)
        return {name: array * np.float32(1.001) for name, array in found.items()}

    monkeypatch.setattr(Eager, "run_reference", other)
    told: list[Event] = []
    verdict = finish(alone=False, tell=told.append).verdicts[-1]
    assert verdict.stored is not None
    assert {"min", "opt", "max"} <= {*verdict.stored.differing}
    assert any(isinstance(one, Noted) and one.warning for one in told)


def test_a_host_without_a_gpu_keeps_the_references(
    prepare: Callable[..., Manifest], tmp_path: Path
) -> None:
    prepared = prepare()
    for checkpoint in (tmp_path / "source").glob("*"):
        checkpoint.unlink()
    done = finish_pending(
        FinishRequest(out=tmp_path / "out"), targets=targets("gated", exactly, ready=False)
    )
    assert done.pending == prepared.pending
    assert verify_folder(tmp_path / "out").passed


def test_missing_float64_outputs_are_noted(
    source: Callable[[str], Source], finish: Callable[..., Manifest], tmp_path: Path
) -> None:
    """As of an engine that was prepared with TF32, and is finished without."""
    parent, engine = targets("gated", exactly, ready=False)
    order = Order(source=source("gated"), wanted=(Wanted(target="engine"),), out=tmp_path / "out")
    prepared = run(order, targets=(parent, cast("Target", Tf32(**vars(engine)))))
    assert prepared.pending
    verdict = finish("gated").verdict_of("engine")
    assert verdict is not None
    assert verdict.stored is not None
    assert verdict.stored.skipped == (SkippedCheck.FLOAT64,)
    assert all(one.times_floor is None for one in verdict.outputs)


def test_references_of_a_smaller_domain(
    source: Callable[[str], Source], finish: Callable[..., Manifest], tmp_path: Path
) -> None:
    """The parent is right in a part of the domain, and so is the engine judged there."""
    host = targets("gated", exactly, ready=False)
    asked = replace(source("gated"), inputs=("x:float32[batch=1..8,8]",))
    order = Order(source=asked, wanted=(Wanted(target="engine"),), out=tmp_path / "out")
    first = run(replace(order, wanted=(Wanted(target="fake"),)), targets=host)
    (artifact,) = first.artifacts
    assert artifact.domain is not None
    (spec,) = artifact.domain.inputs
    dims = (replace(spec.dims[0], low=2, opt=4, high=5), *spec.dims[1:])
    narrow = replace(artifact, domain=replace(artifact.domain, inputs=(replace(spec, dims=dims),)))
    write_manifest(replace(first, artifacts=(narrow,)), tmp_path / "out")
    again = replace(order, resume=ResumeState(kept=frozenset({"fake"})))
    assert run(again, targets=host).pending[0].references
    for alone in (False, True):
        done = finish("gated", alone=alone)
        verdict = done.verdict_of("engine")
        assert verdict is not None
        assert verdict.stored is not None
        assert verdict.stored.skipped == ()
        assert done.artifacts[-1].domain == narrow.domain
        assert set(verdict.feeds) >= {"min", "max"}


def test_every_skipped_check_has_a_text() -> None:
    assert set(SKIPPED_TEXTS) == set(SkippedCheck)
