from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.checkpoints.state_dict_checkpoint import read_portions
from modelc.core.errors import CheckpointError, ErrorCode, UsageError

from ..reasons import has_code

Write = Callable[[str], str]
LINEAR = {"in_features": "3", "out_features": "2"}

NETS = """
    import torch
    from torch import nn
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(2, 2)
            self.norm = nn.BatchNorm1d(2)
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(4, 2), nn.Linear(2, 4, bias=False)
            self.head.weight = self.embed.weight
    class Stubborn(nn.Linear):
        def train(self, mode=True):
            return super().train(True)
    def half():
        return nn.Linear(3, 2).half()

    class Trunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Linear(3, 2).half()

        def forward(self, x):
            return self.trunk(x.half()).float()

    class Follows(Trunk):
        def forward(self, x):
            return self.trunk(x.to(self.trunk.weight.dtype)).float()
    def mixed():
        return nn.Sequential(nn.Linear(3, 2).bfloat16(), nn.Linear(2, 2).double())
    class Big(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(1, 1) for _ in range(12))
    class Expanded(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.Parameter(torch.zeros(1, 3).expand(4, 3))
            self.register_buffer("mask", torch.ones(1).expand(5))
"""


def opened(
    path: Path,
    factory: str | None = "torch.nn:Linear",
    arguments: Mapping[str, str] | None = None,
    *,
    strict: bool = True,
    allow_pickle: bool = False,
) -> LoadedModule:
    given = LINEAR if arguments is None and factory == "torch.nn:Linear" else arguments or {}
    return load_checkpoint(
        identify(
            path,
            factory=factory,
            factory_args=given,
            strict=strict,
            allow_pickle=allow_pickle,
        )
    )


def tensor(loaded: LoadedModule, name: str) -> torch.Tensor:
    found: torch.Tensor = loaded.module.state_dict()[name]
    return found


def saved(tmp_path: Path, value: object, name: str = "a.pt") -> Path:
    torch.save(value, tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_fills_the_module(tmp_path: Path, *, zipped: bool) -> None:
    linear = nn.Linear(3, 2)
    torch.save(linear.state_dict(), tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    loaded = opened(tmp_path / "a.pt")
    assert torch.equal(tensor(loaded, "weight"), linear.weight)
    assert not loaded.module.training
    assert not any(p.requires_grad for p in loaded.module.parameters())
    assert loaded.parameters == ("input",)
    assert (loaded.kind, loaded.known, loaded.notes) == ("state_dict", {}, ())


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_a_nested_state_dict_is_found_and_noted(tmp_path: Path, key: str) -> None:
    linear = nn.Linear(3, 2)
    loaded = opened(saved(tmp_path, {"epoch": 3, key: linear.state_dict()}))
    assert torch.equal(tensor(loaded, "weight"), linear.weight)
    assert len(loaded.notes) == 1
    assert f"'{key}'" in loaded.notes[0]


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "model._orig_mod."])
def test_a_wrappers_prefix_is_cut_and_noted(tmp_path: Path, prefix: str) -> None:
    weights = {f"{prefix}{key}": value for key, value in nn.Linear(3, 2).state_dict().items()}
    loaded = opened(saved(tmp_path, weights))
    assert torch.equal(tensor(loaded, "weight"), weights[f"{prefix}weight"])
    assert "prefix" in loaded.notes[0]


def test_a_prefix_that_the_module_has_itself_stays(tmp_path: Path, write_module: Write) -> None:
    weights = {"model.weight": torch.ones(2, 2), "model.bias": torch.ones(2)}
    norm = {f"norm.{key}": value for key, value in nn.BatchNorm1d(2).state_dict().items()}
    path = saved(tmp_path, weights | norm)
    assert opened(path, f"{write_module(NETS)}:Two").notes == ()


def test_a_state_dict_of_nothing_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'epoch'") as caught:
        opened(saved(tmp_path, {"epoch": 1}))
    assert caught.value.code is ErrorCode.NOT_A_CHECKPOINT


