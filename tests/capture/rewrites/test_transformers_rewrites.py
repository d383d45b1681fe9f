"""Models of transformers that no capture takes as they are."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from modelc.capture.evidence import RefusalEvidence, find_symptoms
from modelc.capture.rewrite_table import REWRITE_TABLE, apply_rewrites, suggest_rewrites
from modelc.checkpoints.eager_model import Eager

from .conftest import Opened
from .test_rewrites import agree, export, trace

Open = Callable[..., Opened]
pytest.importorskip("transformers")
IDS = "input_ids:int64[batch=1..3,seq=2..12]{2..49}"
SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
GEMMA = {
    **SIZES, "num_hidden_layers": 3, "num_attention_heads": 2, "lru_width": 16, "head_dim": 8,
    "intermediate_size": 32, "attention_window_size": 64, "num_key_value_heads": 1,
}  # fmt: skip
EXPERTS = {
    **SIZES, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32,
    "num_local_experts": 2, "num_experts_per_tok": 1,
}  # fmt: skip


def model_of(eager: Eager) -> Any:  # a transformers model, where torch's stubs see a Module
    return eager.module


def built(name: str, values: dict[str, Any]) -> Any:  # a transformers model
    import torch

    library = import_module("transformers")
    torch.manual_seed(0)
    config = getattr(library, f"{name}Config")(**values)
    return getattr(library, f"{name}ForCausalLM")(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Mamba", SIZES),
        ("FalconMamba", SIZES),
        ("Rwkv", {**SIZES, "num_hidden_layers": 2}),
        ("RecurrentGemma", GEMMA),
    ],
)
def test_a_loop_over_tokens_becomes_one_of_any_length(
    name: str, values: dict[str, int], opened: Open
) -> None:
    eager, signature = opened(built(name, values), IDS)
    with pytest.raises((RuntimeError, AssertionError)):  # the trace unrolled it
        agree(trace(eager, signature), eager, signature)
    before = eager.run({"input_ids": example(signature)})

    assert ("scan",) in suggest_rewrites(eager, RefusalEvidence())
    with apply_rewrites(eager, ("scan",)) as copied:
        made = trace(copied, signature)

    agree(made, eager, signature)
    after = eager.run({"input_ids": example(signature)})
    assert all(before[key].tobytes() == after[key].tobytes() for key in before)


@pytest.mark.slow
def test_experts_are_batched_where_their_grouped_kernel_has_no_translation(opened: Open) -> None:
    eager, signature = opened(built("Mixtral", EXPERTS), IDS)
    before = model_of(eager).get_experts_implementation()

    assert ("batched-experts",) in suggest_rewrites(eager, RefusalEvidence())
    with apply_rewrites(eager, ("batched-experts",)) as copied:
        program = export(copied, signature)

    operators = {str(node.target) for node in program.graph.nodes}  # type: ignore[attr-defined]
    assert not any("grouped_mm" in name for name in operators)
    assert model_of(eager).get_experts_implementation() == before
    agree(program, eager, signature)


@pytest.mark.slow
def test_every_expert_is_called_and_the_sum_is_that_of_the_chosen(opened: Open) -> None:
    import torch

    eager, signature = opened(sparse(), "x:float32[batch=1..3,seq=2..9,16]")
    with pytest.raises((RuntimeError, AssertionError)):  # which experts are called was frozen
        agree(trace(eager, signature), eager, signature)
    feed = {"x": example(signature, "x")}
    before, router = eager.run(feed), type(model_of(eager).router.classifier)

    assert ("every-expert",) in suggest_rewrites(eager, RefusalEvidence())
    with apply_rewrites(eager, ("every-expert",)) as copied:
        made, program = trace(copied, signature), export(copied, signature)

    agree(made, eager, signature)
    agree(program, eager, signature)
    assert type(model_of(eager).router.classifier) is router is torch.nn.Linear
    assert all(before[key].tobytes() == one.tobytes() for key, one in eager.run(feed).items())


def sparse() -> Any:
    """One sparse layer of four experts."""
    import torch

    here = import_module("transformers.models.switch_transformers.modeling_switch_transformers")
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "num_experts": 4, "expert_capacity": 5}
    config = import_module("transformers").SwitchTransformersConfig(**sizes)
    return here.SwitchTransformersSparseMLP(config).eval()


@pytest.mark.slow
def test_transformers_own_patches_take_sequences_shorter_than_the_window(opened: Open) -> None:
    window = {**EXPERTS, "sliding_window": 6, "use_cache": False}  # a cache would be cut to it
    eager, signature = opened(built("Mistral", window), IDS)
    assert ("transformers-patches",) in suggest_rewrites(eager, RefusalEvidence())
    with apply_rewrites(eager, ("transformers-patches",)) as copied:
        program = export(copied, signature)

    agree(program, eager, signature)


def test_rotary_frequencies_follow_the_positions_without_a_branch(opened: Open) -> None:
    """Below and beyond the positions of the config, where transformers rescales."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    sizes: dict[str, Any] = {
        "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "max_position_embeddings": 8, "use_cache": False,
    }  # fmt: skip
    eager, signature = opened(built("Llama", {**sizes, "rope_parameters": rope}), IDS)
    assert ("computed-rope",) in suggest_rewrites(eager, RefusalEvidence())
    with apply_rewrites(eager, ("computed-rope",)) as copied:
        program = export(copied, signature)

    agree(program, eager, signature)


