"""What the user asks of labelled data."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import UsageError
from .preprocess import Preprocess

# What the user asks of labelled data.


@dataclass(frozen=True, kw_only=True)
class LabelledOptions:
    """Where labelled samples are: a path or `package.module:loader`.

    `label` names the array that holds the labels, None finds it. `preprocess` is of images; None
    follows the signature.
    """

    source: str
    label: str | None = None
    preprocess: Preprocess | None = None

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise UsageError(
                "the labelled data is empty", hint="name a folder, a file or PKG.MOD:LOADER"
            )