@pytest.mark.parametrize("value", [{}, {"state_dict": {}, "epoch": 1}])
def test_a_module_without_parameters_has_an_empty_state_dict(
    tmp_path: Path, value: dict[str, object]
) -> None:
    assert isinstance(opened(saved(tmp_path, value), "torch.nn:ReLU", {}).module, nn.ReLU)
    with pytest.raises(CheckpointError, match="2 missing: weight, bias"):
        opened(saved(tmp_path, value))


def test_missing_and_unexpected_keys_are_listed_with_the_closest(tmp_path: Path) -> None:
    path = saved(tmp_path, {"weigth": torch.ones(2, 3), "bias": torch.ones(2)})
    with pytest.raises(CheckpointError) as caught:
        opened(path)
    assert "1 missing: weight (close: weigth)" in caught.value.message
    assert "1 unexpected: weigth (close: weight)" in caught.value.message


def test_a_shape_mismatch_is_reported_with_both_shapes(tmp_path: Path) -> None:
    path = saved(tmp_path, nn.Linear(5, 2).state_dict())
    with pytest.raises(CheckpointError, match=r"\(2, 5\).*\(2, 3\)"):
        opened(path)


def test_only_the_first_ten_keys_are_listed(tmp_path: Path, write_module: Write) -> None:
    path = saved(tmp_path, {"other": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"24 missing: .* and 14 more"):
        opened(path, f"{write_module(NETS)}:Big")


def test_not_strict_skips_what_does_not_fit_and_notes_it(tmp_path: Path) -> None:
    path = saved(tmp_path, {"weight": torch.ones(4, 4), "bias": torch.ones(2), "x": torch.ones(1)})
    loaded = opened(path, strict=False)
    assert torch.equal(tensor(loaded, "bias"), torch.ones(2))
    assert loaded.module.weight.shape == (2, 3)
    unexpected, misfit, random = loaded.notes
    assert unexpected.endswith(": x")
    assert "(4, 4)" in misfit
    assert "(2, 3)" in misfit
    assert random.startswith("1 of 2")


def test_a_tied_weight_may_be_missing(tmp_path: Path, write_module: Write) -> None:
    save_file({"embed.weight": torch.ones(4, 2)}, tmp_path / "a.safetensors")
    loaded = opened(tmp_path / "a.safetensors", f"{write_module(NETS)}:Tied")
    assert torch.equal(tensor(loaded, "head.weight"), torch.ones(4, 2))
    assert loaded.notes == ()


def test_weights_of_which_elements_share_memory_are_filled(
    tmp_path: Path, write_module: Write
) -> None:
    state = {"wide": torch.randn(4, 3), "mask": torch.arange(5.0)}
    torch.save(state, tmp_path / "w.pt")
    module = opened(tmp_path / "w.pt", f"{write_module(NETS)}:Expanded").module
    assert all(torch.equal(module.state_dict()[name], state[name]) for name in state)


def test_safetensors_fill_the_module(tmp_path: Path) -> None:
    linear = nn.Linear(3, 2)
    save_file(linear.state_dict(), tmp_path / "a.safetensors")
    loaded = opened(tmp_path / "a.safetensors")
    assert torch.equal(tensor(loaded, "weight"), linear.weight)
    assert loaded.kind == "safetensors"


def test_shards_fill_the_module_together(tmp_path: Path) -> None:
    save_file({"weight": torch.full((2, 3), 4.0)}, tmp_path / "1.safetensors")
    save_file({"bias": torch.ones(2)}, tmp_path / "2.safetensors")
    table = {"weight": "1.safetensors", "bias": "2.safetensors"}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    module = opened(tmp_path).module
    assert torch.equal(module(torch.ones(1, 3)), torch.full((1, 2), 13.0))


def test_a_large_file_is_read_in_portions(tmp_path: Path) -> None:
    save_file({name: torch.ones(4) for name in "abc"}, tmp_path / "a.safetensors")
    found = read_portions(tmp_path / "a.safetensors", size=20)
    assert [list(portion) for portion in found] == [["a", "b"], ["c"]]


def test_a_half_precision_checkpoint_is_noted(tmp_path: Path) -> None:
    loaded = opened(saved(tmp_path, nn.Linear(3, 2).half().state_dict()))
    assert loaded.module.weight.dtype == torch.float32
    assert len(loaded.notes) == 1
    assert "float16" in loaded.notes[0]


def test_a_half_precision_module_is_brought_to_float32(tmp_path: Path, write_module: Write) -> None:
    loaded = opened(saved(tmp_path, nn.Linear(3, 2).state_dict()), f"{write_module(NETS)}:half")
    assert loaded.module.weight.dtype == torch.float32
    filled, cast = loaded.notes
    assert filled.endswith(": weight, bias")
    assert cast.startswith("2 float16 tensors")


def test_a_module_that_casts_to_half_itself_is_kept_so(tmp_path: Path, write_module: Write) -> None:
    place = write_module(NETS)
    state = {f"trunk.{key}": value for key, value in nn.Linear(3, 2).half().state_dict().items()}

    loaded = opened(saved(tmp_path, state), f"{place}:Trunk")
    follows = opened(saved(tmp_path, state), f"{place}:Follows")

    assert any(note.startswith("2 float16 tensors") for note in loaded.notes)
    assert loaded.module(torch.ones(1, 3)).dtype == torch.float32
    assert next(loaded.module.parameters()).dtype == torch.float16
    assert next(follows.module.parameters()).dtype == torch.float32


def test_float64_weights_stay_float64(tmp_path: Path, write_module: Write) -> None:
    name = write_module(NETS)
    weights = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).state_dict()
    module = opened(saved(tmp_path, weights), f"{name}:mixed").module
    assert [p.dtype for p in module.parameters()] == [torch.float32] * 2 + [torch.float64] * 2


