"""Memory of large decoders, stage by stage: python benchmarks/large_models.py [0.3B 1B 2B 8B].

Writes Llamas with random weights shard by shard, in bfloat16 or float32, exports each by weight
streaming, and samples the memory of the process and its children 50 times a second. `own` is
memory that the kernel can only write to swap, `mapped` pages of files, which it can drop at any
time. The table has the peaks of each stage. `--limit` runs the export in a memory cgroup of that
many MB, page cache included: what is only mapped is then dropped, what is not ends the process.
Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from modelc.core.events import Event

# hidden, intermediate, layers, heads, key-value heads, vocabulary
SHAPES = {
    "tiny": (256, 512, 4, 8, 2, 2000),
    "0.3B": (2048, 6144, 4, 16, 4, 32000),
    "1B": (4096, 14336, 4, 32, 8, 32000),
    "2B": (4096, 14336, 8, 32, 8, 32000),
    "8B": (4096, 14336, 32, 32, 8, 128256),
}
POSITIONS = 32
INPUTS = ("input_ids[batch=1..2,sequence=1..8]", "past_key_values.0.key[_,_,past=0..8,_]")
SHARD = 512 * 2**20  # bytes of a shard at most
_EVERY = 0.02  # seconds between two samples
_WRITE = (
    "import sys; from pathlib import Path; from modelc.benchmarks.large_models import write_model; "
    "write_model(Path(sys.argv[1]), *sys.argv[2:])"
)
_CGROUP = Path("/sys/fs/cgroup/memory")


def write_model(folder: Path, size: str, dtype: str, shard: int = SHARD) -> Path:
    """Write a Hugging Face folder shard by shard, and return it; it may be there already."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if (folder / "model.safetensors.index.json").exists():
        return folder
    hidden, inner, layers, heads, pairs, words = SHAPES[size]
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=pairs, vocab_size=words,
        max_position_embeddings=POSITIONS, tie_word_embeddings=False, dtype=dtype,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    with torch.device("meta"):
        state = LlamaForCausalLM(config).state_dict()
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    _write_shards(folder, state, getattr(torch, dtype), shard)
    return folder


def _write_shards(
    folder: Path, state: dict[str, torch.Tensor], dtype: torch.dtype, shard: int
) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    places: dict[str, str] = {}
    shards: list[list[str]] = [[]]
    room = shard
    for name, tensor in state.items():
        needed = tensor.numel() * dtype.itemsize
        if needed > room and shards[-1]:
            shards.append([])
            room = shard
        shards[-1].append(name)
        room -= needed
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {}
        for name in names:
            drawn = torch.randn(state[name].shape, generator=generator)
            scale = state[name].shape[-1] ** -0.5 if drawn.ndim > 1 else 0.1
            tensors[name] = (drawn * scale if drawn.ndim > 1 else 1 + scale * drawn).to(dtype)
        save_file(tensors, folder / file, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="ascii")


@dataclass(kw_only=True)
class Stage:
    """What one stage used: seconds, and the most bytes of its own, mapped, and both."""

    name: str
    seconds: float = 0.0
    own: int = 0
    mapped: int = 0
    total: int = 0
    detail: str = ""


@dataclass(kw_only=True)
class Report:
    """The stages of one export in order, and how it ended."""

    stages: list[Stage] = field(default_factory=list)
    passed: bool = False
    largest_shard: int = 0
    weights: int = 0

    @property
    def own(self) -> int:
        """The most bytes of own memory."""
        return max(stage.own for stage in self.stages)


def _process_tree(root: int) -> Iterator[int]:
    yield root
    for path in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            found = path.read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in found:
            yield from _process_tree(int(child))


def read_memory(root: int) -> tuple[int, int]:
    """Return bytes of own and of mapped memory of a process and its descendants."""
    own = mapped = 0
    for pid in _process_tree(root):
        try:
            lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        except OSError:
            continue  # it ended
        found = dict(line.split(":", 1) for line in lines if line.startswith("Rss"))
        kept = {name: int(text.split()[0]) * 1024 for name, text in found.items()}
        own += kept.get("RssAnon", 0) + kept.get("RssShmem", 0)
        mapped += kept.get("RssFile", 0)
    return own, mapped


def _make_group(pid: int) -> Path:
    """Make a memory cgroup within that of this process."""
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    own = next(line.split(":", 2)[2] for line in lines if "memory" in line.split(":")[1])
    group = _CGROUP / own.lstrip("/") / f"modelc-{pid}"
    group.mkdir()
    return group


