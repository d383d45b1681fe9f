"""An exported decoder is judged on tokens: in the export, again, and with a fault in its loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.benchmarks.token_faults import freeze_positions, shift_mask
from modelc.core.generation import TokenReport, WayKind
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.manifest import Manifest
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import rejudge_folder, validate_file
from modelc.pipeline.validate_folder import validate_folder

from .test_generation import SIZES

pytestmark = [pytest.mark.slow, pytest.mark.needs("onnx")]
transformers: Any = pytest.importorskip("transformers")

WIDE = {"hidden_size": 64, "intermediate_size": 64}  # integer weights have 64 rows or more
WANTED = (Wanted(target="onnx"), Wanted(target="onnx", precision=Precision.INT8_WEIGHTS))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a random Llama's artifacts in `out` and text in `ids.npy`, and the model."""
    import torch

    from modelc.checkpoints.huggingface_folder import silence_transformers

    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | WIDE)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.1)
    np.save(folder / "ids.npy", np.random.default_rng(0).integers(1, 60, (8, 64)))
    with silence_transformers():
        model.save_pretrained(folder / "saved")
        source = Source(checkpoint=folder / "saved", model_args={"task": "text-generation-merged"})
        judging = Judging(sensitivity=0, text=folder / "ids.npy")
        order = Order(source=source, wanted=WANTED, out=folder / "out", judging=judging)
        made = run(order)
        assert made.passed, [*made.failures, *(one.reason for one in made.verdicts)]
    return folder, model


def manifest_of(folder: Path) -> Manifest:
    manifest = read_manifest(folder / "out")
    assert manifest is not None
    return manifest


def reports_of(manifest: Manifest) -> dict[str, TokenReport]:
    return {one.artifact: one.tokens for one in manifest.verdicts if one.tokens is not None}


def test_the_record_has_the_ids_and_a_report_for_each_artifact(exported: tuple[Path, Any]) -> None:
    manifest = manifest_of(exported[0])
    plan, reports = manifest.feeds.tokens, reports_of(manifest)
    assert plan is not None
    assert plan.source == "../ids.npy"
    assert len(plan.sequences) == 8
    assert set(reports) == {"onnx", "onnx-int8-weights"}
    assert [way.kind for way in reports["onnx"].ways] == list(WayKind)
    assert all(way.differing == 0 and way.kl < 1e-9 for way in reports["onnx"].ways)
    assert 1e-9 < reports["onnx-int8-weights"].text.kl < 0.01


def test_perplexity_and_kl_are_those_of_plain_torch_and_onnxruntime(
    exported: tuple[Path, Any],
) -> None:
    import onnxruntime
    import torch

    folder, model = exported
    ids = np.load(folder / "ids.npy")
    with torch.no_grad():
        logs = torch.log_softmax(model(torch.from_numpy(ids)).logits.double(), -1)
    session = onnxruntime.InferenceSession(folder / "out" / "model.int8-weights.onnx")
    feed = {
        "input_ids": ids, "attention_mask": np.ones_like(ids),
        "position_ids": np.tile(np.arange(64), (8, 1)),
    }  # fmt: skip
    for one in session.get_inputs()[3:]:
        feed[one.name] = np.zeros((8, one.shape[1], 0, one.shape[3]), np.float32)
    others = torch.log_softmax(torch.from_numpy(session.run(["logits"], feed)[0]).double(), -1)
    report = reports_of(manifest_of(folder))["onnx-int8-weights"]
    assert report.text.kl == pytest.approx(float((logs.exp() * (logs - others)).sum(-1).mean()))
    nexts = torch.from_numpy(ids)[:, 1:, None]
    for found, expected in ((report.eager_perplexity, logs), (report.perplexity, others)):
        likely = expected[:, :-1].gather(-1, nexts).mean()
        assert found == pytest.approx(float((-likely).exp()), rel=1e-6)


def test_the_greedy_tokens_are_those_of_generate(exported: tuple[Path, Any]) -> None:
    import torch

    from modelc.core.events import ignore_events
    from modelc.pipeline.recorded_run import Moved
    from modelc.pipeline.reopen import find_recorded_run
    from modelc.pipeline.run_progress import Progress, temporary_logs
    from modelc.pipeline.token_reference import TokenReference, find_token_reference

    folder, model = exported
    with temporary_logs() as logs:
        progress = Progress(tell=ignore_events, logs=logs)
        opened = find_recorded_run(manifest_of(folder), folder / "out", Moved(), None)
        eager = opened.open_eager(opened.read_checkpoint(progress), progress)
        reference = find_token_reference(eager, Judging(), progress)
    assert isinstance(reference, TokenReference)
    rows = reference.cases[WayKind.PADDED].rows
    assert not rows.mask.all()
    start = reference.prompt
    wanted = model.generate(
        torch.from_numpy(rows.ids[:, :start]), max_new_tokens=rows.length - start, do_sample=False,
        attention_mask=torch.from_numpy(rows.mask[:, :start]),
    )  # fmt: skip
    np.testing.assert_array_equal(rows.ids, wanted.numpy())


def test_validate_repeats_the_report_on_the_recorded_ids(exported: tuple[Path, Any]) -> None:
    folder = exported[0]
    before = reports_of(manifest_of(folder))
    (folder / "ids.npy").rename(folder / "moved.npy")  # the ids are in the record
    again = reports_of(validate_folder(folder / "out", judging=Judging(sensitivity=0)))
    assert again == before


def test_another_limit_is_applied_to_the_recorded_measures(exported: tuple[Path, Any]) -> None:
    folder = exported[0]
    manifest = rejudge_folder(folder / "out", Judging(max_kl=1e-9))
    verdict = manifest.verdict_of("rejected/onnx-int8-weights")
    assert verdict is not None
    assert {one.code for one in verdict.reasons} >= {ReasonCode.TOKENS_DIFFER}
    assert rejudge_folder(folder / "out", Judging(max_kl=1e-2)).passed


@pytest.mark.parametrize("plant", [freeze_positions, shift_mask])
def test_a_fault_in_the_loop_is_rejected(exported: tuple[Path, Any], plant: Any) -> None:
    import onnx

    folder = exported[0]
    model = onnx.load(folder / "out" / "model.int8-weights.onnx")
    plant(model)
    onnx.save(model, folder / "faulty.onnx")
    source = Source(checkpoint=folder / "saved", model_args={"task": "text-generation-merged"})
    verdict = validate_file(
        folder / "faulty.onnx", source, judging=Judging(sensitivity=0),
        precision=Precision.INT8_WEIGHTS,
    )  # fmt: skip
    assert not verdict.passed
    assert ReasonCode.OUTPUT_DIFFERS in {one.code for one in verdict.reasons}
    if verdict.tokens is not None:  # not measured after a fault of form
        assert ReasonCode.LOOP_DIFFERS in {one.code for one in verdict.reasons}


def test_tokens_are_judged_beside_a_file_with_outputs_in_another_order(
    exported: tuple[Path, Any], tmp_path: Path
) -> None:
    import onnx

    file = exported[0] / "out" / "model.onnx"
    model = onnx.load(file)
    turned = [*model.graph.output][::-1]
    del model.graph.output[:]
    model.graph.output.extend(turned)
    onnx.save(model, tmp_path / "turned.onnx")
    source = Source(checkpoint=file)

    verdict = validate_file(tmp_path / "turned.onnx", source, judging=Judging(sensitivity=0))

    assert verdict.passed, verdict.reason
    assert verdict.tokens is not None
    assert {way.kind for way in verdict.tokens.ways} >= {WayKind.TEXT, WayKind.PADDED}
