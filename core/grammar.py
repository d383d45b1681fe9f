"""The `--input` mini-language: `name:dtype[dim,dim,...]{low..high}`; an end may follow a dim.

A dim is an int, a name (dynamic, unbounded), `name=min..max`, `name=min..opt..max`, a relation to
other dims (`seq2=seq1`, `h=32*k`, `2*seq`, `n=seq+1`, `total=past+seq`, `h=32*(k=1..8)`), or `_`
(the sample's size). Values that never fall along the last axis are `{low..high ascending}`, those
that never rise `{low..high descending}`. A sample or the checkpoint provides an omitted dtype or
range.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from .dims import Dim, Relation, default_opt
from .errors import ErrorCode, Hint, Option, UsageError, nearest_names
from .signature import DTYPES, FLOATS, InputPattern, RowOrder, ValueRange

_INPUT_NAME = re.compile(r"[A-Za-z_][\w]*(?:\.\w+)*")
_DIM_WORD = re.compile(r"[A-Za-z_]\w*")
_INTEGER = re.compile(r"\d+")
_NUMBER = re.compile(r"[-+]?(?:\d+\.(?!\.)\d*|\d+|\.(?!\.)\d+)(?:[eE][-+]?\d+)?")
_BARE_RANGE = re.compile(r"\d+ *\.\.[\d. ]*\d")
_IMAGE_RANK = 4  # rank of a batch of images
_SUMMAND = re.compile(r"\+ *(?:[1-9]\d* *\* *)?[A-Za-z]\w*")
_MAX_SIZES = 3  # min..opt..max
_RELATION_HINT = 'for example --input "x:float32[batch,3,h=32*(k=1..8)]" or "b:int64[seq2=seq1]"'
_SUM_HINT = 'write the larger dim as the sum of others, as in "mask:int64[batch,total=past+seq]"'
_BOUND_HINT = 'for example --input "ids:int64[batch,seq]{0..99}" or "edges:int64[2,m]{0..nodes-1}"'
_INPUT_HINT = 'for example --input "x:float32[batch=1..8,3,224,224]"'


@dataclass
class _Cursor:
    """A position in the text, which moves forward past tokens and the spaces after them."""

    text: str
    at: int = 0

    def __post_init__(self) -> None:
        self._step(0)

    def _step(self, size: int) -> None:
        self.at += size
        while self.text.startswith(" ", self.at):
            self.at += 1

    def fail(self, expected: str, *, at: int | None = None, hint: str = _INPUT_HINT) -> UsageError:
        """Return an error that names the position, counted from 1."""
        place = self.at if at is None else at
        found = repr(self.text[place]) if place < len(self.text) else "the end"
        return UsageError(
            f"--input {self.text!r}: expected {expected} at character {place + 1}, found {found}",
            hint=hint,
            option="input",
            code=ErrorCode.INVALID_VALUE,
        )

    def take(self, token: str) -> bool:
        """Skip `token` if it comes next."""
        if self.text.startswith(token, self.at):
            self._step(len(token))
            return True
        return False

    def need(self, token: str, expected: str) -> None:
        """Skip `token` or fail."""
        if not self.take(token):
            raise self.fail(expected)

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Skip and return what `pattern` matches here."""
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self._step(len(found.group()))
        return found.group()


def parse_input(text: str) -> InputPattern:
    """Parse one `--input`.

    Raises:
        UsageError: a syntax error; the message names the character.
    """
    cursor = _Cursor(text)
    name = cursor.match(_INPUT_NAME)
    if name is None:
        raise cursor.fail("an input name")
    dtype = _parse_dtype(cursor) if cursor.take(":") else None
    dims = _parse_dims(cursor) if cursor.take("[") else None
    values = _parse_values(cursor, dtype) if cursor.take("{") else None
    if cursor.at != len(cursor.text):
        raise cursor.fail("':', '[', '{' or the end")
    return InputPattern(name=name, dtype=dtype, dims=dims, values=values, text=text)


