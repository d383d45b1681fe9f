"""Manifests made of the records directly: empty, full, failed, pending, hostile and large."""

from __future__ import annotations

from dataclasses import replace

from modelc.core.findings import (
    Accuracy,
    BranchRecord,
    FeedRecord,
    Histogram,
    Layer,
    Localisation,
    TradeOff,
    Warned,
    WorstFeed,
)
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.manifest import Failure, FeedPlan, Manifest, Pending
from modelc.core.records import (
    Artifact,
    Attempt,
    CalibrationRecord,
    Checkpoint,
    Coverage,
    FileRecord,
    Latency,
)
from modelc.core.signature import Dim, InputSpec, Signature
from modelc.core.verdict import OutputVerdict, Reason, State, Tolerance, Verdict
from modelc.pipeline.report_files import render_report
from modelc.reports.report_formats import find_format


def render_html(manifest: Manifest) -> str:
    """The page of a manifest, as `modelc report` writes it."""
    return render_report(manifest, find_format("html"))


def render_markdown(manifest: Manifest) -> str:
    """The Markdown of a manifest, as `modelc report` writes it."""
    return render_report(manifest, find_format("md"))


TOLERANCE = Tolerance(atol=1e-6, rtol=1e-4, min_sqnr=90.0)
WEIGHTS = "8f4a1010d25defe922fd7b21e20251a92c46695b8dbe53e26eca86fde61919bb"
# What a checkpoint of a stranger may call its layers, outputs and dims.
HOSTILE = (
    '</script><img src="http://evil.example/x" onerror="alert(1)"> & \'"`|[a](javascript:1) '
    "@everyone #1 \x1b[2J\x00\x0b\u202egnp.exe\ufffe ]]> <!-- --> ${x} www.evil.example"
)


