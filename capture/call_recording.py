"""Record the calls and scalars of an eager run, and replay scalars in runs without data."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from ..checkpoints.source_positions import is_user_file
from ..checkpoints.taint import is_symbol
from ..core.contract import Job
from ..core.domain import Sizes, sample_sizes
from ..core.signature import Dim
from ..core.torch_tools import intercept_calls
from .captured_program import model_of
from .size_checks import feed_sizes, resize_example

if TYPE_CHECKING:
    import torch
    from torch import nn

_CALLS = 20_000  # calls of torch in all runs of a search; a count is deterministic
_FEWEST = 12  # least runs of a search, for models with more calls
_LEAFS = 64  # entries of a table to search for numbers
_TEXT = 32  # characters of a text to search for numbers
_OF_STORAGE = frozenset(
    {"untyped_storage", "storage", "nbytes", "data_ptr", "__array_interface__", "getbuffer"}
)
_KEPT = 2  # sizes per path
_MOST = 6  # sizes per dim


@dataclass(frozen=True, kw_only=True)
class CallTrace:
    """The calls of one run by name, in order, and the numbers and weights in their arguments."""

    calls: tuple[str, ...]
    numbers: tuple[tuple[object, ...], ...]


def record_calls(job: Job, sizes: Sizes, *, mirrored: bool = False) -> CallTrace | None:
    """Record eager's calls on the resized example; None if eager rejects these sizes.

    `mirrored` uses other data of the same sizes.
    """
    import torch

    tensors = resize_example(job, sizes)
    if mirrored:
        tensors = [_mirror_values(one) for one in tensors]
    names: list[str] = []
    numbers: list[tuple[object, ...]] = []

    def through(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        answer = func(*args, **kwargs)
        names.append(str(getattr(func, "__name__", func)))
        numbers.append(tuple(_plain_values((*args, *kwargs.values()))))
        return answer

    try:
        with torch.no_grad(), intercept_calls(through):
            model_of(job).flat(*tensors)
    except Exception:  # noqa: BLE001 - the user's code raises anything
        return None
    return CallTrace(calls=tuple(names), numbers=tuple(numbers))


def _plain_values(values: Iterable[object]) -> Iterator[object]:
    """Yield numbers, texts and identities of weights."""
    from torch import nn

    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _plain_values(value)
        elif isinstance(value, (bool, int, float, str)):
            yield value
        elif isinstance(value, nn.Parameter):
            yield f"weight {id(value)}"


def _mirror_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return other values of the same range, mirrored at its centre."""
    import torch

    flipped = tensor.flip(tuple(range(tensor.ndim)))
    if tensor.dtype is torch.bool or not tensor.numel():
        return flipped
    if tensor.is_floating_point() and float(tensor.min()) < 0:
        return -flipped
    return flipped.max() + flipped.min() - flipped


def find_branch_sizes(job: Job, *, at_least_too: bool = False) -> tuple[Sizes, ...]:
    """Return sizes at which eager takes another path than in the example, independent of data.

    Eager runs at sizes of each dim: around numbers in its code, modules and buffers, at the ends
    and between; then at sizes of two dims that are, or whose product is, such a number; up to
    `_CALLS`. The other dims are as in the example; with `at_least_too` also at their minimum.
    """
    bases = [feed_sizes(job.signature, job.example)]
    if at_least_too:
        bases.append({name: dim.low for name, dim in job.signature.free_dims.items()})
    found: dict[tuple[tuple[str, int], ...], Sizes] = {}
    for base in bases:
        for one in _SizeSearch(job=job, base=base).run():
            found.setdefault(tuple(sorted(one.items())), one)
    return tuple(found.values())