def test_a_module_that_stays_in_training_mode_is_noted(tmp_path: Path, write_module: Write) -> None:
    spec = f"{write_module(NETS)}:Stubborn"
    loaded = opened(saved(tmp_path, nn.Linear(3, 2).state_dict()), spec, LINEAR)
    assert len(loaded.notes) == 1
    assert "(the model)" in loaded.notes[0]


def test_a_pickled_module_is_rejected_and_the_global_named(tmp_path: Path) -> None:
    path = saved(tmp_path, nn.Linear(3, 2))
    with pytest.raises(CheckpointError, match=r"torch\.nn\.modules\.linear\.Linear") as e:
        opened(path)
    assert "--allow-pickle" in e.value.hint


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    path = saved(tmp_path, {"weight": _Payload(tmp_path / "proof")})
    with pytest.raises(CheckpointError, match="weights: "):
        opened(path)
    assert not (tmp_path / "proof").exists()


class _Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_an_allowed_pickled_module_needs_no_factory(tmp_path: Path) -> None:
    linear = nn.Linear(3, 2)
    loaded = opened(saved(tmp_path, linear), None, allow_pickle=True)
    assert torch.equal(tensor(loaded, "weight"), linear.weight)
    assert (loaded.kind, loaded.module.training) == ("pickle", False)


def test_an_allowed_pickle_of_weights_needs_a_factory(tmp_path: Path) -> None:
    path = saved(tmp_path, {"weight": torch.ones(1), "maker": Path("me")})
    with pytest.raises(UsageError) as caught:
        opened(path, None, allow_pickle=True)
    assert caught.value.code is ErrorCode.FACTORY_REQUIRED


def test_allowing_pickles_keeps_the_safe_way_where_it_works(tmp_path: Path) -> None:
    path = saved(tmp_path, nn.Linear(3, 2).state_dict())
    assert opened(path, allow_pickle=True).kind == "state_dict"


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_a_plain_pickle_is_an_error_of_the_checkpoint(tmp_path: Path, allow_pickle: bool) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"weight": Path("x")}, protocol=4))
    with pytest.raises(CheckpointError, match=r"a\.pkl"):
        opened(tmp_path / "a.pkl", allow_pickle=allow_pickle)