@pytest.mark.slow
def test_eager_attention_decides_nothing_by_sizes(opened: Open) -> None:
    from modelc.tests.nets.cases import build, case_named

    eager, signature = opened(build("moonshine"), *case_named("moonshine").inputs)
    assert ("eager-attention",) in suggest_rewrites(eager, RefusalEvidence())

    assert any("sdpa_attention" in place for place in frozen(eager, signature))
    with apply_rewrites(eager, ("eager-attention",)) as copied:
        assert not any("_attention.py" in place for place in frozen(copied, signature))
        made = trace(copied, signature)

    agree(made, eager, signature)


@pytest.mark.slow
def test_a_model_that_is_given_no_mask_makes_none_in_a_capture(opened: Open) -> None:
    from modelc.tests.nets.cases import build, case_named

    eager, signature = opened(build("autoformer"), *case_named("autoformer").inputs)
    with pytest.raises(ValueError, match="mask") as refused:
        export(eager, signature)

    read = RefusalEvidence(symptoms=find_symptoms(str(refused.value)))
    assert suggest_rewrites(eager, read)[0] == ("no-empty-masks",)
    with apply_rewrites(eager, ("no-empty-masks",)) as copied:
        program = export(copied, signature)

    agree(program, eager, signature)


def frozen(eager: Eager, signature: Any) -> list[str]:
    """The files in which the tracer saw a tensor decide in Python."""
    import warnings

    import torch

    given = tuple(torch.tensor(example(signature, spec.name)) for spec in signature.inputs)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.jit.trace(eager.flat, given, check_trace=False)  # type: ignore[no-untyped-call]
    return [one.filename for one in said if "Converting a tensor" in str(one.message)]


@pytest.mark.slow
def test_every_rewrite_at_once_leaves_the_reference_as_it_is(opened: Open) -> None:
    import transformers
    from torch.nn import functional

    eager, signature = opened(built("Mixtral", EXPERTS), IDS)
    feed = {"input_ids": example(signature)}
    config, before = model_of(eager).config.to_dict(), eager.run(feed)
    forward, attend = type(eager.module).forward, functional.scaled_dot_product_attention
    update = transformers.cache_utils.DynamicSlidingWindowLayer.update

    with apply_rewrites(eager, tuple(one.name for one in REWRITE_TABLE), example=feed) as copied:
        assert model_of(copied).config.to_dict() != config or copied.module is not eager.module
        trace(copied, signature)

    after = eager.run(feed)
    assert all(before[key].tobytes() == after[key].tobytes() for key in before)
    assert model_of(eager).config.to_dict() == config
    assert model_of(eager).config._attn_implementation == "sdpa"
    assert type(eager.module).forward is forward
    assert functional.scaled_dot_product_attention is attend
    assert transformers.cache_utils.DynamicSlidingWindowLayer.update is update


def example(signature: Any, name: str = "input_ids") -> Any:
    from modelc.validators.feeds import draw_example_feed

    return draw_example_feed(signature)[name]
