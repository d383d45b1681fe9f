"""Small language models in each precision and both formats: the token judge's figures, one table.

`python -m modelc.benchmarks.token_table [NAME ...]` exports models that token_models.py trained
(in OUT/models; those that are missing are trained first, minutes each) by the command line, and
then generates 200 tokens greedily with each file, by a loop of numpy on ONNX Runtime or OpenVINO
that shares nothing with modelc. They are compared with the tokens of transformers' own `generate`:
a batch of two rows, one of them padded on the left, or two texts or sounds for an encoder. Once
plainly, and once where no pair of tokens may come again, as small models soon repeat themselves.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from modelc.benchmarks.token_models import encoder_feed
from modelc.core.verdict import Verdict
from modelc.pipeline.manifest_file import read_manifest

LENGTH, POSITIONS, TOKENS = 256, 384, 200
PROMPT, SHORT = 24, 13  # tokens of the two rows
FORMATS = ("onnx", "openvino")
PRECISIONS = ("fp32", "fp16", "int8-weights", "int4")
USUAL = ("fp32", "int8-weights", "int4")
TEXT, SOUND = "text2text-generation", "automatic-speech-recognition"
TASKS = {"t5": TEXT, "bart": TEXT, "whisper": SOUND}  # of two parts
# an input with the cached positions: two of the four layers of a hybrid have them
GROWING = {"bamba": "past_key_values.1.key", "lfm2": "past_key_values.1.key"}
NAMES = ("llama", "qwen3-moe", "gemma", "bamba", "lfm2", "gpt2", "t5", "bart", "whisper")
STEPS = {"bamba": 200}  # of training, where a step takes seconds
HEAD = ("model", "format", "precision", "verdict", "SQNR dB", "KL", "agreement (near)",
    "perplexity", "greedy tokens", "s")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Job:
    """One part of a model: its name, its task, and the options of its export."""

    model: str
    part: str
    task: str
    options: tuple[str, ...]

    @property
    def title(self) -> str:
        """The part as the table names it."""
        return f"{self.model} {self.part}".strip()


def list_jobs(name: str, text: Path) -> list[Job]:
    """Return the parts of a model."""
    if name not in TASKS:
        past = f"{GROWING.get(name, 'past_key_values.0.key')}[_,_,past=0..256,_]"
        options = ("--text", str(text), "--input", past)
        return [Job(model=name, part="", task="text-generation-merged", options=options)]
    past = "past_key_values.0.decoder.key[_,_,past=0..256,_]"
    merged = ("--text", str(text), "--input", past)
    parts = (
        ("encoder", f"{TASKS[name]}-encoder", ()),
        ("decoder", f"{TASKS[name]}-merged", merged),
    )
    return [Job(model=name, part=part, task=task, options=more) for part, task, more in parts]


def export(job: Job, folder: Path, out: Path, wanted: str) -> float:
    """Export a part by the command line; return the seconds. Rejected artifacts are kept."""
    argv = [
        sys.executable, "-m", "modelc", "export", str(folder), "--model-arg", f"task={job.task}",
        "--to", wanted, "-o", str(out), "-q", "--overwrite", "--sensitivity", "0", *job.options,
    ]  # fmt: skip
    began = time.monotonic()
    made = subprocess.run(argv, capture_output=True, text=True, check=False)
    (out.parent / f"{out.name}.log").write_text(made.stdout + made.stderr, encoding="utf-8")
    return time.monotonic() - began


def open_file(path: Path) -> Any:
    """Return a function that runs a file: arrays by input to arrays by output; and its inputs."""
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        names = [one.name for one in session.get_outputs()]
        shapes = {one.name: one.shape for one in session.get_inputs()}
        return lambda feed: dict(zip(names, session.run(None, feed), strict=True)), shapes
    import openvino

    # as a server would set it for float activations
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    model = openvino.Core().compile_model(str(path), "CPU", exact)
    shapes = {
        one.get_any_name(): [
            dim.get_length() if dim.is_static else None for dim in one.get_partial_shape()
        ]
        for one in model.inputs
    }

    def run(feed: Mapping[str, Any]) -> dict[str, Any]:
        made = model(dict(feed))
        return {name: np.array(made[one]) for one in model.outputs for name in one.get_names()}

    return run, shapes


def choose(logits: Any, rows: Any, *, pairs: bool) -> Any:
    """Return the ids of the largest logits; without `pairs`, of those that make no pair again."""
    scores = logits.copy()
    for index, row in enumerate(rows.tolist() if not pairs else ()):
        again = [after for before, after in pairwise(row) if before == row[-1]]
        scores[index, again] = -np.inf
    return scores.argmax(-1)[:, None]


def generate(decoder: Path, encoder: Path | None, given: Mapping[str, Any], *, pairs: bool) -> Any:
    """Return the greedy tokens of two rows, by numpy; `given` is what `generate` of eager takes."""
    run, shapes = open_file(decoder)
    constant = {}
    if encoder is None:
        ids, mask = given["input_ids"], given["attention_mask"]
    else:
        made = open_file(encoder)[0](given)
        constant = {
            name.replace("present", "past_key_values"): array
            for name, array in made.items() if name.startswith("present")
        }  # fmt: skip
        if "encoder_attention_mask" in shapes:
            constant["encoder_attention_mask"] = given["attention_mask"]
        ids = np.zeros((2, 1), np.int64)
        mask = np.ones_like(ids)
    past = {
        name: np.zeros([2, *(0 if size is None or isinstance(size, str) else size
            for size in shape[1:])], np.float32)
        for name, shape in shapes.items()
        if name.startswith("past_key_values") and ".encoder." not in name
    }  # fmt: skip
    rows = new = ids
    for _ in range(TOKENS):
        own = {"input_ids": new, "attention_mask": mask}
        own["position_ids"] = np.maximum(mask.cumsum(1) - 1, 0)[:, -new.shape[1] :]
        feed = {name: array for name, array in own.items() if name in shapes}
        made = run({**feed, **constant, **past})
        new = choose(made["logits"][:, -1], rows, pairs=pairs)
        rows, mask = np.hstack([rows, new]), np.hstack([mask, np.ones_like(new)])
        past = {name: made[name.replace("past_key_values", "present")] for name in past}
    return rows[:, ids.shape[1] :]


def make_prompt(name: str, ids: Any) -> dict[str, Any]:
    """Return what `generate` takes: two rows of held-out text, or its sound."""
    import torch

    rows = torch.stack([ids[:LENGTH], ids[LENGTH : 2 * LENGTH]])
    if name == "whisper":
        return encoder_feed(name, rows, 1)
    if name in TASKS:
        read = encoder_feed(name, rows[:, :80], 1)["input_ids"]
        mask = torch.ones_like(read)
        read[1, 50:] = mask[1, 50:] = 0  # padded
        return {"input_ids": read, "attention_mask": mask}
    read, mask = rows[:, :PROMPT].clone(), torch.ones(2, PROMPT, dtype=torch.int64)
    read[1, :-SHORT] = mask[1, :-SHORT] = 0
    return {"input_ids": read, "attention_mask": mask}


def generate_eager(name: str, folder: Path, given: Mapping[str, Any], *, pairs: bool) -> Any:
    """Return the greedy tokens of transformers' own `generate`, without the prompt."""
    import torch
    import transformers

    kinds = {
        TEXT: transformers.AutoModelForSeq2SeqLM,
        SOUND: transformers.AutoModelForSpeechSeq2Seq,
    }
    kind = kinds[TASKS[name]] if name in TASKS else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    start = {"decoder_start_token_id": 0} if name in TASKS else {}
    made_of: Any = transformers.GenerationConfig
    settings = made_of(
        max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None,
        no_repeat_ngram_size=0 if pairs else 2, **start,
    )  # fmt: skip
    # of the mixin: Whisper's own adds timestamps
    made = transformers.GenerationMixin.generate(model, **given, generation_config=settings)
    return made[:, 1 if name in TASKS else PROMPT :].numpy()


