"""ONNX for ONNX Runtime's TensorRT provider, with the engines that it would build on opening.

It is for models that TensorRT does not take whole: CUDA or the CPU runs the rest. The provider
compiles a model when a session is created. If TensorRT takes it whole, the file is a context model,
which holds one EPContext node in place of the graph. Otherwise it is the ONNX itself: ONNX Runtime
1.24 writes no context model of parts. Both need the engines beside them. Engines are machine code,
so the file is opened only if this process made it, or if the user trusts its maker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..core.contract import Converted, Inspection, Job, Preflight, Readiness, Runner
from ..core.errors import (
    LOGGED,
    ConversionError,
    ErrorCode,
    Hint,
    MissingError,
    Option,
    RunnerError,
    first_line,
)
from ..core.kinds import Capture, Precision
from ..core.segments import SegmentOptions
from ..core.signature import Signature
from . import archive_records, onnx_model, onnx_sessions, tensorrt_engine
from .archive_records import check_trust, trust_file
from .installed_packages import package_versions
from .onnx_files import read_onnx_metadata, save_model, set_metadata
from .runner_base import runner_error, text_lines
from .trt import context_files
from .trt.context_files import (
    CONTEXT_NODE,
    find_engines,
    is_whole,
    list_files,
    replace_by_context,
)
from .trt.engine_options import options_for, parse_options, profile_text
from .trt.engine_profiles import check_part_settings, profiles_for
from .trt.onnx_segments import plan_onnx
from .trt.provider_options import (
    PROVIDER,
    build_options,
    cache_options,
    context_options,
    input_ranges,
    keep_timings,
    measure_ranges,
)
from .trt.trt_installation import (
    TrtLibrary,
    find_tensorrt,
    load_tensorrt,
    query_driver,
    read_host_versions,
    refuse_other_device,
    tensorrt_readiness,
)
from .trt.trt_memory import estimate_memory
from .trt.trt_preflight import load_typed_model

if TYPE_CHECKING:
    import onnxruntime

    from ..core.contract import Feed, Outputs

    Session: TypeAlias = onnxruntime.InferenceSession

NAME: str = "onnx-tensorrt"
SUMMARY: str = (
    "ONNX with TensorRT engines of its parts, for ONNX Runtime, which runs the rest in CUDA"
)
SUFFIX: str = context_files.SUFFIX
MADE_FROM: Mapping[Precision, str] = {
    Precision.FP32: "tensorrt-onnx",
    Precision.FP16: "tensorrt-onnx:fp16",
    Precision.INT8: "tensorrt-onnx:int8",
}
CAPTURES: tuple[Capture, ...] = ()
DEVICES: tuple[str, ...] = ("cuda",)
FINISHED_BY: str = "build-trt"
FLOOR_FACTOR: float = tensorrt_engine.FLOOR_FACTOR
read_metadata = read_onnx_metadata
_FIRST_KEY = b"\x08"  # protobuf's key of field 1, `ir_version`
_LIBRARIES = ("libonnxruntime_providers_tensorrt.so", "onnxruntime_providers_tensorrt.dll")
_OPTIONS = "provider_options"  # metadata: the options of the build, by which the file is opened


def host_versions() -> Mapping[str, str]:
    """Return the versions of the library and the driver on this host, and its GPU."""
    return read_host_versions(TrtLibrary.ORT)


def readiness() -> Readiness:
    """Check for a device, ONNX Runtime and its TensorRT provider, without importing them."""
    found = tensorrt_readiness(query_driver(), find_tensorrt(TrtLibrary.ORT))
    if found.ready and not _has_provider():
        return Readiness(
            ready=False,
            reason="the installed ONNX Runtime does not have the TensorRT provider",
            mend=TrtLibrary.ORT.install,
        )
    return found


def _has_provider() -> bool:
    """Return whether the installed package has the provider's library."""
    with suppress(metadata.PackageNotFoundError):
        files = metadata.files(TrtLibrary.ORT.distributions[0]) or ()
        return any(file.name in _LIBRARIES for file in files)
    return False


def claims(path: Path) -> bool:
    """Return whether a .ctx.onnx file starts with the first key of a ModelProto."""
    if not path.name.endswith(SUFFIX) or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(1) == _FIRST_KEY


def limit_precision(precision: Precision, settings: Mapping[str, str]) -> Precision:
    """Return the precision whose limits apply: TF32, which the provider leaves on, lowers FP32."""
    return tensorrt_engine.limit_precision(precision, settings)


