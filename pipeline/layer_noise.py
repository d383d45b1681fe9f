"""Measure the quantization noise of each layer on calibration samples, with a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import TypeVar

from ..converters.quantizers.layer_switches import Switchboard, can_switch, open_switchboard
from ..converters.quantizers.quantized_layers import QuantizedLayer
from ..converters.quantizers.quantizer_registry import quantizers_for
from ..core.atomic_write import atomic_write
from ..core.contract import CalibrationFeeds, Feed, Outputs, Quantized, QuantizeJob
from ..core.errors import ConversionError
from ..validators.judge import ReferenceOutputs
from ..validators.metrics import is_numeric, measure_arrays
from .attempt import Recipe, Trial
from .cache.file_digests import FileDigests, digest_of_code
from .layer_search import MAX_NOISE, Noise, Ranking, measure_noises, rank_by_noise
from .quantization import QuantizationTask, make_quantization, quantization_key, quantize_parent
from .run_context import StepWork

NOISE_SAMPLES = 4  # calibration samples, spread over the set; held-out samples are for the verdict


@dataclass(frozen=True, kw_only=True)
class RankedLayers:
    """Layers in graph order, and their ranking by index."""

    layers: tuple[QuantizedLayer, ...]
    ranking: Ranking


def rank_layers(work: StepWork, plain: Trial, *, most: int) -> RankedLayers:
    """Rank the layers by the noise that each adds when it alone is quantized to 8 bits.

    Args:
        work: the step whose layers are ranked.
        plain: its INT8 trial. If the result of its quantizer has no Q/DQ nodes to switch, another
            quantizer for the same target replaces it.
        most: the maximum number of measurements, including cached ones.

    Raises:
        ConversionError: no quantizer gives switchable Q/DQ nodes, no layer is quantized, or the
            switched model does not run.
    """
    step, run, progress = work.step, work.run, work.run.workspace.progress
    task, result = _reference_quantization(work, plain)
    store = open_tradeoff_store(run.order.cache)
    key = digest_texts(("ranking", quantization_key(task), str(NOISE_SAMPLES)))
    title = f"rank layers of {step.name}"
    with progress.step(title, log=f"rank-{step.name}", runs_artifact=True) as clock:
        with _open_switchboard(work, task, result) as board:
            if len(board.layers) == 0:
                raise ConversionError(f"{step.name} has no layer in 8 bits", hint="see its log")
            feeds = _sample_evenly(run.samples.calibration)
            runs = _BlockMeter(board, feeds, store, key, lambda n: progress.advance(title, n, n))
            gate = run.order.judging.min_sqnr or 0.0
            found = measure_noises(
                len(board.layers), runs.noise, allowed=10 ** (-gate / 10), most=most
            )
        clock.detail = f"{len(board.layers)} layers, {runs.made} measured"
        if runs.cached:
            clock.detail += f", {runs.cached} from the cache"
        if board.unknown:
            text = f"{len(board.unknown)} nodes in 8 bits are not in the float model and not ranked"
            progress.note(f"{text}: {', '.join(board.unknown[:3])}", warning=True)
    return RankedLayers(layers=board.layers, ranking=rank_by_noise(found))


class _BlockMeter:
    """Measures the noise of blocks of layers, and caches it."""

    def __init__(
        self,
        board: Switchboard,
        feeds: Sequence[Feed],
        store: TradeOffStore,
        key: str,
        advance: Callable[[int], None],
    ) -> None:
        self._board, self._feeds, self._advance = board, feeds, advance
        self._store, self._key = store, key
        self._known = store.take(key, dict[str, Noise]) or {}
        self._exact: list[Outputs] = []
        self.made = self.cached = 0

    def noise(self, layers: tuple[int, ...]) -> Noise:
        """Return noise over signal (powers) with these layers in 8 bits, per sample and output."""
        name = f"{layers[0]}-{layers[-1]}"
        found = self._known.get(name)
        if found is not None:
            self.cached += 1
            return found
        if not self._exact:
            self._exact = [self._board.run(feed, ()) for feed in self._feeds]
        found = tuple(
            entry
            for feed, exact in zip(self._feeds, self._exact, strict=True)
            for entry in _noise_ratios(exact, self._board.run(feed, layers))
        )
        self.made += 1
        self._advance(self.made + self.cached)
        self._known[name] = found
        self._store.keep(self._key, self._known)
        return found


def _noise_ratios(exact: Outputs, rounded: Outputs) -> Iterator[float]:
    """Yield noise over signal of each float output, or of each numeric one if none is float."""
    floats = [name for name, array in exact.items() if array.dtype.kind == "f"]
    for name in floats or [name for name, array in exact.items() if is_numeric(array)]:
        found = measure_arrays(exact[name], rounded[name])
        lost = found.nonfinite_mismatch or (found.noise and not found.signal)
        ratio = found.noise / found.signal if found.signal else 0.0
        yield MAX_NOISE if lost else min(ratio, MAX_NOISE)


def _sample_evenly(calibration: CalibrationFeeds | None) -> tuple[Feed, ...]:
    """Return `NOISE_SAMPLES` calibration samples, evenly spaced over the set."""
    if calibration is None:
        raise RuntimeError("no calibration samples to rank layers on")
    step = max(1, len(calibration) // NOISE_SAMPLES)
    return tuple(islice(calibration, 0, step * NOISE_SAMPLES, step))


def _reference_quantization(work: StepWork, plain: Trial) -> tuple[QuantizationTask, Quantized]:
    """Quantize the parent with a quantizer whose layers can be switched, the trial's own first.

    Raises:
        ConversionError: no quantizer gives a switchable model.
    """
    step, space = work.step, work.run.workspace
    way = (step.target.NAME, step.wanted.precision)
    others = [one for one in quantizers_for(*way) if one.readiness().ready]
    own = [plain.recipe.quantizer] if plain.switchable and plain.recipe.quantizer else []
    for quantizer in (*own, *(one for one in others if one is not plain.recipe.quantizer)):
        task = make_quantization(work, Recipe(quantizer=quantizer))
        if task.method not in (None, *quantizer.METHODS[way]):
            task = replace(task, method=None)
        place = space.folder.workplace(f"{step.name}-ranked")
        result = quantize_parent(task, place, space.cache, space.progress)
        if can_switch(result.path):
            return task, result
        rmtree(place)
    raise ConversionError(
        f"no quantizer for {step.target.NAME} gives a model whose layers can be switched",
        hint="pip install onnxruntime",
    )


@contextmanager
def _open_switchboard(
    work: StepWork, task: QuantizationTask, result: Quantized
) -> Iterator[Switchboard]:
    """Open the switchboard; delete its files and those of the quantizer on exit."""
    place = work.run.workspace.folder.workplace(f"{work.step.name}-switched")
    job = QuantizeJob(
        parent=task.parent,
        consumer=task.consumer,
        signature=task.signature,
        calibration=task.calibration,
        folder=place,
    )
    try:
        yield open_switchboard(job, result.path)
    finally:
        rmtree(place, ignore_errors=True)
        rmtree(result.path.parent, ignore_errors=True)


StoredValue = TypeVar("StoredValue")
_MAX_STORED = 4096  # files of about 1 kB; the oldest are deleted first


class TradeOffStore:
    """A cache folder of measurements by key; with folder None, a store that is always empty."""

    def __init__(self, folder: Path | None, most: int = _MAX_STORED) -> None:
        self._folder = folder
        self._most = most

    def take(self, key: str, kind: type[StoredValue]) -> StoredValue | None:
        """Return the value of a key; None if it is missing or unreadable."""
        import msgspec

        if self._folder is None:
            return None
        try:
            return msgspec.json.decode((self._folder / f"{key}.json").read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def keep(self, key: str, value: object) -> None:
        """Store a value; ignore a folder that cannot be written."""
        import msgspec

        if self._folder is None:
            return
        with suppress(OSError):  # a read-only home, a full disk
            self._folder.mkdir(parents=True, exist_ok=True)
            atomic_write(self._folder / f"{key}.json", msgspec.json.encode(value))
            files = sorted(self._folder.iterdir(), key=lambda file: file.stat().st_mtime)
            for file in files[: -self._most]:
                file.unlink(missing_ok=True)


def open_tradeoff_store(cache: Path | None) -> TradeOffStore:
    """Open the store in the user's cache folder."""
    return TradeOffStore(None if cache is None else cache / "tradeoffs")


def digest_texts(parts: Iterable[str]) -> str:
    """Return the SHA-256 of the texts and of modelc's source, which changes between releases."""
    return hashlib.sha256("\x1f".join((_own_code_digest(), *parts)).encode()).hexdigest()


def digest_references(references: Iterable[ReferenceOutputs]) -> str:
    """Return the SHA-256 of feeds and eager's outputs: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for reference in references:
        for arrays in (reference.feed.arrays, reference.outputs):
            for name, array in arrays.items():
                digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
                digest.update(array.tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _own_code_digest() -> str:
    return digest_of_code(FileDigests(None))
