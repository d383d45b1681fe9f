"""The interface of an artifact: read from its file, and seen in runs of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.contract import Array, Inspection, Outputs, Runner, TensorInfo
from ..core.dims import Dim
from ..core.kinds import Precision
from ..core.postprocess import BOXES, CLASS_IDS, COUNT, SCORES
from ..core.signature import DTYPE_NAMES, DTYPES, Signature
from ..validators.feeds import FeedDrawer, NamedFeed, choose_example_sizes
from .repository_records import ModelInterface, ServedTensor

_ROWS = 4  # of the batch whose rows are compared with rows alone
_ROW_FEEDS = 3  # such batches
_MANY_ROWS = 32  # of the last one: a limit on rows, as of an expert, shows in large batches alone
_ROW_TOLERANCE = {Precision.FP32: 1e-4}  # relative to the output's peak: boxes beside scores
_COARSE_ROWS = 2e-2  # of other precisions
_KEPT_ROWS = 1e-5  # of rows at their place in a batch of the same size: its kernels are the same
_MAX_INTEGER_CHANGES = 0.01  # share of integers that may differ, as a tie may
_BOX_LIST = {BOXES, SCORES, CLASS_IDS, COUNT}  # outputs of suppression
_MAX_OTHER_BOXES = 0.1  # share of boxes that roundoff may choose otherwise
_MAX_STEP = 16  # by which a dim is varied


def parse_dims(info: TensorInfo) -> tuple[int, ...]:
    """Return the declared dims; -1 for one that is named or unknown."""
    return tuple(int(dim) if dim.isdecimal() and dim.isascii() else -1 for dim in info.dims)


def plain_dtype(dtype: str) -> str:
    """Return a declared dtype by numpy's name; empty for the type of a program's argument."""
    name = DTYPE_NAMES.get(dtype, dtype)
    return name if name in (*DTYPES, "bfloat16", "uint16", "uint32", "uint64") else ""


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """What runs of an artifact showed of its outputs, by the name in the signature."""

    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    batched: bool = False  # the first dim of every output follows the batch
    rows_apart: bool | None = None


def batch_dim(signature: Signature) -> Dim | None:
    """Return the dim that is the first of every input, if it may be 1; None without one."""
    first = [spec.dims[0] if spec.dims else None for spec in signature.inputs]
    dim = first[0] if first else None
    if dim is None or not dim.dynamic or dim.relation is not None or dim.low > 1:
        return None
    same = all(one is not None and one.name == dim.name for one in first)
    elsewhere = [n for spec in signature.inputs for one in spec.dims[1:] for n in one.bases]
    return dim if same and dim.name not in elsewhere else None


def probe_sizes(signature: Signature) -> tuple[dict[str, int], ...]:
    """Return sizes of the free dims to run at: typical ones, then each dim in turn changed."""
    base = choose_example_sizes(signature)
    found = [base]
    for name, dim in signature.free_dims.items():
        other = min(base[name] + 1, dim.high, base[name] + _MAX_STEP)
        if other == base[name]:
            other = max(base[name] - 1, dim.low)
        if other != base[name]:
            found.append({**base, name: other})
    batch = batch_dim(signature)
    if batch is not None and batch.name is not None and base[batch.name] != 1:
        found.append({**base, batch.name: 1})
    return tuple(found)


def observe_runs(runner: Runner, signature: Signature, precision: Precision) -> RunEvidence:
    """Run the artifact at several sizes, and rows of a batch alone.

    Raises:
        RunnerError: it rejects a feed of its domain.
    """
    drawer = FeedDrawer.of(signature, 0, None)
    batch = batch_dim(signature)
    shapes: dict[str, list[tuple[int, ...]]] = {}
    dtypes: dict[str, str] = {}
    batched = batch is not None
    for number, sizes in enumerate(probe_sizes(signature)):
        outputs = runner.run(drawer.feed(f"probe-{number}", dict(sizes)).arrays)
        for name, array in outputs.items():
            shapes.setdefault(name, []).append(tuple(array.shape))
            dtypes[name] = str(array.dtype)
            rows = None if batch is None else sizes.get(batch.name or "")
            batched = batched and array.ndim > 0 and array.shape[0] == rows
    dims = {name: _common_dims(found) for name, found in shapes.items()}
    apart = None
    if batched and batch is not None and batch.high > 1:
        tolerance = _ROW_TOLERANCE.get(precision, _COARSE_ROWS)
        apart = all(
            are_rows_apart(runner, feed, tolerance) for feed in draw_row_feeds(drawer, batch)
        )
    return RunEvidence(dims=dims, dtypes=dtypes, batched=batched, rows_apart=apart)


def _common_dims(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the dims of all shapes, -1 where they differ; of the first if the ranks differ."""
    if len({len(shape) for shape in shapes}) > 1:
        return tuple(-1 for _ in shapes[0])
    columns = zip(*shapes, strict=True)
    return tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in columns)


