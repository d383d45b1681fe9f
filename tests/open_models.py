"""Modules opened in eager mode, their signatures, and evidence on artifacts that tests make up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from modelc.checkpoints.eager_model import Eager, open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.core.call import parameters_of
from modelc.core.events import Tell, ignore_events
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import InputSpec, Signature, merge_inputs
from modelc.pipeline.eager_reference import EagerReference, open_reference, read_checkpoint
from modelc.pipeline.order import Judging, Source
from modelc.pipeline.reply_evidence import Evidence
from modelc.pipeline.run_progress import Progress
from modelc.validators.judge import ArtifactOutputs, ReferenceOutputs, judge
from modelc.validators.tolerance import TOLERANCES

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn


def signature_of(
    *inputs: str, known: dict[str, InputSpec] | None = None, outputs: Iterable[str] = ()
) -> Signature:
    """The signature of these inputs, with what a sample tells of them."""
    signature = merge_inputs([parse_input(text) for text in inputs], known or {})
    return signature.with_outputs(list(outputs))


def load(module: nn.Module) -> LoadedModule:
    """The module as if it came from a checkpoint."""
    takes = parameters_of(module.forward)
    return LoadedModule(kind="state_dict", module=module.eval(), takes=takes)


def open_module(module: nn.Module, *inputs: str) -> tuple[Eager, Signature]:
    """The eager model of the module, and its signature."""
    signature = signature_of(*inputs)
    return open_eager(load(module), signature), signature


def reference_of(eager: Eager, **parts: Any) -> EagerReference:
    """An eager reference with the model and these fields alone."""
    plain: dict[str, Any] = {"moved": {}, "stored": None, "skip": lambda _: False}
    parts = {"has_source": False, "suppression": None, **plain, **parts}
    return cast("EagerReference", SimpleNamespace(model=eager, **parts))


def open_source(source: Source, logs: Path, tell: Tell = ignore_events) -> EagerReference:
    """The eager reference of an order's source, with its steps told."""
    progress = Progress(tell=tell, logs=logs)
    return open_reference(source, read_checkpoint(source, progress), Judging(), progress)


def evidence_of(
    references: Sequence[ReferenceOutputs],
    replies: Sequence[ArtifactOutputs],
    signature: Signature,
    *,
    precision: Precision = Precision.FP32,
    loose: frozenset[str] = frozenset(),
) -> Evidence:
    """The evidence on an artifact of that precision, at the usual tolerance."""
    return Evidence(
        references=tuple(references),
        replies=tuple(replies),
        precision=precision,
        compare=partial(
            judge,
            artifact="model.bin",
            tolerance=TOLERANCES[precision],
            device="cpu",
            artifact_inputs=[spec.name for spec in signature.inputs],
            signature=signature,
            loose=loose,
        ),
        loose=loose,
    )
