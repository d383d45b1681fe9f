"""Checkpoints that torchao quantized: read safely, with the values of their integers."""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import save_file
from torch import nn

from modelc.checkpoints.state_dict_checkpoint import read_weight_set
from modelc.checkpoints.torchao_weights import (
    check_quantization,
    find_matrices,
    rounds_activations,
    unwrap_weights,
)
from modelc.core import torch_file
from modelc.core.errors import CheckpointError, ConsentError, ErrorCode, MissingError
from modelc.core.kinds import Precision, ReasonCode
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file
from modelc.validators.tolerance import TOLERANCES


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

        assert len(notes) == 1
        assert rounds_activations(plain) is ("dynamic" in scheme)
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

    def test_rounded_activations_have_limits_of_their_own_and_weights_none(
        self, quantize: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One bit of one integer is found, although outputs may differ by far more."""
        lines = "import torch\nfrom torch import nn\n\ndef build():\n    return nn.Sequential("
        layers = "nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16)).eval()\n"
        (tmp_path / "rounding_net.py").write_text(lines + layers, "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        net = build_net()
        quantize(net, "int8 dynamic")
        torch.save(net.state_dict(), tmp_path / "net.pt")
        source = Source(
            checkpoint=tmp_path / "net.pt", model="rounding_net:build",
            inputs=("x:float32[batch=1..4,64]",),
        )  # fmt: skip
        wanted = (Wanted(target="onnx"), Wanted(target="openvino"))
        judging = Judging(sensitivity=0)
        manifest = run(Order(source=source, wanted=wanted, out=tmp_path / "out", judging=judging))
        assert manifest.passed
        assert {one.judged_as for one in manifest.artifacts} == {Precision.INT8_DYNAMIC}
        least = TOLERANCES[Precision.INT8_DYNAMIC].min_sqnr
        assert {one.tolerance.min_sqnr for one in manifest.verdicts} == {least}
        assert all(
            any("rounds activations" in note for note in one.notes) for one in manifest.verdicts
        )
        model = onnx.load(tmp_path / "out" / "model.onnx")
        node = next(one for one in model.graph.node if one.op_type == "MatMulNBits")
        tensor = next(one for one in model.graph.initializer if one.name == node.input[1])
        integers = numpy_helper.to_array(tensor).copy()
        integers.reshape(48, -1)[7, 3] ^= 1
        tensor.CopyFrom(numpy_helper.from_array(integers, tensor.name))
        onnx.save(model, tmp_path / "faulty.onnx")
        verdict = validate_file(tmp_path / "faulty.onnx", source, judging=judging)
        assert [one.code for one in verdict.reasons] == [ReasonCode.WEIGHT_ALTERED]


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
