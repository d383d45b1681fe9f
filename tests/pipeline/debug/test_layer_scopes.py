"""Scopes as exporters write them, read as paths of eager's modules."""

from __future__ import annotations

import pytest

from modelc.core.target_extensions import ProbeNode
from modelc.pipeline.debug.layer_anchors import resolve_scopes

CALLED = ["", "conv1", "layer1", "layer1.0", "layer1.0.conv1", "layer1.0.relu", "blocks.0",
          "blocks.0.relu", "blocks.0.conv1", "heads.0", "heads.0.conv1"]  # fmt: skip
MODULES = [*CALLED, "blocks", "heads"]


def node(scope: str, owner: str = "", kind: str = "") -> ProbeNode:
    return ProbeNode(
        name="n", operator="Conv", inputs=(), outputs=(), attributes={}, module=scope,
        owner=owner, kind=kind,
    )  # fmt: skip


def resolve(one: ProbeNode) -> str:
    (found,) = resolve_scopes([one], MODULES, CALLED)
    return found.module


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ("layer1.0.conv1", "layer1.0.conv1"),
        ("layer1.layer1.0.conv1", "layer1.0.conv1"),  # a trace repeats the last name
        ("layer1.layer1.0.relu_1", "layer1.0.relu"),  # and numbers the second call
        ("nowhere.conv1", "nowhere.conv1"),
    ],
)
def test_a_scope_is_read_as_a_path(scope: str, path: str) -> None:
    assert resolve(node(scope)) == path


def test_the_scopes_of_a_script_omit_module_lists() -> None:
    assert resolve(node("0.relu")) == "blocks.0.relu"  # heads.0 has none


def test_weights_resolve_an_ambiguous_scope() -> None:
    assert resolve(node("0.conv1", owner="heads.0.conv1")) == "heads.0.conv1"
    assert resolve(node("0.conv1")) == "0.conv1"


def test_a_node_without_a_scope_is_matched_by_its_weights() -> None:
    assert resolve(node("", owner="layer1.0.conv1")) == "layer1.0.conv1"


def test_the_models_own_forward_may_use_a_modules_weights() -> None:
    assert resolve(node("", owner="layer1.0.conv1", kind="nets.Net")) == ""
