"""What eager computes inside, module by module and operation by operation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from modelc.checkpoints.activation_tape import ActivationTape, record_activations
from modelc.checkpoints.eager_model import Eager, open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.checkpoints.operation_variants import make_variants
from modelc.core.call import parameters_of
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs


class Twice(nn.Module):
    """One layer called twice, and an operation of its own between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.gelu(self.layer(x))
        x += 1  # in place: what was kept before must not change
        y: Tensor = self.layer(x)
        return y


def eager_of(module: nn.Module) -> Eager:
    module.eval()
    signature = merge_inputs([parse_input("x:float32[2,4]")], {})
    takes = parameters_of(module.forward)
    return open_eager(LoadedModule(kind="module", module=module, takes=takes), signature)


def taped(module: nn.Module, **kept: list[int]) -> ActivationTape:
    feed = {"x": torch.arange(8.0).reshape(2, 4).numpy()}
    return record_activations(
        eager_of(module), feed, arrays=kept.get("arrays", []), operations=kept.get("operations", [])
    )


def test_each_call_of_a_module_is_reported_apart() -> None:
    calls = [(v.module, v.call) for v in taped(Twice()).values if not v.operation]
    assert calls == [("layer", 0), ("layer", 1), ("", 0)]


def test_an_operation_of_forward_has_its_module_and_line() -> None:
    (value,) = [v for v in taped(Twice()).values if v.operation == "gelu"]
    assert value.module == ""
    assert value.file == __file__
    with open(value.file) as stream:  # noqa: PTH123 - as long as it is short
        assert "nn.functional.gelu" in stream.readlines()[value.line - 1]


def test_a_kept_array_is_as_it_was_before_it_was_written_to() -> None:
    module = Twice()
    order = next(v.order for v in taped(module).values if v.operation == "gelu")
    array = taped(module, arrays=[order]).arrays[order]
    expected = nn.functional.gelu(module.layer(torch.arange(8.0).reshape(2, 4)))
    assert torch.equal(torch.from_numpy(array), expected.detach())


def test_keeping_arrays_does_not_renumber_the_values() -> None:
    module = Twice()
    plain = taped(module)
    everything = [value.order for value in plain.values]
    assert taped(module, arrays=everything, operations=everything).values == plain.values


def test_the_output_that_is_a_layers_own_tensor_says_so() -> None:
    values = taped(Twice()).values
    inner = next(v for v in values if (v.module, v.call, v.operation) == ("layer", 1, ""))
    assert values[-1].same == inner.order


def test_an_operation_can_be_made_again_otherwise() -> None:
    module = Twice()
    order = next(v.order for v in taped(module).values if v.operation == "gelu")
    operation = taped(module, operations=[order]).operations[order]
    told = dict(make_variants(operation))
    expected = nn.functional.gelu(operation.args[0], approximate="tanh")
    (way,) = [way for way in told if "tanh" in way]
    assert torch.equal(torch.from_numpy(told[way]), expected)


def test_no_hook_stays_behind() -> None:
    module = Twice()
    taped(module)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


class InPlace(nn.Module):
    """A residual block as torchvision writes it: the sum and the ReLU write into their input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.relu = nn.LayerNorm(4), nn.ReLU(inplace=True)
        self.last = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(x)
        out += x
        summed: Tensor = self.last(self.relu(out))
        return summed


def test_a_tensor_that_was_written_to_is_another_value() -> None:
    values = {v.module: v for v in taped(InPlace()).values if not v.operation}
    assert values["relu"].same is None
    assert values["last"].same == values["relu"].order
    arrays = taped(InPlace(), arrays=[values["norm"].order, values["relu"].order]).arrays
    assert arrays[values["norm"].order].min() < 0 <= arrays[values["relu"].order].min()
