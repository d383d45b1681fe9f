"""Encoder and decoder as files: transformers' own tokens, and faults that are rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.core.contract import Array
from modelc.core.kinds import ReasonCode
from modelc.core.verdict import Verdict
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file

pytestmark = [pytest.mark.slow, pytest.mark.needs("onnx")]
transformers: Any = pytest.importorskip("transformers")

TOKENS = 60
IDS = {"vocab_size": 997, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
       "decoder_start_token_id": 3, "forced_eos_token_id": None}  # fmt: skip
BART = {
    **IDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
T5 = {**IDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
      "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}  # fmt: skip
AUDIO = {"num_mel_bins": 8, "max_source_positions": 50, "max_target_positions": 128,
         "suppress_tokens": None, "begin_suppress_tokens": None}  # fmt: skip
# Task, sizes, seed and scale: drawn such that tokens vary.
FAMILIES: dict[str, tuple[str, dict[str, Any], int, float]] = {
    "T5": ("text2text-generation", T5, 6, 0.25),
    "Bart": ("text2text-generation", BART, 2, 0.2),
    "Whisper": ("automatic-speech-recognition", {**BART, **AUDIO}, 0, 0.5),
}
WIDE = {"embed_positions": 1.5, "lm_head": 1.0, "relative_attention_bias": 3.0}


def saved(folder: Path, name: str) -> Any:
    """Save a random model of a family, and return it."""
    import torch

    _, sizes, seed, scale = FAMILIES[name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=next((WIDE[one] for one in WIDE if one in path), scale))
    model.save_pretrained(folder)
    return model.eval()


def source_of(folder: Path, name: str, part: str) -> Source:
    return Source(checkpoint=folder, model_args={"task": f"{FAMILIES[name][0]}-{part}"})


def exported(folder: Path, name: str, part: str) -> Path:
    source = source_of(folder / "saved", name, part)
    order = Order(source=source, wanted=(Wanted(target="onnx"),), out=folder / part)
    assert run(order).passed
    return folder / part / "model.onnx"


def loop_of(encoder: Path, decoder: Path, feed: dict[str, Array], tokens: int) -> Array:
    """Generate greedily, by numpy and onnxruntime alone."""
    import onnxruntime as ort

    def run_file(session: Any, given: dict[str, Array]) -> dict[str, Array]:
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, given), strict=True))

    session = ort.InferenceSession(encoder)
    cross = {n.replace("present", "past_key_values"): a for n, a in run_file(session, feed).items()}
    del cross["last_hidden_state"]
    if "attention_mask" in feed:
        cross["encoder_attention_mask"] = feed["attention_mask"]
    session = ort.InferenceSession(decoder)
    past: dict[str, Array] = {
        one.name: np.zeros((2, one.shape[1], 0, one.shape[3]), np.float32)
        for one in session.get_inputs() if ".decoder." in one.name
    }  # fmt: skip
    made = token = np.full((2, 1), 3)
    for _ in range(tokens):
        outputs = run_file(session, {"input_ids": token, **cross, **past})
        token = outputs.pop("logits")[:, -1:].argmax(-1)
        made = np.hstack([made, token])
        past = {n.replace("present", "past_key_values"): a for n, a in outputs.items()}
    return made


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    from modelc.checkpoints.huggingface_folder import silence_transformers

    with silence_transformers():
        yield


@pytest.mark.parametrize("name", FAMILIES)
def test_both_files_generate_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    import torch

    model = saved(tmp_path / "saved", name)
    encoder, decoder = (exported(tmp_path, name, part) for part in ("encoder", "merged"))
    random = np.random.default_rng(3)
    feed: dict[str, Array] = {"input_features": random.standard_normal((2, 8, 100), np.float32)}
    if name != "Whisper":
        ids, mask = random.integers(4, 997, (2, 17)), np.ones((2, 17), np.int64)
        ids[1, 11:] = mask[1, 11:] = 0  # padded
        feed = {"input_ids": ids, "attention_mask": mask}
    # Of the mixin: Whisper's own generate adds timestamps.
    wanted = transformers.GenerationMixin.generate(
        model, **{n: torch.from_numpy(a) for n, a in feed.items()},
        generation_config=transformers.GenerationConfig(
            max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, decoder_start_token_id=3
        ),
    )  # fmt: skip
    assert np.array_equal(loop_of(encoder, decoder, feed, TOKENS), wanted.numpy())
    assert min(len(set(row)) for row in wanted.tolist()) > TOKENS // 10


def replace_input(graph: Any, old: str, new: str) -> None:
    """Let all nodes read another value."""
    for node in graph.node:
        for index, value in enumerate(node.input):
            if value == old and node.op_type != "Shape":
                node.input[index] = new


def exchange_caches(graph: Any) -> None:
    replace_input(graph, "past_key_values.1.encoder.key", "past_key_values.0.encoder.key")


def freeze_positions(graph: Any) -> None:
    """Let learned positions begin at 32 after any past."""
    from onnx import helper, numpy_helper

    table = next(one.input[1] for one in graph.node if "embed_positions" in "".join(one.input))
    at, node = next((i, one) for i, one in enumerate(graph.node) if one.op_type == "Range")
    graph.initializer.append(numpy_helper.from_array(np.array(32 + 2), "start"))
    graph.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    nodes = [
        helper.make_node("Add", [node.output[0], "start"], ["frozen"]),
        helper.make_node("Unsqueeze", ["frozen", "first"], ["frozen_row"]),
    ]
    for offset, one in enumerate(nodes, 1):
        graph.node.insert(at + offset, one)
    replace_input(graph, table, "frozen_row")


def swap_heads(graph: Any) -> None:
    from onnx import helper, numpy_helper

    name = "past_key_values.1.decoder.value"
    graph.initializer.append(numpy_helper.from_array(np.array([1, 0, 2, 3]), "order"))
    replace_input(graph, name, "swapped")
    graph.node.insert(0, helper.make_node("Gather", [name, "order"], ["swapped"], axis=1))


def roll(graph: Any, name: str, axis: int) -> None:
    """Let all nodes read the input shifted by one along an axis."""
    from onnx import helper, numpy_helper

    replace_input(graph, name, "rolled")
    for label, value in (("zero", 0), ("one", 1), ("end", 2**62), ("axis", axis)):
        graph.initializer.append(numpy_helper.from_array(np.array([value]), f"roll_{label}"))
    nodes = [
        helper.make_node("Slice", [name, "roll_one", "roll_end", "roll_axis"], ["tail"]),
        helper.make_node("Slice", [name, "roll_zero", "roll_one", "roll_axis"], ["head"]),
        helper.make_node("Concat", ["tail", "head"], ["rolled"], axis=axis),
    ]
    for index, node in enumerate(nodes):
        graph.node.insert(index, node)


NO_NUMBERS = {ReasonCode.NOT_RUN, ReasonCode.NOT_MEASURED, ReasonCode.FEED_REFUSED}
FAULTS: dict[str, Callable[[Any], None]] = {
    "the cross cache of another layer": exchange_caches,
    "frozen positions": freeze_positions,
    "swapped heads": swap_heads,
    "a shifted mask": lambda graph: roll(graph, "encoder_attention_mask", 1),
    "a cache off by one": lambda graph: roll(graph, "past_key_values.1.decoder.key", 2),
}


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `saved`, and its decoder in `merged`."""
    folder = tmp_path_factory.mktemp("bart")
    saved(folder / "saved", "Bart")
    exported(folder, "Bart", "merged")
    return folder


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_decoder_is_rejected(name: str, bart: Path, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(bart / "merged" / "model.onnx")
    FAULTS[name](model.graph)
    onnx.checker.check_model(model)
    onnx.save(model, tmp_path / "edited.onnx")
    verdict: Verdict = validate_file(
        tmp_path / "edited.onnx", source_of(bart / "saved", "Bart", "merged")
    )
    assert not verdict.passed
    assert {one.code for one in verdict.reasons}.isdisjoint(NO_NUMBERS)
