"""Limits as people write them: `--tolerance`, and `tolerance` in modelc.toml."""

from __future__ import annotations

from ..core.errors import UsageError
from ..core.names import unknown

LIMIT_FIELDS = {
    "atol": "atol",
    "rtol": "rtol",
    "min-sqnr": "min_sqnr",
    "floor-factor": "floor_factor",
    "min-cosine": "min_cosine",
    "min-agreement": "min_agreement",
}


def parse_limits(text: str) -> tuple[str, dict[str, float]]:
    """`logits:min-sqnr=60,atol=1e-3`, or the same without an output.

    Raises:
        UsageError: an unknown key, or a value that is no number.
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
            )
        values[limit_field(key.strip())] = parse_limit_number(value.strip(), f"--tolerance {text}")
    return head, values


def limit_field(text: str, noun: str = "tolerance") -> str:
    """The field of `Limits` that goes by this name.

    Raises:
        UsageError: there is none.
    """
    if text not in LIMIT_FIELDS:
        raise unknown(noun, text, list(LIMIT_FIELDS))
    return LIMIT_FIELDS[text]


def parse_limit_number(value: object, where: str) -> float:
    """The number, as a file or an option says it.

    Raises:
        UsageError: it is none.
    """
    given = value if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    try:
        return float(given)
    except (ValueError, OverflowError):  # an integer of 400 digits in a file
        hint = "write it as 60 or 1e-3"
        raise UsageError(f"{where}: {value!r} is not a number", hint=hint) from None