def measured(
    feed: str, headroom: float | None, output: str = "logits", **changes: object
) -> OutputVerdict:
    """One output on one feed; beyond its limits where the headroom is negative."""
    wrong = headroom is not None and headroom < 0
    made = OutputVerdict(
        feed=feed,
        output=output,
        passed=not wrong,
        reason=f"SQNR {90 + (headroom or 0):.1f} dB < 90" if wrong else "",
        shape=(4, 10),
        dtype="float32",
        exact=headroom is None,
        max_abs=0.0 if headroom is None else 2e-6,
        relative_l2=0.0 if headroom is None else 3e-7,
        cosine=1.0,
        sqnr=None if headroom is None else 90 + headroom,
        peak=6.3,
        headroom=headroom,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def _because(text: str) -> tuple[Reason, ...]:
    return (Reason(code=ReasonCode.OUTPUT_DIFFERS, text=text),) if text else ()


def judged(
    name: str,
    *outputs: OutputVerdict,
    state: State = State.PASSED,
    reason: str = "",
    **changes: object,
) -> Verdict:
    """A verdict on these outputs."""
    made = Verdict(
        artifact=name,
        state=state,
        reasons=_because(reason),
        device="cpu",
        tolerance=TOLERANCE,
        feeds=tuple(dict.fromkeys(output.feed for output in outputs)),
        outputs=outputs,
        seconds=0.25,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def artifact(name: str, precision: Precision = Precision.FP32, **changes: object) -> Artifact:
    """An artifact of one file, made from the checkpoint."""
    made = Artifact(
        name=name,
        target=name.removeprefix("rejected/").partition("-")[0],
        precision=precision,
        files=(FileRecord(name=f"{name}.bin", size=94_916, sha256=f"{name:0<64}"[:64]),),
        parent=WEIGHTS,
        made_from="checkpoint",
        capture="export",
        versions={"torch": "2.13.0", "onnx": "1.21.0"},
        seconds=2.3,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def manifest(**changes: object) -> Manifest:
    """A manifest of the digits net with nothing made yet."""
    made = Manifest(
        modelc="0.1.0",
        created="2026-11-21T13:21:02+00:00",
        order={
            "to": "onnx:fp32 onnx:int8",
            "capture": "auto",
            "inputs": "x:float32[batch=1..8,64]",
        },
        checkpoint=Checkpoint(
            path="../models/digits.safetensors",
            kind="safetensors",
            digest=WEIGHTS,
            files=(FileRecord(name="digits.safetensors", size=94_560, sha256=WEIGHTS),),
            factory="nets.digits:build",
            factory_args={"depth": "2 3"},
        ),
        signature=Signature(
            inputs=(
                InputSpec(
                    name="x",
                    dtype="float32",
                    dims=(Dim(low=1, opt=4, high=8, name="batch"), Dim.of_size(64)),
                ),
            ),
            outputs=("logits", "boxes"),
        ),
        feeds=FeedPlan(count=5, seed=0),
        environment={"python": "3.11.7", "torch": "2.13.0+cpu"},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


# fmt: off
# Records with a field per line would take three pages.
def int8_artifact() -> Artifact:
    """An artifact with everything on record that one can have."""
    return artifact(
        "onnx-int8", Precision.INT8, parent=f"{'onnx':0<64}", made_from="onnx",
        capture="onnxruntime",
        attempts=(
            Attempt(
                capture="onnxruntime", outcome="passed", reason="", seconds=3.0, sqnr=31.0,
                latency=Latency(milliseconds=0.4, parent=0.9, device="cpu", runs=50), size=31_000,
            ),
            Attempt(
                capture="nncf", outcome="failed", reason="SQNR 9.1 dB < 15", seconds=9.0, sqnr=9.1
            ),
        ),
        calibration=CalibrationRecord(
            source="digits_calib", kind="folder", found=400, used=300, held_out=16,
            selection="random", seed=0, digest="c" * 64, preprocess="unit",
            findings=("3 samples are all zero",),
        ),
        coverage=Coverage(
            layers={"int8": 4, "fp32": 1}, share={"int8": 0.93, "fp32": 0.07}, work="FLOPs",
            source="ONNX types",
        ),
        latency=Latency(milliseconds=0.41, parent=0.93, device="cpu", runs=50),
        accuracy=Accuracy(
            metric="top1", higher_is_better=True, samples=1000, eager=0.974, artifact=0.969,
            drop=0.005, low=0.001, high=0.009, confidence=0.95, method="paired bootstrap",
            disagreements=12, disagreeing=("img/07.png", "img/31.png"), max_drop=0.01,
        ),
        tradeoffs=(
            TradeOff(kept=(), passed=False, sqnr=24.0, drop=0.02, latency=0.35, parent=0.93),
            TradeOff(
                kept=("head.fc",), passed=True, sqnr=31.0, drop=0.005, latency=0.41, parent=0.93,
                seconds=12.0, chosen=True,
            ),
        ),
        notes=("kept 1 layer in fp32",),
    )


def localised() -> Localisation:
    """The second of three layers is wrong."""
    layers = tuple(
        Layer(
            module=f"blocks.{i}.norm", kind="LayerNorm", file="nets/digits.py", line=40 + i,
            node=f"/blocks.{i}/norm/LayerNormalization", operator="LayerNormalization",
            local=local, accumulated=after, before=before,
            cause="epsilon 1e-3, not 1e-5" if i == 1 else "",
        )
        for i, local, before, after in (
            (1, 31.5, 128.0, 31.4), (2, 131.0, 31.4, 30.0), (0, None, None, 128.0),
        )
    )
    return Localisation(
        artifact="rejected/openvino", feed="opt", guilty="blocks.1.norm",
        cause="epsilon 1e-3, not 1e-5", layers=layers,
        curve=(
            ("blocks.0.norm", 128.0), ("blocks.1.norm", 31.4), ("blocks.2.norm", 30.0),
            ("fc", None),
        ),
        runs=6, seconds=1.5, memory=21_000_000, reproducer="debug/blocks.1.norm",
    )


def full() -> Manifest:
    """One of everything: proven, refused, not judged, failed, pending, and all findings."""
    feeds = (
        FeedRecord(name="sample", kind="sample", sizes={"batch": 4}),
        FeedRecord(name="zeros", kind="value", sizes={"batch": 2}),
        FeedRecord(name="huge", kind="value", beyond=True),
        FeedRecord(name="batch=7", kind="shape", skipped="the batch must be even"),
    )
    int8_feeds = [
        measured("held-1", 12.0), measured("sample", 4.0), measured("zeros", None, loose=True),
    ]
    return manifest(
        feeds=FeedPlan(count=5, seed=3, samples="../models/samples.npz", drawn=feeds),
        artifacts=(
            artifact("onnx", notes=("batch is dynamic",)),
            int8_artifact(),
            artifact(
                "rejected/openvino", rejected=True, capture="trace",
                frozen=("nets/digits.py:24",),
            ),
            artifact("rejected/torchscript", rejected=True),
        ),
        verdicts=(
            judged(
                "onnx", measured("sample", 28.0), measured("zeros", None), measured("huge", 2.0),
                measured("sample", 17.0, "boxes"),
                worst=WorstFeed(
                    feed="huge", output="logits", headroom=2.0, file="worst/onnx.npz",
                    replay="modelc validate out --feed worst/onnx.npz", searched=40,
                ),
            ),
            judged(
                "onnx-int8",
                *int8_feeds,
                histograms=(
                    Histogram(
                        output="logits", feed="sample", edges=(-2.0, -1.0, 0.0, 1.0, 2.0),
                        eager=(1, 20, 17, 2), artifact=(2, 18, 18, 2),
                    ),
                ),
            ),
            judged(
                "rejected/openvino", measured("sample", -58.5), measured("zeros", 30.0),
                state=State.FAILED, reason="output 'logits' on feed sample: SQNR 31.5 dB < 90",
                notes=("the first wrong layer is blocks.1.norm",),
            ),
            judged(
                "rejected/torchscript", state=State.ERROR, reason="the runtime ended: signal 11",
                feeds=("sample",),
            ),
        ),
        failures=(
            Failure(
                step="pt2", message="torch.export refused it: x.item()", hint="--capture script",
                exit_code=5,
            ),
        ),
        pending=(
            Pending(
                step="tensorrt", target="tensorrt", precision=Precision.FP32, made_from="onnx",
                parent=f"{'onnx':0<64}", reason="no CUDA driver", command="modelc build-trt",
                warnings=("TopK with k > 3840",), memory=192_504,
            ),
        ),
        branches=(
            BranchRecord(
                file="nets/digits.py", line=24, condition="x.mean() > 0", module="body",
                arms={"true": "sample"}, data=True,
            ),
            BranchRecord(
                file="nets/digits.py", line=31, condition="x.max() > 9", data=True, accepted=True
            ),
            BranchRecord(
                file="nets/digits.py", line=50, condition="self.deep", arms={"true": "sample"}
            ),
            BranchRecord(
                file="nets/digits.py", line=60, condition="x.min() < 0", data=True,
                arms={"true": "sample", "false": "zeros"},
            ),
        ),
        warned=(
            Warned(file="nets\\digits.py", line=24, text="Converting a tensor to a Python boolean"),
        ),
        localisations=(localised(),), notes=("two outputs are not deterministic",),
        steps=("onnx", "onnx-int8", "openvino", "torchscript", "pt2", "tensorrt"),
    )
# fmt: on


def failed_only() -> Manifest:
    """A run of which one step failed and nothing was made."""
    failure = Failure(
        step="onnx", message="torch.export refused it", hint="--capture script", exit_code=5
    )
    return manifest(failures=(failure,), steps=("onnx",))


def pending_only() -> Manifest:
    """A run of which one proven artifact and a pending step are left."""
    return replace(
        full(),
        artifacts=full().artifacts[:1],
        verdicts=full().verdicts[:1],
        failures=(),
        branches=(),
        warned=(),
        localisations=(),
        steps=("onnx", "tensorrt"),
    )


def refused() -> Manifest:
    """A run of which the only artifact was judged and is wrong by its whole, not on a feed."""
    verdict = judged(
        "rejected/onnx",
        measured("sample", 20.0),
        state=State.FAILED,
        reason="input 'mask' is ignored",
    )
    return manifest(
        artifacts=(artifact("rejected/onnx", rejected=True),), verdicts=(verdict,), steps=("onnx",)
    )


def hostile() -> Manifest:
    """The full manifest, with every text that a stranger chooses a hostile one."""
    import msgspec

    kept = {
        "precision",
        "state",
        "code",
        "created",
        "sha256",
        "digest",
        "parent",
        "dtype",
        "role",
        "outcome",
    }
    closed = {"schema_version", "steps"}
    printable = "".join(filter(str.isprintable, HOSTILE))  # metadata takes no other

    def poison(value: object, key: str = "", text: str = HOSTILE) -> object:
        if isinstance(value, str) and key not in kept:
            return f"{value} {text}"
        if isinstance(value, dict) and key == "meta":
            return {name: poison(value[name], name, printable) for name in value}
        if isinstance(value, dict):
            free = key in ("environment", "versions", "factory_args", "sizes", "share", "options")
            return {
                (f"{name}{HOSTILE}" if free else name): value[name]
                if name in closed
                else poison(value[name], name)
                for name in value
            }
        if isinstance(value, list | tuple):
            return [poison(one, key) for one in value]
        return value

    return msgspec.convert(poison(msgspec.to_builtins(full())), Manifest)


def large() -> Manifest:
    """A hundred artifacts on thirty feeds, one in ten of them refused."""
    names = [f"rejected/onnx-{i}" if i % 10 == 9 else f"onnx-{i}" for i in range(100)]
    feeds = [f"feed-{i}" for i in range(30)]
    verdicts = []
    for index, name in enumerate(names):
        wrong = index % 10 == 9
        outputs = [
            measured(feed, -3.0 if wrong and n == 4 else float(n)) for n, feed in enumerate(feeds)
        ]
        reason = f"output 'logits' on feed feed-4: {'very ' * 80}wrong" if wrong else ""
        verdicts.append(
            judged(
                name,
                *outputs,
                state=State.FAILED if wrong else State.PASSED,
                reason=reason,
                notes=("a note " * 40,),
            )
        )
    return manifest(
        artifacts=tuple(artifact(name, rejected=name.startswith("rejected")) for name in names),
        verdicts=tuple(verdicts),
        steps=tuple(name.removeprefix("rejected/") for name in names),
    )


CASES = {
    "empty": manifest,
    "full": full,
    "failed": failed_only,
    "pending": pending_only,
    "refused": refused,
    "hostile": hostile,
    "large": large,
}
