"""The loop in docs/checkpoints.md gives the tokens that transformers' own generate gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run

pytestmark = [pytest.mark.slow, pytest.mark.needs("onnx")]
transformers: Any = pytest.importorskip("transformers")

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
PROMPTS = {
    "as in the page": ([[5, 17, 42, 9]], [[1, 1, 1, 1]]),
    "one token": ([[5]], [[1]]),
    "padded on the left": ([[0, 0, 42, 9], [5, 17, 3, 8]], [[0, 0, 1, 1], [1, 1, 1, 1]]),
}
SIZES = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 16, "max_position_embeddings": 128,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
WINDOW = {"sliding_window": 8}  # tokens, fewer than are generated
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
OTHERS: dict[str, tuple[str, str, Mapping[str, object]]] = {
    "GPT2": ("GPT2LMHeadModel", "GPT2Config", {"n_positions": 128}),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 8}),
    "Qwen3Moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {"head_dim": 8, **EXPERTS}),
    "Mistral": ("MistralForCausalLM", "MistralConfig", WINDOW),
    "Gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {"head_dim": 8, **WINDOW}),
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {"head_dim": 8, **WINDOW}),
    "Phi3": ("Phi3ForCausalLM", "Phi3Config", WINDOW),
    "GptOss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, **WINDOW},
    ),
    "Llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {
            "head_dim": 8,
            "num_local_experts": 4,
            "intermediate_size_mlp": 16,
            "attention_chunk_size": 8,
            "num_hidden_layers": 4,
        },
    ),
    "Bloom": ("BloomForCausalLM", "BloomConfig", {"n_layer": 2, "n_head": 2}),
    "Lfm2": ("Lfm2ForCausalLM", "Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "Mamba": ("MambaForCausalLM", "MambaConfig", {"state_size": 4, "time_step_rank": 2}),
    "Bamba": (
        "BambaForCausalLM",
        "BambaConfig",
        {
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 4,
            "mamba_n_groups": 2,
            "mamba_chunk_size": 16,
            "attn_layer_indices": [1],
        },
    ),
    "Qwen3.5": (
        "Qwen3_5ForCausalLM",
        "Qwen3_5TextConfig",
        {
            "head_dim": 8,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
}
NO_ATTENTION = ("Mamba",)  # whose mask covers the new tokens alone


def exported(folder: Path, kind: str, config: str, **changes: object) -> Any:
    """Export a random model's one graph to `folder/decoder`; return the model."""
    import torch

    from modelc.checkpoints.huggingface_folder import silence_transformers

    torch.manual_seed(0)
    settings = getattr(transformers, config)(**{**SIZES, **changes})
    model = getattr(transformers, kind)(settings).eval()
    with torch.no_grad():
        for one, parameter in model.named_parameters():
            if parameter.ndim > 1 and "A_log" not in one:
                parameter.normal_(std=0.3)
    with silence_transformers():
        model.save_pretrained(folder / "saved")
        arguments = {"task": "text-generation-merged"}
        source = Source(checkpoint=folder / "saved", model_args=arguments)
        order = Order(source=source, wanted=(Wanted(target="onnx"),), out=folder / "decoder")
        assert run(order).passed
    return model


_LAST = '"attention_mask": mask[:, -1:],\n'  # as the page says of models without attention


def check_tokens(
    model: Any, ids: list[list[int]], mask: list[list[int]], tokens: int, *, attends: bool = True
) -> None:
    """Run the page's loop in the current folder, and compare its tokens with generate's."""
    import torch

    code = next(one for one in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
                if "past_key_values" in one)  # fmt: skip
    given = code.replace("np.array([[5, 17, 42, 9]])", f"np.array({ids})")
    given = given.replace("np.ones_like(ids)  #", f"np.array({mask})  #")
    given = given if attends else given.replace('"attention_mask": mask,\n', _LAST)
    names: dict[str, Any] = {}
    exec(given.replace("range(20)", f"range({tokens})"), names)
    wanted = model.generate(
        torch.tensor(ids), attention_mask=torch.tensor(mask), max_new_tokens=tokens, do_sample=False
    )
    assert names["ids"].shape == (len(ids), len(ids[0]) + tokens)
    assert np.array_equal(names["ids"], wanted.numpy())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with `decoder`, and the model that it was made from."""
    folder = tmp_path_factory.mktemp("llama")
    return folder, exported(folder, "LlamaForCausalLM", "LlamaConfig")


@pytest.mark.parametrize("case", PROMPTS)
def test_the_loop_of_the_page_generates_the_tokens_of_transformers(
    llama: tuple[Path, Any], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = llama
    monkeypatch.chdir(folder)
    check_tokens(model, *PROMPTS[case], 20)


@pytest.mark.parametrize("name", OTHERS)
def test_other_decoders_generate_beyond_their_window(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, config, changes = OTHERS[name]
    model = exported(tmp_path, kind, config, **changes)
    monkeypatch.chdir(tmp_path)
    ids = np.random.default_rng(0).integers(1, 60, (2, 12))
    mask = np.ones_like(ids)
    mask[0, :5] = 0
    check_tokens(model, ids.tolist(), mask.tolist(), 50, attends=name not in NO_ATTENTION)
