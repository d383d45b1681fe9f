"""The artifacts of one name in all parts of a model, opened in their runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from ...converters.registry import target_named
from ...core.contract import Array, Feed, Native, Outputs, Program, Runner
from ...core.errors import ErrorCode, ModelcError, RunnerError
from ...core.records import Artifact
from ...core.signature import FLOATS, Signature
from ...validators.feed_values import check_samples
from ..judge_case import Candidate
from ..order import Judging
from ..recorded_run import describe_changed_file
from .parts_file import BuiltPart


class OpenedParts:
    """The artifacts of one name in all parts, opened in their runtimes.

    Raises:
        RunnerError: one of them cannot be opened.
    """

    def __init__(self, parts: Mapping[str, BuiltPart], name: str, judging: Judging) -> None:
        self._held = ExitStack()
        self._runners: dict[str, tuple[Runner, Signature]] = {}
        self.called: set[str] = set()  # the parts that ran since this was cleared
        self.artifacts: dict[str, Artifact] = {}
        try:
            for part, built in parts.items():
                self._open(part, built, name, judging)
        except BaseException:
            self._held.close()
            raise

    def _open(self, part: str, built: BuiltPart, name: str, judging: Judging) -> None:
        artifact = built.artifact(name)
        if artifact is None or built.manifest is None:
            raise RuntimeError(f"{part} has no artifact {name}")
        target = target_named(artifact.target)
        candidate = Candidate(
            name=f"{part}/{name}",
            target=target,
            precision=artifact.limit_precision,
            path=built.folder / artifact.files[0].name,
        )
        runner = candidate.open(judging.device_for(target), built.manifest.signature)
        signature = built.manifest.signature_of(artifact)
        self._runners[part] = self._held.enter_context(runner), signature
        self.artifacts[part] = artifact

    def __enter__(self) -> OpenedParts:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def run(self, part: str, feed: Feed) -> Outputs:
        """Run an artifact on the arguments of one call.

        Raises:
            RunnerError: it rejects them, or they are outside of its domain.
        """
        runner, signature = self._runners[part]
        self.called.add(part)
        try:
            arrays, _ = check_samples(signature, feed)
            _check_values(signature, arrays)
        except ModelcError as error:
            raise RunnerError(
                f"part {part!r} is called outside of its domain: {error.message}",
                hint="state the range of its inputs, as --input 'PART.INPUT[batch=1..8,_]'",
                code=ErrorCode.FEED_REJECTED,
            ) from error
        try:
            outputs = runner.run(arrays)
        except RunnerError as error:
            raise RunnerError(
                f"part {part!r}: {error.message}", hint=error.advice, code=error.code
            ) from error
        order = signature.outputs
        if {*order} == {*outputs}:
            outputs = {name: outputs[name] for name in order}
        return outputs


def _check_values(signature: Signature, arrays: Mapping[str, Array]) -> None:
    """Check that integers are within the ranges that the part was judged on.

    Raises:
        RunnerError: one is not.
    """
    for spec in signature.inputs:
        array, values = arrays[spec.name], spec.values
        if values is None or values.follows or spec.dtype in (*FLOATS, "bool") or not array.size:
            continue
        low, high = int(array.min()), int(array.max())
        if low < values.low or high > values.high:
            raise RunnerError(f"{spec.name} has {low}..{high}, not {values}", hint="")


def refuse_to_open(parts: Mapping[str, BuiltPart], name: str) -> str:
    """Return why the artifacts of this name cannot be opened here; empty if they can.

    Artifacts that are programs, or run their maker's code, are opened only as their manifest
    records them.
    """
    for part, built in parts.items():
        artifact = built.artifact(name)
        if artifact is None:
            state = built.problem or f"has no {name} that passed"
            return state if built.problem else f"{part} {state}"
        target = target_named(artifact.target)
        ready = target.readiness()
        if not ready.ready:
            return ready.reason
        runs_code = isinstance(target, Native | Program)
        if runs_code and describe_changed_file(artifact, built.folder):
            return f"{part} is not as it was built, and opening it runs code"
        if isinstance(target, Native):
            reason = target.distrust_reason(built.folder / artifact.files[0].name, {})
            if reason:
                return reason
    return ""
