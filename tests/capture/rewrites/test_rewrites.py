"""Each rewrite: what a capture refuses or freezes without it, and takes rightly with it."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from modelc.capture.evidence import RefusalEvidence, Symptom, evidence_of, find_symptoms
from modelc.capture.rewrite_table import (
    REWRITE_TABLE,
    apply_rewrites,
    match_rewrites,
    suggest_rewrites,
)
from modelc.checkpoints.eager_model import Eager
from modelc.checkpoints.module_outputs import split_outputs
from modelc.core.contract import Feed, Outputs
from modelc.core.signature import Signature
from modelc.validators.feeds import draw_feeds

from .conftest import Opened
from .rewritten_nets import (
    Causal,
    Checkpointed,
    CompiledInside,
    Counted,
    Functional,
    Gate,
    Packed,
    TrainingGate,
    X,
)

Open = Callable[..., Opened]
Capture = Callable[[Eager, Signature], Callable[..., object]]


def tensors(feed: Feed, signature: Signature) -> list[torch.Tensor]:
    return [torch.tensor(feed[spec.name]) for spec in signature.inputs]


def script(eager: Eager, signature: Signature) -> Callable[..., object]:  # noqa: ARG001
    made: Callable[..., object] = torch.jit.script(eager.module)
    return made


def trace(eager: Eager, signature: Signature) -> Callable[..., object]:
    feed = draw_feeds(signature)[1].arrays
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is frozen: that is looked for in values
        made: Callable[..., object] = torch.jit.trace(  # type: ignore[no-untyped-call]  # torch's
            eager.flat, tuple(tensors(feed, signature)), check_trace=False
        )
    return made


def export(eager: Eager, signature: Signature) -> Callable[..., object]:
    feed = draw_feeds(signature)[1].arrays
    axes = signature.axes()
    dims = tuple(
        dict.fromkeys(axes.get(spec.name, {}), torch.export.Dim.DYNAMIC)
        for spec in signature.inputs
    )
    with torch.no_grad():
        program = torch.export.export(
            eager.flat,
            tuple(tensors(feed, signature)),
            dynamic_shapes=(dims,),
            strict=False,
        )
    return program.module()


def agree(made: Callable[..., object], eager: Eager, signature: Signature) -> None:
    """The captured program is eager on every feed, in values, shapes and dtypes."""
    for feed in draw_feeds(signature):
        expected = eager.run(feed.arrays)
        with torch.no_grad():
            given = list(split_outputs(made(*tensors(feed.arrays, signature))).tensors.values())
        assert len(given) == len(expected)
        for (name, wanted), got in zip(expected.items(), given, strict=True):
            array = got.numpy()
            assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype), (feed.name, name)
            np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-5, err_msg=name)


def observed() -> nn.Module:
    gate = Gate()
    gate.a.register_forward_hook(lambda *_: None)
    return gate


def read(refused: pytest.ExceptionInfo[BaseException]) -> RefusalEvidence:
    return RefusalEvidence(symptoms=find_symptoms(str(refused.value)))


def normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    gate = Gate()
    gate.a, gate.b = norm(gate.a), norm(gate.b)  # type: ignore[assignment]  # Linear still
    return gate


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("name", "module", "capture"),
    [
        ("no-observers", observed, script),
        ("no-training-code", TrainingGate, script),
        ("not-compiled", lambda: torch.compile(Gate(), backend="eager"), script),
        ("not-compiled", CompiledInside, trace),
        ("no-checkpointing", Checkpointed, trace),
        ("plain-weights", lambda: normed(parametrizations.weight_norm), script),
        ("plain-weights", lambda: normed(parametrizations.spectral_norm), script),
        ("plain-weights", lambda: normed(parametrizations.orthogonal), script),
        ("plain-weights", lambda: normed(weight_norm), script),
        ("plain-weights", lambda: normed(spectral_norm), script),
    ],
)
def test_what_a_capture_rejects_it_takes_with_the_rewrite(
    name: str, module: Callable[[], nn.Module], capture: Capture, opened: Open
) -> None:
    torch.manual_seed(0)
    eager, signature = opened(module(), X)
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever torch says, at capture or at run
        agree(capture(eager, signature), eager, signature)
    before = states(eager, signature)

    assert (name,) in suggest_rewrites(eager, RefusalEvidence())
    with apply_rewrites(eager, (name,)) as copied:
        made = capture(copied, signature)

    agree(made, eager, signature)
    same(before, states(eager, signature))


def test_a_causal_flag_made_of_sizes_is_taken(opened: Open) -> None:
    eager, signature = opened(Causal(), "x:float32[batch=1..3,seq=1..6,8]")
    with pytest.raises(TypeError, match="is_causal") as refused:
        export(eager, signature)

    assert suggest_rewrites(eager, read(refused)) == (("plain-attention",),)
    with apply_rewrites(eager, ("plain-attention",)) as copied:
        exported, traced = export(copied, signature), trace(copied, signature)

    agree(exported, eager, signature)
    agree(traced, eager, signature)


class Translator(nn.Module):
    """torch's own transformer with a mask over what comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        y: torch.Tensor = self.net(x, x, tgt_mask=mask)
        return y


def test_a_mask_of_a_stock_transformer_is_not_compared(opened: Open) -> None:
    eager, signature = opened(Translator(), "x:float32[batch=1..3,seq=1..6,8]")
    refused = evidence_of(Symptom.DATA_BRANCH)
    assert ("masks-as-given",) in suggest_rewrites(eager, refused)
    assert ("masks-as-given",) not in suggest_rewrites(eager, RefusalEvidence())
    with apply_rewrites(eager, ("masks-as-given",)) as copied:
        exported = export(copied, signature)
    agree(exported, eager, signature)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("grouped", [False, True])
