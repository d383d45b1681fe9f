"""Runs of a tiny net in processes of their own, with a fault planted where one is wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from modelc.core.children.limits import ProcessLimits
from modelc.core.events import Event
from modelc.core.manifest import Manifest
from modelc.pipeline.isolation.supervisor import run_isolated
from modelc.pipeline.order import Order, Source, Wanted
from modelc.tests.nets import crash_net


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The manifest, events and output folder of a run."""

    manifest: Manifest
    told: list[Event]
    out: Path


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of the net."""
    from safetensors.torch import save_file

    path = tmp_path_factory.mktemp("crash") / "net.safetensors"
    save_file(crash_net.net().state_dict(), path)
    return path


@pytest.fixture
def ordered(weights: Path, tmp_path: Path) -> Callable[..., Order]:
    """`ordered("onnx", patch="hang", model="net")` -> an Order into tmp_path/out."""

    def make(*to: str, patch: str = "", model: str = "net", checkpoint: Path = weights) -> Order:
        module = "modelc.tests.nets.crash_net"
        return Order(
            source=Source(
                checkpoint=checkpoint, model=f"{module}:{model}", inputs=(crash_net.INPUT,)
            ),
            wanted=tuple(map(Wanted.parse, to)),
            out=tmp_path / "out",
            patches=(f"{module}:{patch}",) if patch else (),
        )

    return make


@pytest.fixture
def isolated(ordered: Callable[..., Order]) -> Callable[..., Ran]:
    """`isolated("onnx", patch="hang", bounds=Bounds(timeout=9))` -> Ran."""

    def run(
        *to: str, bounds: ProcessLimits | None = None, patch: str = "", model: str = "net"
    ) -> Ran:
        order, told = ordered(*to, patch=patch, model=model), list[Event]()
        manifest = run_isolated(order, told.append, bounds=bounds)
        return Ran(manifest=manifest, told=told, out=order.out)

    return run
