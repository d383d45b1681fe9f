"""Train the small language models that the limits of the token judge were measured with.

`python -m modelc.benchmarks.token_models DIR [NAME ...]` trains each model for 600 steps, about
two minutes on one core, on the licences and documentation of installed packages, with a seed.
DIR/NAME is a folder as `save_pretrained` writes it, with a byte-level BPE tokenizer;
DIR/held-out.txt is text that no model was trained on. Random weights say nothing about 4 bits:
their logits are noise.
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
MODELS: dict[str, tuple[str, str, dict[str, object]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 2}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_positions": LENGTH, "tie_word_embeddings": True}),
    "window": ("MistralForCausalLM", "MistralConfig",
        {"num_key_value_heads": 2, "sliding_window": 16}),
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


def train(name: str, ids: Any, steps: int, seed: int) -> Any:
    """Train one model on a row of token ids; print the loss."""
    import torch
    import transformers

    kind, config, changes = MODELS[name]
    torch.manual_seed(seed)
    settings = getattr(transformers, config)(**{**SIZES, **changes})
    model = getattr(transformers, kind)(settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    draws = torch.Generator().manual_seed(seed)
    began, losses = time.monotonic(), []
    for step in range(steps):
        starts = torch.randint(0, len(ids) - LENGTH, (BATCH,), generator=draws)
        batch = torch.stack([ids[start : start + LENGTH] for start in starts.tolist()])
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 50) * (1 - step / steps)
        loss = model(input_ids=batch, labels=batch).loss
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
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    text, held_out = read_text(given.seed)
    (given.out / "held-out.txt").write_text(held_out, encoding="utf-8")
    tokenizer = train_tokenizer(text[:1_000_000])
    ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
    print(f"{len(text):,} characters, {len(ids):,} tokens", flush=True)
    for name in given.names or MODELS:
        model = train(name, ids, given.steps, given.seed)
        model.save_pretrained(given.out / name)
        tokenizer.save_pretrained(given.out / name)


if __name__ == "__main__":
    main()