def test_plain_attention_is_the_fused_one(dtype: torch.dtype, *, grouped: bool) -> None:
    from modelc.capture.transformer_rewrites import _plain_attention

    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2 if grouped else 4, 7, 8)
    mask = torch.rand(2, 1, 5, 7).gt(0.3) if dtype is torch.bool else torch.randn(2, 1, 5, 7)
    fused = nn.functional.scaled_dot_product_attention

    def agree_on(given: torch.Tensor | None, *, causal: bool) -> None:
        arguments: dict[str, Any] = {"scale": 0.3, "enable_gqa": grouped, "is_causal": causal}
        expected: torch.Tensor = fused(q, k, k, given, **arguments)
        torch.testing.assert_close(_plain_attention(q, k, k, given, **arguments), expected)

    agree_on(mask, causal=False)
    agree_on(None, causal=True)


PACKED = [
    (nn.LSTM, {"bidirectional": True, "batch_first": True}),
    (nn.LSTM, {"batch_first": True, "bias": False}),
    (nn.GRU, {"bidirectional": True}),
    (nn.RNN, {"batch_first": True}),
]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("kind", "options"), PACKED)
def test_padded_rows_give_the_outputs_and_states_of_packed_ones(
    kind: type[nn.RNNBase], options: dict[str, bool], opened: Open, *, whole: bool
) -> None:
    torch.manual_seed(0)
    rows = "batch=1..4,seq=5..9,8" if options.get("batch_first") else "seq=5..9,batch=1..4,8"
    module = Packed(kind, whole=whole, **options)
    eager, signature = opened(module, f"x:float32[{rows}]", "lengths:int64[batch=1..4]{1..5}")

    with apply_rewrites(eager, ("padded-rnn",)) as copied:
        made = trace(copied, signature)
        agree(copied.module, eager, signature)

    agree(made, eager, signature)


@pytest.mark.slow
def test_packed_rows_are_exported_where_the_time_is_fixed(opened: Open) -> None:
    eager, signature = opened(
        Packed(nn.GRU, batch_first=True, whole=True),
        "x:float32[batch=2..4,4,8]",
        "lengths:int64[batch=2..4]{1..4}",
    )
    with pytest.raises(Exception, match="zeros"):
        export(eager, signature)

    with apply_rewrites(eager, ("padded-rnn",)) as copied:
        made = export(copied, signature)

    agree(made, eager, signature)


def states(eager: Eager, signature: Signature) -> list[Outputs]:
    return [eager.run(feed.arrays) for feed in draw_feeds(signature)]


def same(before: list[Outputs], after: list[Outputs]) -> None:
    for one, other in zip(before, after, strict=True):
        for name in one:
            assert one[name].tobytes() == other[name].tobytes(), name


def test_the_length_of_a_tensor_is_followed_as_its_size(opened: Open) -> None:
    eager, signature = opened(Counted(), X)
    with pytest.raises(Exception, match="specialized") as refused:
        export(eager, signature)
    space = vars(__import__(Counted.__module__, fromlist=["forward"]))

    assert ("tensor-lengths",) in suggest_rewrites(eager, read(refused))
    assert ("tensor-lengths",) not in suggest_rewrites(eager, RefusalEvidence())
    with apply_rewrites(eager, ("tensor-lengths",)) as copied:
        program = export(copied, signature)

    assert "len" not in space
    agree(program, eager, signature)


def test_custom_autograd_functions_are_taken_by_their_forward(opened: Open) -> None:
    eager, signature = opened(Functional(), X)
    before = vars(torch.autograd.Function)["apply"]
    with pytest.raises(RuntimeError, match=r"function\.py") as refused:
        saved(trace(eager, signature))

    assert ("plain-functions",) in suggest_rewrites(eager, read(refused))
    with apply_rewrites(eager, ("plain-functions",)) as copied:
        made = saved(trace(copied, signature))

    assert vars(torch.autograd.Function)["apply"] is before
    agree(made, eager, signature)


def saved(made: Any) -> Any:  # a ScriptModule, through a file's bytes and back
    return torch.jit.load(io.BytesIO(made.save_to_buffer()))  # type: ignore[no-untyped-call]


def test_what_a_refusal_names_is_tried_before_the_rest_and_beside_it(opened: Open) -> None:
    eager, _ = opened(Counted(), X)
    plain = evidence_of(Symptom.FUSED_ATTENTION, Symptom.FIXED_SIZE)

    assert [names[0] for names in suggest_rewrites(eager, plain)][:2] == [
        "tensor-lengths",
        "plain-attention",
    ]
    assert match_rewrites(eager, plain, exclude=("tensor-lengths",)) == ("plain-attention",)
    assert match_rewrites(eager, RefusalEvidence(), exclude=()) == ()


@pytest.mark.parametrize(
    "hook",
    [
        lambda _m, _a, out: out * 2 if out.shape[0] == 6 else None,
        lambda _m, _a, out: None if out.shape[0] == 6 else out * 2,
        lambda _m, _a, out: out.clamp(0),
        lambda _m, _a, out: out.add_(1) and None,
    ],
)
def test_a_hook_that_may_change_an_output_stays(hook: Callable[..., object]) -> None:
    gate = Gate()
    gate.a.register_forward_hook(hook)
    assert "no-observers" not in [one.name for one in REWRITE_TABLE if one.suits(gate)]