def draw_row_feeds(drawer: FeedDrawer, batch: Dim) -> Iterator[NamedFeed]:
    """Yield batches that show whether rows depend on each other.

    In the first, each odd row is the mirrored row before it: whatever the model asks of the whole
    batch, as the sign of its mean, is otherwise for one of the two alone.
    """
    import numpy as np

    name = batch.name or ""
    sizes = {**choose_example_sizes(drawer.signature), name: min(batch.high, _ROWS)}
    feed = drawer.feed("rows", sizes)
    mirrored = drawer.draw_negated(feed).arrays
    rows = np.arange(sizes[name])
    odd = rows % 2 == 1
    arrays = {
        key: np.where(odd.reshape(-1, *[1] * (array.ndim - 1)), mirrored[key][rows - odd], array)
        for key, array in feed.arrays.items()
    }
    yield NamedFeed(name="rows", arrays=arrays, sizes=sizes)
    for number in range(1, _ROW_FEEDS):
        yield drawer.feed(f"rows-{number}", sizes)
    if batch.high > _ROWS:
        yield drawer.feed("many-rows", {**sizes, name: min(batch.high, _MANY_ROWS)})


def are_rows_apart(runner: Runner, feed: NamedFeed, tolerance: float) -> bool:
    """Whether each row gives alone, and beside other rows, what it gives in the batch.

    Then a server may join requests. Alone, another kernel may compute it, which the tolerance
    allows; beside others, nothing changes but the other rows.
    """
    import numpy as np

    whole = runner.run(feed.arrays)
    beside = runner.run({name: _repeat_even_rows(array) for name, array in feed.arrays.items()})
    for name, array in whole.items():
        even = np.arange(len(array)) % 2 == 0
        if not _is_close(beside[name][even], array[even], _KEPT_ROWS):
            return False
    lists = _BOX_LIST if whole.keys() >= _BOX_LIST else set()
    found: list[Array] = []
    for row in range(len(next(iter(feed.arrays.values())))):
        alone = runner.run({name: array[row : row + 1] for name, array in feed.arrays.items()})
        here = {name: array[row : row + 1] for name, array in whole.items()}
        if not all(_is_close(alone[name], here[name], tolerance) for name in whole.keys() - lists):
            return False
        if lists:
            found += _find_common_boxes(alone, here, tolerance)
    return not lists or float(np.mean(np.concatenate([[True], *found]))) >= 1 - _MAX_OTHER_BOXES


