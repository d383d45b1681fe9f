"""What a deployment must know of a model: class names, preprocessing, tokenizer, licence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import ErrorCode, UsageError
from .preprocess import Preprocess

MAX_CLASSES = 65_536
MAX_META_BYTES = 1 << 19  # bytes of the text in an artifact
_MAX_NAME = 256  # characters of a class, a path or an id
_MAX_EXTRAS, _MAX_EXTRA = 64, 4096  # further keys, and characters of a value
_EXTRA_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SHOWN = 8  # classes in a line
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class TokenizerReference:
    """A tokenizer: a path, or an id on the hub, and the SHA-256 of its files where it is local."""

    source: str
    files: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_text("tokenizer", self.source)
        for name, digest in self.files.items():
            _check_text("tokenizer", name)
            if not _SHA256.fullmatch(digest):
                raise meta_error("tokenizer", f"{digest[:80]!r} is not a SHA-256")
        if len(self.files) > _MAX_EXTRAS:
            raise meta_error("tokenizer", f"it has more than {_MAX_EXTRAS} files")


@dataclass(frozen=True, kw_only=True)
class ModelMeta:
    """The metadata of a model, as declared; it is the same in the manifest and in each artifact.

    `classes` name the entries of the class dim of the output `classes_output`, in their order.
    `preprocess` says how an image becomes the input `preprocess_input`. `license` is an SPDX
    expression. Empty names of an output or input are those of a model that has only one. The model
    itself does what is `included_...`: `preprocess` says what is left to do outside of it.
    """

    classes: tuple[str, ...] = ()
    classes_output: str = ""
    preprocess: Preprocess | None = None
    preprocess_input: str = ""
    tokenizer: TokenizerReference | None = None
    license: str = ""
    extra: dict[str, str] = field(default_factory=dict)
    included_preprocess: Preprocess | None = None
    included_postprocess: str = ""

    def __post_init__(self) -> None:
        if len(self.classes) > MAX_CLASSES:
            raise meta_error("classes", f"{len(self.classes)} names are more than {MAX_CLASSES}")
        for name in self.classes:
            _check_text("classes", name)
        for key in ("classes_output", "preprocess_input", "license", "included_postprocess"):
            if getattr(self, key):
                _check_text(key.replace("_", "-"), getattr(self, key))
        _check_extra(self.extra)

    def __str__(self) -> str:
        """Return a line for the record of the request; it does not list classes."""
        parts = {
            "classes": str(len(self.classes) or ""),
            "preprocess": "" if self.preprocess is None else str(self.preprocess),
            "tokenizer": "" if self.tokenizer is None else self.tokenizer.source,
            "license": self.license,
            "extra": ",".join(self.extra),
        }
        return " ".join(f"{key}={text}" for key, text in parts.items() if text)

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """What to show of it: a key and a text each, without what is empty."""
        steps, inside, tokens = self.preprocess, self.included_preprocess, self.tokenizer
        texts = {
            "classes": ", ".join(self.classes[:_SHOWN]) + _count_text(len(self.classes)),
            "classes-output": self.classes_output,
            "preprocess": "" if steps is None else str(steps),
            "preprocess-input": self.preprocess_input,
            "values": "" if steps is None else "{:.4g} to {:.4g}".format(*steps.value_range),
            "preprocess inside": "" if inside is None else str(inside),
            "postprocess inside": self.included_postprocess,
            "tokenizer": "" if tokens is None else tokens.source,
            "tokenizer files": "" if tokens is None else ", ".join(tokens.files),
            "license": self.license,
            **{f"extra.{key}": text for key, text in self.extra.items()},
        }
        return tuple((key, text) for key, text in texts.items() if text)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is declared."""
        return self == ModelMeta()


def _count_text(count: int) -> str:
    return f", ... ({count})" if count > _SHOWN else ""


def meta_error(key: str, problem: str, hint: str = "") -> UsageError:
    """Return the error for a value of the metadata."""
    return UsageError(
        f"metadata {key}: {problem}",
        hint=hint or "docs/metadata.md lists the keys and their limits",
        option="meta",
        code=ErrorCode.INVALID_VALUE,
    )


def _check_text(key: str, text: str, most: int = _MAX_NAME) -> None:
    """Check that a text has something to show, and nothing that a terminal would obey."""
    if not text.strip():
        raise meta_error(key, "an empty text", "leave it out, or give a text")
    if len(text) > most:
        raise meta_error(key, f"{text[:40]!r}… is longer than {most} characters")
    if not all(char.isprintable() for char in text):
        raise meta_error(key, f"{text[:40]!r} has control characters", "leave them out")


def _check_extra(extra: Mapping[str, str]) -> None:
    if len(extra) > _MAX_EXTRAS:
        raise meta_error("extra", f"{len(extra)} keys are more than {_MAX_EXTRAS}")
    for key, value in extra.items():
        if not _EXTRA_KEY.fullmatch(key):
            raise meta_error(
                "extra", f"{key[:80]!r} is not a key", "use letters, digits, '_', '.' and '-'"
            )
        _check_text(f"extra.{key}", value, _MAX_EXTRA)