def check_settings(signature: Signature, settings: Mapping[str, str]) -> None:
    """Check that every dim has bounds, and that engines can be built for the GPUs asked for.

    Raises:
        UsageError: a dim has none, or only GPUs of the same compute capability were asked for.
    """
    check_part_settings(NAME, signature, settings)


def preflight(job: Job) -> Preflight:
    """Plan which parts of the job's parent run in TensorRT, by the table of its parser.

    A model of which no part does is a blocker; what stays in ONNX Runtime is a warning.

    Raises:
        ConversionError: the parent cannot be read.
    """
    parent, options = _parent_of(job), parse_options(job.settings)
    asked = SegmentOptions(min_block_size=options.min_block_size)
    plan = plan_onnx(parent, asked, job.signature)
    profiles = profiles_for(job.signature, ())
    memory = estimate_memory(load_typed_model(parent), profiles, options)
    return Preflight(
        blockers=plan.describe_no_engine(),
        warnings=plan.describe_left_out(),
        memory=memory.total,
        source=plan.source,
        option="min-block-size",
    )


def _parent_of(job: Job) -> Path:
    if job.parent is None:
        raise RuntimeError(f"a job of {NAME} needs an ONNX parent")
    return job.parent


def convert(job: Job) -> Converted:
    """Let the provider build its engines, and keep them beside a model that opens with them.

    Args:
        job: its settings are those of `trt.engine_options`.

    Raises:
        ConversionError: TensorRT built no engine, or ONNX Runtime rejected the model.
        MissingError: no device, or no provider.
        UsageError: an invalid setting.
    """
    runtime = load_tensorrt(TrtLibrary.ORT)
    check_settings(job.signature, job.settings)
    path = job.folder / (job.stem + SUFFIX)
    build = _write_model(job, path)
    timings = keep_timings(job.cache and job.cache / NAME)
    context = path.with_name(f"{job.stem}.dump.onnx")
    _open_session(path, {**build, **timings, **cache_options(job.stem), **context_options(context)})
    whole = context.is_file() and is_whole(context, path)
    if whole:
        replace_by_context(path, context, job.metadata)
    else:
        context.unlink(missing_ok=True)
        _open_session(path, {**build, **timings, **cache_options(job.stem, job.folder)})
    engines = find_engines(path)
    if not engines:
        raise _no_engine_error()
    for file in (path, *engines):
        trust_file(file)
    limits = limit_precision(job.precision, job.settings)
    return Converted(
        files=list_files(path, engines),
        versions={"onnxruntime": str(runtime.__version__), **package_versions("tensorrt")},
        options={
            "engines": str(len(engines)),
            "form": "context model" if whole else "ONNX with engines",
            "profiles": profile_text(profiles_for(job.signature, ())[0]),
        },
        judged_as=None if limits is job.precision else limits,
    )


def _no_engine_error() -> ConversionError:
    return ConversionError(
        "TensorRT built no engine: no part of the model runs in it",
        hint=Hint("see which operators it takes: modelc inspect FILE.onnx --segments; or lower ",
                  Option("min-block-size")),
        option="min-block-size",
        code=ErrorCode.NO_EFFECT,
    )  # fmt: skip


def _write_model(job: Job, path: Path) -> dict[str, str]:
    """Write the parent with shapes and metadata; return the options of its build.

    The provider names engines after the file's name and graph, so both stay as they are from here.
    """
    parent = _parent_of(job)
    options = options_for(parse_options(job.settings), TrtLibrary.ORT)
    asked = SegmentOptions(min_block_size=options.min_block_size)
    model = load_typed_model(parent)
    ranges = dict(input_ranges(job))
    if plan_onnx(parent, asked, job.signature).left_out:  # an engine may read inner tensors
        ranges |= measure_ranges(job, parent, model)
    build = build_options(options, model, ranges)
    set_metadata(model, {**job.metadata, _OPTIONS: json.dumps(build)})
    save_model(model, path, external_data=job.external_data)
    return build


