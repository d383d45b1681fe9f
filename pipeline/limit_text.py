"""Parse the limits of `--tolerance`, `--max-drop` and the other accuracy options."""

from __future__ import annotations

from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation

from ..calibration.calibration_options import LabelledOptions
from ..core.errors import ErrorCode, UsageError, unknown_name_error
from ..core.verdict import Limits

LIMIT_FIELDS = {one.name.replace("_", "-"): one.name for one in fields(Limits)}


def parse_limits(text: str) -> tuple[str, dict[str, float]]:
    """Parse `[OUTPUT:]KEY=VALUE,...`, for example `logits:min-sqnr=60,atol=1e-3`.

    Raises:
        UsageError: a key is unknown or a value is not a number.
    """
    head, colon, rest = text.rpartition(":")
    values = {}
    for part in (rest if colon else text).split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(
                f"--tolerance {text}: {part!r} is not KEY=VALUE",
                hint="write --tolerance min-sqnr=60, or --tolerance logits:min-sqnr=60",
                option="tolerance",
                code=ErrorCode.INVALID_VALUE,
            )
        values[limit_field(key.strip())] = parse_limit_number(value.strip(), f"--tolerance {text}")
    return head, values


def limit_field(text: str, noun: str = "tolerance") -> str:
    """Return the field of `Limits` with this name.

    Raises:
        UsageError: the name is unknown.
    """
    if text not in LIMIT_FIELDS:
        raise unknown_name_error(noun, text, list(LIMIT_FIELDS))
    return LIMIT_FIELDS[text]


def parse_limit_number(value: object, where: str) -> float:
    """Convert a value from a file or an option to a float.

    Raises:
        UsageError: the value is not a number.
    """
    given = value if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    try:
        return float(given)
    except (ValueError, OverflowError):  # an integer of 400 digits in a file
        hint = "write it as 60 or 1e-3"
        raise UsageError(
            f"{where}: {value!r} is not a number", hint=hint, code=ErrorCode.INVALID_VALUE
        ) from None


DEFAULT_METRIC = "top1"
_PLAIN_LIMIT = 0.1  # a plain number above it was more likely meant in percent


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How accuracy is measured on labelled data.

    `metric` is `top1`, `top5`, `mse` or `package.module:function`. `output` names what it reads;
    None is the first float output. `max_drop` is the most that an artifact may lose: of shares a
    difference (0.005 is half a percentage point), of relative metrics a part of eager's value.
    """

    data: LabelledOptions
    metric: str = DEFAULT_METRIC
    output: str | None = None
    max_drop: float | None = None

    def __post_init__(self) -> None:
        if self.max_drop is not None and not 0 <= self.max_drop < float("inf"):
            raise _drop_error(f"must be 0 or more, not {self.max_drop}")

    def summary(self) -> dict[str, str]:
        """Return the fields that the manifest records."""
        return {
            "data": self.data.source,
            "metric": self.metric,
            "metric_output": self.output or "",
            "max_drop": "" if self.max_drop is None else repr(self.max_drop),
        }


def parse_drop(text: str) -> float:
    """Read `0.5%` or `0.005`: both are 0.005. Reject a plain number above 0.1 as ambiguous.

    Raises:
        UsageError: the text is not a valid, unambiguous share.
    """
    plain = text.strip().removesuffix("%").strip()
    percent = text.strip().endswith("%")
    try:
        value = Decimal(plain)
    except InvalidOperation as error:
        raise _drop_error(f"{text!r} is not a number") from error
    if not value.is_finite() or value < 0:
        raise _drop_error(f"must be 0 or more, not {text}")
    if percent:
        return float(value / 100)
    if value > _PLAIN_LIMIT:
        share = f"{float(value * 100):g} %"
        raise _drop_error(f"{text} is ambiguous: it would be {share}", f"write {plain}%")
    return float(value)


def _drop_error(problem: str, hint: str = "write 0.5% or 0.005") -> UsageError:
    text = f"--max-drop {problem}"
    return UsageError(text, hint=hint, option="max-drop", code=ErrorCode.INVALID_VALUE)
