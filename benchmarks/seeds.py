"""The CPU tables of published comparisons of BERT and ResNet, measured with `modelc bench`.

    python -m modelc.benchmarks.seeds --twice --out build/benchmarks/seeds --write page.md

Each model is exported to TorchScript, torch.export, ONNX and OpenVINO, in INT8 too, and measured
beside eager; with --twice two times, and the speed-ups of both are compared. Weights are drawn from
a seed, except those of the digits net, whose accuracy is measured in each precision. --out keeps
what is done, so that the same command resumes an interrupted run, and only writes the page of a
whole one. Exits 1 if a model or a row failed, or a speed-up changed.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from modelc.benchmarks.seed_models import MODELS, RANDOM_SAMPLES, SeedModel
from modelc.benchmarks.seeds_page import ExportRecord, SeedResult, changes_of, render_page
from modelc.calibration.calibration_options import CalibrationOptions, LabelledOptions
from modelc.converters.installed_packages import package_versions
from modelc.core.atomic_write import atomic_write
from modelc.core.errors import ModelcError, first_line
from modelc.core.manifest import Manifest
from modelc.pipeline.benchmark.benchmark_plan import BenchmarkOptions
from modelc.pipeline.benchmark.benchmark_records import BenchmarkReport
from modelc.pipeline.benchmark.run_benchmark import benchmark_folder, read_reports
from modelc.pipeline.limit_text import Measuring
from modelc.pipeline.manifest_file import encode_json
from modelc.pipeline.order import Lowering, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.reports.text_format import one_line

_PACKAGES = ("transformers", "nncf")  # beside those in a report


def main() -> int:
    """Make and measure what is not in --out yet, print it, and write the page."""
    args = read_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in args.models:
        results.append(measure_model(name, args))
        print("\n".join(_summary(results[-1])), flush=True)
    if args.write:
        args.write.parent.mkdir(parents=True, exist_ok=True)
        args.write.write_text(render_page(results), encoding="utf-8")
    return int(any(is_bad(one) for one in results))


def read_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=_model_names, default=list(MODELS), metavar="NAME,NAME",
                        help=", ".join(MODELS))  # fmt: skip
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row; default: 3")
    parser.add_argument("--threads", type=int, help="of each runtime; default: one for each core")
    parser.add_argument("--twice", action="store_true", help="a second benchmark, and the changes")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks/seeds"))
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to write")
    return parser.parse_args(argv)


def _model_names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
    return names


def is_bad(result: SeedResult) -> bool:
    """Whether a model or a row failed, or a speed-up is not the same in both benchmarks."""
    changed = any(one.slower or one.faster for one in changes_of(result))
    return bool(result.error or changed or any(one.failures for one in result.reports))


def measure_model(name: str, args: argparse.Namespace) -> SeedResult:
    """Export a model and measure it once or twice; what fails does not stop other models."""
    result = SeedResult(name=name, title=MODELS[name].title)
    try:
        result = replace(result, export=export_model(name, args.out))
        for number in range(1, 3 if args.twice else 2):
            report = run_benchmark(name, number, args)
            result = replace(result, reports=(*result.reports, report))
    except ModelcError as error:
        result = replace(result, error=f"{type(error).__name__}: {first_line(error)}")
    return result


def export_model(name: str, out: Path) -> ExportRecord:
    """Export a model and keep the record, or return the one that is kept.

    Raises:
        ModelcError: the model cannot be exported at all.
    """
    model, kept = MODELS[name], out / f"{name}.export.json"
    found = read_export(kept)
    if found is not None and found.targets == model.targets and (out / name).is_dir():
        return found
    for number in (1, 2):  # they are of other artifacts
        report_file(out, name, number).unlink(missing_ok=True)
    print(f"{name}: exporting to {', '.join(model.targets)}", flush=True)
    began = time.perf_counter()
    order = make_order(model, _checkpoint(name, out), out / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the frameworks' own
        manifest = run(order)
    found = make_record(manifest, model, time.perf_counter() - began)
    atomic_write(kept, encode_json(found))
    return found


def make_order(model: SeedModel, checkpoint: Path, out: Path) -> Order:
    """Return what `modelc export` carries out for a model."""
    calibration = CalibrationOptions(source="random", samples=RANDOM_SAMPLES)
    if model.calibration is not None:
        calibration = CalibrationOptions(source=str(model.calibration))
    data = None if model.data is None else LabelledOptions(source=str(model.data))
    return Order(
        source=Source(checkpoint=checkpoint, model=model.factory, inputs=model.inputs),
        wanted=tuple(map(Wanted.parse, model.targets)),
        out=out,
        overwrite=True,
        lowering=Lowering(calibration=calibration),
        measuring=None if data is None else Measuring(data=data),
    )


def make_record(manifest: Manifest, model: SeedModel, seconds: float) -> ExportRecord:
    """Return what the page says of an export."""
    return ExportRecord(
        targets=model.targets,
        seconds=round(seconds, 1),
        versions=package_versions(*_PACKAGES),
        failures={one.step: one_line(one.message) for one in manifest.failures},
        accuracies={
            one.name: one.accuracy for one in manifest.artifacts if one.accuracy is not None
        },
    )


def read_export(path: Path) -> ExportRecord | None:
    """Return the record of an export; None if there is none, or it is another version's."""
    import msgspec

    try:
        return msgspec.json.decode(path.read_bytes(), type=ExportRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def _checkpoint(name: str, out: Path) -> Path:
    """Return the model's weights, drawn from its seed unless they are shipped."""
    from safetensors.torch import save_file

    model = MODELS[name]
    if model.checkpoint is not None:
        return model.checkpoint
    path = out / f"{name}.safetensors"
    if not path.exists():
        part = path.with_suffix(".part")
        save_file(model.build().state_dict(), part)
        part.replace(path)
    return path


def report_file(out: Path, name: str, number: int) -> Path:
    """Return where the first or second benchmark of a model is kept."""
    return out / f"{name}.{number}.json"


def run_benchmark(name: str, number: int, args: argparse.Namespace) -> BenchmarkReport:
    """Measure a model and keep the report, or return the one that is kept.

    Raises:
        ModelcError: it cannot be measured.
    """
    kept = report_file(args.out, name, number)
    found = read_kept(kept, args.seconds, args.threads)
    if found is not None:
        print(f"{name}: benchmark {number} is in {kept}", flush=True)
        return found
    print(f"{name}: benchmark {number}", flush=True)
    options = BenchmarkOptions(
        batch=MODELS[name].batch, seconds=args.seconds, threads=args.threads, rejected=True
    )
    report = benchmark_folder(args.out / name, options)
    atomic_write(kept, encode_json(report))
    return report


def read_kept(path: Path, seconds: float, threads: int | None) -> BenchmarkReport | None:
    """Return a kept report if it was measured as asked for and no row failed; else None."""
    try:
        found = read_reports(path)[0]
    except ModelcError:
        return None
    is_same = found.seconds == seconds and threads in (None, found.threads)
    return found if is_same and not found.failures else None


def _summary(result: SeedResult) -> list[str]:
    """Return a line for each row, and one for how many speed-ups changed."""
    lines = [f"{result.title}: {result.error}"] if result.error else []
    for report in result.reports[:1]:
        for row in report.rows:
            for one in row.times:
                speedup = "" if one.speedup is None else f"{one.speedup:8.2f}x"
                lines.append(f"  {row.name:<24}{one.median:10.3f} ms{speedup}")
            if row.failure:
                lines.append(f"  {row.name:<24}failed: {row.failure}")
        lines += [f"  note: {note}" for note in report.notes]
    changes = changes_of(result)
    if changes:
        changed = [one.row for one in changes if one.slower or one.faster]
        lines.append(f"  {len(changed)} of {len(changes)} speed-ups changed {' '.join(changed)}")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