def measure(asked: dict[str, Any], log: Path, limit: int | None, most: int) -> Report:
    """Export in a child process, and sample its memory until it ends, or has `most` bytes."""
    events = log.with_suffix(".events")
    argv = [sys.executable, __file__, "--child", json.dumps(asked), "--events", str(events)]
    if limit is not None:
        argv += ["--limit", str(limit)]
    events.write_text("", encoding="utf-8")
    samples: list[tuple[float, int, int]] = []
    with log.open("w", encoding="utf-8") as output:
        child = subprocess.Popen(
            argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        while child.poll() is None:
            samples.append((time.time(), *read_memory(child.pid)))
            if samples[-1][1] > most:
                child.kill()
            time.sleep(_EVERY)
    for group in _CGROUP.rglob(f"modelc-{child.pid}"):
        group.rmdir()  # it is empty: its processes have ended
    return _attribute(samples, events, child.returncode)


def _attribute(samples: list[tuple[float, int, int]], events: Path, code: int) -> Report:
    """Give each sample to the innermost stage that was open at its time."""
    lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    lines.append({"at": float("inf")})
    found: dict[str, Stage] = {}
    opened: list[str] = []
    at, samples = 0, [one for one in samples if one[1]]
    for line in lines:
        name = opened[-1] if opened else "between stages"
        stage = found.setdefault(name, Stage(name=name))
        while at < len(samples) and samples[at][0] < line["at"]:
            _, own, mapped = samples[at]
            stage.own, stage.mapped = max(stage.own, own), max(stage.mapped, mapped)
            stage.total = max(stage.total, own + mapped)
            at += 1
        if "started" in line:
            opened.append(line["started"])
        elif "finished" in line:
            opened = [one for one in opened if one != line["finished"]]
            ended = found.setdefault(line["finished"], Stage(name=line["finished"]))
            ended.seconds += line["seconds"]
            ended.detail = line["detail"]
    return Report(stages=list(found.values()), passed=code == 0)


def table(report: Report) -> str:
    """Return the stages as a Markdown table, in MB."""
    rows = ["| stage | s | own MB | mapped MB | both MB |", "| --- | ---: | ---: | ---: | ---: |"]
    for one in report.stages:
        cells = (f"{value / 1e6:.0f}" for value in (one.own, one.mapped, one.total))
        rows.append(f"| {one.name} | {one.seconds:.1f} | {' | '.join(cells)} |")
    return "\n".join(rows)


def export_and_tell(asked: dict[str, Any], events: Path, limit: int | None) -> int:
    """In the child: export, and write when stages start and end."""
    if limit is not None:
        group = _make_group(os.getpid())
        (group / "memory.limit_in_bytes").write_text(str(limit * 10**6))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    from modelc.core.events import Finished, Noted, Started
    from modelc.pipeline.api import export

    with events.open("a", encoding="utf-8") as stream:

        def tell(event: Event) -> None:
            line: dict[str, object] = {"at": time.time()}
            if isinstance(event, Started):
                line["started"] = event.step
            elif isinstance(event, Finished):
                line |= {"finished": event.step, "seconds": event.seconds, "detail": event.detail}
            elif isinstance(event, Noted):
                print(event.text, flush=True)
            print(json.dumps(line), file=stream, flush=True)

        result = export(**asked, tell=tell)
    for verdict in result.manifest.verdicts:
        print(verdict.artifact, verdict.state, *(reason.text for reason in verdict.reasons))
        print(min((o.sqnr for o in verdict.outputs if o.sqnr is not None), default=None))
    print(*result.manifest.failures, sep="\n")
    return 0 if result.manifest.passed else 1


def main() -> int:
    """Measure each size, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=["0.3B", "1B", "2B"])
    parser.add_argument("--to", nargs="+", default=["onnx"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--most", type=int, default=11000, help="MB at which an export is ended")
    parser.add_argument("--limit", type=int, help="MB of a memory cgroup; needs root, cgroup v1")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "modelc-large"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--events", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return export_and_tell(json.loads(args.child), args.events, args.limit)
    for size in args.sizes:
        name = f"{size}-{args.dtype}"
        if not (args.folder / name / "model.safetensors.index.json").exists():
            made = [sys.executable, "-c", _WRITE, str(args.folder / name), size, args.dtype]
            subprocess.run(made, check=True)  # its memory is not that of the export
        asked = {
            "source": str(args.folder / name), "to": args.to, "out": str(args.folder / "out"),
            "model_args": {"task": "text-generation-merged"}, "overwrite": True, "inputs": INPUTS,
        }  # fmt: skip
        log = args.folder / f"{name}.log"
        report = measure(asked, log, args.limit, args.most * 10**6)
        shards = [one.stat().st_size for one in (args.folder / name).glob("*.safetensors")]
        print(f"## {name} to {', '.join(args.to)}: {sum(shards) / 1e6:.0f} MB, largest shard "
              f"{max(shards) / 1e6:.0f} MB, {'passed' if report.passed else 'NOT passed'}, own "
              f"{report.own / 1e6:.0f} MB\n{table(report)}\n", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