def compare_greedy(wanted: Any, found: Any) -> str:
    """Say how many tokens are eager's, or which is the first other one, over both rows."""
    if np.array_equal(wanted, found):
        return f"{wanted.size} of {wanted.size} ({len(np.unique(wanted))} ids)"
    first = int(np.argwhere((wanted != found).any(0))[0][0])
    return f"first other: {first}"


def figures_of(verdict: Verdict | None) -> tuple[str, ...]:
    """Return verdict, SQNR, KL, agreement and perplexity as the table has them."""
    if verdict is None:
        return ("no file", "", "", "", "")
    state = "passed" if verdict.passed else "rejected"
    sqnr = "" if verdict.sqnr is None else f"{verdict.sqnr:.1f}"
    if verdict.tokens is None:
        return (state, sqnr, "", "", "")
    way = verdict.tokens.text
    return (
        state, sqnr, f"{way.kl:.2g}", f"{way.agreement:.1%} ({way.near:.1%})",
        f"{verdict.tokens.increase:+.2%}",
    )  # fmt: skip


def rows_of(name: str, jobs: list[Job], place: Path, spent: dict[str, float]) -> Iterator[Any]:
    """Yield the table's rows of a model, which was exported."""
    import torch
    from transformers import AutoTokenizer

    folder = place / "models" / name
    text = (place / "models" / "held-out.txt").read_text(encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = make_prompt(name, torch.tensor(tokenizer(text, verbose=False)["input_ids"]))
    wanted = [generate_eager(name, folder, given, pairs=pairs) for pairs in (True, False)]
    arrays = {key: value.numpy() for key, value in given.items()}
    manifests = {job.part: read_manifest(place / job.title.replace(" ", "-")) for job in jobs}
    for form in FORMATS:
        for precision in PRECISIONS:
            key = form if precision == "fp32" else f"{form}-{precision}"
            paths = []
            for job in jobs:
                manifest = manifests[job.part]
                assert manifest is not None
                found = [one for one in (key, f"rejected/{key}")
                    if manifest.verdict_of(one) is not None]  # fmt: skip
                verdict = manifest.verdict_of(found[0]) if found else None
                place_of = {one.name: one.files[0].name for one in manifest.artifacts}
                if verdict is None and precision not in USUAL:
                    continue
                if found:
                    paths.append(place / job.title.replace(" ", "-") / place_of[found[0]])
                greedy = ""
                if job is jobs[-1] and len(paths) == len(jobs):
                    files = paths[-1], paths[0] if len(paths) > 1 else None
                    greedy = ", ".join(
                        compare_greedy(tokens, generate(*files, arrays, pairs=not index))
                        for index, tokens in enumerate(wanted)
                    )
                yield (job.title, form, precision, *figures_of(verdict), greedy,
                    f"{spent[job.title]:.0f}")  # fmt: skip


def train_missing(name: str, models: Path) -> None:
    """Train a model whose folder is not there."""
    if (models / name).is_dir() and (models / "held-out.txt").exists():
        return
    sizes = (("--length", LENGTH), ("--positions", POSITIONS), ("--steps", STEPS.get(name, 400)))
    more = [str(one) for pair in sizes for one in pair]
    argv = [sys.executable, "-m", "modelc.benchmarks.token_models", str(models), name, *more]
    subprocess.run(argv, check=True)


def main() -> None:
    """Export, generate, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=Path("token-table"))
    parser.add_argument("--again", action="store_true", help="read what is there, export nothing")
    parser.add_argument("--to", help="artifacts, with fp16 too", default=",".join(
        form if precision == "fp32" else f"{form}:{precision}"
        for form in FORMATS for precision in USUAL))  # fmt: skip
    given = parser.parse_args()
    models = given.out / "models"
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}", flush=True)
    for name in given.names or NAMES:
        train_missing(name, models)
        jobs, spent = list_jobs(name, models / "held-out.txt"), {}
        for job in jobs:
            out = given.out / job.title.replace(" ", "-")
            record = out.with_suffix(".seconds")
            if not given.again:
                record.write_text(f"{export(job, models / name, out, given.to):.0f}", "ascii")
            spent[job.title] = float(record.read_text("ascii"))
        for row in rows_of(name, jobs, given.out, spent):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
