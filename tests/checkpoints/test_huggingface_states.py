"""States of recurrent layers as inputs and outputs of one graph for prompt and step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.eager_model import Eager, open_eager
from modelc.core.contract import Array
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.signature import InputSpec, Signature

from ..reasons import has_code

transformers: Any = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
MAMBA = {"state_size": 4, "time_step_rank": 2}
HEADS = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 2,
         "mamba_chunk_size": 4}  # fmt: skip
DELTA = {
    "head_dim": 16, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
CONV, RECURRENT, PAIR = ["conv_state"], ["conv_state", "recurrent_state"], ["key", "value"]
# Class, its config, and the states of its layers.
MODELS: Mapping[str, tuple[str, Mapping[str, object], Sequence[Sequence[str]]]] = {
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"]}, [CONV, PAIR]),
    "mamba": ("Mamba", MAMBA, [RECURRENT, RECURRENT]),
    "jamba": ("Jamba", {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
                        "mamba_d_state": 4, "mamba_dt_rank": 2}, [RECURRENT, PAIR]),
    "zamba": ("Zamba", {"mamba_d_state": 4, "num_hidden_layers": 3,
                        "layers_block_type": ["mamba", "hybrid", "hybrid"]},
              [RECURRENT, RECURRENT + PAIR, RECURRENT + PAIR]),
    "bamba": ("Bamba", {**HEADS, "attn_layer_indices": [1]}, [RECURRENT, PAIR]),
    "falcon-h1": ("FalconH1", {**HEADS, "mamba_d_ssm": 64}, [RECURRENT + PAIR] * 2),
    "qwen3.5": ("Qwen3_5Text", DELTA, [RECURRENT, PAIR]),
    "nemotron-h": ("NemotronH", {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 4,
                                 "n_groups": 2, "chunk_size": 4, "head_dim": 16,
                                 "time_step_min": 1e-9, "num_hidden_layers": 3,
                                 "layers_block_type": ["mamba", "mlp", "attention"]},
                   [RECURRENT, [], PAIR]),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    from modelc.checkpoints.huggingface_folder import silence_transformers

    with silence_transformers():
        yield


def opened(
    folder: Path, kind: str, changes: Mapping[str, object]
) -> tuple[Any, Eager, dict[str, InputSpec]]:
    """Return a random model, and its one graph's eager reference with the inputs."""
    torch.manual_seed(0)
    settings = getattr(transformers, f"{kind}Config")(**{**SMALL, **changes})
    model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(settings).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "A_log" not in name:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    arguments = {"task": "text-generation-merged"}
    known = load_checkpoint(identify(folder, factory=None, factory_args=arguments, method=None))
    return model, open_eager(known, Signature(inputs=tuple(known.known.values()))), known.known


def empty_states(known: Mapping[str, InputSpec], rows: int = 2) -> dict[str, Array]:
    sizes = {"batch": rows, "past": 0}
    return {
        name: np.zeros([sizes.get(dim.name or "", dim.opt) for dim in spec.dims], np.float32)
        for name, spec in known.items()
        if name.startswith("past_key_values")
    }


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_in_any_parts_has_the_logits_of_the_whole(tmp_path: Path, name: str) -> None:
    kind, changes, states = MODELS[name]
    model, merged, known = opened(tmp_path, kind, changes)
    wanted_names = [f"past_key_values.{n}.{s}" for n, layer in enumerate(states) for s in layer]
    assert sorted(n for n in known if "." in n) == sorted(wanted_names)
    ids = np.random.default_rng(0).integers(1, 60, (2, 11))
    mask = np.ones_like(ids)
    mask[0, :3] = 0  # padded on the left, which a part of one token meets too
    places = np.maximum(mask.cumsum(1) - 1, 0)
    with torch.no_grad():
        given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        wanted = model(**given, use_cache=False).logits.numpy()
    covers_past = known["attention_mask"].dims[1].name == "total"
    past = empty_states(known)
    for start, end in ((0, 2), (2, 3), (3, 9), (9, 10), (10, 11)):
        feed = {"input_ids": ids[:, start:end], "position_ids": places[:, start:end], **past}
        feed["attention_mask"] = mask[:, (0 if covers_past else start) : end]
        before = {one: feed[one].copy() for one in past}
        made = merged.run({one: feed[one] for one in merged.inputs})
        assert all(np.array_equal(feed[one], array) for one, array in before.items())
        apart = np.abs(made["logits"] - wanted[:, start:end])[mask[:, start:end] > 0]
        assert apart.size == 0 or apart.max() < 1e-4
        past = {n.replace("present", "past_key_values"): a for n, a in made.items() if "." in n}
    assert sorted(past) == sorted(wanted_names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more"),
    [("mamba", {}), ("zamba", {}), ("bamba", {}), ("qwen3.5", {}),
     ("bamba", {"time_step_limit": (0.3, float("inf"))})],  # not in transformers' step
)  # fmt: skip
def test_the_exported_scan_is_transformers_own_at_any_sizes(
    tmp_path: Path, name: str, more: Mapping[str, object]
) -> None:
    kind, changes, _ = MODELS[name]
    _, merged, known = opened(tmp_path, kind, {**changes, **more})
    rng = np.random.default_rng(0)

    def feed(batch: int, sequence: int, past: int) -> tuple[torch.Tensor, ...]:
        sizes = {"batch": batch, "sequence": sequence, "past": past, "total": past + sequence}
        shapes = {n: [sizes.get(d.name or "", d.opt) for d in s.dims] for n, s in known.items()}
        drawn: dict[str, Array] = {
            n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()
        }
        drawn["input_ids"] = rng.integers(0, 60, shapes["input_ids"])
        drawn["attention_mask"] = np.ones(shapes["attention_mask"], np.int64)
        if "position_ids" in drawn:
            drawn["position_ids"] = np.tile(np.arange(past, past + sequence), (batch, 1))
        return tuple(torch.from_numpy(drawn[n]) for n in known)

    dynamic = torch.export.Dim.DYNAMIC
    shapes = tuple({i: dynamic for i, d in enumerate(s.dims) if d.dynamic} for s in known.values())
    with torch.no_grad():
        program = torch.export.export(merged.flat, feed(2, 6, 5), dynamic_shapes=(shapes,))
        made: Any = program.module(check_guards=False)
        made._forward_pre_hooks.clear()  # of the ranges, which torch begins with 2
        made._forward_pre_hooks_with_kwargs.clear()
        for sizes in ((2, 1, 3), (1, 1, 0), (1, 9, 0), (3, 17, 2)):
            tensors = feed(*sizes)
            wanted = merged.flat(*(one.clone() for one in tensors))
            pairs = zip(wanted, made(*tensors), strict=True)
            assert max((one - other).abs().max().item() for one, other in pairs) < 1e-3


def test_states_outside_of_the_cache_are_rejected_with_their_layer(tmp_path: Path) -> None:
    changes = {
        "lru_width": 32,
        "attention_window_size": 16,
        "block_types": ["recurrent", "attention"],
    }
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="layer 0")
    ) as caught:
        opened(tmp_path, "RecurrentGemma", {**changes, "conv1d_width": 4, "head_dim": 16})
    assert "task=text-generation" in caught.value.hint


def test_a_model_that_keeps_nothing_between_tokens_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leaves the cache empty") as caught:
        opened(tmp_path, "Rwkv", {"context_length": 32})
    assert "task=text-generation" in caught.value.hint