def _open_session(path: Path, options: Mapping[str, str]) -> Session:
    """Open a session whose first provider is TensorRT's.

    Raises:
        RunnerError: ONNX Runtime rejects the model or the options.
        MissingError: the provider does not load: ONNX Runtime only logs it, and uses another one.
    """
    with suppress(MissingError):
        load_tensorrt(TrtLibrary.TENSORRT)  # its libraries, which the provider needs
    providers = (
        (PROVIDER, {"device_id": "0", **options}),
        ("CUDAExecutionProvider", {"use_tf32": "0"}),
        *onnx_sessions.CPU_PROVIDERS,
    )
    try:
        session = onnx_sessions.open_session(path, path.parent, providers)
    except Exception as error:
        raise runner_error("ONNX Runtime", error, " ".join(text_lines(error))) from error
    if session.get_providers()[0] != PROVIDER:
        raise MissingError(
            f"{PROVIDER} does not load here, so ONNX Runtime used {session.get_providers()[0]}",
            hint=Hint(f"{TrtLibrary.ORT.install}, the TensorRT that it was built for; ", LOGGED),
            code=ErrorCode.NOT_INSTALLED,
        )
    session.disable_fallback()  # to other providers, when a run fails
    return session


def distrust_reason(path: Path, settings: Mapping[str, str]) -> str:
    """Return why the file must not be opened; empty if its maker is trusted or this process.

    Args:
        path: the model, its engines beside it.
        settings: `trust_engine` trusts its maker.
    """
    files = [one for one in (path, *find_engines(path)) if one.is_file()]
    reasons = (
        archive_records.distrust_reason(one, settings, "of a model with engines") for one in files
    )
    return next(filter(None, reasons), "")


def open_runner(
    path: Path, device: str, signature: Signature, settings: Mapping[str, str] | None = None
) -> Runner:
    """Open the model with its engines on the GPU.

    Args:
        path: the model.
        device: `cuda`.
        signature: of the model.
        settings: `trust_engine` allows a file that this process did not make.

    Raises:
        MissingError: another device, or no GPU or provider.
        RunnerError: the file is not trusted, lacks an engine, or ONNX Runtime cannot open it.
    """
    del signature
    refuse_other_device(NAME, device)
    load_tensorrt(TrtLibrary.ORT)
    check_trust(distrust_reason(path, settings or {}))
    engines = find_engines(path)
    missing = [one.name for one in engines if not one.is_file()]
    if missing or not engines:
        raise RunnerError(
            f"{path.name} needs its engines beside it, and lacks {missing or 'all'}",
            hint="copy the files that the manifest lists for it",
            code=ErrorCode.NOT_FOUND,
        )
    return ProviderRunner(_open_session(path, _read_options(path)))


def _read_options(path: Path) -> dict[str, str]:
    """Return the options of the build with the place of the engines; none of a context model.

    Raises:
        RunnerError: its metadata holds no such options.
    """
    text = read_metadata(path).get(_OPTIONS, "")
    if not text:
        return {}
    try:
        options = {str(name): str(value) for name, value in json.loads(text).items()}
    except (AttributeError, ValueError, RecursionError) as error:
        raise RunnerError(
            f"{path.name} does not hold the options of its build: {first_line(error)}",
            hint="give the file as modelc made it",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    return {**options, **cache_options(path.name.removesuffix(SUFFIX), path.parent)}


class ProviderRunner(onnx_sessions.OnnxRunner):
    """A session that takes and returns float32 where the model has half inputs and outputs."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._half = [
            value.name for value in session.get_inputs() if value.type == "tensor(float16)"
        ]

    def run(self, feed: Feed) -> Outputs:
        """Run the feed; return copies."""
        given = {name: feed[name].astype("float16") for name in self._half if name in feed}
        found = super().run({**feed, **given})
        return {
            name: one.astype("float32") if str(one.dtype) == "float16" else one
            for name, one in found.items()
        }


def inspect(path: Path) -> Inspection:
    """Describe the graph; the engines stay closed."""
    found = onnx_model.inspect(path)
    contexts = found.operators.get(CONTEXT_NODE, 0)
    outside = sum(found.operators.values()) - contexts
    facts = {
        **found.facts,
        "engines": str(len(find_engines(path))),
        "EPContext nodes": str(contexts),
        "other operators": str(outside),
    }
    return Inspection(
        target=NAME,
        inputs=found.inputs,
        outputs=found.outputs,
        facts=facts,
        weights=found.weights,
        operators=found.operators,
        metadata=found.metadata,
        quantized=found.quantized,
    )


def coverage(path: Path, example: Feed, device: str) -> None:
    """Return None: which dtypes the layers of its engines compute in is not recorded."""
