"""What an export gives to a Python caller: each artifact with its file and its verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import UsageError
from ..core.manifest import Failure, Manifest, Pending
from ..core.names import unknown
from ..core.precision import Precision
from ..core.verdict import Verdict


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
        """Whether it was judged right."""
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
        """Whether everything asked for was made, judged and right."""
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
        return self.manifest.waiting

    def __getitem__(self, name: str) -> ExportedArtifact:
        """The artifact of that name.

        Raises:
            UsageError: it failed, is pending, or nobody asked for it.
        """
        for one in self.artifacts:
            if one.name == name:
                return one
        for failure in self.failures:
            if failure.step == name:
                raise UsageError(f"{name} was not made: {failure.message}", hint=failure.hint)
        raise unknown("artifact", name, [one.name for one in self.artifacts])

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
