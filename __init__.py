"""modelc: convert PyTorch checkpoints and prove every artifact against eager."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself is not imported: an interrupt meanwhile would be a traceback

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .pipeline.api import (
        CalibrationOptions,
        Capture,
        ExportedArtifact,
        ExportResult,
        Judging,
        LabelledOptions,
        Limits,
        Lowering,
        Manifest,
        Measuring,
        ModelcError,
        Moved,
        Order,
        Precision,
        ServedRequest,
        Source,
        Verdict,
        Wanted,
        build,
        export,
        inspect,
        inspect_breaks,
        inspect_checkpoint,
        install_runtime,
        localise,
        rejudge,
        run,
        targets,
        validate,
        validate_compiled,
        validate_external,
        validate_served,
    )

__all__ = [
    "CalibrationOptions",
    "Capture",
    "ExportResult",
    "ExportedArtifact",
    "Judging",
    "LabelledOptions",
    "Limits",
    "Lowering",
    "Manifest",
    "Measuring",
    "ModelcError",
    "Moved",
    "Order",
    "Precision",
    "ServedRequest",
    "Source",
    "Verdict",
    "Wanted",
    "__version__",
    "build",
    "export",
    "inspect",
    "inspect_breaks",
    "inspect_checkpoint",
    "install_runtime",
    "localise",
    "rejudge",
    "run",
    "targets",
    "validate",
    "validate_compiled",
    "validate_external",
    "validate_served",
]


def __getattr__(name: str) -> object:
    """Load the Python API on first use, so that `import modelc` costs nothing."""
    if name in __all__:
        from .pipeline import api

        value: object = getattr(api, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The Python API; what is private to the package is left out."""
    return sorted(__all__)
