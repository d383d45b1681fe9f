from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim as Axis

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.core.errors import CheckpointError, ErrorCode
from modelc.core.signature import Dim, ValueRange

from ..reasons import has_code


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        y: torch.Tensor = self.linear(x) * mask
        return {"y": y}


class Nested(nn.Module):
    def forward(
        self, meta: dict[str, torch.Tensor], pair: tuple[torch.Tensor, torch.Tensor], flag: None
    ) -> torch.Tensor:
        del flag
        return meta["ids"] + pair[0] + pair[1]


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.sum()


def opened(path: Path, *, factory: str | None = None, allow_pickle: bool = False) -> LoadedModule:
    return load_checkpoint(
        identify(path, factory=factory, factory_args={}, allow_pickle=allow_pickle)
    )


def quietly(make: Callable[[], object]) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript as a whole
        return make()


def scripted(path: Path, module: nn.Module) -> Path:
    quietly(lambda: torch.jit.save(torch.jit.script(module), path))
    return path


def program_of(folder: Path, module: nn.Module, args: tuple[Any, ...], shapes: Any) -> LoadedModule:
    program = torch.export.export(module, args, dynamic_shapes=shapes)
    torch.export.save(program, folder / "a.pt2")
    return opened(folder / "a.pt2")


def traced(module: nn.Module) -> torch.jit.ScriptModule:
    made: torch.jit.ScriptModule = torch.jit.trace(module, torch.ones(4, 3))  # type: ignore[no-untyped-call] # torch leaves it so
    return made


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    batch = Axis("batch", min=2, max=8)
    program = torch.export.export(
        Net().eval(),
        (torch.ones(4, 3),),
        {"mask": torch.ones(4, 2)},
        dynamic_shapes={"x": {0: batch}, "mask": {0: batch}},
    )
    torch.export.save(program, tmp_path / "a.pt2")
    return tmp_path / "a.pt2"


def test_a_scripted_archive_knows_its_parameters(tmp_path: Path) -> None:
    loaded = opened(scripted(tmp_path / "a.pt", Net()))
    assert (loaded.kind, loaded.parameters, loaded.known) == ("torchscript", ("x", "mask"), {})
    assert not loaded.module.training


def test_a_traced_archive_knows_its_shapes(tmp_path: Path) -> None:
    quietly(lambda: traced(nn.Linear(3, 2)).save(tmp_path / "a.pt"))
    (spec,) = opened(tmp_path / "a.pt").known.values()
    assert str(spec) == "input:float32[4,3]"


def test_a_half_precision_archive_is_brought_to_float32(tmp_path: Path) -> None:
    loaded = opened(scripted(tmp_path / "a.pt", nn.Linear(3, 2).half()))
    assert loaded.module(torch.ones(1, 3)).dtype == torch.float32
    assert loaded.notes[0].split()[:2] == ["2", "float16"]


def test_a_factory_is_not_used_for_an_archive_and_noted(tmp_path: Path) -> None:
    loaded = opened(scripted(tmp_path / "a.pt", Net()), factory="a:b")
    assert len(loaded.notes) == 1
    assert "--model a:b" in loaded.notes[0]


@pytest.mark.parametrize("members", [["a/constants.pkl", "a/code/x.py"], ["a/archive_format"]])
def test_a_damaged_archive_is_an_error_of_the_checkpoint(
    tmp_path: Path, members: list[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for name in members:
            archive.writestr(name, b"")
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CORRUPT_FILE)):
        opened(tmp_path / "a.pt")


def test_an_archive_without_forward_is_rejected(tmp_path: Path) -> None:
    class Silent(nn.Module):
        @torch.jit.export
        def other(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(CheckpointError) as caught:
        opened(scripted(tmp_path / "a.pt", Silent()))
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_an_exported_program_knows_names_sizes_and_ranges(exported: Path) -> None:
    loaded = opened(exported)
    assert [str(spec) for spec in loaded.known.values()] == [
        "x:float32[batch=2..4..8,3]",
        "mask:float32[batch=2..4..8,2]",
    ]
    assert (loaded.kind, loaded.parameters) == ("pt2", ("x", "mask"))
    assert not any(part.training for part in loaded.module.modules())


def test_an_exported_program_may_have_any_suffix(exported: Path) -> None:
    assert opened(exported.rename(exported.with_suffix(".pt"))).kind == "pt2"


def test_a_range_without_end_is_unbounded(tmp_path: Path) -> None:
    given = (torch.ones(16), torch.ones(3))
    dims = program_of(tmp_path, Pair(), given, ({0: Axis.DYNAMIC}, None)).known["x"].dims
    assert dims == (Dim(name="batch", low=2, opt=16, high=16, bounded=False),)


def test_two_sizes_have_two_names(tmp_path: Path) -> None:
    shapes = ({0: Axis.DYNAMIC, 1: Axis.DYNAMIC}, {0: Axis.DYNAMIC})
    known = program_of(tmp_path, Pair(), (torch.ones(4, 5), torch.ones(3)), shapes).known
    assert [dim.name for spec in known.values() for dim in spec.dims] == ["batch", "x_1", "y_0"]


def test_a_derived_size_is_fixed_and_noted(tmp_path: Path) -> None:
    axis = Axis("a", min=2, max=9)
    shapes = ({0: axis}, {0: 2 * axis})
    loaded = program_of(tmp_path, Pair(), (torch.ones(4), torch.ones(8)), shapes)
    assert [str(spec) for spec in loaded.known.values()] == ["x:float32[4]", "y:float32[8]"]
    assert "2*" in loaded.notes[0]


def test_nested_inputs_get_dotted_names_and_constants_are_kept(tmp_path: Path) -> None:
    ids = torch.tensor([3, 9])
    loaded = program_of(tmp_path, Nested(), ({"ids": ids}, (ids, ids), None), None)
    assert list(loaded.known) == ["meta.ids", "pair.0", "pair.1"]
    assert loaded.takes[2].constant == (None,)


def test_whole_numbers_stay_in_the_range_of_the_exports_own_sample(tmp_path: Path) -> None:
    loaded = program_of(tmp_path, nn.Embedding(10, 2), (torch.tensor([3, 9]),), None)
    assert loaded.known["input"].values == ValueRange(low=0, high=9)


def rewritten(path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """The same archive with the members that `change` changes."""
    with zipfile.ZipFile(path) as source:
        members = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(path, "w") as target:
        for name, data in members.items():
            target.writestr(name, change(name, data))
    return path


class _Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_inside_a_program_is_not_run(exported: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(((_Payload(tmp_path / "proof"),), {}), buffer)
    path = rewritten(
        exported, lambda name, data: buffer.getvalue() if "sample_inputs" in name else data
    )
    with pytest.raises(CheckpointError, match="sample_inputs"):
        opened(path)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("text", ["__import__('os')", "eval(chr(49))", "s0.func", "[1][0]"])
def test_an_expression_that_is_code_is_rejected(exported: Path, text: str) -> None:
    def change(name: str, data: bytes) -> bytes:
        if "models/" not in name:
            return data
        return json.dumps(json.loads(data) | {"extra": {"expr_str": text}}).encode()

    with pytest.raises(CheckpointError, match="arithmetic"):
        opened(rewritten(exported, change))


def test_a_pickled_weight_inside_a_program_is_rejected(exported: Path) -> None:
    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("model_weights_config.json"):
            return data
        config = json.loads(data)
        next(iter(config["config"].values()))["use_pickle"] = True
        return json.dumps(config).encode()

    with pytest.raises(CheckpointError, match="code"):
        opened(rewritten(exported, change))