def test_a_truncated_legacy_file_is_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(nn.Linear(3, 2).state_dict(), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError) as caught:
        opened(path)
    assert caught.value.code is ErrorCode.CORRUPT_FILE


def test_safetensors_without_a_tensor_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "empty.safetensors"
    path.write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.raises(CheckpointError, match="2 missing"):
        opened(path)


LOADING = """
    import torch
    from torch import nn
    class Versioned(nn.Linear):
        _version = 2
        def _load_from_state_dict(self, state, prefix, meta, *rest):
            if meta.get("version") not in (1, 2):
                raise ValueError(f"version should be 1 or 2 instead of {meta.get('version')}")
            super()._load_from_state_dict(state, prefix, meta, *rest)
    class Versions(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = Versioned(3, 2)
    class Refusing(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
        def _load_from_state_dict(self, *rest):
            raise KeyError("odd")
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 2)
            self.register_buffer("links", torch.eye(4).to_sparse())
        def forward(self, x):
            return self.line(torch.sparse.mm(self.links, x.T).T)
    def quantized():
        net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        return torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, torch.qint8)
"""


def made(write_module: Write, kind: str) -> tuple[str, nn.Module]:
    name = write_module(LOADING)
    space: dict[str, Callable[[], nn.Module]] = {}
    exec(dedent(LOADING), space)
    return f"{name}:{kind}", space[kind]()


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_versions_of_modules_reach_their_loading(
    tmp_path: Path, write_module: Write, prefix: str, suffix: str
) -> None:
    factory, module = made(write_module, "Versions")
    holder = nn.ModuleDict({"module": module}) if prefix else module
    path = tmp_path / f"net{suffix}"
    state = holder.state_dict()
    (torch.save if suffix == ".pt" else save_file)(state, path)
    loaded = opened(path, factory, {})
    assert torch.equal(loaded.module.state_dict()["line.weight"], state[f"{prefix}line.weight"])


def test_a_version_in_the_file_is_reported_to_the_module(
    tmp_path: Path, write_module: Write
) -> None:
    factory, module = made(write_module, "Versions")
    state = module.state_dict()
    state._metadata["line"]["version"] = 7  # type: ignore[attr-defined] # torch's own
    torch.save(state, tmp_path / "net.pt")
    with pytest.raises(CheckpointError):
        opened(tmp_path / "net.pt", factory, {})


def test_an_error_of_the_modules_own_loading_is_the_checkpoints(
    tmp_path: Path, write_module: Write
) -> None:
    factory, module = made(write_module, "Refusing")
    torch.save(module.state_dict(), tmp_path / "net.pt")
    with pytest.raises(CheckpointError) as caught:
        opened(tmp_path / "net.pt", factory, {})
    assert "odd" in caught.value.message


def test_sparse_buffers_are_filled(tmp_path: Path, write_module: Write) -> None:
    factory, module = made(write_module, "Sparse")
    module.links = (torch.eye(4) * 3).to_sparse()
    torch.save(module.state_dict(), tmp_path / "net.pt")
    loaded = opened(tmp_path / "net.pt", factory, {})
    links: torch.Tensor = loaded.module.state_dict()["links"]
    assert torch.equal(links.to_dense(), torch.eye(4) * 3)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("allow_pickle", [True, False])
def test_dynamically_quantized_modules_are_filled(
    tmp_path: Path, write_module: Write, allow_pickle: bool
) -> None:
    factory, module = made(write_module, "quantized")
    torch.save(module.state_dict(), tmp_path / "net.pt")
    loaded = opened(tmp_path / "net.pt", factory, {}, allow_pickle=allow_pickle)
    x = torch.randn(2, 3)
    assert torch.equal(loaded.module(x), module(x))


def test_a_complex_weight_is_not_cast_to_a_real_one(tmp_path: Path) -> None:
    weights = nn.Linear(3, 2).state_dict()
    weights["weight"] = torch.full((2, 3), 1 + 1j)
    with pytest.raises(CheckpointError) as caught:
        opened(saved(tmp_path, weights))
    assert caught.value.code is ErrorCode.MISFIT_WEIGHTS
    assert "complex64" in caught.value.message