def _find_common_boxes(one: Outputs, other: Outputs, tolerance: float) -> tuple[Array, Array]:
    """Return for each box of two lists of an image whether the other list has it, at any place.

    Roundoff decides between nearly equal scores, and then other boxes and another order follow.
    """
    import numpy as np

    same = one[CLASS_IDS][0][:, None] == other[CLASS_IDS][0]
    for name in (BOXES, SCORES):
        first, second = (x[name][0].astype(np.float64) for x in (one, other))
        first, second = (x.reshape(len(x), -1) for x in (first, second))
        limit = tolerance * _peak(second)
        same &= np.isclose(first[:, None], second, rtol=0, atol=limit, equal_nan=True).all(2)
    same = same[: int(one[COUNT][0]), : int(other[COUNT][0])]
    return same.any(1), same.any(0)


def _repeat_even_rows(array: Array) -> Array:
    import numpy as np

    return array[np.arange(len(array)) // 2 * 2]


def _is_close(one: Array, other: Array, tolerance: float) -> bool:
    import numpy as np

    if one.shape != other.shape:
        return False
    if not np.issubdtype(one.dtype, np.floating):
        return one.size == 0 or float(np.mean(one != other)) <= _MAX_INTEGER_CHANGES
    first, second = one.astype(np.float64), other.astype(np.float64)
    limit = tolerance * _peak(second)
    return bool(np.allclose(first, second, rtol=0, atol=limit, equal_nan=True))


def _peak(values: Array) -> float:
    import numpy as np

    return float(np.max(np.abs(values), initial=1e-6, where=np.isfinite(values)))


def make_interface(
    inspection: Inspection, signature: Signature, evidence: RunEvidence | None
) -> ModelInterface:
    """Combine what the file declares with what runs showed.

    Dtypes are those of the file where it declares them. A dim has a size where the signature, the
    file or all runs fix it.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    names = _sources(inspection.inputs, tuple(specs))
    inputs = []
    for info, source in zip(inspection.inputs, names, strict=True):
        spec = specs.get(source)
        own = () if spec is None else tuple(-1 if d.dynamic else d.opt for d in spec.dims)
        dtype = plain_dtype(info.dtype) or ("" if spec is None else spec.dtype)
        inputs.append(_tensor(info, source, dtype, own))
    outputs = tuple(_outputs(inspection, signature, evidence))
    return ModelInterface(
        inputs=tuple(inputs),
        outputs=outputs,
        batch=_largest_batch(signature, (*inputs, *outputs), evidence),
        rows_apart=None if evidence is None else evidence.rows_apart,
        has_run=evidence is not None,
        facts=dict(inspection.facts),
    )


def _outputs(
    inspection: Inspection, signature: Signature, evidence: RunEvidence | None
) -> Iterator[ServedTensor]:
    seen = evidence or RunEvidence()
    infos = inspection.outputs or tuple(
        TensorInfo(name=name, dtype="", dims=()) for name in signature.outputs
    )
    for info, source in zip(infos, _sources(infos, signature.outputs), strict=True):
        dtype = plain_dtype(info.dtype) or seen.dtypes.get(source, "")
        yield _tensor(info, source, dtype, seen.dims.get(source, ()))


def _tensor(info: TensorInfo, source: str, dtype: str, own: tuple[int, ...]) -> ServedTensor:
    """Return the tensor with a size wherever the file or `own` has one."""
    declared = parse_dims(info)
    if not declared or (own and len(own) != len(declared)):
        dims = own or declared
    elif own:
        dims = tuple(a if a >= 0 else b for a, b in zip(declared, own, strict=True))
    else:
        dims = declared
    return ServedTensor(name=info.name, dtype=dtype, dims=dims, source=source)


def _sources(infos: Sequence[TensorInfo], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names in the signature: equal ones, or by position where the file has others."""
    own = [info.name for info in infos]
    if set(own) <= set(names) or len(own) != len(names):
        return tuple(own)
    return tuple(names)


def _largest_batch(
    signature: Signature, tensors: Sequence[ServedTensor], evidence: RunEvidence | None
) -> int:
    dim = batch_dim(signature)
    if dim is None or not all(one.dims and one.dims[0] == -1 for one in tensors):
        return 0
    return dim.high if evidence is None or evidence.batched else 0