# names of other libraries and languages; half precision is fed as float32
_DTYPE_ALIASES = {
    "float": "float32", "double": "float64", "half": "float32", "float16": "float32",
    "bfloat16": "float32", "fp32": "float32", "fp16": "float32", "bf16": "float32",
    "f32": "float32", "f16": "float32", "fp64": "float64", "int": "int64", "long": "int64",
    "i64": "int64", "i32": "int32", "boolean": "bool", "byte": "uint8",
}  # fmt: skip


def _parse_dtype(cursor: _Cursor) -> str:
    start = cursor.at
    word = cursor.match(_DIM_WORD)
    if word in DTYPES:
        return word
    word = cursor.text[start:].partition("[")[0].partition("{")[0].strip()
    plain = word.casefold().removeprefix("torch.").removeprefix("np.")
    near = [_DTYPE_ALIASES[plain]] if plain in _DTYPE_ALIASES else nearest_names(plain, DTYPES)
    hint = f"did you mean {near[0]!r}?" if near else f"dtypes are {', '.join(DTYPES)}"
    raise cursor.fail("a dtype", at=start, hint=hint)


def _parse_dims(cursor: _Cursor) -> tuple[Dim | None, ...]:
    if cursor.take("]"):
        return ()
    dims: list[Dim | None] = []
    while not dims or cursor.take(","):
        bare = _BARE_RANGE.match(cursor.text, cursor.at)
        if bare is not None:
            raise _nameless_range_error(cursor.text, bare)
        dims.append(_parse_dim(cursor))
    cursor.need("]", "',' or ']'")
    return tuple(dims)


def _parse_dim(cursor: _Cursor) -> Dim | None:
    start = cursor.at
    if cursor.text.startswith("(", start):  # `(k=2..8)-1`
        return _parse_relation(cursor, None, times=1, start=start)
    size = cursor.match(_INTEGER)
    if size is not None and cursor.take("*"):
        return _parse_relation(cursor, None, times=int(size), start=start)
    if size is not None:
        if int(size) == 0:
            raise cursor.fail("a size above 0", at=start)
        return Dim.of_size(int(size))
    return _parse_named_dim(cursor)


def _parse_named_dim(cursor: _Cursor) -> Dim | None:
    """Parse a dim that begins with a name, or `_`."""
    name = cursor.match(_DIM_WORD)
    if name is None:
        raise cursor.fail("a size, a dim name or '_'")
    if name == "_":
        return None
    if cursor.take("="):
        return _parse_definition(cursor, name)
    others, plus = _parse_summands(cursor)
    if others or plus:
        relation = Relation(base=name, plus=plus, others=others)
        return _make_derived_dim(None, relation, Dim.any_size(name))
    return Dim.any_size(name)


def _nameless_range_error(text: str, bare: re.Match[str]) -> UsageError:
    """Return the error for a range without a name, with a name for each such range."""
    begin = text.index("[") + 1
    parts = text[begin:].partition("]")[0].split(",")
    usual = {0: "batch", 2: "height", 3: "width"} if len(parts) == _IMAGE_RANK else {0: "batch"}
    corrected: list[str] = []
    for axis, part in enumerate(parts):
        size = part.lstrip(" ")
        if _BARE_RANGE.match(size):
            name = usual.get(axis, f"d{axis}")
            name = f"{name}_2" if re.search(rf"\b{name}\b", text[begin:]) else name
            part = part[: len(part) - len(size)] + f"{name}={size}"  # noqa: PLW2901 - as corrected
        corrected.append(part)
    rest = text[begin + len(",".join(parts)) :]
    return UsageError(
        f"--input {text!r}: a range needs a name, and {bare.group()} at character "
        f"{bare.start() + 1} has none",
        hint=Hint("write ", Option("input", f'"{text[:begin]}{",".join(corrected)}{rest}"')),
        option="input",
    )


