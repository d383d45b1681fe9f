"""Train the small language models that the limits of the token judge were measured with.

`python -m modelc.benchmarks.token_models DIR [NAME ...]` trains each model for 600 steps, about
two minutes on one core, on the licences and documentation of installed packages, with a seed.
DIR/NAME is a folder as `save_pretrained` writes it, with a byte-level BPE tokenizer;
DIR/held-out.txt is text that no model was trained on. Random weights say nothing about 4 bits:
their logits are noise. Encoder-decoders learn to write the text again: T5 and BART from ids of
which a fifth were exchanged, Whisper from a sound of two frames for each token.
"""

from __future__ import annotations

import argparse
import random
import sysconfig
import time
from pathlib import Path
from typing import Any

VOCABULARY, LENGTH, BATCH = 512, 128, 8
SUFFIXES = (".md", ".rst", ".txt", ".html")
MAX_FILE = 60_000  # characters of one file, so that no licence is most of the text
MAX_TEXT, HELD_OUT = 3_000_000, 40_000  # characters
RATE = 4e-3  # the largest step size
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 256, "max_position_embeddings": LENGTH, "bos_token_id": 0,
    "eos_token_id": None, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
TIED: dict[str, object] = {"tie_word_embeddings": True}
PAIRS: dict[str, object] = {"num_key_value_heads": 2}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 32}
SCAN = {
    "attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16,
    "mamba_n_groups": 1, "mamba_chunk_size": 64,
}  # fmt: skip
LAYERS = ["conv", "full_attention"] * 2
START: dict[str, object] = {"decoder_start_token_id": 0, "forced_eos_token_id": None}
RANGES = {**START, **TIED, "num_layers": 3, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_heads": 4}
SPEECH = {
    **START, "d_model": 128, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256,
}  # fmt: skip
MELS = 16  # of Whisper
FRAMES = 2  # of a token's sound
EXCHANGED = 0.2  # share of the ids that T5 and BART read
MODELS: dict[str, tuple[str, str, dict[str, object]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", PAIRS),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", TIED),
    "window": ("MistralForCausalLM", "MistralConfig", {**PAIRS, "sliding_window": 16}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**PAIRS, **EXPERTS}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {
        **PAIRS, "num_local_experts": 8, "intermediate_size": 64}),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", {
        **PAIRS, "num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {
        **PAIRS, **TIED, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64}),
    "bamba": ("BambaForCausalLM", "BambaConfig", {**PAIRS, **SCAN}),
    "lfm2": ("Lfm2ForCausalLM", "Lfm2Config", {**PAIRS, "layer_types": LAYERS}),
    "t5": ("T5ForConditionalGeneration", "T5Config", RANGES),
    "bart": ("BartForConditionalGeneration", "BartConfig", {**SPEECH, **TIED}),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", {
        **SPEECH, **TIED, "num_mel_bins": MELS, "suppress_tokens": None,
        "begin_suppress_tokens": None}),
}  # fmt: skip


def read_text(seed: int) -> tuple[str, str]:
    """Return the text to train on and the held-out text, from files of installed packages."""
    root = Path(sysconfig.get_paths()["purelib"])
    files = sorted(
        one for one in root.rglob("*")
        if one.is_file() and "data" not in one.parts
        and (one.suffix in SUFFIXES or one.name.startswith(("LICENSE", "NOTICE", "METADATA")))
    )  # fmt: skip
    texts = dict.fromkeys(one.read_text("utf-8", errors="replace")[:MAX_FILE] for one in files)
    prose = [one for one in texts if sum(map(str.isalpha, one)) > len(one) * 0.6]  # no tables
    random.Random(seed).shuffle(prose)
    whole = "\n\n".join(prose)
    return whole[HELD_OUT : HELD_OUT + MAX_TEXT], whole[:HELD_OUT]


def train_tokenizer(text: str) -> Any:
    """Train a byte-level BPE tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        [text],
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["<s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    made_of: Any = PreTrainedTokenizerFast
    return made_of(tokenizer_object=made, bos_token="<s>")


def build(name: str, length: int, positions: int, seed: int) -> Any:
    """Build a model, untrained; `length` is that of a sound's tokens, `positions` of its own."""
    import torch
    import transformers

    kind, config, changes = MODELS[name]
    places = dict.fromkeys(("max_position_embeddings", "n_positions"), positions)
    if name == "whisper":
        places |= {"max_source_positions": length, "max_target_positions": positions}
    torch.manual_seed(seed)
    return getattr(transformers, kind)(
        getattr(transformers, config)(**{**SIZES, **places, **changes})
    )


def encoder_feed(name: str, ids: Any, seed: int) -> dict[str, Any]:
    """Return what the encoder reads for rows of ids, [rows, tokens]; empty without an encoder."""
    import torch

    draws = torch.Generator().manual_seed(seed)
    if name == "whisper":
        sounds = torch.randn(VOCABULARY, FRAMES, MELS, generator=torch.Generator().manual_seed(0))
        played = sounds[ids].flatten(1, 2).mT
        return {"input_features": played + 0.1 * torch.randn(played.shape, generator=draws)}
    if name in ("t5", "bart"):
        other = torch.randint(1, VOCABULARY, ids.shape, generator=draws)
        exchanged = torch.rand(ids.shape, generator=draws) < EXCHANGED
        return {"input_ids": torch.where(exchanged, other, ids)}
    return {}


def train(name: str, ids: Any, given: argparse.Namespace) -> Any:
    """Train one model on a row of token ids; print the loss."""
    import torch

    length, steps, seed = given.length, given.steps, given.seed
    model = build(name, length, given.positions or length, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    draws = torch.Generator().manual_seed(seed)
    rows = max(BATCH * LENGTH // length, 1)
    began, losses = time.monotonic(), []
    for step in range(steps):
        starts = torch.randint(0, len(ids) - length, (rows,), generator=draws)
        batch = torch.stack([ids[start : start + length] for start in starts.tolist()])
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 50) * (1 - step / steps)
        read = encoder_feed(name, batch, step) or {"input_ids": batch}
        loss = model(**read, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    spent, last = time.monotonic() - began, losses[-20:]
    print(f"{name}: {steps} steps in {spent:.0f} s, loss {sum(last) / len(last):.2f}", flush=True)
    return model.eval()


def main() -> None:
    """Train the models that were asked for; all by default."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a row")
    parser.add_argument("--positions", type=int, help="of the model; default: as many")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    text, held_out = read_text(given.seed)
    (given.out / "held-out.txt").write_text(held_out, encoding="utf-8")
    tokenizer = train_tokenizer(text[:1_000_000])
    ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
    print(f"{len(text):,} characters, {len(ids):,} tokens", flush=True)
    for name in given.names or MODELS:
        model = train(name, ids, given)
        model.save_pretrained(given.out / name)
        tokenizer.save_pretrained(given.out / name)


if __name__ == "__main__":
    main()
