"""`export` and `build` of the Python API: a module or checkpoint in, judged artifacts out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.children.limits import ProcessLimits
from ..core.contract import CAPTURE_TIMEOUT
from ..core.errors import ErrorCode, UsageError, unknown_name_error
from ..core.events import Tell, ignore_events
from ..core.kinds import Precision
from ..core.manifest import Failure, Manifest, Pending
from ..core.model_meta import ModelMeta
from ..core.verdict import Verdict
from .isolation.worker import run_request
from .limit_text import Measuring
from .make_order import build_order, include_steps, preprocess_as_declared
from .model_metadata import flatten_meta, make_meta
from .option_values import parse_capture, parse_postprocess
from .order import Judging, Lowering, Order, Source, Wanted
from .parts.export_parts import export_parts
from .user_samples import Example, keep_with_record, store_module, store_samples

if TYPE_CHECKING:
    import torch

PathLike = str | Path


def export(  # noqa: PLR0913 - the options of `modelc export`, all but three optional
    source: PathLike | torch.nn.Module,
    *,
    to: str | Sequence[str],
    out: PathLike = "out",
    model: str | None = None,
    model_args: Mapping[str, str] | None = None,
    method: str | None = None,
    inputs: str | Sequence[str] | Example = (),
    static: Sequence[str] = (),
    drop_outputs: Sequence[str] = (),
    weights_key: str | None = None,
    samples: PathLike | Example | None = None,
    include_preprocess: bool = False,
    postprocess: str = "",
    strict: bool = True,
    allow_pickle: bool = False,
    trust: bool = False,
    capture: str = "auto",
    patches: Sequence[str] = (),
    custom_ops: Mapping[str, str] | None = None,
    runtimes: Sequence[str] = (),
    opset: int | None = None,
    references: bool = True,
    external_data: bool = False,
    narrow: bool = False,
    guard: bool = False,
    stateful: bool = False,
    meta: Mapping[str, object] | ModelMeta | None = None,
    against_pipeline: str | None = None,
    parts: Mapping[str, str] | None = None,
    compose: str | None = None,
    capture_timeout: float = CAPTURE_TIMEOUT,
    overwrite: bool = False,
    lowering: Lowering | None = None,
    judging: Judging | None = None,
    measuring: Measuring | None = None,
    isolate: bool = False,
    timeout: float | None = None,
    memory: int | None = None,
    tell: Tell = ignore_events,
) -> ExportResult:
    """Convert a module or a checkpoint and judge every artifact against eager.

    A module is stored in `out` as a pickle and read from there: it stays as it is.

    Args:
        source: a module, a weights file or folder, or `"hf://org/name@revision"`.
        to: a format or several, as `"onnx"` or `"openvino:fp16"`.
        out: output folder.
        model: `"package.module:factory"`; not needed where the checkpoint holds its module.
        model_args: arguments of the factory, as text.
        method: what to convert instead of forward.
        inputs: example inputs (a tensor, or a tuple or dict of them, by position or by name), or
            specs in the `--input` language, as `"x:float32[batch=1..8,3,224,224]"`.
        static: dims to fix at their opt size.
        drop_outputs: names of outputs to leave out.
        weights_key: the weights to take where the checkpoint holds several sets.
        samples: real samples beside specs: a file, `package.module:loader`, or example inputs.
        include_preprocess: put the preprocessing that `meta` declares into the artifact, whose
            input is then the uint8 image in RGB, (N, height, width, channels).
        postprocess: steps after the model to put into it, as `"softmax,topk=5"` or `"sigmoid,nms"`.
        strict: refuse missing or unexpected weights.
        allow_pickle: read full pickles.
        trust: open a checkpoint that is a program: TorchScript, `.pt2`.
        capture: `auto`, `export`, `export-strict`, `script`, `mixed` or `trace`.
        patches: functions (`"package.module:fn"`) that change the copy to capture.
        custom_ops: by operator (`"ns::op"`), the function that writes it in ONNX.
        runtimes: what an ONNX must load in, as `"onnxruntime==1.20"`.
        opset: of ONNX.
        references: for a step that another host finishes, store eager's outputs, so that it needs
            neither checkpoint nor code.
        external_data: keep ONNX weights in a file of their own.
        narrow: accept artifacts that hold in a part of the domain, which is then their own.
        stateful: for OpenVINO, keep a decoder's cache in states, as openvino-genai expects.
        guard: put a check of the domain into an ONNX, so that its runtime fails outside of it.
        meta: class names, preprocessing, tokenizer, licence to put into artifacts: keys as of
            `[models.NAME.meta]`, or a record.
        against_pipeline: a function (`"package.module:fn"`) that the model must agree with before
            it is converted: it takes what the artifact takes, and returns its outputs.
        parts: the submodule or method of each part of the model, by name; `out` then has a folder
            for each, and artifacts are named `"PART/onnx"`, and `"whole/onnx"` for all together.
        compose: the function (`"package.module:fn"`) of the parts and the inputs that returns the
            outputs of the whole.
        capture_timeout: seconds of torch's symbolic solver in one attempt at a capture.
        overwrite: move another checkpoint's artifacts in `out` away.
        lowering: calibration data and quantizer of INT8, what stays in floating point.
        judging: feeds, seed, tolerances, device.
        measuring: what to measure on labelled data, and the most that may be lost.
        isolate: work in a process of its own; so it does with `timeout` or `memory`.
        timeout: seconds that one step may take.
        memory: bytes that the work may take.
        tell: listens to progress.

    Returns:
        The artifacts with their verdicts; `result.passed` is whether all passed.

    Raises:
        ModelcError: something stopped the work.
    """
    folder, bounds = Path(out), _process_limits(timeout, memory, isolate=isolate)
    wanted = tuple(Wanted.parse(text) for text in ([to] if isinstance(to, str) else to))
    specs, example = _split_inputs(inputs, samples)
    with keep_with_record(folder) as stored:
        if not isinstance(source, str | Path):
            source = store_module(source, folder, isolate=bounds is not None)
            stored.append(source)
        if example is not None:
            stored.append(store_samples(example, folder))
            samples = stored[-1]
        order = Order(
            source=Source(
                checkpoint=Path(source),
                model=model,
                model_args=dict(model_args or {}),
                strict=strict,
                allow_pickle=allow_pickle or source in stored,
                trust=trust or source in stored,
                inputs=specs,
                samples=None if samples is None else Path(samples),
                method=method,
                static=tuple(static),
                drop_outputs=tuple(drop_outputs),
                weights_key=weights_key,
                include_preprocess=include_preprocess,
                postprocess=parse_postprocess(postprocess) if postprocess else "",
            ),
            wanted=wanted,
            out=folder,
            judging=judging or Judging(),
            capture=parse_capture(capture),
            opset=opset,
            references=references,
            external_data=external_data,
            narrow=narrow,
            guard=guard,
            stateful=stateful,
            meta=_read_meta(meta),
            against_pipeline=against_pipeline,
            capture_timeout=capture_timeout,
            overwrite=overwrite,
            lowering=lowering or Lowering(),
            measuring=measuring,
            patches=tuple(patches),
            custom_ops=dict(custom_ops or {}),
            runtimes=tuple(runtimes),
        )
        order = replace(order, source=include_steps(order.source, order.meta))
        many = partial(export_parts, (parts or {}, compose)) if parts or compose else run_request
        return make_result(many(preprocess_as_declared(order), bounds, tell), folder)


def _read_meta(meta: Mapping[str, object] | ModelMeta | None) -> ModelMeta | None:
    """The declared metadata; paths in it are relative to the working folder."""
    if meta is None or isinstance(meta, ModelMeta):
        return meta
    return make_meta(dict(flatten_meta(meta, Path())))


def _split_inputs(
    inputs: str | Sequence[str] | Example, samples: PathLike | Example | None
) -> tuple[tuple[str, ...], Example | None]:
    """The `--input` texts, and the example inputs.

    Raises:
        UsageError: there are two sets of example inputs.
    """
    texts = (inputs,) if isinstance(inputs, str) else inputs
    is_text = isinstance(texts, tuple | list) and all(isinstance(one, str) for one in texts)
    given = None if samples is None or isinstance(samples, str | Path) else samples
    if is_text:
        return tuple(texts), given
    if samples is not None:
        raise UsageError(
            "both inputs and samples are example inputs",
            hint="give example inputs once; with samples, inputs are texts as 'x[batch=1..8,_]'",
            option="samples",
            code=ErrorCode.DUPLICATE_INPUT,
        )
    return (), inputs


def _process_limits(
    timeout: float | None, memory: int | None, *, isolate: bool
) -> ProcessLimits | None:
    """What a process of its own may take; None where the work is done in this one."""
    if not isolate and timeout is None and memory is None:
        return None
    return ProcessLimits(timeout=timeout, memory=memory)


def run(
    order: Order,
    tell: Tell = ignore_events,
    *,
    isolate: bool = False,
    timeout: float | None = None,
    memory: int | None = None,
) -> ExportResult:
    """Carry out an order, as `export` makes it.

    Args:
        order: what to do.
        tell: listens to progress.
        isolate: work in a process of its own; so it does with `timeout` or `memory`.
        timeout: seconds that one step may take.
        memory: bytes that the work may take.

    Raises:
        ModelcError: something stopped the work.
    """
    bounds = _process_limits(timeout, memory, isolate=isolate)
    return make_result(run_request(order, bounds, tell), order.out)


def build(  # noqa: PLR0913 - the options of the build commands, all but three optional
    path: PathLike,
    *,
    to: str,
    out: PathLike = "out",
    against: Source | None = None,
    lowering: Lowering | None = None,
    settings: Mapping[str, str] | None = None,
    meta: Mapping[str, object] | ModelMeta | None = None,
    judging: Judging | None = None,
    measuring: Measuring | None = None,
    isolate: bool = False,
    timeout: float | None = None,
    memory: int | None = None,
    tell: Tell = ignore_events,
) -> ExportResult:
    """Build one artifact from a converted model, or from a checkpoint.

    Args:
        path: a model that the target is made from.
        to: the format, as `"openvino:fp16"`.
        out: output folder.
        against: the eager side; None takes the manifest beside `path`, or else `path` itself as its
            own runtime runs it.
        lowering: calibration data and quantizer of INT8, what stays in floating point.
        settings: options that the format alone has, as text.
        meta: as of `export`; what the manifest beside `path` records is kept.
        judging: feeds, seed, tolerances, device.
        measuring: what to measure on labelled data, and the most that may be lost.
        isolate: work in a process of its own; so it does with `timeout` or `memory`.
        timeout: seconds that one step may take.
        memory: bytes that the work may take.
        tell: listens to progress.

    Raises:
        ModelcError: something stopped the work.
    """
    given = against or Source(checkpoint=Path(path))
    order = Order(
        source=given,
        wanted=(Wanted.parse(to),),
        out=Path(out),
        judging=judging or Judging(),
        lowering=lowering or Lowering(),
        settings=settings or {},
        measuring=measuring,
        meta=_read_meta(meta),
    )
    bounds = _process_limits(timeout, memory, isolate=isolate)
    return make_result(run_request(build_order(Path(path), order), bounds, tell), order.out)


@dataclass(frozen=True, kw_only=True)
class ExportedArtifact:
    """One artifact that was judged: its name, format, precision, model file and verdict.

    A rejected one's file lies in `rejected/` of the output folder.
    """

    name: str
    target: str
    precision: Precision
    path: Path
    verdict: Verdict

    @property
    def passed(self) -> bool:
        """Whether its verdict is passed."""
        return self.verdict.passed


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What an output folder holds after a run.

    `artifacts` are those that were judged, `failures` steps that made none, `pending` those that
    another host must finish. `result["onnx"]` is the artifact of that name.
    """

    out: Path
    manifest: Manifest
    artifacts: tuple[ExportedArtifact, ...]

    @property
    def passed(self) -> bool:
        """Whether everything requested was built and passed."""
        return self.manifest.passed

    @property
    def exit_code(self) -> int:
        """That of the command for the same result: 0 where all passed."""
        return self.manifest.exit_code

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Steps that made no artifact, with message and hint."""
        return self.manifest.failures

    @property
    def pending(self) -> tuple[Pending, ...]:
        """Steps that wait for another host."""
        return self.manifest.steps_pending

    def __getitem__(self, name: str) -> ExportedArtifact:
        """The artifact of that name.

        Raises:
            UsageError: it failed, is pending, or was not requested.
        """
        for one in self.artifacts:
            if one.name == name:
                return one
        for failure in self.failures:
            if failure.step == name:
                raise UsageError(f"{name} failed: {failure.message}", hint=failure.hint)
        raise unknown_name_error("artifact", name, [one.name for one in self.artifacts])

    def __iter__(self) -> Iterator[ExportedArtifact]:
        """The artifacts, in the order they were made."""
        return iter(self.artifacts)


def make_result(manifest: Manifest, out: Path) -> ExportResult:
    """The result of a run whose record is `manifest`."""
    judged = {verdict.artifact: verdict for verdict in manifest.verdicts}
    artifacts = tuple(
        ExportedArtifact(
            name=one.name,
            target=one.target,
            precision=one.precision,
            path=out / one.files[0].name,
            verdict=judged[one.name],
        )
        for one in manifest.artifacts
        if one.name in judged
    )
    return ExportResult(out=out, manifest=manifest, artifacts=artifacts)
