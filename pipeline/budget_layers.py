"""The quantized layers of a step by what each costs, measured on calibration samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from shutil import rmtree

from ..converters.quantizers.layer_switches import Switchboard, can_switch, open_switchboard
from ..converters.quantizers.quantized_layers import QuantizedLayer
from ..converters.quantizers.quantizer_registry import quantizers_for
from ..core.contract import Feed, Outputs, Quantized, QuantizeJob
from ..core.errors import ConversionError
from ..validators.metrics import is_numeric, measure_arrays
from .bench import Parent, RunContext
from .budget_ranking import MAX_NOISE, Noise, Ranking, measure_noises, rank_by_noise
from .calibration_cache import quantization_key
from .plan import Step
from .quantizing import QuantizationTask, quantize_parent
from .stage import Clock
from .tradeoffs import TradeOffStore, digest_texts, open_tradeoff_store
from .trying import Recipe, Trial, make_quantization

NOISE_SAMPLES = (
    4  # of calibration, spread over the set: held-out ones judge what the ranking leads to
)


@dataclass(frozen=True, kw_only=True)
class RankedLayers:
    """The layers in the order of the graph, and their ranking by index."""

    layers: tuple[QuantizedLayer, ...]
    ranking: Ranking


def rank_layers(
    step: Step, plain: Trial, parent: Parent, bench: RunContext, *, most: int
) -> RankedLayers:
    """Measure the noise of each layer alone in 8 bits, from the cache what is known.

    Args:
        step: whose layers.
        plain: its INT8 trial; where its quantizer's result has no Q/DQ to switch, those of another
            quantizer for the same target stand in.
        parent: the float model.
        bench: with the samples.
        most: how many measurements it may make; those from the cache count.

    Raises:
        ConversionError: no quantizer gives Q/DQ here, or the switched model would not run.
    """
    work, result = _reference_quantization(step, plain, parent, bench)
    store = open_tradeoff_store(bench.order.cache)
    key = digest_texts(("ranking", quantization_key(work), str(NOISE_SAMPLES)))
    title = f"rank layers of {step.name}"
    with bench.stage.step(title, log=f"rank-{step.name}") as clock:
        with _open_switchboard(step, work, result, bench) as board:
            if len(board.layers) == 0:
                raise ConversionError(f"{step.name} has no layer in 8 bits", hint="see its log")
            feeds = _sample_evenly(bench)
            runs = _BlockMeter(board, feeds, store, key, lambda n: bench.stage.advance(title, n, n))
            gate = bench.order.judging.min_sqnr or 0.0
            found = measure_noises(
                len(board.layers), runs.noise, allowed=10 ** (-gate / 10), most=most
            )
        _report_ranking(board, runs, clock, bench)
    return RankedLayers(layers=board.layers, ranking=rank_by_noise(found))


def _report_ranking(board: Switchboard, runs: _BlockMeter, clock: Clock, bench: RunContext) -> None:
    clock.detail = f"{len(board.layers)} layers, {runs.made} measured"
    if runs.taken:
        clock.detail += f", {runs.taken} from the cache"
    if board.unknown:
        text = f"{len(board.unknown)} nodes in 8 bits are not in the float model and not ranked"
        bench.stage.note(f"{text}: {', '.join(board.unknown[:3])}", warning=True)


class _BlockMeter:
    """Measures blocks of layers on the feeds; keeps what is measured."""

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
        self.made = self.taken = 0

    def noise(self, layers: tuple[int, ...]) -> Noise:
        """Noise over signal with these layers in 8 bits, an entry for each sample and output."""
        name = f"{layers[0]}-{layers[-1]}"
        found = self._known.get(name)
        if found is not None:
            self.taken += 1
            return found
        if not self._exact:
            self._exact = [self._board.run(feed, ()) for feed in self._feeds]
        found = tuple(
            entry
            for feed, exact in zip(self._feeds, self._exact, strict=True)
            for entry in _noise_ratios(exact, self._board.run(feed, layers))
        )
        self.made += 1
        self._advance(self.made + self.taken)
        self._known[name] = found
        self._store.keep(self._key, self._known)
        return found


def _noise_ratios(exact: Outputs, rounded: Outputs) -> Iterator[float]:
    """Of each float output, of each numeric one where there is none."""
    floats = [name for name, array in exact.items() if array.dtype.kind == "f"]
    for name in floats or [name for name, array in exact.items() if is_numeric(array)]:
        found = measure_arrays(exact[name], rounded[name])
        if found.nonfinite_mismatch:
            yield MAX_NOISE
        elif found.noise == 0:
            yield 0.0
        else:
            yield min(found.noise / found.signal, MAX_NOISE) if found.signal else MAX_NOISE


def _sample_evenly(bench: RunContext) -> tuple[Feed, ...]:
    """A few calibration samples from all over the set."""
    if bench.calibration is None:
        raise RuntimeError("layers are to be ranked without samples")
    step = max(1, len(bench.calibration) // NOISE_SAMPLES)
    return tuple(islice(bench.calibration, 0, step * NOISE_SAMPLES, step))


def _reference_quantization(
    step: Step, plain: Trial, parent: Parent, bench: RunContext
) -> tuple[QuantizationTask, Quantized]:
    """A quantizer's result that switches can be made of: the trial's own, else another's."""
    others = [one for one in quantizers_for(step.target.NAME) if one.readiness().ready]
    own = [plain.way.quantizer] if plain.switchable and plain.way.quantizer else []
    for quantizer in (*own, *(one for one in others if one is not plain.way.quantizer)):
        work = make_quantization(step, Recipe(quantizer=quantizer), parent, bench)
        if work.method not in (None, *quantizer.METHODS[step.target.NAME]):
            work = replace(work, method=None)
        place = bench.folder.workplace(f"{step.name}-ranked")
        result = quantize_parent(work, place, bench.cache, bench.stage)
        if can_switch(result.path):
            return work, result
        rmtree(place)
    raise ConversionError(
        f"no quantizer for {step.target.NAME} gives a model whose layers can be looked at",
        hint="pip install onnxruntime",
    )


@contextmanager
def _open_switchboard(
    step: Step, work: QuantizationTask, result: Quantized, bench: RunContext
) -> Iterator[Switchboard]:
    """The opened switchboard; its files and the quantizer's go at the end."""
    place = bench.folder.workplace(f"{step.name}-switched")
    job = QuantizeJob(
        parent=work.parent,
        consumer=work.consumer,
        signature=work.signature,
        calibration=work.calibration,
        folder=place,
    )
    try:
        yield open_switchboard(job, result.path)
    finally:
        rmtree(place, ignore_errors=True)
        rmtree(result.path.parent, ignore_errors=True)
