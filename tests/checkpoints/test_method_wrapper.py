from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.eager_model import Eager, open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.signature import Dim, InputSpec, Signature

Write = Callable[[str], str]

NETS = """
    from typing import Optional
    import torch
    from torch import Tensor, nn
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 4)
        def forward(self, x):
            return self.line(x)
        def twice(self, x):
            return 2 * self.line(x)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = Step()
            self.head = nn.Linear(4, 2)
        def forward(self, x):
            return self.head(self.encode(x))
        def encode(self, x: Tensor, scale: Optional[Tensor] = None) -> Tensor:
            z = self.step(x)
            if scale is not None:
                z = z * scale
            return z
        def predict(self, x):
            y = self(x)
            return {"best": y.argmax(-1), "score": y.amax(-1)}
        def gated(self, x: Tensor) -> Tensor:
            if bool(x.sum() > 0):
                return self.step(x)
            return self.step(-x) * 3
"""


@pytest.fixture
def spec(write_module: Write, tmp_path: Path) -> str:
    from modelc.checkpoints.factory import call_factory

    name = f"{write_module(NETS)}:Net"
    torch.manual_seed(1)
    torch.save(call_factory(name, {}).module.state_dict(), tmp_path / "net.pt")
    return name


def opened(tmp_path: Path, spec: str | None, method: str, file: str = "net.pt") -> LoadedModule:
    return load_checkpoint(identify(tmp_path / file, factory=spec, factory_args={}, method=method))


def eager_of(loaded: LoadedModule, *names: str) -> Eager:
    dims = (Dim.of_size(2), Dim.of_size(4))
    specs = tuple(InputSpec(name=name, dtype="float32", dims=dims) for name in names or ("x",))
    return open_eager(loaded, Signature(inputs=specs))


X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)


def test_the_method_runs_in_place_of_forward(tmp_path: Path, spec: str) -> None:
    net = opened(tmp_path, spec, "forward")
    encoded = eager_of(opened(tmp_path, spec, "encode")).run({"x": X})["output"]
    module: torch.nn.Module = net.module
    with torch.no_grad():
        wanted = module.get_submodule("step")(torch.from_numpy(X))
    assert encoded.tolist() == wanted.tolist()
    assert eager_of(net).run({"x": X})["output"].shape == (2, 2)


def test_a_method_that_calls_forward_reaches_the_real_forward(tmp_path: Path, spec: str) -> None:
    found = eager_of(opened(tmp_path, spec, "predict")).run({"x": X})
    logits = eager_of(opened(tmp_path, spec, "forward")).run({"x": X})["output"]
    assert found["best"].tolist() == logits.argmax(-1).tolist()
    assert found["score"].tolist() == logits.max(-1).tolist()


def test_inputs_are_bound_to_the_methods_parameters(tmp_path: Path, spec: str) -> None:
    loaded = opened(tmp_path, spec, "encode")
    assert loaded.parameters == ("x", "scale")
    found = eager_of(loaded, "x", "scale").run({"x": X, "scale": X * 0})["output"]
    assert not found.any()
    with pytest.raises(UsageError, match=r"encode.* x"):
        eager_of(loaded, "scale")


def test_float64_branches_and_notes_are_the_methods(tmp_path: Path, spec: str) -> None:
    eager = eager_of(opened(tmp_path, spec, "gated"))
    exact = eager.run_exact({"x": X})
    assert exact is not None
    assert exact["output"].dtype == np.float64
    assert np.allclose(exact["output"], eager.run({"x": X})["output"], atol=1e-5)
    watched = eager.branches([("up", {"x": abs(X)}), ("down", {"x": -abs(X)})], None)
    assert [one.record.arms for one in watched.found] == [{"true": "up", "false": "down"}]
    assert watched.incomplete == ""


def test_the_method_scripts_with_its_branches(tmp_path: Path, spec: str) -> None:
    module = opened(tmp_path, spec, "gated").module
    script = torch.jit.script(module)
    for x in (torch.from_numpy(abs(X)), torch.from_numpy(-abs(X))):
        assert torch.equal(script(x), module(x))
    scripted = torch.jit.script(opened(tmp_path, spec, "encode").module)
    assert torch.equal(scripted(x, scale=x), scripted(x) * x)
    assert torch.equal(scripted(x), module.get_submodule("model.step")(x))


def test_the_flat_module_exports_and_traces_the_method(tmp_path: Path, spec: str) -> None:
    eager = eager_of(opened(tmp_path, spec, "predict"))
    given = (torch.from_numpy(X),)
    program = torch.export.export(eager.flat, given).module()
    best, score = program(*given)
    assert best.tolist() == eager.run({"x": X})["best"].tolist()
    traced = torch.jit.trace(eager.flat, given, check_trace=False)  # type: ignore[no-untyped-call]
    assert torch.equal(traced(*given)[1], score)


def test_a_submodule_is_converted_by_its_own_forward_or_method(tmp_path: Path, spec: str) -> None:
    part = eager_of(opened(tmp_path, spec, "step")).run({"x": X})["output"]
    twice = eager_of(opened(tmp_path, spec, "step.twice")).run({"x": X})["output"]
    assert twice.tolist() == (2 * part).tolist()


@pytest.mark.parametrize(
    ("method", "message", "hint"),
    [
        ("encod", "Net has no method 'encod'", "did you mean encode?"),
        ("half", "Net has no method 'half'", "it has forward, encode, predict, gated"),
        ("stap.twice", "Net has no submodule 'stap'", "did you mean step.twice?"),
        ("step.thrice", "Step has no method 'thrice'", "did you mean twice?"),
    ],
)
def test_an_unknown_method_is_reported_with_the_nearest(
    tmp_path: Path, spec: str, method: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        opened(tmp_path, spec, method)
    assert caught.value.hint == hint


def test_a_method_of_a_torchscript_archive_is_called(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(_Scripted()), tmp_path / "net.ts")
    loaded = opened(tmp_path, None, "more", "net.ts")
    assert loaded.parameters == ("x", "by")
    assert eager_of(loaded).run({"x": X})["output"].tolist() == (X + 2).tolist()
    assert torch.jit.script(loaded.module)(torch.zeros(1), 5.0).tolist() == [5.0]


class _Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def more(self, x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        return x + by


def test_an_exported_program_has_no_other_method(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "net.pt2")
    with pytest.raises(UsageError) as caught:
        opened(tmp_path, None, "encode", "net.pt2")
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_forward_by_name_is_no_other_method(tmp_path: Path, spec: str) -> None:
    assert (
        identify(tmp_path / "net.pt", factory=spec, factory_args={}, method="forward").method
        is None
    )
