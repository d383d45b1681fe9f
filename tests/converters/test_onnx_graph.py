"""ONNX: names, opsets, external data, and nothing of this machine in what ships."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from modelc.converters import onnx_files, onnx_model, onnx_sessions
from modelc.converters.onnx_topology import all_graphs
from modelc.core.errors import ConversionError, UsageError
from modelc.core.kinds import Capture
from modelc.pipeline.manifest_file import read_manifest
from modelc.sample_models import encoder
from modelc.sample_models.gate import gate

from .eager_agreement import JobOf, assert_agrees

pytestmark = [
    pytest.mark.needs("onnx"),
    pytest.mark.filterwarnings("ignore"),
]  # the pipeline logs them
Exports = Callable[[str], Path]
X = "x:float32[batch=1..8,6]"


def dims(value: onnx.ValueInfoProto) -> tuple[object, ...]:
    return tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)


def doc_strings(model: onnx.ModelProto) -> set[str]:
    found = {model.doc_string}
    for graph in all_graphs(model.graph):
        found.add(graph.doc_string)
        values = [*graph.input, *graph.output, *graph.value_info, *graph.initializer]
        found |= {thing.doc_string for thing in [*values, *graph.node]}
        found |= {a.doc_string for node in graph.node for a in node.attribute}
    return found - {""}


@pytest.fixture
def bert_model(exports: Exports) -> onnx.ModelProto:
    return onnx.load(exports("bert") / "model.onnx")


@pytest.fixture
def gate_folder(exports: Exports) -> Path:
    return exports("gate")


class Padded(nn.Module):
    """Inputs and outputs with the names that the exporter gives to what it computes."""

    def forward(self, pad: Tensor, add: Tensor) -> dict[str, Tensor]:
        wide = nn.functional.pad(pad, (1, 0))
        return {"mul": (wide + 1) * add, "wide": wide * 2 + add}


def test_inputs_may_be_named_as_operators(job_of: JobOf) -> None:
    job = job_of(
        Padded(), "pad:float32[n=2..5,3]", "add:float32[4]", capture=Capture.EXPORT,
        outputs=("mul", "wide"),
    )  # fmt: skip
    feed = {"pad": np.full((3, 3), 2, np.float32), "add": np.arange(4, dtype=np.float32)}
    assert_agrees(job, [feed], rtol=0, atol=0)


def test_inputs_and_outputs_have_the_signatures_names_and_dims(
    bert_model: onnx.ModelProto, gate_folder: Path
) -> None:
    graph = bert_model.graph
    found = {value.name: dims(value) for value in (*graph.input, *graph.output)}
    assert found == {
        "ids": ("batch", "seq"),
        "mask": ("batch", "seq"),
        "hidden": ("batch", "seq", 64),
        "pooled": ("batch", 64),
    }
    graph = onnx.load(gate_folder / "model.onnx").graph  # of a script
    assert [dims(value) for value in (*graph.input, *graph.output)] == [("batch", 16), ("batch", 4)]


def test_dims_without_bounds_are_named_too(job_of: JobOf) -> None:
    job = job_of(nn.Linear(6, 2), "x:float32[rows,6]", capture=Capture.TRACE)
    onnx_model.convert(job)
    assert dims(onnx.load(job.folder / "model.onnx").graph.input[0]) == ("rows", 6)


@pytest.mark.parametrize("opset", [18, 20, 23])
def test_the_opset_is_the_one_asked_for(job_of: JobOf, opset: int) -> None:
    job = job_of(nn.Linear(6, 2), X, opset=opset)
    made = onnx_model.convert(job)
    model = onnx.load(job.folder / "model.onnx")
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]
    assert made.options["opset"] == str(opset)


@pytest.mark.parametrize("opset", [7, 17, 24, 99])
def test_an_opset_that_cannot_be_written_is_a_usage_error(job_of: JobOf, opset: int) -> None:
    with pytest.raises(UsageError, match=f"--opset {opset}"):
        onnx_model.convert(job_of(nn.Linear(6, 2), X, opset=opset))


@pytest.mark.parametrize("capture", [Capture.SCRIPT, Capture.TRACE])
def test_a_new_opset_is_beyond_the_old_exporter(job_of: JobOf, capture: Capture) -> None:
    with pytest.raises(ConversionError, match="20"):
        onnx_model.convert(job_of(nn.Linear(6, 2), X, capture=capture, opset=21))


def test_external_data_is_a_file_named_relative_to_the_model(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(nn.Linear(6, 512), "input:float32[batch=1..8,6]", external_data=True)
    made = onnx_model.convert(job)
    assert made.files[:2] == (("model.onnx", "model"), ("model.onnx.data", "data"))
    assert (job.folder / "model.onnx.data").stat().st_size >= 6 * 512 * 4
    assert (job.folder / "model.onnx").stat().st_size < 6 * 512 * 4
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name, _ in made.files:
        (job.folder / name).rename(moved / name)
    assert job.model is not None
    with onnx_model.open_runner(moved / "model.onnx", "cpu", job.signature) as runner:
        (output,) = runner.run(job.example).values()
    with torch.no_grad():
        (eager,) = job.model.flat(torch.tensor(job.example["input"]))
    assert np.allclose(output, eager.numpy(), atol=1e-6)


def test_large_weights_are_external_and_a_note_says_how_they_are_judged(
    job_of: JobOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_files, "PROTOBUF_LIMIT", 6 * 512)
    small = onnx_model.convert(job_of(nn.Linear(6, 512), "input:float32[batch=1..8,6]"))
    assert [role for _, role in small.files] == ["model", "data", "debug"]
    monkeypatch.setattr(onnx_sessions, "_LARGE", 6 * 512)
    large = onnx_model.convert(job_of(nn.Linear(6, 512), "input:float32[batch=1..8,6]"))
    assert len(large.notes) == len(small.notes) + 1


def test_without_external_data_there_is_one_file(job_of: JobOf) -> None:
    made = onnx_model.convert(job_of(nn.Linear(6, 512), X, capture=Capture.TRACE))
    assert [role for _, role in made.files] == ["model", "debug"]


def test_the_metadata_holds_the_checkpoints_digest(exports: Exports) -> None:
    folder = exports("bert")
    manifest = read_manifest(folder)
    assert manifest is not None
    model = onnx.load(folder / "model.onnx")
    found = {entry.key: entry.value for entry in model.metadata_props}
    assert found["modelc.checkpoint"] == manifest.checkpoint.digest
    assert found["modelc.capture"] == "export"


@pytest.mark.parametrize("name", ["bert", "gate", "nested", "lstm"])
def test_the_model_contains_no_path_and_no_notes_of_the_exporter(
    exports: Exports, name: str
) -> None:
    content = (exports(name) / "model.onnx").read_bytes()
    assert doc_strings(onnx.load_from_string(content)) == set()
    root = str(Path(__file__).parent.parent.parent)
    for text in (root, str(Path(torch.__file__).parent), "pkg.torch", "site-packages", ".py"):
        assert text.encode() not in content


def nodes_of(folder: Path) -> dict[str, dict[str, str]]:
    document: dict[str, Any] = json.loads((folder / "model.debug.json").read_text())
    assert document["schema_version"] == 1
    nodes: dict[str, dict[str, str]] = document["nodes"]
    return nodes


def test_the_sidecar_names_the_models_own_nodes(exports: Exports) -> None:
    folder = exports("bert")
    names = {node.name for node in onnx.load(folder / "model.onnx").graph.node}
    assert set(nodes_of(folder)) <= names
    assert len(nodes_of(folder)) > 0.9 * len(names)


def test_the_sidecar_maps_a_node_to_module_and_class(exports: Exports) -> None:
    nodes = nodes_of(exports("bert"))
    modules = {node["module"]: node["class"] for node in nodes.values() if "module" in node}
    assert modules["layers.1.attention.query"] == "torch.nn.modules.linear.Linear"
    assert modules["layers.0.attention"] == f"{encoder.__name__}.Attention"
    assert modules[""] == f"{encoder.__name__}.Encoder"
    assert not any("hook" in module for module in modules)


def test_the_sidecar_maps_a_node_to_the_users_source_line(exports: Exports) -> None:
    own = [node for node in nodes_of(exports("bert")).values() if "source" in node]
    assert own
    lines = Path(str(inspect.getsourcefile(encoder))).read_text().splitlines()
    for node in own:
        file, _, line = node["source"].rpartition(":")
        assert Path(file).samefile(encoder.__file__)
        assert lines[int(line) - 1].strip() == node["code"]
    codes = {node["code"] for node in own if node.get("module") == "layers.0.attention"}
    assert "weights = scores.masked_fill(masked, MASKED).softmax(dim=-1)" in codes


def test_the_sidecar_of_a_script_names_modules_inside_its_branches(gate_folder: Path) -> None:
    modules = {node["module"] for node in nodes_of(gate_folder).values()}
    assert {"body", "above", "below"} <= modules


def test_a_scripted_branch_stays_a_branch(gate_folder: Path) -> None:
    (node,) = [n for n in onnx.load(gate_folder / "model.onnx").graph.node if n.op_type == "If"]
    assert sorted(attribute.name for attribute in node.attribute) == ["else_branch", "then_branch"]
    assert onnx_model.inspect(gate_folder / "model.onnx").operators["Gemm"] == 3


def test_a_traced_branch_is_frozen_and_recorded(job_of: JobOf) -> None:
    job = job_of(gate(), "x:float32[batch=1..4,16]", capture=Capture.TRACE)
    made = onnx_model.convert(job)
    assert [Path(branch.file).name for branch in made.frozen] == ["gate.py"]
    assert "If" not in onnx_model.inspect(job.folder / "model.onnx").operators


class Twins(nn.Module):
    """Gives one tensor under two names, and its input back."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = x * 2
        return {"first": y, "second": y, "same": x}


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
def test_one_tensor_under_two_names_stays_two_outputs(job_of: JobOf, capture: Capture) -> None:
    job = job_of(Twins(), X, capture=capture, outputs=("first", "second", "same"))
    assert_agrees(job, [job.example], rtol=0, atol=0)
    model = onnx.load(job.folder / "model.onnx")
    assert [value.name for value in model.graph.output] == ["first", "second", "same"]


class Narrow(nn.Module):
    """Gives one output in bfloat16, which ONNX Runtime has no array for."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 3).bfloat16(), x * 3


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
def test_outputs_in_bfloat16_are_read_as_floats(job_of: JobOf, capture: Capture) -> None:
    job = job_of(Narrow(), "x:float32[batch=1..4,3]", outputs=("low", "high"), capture=capture)
    ((file, _), *_) = onnx_model.convert(job).files
    x = np.array([[1.1, -2e30, 3e-20]], dtype=np.float32)

    with onnx_model.open_runner(job.folder / file, "cpu", job.signature) as runner:
        found = runner.run({"x": x})

    wanted = (torch.tensor(x) * 3).bfloat16().float().numpy()
    np.testing.assert_array_equal(found["low"], wanted)
    np.testing.assert_array_equal(found["high"], x * 3)
