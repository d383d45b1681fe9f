"""The cache key of a step: a SHA-256 over everything that it depends on before it runs.

Files that the user's code reads during the run are tracked in dependencies.py.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from ... import __version__
from ...calibration.calibration_options import RANDOM
from ...calibration.label_files import find_companion_files
from ...checkpoints.checkpoint_files import find_contents
from ...checkpoints.user_code import project_folder
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

if TYPE_CHECKING:
    import msgspec

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
    check_declared_entries(order.depends, project_folder())
    tools = digests.once("tools", lambda: canonical_bytes([*_tool_parts(digests)]).hex())
    shared = [tools, *_input_parts(order, root, digests)]
    precisions = {step.wanted.precision for step in plan}
    lowered = {one: tuple(_precision_parts(order, one, root, digests)) for one in precisions}
    found: dict[str, str] = {}
    for step in plan:
        parts = [*shared, *_step_parts(order, step), *lowered[step.wanted.precision]]
        parts.append(found[step.parent] if step.parent is not None else "")
        found[step.name] = hashlib.sha256(canonical_bytes(parts)).hexdigest()
    return found


def _tool_parts(digests: FileDigests) -> Iterator[object]:
    """Yield modelc, this machine and the packages."""
    yield from (__version__, digest_of_code(digests), describe_machine(), packages())


def _input_parts(order: Order, root: Path, digests: FileDigests) -> Iterator[object]:
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
        yield _digest_data(measuring.data.source, order, root, digests)
        yield from _sidecar_digests(measuring.data.source, root, digests)
    if order.judging.text is not None:
        yield _digest_data(str(order.judging.text), order, root, digests)
    if source.samples is not None:
        yield _digest_data(str(source.samples), order, root, digests)
    yield parts
    yield _digest_checkpoint(order, root, digests)
    for name, value in sorted(order.settings.items()):
        if name not in _ON_DISK_ONLY:  # it may name files: plugins, weights
            for part in [value, *value.replace(",", " ").replace(os.pathsep, " ").split()]:
                if part and (root / part).is_file():
                    yield f"{name} {digests.of(root / part)}"


def _base_name(path: Path | str) -> Path:
    """Return the last part of a path, which shows the format; its location is not in the key."""
    return Path(Path(path).name)


def _digest_checkpoint(order: Order, root: Path, digests: FileDigests) -> object:
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
    return [kind, found]


def _step_parts(order: Order, step: Step) -> Iterator[object]:
    """Yield the parts of one step: its place in the plan, its tools, and how it is judged."""
    target = step.target
    ready = target.readiness()
    yield [step.name, target.NAME, target.SUFFIX, step.stem, step.loads_in]
    yield package_of(target)  # the code of a plugin is not part of modelc's digest
    yield [step.wanted, step.captures, ready.ready, ready.version, ready.reason]
    yield [(one.NAME, one.readiness().version) for one in step.quantizers]
    judging = order.select_judging(step.wanted)
    yield replace(judging, text=None, shared=frozenset())  # the content of the text is in the key
    device = order.judging.device_for(target)
    yield describe_gpus() if device == "cuda" else device


def _precision_parts(
    order: Order, precision: Precision, root: Path, digests: FileDigests
) -> Iterator[object]:
    """Yield the lowering: nothing for fp32, and the calibration data for INT8 only."""
    lowering = order.lowering
    if precision is Precision.FP32:
        return
    if precision not in QUANTIZED:
        yield replace(lowering, calibration=None)
        return
    options = lowering.calibration
    if options is not None:
        yield _digest_data(options.source, order, root, digests)
        lowering = replace(
            lowering, calibration=replace(options, source=_base_name(options.source).name)
        )
    yield [lowering, order.has_accuracy_budget]


def _digest_data(source: str, order: Order, root: Path, digests: FileDigests) -> object:
    """Digest samples on disk; for a loader its name, as its code and files are tracked."""
    path = root / source
    if source == RANDOM or (is_loader_spec(source) and not path.exists()):
        return ["by name", source]
    less = tuple(one for one in (order.out, order.cache) if one is not None)
    try:
        if path.is_dir():
            return digests.of_tree(path, less=tuple(root / one for one in less))
        return [path.suffix, digests.of(path)]
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


def canonical_bytes(value: object) -> bytes:
    """Encode what an order is made of as MessagePack.

    That is records, mappings with text keys, sequences, sets, enums, paths, text, numbers, bools
    and None; 1, 1.0, True and "1" differ. The order of a mapping or a set does not matter. A record
    is the mapping of its fields, and an enum is its value, so that a field must not hold two types
    that look the same.

    Raises:
        TypeError: a type that MessagePack has no form for.
        OverflowError: an integer of more than 64 bits.
    """
    return _encoder().encode(value)


@functools.cache
def _encoder() -> msgspec.msgpack.Encoder:
    import msgspec

    return msgspec.msgpack.Encoder(enc_hook=_encode_other, order="deterministic")


def _encode_other(value: object) -> object:
    """Return what MessagePack has no type for as a value that it has."""
    if isinstance(value, PurePath):
        return ("path", value.as_posix())
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no canonical encoding")