def _parse_definition(cursor: _Cursor, name: str) -> Dim:
    """Parse what follows `name=`: a range or a relation."""
    start = cursor.at
    times = re.compile(r"(\d+) *\*").match(cursor.text, start)
    if times is not None:
        cursor._step(len(times.group()))
        return _parse_relation(cursor, name, times=int(times.group(1)), start=start)
    if cursor.text.startswith("(", start) or _DIM_WORD.match(cursor.text, start):
        return _parse_relation(cursor, name, times=1, start=start)
    return _parse_range(cursor, name)


def _parse_relation(cursor: _Cursor, name: str | None, *, times: int, start: int) -> Dim:
    """Parse `k`, `k+1`, `(k=1..8)`, `(k=1..8)-1` after `times*`."""
    if times < 1:
        raise cursor.fail("a factor above 0", at=start, hint=_RELATION_HINT)
    inside = cursor.take("(")
    base = cursor.match(_DIM_WORD)
    if base is None or base == "_":
        raise cursor.fail("a dim name", hint=_RELATION_HINT)
    dim = Dim.any_size(base)
    if inside:
        cursor.need("=", "'=' and the range")
        dim = _parse_range(cursor, base)
        cursor.need(")", "')'")
    others, plus = _parse_summands(cursor)
    if inside and others:
        raise cursor.fail("names of dims in a sum", at=start, hint=_SUM_HINT)
    relation = Relation(base=base, times=times, plus=plus, stated=inside, others=others)
    return dim if name is None and relation.equal else _make_derived_dim(name, relation, dim)


def _parse_summands(cursor: _Cursor) -> tuple[tuple[tuple[str, int], ...], int]:
    """Parse more dims of a sum, and the number at its end: `+seq`, `+2*seq+1`, `-1`."""
    others: list[tuple[str, int]] = []
    while (found := cursor.match(_SUMMAND)) is not None:
        factor, _, name = found[1:].replace(" ", "").rpartition("*")
        others.append((name, int(factor or 1)))
    if cursor.text.startswith("-", cursor.at) and _DIM_WORD.match(cursor.text[cursor.at + 1 :]):
        raise cursor.fail("'+'", hint=_SUM_HINT)
    return tuple(others), _parse_offset(cursor)


def _parse_offset(cursor: _Cursor) -> int:
    sign = "+" if cursor.take("+") else "-" if cursor.take("-") else ""
    if not sign:
        return 0
    size = cursor.match(_INTEGER)
    if size is None:
        raise cursor.fail("a number", hint=_RELATION_HINT)
    return int(sign + size)


def _make_derived_dim(name: str | None, relation: Relation, base: Dim) -> Dim:
    """Name a dim without a name of its own after its relation: `2*seq`.

    Its least size is checked later, as the base's range may be elsewhere.
    """
    ends = (base.low, base.opt, base.high)
    low, opt, high = (relation.size_at(dict.fromkeys(relation.bases, size)) for size in ends)
    return Dim(
        name=name or str(relation), low=low, opt=opt, high=high, bounded=base.bounded,
        relation=relation,
    )  # fmt: skip


def _parse_range(cursor: _Cursor, name: str) -> Dim:
    sizes: list[int] = []
    while True:
        size = cursor.match(_INTEGER)
        if size is None:
            raise cursor.fail("a size")
        sizes.append(int(size))
        if len(sizes) == _MAX_SIZES or not cursor.take(".."):
            break
    if len(sizes) == 1:
        raise cursor.fail("'..' and the largest size")
    _check_rising(cursor, name, sizes)
    opt = sizes[1] if len(sizes) == _MAX_SIZES else default_opt(sizes[0], sizes[-1])
    return Dim(name=name, low=sizes[0], opt=opt, high=sizes[-1])