@dataclass(kw_only=True)
class _SizeSearch:
    """Runs eager at sizes and collects those with new paths."""

    job: Job
    base: dict[str, int]
    left: int = _CALLS
    found: list[Sizes] = field(default_factory=list)
    paths: list[CallTrace] = field(default_factory=list)

    def run(self) -> tuple[Sizes, ...]:
        """Return the sizes."""
        named = numbers_in_code(model_of(self.job).flat, lambda: record_calls(self.job, self.base))
        start = record_calls(self.job, self.base)
        if start is None:
            return ()
        self.left = max(_CALLS, _FEWEST * len(start.calls))
        always: set[tuple[int, int]] = set()
        for name, dim in self.job.signature.free_dims.items():
            varying, before = self._find_varying(name, dim, start), len(self.found)
            for size in _candidate_sizes(dim, named):
                if self.left <= 0 or len(self.found) - before >= _MOST:
                    break
                self._try_sizes({**self.base, name: size}, start, varying)
            always |= varying
        before = len(self.found)
        for sizes in self._pairs(named):
            if self.left <= 0 or len(self.found) - before >= _MOST:
                break
            self._try_sizes(sizes, start, always)
        return tuple(self.found)

    def _pairs(self, named: Sequence[int]) -> Iterator[Sizes]:
        """Yield sizes of two dims with a product or bytes in the code, then pairs in the code."""
        dims = self.job.signature.free_dims
        for one, other in itertools.combinations(dims, 2):
            first_dim, second_dim = dims[one], dims[other]
            both = (*self._factors(one, other, named), *itertools.product(named, named))
            for first, second in dict.fromkeys(both):
                if first_dim.low <= first <= first_dim.high and (
                    second_dim.low <= second <= second_dim.high
                ):
                    yield {**self.base, one: first, other: second}

    def _factors(self, one: str, other: str, named: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield sizes of two dims whose product, elements or bytes equal a number in the code."""
        area = max(self.base[one] * self.base[other], 1)
        units = {area}
        for tensor in resize_example(self.job, self.base):
            units |= {size * tensor.element_size() for size in (area, tensor.numel())}
            units.add(tensor.numel())
        dims = self.job.signature.free_dims
        most = dims[one].high * dims[other].high
        for number, unit in itertools.product(named, sorted(units - {0})):
            product, rest = divmod(number * area, unit)
            for least in range(1, math.isqrt(product) + 1 if product <= most and not rest else 0):
                if product % least == 0:
                    yield from ((least, product // least), (product // least, least))

    def _find_varying(self, name: str, dim: Dim, start: CallTrace) -> set[tuple[int, int]]:
        """Return arguments that always depend on the size, by call and position.

        They differ at two sizes at least; a difference at one size may be a branch.
        """
        middle = (dim.low + dim.high) // 2 + 1
        near = (dim.low, dim.low + 1, middle - 1, middle, dim.high - 1, dim.high)
        probes = {min(max(size, dim.low), dim.high) for size in near}
        varied: Counter[tuple[int, int]] = Counter()
        for size in sorted(probes - {self.base[name]}):
            path = record_calls(self.job, {**self.base, name: size})
            if path is not None and path.calls == start.calls:
                varied.update(set(_differences(start, path)))
        return {place for place, count in varied.items() if count > 1}

    def _try_sizes(self, sizes: Sizes, start: CallTrace, varying: set[tuple[int, int]]) -> None:
        """Add the sizes if their path is new."""
        path = record_calls(self.job, sizes)
        if path is None:
            return
        self.left -= len(path.calls)
        if not _is_different(start, path, varying):
            return
        known = sum(not _is_different(one, path, varying) for one in self.paths)
        if known < _KEPT and self._is_by_size(sizes, (start, path), varying):
            self.paths.append(path)
            self.found.append(dict(sizes))

    @cached_property
    def _base_mirror(self) -> CallTrace | None:
        return record_calls(self.job, self.base, mirrored=True)

    def _is_by_size(
        self, sizes: Sizes, found: tuple[CallTrace, CallTrace], varying: set[tuple[int, int]]
    ) -> bool:
        """Whether no data takes the same path at both sizes, so that sizes decide, not data.

        `found` are the paths of the drawn data at the base sizes and at `sizes`; the mirrored data
        takes the other side of a branch on a sign.
        """
        (start, path), here = found, self._base_mirror
        there = record_calls(self.job, sizes, mirrored=True)
        if here is None or there is None:
            return False
        pairs = ((here, there), (start, there), (here, path))
        return all(_is_different(one, other, varying) for one, other in pairs)


def _is_different(one: CallTrace, other: CallTrace, varying: set[tuple[int, int]]) -> bool:
    return one.calls != other.calls or any(at not in varying for at in _differences(one, other))


def _differences(one: CallTrace, other: CallTrace) -> Iterator[tuple[int, int]]:
    """Yield where two runs of the same calls differ in numbers; -1 if their count differs."""
    for call, (mine, theirs) in enumerate(zip(one.numbers, other.numbers, strict=True)):
        if len(mine) != len(theirs):
            yield call, -1
            continue
        for place, (first, second) in enumerate(zip(mine, theirs, strict=True)):
            if first != second:
                yield call, place


def _candidate_sizes(dim: Dim, named: Sequence[int]) -> list[int]:
    near = [size + by for size in named for by in (0, 1, -1)]
    ends = [dim.low, dim.high]
    inside = [size for size in (*ends, *near, *sample_sizes(dim)) if dim.low <= size <= dim.high]
    return [size for size in dict.fromkeys(inside) if size != dim.opt]


def numbers_in_code(module: nn.Module, run: Callable[[], object]) -> list[int]:
    """Return the integers in the user's code of this run, and in the modules.

    In code: constants, including those in sets, tuples and short texts. In modules: attributes,
    keys and entries of short tables, sizes of buffers.
    """
    found = [number for code in user_codes(run) for number in _whole_numbers(code.co_consts)]
    for part in module.modules():
        found += _whole_numbers([value for name, value in vars(part).items() if name[:1] != "_"])
    found += [size for buffer in module.buffers() for size in buffer.shape]
    return [one for one in dict.fromkeys(found) if one > 1]


def reads_storage(job: Job) -> bool:
    """Whether the user's code reads bytes of memory, which symbols do not follow."""
    names = {
        name
        for code in user_codes(lambda: record_calls(job, feed_sizes(job.signature, job.example)))
        for name in code.co_names
    }
    return not names.isdisjoint(_OF_STORAGE)


def user_codes(run: Callable[[], object]) -> list[CodeType]:
    """Return the user's code objects called in this run, in order."""
    codes: dict[CodeType, None] = {}

    def profile_call(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_user_file(frame.f_code.co_filename):
            codes[frame.f_code] = None

    before = sys.getprofile()
    sys.setprofile(profile_call)
    try:
        run()
    finally:
        sys.setprofile(before)
    return list(codes)


def _whole_numbers(values: Iterable[object]) -> Iterator[int]:
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if abs(value) < 1 << 31:
                yield int(value)
        elif isinstance(value, (list, tuple, set, frozenset, dict, range)) and len(value) <= _LEAFS:
            parts = (*value, *value.values()) if isinstance(value, dict) else tuple(value)
            yield from _whole_numbers(parts)
        elif isinstance(value, str) and len(value) <= _TEXT:
            yield from map(int, re.findall(r"\d{1,6}", value))


MAX_CALLS = 20_000  # of torch in one run without data: as many as in models of some hundred layers
_VALUES = (
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__array__",
    "item", "tolist", "numpy", "equal", "allclose", "is_nonzero",
)  # fmt: skip


def record_scalars(module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> list[object]:
    """Return the Python values that forward gets from tensors, in order; buffers do not change."""
    import torch

    answers: list[object] = []

    def record_value(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        answer = func(*args, **kwargs)
        if getattr(func, "__name__", "") in _VALUES:
            answers.append(answer)
        return answer

    buffers = {name: one.clone() for name, one in module.named_buffers()}
    given = tuple(one.clone() for one in tensors)
    try:
        with torch.no_grad(), intercept_calls(record_value):
            torch.func.functional_call(module, buffers, given)
    except Exception:  # noqa: BLE001 - return the values so far
        return answers
    return answers


class CallLimitError(Exception):
    """A run of forward without data makes too many calls."""


def replay_scalars(
    answers: list[object], most: int = MAX_CALLS, *, fixed: Callable[[], object] = lambda: None
) -> AbstractContextManager[object]:
    """Return a mode that returns recorded values for Python values of tensors.

    Args:
        answers: recorded values in order; without any, torch raises on missing data.
        most: calls of torch before `CallLimitError`; a count is deterministic.
        fixed: called when a tensor is created from a size, which makes it a Python number.
    """
    import torch

    makers = (torch.tensor, torch.as_tensor, torch.scalar_tensor)
    left, calls = iter(answers), itertools.count(1)

    def replay_value(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if next(calls) > most:
            raise CallLimitError(f"a run makes more than {most} calls of torch")
        if func in makers and is_symbol(args):
            fixed()
        if answers and getattr(func, "__name__", "") in _VALUES:
            return next(left)
        return func(*args, **kwargs)

    return intercept_calls(replay_value)
