"""Steps after a classifier: probabilities, the best class or the best K, parsed from text."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ErrorCode, UsageError, unknown_name_error

ACTIVATIONS = ("softmax", "sigmoid")
ARGMAX, TOPK, OUTPUT = "argmax", "topk", "output"
PROBABILITIES, SCORES, CLASS_IDS = "probabilities", "scores", "class_ids"  # names of outputs
_MAX_K = 65_536


@dataclass(frozen=True, kw_only=True)
class Postprocess:
    """An activation, then a selection, along the class dim of one output.

    `activation` is softmax, sigmoid or empty. `best` is the number of classes of topk, 0 for none;
    `argmax` selects the first. `output` names the output; empty is the only floating-point one.
    """

    activation: str = ""
    argmax: bool = False
    best: int = 0
    output: str = ""

    @classmethod
    def parse(cls, text: str) -> Postprocess:
        """Read `softmax`, `argmax`, `softmax,topk=5`, `topk=5,output=logits`.

        Raises:
            UsageError: a step is unknown or given twice, or nothing is left to do.
        """
        words = [one.strip() for one in text.split(",")]
        pairs = dict(word.split("=", 1) for word in words if "=" in word)
        for name in pairs:
            if name not in (TOPK, OUTPUT):
                raise unknown_name_error("--postprocess key", name, (TOPK, OUTPUT))
        steps = [word.split("=", 1)[0] for word in words if not word.startswith(f"{OUTPUT}=")]
        for name in steps:
            if name not in (*ACTIVATIONS, ARGMAX, TOPK):
                raise unknown_name_error("--postprocess step", name, (*ACTIVATIONS, ARGMAX, TOPK))
        kinds = [name in ACTIVATIONS for name in steps]  # the activation comes first
        if not steps or kinds not in ([True], [False], [True, False]):
            raise _step_error(f"{text!r} is not an activation, a selection, or both in this order")
        best = pairs.get(TOPK, "0" if TOPK not in steps else "")
        if not (best.isascii() and best.isdigit() and (TOPK in steps) is (0 < int(best) <= _MAX_K)):
            raise _step_error(f"topk={best} is not a number of classes")
        return cls(
            activation=steps[0] if kinds[0] else "",
            argmax=ARGMAX in steps,
            best=int(best),
            output=pairs.get(OUTPUT, ""),
        )

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what replaces the output."""
        if self.argmax:
            return (CLASS_IDS,)
        return (SCORES, CLASS_IDS) if self.best else (PROBABILITIES,)

    def __str__(self) -> str:
        """Return text that `parse` reads back."""
        parts = [
            self.activation,
            ARGMAX if self.argmax else "",
            f"{TOPK}={self.best}" if self.best else "",
            f"{OUTPUT}={self.output}" if self.output else "",
        ]
        return ",".join(filter(None, parts))


def class_axis(rank: int) -> int:
    """Return the axis of classes in (N, C), (N, tokens, C) or (N, C, height, width)."""
    return -1 if rank == 3 else 1  # noqa: PLR2004


def _step_error(problem: str) -> UsageError:
    return UsageError(
        f"--postprocess: {problem}",
        hint="for example softmax,topk=5",
        option="postprocess",
        code=ErrorCode.INVALID_VALUE,
    )