def _check_rising(cursor: _Cursor, name: str, sizes: list[int]) -> None:
    """Check that a range rises; only its least size may be 0, as for an empty cache."""
    rising = "..".join(str(size) for size in sorted({sizes[0], *(max(s, 1) for s in sizes[1:])}))
    faults = [f"only the least size may be {size}" for size in sizes[1:] if size < 1]
    faults += [f"{one} is larger than {two}" for one, two in pairwise(sizes) if one > two]
    if faults:
        written = "..".join(map(str, sizes))
        raise UsageError(
            f"--input {cursor.text!r}: {name}={written} is not a range: {faults[0]}",
            hint=f"write {name}={rising if '..' in rising else '1..8'}: the smallest size first",
            option="input",
        )


def _parse_values(cursor: _Cursor, dtype: str | None) -> ValueRange:
    start = cursor.at
    low, low_dim = _parse_bound(cursor, "the smallest value")
    cursor.need("..", "'..'")
    high, high_dim = _parse_bound(cursor, "the largest value")
    order = next((one for one in RowOrder if one and cursor.take(one)), RowOrder.FREE)
    cursor.need("}", "'}'")
    if not (math.isfinite(low) and math.isfinite(high)):
        raise cursor.fail("values that a float can hold", at=start)
    if low_dim is None and high_dim is None and low > high:
        raise UsageError(
            f"--input {cursor.text!r}: {low:.12g} is larger than {high:.12g}",
            hint=f"write {{{high:.12g}..{low:.12g}}}: the smallest value first",
            option="input",
        )
    whole = dtype is not None and dtype not in FLOATS
    if whole and (low % 1 or high % 1):
        raise cursor.fail(f"whole numbers for {dtype}", at=start)
    return ValueRange(low=low, high=high, low_dim=low_dim, high_dim=high_dim, order=order)


def _parse_bound(cursor: _Cursor, expected: str) -> tuple[float, Relation | None]:
    """Parse `0`, `-1.5`; or `seq`, `nodes-1`, whose values follow once the dims have ranges."""
    number = cursor.match(_NUMBER)
    if number is not None:
        return float(number), None
    name = cursor.match(_DIM_WORD)
    if name is None or name == "_":
        raise cursor.fail(expected, hint=_BOUND_HINT)
    return 0.0, Relation(base=name, plus=_parse_offset(cursor))


_MIN_LETTERS = 3  # of a name: shorter ones are similar by chance


def check_typos(dims: Iterable[Dim], known: Iterable[str]) -> None:
    """Find misspelt names in dims as written, before ranges and relations are resolved.

    Args:
        dims: of all inputs.
        known: names that a sample or the checkpoint gives.

    Raises:
        UsageError: a name that occurs once and has no range has the letters of another name, or one
            more or less.
    """
    dims = list(dims)
    bases = [dim.free for dim in dims if dim.relation is not None and not dim.is_sum]
    bases += [Dim.any_size(name) for dim in dims if dim.is_sum for name in dim.bases]
    plain = [dim for dim in dims if dim.relation is None and dim.name]
    defined = {dim.name or "" for dim in dims if dim.relation is not None or dim.bounded}
    count = Counter([*(dim.name or "" for dim in (*plain, *bases)), *known])
    names = list(dict.fromkeys((*defined, *count)))
    for dim in (*plain, *bases):
        name = dim.name or ""
        if count[name] > 1 or dim.bounded or name in defined:
            continue
        near = difflib.get_close_matches(name, [n for n in names if _is_typo(name, n)], n=1)
        if near:
            raise UsageError(
                f"dim {name!r} occurs once and has no range: did you mean {near[0]!r}?",
                hint=f"write {near[0]}, or give it a range, as {name}=1..8",
            )


def _is_typo(name: str, other: str) -> bool:
    """Return whether the names differ by swapped letters, or by one letter added or removed.

    A replaced letter or digit is usually intended: `q_len` and `k_len`, `seq1` and `seq`.
    """
    if min(len(name), len(other)) < _MIN_LETTERS or _letters_of(name) == _letters_of(other):
        return False
    short, long = sorted((name, other), key=len)
    if len(short) == len(long):
        return sorted(name) == sorted(other)
    return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def _letters_of(name: str) -> str:
    return "".join(sign for sign in name if not sign.isdigit())
