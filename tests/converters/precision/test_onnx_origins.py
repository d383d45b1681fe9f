"""Which nodes a `--keep-fp` pattern means, and where nodes come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.converters.onnx_origins import debug_sidecar_path, match_nodes, node_title, read_origins
from modelc.core.errors import ErrorCode, UsageError

from ...reasons import has_code
from .conftest import OnnxFile, load

CHAIN = """g (float[N,4] x) => (float[N,4] y) {
    [relu] a = Relu(x)
    [query] b = Neg(a)
    [score] c = Abs(b)
    [head] y = Relu(c)
}"""
MODULES = {
    "relu": "encoder.layer.1",
    "query": "encoder.layer.3.attention.query",
    "score": "encoder.layer.3",
    "head": "encoder.layer.30",
}


@pytest.fixture
def chain(onnx_file: OnnxFile) -> Path:
    return onnx_file(CHAIN, modules=MODULES)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("query", ("query",)),
        ("sc*", ("score",)),
        ("Relu", ("relu", "head")),
        ("encoder.layer.3", ("query", "score")),
        ("encoder.layer.3.*", ("query", "score")),
        ("encoder.layer.*.attention", ("query",)),
        ("encoder", ("relu", "query", "score", "head")),
        ("head,query", ("query", "head")),  # in the order of the graph
    ],
)
def test_a_pattern_is_a_node_an_operator_or_a_module(
    chain: Path, pattern: str, names: tuple[str, ...]
) -> None:
    assert match_nodes(chain, pattern.split(",")) == names


def test_a_name_with_brackets_is_matched_literally(chain: Path) -> None:
    model = load(chain)
    model.graph.node[0].name = "relu[0]"
    chain.write_bytes(model.SerializeToString())
    assert match_nodes(chain, ["relu[0]"]) == ("relu[0]",)


def test_nodes_of_bodies_are_found(onnx_file: OnnxFile) -> None:
    path = onnx_file("""g (float[N] x, bool c) => (float[N] y) {
        [branch] y = If (c) <then_branch = t () => (float[N] p) { [inner] p = Neg(x) },
                             else_branch = e () => (float[N] q) { [other] q = Relu(x) }>
    }""")
    assert match_nodes(path, ["Neg"]) == ("inner",)


def test_a_pattern_without_a_match_names_what_is_near(chain: Path) -> None:
    with pytest.raises(
        UsageError,
        check=has_code(ErrorCode.UNKNOWN_NAME, option="keep-fp", naming="'encoder.layr.3'"),
    ) as error:
        match_nodes(chain, ["Relu", "encoder.layr.3"])
    assert "encoder.layer.3" in error.value.hint


def test_a_node_without_a_name_cannot_be_kept(onnx_file: OnnxFile) -> None:
    path = onnx_file("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match="Relu"):
        match_nodes(path, ["Relu"])


@pytest.mark.parametrize(
    ("model", "sidecar"),
    [("model.onnx", "model.debug.json"), ("model.fp16.trt.onnx", "model.fp16.trt.debug.json")],
)
def test_the_sidecar_has_the_models_whole_stem(model: str, sidecar: str) -> None:
    assert debug_sidecar_path(Path("out") / model) == Path("out") / sidecar


def test_a_model_without_a_sidecar_has_no_origins(onnx_file: OnnxFile) -> None:
    assert read_origins(onnx_file(CHAIN)) == {}


def test_a_foreign_sidecar_is_an_error(chain: Path) -> None:
    debug_sidecar_path(chain).write_text("[]", "utf-8")
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.CORRUPT_FILE, naming=debug_sidecar_path(chain).name)
    ):
        read_origins(chain)


def test_a_node_is_named_by_its_module(chain: Path) -> None:
    first, second = load(chain).graph.node[:2]
    origins = read_origins(chain)
    assert node_title(second, origins) == "encoder.layer.3.attention.query (Neg query)"
    assert node_title(first, {}) == "Relu relu"