@pytest.mark.parametrize("strict", [True, False])
def test_other_changes_of_dtype_are_noted(tmp_path: Path, *, strict: bool) -> None:
    weights = {
        "weight": torch.ones(2, 3, dtype=torch.int8),
        "bias": torch.ones(2, dtype=torch.float64),
    }
    loaded = opened(saved(tmp_path, weights), strict=strict)
    assert tensor(loaded, "weight").dtype is torch.float32
    double, integer = loaded.notes
    assert "float64" in double
    assert "int8" in integer


@pytest.mark.filterwarnings("ignore")  # torch's own, of beta layouts
@pytest.mark.parametrize(
    ("form", "make"),
    [
        ("sparse_coo", lambda w: w.to_sparse()),
        ("sparse_csr", lambda w: w.to_sparse_csr()),
        ("quantized", lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8)),
        ("meta", lambda w: w.to("meta")),
        ("nested", lambda w: torch.nested.nested_tensor([w[0], w[1]])),
        ("nested", lambda w: torch.nested.nested_tensor([w[0], w[1]], layout=torch.jagged)),
    ],
)
@pytest.mark.parametrize("allow_pickle", [True, False])
def test_a_tensor_of_another_form_than_the_modules_is_named(
    tmp_path: Path, form: str, make: Callable[[torch.Tensor], torch.Tensor], *, allow_pickle: bool
) -> None:
    weights = dict(nn.Linear(3, 2).state_dict())
    weights["weight"] = make(torch.randn(2, 3))
    path = saved(tmp_path, weights)
    if form == "nested" and not allow_pickle:
        pytest.skip("torch does not read it as weights")
    with pytest.raises(CheckpointError) as caught:
        opened(path, allow_pickle=allow_pickle)
    assert f"weight is {form}" in caught.value.message


@pytest.mark.parametrize("pickled", [True, False])
def test_a_module_without_values_is_named(
    tmp_path: Path, write_module: Write, *, pickled: bool
) -> None:
    factory = write_module("""
        from torch import nn
        def build():
            return nn.Linear(3, 2, device="meta")
    """)
    stored = nn.Linear(3, 2, device="meta") if pickled else nn.Linear(3, 2).state_dict()
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.MISFIT_WEIGHTS, naming="meta")):
        opened(
            saved(tmp_path, stored), None if pickled else f"{factory}:build", allow_pickle=pickled
        )


LAZY = """
    import torch
    from torch import nn
    def build():
        head = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
        return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), *head)
"""


def test_lazy_modules_are_what_they_become_once_they_are_filled(
    tmp_path: Path, write_module: Write
) -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    loaded = opened(saved(tmp_path, module.state_dict()), f"{write_module(LAZY)}:build")
    assert [type(part) for part in loaded.module.children()] == [type(part) for part in module]
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(loaded.module(x), module.eval()(x))


def test_a_lazy_module_without_weights_is_named(tmp_path: Path, write_module: Write) -> None:
    weights = {"0.weight": torch.ones(4, 1, 3, 3)}
    with pytest.raises(CheckpointError) as caught:
        opened(saved(tmp_path, weights), f"{write_module(LAZY)}:build", strict=False)
    assert "is lazy" in caught.value.message


def test_a_module_that_contains_itself_is_named(tmp_path: Path, write_module: Write) -> None:
    name = write_module("""
        from torch import nn
        def build():
            net = nn.Sequential(nn.Linear(3, 2))
            net[0].around = net
            return net
        def shared():
            part = nn.ReLU()
            return nn.Sequential(part, part, nn.Sequential(part))
    """)
    with pytest.raises(CheckpointError, match=r"contains itself, as 0\.around"):
        opened(saved(tmp_path, {}), f"{name}:build")
    opened(saved(tmp_path, {}), f"{name}:shared")
