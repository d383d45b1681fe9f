"""One attack, in a process that is forked for it: exported as its user would, then judged."""

from __future__ import annotations

import json
import shutil
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from modelc.benchmarks.attack_domain import Domain, feed_at, feeds_of, read_domain

if TYPE_CHECKING:
    from modelc.benchmarks.attack_oracle import Truth

NETS = Path(__file__).resolve().parent.parent / "tests" / "nets" / "attacks"
BUG = 70


@dataclass(frozen=True, kw_only=True)
class Job:
    """A net on disk, how it is exported, and how eager builds it."""

    name: str
    factory: str
    build: Callable[[], nn.Module]
    inputs: tuple[str, ...]
    sample: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    nan: bool = False
    calib: int = 0
    feeds: int = 60


def run_attack(job: Job, folder: Path) -> dict[str, Any]:
    """Export and judge; the record, as JSON takes it. What is wrong stays in the folder."""
    warnings.simplefilter("ignore")
    write_inputs(job, folder)
    began = time.monotonic()
    error = _export(job, folder)
    seconds = time.monotonic() - began
    manifest = folder / "out" / "manifest.json"
    record: dict[str, Any] = {
        "name": job.name, "seconds": round(seconds, 1), "error": error, "artifacts": {},
        "command": command(job),
    }  # fmt: skip
    if manifest.exists():
        record |= _judge_artifacts(job, folder, json.loads(manifest.read_text()))
    for target in job.targets:
        reason = error.get("message", "") or "not in the manifest"
        record["artifacts"].setdefault(
            target, {"state": _state(error), "reason": reason, "hint": error.get("hint", "")}
        )
    return record


def _state(error: Mapping[str, Any]) -> str:
    return "crashed" if error.get("exit_code") == BUG else "failed"


def command(job: Job) -> str:
    """The command line of a user, in the folder where all lies."""
    sample = "--samples sample.npz " if job.sample else ""
    given = " ".join(f"--input '{text}'" for text in job.inputs)
    more = " ".join(f"--{key.replace('_', '-')}={value}" for key, value in job.options.items())
    calib = "--calib calib " if job.calib else ""
    targets = " ".join(f"--to {target}" for target in job.targets)
    return (
        f"modelc export weights.pt --model {job.factory} {sample}{given} {calib}{more} {targets}"
        " -o out"
    ).replace("  ", " ")


def write_inputs(job: Job, folder: Path) -> None:
    """Lay down what a user has: weights, a sample, calibration data."""
    import torch

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.save(job.build().state_dict(), folder / "weights.pt")
    if job.sample:
        np.savez(folder / "sample.npz", **job.sample)
    if job.calib:
        (folder / "calib").mkdir()
        rng = np.random.default_rng(5)
        for at in range(job.calib):
            arrays = {
                name: (rng.standard_normal(a.shape) * (a.std() or 1) + a.mean()).astype(a.dtype)
                for name, a in job.sample.items()
            }
            np.savez(folder / "calib" / f"{at:03}.npz", **arrays)


def _export(job: Job, folder: Path) -> dict[str, Any]:
    """Run modelc in this process; empty, or the error that stopped it."""
    import modelc
    from modelc.calibration.calibration_options import CalibrationOptions

    options = {"judging": modelc.Judging(sensitivity=0), **job.options}
    if job.calib:
        calibration = CalibrationOptions(source=str(folder / "calib"))
        options["lowering"] = modelc.Lowering(calibration=calibration)
    try:
        modelc.export(
            folder / "weights.pt", model=job.factory, to=job.targets, inputs=job.inputs,
            samples=folder / "sample.npz" if job.sample else None, out=folder / "out",
            **options,  # type: ignore[arg-type]  # the table's own
        )  # fmt: skip
    except modelc.ModelcError as error:
        return {
            "exit_code": error.exit_code, "message": str(error)[:600],
            "hint": str(getattr(error, "hint", "") or "")[:400],
        }  # fmt: skip
    except BaseException:  # noqa: BLE001 - a bug of modelc's own: the record says so
        return {"exit_code": BUG, "message": traceback.format_exc()[-900:]}
    return {}


