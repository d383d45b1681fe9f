"""Small language models in each precision and both formats: the token judge's figures, one table.

`python -m modelc.benchmarks.token_table --out DIR` exports models that token_models.py trained
(in DIR/models; those that are missing are trained first, minutes each) by the command line, and
then generates 200 tokens greedily with each file, by a loop of numpy on ONNX Runtime or OpenVINO
that shares nothing with modelc. They are compared with the tokens of transformers' own `generate`:
a batch of two rows, one of them padded on the left, or two texts or sounds for an encoder. Once
plainly, and once where no pair of tokens may come again, as small models soon repeat themselves.

The rows of a model are kept in DIR/NAME.json with the commit: a run that was stopped goes on with
the next model, and another commit starts again.
"""

from __future__ import annotations

import argparse
import json
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
NAMES = ("llama", "gpt2", "gemma2", "qwen3-moe", "mixtral", "olmoe", "bamba", "lfm2", "t5", "bart",
    "whisper")  # fmt: skip
HALVES = ("qwen3-moe", "mixtral", "olmoe", "t5", "bart")  # in FP16 too
STEPS = {"bamba": 200}  # of training, where a step takes seconds
HEAD = ("model", "format", "precision", "verdict", "SQNR dB", "KL", "agreement (near)",
    "perplexity", "greedy tokens")  # fmt: skip


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

    @property
    def folder(self) -> str:
        """The folder of its artifacts."""
        return self.title.replace(" ", "-")


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


def name_artifact(form: str, precision: str, between: str) -> str:
    """Return what the command line calls an artifact; fp32 has no name."""
    return form if precision == "fp32" else f"{form}{between}{precision}"


def export(job: Job, folder: Path, out: Path) -> None:
    """Export a part by the command line. Rejected artifacts are kept."""
    precisions = PRECISIONS if job.model in HALVES else USUAL
    wanted = ",".join(name_artifact(form, one, ":") for form in FORMATS for one in precisions)
    argv = [
        sys.executable, "-m", "modelc", "export", str(folder), "--model-arg", f"task={job.task}",
        "--to", wanted, "-o", str(out), "-q", "--overwrite", "--sensitivity", "0", *job.options,
    ]  # fmt: skip
    made = subprocess.run(argv, capture_output=True, text=True, check=False)
    (out.parent / f"{out.name}.log").write_text(made.stdout + made.stderr, encoding="utf-8")


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


def rows_of(name: str, jobs: list[Job], place: Path) -> Iterator[tuple[str, ...]]:
    """Yield the table's rows of a model, which was exported."""
    import torch
    from transformers import AutoTokenizer

    folder = place / "models" / name
    text = (place / "models" / "held-out.txt").read_text(encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = make_prompt(name, torch.tensor(tokenizer(text, verbose=False)["input_ids"]))
    wanted = [generate_eager(name, folder, given, pairs=pairs) for pairs in (True, False)]
    arrays = {key: value.numpy() for key, value in given.items()}
    for form in FORMATS:
        for precision in PRECISIONS if name in HALVES else USUAL:
            files = []
            for job in jobs:
                verdict, path = find_artifact(place / job.folder, form, precision)
                files += [path] if path else []
                greedy = ""
                if job is jobs[-1] and len(files) == len(jobs):
                    encoder = files[0] if len(files) > 1 else None
                    greedy = ", ".join(
                        compare_greedy(
                            tokens, generate(files[-1], encoder, arrays, pairs=not index)
                        )
                        for index, tokens in enumerate(wanted)
                    )
                yield (job.title, form, precision, *figures_of(verdict), greedy)


def find_artifact(out: Path, form: str, precision: str) -> tuple[Verdict | None, Path | None]:
    """Return the verdict on an artifact of a folder, rejected or not, and its file."""
    key, manifest = name_artifact(form, precision, "-"), read_manifest(out)
    assert manifest is not None
    places = {one.name: out / one.files[0].name for one in manifest.artifacts}
    for name in (key, f"rejected/{key}"):
        if (verdict := manifest.verdict_of(name)) is not None:
            return verdict, places[name]
    return None, None


def train_missing(name: str, models: Path) -> None:
    """Train a model whose folder is not there."""
    if (models / name).is_dir() and (models / "held-out.txt").exists():
        return
    sizes = (("--length", LENGTH), ("--positions", POSITIONS), ("--steps", STEPS.get(name, 400)))
    more = [str(one) for pair in sizes for one in pair]
    argv = [sys.executable, "-m", "modelc.benchmarks.token_models", str(models), name, *more]
    subprocess.run(argv, check=True)


def measure_model(name: str, place: Path) -> list[tuple[str, ...]]:
    """Export a model, which is trained if it is not there, and return its rows."""
    train_missing(name, place / "models")
    jobs = list_jobs(name, place / "models" / "held-out.txt")
    for job in jobs:
        export(job, place / "models" / name, place / job.folder)
    return list(rows_of(name, jobs, place))


def find_commit() -> str:
    """Return the commit of this tree; another one is of a tree with changes."""
    argv = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Export, generate, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"default: all ({', '.join(NAMES)})"
    )
    parser.add_argument("--out", type=Path, default=Path("token-table"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    commit = find_commit()
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}", flush=True)
    for name in given.names or NAMES:
        kept, began = given.out / f"{name}.json", time.monotonic()
        known = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
        if known.get("commit") != commit:
            rows = measure_model(name, given.out)
            seconds = round(time.monotonic() - began)
            known = {"commit": commit, "seconds": seconds, "rows": rows}
            kept.write_text(json.dumps(known, indent=1), encoding="utf-8")
        for row in known["rows"]:
            print(f"| {' | '.join(row)} |", flush=True)
        print(f"{name}: {known['seconds']} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
