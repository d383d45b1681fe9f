"""The cache key of a step: a SHA-256 over everything that it depends on before it runs.

Files that the user's code reads during the run are tracked in dependencies.py.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from ... import __version__
from ...calibration.calibration_options import RANDOM
from ...calibration.label_files import find_companion_files
from ...checkpoints.checkpoint_files import find_contents
from ...converters.registry import package_of
from ...core.errors import CheckpointError, ErrorCode, UsageError
from ...core.kinds import QUANTIZED, Precision
from ...core.nested_values import is_loader_spec
from ..option_spec import specs_of
from ..option_table import ConversionOptions
from ..order import Order
from ..plan import Step
from .dependencies import check_declared_entries
from .environment import describe_gpus, describe_machine, packages
from .file_digests import FileDigests, digest_of_code

# All other fields of an Order are in the key of every step.
_FIELDS_BY_STEP = ("wanted", "judging", "lowering")  # they depend on the precision of the step
_IGNORED_FIELDS = (
    "out", "discards", "cache", "cache_limit", "resume",
    "parent",  # a request that starts from a converted model has no keys
    *(one.field for one in specs_of(ConversionOptions) if not one.rebuilds),
)  # fmt: skip
_ON_DISK_ONLY = ("timing_cache",)  # a file that every build changes, without effect on results


def step_keys(
    order: Order, plan: Sequence[Step], *, root: Path, digests: FileDigests
) -> dict[str, str]:
    """Return the key of each step by name, without importing a framework.

    Empty for an order that starts from a converted model: only its format knows which files belong
    to it.

    Args:
        order: the order.
        plan: its steps, parents first.
        root: the folder that the run starts in, which the order's paths are relative to.
        digests: the cache of file digests.

    Raises:
        UsageError: the checkpoint does not exist.
        CheckpointError: it cannot be read.
    """
    if order.parent is not None:
        return {}
    check_declared_entries(order.depends, root)
    tools = digests.once("tools", lambda: canonical_text([*_tool_parts(digests)]))
    shared = [tools, *_input_parts(order, root, digests)]
    precisions = {step.wanted.precision for step in plan}
    lowered = {one: tuple(_precision_parts(order, one, root, digests)) for one in precisions}
    found: dict[str, str] = {}
    for step in plan:
        parts = [*shared, *_step_parts(order, step), *lowered[step.wanted.precision]]
        parts.append(found[step.parent] if step.parent is not None else "")
        found[step.name] = hashlib.sha256(canonical_text(parts).encode()).hexdigest()
    return found


def _tool_parts(digests: FileDigests) -> Iterator[str]:
    """Yield modelc, this machine and the packages."""
    yield from (
        __version__,
        digest_of_code(digests),
        describe_machine(),
        canonical_text(packages()),
    )


def _input_parts(order: Order, root: Path, digests: FileDigests) -> Iterator[str]:
    """Yield what all steps of the order share: its fields, and the contents that they name."""
    names = {one.name for one in fields(order)}.difference(_FIELDS_BY_STEP, _IGNORED_FIELDS)
    parts = {name: getattr(order, name) for name in names}
    source, measuring = order.source, order.measuring
    hub = source.hub and source.hub.exact  # a branch that did not move is no change
    base = _base_name(source.checkpoint)
    parts["source"] = replace(source, checkpoint=base, samples=None, hub=hub)
    if measuring is not None:
        data = replace(measuring.data, source=_base_name(measuring.data.source).name)
        parts["measuring"] = replace(measuring, data=data)
        yield _data_digest(measuring.data.source, order, root, digests)
        yield from _sidecar_digests(measuring.data.source, root, digests)
    if source.samples is not None:
        yield _data_digest(str(source.samples), order, root, digests)
    yield canonical_text(parts)
    yield _checkpoint_digest(order, root, digests)
    for name, value in sorted(order.settings.items()):
        if name not in _ON_DISK_ONLY:  # it may name files: plugins, weights
            for part in [value, *value.replace(",", " ").replace(os.pathsep, " ").split()]:
                if part and (root / part).is_file():
                    yield f"{name} {digests.of(root / part)}"


def _base_name(path: Path | str) -> Path:
    """Return the last part of a path, which shows the format; its location is not in the key."""
    return Path(Path(path).name)


def _checkpoint_digest(order: Order, root: Path, digests: FileDigests) -> str:
    path = root / order.source.checkpoint
    if not path.exists():
        raise UsageError(
            f"no such checkpoint: {path}",
            hint="give the path of a file or a folder",
            code=ErrorCode.NOT_FOUND,
        )
    kind, files = find_contents(path, with_factory=order.source.model is not None)
    try:
        found = [(os.path.relpath(file, path), digests.of(file)) for file in files]
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}", hint="look at its permissions"
        ) from error
    return canonical_text([kind, found])


def _step_parts(order: Order, step: Step) -> Iterator[str]:
    """Yield the parts of one step: its place in the plan, its tools, and how it is judged."""
    target = step.target
    ready = target.readiness()
    yield canonical_text([step.name, target.NAME, target.SUFFIX, step.stem, step.loads_in])
    yield package_of(target)  # the code of a plugin is not part of modelc's digest
    yield canonical_text([step.wanted, step.captures, ready.ready, ready.version, ready.reason])
    yield canonical_text([(one.NAME, one.readiness().version) for one in step.quantizers])
    yield canonical_text(order.select_judging(step.wanted))
    device = order.judging.device_for(target)
    yield describe_gpus() if device == "cuda" else device


def _precision_parts(
    order: Order, precision: Precision, root: Path, digests: FileDigests
) -> Iterator[str]:
    """Yield the lowering: nothing for fp32, and the calibration data for INT8 only."""
    lowering = order.lowering
    if precision is Precision.FP32:
        return
    if precision not in QUANTIZED:
        yield canonical_text(replace(lowering, calibration=None))
        return
    options = lowering.calibration
    if options is not None:
        yield _data_digest(options.source, order, root, digests)
        lowering = replace(
            lowering, calibration=replace(options, source=_base_name(options.source).name)
        )
    yield canonical_text([lowering, order.has_accuracy_budget])


def _data_digest(source: str, order: Order, root: Path, digests: FileDigests) -> str:
    """Digest samples on disk; for a loader its name, as its code and files are tracked."""
    path = root / source
    if source == RANDOM or (is_loader_spec(source) and not path.exists()):
        return canonical_text(["by name", source])
    less = tuple(one for one in (order.out, order.cache) if one is not None)
    try:
        if path.is_dir():
            return digests.of_tree(path, less=tuple(root / one for one in less))
        return canonical_text([path.suffix, digests.of(path)])
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", hint="give samples that are there"
        ) from error


def _sidecar_digests(source: str, root: Path, digests: FileDigests) -> Iterator[str]:
    """Yield digests of the companion files of labelled data."""
    path = root / source
    for file in find_companion_files(path) if path.exists() else ():
        try:
            yield digests.of(file)
        except OSError:  # the run reports the error
            yield ""


def canonical_text(value: object) -> str:
    """Encode records, mappings, sequences, enums, paths and plain values as unambiguous text.

    Each part includes its type and length, so that no two values share a text. The order of a
    mapping does not matter.

    Raises:
        TypeError: another type; guessing a text could make two values share one.
    """
    kind: Any = type(value)
    if kind in _PLAIN_TYPES:  # most values, tested first
        text = str(value)
        return f"{kind.__name__}:{len(text)}:{text};"
    if is_dataclass(value) and not isinstance(value, type):
        text = "".join([key + canonical_text(getattr(value, name)) for name, key in _keys_of(kind)])
        return _frame(kind.__name__, _frame("map", text))
    if isinstance(value, dict | Mapping):
        pairs = sorted((canonical_text(key), canonical_text(item)) for key, item in value.items())
        return _frame("map", "".join(key + item for key, item in pairs))
    if isinstance(value, frozenset | set):
        return _frame("set", "".join(sorted(map(canonical_text, value))))
    if isinstance(value, list | tuple):
        return _frame("list", "".join(map(canonical_text, value)))
    return _canonical_plain(value)


_PLAIN_TYPES = (str, bool, int, type(None))


@functools.cache
def _keys_of(kind: Any) -> tuple[tuple[str, str], ...]:
    """Return the names of the fields of a record with their texts, in the order of the texts."""
    pairs = [(field.name, _frame("str", field.name)) for field in fields(kind)]
    return tuple(sorted(pairs, key=lambda pair: pair[1]))


def _canonical_plain(value: object) -> str:
    if isinstance(value, Enum):
        return _frame(type(value).__name__, str(value.value))
    if isinstance(value, PurePath):
        return _frame("path", Path(value).as_posix())
    if value is None or isinstance(value, (bool, int, float, str)):
        return _frame(type(value).__name__, value if isinstance(value, str) else repr(value))
    raise TypeError(f"a {type(value).__name__} has no canonical text")


def _frame(kind: str, text: str) -> str:
    return f"{kind}:{len(text)}:{text};"
