"""A token that rounding sends to another expert is compared with eager that takes it too."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from modelc.core.kinds import Precision, ReasonCode
from modelc.core.verdict import Verdict
from modelc.pipeline.reply_evidence import JudgedEvidence
from modelc.pipeline.routing_ties import settle_routing
from modelc.validators.edge_case_values import EMPTY_MASK
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs

from ..open_models import evidence_of, open_module, reference_of, signature_of

INPUTS = "input_ids:int64[4,64]", "attention_mask:int64[4,64]"
SIGNATURE = signature_of(*INPUTS, outputs=("logits",))
IDS, WIDTH, EXPERTS = 64, 32, 6


class Experts(nn.Module):
    """A residual sum with the two best of six experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(self.router(x.reshape(-1, WIDTH)), dim=-1)
        best, places = torch.topk(scores, 2, dim=-1)
        every = torch.einsum("ni,eio->neo", x.reshape(-1, WIDTH), self.experts)
        taken = every.gather(1, places[..., None].expand(-1, -1, WIDTH))
        out: torch.Tensor = x + (taken * best[..., None]).sum(1).reshape(x.shape)
        return out


class Decoder(nn.Module):
    """Token ids to logits, by two layers of experts; with a share, tokens read those before."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.share = share
        self.embed, self.head = nn.Embedding(IDS, WIDTH), nn.Linear(WIDTH, IDS)
        self.layers = nn.ModuleList(Experts() for _ in range(2))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        x = self.embed(input_ids) * attention_mask[..., None]
        for layer in self.layers:
            x = nn.functional.rms_norm(layer(x), (WIDTH,))
            x = x + self.share * x.cumsum(1)
        return {"logits": self.head(x)}


def round_weights(module: Decoder) -> Decoder:
    """The module with weights in half precision, and a token on the edge between two experts."""
    copy = deepcopy(module)
    for parameter in copy.parameters():
        parameter.data = parameter.half().float()
    return copy


def on_an_edge(share: float = 0.0) -> Decoder:
    """A decoder of which some token's experts change when weights are rounded to half."""
    module = Decoder(share).eval()
    first = module.layers[0]
    assert isinstance(first, Experts)
    with torch.no_grad():
        x = module.embed.weight
        order = first.router(x).topk(3, dim=-1)
        gap = order.values[:, 1] - order.values[:, 2]
        token = int(gap.argmin())
        second, third = order.indices[token, 1:].tolist()
        rounded = round_weights(module).layers[0]
        assert isinstance(rounded, Experts)
        # move the router so that eager prefers the second by half of what rounding moves
        moved = rounded.router(x.half().float())[token] - first.router(x)[token]
        wanted = 0.5 * float((moved[third] - moved[second]).abs())
        sign = 1.0 if float(moved[third] - moved[second]) > 0 else -1.0
        step = (sign * wanted - float(gap[token])) / float(x[token] @ x[token])
        first.router.weight[second] += step * x[token]
    return module


def judge(
    artifact: Decoder, module: Decoder, names: tuple[str, ...] = ("seed-0", "seed-1", "seed-2")
) -> tuple[Verdict, Verdict]:
    """The verdicts before and after the look at routers."""
    eager, _ = open_module(module, *INPUTS)
    references, replies = [], []
    for number, name in enumerate(names):
        ids = np.random.default_rng(number).permutation(np.arange(256) % IDS).reshape(4, 64)
        shown, kind = np.ones_like(ids), "seed"
        if name == EMPTY_MASK:
            shown[-1], kind = 0, "mask"
        arrays = {"input_ids": ids, "attention_mask": shown}
        feed = NamedFeed(name=name, arrays=arrays, sizes={}, kind=kind)
        references.append(ReferenceOutputs(feed=feed, outputs=eager.run(feed.arrays)))
        with torch.no_grad():
            made = artifact(*map(torch.from_numpy, arrays.values()))["logits"].numpy()
        replies.append(ArtifactOutputs(outputs={"logits": made}))
    evidence = evidence_of(references, replies, SIGNATURE, precision=Precision.FP16)
    before = JudgedEvidence.of(evidence)
    return before.verdict, settle_routing(before, reference_of(eager, signature=SIGNATURE)).verdict


def test_a_token_on_the_edge_between_experts_passes_with_a_note() -> None:
    module = on_an_edge()
    before, after = judge(round_weights(module), module)
    assert not before.passed
    assert after.passed, after.reason
    assert len(after.notes) == 1
    assert after.sqnr is not None
    assert before.sqnr is not None
    assert after.sqnr > before.sqnr


def test_later_tokens_that_read_it_pass_too() -> None:
    module = on_an_edge(0.1)
    artifact = round_weights(module)
    ids = torch.arange(IDS)[None]
    with torch.no_grad():
        made, right = (one(ids, torch.ones_like(ids))["logits"] for one in (artifact, module))
        apart = (made - right).norm(dim=-1)[0]
    before, after = judge(artifact, module)
    assert not before.passed
    assert int((apart > 0.02 * apart.max()).sum()) > 2
    assert after.passed, after.reason
    # in each of 3 x 4 rows of 64 tokens, the token on the edge alone
    assert after.notes[0].startswith("12 of 768 tokens")


def test_rows_beside_a_masked_one_take_the_other_expert_too() -> None:
    module = on_an_edge()
    before, after = judge(round_weights(module), module, ("seed-0", EMPTY_MASK))
    assert {one.code for one in before.faults} == {ReasonCode.BESIDE_MASK}
    assert after.passed, after.reason


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("fault", ["experts", "router", "head", "layer"])
def test_a_fault_beside_it_stays_rejected(fault: str, share: float) -> None:
    module = on_an_edge(share)
    artifact = round_weights(module)
    first = artifact.layers[0]
    assert isinstance(first, Experts)
    with torch.no_grad():
        if fault == "experts":
            first.experts[:2] = first.experts[:2].flip(0)
        elif fault == "router":
            first.router.weight[1] *= 1.2
        elif fault == "head":
            artifact.head.weight[5] *= 1.2
        else:
            first.experts.mul_(1.05)
    before, after = judge(artifact, module)
    assert not before.passed
    assert not after.passed


def test_a_model_without_routers_is_left_alone() -> None:
    module = Decoder().eval()
    module.layers = nn.ModuleList()
    artifact = deepcopy(module)
    with torch.no_grad():
        artifact.embed.weight[7] *= 1.5
    before, after = judge(artifact, module)
    assert before.reasons == after.reasons
    assert not after.passed
