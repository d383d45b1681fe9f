"""Checkpoints that torchao quantized: read safely, with the values of their integers."""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from modelc.checkpoints.state_dict_checkpoint import read_weight_set
from modelc.checkpoints.torchao_weights import check_quantization, find_matrices, unwrap_weights
from modelc.core import torch_file
from modelc.core.errors import CheckpointError, ConsentError, ErrorCode, MissingError


def build_net() -> Any:
    """Build a module of two products."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16)).eval()


def test_a_file_of_torchao_needs_torchao(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install, not to allow pickles."""
    name = "torchao.quantization"
    kind = type("Int8Tensor", (), {"__module__": name, "__qualname__": "Int8Tensor"})
    stand_in = ModuleType(name)
    stand_in.Int8Tensor = kind  # type: ignore[attr-defined]
    path = tmp_path / "net.pt"
    with monkeypatch.context() as within:
        within.setitem(sys.modules, "torchao", ModuleType("torchao"))
        within.setitem(sys.modules, name, stand_in)
        torch.save({"weight": kind}, path)
    monkeypatch.delitem(sys.modules, "torchao", raising=False)
    monkeypatch.setattr(torch_file, "find_spec", lambda _: None)

    known = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()  # torchao may be imported already
    try:
        with pytest.raises(MissingError) as caught:
            torch_file.read_torch_file(path, may_allow=True)
    finally:
        torch.serialization.add_safe_globals(known)

    assert "torchao" in str(caught.value.hint)


def test_a_folder_of_another_method_is_refused_by_name() -> None:
    """Their integers are not read, and not taken for floats."""
    with pytest.raises(CheckpointError) as caught:
        check_quantization(Path("llama"), {"quantization_config": {"quant_method": "hqq"}})

    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert "hqq" in caught.value.message


class TestWithTorchao:
    """What needs the package."""

    @pytest.fixture
    def quantize(self) -> Any:
        """Return a function that quantizes a module in place, by the name of a scheme."""
        pytest.importorskip("torchao")
        torch_file.import_torchao("a test")
        from torchao import quantization
        from torchao.quantization.granularity import (
            PerGroup,
        )

        four: dict[str, Any] = {"weight_dtype": getattr(torch, "int4")}  # noqa: B009 - no stub
        configs = {
            "int8": quantization.Int8WeightOnlyConfig(),
            "int4": quantization.IntxWeightOnlyConfig(**four, granularity=PerGroup(16)),
            "int8 dynamic": quantization.Int8DynamicActivationInt8WeightConfig(),
            "int4 dynamic": quantization.Int8DynamicActivationIntxWeightConfig(
                **four, weight_granularity=PerGroup(16)
            ),
        }
        return lambda net, scheme: quantization.quantize_(net, configs[scheme])

    @pytest.mark.parametrize("scheme", ["int8", "int4", "int8 dynamic", "int4 dynamic"])
    def test_the_module_computes_as_torchaos(self, quantize: Any, scheme: str) -> None:
        """Its integers and scales are those of torchao, bit for bit."""
        net, plain = build_net(), build_net()
        quantize(net, scheme)
        quantize(plain, scheme)
        given = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))

        notes = unwrap_weights(plain)

        assert len(notes) == (2 if "dynamic" in scheme else 1)
        assert torch.allclose(plain(given), net(given), atol=1e-5)
        meant = [net[0].weight, net[2].weight]
        found = [matrix for _, matrix in find_matrices(plain)]
        assert all(type(one) is nn.Parameter for one in plain.parameters())
        for weight, matrix in zip(meant, found, strict=True):
            assert np.array_equal(matrix.integers, weight.qdata.numpy())
            assert np.array_equal(matrix.scales, weight.scale.reshape(matrix.scales.shape).numpy())

    def test_a_state_dict_is_read_without_pickles(self, quantize: Any, tmp_path: Path) -> None:
        """A file that holds something else beside torchao's tensors still needs consent."""
        net = build_net()
        quantize(net, "int8")
        torch.save(net.state_dict(), tmp_path / "net.pt")
        torch.save({**net.state_dict(), "more": PurePath("x")}, tmp_path / "more.pt")

        found = torch_file.read_torch_file(tmp_path / "net.pt")

        assert isinstance(found, dict)
        assert torch.equal(found["0.weight"].qdata, net[0].weight.qdata)
        with pytest.raises(ConsentError):
            torch_file.read_torch_file(tmp_path / "more.pt", may_allow=True)


def test_safetensors_of_torchao_need_torchao(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their parts are not taken for weights of other names."""
    kinds = {"_type": "Int8Tensor", "_data": {}, "_tensor_data_names": ["qdata"]}
    metadata = {"a.weight": json.dumps(kinds), "tensor_names": json.dumps(["a.weight"])}
    path = tmp_path / "net.safetensors"
    save_file({"a._weight_qdata": torch.zeros(2, 2)}, path, metadata=metadata)
    monkeypatch.setattr(torch_file, "find_spec", lambda _: None)

    with pytest.raises(MissingError):
        read_weight_set([path])