def _judge_artifacts(job: Job, folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    verdicts = {one["artifact"]: one for one in manifest["verdicts"]}
    domains: dict[str, tuple[Domain, Truth]] = {}
    found: dict[str, Any] = {}
    for artifact in manifest["artifacts"]:
        wanted = _target_of(artifact, job)
        verdict = verdicts.get(artifact["name"], {})
        record = {
            "state": "rejected", "reason": str(verdict.get("reason") or verdict.get("state"))[:600],
            "capture": artifact.get("capture") or "", "seconds": artifact.get("seconds"),
        }  # fmt: skip
        if verdict.get("state") == "passed":
            inputs = _inputs_of(artifact, manifest)
            key = json.dumps(inputs, sort_keys=True) + str(wanted.count(":"))
            if key not in domains:
                domains[key] = _truth(job, inputs, folder, rough=":" in wanted)
            record |= _compare(artifact, manifest, folder, domains[key], job.sample)
            record["notes"] = [str(note)[:300] for note in verdict.get("notes") or ()]
        if found.get(wanted, {}).get("state") in (None, "rejected"):
            found[wanted] = record
    for failure in manifest["failures"]:
        state = "crashed" if failure["exit_code"] == BUG else "failed"
        found.setdefault(
            failure["step"],
            {"state": state, "reason": failure["message"][:600], "hint": failure["hint"][:400]},
        )
    return {
        "artifacts": {key: one for key, one in found.items() if key in job.targets},
        "notes": [str(note)[:300] for note in manifest.get("notes") or ()],
    }


def _target_of(artifact: Mapping[str, Any], job: Job) -> str:
    name = str(artifact["target"])
    precision = f"{name}:{artifact.get('precision')}"
    return precision if precision in job.targets else name


def _inputs_of(artifact: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The artifact's own domain where it has one, else the signature that is judged."""
    inputs: list[dict[str, Any]] = manifest["signature"]["inputs"]
    domain = artifact.get("domain") or {}
    own: list[dict[str, Any]] = domain.get("inputs") or inputs
    return own


def _truth(
    job: Job, inputs: list[dict[str, Any]], folder: Path, *, rough: bool
) -> tuple[Domain, Truth]:
    import torch

    from modelc.benchmarks.attack_oracle import Eager, truth

    state = torch.load(folder / "weights.pt", weights_only=True)

    def build_net() -> nn.Module:
        net = job.build()
        net.load_state_dict(state)
        return net.eval()

    domain = read_domain(inputs)
    seed = zlib.crc32(job.name.encode())
    feeds = feeds_of(
        domain, job.sample, seed=seed, calm=rough, nan=job.nan, count=job.feeds
    )  # fmt: skip
    return domain, truth(Eager(build_net, method=str(job.options.get("method", ""))), feeds)


def _compare(
    artifact: Mapping[str, Any],
    manifest: Mapping[str, Any],
    folder: Path,
    known: tuple[Domain, Truth],
    sample: Mapping[str, Any],
) -> dict[str, Any]:
    from modelc.benchmarks.attack_oracle import judge
    from modelc.benchmarks.open_artifacts import OPENERS, openvino_f32

    domain, wanted = known
    rough = artifact.get("precision", "fp32") not in ("fp32", "tf32")
    path = folder / "out" / artifact["files"][0]["name"]
    names = [one["name"] for one in manifest["signature"]["inputs"]]
    outputs = manifest["signature"]["outputs"]
    record: dict[str, Any] = {
        "domain": domain.summary, "feeds": len(wanted.feeds), "eager_refuses": len(wanted.rejected),
        "refused_as": wanted.rejected[:2], "narrow": _narrower(domain, wanted, sample),
    }  # fmt: skip
    opener = OPENERS[artifact["target"]]
    try:
        found = judge(opener(path, names, outputs), outputs, wanted, rough=rough)
    except Exception as error:  # noqa: BLE001 - whatever its runtime raises
        return record | {"state": "WRONG", "reason": f"does not open: {str(error)[:300]}"}
    state, summary = found.state, found.summary
    if state == "WRONG" and artifact["target"] == "openvino" and not rough:
        exact = judge(openvino_f32(path, names, outputs), outputs, wanted)
        if exact.state == "WRONG":
            summary = exact.summary
        else:
            state, summary = "bf16", f"right in f32, not as OpenVINO's default: {summary}"
    return record | {"state": state, "reason": summary}


def _narrower(domain: Domain, wanted: Truth, sample: Mapping[str, Any]) -> list[str]:
    """Dims that end before twice the opt size, or begin at it, where eager goes on."""
    found = []
    opts = {base: opt for base, (_, opt, _) in domain.bases.items()}
    for base, (low, opt, high) in domain.bases.items():
        beyond = [size for size in (2 * opt,) if size > high]
        beyond += [size for size in (opt // 2,) if 0 < size < low]
        for size in beyond:
            feed = feed_at(domain, {**opts, base: size}, sample)
            try:
                wanted.eager.run(feed)
            except Exception:  # noqa: BLE001 - eager ends there as well
                continue
            found.append(f"{base} {low}..{high} where eager takes {size}")
    return found


def as_job(name: str) -> Job:
    """The attack of that name."""
    if str(NETS) not in sys.path:
        sys.path.insert(0, str(NETS))
    from importlib import import_module

    table = import_module("attack_case")
    case = table.attacks()[name]
    return Job(
        name=name, factory=case.factory, build=lambda: table.build(case), inputs=case.inputs,
        sample=case.arrays(), targets=case.targets, options=case.options, nan=case.nan,
        calib=case.calib,
    )  # fmt: skip
