"""`--search`: finds what no drawn feed shows, and passes good conversions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from modelc.core.contract import Feed, Outputs, Target
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import Precision
from modelc.core.manifest import Manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file
from modelc.pipeline.validate_folder import validate_folder
from modelc.validators.feed_values import make_generator

from ..reasons import has_code
from .conftest import eagerly

Fakes = Callable[..., Target]
PATTERN = np.where(np.arange(16) % 3, 1.0, -1.0)
INPUT = "x:float32[batch=1..4,16]{-3..3}"


def hidden(feed: Feed) -> Outputs:
    """Gate, off by an error that grows a thousandfold toward one direction of the input.

    A drawn row lies 0 +- 7 along it, the ends of the range +-16, the furthest that there is 48.
    """
    along = float((feed["x"] @ PATTERN).max())
    return {
        name: array * np.float32(1 + 1e-8 * np.exp(0.35 * along))
        for name, array in eagerly(feed).items()
    }


@pytest.fixture
def made(fake: Fakes, order: Callable[..., Order], gate_source: Source) -> Callable[..., Manifest]:
    """`made(hidden, search=5.0)`: the manifest of a target that answers so."""

    def make(answer: Callable[[Feed], Outputs], *, search: float | None) -> Manifest:
        source = Source(checkpoint=gate_source.checkpoint, model=gate_source.model, inputs=(INPUT,))
        asked = order("fake", source=source, judging=Judging(search=search))
        return run(asked, targets=(fake(answer=answer),))

    return make


def test_a_hidden_fault_passes_without_a_search(made: Callable[..., Manifest]) -> None:
    manifest = made(hidden, search=None)
    assert manifest.passed, manifest.verdicts[0].reason


@pytest.mark.slow
def test_a_hidden_fault_is_found_by_a_search_and_rejected(
    made: Callable[..., Manifest], tmp_path: Path
) -> None:
    manifest = made(hidden, search=60.0)
    (verdict,) = manifest.verdicts
    assert manifest.exit_code == 1
    assert manifest.artifacts[0].rejected
    assert "feed search-" in verdict.reason
    worst = verdict.worst
    assert worst is not None
    assert worst.feed.startswith("search-")
    assert worst.searched > 0
    assert (worst.before or 0.0) > 0 > (worst.headroom or 0.0)
    with np.load(tmp_path / "out/worst/rejected/fake.npz") as feed:
        assert np.abs(feed["x"]).max() <= 3  # as declared
        assert feed["x"].dtype == np.float32


def roundoff(feed: Feed) -> Outputs:
    """Gate with another roundoff of two units each time, as another order of sums has."""
    outputs = {}
    for name, array in eagerly(feed).items():
        off = make_generator(feed["x"].tobytes()).uniform(-2e-7, 2e-7, array.shape)
        outputs[name] = (array * (1 + off)).astype(np.float32)
    return outputs


@pytest.mark.slow
def test_a_good_artifact_is_searched_and_passes(made: Callable[..., Manifest]) -> None:
    manifest = made(roundoff, search=4.0)
    (verdict,) = manifest.verdicts
    assert verdict.passed, verdict.reason
    assert verdict.worst is not None
    assert verdict.worst.searched > 20
    assert any(f" {verdict.worst.searched} feeds" in note for note in verdict.notes)


def test_a_rejected_artifact_is_not_searched(made: Callable[..., Manifest]) -> None:
    manifest = made(lambda feed: {n: a * 2 for n, a in eagerly(feed).items()}, search=60.0)
    worst = manifest.verdicts[0].worst
    assert worst is not None
    assert worst.searched == 0


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_the_found_feed_of_a_real_artifact_is_judged_again(
    order: Callable[..., Order], tmp_path: Path
) -> None:
    made = run(order("onnx", judging=Judging(search=2.0)))
    before = made.verdicts[0].worst
    assert made.passed
    assert before is not None
    again = validate_folder(tmp_path / "out")
    assert again.passed
    now = again.verdicts[0].worst
    assert now is not None
    assert now.feed == before.feed
    assert now.headroom == before.headroom


@pytest.mark.needs("onnx")
def test_an_int8_artifact_with_held_out_samples_is_not_searched(
    int8_digits: Path,
) -> None:
    verdict = validate_file(int8_digits / "model.int8.onnx", judging=Judging(search=60.0))
    assert verdict.passed
    assert any(note.startswith("not searched: ") for note in verdict.notes)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_search_time_is_rejected(seconds: float) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, option="search")):
        Judging(search=seconds)


WANTED = tuple(
    Wanted(target=target, precision=precision)
    for target in ("onnx", "openvino")
    for precision in (Precision.FP32, Precision.FP16)
)


@pytest.mark.slow
@pytest.mark.needs("onnx")
@pytest.mark.needs("openvino")
@pytest.mark.parametrize("name", ["gate", "nested", "lstm", "bert", "digits"])
def test_a_good_model_passes_in_every_format(
    name: str, sources: Callable[[str], Source], tmp_path: Path
) -> None:
    manifest = run(Order(source=sources(name), wanted=WANTED, out=tmp_path / "out"))
    assert manifest.passed, [(v.artifact, v.reason) for v in manifest.verdicts]
    assert not [record for record in manifest.feeds.drawn if record.skipped]
    kinds = {record.kind for record in manifest.feeds.drawn}
    assert {"shape", "batch", "value"} <= kinds
    for verdict in manifest.verdicts:
        assert set(verdict.feeds) == {record.name for record in manifest.feeds.drawn}
        assert verdict.worst is not None


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_a_search_ignores_feeds_on_which_eager_is_unstable(tmp_path: Path) -> None:
    """A constant sound is normed by nothing but roundoff: eager's noise there is a lottery."""
    from modelc.tests.nets import zoo

    manifest = run(
        Order(
            source=zoo.checkpoint("wav2vec2", tmp_path, seed=2),
            wanted=(Wanted(target="onnx"),),
            out=tmp_path / "out",
            judging=Judging(seed=2, search=10.0),
        )
    )
    assert manifest.passed, [verdict.reason for verdict in manifest.verdicts]
