"""What a benchmark measures: the rows of an output folder, and the points of its domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import metadata
from itertools import product
from types import MappingProxyType

from ...calibration.feed_form import FeedForm
from ...converters.registry import TARGETS, is_stage, target_named
from ...core.compile_records import name_compiled, plain_variant
from ...core.contract import Native, Target
from ...core.errors import ErrorCode, Hint, Option, UsageError, unknown_name_error
from ...core.kinds import Precision
from ...core.manifest import Manifest
from ...core.records import Artifact
from ...core.signature import Dim, Signature
from ...core.target_extensions import Deployable
from ..order import Source
from ..runtime_reference import identify_artifact
from .benchmark_records import EAGER_ROW

_SECONDS, _THREADS = (0.1, 3600.0), (1, 4096)
_BATCH = "batch"
PASSED, REJECTED, UNJUDGED = "passed", "rejected", "not judged"


@dataclass(frozen=True, kw_only=True)
class RowSpec:
    """One row: what is opened, and how.

    `file` is the model's in the folder, and empty for eager. `variant` is a deployment of the
    file's target (`Deployable`), or how torch.compile compiles the module, as
    `max-autotune+dynamic`.
    """

    name: str
    runtime: str
    precision: str = str(Precision.FP32)
    file: str = ""
    target: str = ""
    variant: str = ""
    verdict: str = UNJUDGED
    sqnr: float | None = None
    exact: bool = False
    accuracy: float | None = None
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class BenchmarkPoint:
    """Sizes of the free dims, and the number of samples in a run."""

    sizes: Mapping[str, int]
    samples: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in self.sizes.items())


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """What the user asks for.

    `sizes` are those of each dim to sweep; a dim that is left out has its opt size. `seconds` are
    measured for each row at each point. `only` selects rows by name, with patterns as in a shell;
    with `any_row`, a pattern that fits no row is left out if another one fits. `compiled` are
    variants of torch.compile, as `max-autotune+dynamic`. A row that does not answer for `timeout`
    seconds fails.
    """

    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch: tuple[int, ...] = ()
    seconds: float = 2.0
    threads: int | None = None
    device: str = "cpu"
    only: tuple[str, ...] = ()
    any_row: bool = False
    compiled: tuple[str, ...] = ("default",)
    rejected: bool = False
    strict: bool = False
    timeout: float | None = None

    def __post_init__(self) -> None:
        for option, value, (least, most), example in (
            ("seconds", self.seconds, _SECONDS, 3), ("threads", self.threads, _THREADS, 4),
        ):  # fmt: skip
            if value is not None and not least <= value <= most:
                raise UsageError(
                    f"--{option} {value:g} is not from {least:g} to {most:g}",
                    hint=Hint("give ", Option(option, str(example))),
                    option=option, code=ErrorCode.INVALID_VALUE,
                )  # fmt: skip


def plan_points(signature: Signature, options: BenchmarkOptions) -> tuple[BenchmarkPoint, ...]:
    """Return the points to measure: all combinations of the sizes that are swept.

    Raises:
        UsageError: a dim is unknown, or a size is outside of its range.
    """
    batch = _find_batch(signature)
    swept = dict(options.sizes)
    if options.batch:
        if batch is None or batch.name is None:
            raise UsageError(
                "--batch has no effect: no input has a batch dim that varies",
                hint="leave it out, or sweep another dim with --size NAME=SIZES",
                option="batch",
                code=ErrorCode.NO_EFFECT,
            )
        name = batch.bases[0]
        swept[name] = tuple(dict.fromkeys((*swept.get(name, ()), *options.batch)))
    for name, sizes in swept.items():
        _check_sizes(name, sizes, signature)
    base = signature.opt_sizes
    points = []
    for combination in product(*swept.values()):
        at = {**base, **dict(zip(swept, combination, strict=True))}
        points.append(BenchmarkPoint(sizes=at, samples=1 if batch is None else batch.size(at)))
    return tuple(points)


def _find_batch(signature: Signature) -> Dim | None:
    """Return the dim whose size counts samples: one called `batch` wherever it stands."""
    dims = (dim for spec in signature.inputs for dim in spec.dims)
    named = (dim for dim in dims if (dim.name or "").casefold() == _BATCH)
    return next(named, None) or FeedForm.of(signature).batch


def _check_sizes(name: str, sizes: Sequence[int], signature: Signature) -> None:
    dims = signature.free_dims
    if name not in dims:
        raise unknown_name_error("dim in --size:", name, tuple(dims))
    dim = dims[name]
    for size in sizes:
        if not dim.low <= size <= dim.high:
            raise UsageError(
                f"{name}={size} is outside of the domain, {name}={dim.low}..{dim.high}",
                hint=f"choose sizes from {dim.low} to {dim.high}, or export with a wider range",
                option="size",
                code=ErrorCode.INVALID_VALUE,
            )


def plan_rows(
    manifest: Manifest,
    source: Source,
    options: BenchmarkOptions,
    targets: tuple[Target, ...] = TARGETS,
    unusable: Mapping[str, str] = MappingProxyType({}),
) -> tuple[tuple[RowSpec, ...], dict[str, str]]:
    """Return the rows to measure, and why others of the folder are left out, by name.

    `unusable` says why artifacts cannot be opened, by name.

    Raises:
        UsageError: a pattern of `--row` fits no row.
    """
    rows, skipped = list(_rows_of_module(manifest, options)), {}
    if identify_artifact(source) is not None:  # such as an ONNX file of another tool
        skipped = {row.name: "the reference is a file that torch does not run" for row in rows}
        rows = []
    for artifact in manifest.artifacts:
        target = target_named(artifact.target, targets)
        reason = unusable.get(artifact.name) or _describe_skip(artifact, target, source, options)
        if reason:
            skipped[artifact.name] = reason
        else:
            rows.extend(_rows_of(artifact, target, manifest, options.device))
    skipped |= {one.step: "it is pending on another host" for one in manifest.pending}
    skipped |= {one.step: f"it was not made: {one.message}" for one in manifest.failures}
    if not options.only:
        return tuple(rows), skipped
    changed = {name: reason for name, reason in unusable.items() if reason}
    only = options.only
    if options.any_row:
        only = tuple(one for one in only if any(fnmatchcase(row.name, one) for row in rows)) or only
    return _select(rows, only, skipped), changed


def _rows_of_module(manifest: Manifest, options: BenchmarkOptions) -> Iterator[RowSpec]:
    yield RowSpec(name=EAGER_ROW, runtime="torch", verdict="reference")
    for variant in options.compiled:
        verdict = _find_compiled_verdict(manifest, variant, options.device)
        name = name_compiled(variant)
        yield RowSpec(name=name, runtime="torch", variant=variant, verdict=verdict)


def _find_compiled_verdict(manifest: Manifest, mode: str, device: str) -> str:
    """Return the verdict that `validate --compiled` recorded on this device with this torch."""
    version = metadata.version("torch")
    for one in manifest.compiled:
        if (one.mode, one.torch, one.verdict.device) == (mode, version, device):
            return PASSED if one.verdict.passed else REJECTED
    return UNJUDGED


def _describe_skip(
    artifact: Artifact, target: Target, source: Source, options: BenchmarkOptions
) -> str:
    if artifact.rejected and not options.rejected:
        return "it was rejected (--rejected measures it)"
    if is_stage(target):
        return "it is a step towards an engine, and not deployed itself"
    readiness = target.readiness()
    if not readiness.ready:
        return readiness.reason
    if options.device not in target.DEVICES:
        return f"{artifact.target} does not run on {options.device}"
    if isinstance(target, Native) and not source.trust:
        return "it is machine code of its maker (--trust opens it)"
    return ""


def _rows_of(
    artifact: Artifact, target: Target, manifest: Manifest, device: str
) -> Iterator[RowSpec]:
    verdict = manifest.verdict_of(artifact.name)
    accuracy = None if artifact.accuracy is None else artifact.accuracy.artifact
    row = RowSpec(
        name=artifact.name,
        runtime=_RUNTIMES.get(artifact.target, artifact.target),
        precision=str(artifact.precision),
        file=artifact.files[0].name,
        target=artifact.target,
        verdict=REJECTED if artifact.rejected else PASSED,
        sqnr=None if verdict is None else verdict.sqnr,
        exact=verdict is not None and verdict.exact,
        accuracy=accuracy,
        size=artifact.size,
    )
    yield row
    if isinstance(target, Deployable):
        for name in target.list_deployments(device):
            yield replace(
                row, name=f"{row.name}:{name}", variant=name, verdict=UNJUDGED, sqnr=None,
                exact=False,
            )  # fmt: skip


def default_targets() -> tuple[str, ...]:
    """Return the formats that a checkpoint is exported to: all that are ready here, in float32.

    Machine code of torch's compiler is not among them: `torch.compile` is a row already.
    """
    return tuple(
        target.NAME
        for target in TARGETS
        if not is_stage(target)
        and not isinstance(target, Native)
        and Precision.FP32 in target.MADE_FROM
        and target.readiness().ready
    )


def read_variants(text: str) -> tuple[str, ...]:
    """Return the variants of torch.compile, from `default,max-autotune+dynamic` or `none`.

    Raises:
        UsageError: one of them is unknown.
    """
    if text.strip() == "none":
        return ()
    return tuple(dict.fromkeys(plain_variant(part.strip()) for part in text.split(",")))


_RUNTIMES: Mapping[str, str] = {
    "torchscript": "torch.jit",
    "pt2": "torch.export",
    "aoti": "AOTInductor",
    "onnx": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorrt": "TensorRT",
    "tensorrt-rtx": "TensorRT-RTX",
}


def _select(
    rows: Sequence[RowSpec], only: Sequence[str], skipped: Mapping[str, str]
) -> tuple[RowSpec, ...]:
    for pattern in only:
        if any(fnmatchcase(row.name, pattern) for row in rows):
            continue
        left = [
            f"{name}: {why}"
            for name, why in skipped.items()
            if any(fnmatchcase(one, pattern) for one in (name, name.removeprefix("rejected/")))
        ]
        raise UsageError(
            f"--row {pattern} fits no row" + (f" that is measured: {left[0]}" if left else ""),
            hint=Hint(f"the rows are {', '.join(row.name for row in rows)}"),
            option="row",
            code=ErrorCode.UNKNOWN_NAME,
        )
    return tuple(row for row in rows if any(fnmatchcase(row.name, one) for one in only))
