"""Faults planted in the files of an IR, each found and named; without its fault each passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from modelc.core.verdict import State, Verdict

pytestmark = [pytest.mark.needs("openvino"), pytest.mark.needs("onnx")]
Judged = Callable[[str, str, Callable[[Path], None]], Verdict]
Change = Callable[[Path], None]
Numbers = NDArray[np.floating]


def weight(name: str, change: Callable[[Numbers], None]) -> Change:
    """Change a constant of the model where its bytes lie in the .bin."""

    def changed(path: Path) -> None:
        pattern = rf'<layer id="\d+" name="{re.escape(name)}"[^>]*>\s*<data ([^>]*)/>'
        found = re.search(pattern, path.read_text())
        assert found is not None
        facts = dict(re.findall(r'(\w+)="([^"]*)"', found.group(1)))
        shape = [int(size) for size in facts["shape"].split(",")]
        start, size = int(facts["offset"]), int(facts["size"])
        content = bytearray(path.with_suffix(".bin").read_bytes())
        dtype = {"f32": np.float32, "f16": np.float16}[facts["element_type"]]
        array = np.frombuffer(content, dtype, size // np.dtype(dtype).itemsize, start)
        change(array.reshape(shape))
        path.with_suffix(".bin").write_bytes(content)

    return changed


def one_percent(array: Numbers) -> None:
    array[np.unravel_index(np.abs(array).argmax(), array.shape)] *= 1.01


def one_nan(array: Numbers) -> None:
    array.flat[0] = np.nan


def zeros(array: Numbers) -> None:
    array[...] = 0


def transpose(array: Numbers) -> None:
    array[...] = array.T.copy()


def text(*changes: tuple[str, str]) -> Change:
    """Replace parts of the .xml, every one of them at once."""

    def changed(path: Path) -> None:
        table = dict(changes)
        pattern = "|".join(re.escape(old) for old in table)
        content, count = re.subn(pattern, lambda m: table[m.group()], path.read_text())
        assert count >= len(table)
        path.write_text(content)

    return changed


@dataclass(frozen=True, kw_only=True)
class Fault:
    model: str
    change: Change
    reason: str  # a pattern that names output, feed or input
    file: str = "model.xml"


ON_FEED = "output 'output' on feed "
EITHER = r"output '(hidden|pooled)' on feed "
FAULTS = {
    "a weight of the first conv off by 1 %": Fault(
        model="digits", change=weight("model.stem_conv.weight", one_percent), reason=ON_FEED
    ),
    "a weight of the last linear off by 1 %": Fault(
        model="digits", change=weight("model.classify.weight", one_percent), reason=ON_FEED
    ),
    "a NaN in a weight": Fault(
        model="digits",
        change=weight("model.classify.weight", one_nan),
        reason="elements NaN/Inf where eager has none",
    ),
    "a NaN in a half weight": Fault(
        model="digits",
        file="model.fp16.xml",
        change=weight("model.classify.weight_compressed", one_nan),
        reason="elements NaN/Inf where eager has none",
    ),
    "a layer of a half model lost": Fault(
        model="digits",
        file="model.fp16.xml",
        change=weight("model.hidden.weight_compressed", zeros),
        reason=ON_FEED,
    ),
    "two outputs swapped": Fault(
        model="nested",
        change=text(('names="boxes.0"', 'names="boxes.1"'), ('names="boxes.1"', 'names="boxes.0"')),
        reason="boxes.1, boxes.0",
    ),
    "an output renamed": Fault(
        model="nested",
        change=text(('names="aux.energy"', 'names="energy"')),
        reason="output 'aux.energy' is missing; output 'energy' is extra",
    ),
    "a static batch": Fault(
        model="digits",
        change=text(('shape="1..8,1,8,8"', 'shape="4,1,8,8"')),
        reason=r"refused feed sample \(batch=8\)",
    ),
    "a narrower range": Fault(
        model="digits",
        change=text(('shape="1..8,1,8,8"', 'shape="1..7,1,8,8"')),
        reason=r"refused feed sample \(batch=8\) \(and 1 more\): .*1\.\.7",
    ),
    "another epsilon in the norms": Fault(
        model="bert",
        change=text(('eps="9.999999960041972e-13"', 'eps="1e-05"')),
        reason=EITHER,
    ),
    "a square weight transposed": Fault(
        model="bert", change=weight("val_38", transpose), reason=EITHER
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_fails_and_is_named(judged: Judged, fault: Fault) -> None:
    verdict = judged(fault.model, fault.file, fault.change)
    assert verdict.state is State.FAILED
    assert re.search(fault.reason, verdict.reason)


@pytest.mark.parametrize(
    ("model", "file"), sorted({(fault.model, fault.file) for fault in FAULTS.values()})
)
def test_the_twin_without_a_fault_passes(judged: Judged, model: str, file: str) -> None:
    verdict = judged(model, file, lambda _: None)
    assert verdict.reason == ""
    assert verdict.passed
