"""Faults planted in TorchScript and .pt2 files: found and named; without its fault each passes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn

from modelc.checkpoints.module_outputs import make_flat_module
from modelc.core.verdict import State, Verdict
from modelc.sample_models import digits, encoder, nested

Judged = Callable[[str, str, Callable[[Path], None]], Verdict]
Change: TypeAlias = Callable[[Any], object]  # of a module, a program, a record
RECORD = "modelc.json"


def edit_archive(path: Path, change: Change) -> None:
    """Load a TorchScript archive, change the module, save both it and its record."""
    extra: dict[str, Any] = {RECORD: ""}
    module = torch.jit.load(str(path), _extra_files=extra)  # type: ignore[no-untyped-call]  # torch's own
    with torch.no_grad():
        change(module)
    torch.jit.save(module, str(path), _extra_files=extra)


def edit_record(path: Path, change: Change) -> None:
    """Change what a TorchScript archive says of itself."""
    extra: dict[str, Any] = {RECORD: ""}
    module = torch.jit.load(str(path), _extra_files=extra)  # type: ignore[no-untyped-call]  # torch's own
    record = json.loads(extra[RECORD])
    change(record)
    torch.jit.save(module, str(path), _extra_files={RECORD: json.dumps(record)})


def edit_program(path: Path, change: Change) -> None:
    """Load a torch.export archive, change its state dict, save it with its record."""
    extra: dict[str, Any] = {RECORD: ""}
    program = torch.export.load(path, extra_files=extra)
    with torch.no_grad():
        change(program)
    torch.export.save(program, path, extra_files=extra)


def edit_program_record(path: Path, change: Change) -> None:
    extra: dict[str, Any] = {RECORD: ""}
    program = torch.export.load(path, extra_files=extra)
    record = json.loads(extra[RECORD])
    change(record)
    torch.export.save(program, path, extra_files={RECORD: json.dumps(record)})


def export_again(path: Path, change: Change) -> None:
    """Trace the right model, changed, and save it under the right one's record."""
    extra: dict[str, Any] = {RECORD: ""}
    torch.jit.load(str(path), _extra_files=extra)  # type: ignore[no-untyped-call]  # torch's own
    module = BUILT[json.loads(extra[RECORD])["inputs"][0]]().eval()
    with torch.no_grad():
        change(module)
        made = torch.jit.trace(flat_of(module), example_of(module), check_trace=False)  # type: ignore[no-untyped-call]  # torch's own
    torch.jit.save(made, str(path), _extra_files=extra)


def script_again(path: Path, change: Change) -> None:
    """Script the right model, changed; a foreign file, with no record."""
    module = digits_with_weights().eval()
    change(module)
    torch.jit.save(torch.jit.script(module), str(path))


def digits_with_weights() -> nn.Module:
    from safetensors.torch import load_file

    module = digits.build()
    module.load_state_dict(load_file(Path(digits.__file__).with_name("digits.safetensors")))
    return module


def tiny_bert() -> nn.Module:
    return encoder.bert(2, 64, heads=4, vocab=100)


BUILT: dict[str, Callable[[], nn.Module]] = {
    "x": digits_with_weights,
    "inputs.image": nested.detector,
    "ids": tiny_bert,
}


def example_of(module: nn.Module) -> tuple[Tensor, ...]:
    if isinstance(module, nested.Detector):
        return torch.randn(4, 3, 32, 32), torch.randn(4, 6)
    if isinstance(module, encoder.Encoder):
        return torch.randint(0, 100, (4, 9)), torch.ones(4, 9, dtype=torch.int64)
    return (torch.randn(4, 1, 8, 8),)


def flat_of(module: nn.Module) -> nn.Module:
    from modelc.core.call import bind_inputs, parameters_of

    names = ["x"]
    if isinstance(module, nested.Detector):
        names = ["inputs.image", "inputs.meta"]
    if isinstance(module, encoder.Encoder):
        names = ["ids", "mask"]
    return make_flat_module(module, bind_inputs(names, parameters_of(module.forward)))


def scaled(name: str) -> Change:
    """One percent on the largest element of a parameter, found by the end of its name."""

    def change(module: Any) -> None:
        held = module.state_dict
        found: dict[str, Tensor] = held() if callable(held) else held  # a program's is a dict
        flat = next(tensor for key, tensor in found.items() if key.endswith(name)).view(-1)
        flat[flat.abs().argmax()] *= 1.01

    return change


def spoiled(name: str) -> Change:
    def change(module: Any) -> None:
        found = dict(module.named_parameters())
        next(p for key, p in found.items() if key.endswith(name)).view(-1)[0] = float("nan")

    return change


def answering(function: Callable[[Any], Any]) -> Change:
    """What the model returns goes through `function` first."""
    return lambda module: module.register_forward_hook(lambda _m, _i, value: function(value))


def asked(function: Callable[[Any], Any]) -> Change:
    """What the model is given goes through `function` first."""
    return lambda module: module.register_forward_pre_hook(
        lambda _m, args, kwargs: (
            tuple(map(function, args)),
            {name: function(value) for name, value in kwargs.items()},
        ),
        with_kwargs=True,
    )


def boxes_swapped(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "boxes": value["boxes"][::-1]}


def energy_through_half(value: dict[str, Any]) -> dict[str, Any]:
    energy = value["aux"].energy.half().float()
    return {**value, "aux": replace(value["aux"], energy=energy)}


