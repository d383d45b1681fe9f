"""The copy: what it shares with the reference, and what it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modelc.capture.model_copy import copy_sharing_weights, weight_checksums
from modelc.core.errors import ConversionError


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.register_buffer("small", torch.zeros(2))
        self.register_buffer("large", torch.zeros(1 << 19))
        self.plain = torch.ones(1 << 19)


def test_parameters_and_large_tensors_share_their_memory() -> None:
    module = Holder()
    copied = copy_sharing_weights(module)

    for name in ("a.weight", "large", "plain"):
        owner, _, leaf = name.rpartition(".")
        mine, theirs = (getattr(m.get_submodule(owner), leaf) for m in (copied, module))
        assert mine.data_ptr() == theirs.data_ptr(), name
        assert mine is not theirs, name


def test_small_buffers_are_copied_since_forward_may_write_into_them() -> None:
    module = Holder()
    copied = copy_sharing_weights(module)

    copied.get_buffer("small").add_(1)

    assert not module.get_buffer("small").any()


def test_tied_weights_stay_tied() -> None:
    copied = copy_sharing_weights(Holder())

    assert copied.get_parameter("a.weight") is copied.get_parameter("b.weight")


def test_a_weight_replaced_in_the_copy_is_not_replaced_in_the_reference() -> None:
    module = Holder()
    before = module.a.weight.clone()
    copied = copy_sharing_weights(module)

    copied.get_parameter("a.weight").data = torch.full((4, 4), 7.0)

    assert torch.equal(module.a.weight, before)


def test_what_cannot_be_copied_is_said() -> None:
    module = nn.Linear(2, 2)
    module.iterator = iter(range(3)).__iter__  # type: ignore[assignment]  # any attribute
    module.frames = (one for one in range(2))  # type: ignore[assignment]  # generators cannot be

    with pytest.raises(ConversionError, match="copied"):
        copy_sharing_weights(module)


def test_checksums_see_one_changed_bit_past_versions() -> None:
    module = nn.Linear(3, 3)
    before = weight_checksums(module)
    module.weight.data[1, 2] = torch.nextafter(module.weight.data[1, 2], torch.tensor(9.0))

    after = weight_checksums(module)

    assert [name for name in before if before[name] != after[name]] == ["weight"]
