"""Narrow a wrong part down to one operation and write it as files that run without modelc."""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...checkpoints.activation_tape import TracedTensor
from ...core.atomic_write import flush_file
from ...core.contract import Array
from ...core.target_extensions import Probe, ProbeNode
from ...reports.text_format import one_line
from ..output_folder import refuse_links
from .layer_anchors import Anchor, is_comparable
from .layer_comparer import LayerComparer, finite_sqnr, is_below

NEARLY = 0.9  # share of `plain`: the end accumulates more rounding than one operation
_MAX_TRIALS = 96  # runs in one search
_MAX_TENSORS = 400  # tensors of a part that are compared
_FOLDING = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # operators that absorb a BatchNorm


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The smallest set of nodes that contains the fault, with its inputs and expected result.

    `value` is eager's value at `tensor`: the result of an operation or of a module. `given` are
    eager's values at the inputs, `made` is the artifact's result on them, `expected` is eager's.
    `known` are all correct tensors of the part, including those before `given`, and `orders` the
    orders of their values.
    """

    nodes: tuple[ProbeNode, ...]
    tensor: str
    value: TracedTensor
    given: Mapping[str, Array]
    made: Array
    expected: Array
    known: Mapping[str, Array] = field(default_factory=dict)
    orders: Mapping[str, int] = field(default_factory=dict)
    inner: bool = False  # the value's module is nested, and no node is named after it

    @property
    def body(self) -> ProbeNode | None:
        """The last loop or branch among the nodes; it runs as a unit."""
        bodies = [node for node in self.nodes if node.inside is not None]
        bodies = [node for node in bodies if node.inside] or bodies
        return bodies[-1] if bodies else None

    @property
    def node(self) -> ProbeNode:
        """The node that messages name.

        This is the loop or branch, else the last node with weights, else the last with an origin.
        """
        if self.body is not None:
            return self.body
        named = [node for node in self.nodes if node.module or node.source] or list(self.nodes)
        weighted = [node for node in named if node.constants]
        return (weighted or named)[-1]

    @property
    def module(self) -> str:
        """The module whose code contains the operation; for a loop, the module of its value."""
        if self.body is not None:
            inside = self.value.module in (self.body.inside or ())
            return self.value.module if inside else self.body.module
        if is_folded(self.node):
            return self.node.owner
        modules = {node.module for node in self.nodes if node.module or node.source}
        one = next(iter(modules)) if len(modules) == 1 else self.value.module
        return self.value.module if self.inner else one

    @property
    def local(self) -> float | None:
        """The SQNR of the fault alone, in dB."""
        return finite_sqnr(self.expected, self.made)


def is_folded(node: ProbeNode) -> bool:
    """Return whether the node is a layer into which an exporter folded the following BatchNorm.

    The exporter names such a node after the BatchNorm, but its weights are the layer's.
    """
    is_batch_norm = "BatchNorm" in node.kind.rpartition(".")[2]
    return is_batch_norm and node.operator in _FOLDING and node.owner not in ("", node.module)


def refine_anchor(layers: LayerComparer, anchor: Anchor) -> Culprit:
    """Find the wrong operation between the preceding anchors and this one.

    A tensor that equals the result of an eager operation is correct, and so is everything before
    it. Each remaining tensor, the earliest first, is then replaced by eager's value until the end
    of the part is correct: that tensor is the one that the artifact computes wrongly.
    """
    given = layers.inputs_of([anchor])
    nodes = layers.between(given, anchor.tensor)
    outputs = [out for node in nodes for out in node.outputs if out != anchor.tensor]
    forms = {name: layers.forms[name] for name in outputs if name in layers.forms}
    inner = [n for n, form in forms.items() if form.is_floating or form.discrete][-_MAX_TENSORS:]
    made = layers.probe.part(given, [*inner, anchor.tensor])
    known = _candidate_values(layers, nodes, anchor)
    arrays = layers.arrays({*known, anchor.value.order})
    expected = layers.cast(anchor.tensor, arrays[anchor.value.order])
    layers.count(given.values(), made.values(), arrays.values())
    right = {
        name: order
        for name in inner
        if (order := _find_matching_value(layers, name, made[name], known, arrays)) is not None
    }
    start = {**given, **{name: made[name] for name in right}}
    search = _FaultSearch(layers=layers, anchor=anchor, start=start, expected=expected)
    left = {order: value for order, value in known.items() if order not in right.values()}
    found = search.earliest([n for n in inner if n not in right], left, arrays)
    tensor, value = found or (anchor.tensor, anchor.value)
    kept = {name: array for name, array in start.items() if name != tensor}
    nodes = layers.between(kept, tensor)
    read = {name for node in nodes for name in node.inputs}
    anchored = {name: one.value.order for name, one in layers.by_tensor.items()}
    orders = {**dict.fromkeys(layers.probe.inputs, -1), **anchored, **right}
    return Culprit(
        nodes=nodes,
        tensor=tensor,
        value=value,
        given={name: array for name, array in kept.items() if name in read},
        made=made[tensor],
        expected=layers.cast(tensor, arrays[value.order]),
        known=start,
        orders={name: orders[name] for name in kept if name in orders},
        inner=any(_is_unnamed(layers, value.module, node.module) for node in nodes),
    )


def _candidate_values(
    layers: LayerComparer, nodes: tuple[ProbeNode, ...], anchor: Anchor
) -> dict[int, TracedTensor]:
    """Return eager's values in the modules of these nodes, up to the anchor's value.

    If the artifact has no scopes, every value of eager's is a candidate.
    """
    modules = {anchor.value.module, *(node.module for node in nodes)}
    modules |= {module for node in nodes for module in node.inside or ()}
    if not layers.scoped:
        modules = {value.module for value in layers.values}
    fitting = [
        value
        for value in layers.values
        if (value.is_floating or value.discrete)
        and value.order < anchor.value.order
        and (value.module in modules or _is_unnamed(layers, value.module, anchor.value.module))
    ]
    last = layers.within_limit(reversed(fitting[-_MAX_TENSORS:]))
    return {value.order: value for value in reversed(last)}


def _is_unnamed(layers: LayerComparer, module: str, other: str) -> bool:
    """Return whether `module` lies inside `other` and no node is named after it.

    Some scripts have such modules.
    """
    inside = bool(other) and module.startswith(f"{other}.")
    return inside and module not in layers.named


def _find_matching_value(
    layers: LayerComparer,
    name: str,
    made: Array,
    known: Mapping[int, TracedTensor],
    arrays: Mapping[int, Array],
) -> int | None:
    """Return the order of the eager value that a tensor equals in any shape, or None.

    Skip constant integers and bools: they equal too many values.
    """
    form = layers.forms[name]
    if form.discrete and (not made.size or bool((made == made.flat[0]).all())):
        return None
    for order, value in known.items():
        array = arrays[order]
        if array.size != made.size or not is_comparable(form, value):
            continue
        limit = math.inf if form.discrete else layers.scale.plain
        if not is_below(finite_sqnr(array.reshape(made.shape), made), limit):
            return order
    return None


@dataclass(frozen=True, kw_only=True)
class _FaultSearch:
    """Replace the artifact's tensors by eager's values and check the end of the part."""

    layers: LayerComparer
    anchor: Anchor
    start: Mapping[str, Array]
    expected: Array

    def earliest(
        self, tensors: list[str], left: Mapping[int, TracedTensor], arrays: Mapping[int, Array]
    ) -> tuple[str, TracedTensor] | None:
        """Return the first tensor, with eager's value, that corrects the end of the part."""
        trials = 0
        nodes = self.layers.between(self.start, self.anchor.tensor)
        doubtful = {out for node in nodes for out in node.outputs}
        for name in (one for one in tensors if one in doubtful):
            form = self.layers.forms[name]
            for order, value in left.items():
                if value.shape != form.shape or not is_comparable(form, value):
                    continue
                trials += 1
                if trials > _MAX_TRIALS or not self.layers.more():
                    return None
                if self._right(name, arrays[order]):
                    return name, value
        return None

    def _right(self, name: str, array: Array) -> bool:
        end = self.anchor.tensor
        given = {**self.start, name: self.layers.cast(name, array)}
        made = self.layers.try_part(given, end)
        if made is None:
            return False
        ratio = self.layers.gap(self.anchor.value, self.expected, made)
        limit = NEARLY * self.layers.scale.plain
        return not is_below(ratio, math.inf if self.anchor.value.discrete else limit)