def without_energy(value: dict[str, Any]) -> dict[str, Any]:
    assert [field.name for field in fields(value["aux"])] == ["embedding", "energy"]
    return {**value, "aux": {"embedding": value["aux"].embedding}}


def without_meta(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**inputs, "meta": torch.zeros(1, 6).expand(inputs["image"].shape[0], 6)}


def dropout_on(module: nn.Module) -> None:
    module.get_submodule("dropout").train()


def epsilon_of_norms(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 1e-5


def transposed(module: nn.Module) -> None:
    weight = module.get_parameter("layers.1.attention.value.weight")
    weight.copy_(weight.T.clone())


def output_names(*names: str) -> Change:
    return lambda record: record.update(outputs=list(names))


@dataclass(frozen=True, kw_only=True)
class Fault:
    model: str
    how: Callable[[Path, Change], None]
    change: Change
    reason: str  # a pattern that names output, feed or input
    file: str = "model.torchscript.pt"


ON_FEED = "output 'output' on feed "
OUTPUTS = ("scores", "boxes.0", "boxes.1", "aux.embedding", "aux.energy")
EITHER = r"output '(hidden|pooled)' on feed "
FAULTS = {
    "a weight of the first conv off by 1 %": Fault(
        model="digits", how=edit_archive, change=scaled("stem_conv.weight"), reason=ON_FEED
    ),
    "a weight of the last linear off by 1 %": Fault(
        model="digits", how=edit_archive, change=scaled("classify.weight"), reason=ON_FEED
    ),
    "a NaN in a weight": Fault(
        model="digits",
        how=edit_archive,
        change=spoiled("classify.weight"),
        reason="elements NaN/Inf where eager has none",
    ),
    "dropout left on": Fault(model="digits", how=export_again, change=dropout_on, reason=ON_FEED),
    "dropout left on in a script": Fault(
        model="digits", how=script_again, change=dropout_on, reason=ON_FEED
    ),
    "a whole script in training mode": Fault(
        model="digits", how=script_again, change=nn.Module.train, reason=ON_FEED
    ),
    "two outputs swapped": Fault(
        model="nested",
        how=export_again,
        change=answering(boxes_swapped),
        reason="looks like eager's output 'boxes.",
    ),
    "two names swapped": Fault(
        model="nested",
        how=edit_record,
        change=output_names("scores", "boxes.1", "boxes.0", *OUTPUTS[3:]),
        reason="outputs are reordered: scores, boxes.1, boxes.0",
    ),
    "an output through half and back": Fault(
        model="nested",
        how=export_again,
        change=answering(energy_through_half),
        reason="output 'aux.energy' on feed ",
    ),
    "an output in half": Fault(
        model="digits",
        how=export_again,
        change=answering(torch.Tensor.half),
        reason=r"output 'output' on feed sample \(batch=8\): dtype float16, eager has float32",
    ),
    "a batch size in a reshape": Fault(
        model="digits",
        how=export_again,
        change=answering(lambda value: value.reshape(4, 10)),
        reason=r"refused feed sample \(batch=8\)",
    ),
    "a batch size in a slice": Fault(
        model="digits",
        how=export_again,
        change=answering(lambda value: value[:4]),
        reason=r"shape \[4, 10\], eager has \[8, 10\]",
    ),
    "an input that nothing reads": Fault(
        model="nested",
        how=export_again,
        change=asked(without_meta),
        reason="input 'inputs.meta' is ignored",
    ),
    "an output missing": Fault(
        model="nested",
        how=export_again,
        change=answering(without_energy),
        reason="output 'aux.energy' is missing",
    ),
    "an output renamed": Fault(
        model="nested",
        how=edit_record,
        change=output_names(*OUTPUTS[:4], "energy"),
        reason="output 'aux.energy' is missing; output 'energy' is extra",
    ),
    "another epsilon in the norms": Fault(
        model="bert", how=export_again, change=epsilon_of_norms, reason=EITHER
    ),
    "a square weight transposed": Fault(
        model="bert", how=export_again, change=transposed, reason=EITHER
    ),
    "a weight of a .pt2's first conv off by 1 %": Fault(
        model="digits",
        file="model.pt2",
        how=edit_program,
        change=scaled("stem_conv.weight"),
        reason=ON_FEED,
    ),
    "a weight of a .pt2's last linear off by 1 %": Fault(
        model="digits",
        file="model.pt2",
        how=edit_program,
        change=scaled("classify.weight"),
        reason=ON_FEED,
    ),
    "an output of a .pt2 renamed": Fault(
        model="digits",
        file="model.pt2",
        how=edit_program_record,
        change=output_names("logits"),
        reason="output 'output' is missing; output 'logits' is extra",
    ),
}
TWINS = list(dict.fromkeys((f.model, f.file, f.how) for f in FAULTS.values()))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_fails_and_is_named(judged: Judged, fault: Fault) -> None:
    verdict = judged(fault.model, fault.file, lambda path: fault.how(path, fault.change))
    assert verdict.state is State.FAILED
    assert re.search(fault.reason, verdict.reason)


@pytest.mark.parametrize(("model", "file", "how"), TWINS)
def test_the_twin_without_a_fault_passes(
    judged: Judged, model: str, file: str, how: Callable[[Path, Change], None]
) -> None:
    verdict = judged(model, file, lambda path: how(path, lambda _: None))
    assert verdict.reason == ""
    assert verdict.passed
