"""Steps after a classifier or a detector, parsed from text: `softmax,topk=5`, `sigmoid,nms`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from .errors import ErrorCode, UsageError, unknown_name_error

ACTIVATIONS = ("softmax", "sigmoid")
ARGMAX, TOPK, NMS, OUTPUT = "argmax", "topk", "nms", "output"
# Names of outputs.
PROBABILITIES, SCORES, CLASS_IDS = "probabilities", "scores", "class_ids"
BOXES, COUNT = "boxes", "count"
_MAX_K = 65_536
_MAX_TAKEN = 1_000  # steps in the graph
_MAX_CANDIDATES = 3_839  # with one that stands for none, the most that TensorRT's TopK takes
_FORMS = ("xyxy", "cxcywh")
_EXAMPLE, _NMS_EXAMPLE = "softmax,topk=5", "sigmoid,nms,iou=0.5"
_WORDS = (*ACTIVATIONS, ARGMAX, TOPK, NMS)


@dataclass(frozen=True, kw_only=True)
class Suppression:
    """Greedy non-maximum suppression per class.

    Pairs of a box and a class whose score exceeds `score` are candidates, the `candidates` best of
    them. A box is suppressed by one of its class that was taken before and overlaps it by more
    than `iou`. The first `most` are given. `boxes` and `scores` name outputs, or are empty.
    """

    iou: float = 0.5
    score: float = 0.25
    most: int = 100
    candidates: int = 1_000
    corners: bool = True
    boxes: str = ""
    scores: str = ""

    @classmethod
    def parse(cls, pairs: Mapping[str, str]) -> Self:
        """Read the keys of `nms`.

        Raises:
            UsageError: a key is unknown, or a value out of range.
        """
        for name in pairs:
            if name not in _KEYS:
                raise unknown_name_error("--postprocess nms key", name, _KEYS)
        form = pairs.get("form", _FORMS[0])
        if form not in _FORMS:
            raise unknown_name_error("--postprocess nms,form", form, _FORMS)
        if pairs.get(BOXES, "") == pairs.get(SCORES, "") != "":
            raise _step_error(f"{pairs[BOXES]!r} cannot be both boxes and scores", _NMS_EXAMPLE)
        return cls(
            iou=_parse_number(pairs, "iou", cls.iou, (0.0, 1.0)),
            score=_parse_number(pairs, "score", cls.score, (-1e30, 1e30)),
            most=int(_parse_number(pairs, "max", cls.most, (1, _MAX_TAKEN))),
            candidates=int(
                _parse_number(pairs, "candidates", cls.candidates, (1, _MAX_CANDIDATES))
            ),
            corners=form == _FORMS[0],
            boxes=pairs.get(BOXES, ""),
            scores=pairs.get(SCORES, ""),
        )

    def __str__(self) -> str:
        """Return text with all numbers, as defaults may change."""
        parts = [
            f"{NMS},iou={self.iou!r},score={self.score!r},max={self.most}",
            f"candidates={self.candidates}",
            f"form={_FORMS[not self.corners]}",
            f"{BOXES}={self.boxes}" if self.boxes else "",
            f"{SCORES}={self.scores}" if self.scores else "",
        ]
        return ",".join(filter(None, parts))


_KEYS = ("iou", "score", "max", "candidates", "form", BOXES, SCORES)


def _parse_number(
    pairs: Mapping[str, str], name: str, usual: float, limits: tuple[float, float]
) -> float:
    """Read a number within limits: a whole one if the limits are."""
    text = pairs.get(name, str(usual))
    try:
        found = type(limits[0])(text)
    except ValueError:
        found = math.nan
    if not limits[0] <= found <= limits[1]:
        problem = f"nms,{name}={text} is not a number from {limits[0]:g} to {limits[1]:g}"
        raise _step_error(problem, _NMS_EXAMPLE)
    return found


@dataclass(frozen=True, kw_only=True)
class Postprocess:
    """An activation, then a selection, along the class dim of one output.

    `activation` is softmax, sigmoid or empty. `best` is the number of classes of topk, 0 for none;
    `argmax` selects the first; `nms` selects boxes. `output` names the output; empty is the only
    floating-point one.
    """

    activation: str = ""
    argmax: bool = False
    best: int = 0
    nms: Suppression | None = None
    output: str = ""

    @classmethod
    def parse(cls, text: str) -> Postprocess:
        """Read `softmax`, `argmax`, `softmax,topk=5`, `topk=5,output=logits`, `nms,iou=0.45`.

        Raises:
            UsageError: a step is unknown or given twice, or nothing is left to do.
        """
        words = [one.strip() for one in text.split(",")]
        pairs = _read_pairs(words)
        steps = [word for word in words if "=" not in word or word.startswith(f"{TOPK}=")]
        steps = [word.split("=", 1)[0] for word in steps]
        for name in steps:
            if name not in _WORDS:
                raise unknown_name_error("--postprocess step", name, _WORDS)
        kinds = [name in ACTIVATIONS for name in steps]  # the activation comes first
        if kinds not in ([True], [False], [True, False]):
            raise _step_error(f"{text!r} is not an activation, a selection, or both in this order")
        activation = steps[0] if kinds[0] else ""
        if NMS in steps:
            return cls(activation=activation, nms=Suppression.parse(pairs))
        for name in pairs:
            if name not in (TOPK, OUTPUT):
                raise unknown_name_error("--postprocess key", name, (TOPK, OUTPUT))
        best = pairs.get(TOPK, "0" if TOPK not in steps else "")
        if not (best.isascii() and best.isdigit() and (TOPK in steps) is (0 < int(best) <= _MAX_K)):
            raise _step_error(f"topk={best} is not a number of classes")
        return cls(
            activation=activation,
            argmax=ARGMAX in steps,
            best=int(best),
            output=pairs.get(OUTPUT, ""),
        )

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what replaces the output, or the two outputs of `nms`."""
        if self.nms is not None:
            return (BOXES, SCORES, CLASS_IDS, COUNT)
        if self.argmax:
            return (CLASS_IDS,)
        return (SCORES, CLASS_IDS) if self.best else (PROBABILITIES,)

    def __str__(self) -> str:
        """Return text that `parse` reads back."""
        parts = [
            self.activation,
            ARGMAX if self.argmax else "",
            f"{TOPK}={self.best}" if self.best else "",
            str(self.nms) if self.nms else "",
            f"{OUTPUT}={self.output}" if self.output else "",
        ]
        return ",".join(filter(None, parts))


def class_axis(rank: int) -> int:
    """Return the axis of classes in (N, C), (N, tokens, C) or (N, C, height, width)."""
    return -1 if rank == 3 else 1  # noqa: PLR2004


def _read_pairs(words: Sequence[str]) -> dict[str, str]:
    """Return the values by key.

    Raises:
        UsageError: a key is given twice.
    """
    given = [word.split("=", 1) for word in words if "=" in word]
    names = [name for name, _ in given]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        example = _NMS_EXAMPLE if NMS in words else _EXAMPLE
        raise _step_error(f"{twice} is given twice in {','.join(words)!r}", example)
    return dict(given)


def _step_error(problem: str, example: str = _EXAMPLE) -> UsageError:
    return UsageError(
        f"--postprocess: {problem}",
        hint=f"for example {example}",
        option="postprocess",
        code=ErrorCode.INVALID_VALUE,
    )
