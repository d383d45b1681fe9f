"""`modelc run` on a repository of six models, five formats, two precisions: `project.py -o DIR`.

Runs cold, warm, with one weight changed, from the cache alone, two runs at once, and one that is
killed and run again; prints a table of what each made, took up and took. `--only digits,gate` takes
fewer models. The machine's noise is in the seconds; what was made and taken up is exact.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from modelc.sample_models.make import write_checkpoint

MODELS = Path(__file__).resolve().parent.parent / "sample_models"
HEAD = """\
out = "out"
keep-going = true

[defaults]
to = ["torchscript", "pt2", "onnx", "openvino", "tensorrt-onnx"]
precision = ["fp32", "int8"]
calib = "random"

"""
TABLES = {
    "digits": """\
model = "modelc.sample_models.digits:build"
input = ["x[batch=1..8,_,_,_]"]
samples = "{models}/digits_samples.npz"
calib = "{models}/digits_calib"
preprocess = "unit"
""",
    "gate": 'model = "modelc.sample_models.gate:gate"\ninput = ["x:float32[batch=1..4,16]"]\n',
    "nested": 'model = "modelc.sample_models.nested:detector"\ninput = [{nested}]\n',
    "lstm": 'model = "modelc.sample_models.lstm:tagger"\ninput = [{lstm}]\n',
    "encoder": 'model = "modelc.sample_models.encoder:bert"\ninput = [{encoder}]\n',
    "resnet": 'model = "modelc.sample_models.resnet:resnet50"\ninput = [{resnet}]\n',
}
FRAMEWORKS = {"torch", "numpy", "onnx", "onnxruntime", "openvino", "nncf", "modelopt"}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run: its exit code, wall seconds, CPU seconds, and what became of each artifact."""

    code: int
    seconds: float
    cpu: float
    sources: Counter[str]
    states: Counter[str]
    made: tuple[str, ...] = ()


def main() -> None:
    """Write the repository, run the scenes, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="an empty folder to work in")
    parser.add_argument("--only", help="models, with commas between; default: all six")
    parser.add_argument("--warm", type=int, default=5, help="how often the warm run is timed")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(TABLES)
    write_repository(args.out, names)
    print("| run | exit | s | CPU s | made | kept | cache | states |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    show("cold", run(args.out))
    warm = sorted((run(args.out) for _ in range(args.warm)), key=lambda one: one.seconds)
    show(f"warm, least of {args.warm}", warm[0])
    show(f"warm, median of {args.warm}", warm[len(warm) // 2])
    change_weight(args.out / f"{names[0]}.safetensors")
    show(f"one weight of {names[0]} changed", run(args.out))
    shutil.rmtree(args.out / "out")
    show("output folder gone", run(args.out))
    two_at_once(args.out)
    killed(args.out, names[-1])
    print(f"\nframeworks that a warm run loads: {loaded(args.out) or 'none'}")


def write_repository(folder: Path, names: list[str]) -> None:
    """Checkpoints and modelc.toml."""
    from modelc.sample_models import encoder, lstm, nested, resnet

    folder.mkdir(parents=True, exist_ok=True)
    signatures = {
        module.__name__.rsplit(".", 1)[-1]: ", ".join(map(json.dumps, module.SIGNATURE))
        for module in (encoder, lstm, nested, resnet)
    }
    text = HEAD
    for name in names:
        if name == "digits":
            shutil.copy(MODELS / "digits.safetensors", folder)
        else:
            write_checkpoint(name, folder)
        table = TABLES[name].format(models=MODELS, **signatures)
        text += f'[models.{name}]\ncheckpoint = "{name}.safetensors"\n{table}\n'
    (folder / "modelc.toml").write_text(text, encoding="utf-8")


def command(folder: Path, *more: str) -> list[str]:
    """The command line of a run in the folder."""
    cache = str(folder / "cache")
    return [sys.executable, "-m", "modelc", "run", "-q", "--cache-dir", cache, *more]


def run(folder: Path, *more: str) -> Ran:
    """Run to the end."""
    before, began = os.times(), time.perf_counter()
    ended = subprocess.run(command(folder, *more), cwd=folder, capture_output=True, check=False)
    after = os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return outcome(folder / "out", ended.returncode, time.perf_counter() - began, cpu)


def outcome(out: Path, code: int, seconds: float, cpu: float) -> Ran:
    """What `run.json` says."""
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    found = [
        (f"{model['name']}/{one['name']}", one)
        for model in record["models"]
        for one in model["artifacts"]
    ]
    return Ran(
        code=code,
        seconds=seconds,
        cpu=cpu,
        sources=Counter(one["source"] for _, one in found),
        states=Counter(one["state"] for _, one in found),
        made=tuple(name for name, one in found if one["source"] == "made"),
    )


def show(title: str, ran: Ran) -> None:
    """One row."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(ran.states.items()))
    sources = " | ".join(str(ran.sources[one]) for one in ("made", "kept", "cache"))
    print(
        f"| {title} | {ran.code} | {ran.seconds:.2f} | {ran.cpu:.2f} | {sources} | {states} |",
        flush=True,
    )


def change_weight(path: Path) -> None:
    """Another value for one element of the first weight."""
    from safetensors.torch import load_file, save_file

    weights = load_file(path)
    name = next(key for key, one in sorted(weights.items()) if one.is_floating_point())
    weights[name].view(-1)[0] += 0.01
    save_file(weights, path)


def two_at_once(folder: Path) -> None:
    """Two runs with folders of their own and one empty cache."""
    shutil.rmtree(folder / "cache")
    outs = [folder / "out-one", folder / "out-two"]
    began = time.perf_counter()
    runs = [
        subprocess.Popen(command(folder, "--out", str(out)), cwd=folder, stdout=subprocess.DEVNULL)
        for out in outs
    ]
    codes = [one.wait() for one in runs]
    seconds = time.perf_counter() - began
    for number, (out, code) in enumerate(zip(outs, codes, strict=True), start=1):
        show(f"two at once, one cache: run {number}", outcome(out, code, seconds, float("nan")))
    verified = subprocess.run(
        [sys.executable, "-m", "modelc", "cache", "verify", "--cache-dir", str(folder / "cache")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"\ncache verify: exit {verified.returncode}: {verified.stdout.strip()}\n", flush=True)


def killed(folder: Path, model: str) -> None:
    """Kill a run of one model with SIGKILL once it has proven something, and run it again."""
    for name in ("out", "cache"):
        shutil.rmtree(folder / name)
    manifest = folder / "out" / model / "manifest.json"
    process = subprocess.Popen(
        command(folder, model), cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None:
        if manifest.is_file() and json.loads(manifest.read_bytes())["artifacts"]:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        time.sleep(0.05)
    show(f"{model} killed after its first artifact, then run again", run(folder, model))


def loaded(folder: Path) -> str:
    """Frameworks that a warm run has imported."""
    code = (
        "import sys; from modelc.cli.app import run_cli; run_cli(sys.argv[1:]);"
        f"print(*sorted({FRAMEWORKS!r} & set(sys.modules)), file=sys.stderr)"
    )
    run(folder)
    ran = subprocess.run(
        [sys.executable, "-c", code, *command(folder)[3:]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else ""


if __name__ == "__main__":
    main()