DEBUG_FOLDER = "debug"  # the folder beside the artifacts
_MAX_NAME = 100  # characters of a folder's name
_MAX_ABOUT = 2000  # characters

_SCRIPT = '''"""Runs the part of {artifact} that implements {module}, and prints its error.

{about}
"""

from pathlib import Path

import numpy as np

{loader}

HERE = Path(__file__).parent
INPUTS = {inputs}
OUTPUT = {output}


def main() -> None:
    held = np.load(HERE / "inputs.npz")
    given = {{name: held[key] for key, name in INPUTS.items()}}
    expected = np.load(HERE / "expected.npz")["expected"].astype(np.float64)
    made = run(HERE / {model}, given, OUTPUT).astype(np.float64)
    gap = np.abs(made - expected)
    signal, noise = float(np.sum(expected**2)), float(np.sum(gap**2))
    ratio = "exact" if noise == 0 else f"{{10 * np.log10(max(signal, 1e-300) / noise):.1f}} dB"
    peak = np.abs(expected).max()
    print(f"{{OUTPUT}}: SQNR {{ratio}}, largest error {{gap.max():.6g}} of {{peak:.6g}}")


if __name__ == "__main__":
    main()
'''


def write_reproducer(
    culprit: Culprit, probe: Probe, folder: Path, *, artifact: str, about: str
) -> Path:
    """Write the model, inputs, expected result and script to a folder and return the folder.

    `folder` is the run's output folder, `artifact` a file name, `about` the finding in one line.
    """
    place = folder / DEBUG_FOLDER / _file_name(culprit.node.name)
    refuse_links(folder, f"{DEBUG_FOLDER}/{place.name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=place.parent) as name:
        draft = Path(name) / place.name
        draft.mkdir()
        _write_files(draft, culprit, probe, artifact=artifact, about=about)
        for path in draft.rglob("*"):
            if path.is_file():
                flush_file(path)
        if place.exists():
            shutil.rmtree(place)
        draft.rename(place)
    return place


def _file_name(node: str) -> str:
    """Turn a node's name into a folder name; a node may be named `..` or be very long."""
    return re.sub(r"[^\w.-]+", "_", node)[:_MAX_NAME].strip(".") or "node"


def _quote(text: str) -> str:
    """Escape foreign text for a docstring: it must neither end it nor start a new line."""
    return one_line(text, _MAX_ABOUT).replace("\\", "/").replace('"', "'")


def _write_files(place: Path, culprit: Culprit, probe: Probe, *, artifact: str, about: str) -> None:
    import numpy as np

    model = probe.extract(culprit.given, [culprit.tensor], place)
    keys = {f"input_{i}": name for i, name in enumerate(culprit.given)}
    inputs: dict[str, Any] = {key: culprit.given[name] for key, name in keys.items()}
    np.savez(place / "inputs.npz", **inputs)
    np.savez(place / "expected.npz", expected=culprit.expected)
    text = _SCRIPT.format(
        artifact=_quote(artifact),
        module=_quote(culprit.module or "the model's own forward"),
        about=_quote(about),
        loader=probe.loader.strip(),
        inputs=json.dumps(keys, indent=4),
        output=json.dumps(culprit.tensor),
        model=json.dumps(model),
    )
    (place / "reproduce.py").write_text(text, encoding="utf-8")
