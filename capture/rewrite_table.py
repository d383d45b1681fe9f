"""The table of rewrites, and the copies of the model that they change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..checkpoints.eager_model import Eager
from ..core.errors import (
    CheckpointError,
    ConversionError,
    Hint,
    Option,
    first_line,
    unknown_name_error,
)
from . import (
    numeric_rewrites,
    rnn_rewrites,
    scan_rewrites,
    size_rewrites,
    training_rewrites,
    transformer_rewrites,
)
from .evidence import RefusalEvidence
from .model_copy import PATCH, apply_patch, check_unmodified, copy_sharing_weights, weight_checksums
from .rewrite import Module, Rewrite
from .torch_script import fresh_type_store

if TYPE_CHECKING:
    from ..core.contract import Feed

REWRITE_TABLE: tuple[Rewrite, ...] = (
    rnn_rewrites.PADDED_RNN,
    *training_rewrites.SCRIPT_REWRITES,
    training_rewrites.PLAIN_WEIGHTS,
    numeric_rewrites.LOOPED_INVERSE,
    transformer_rewrites.EVERY_EXPERT,
    transformer_rewrites.COMPUTED_ROPE,
    training_rewrites.PLAIN_FUNCTIONS,
    *size_rewrites.LENGTH_REWRITES,
    transformer_rewrites.COMPUTED_PADDING,
    size_rewrites.DYNAMIC_MAX_POOL,
    rnn_rewrites.ANY_LENGTH_RNN,
    rnn_rewrites.PLAIN_PROJECTIONS,
    *scan_rewrites.SCAN_REWRITES,
    *transformer_rewrites.TRANSFORMERS_REWRITES,
    *transformer_rewrites.ATTENTION_REWRITES,
    numeric_rewrites.EXACT_ELU,
    numeric_rewrites.EXACT_SPECTRA,
)

# Copies live as long as their eager model: each step of a run uses them.
_COPIES: WeakKeyDictionary[Eager, dict[tuple[str, ...], Eager]] = WeakKeyDictionary()


@contextmanager
def apply_rewrites(
    eager: Eager, names: Sequence[str], *, example: Feed | None = None
) -> Iterator[Eager]:
    """Yield a copy of `eager` with these rewrites, in order; without names, itself.

    Changes outside the copy hold only within the context.

    Args:
        eager: the reference, which does not change.
        names: names in the table, and `patch:pkg.mod:fn` for the user's patches.
        example: a feed to compare the names of the copy's outputs with eager's.

    Raises:
        UsageError: the rewrite or patch does not exist.
        CheckpointError: a patch raised, returned no module, wrote into the reference's weights,
            or changes the outputs' names.
        ConversionError: the module cannot be copied, or a rewrite fails.
    """
    if not names:
        yield eager
        return
    key = tuple(names)
    outputs = () if example is None else eager.names(example)
    with _check_patches(eager, key), ExitStack() as stack:
        copied = _make_copy(eager, key)
        stack.enter_context(fresh_type_store())  # the copy's class has the name of the reference's
        for name in key:
            if not name.startswith(PATCH):
                stack.enter_context(_find_rewrite(name).during(copied.module))
        if example is not None:
            _check_outputs(copied, outputs, example, key)
        yield copied


def suggest_rewrites(eager: Eager, evidence: RefusalEvidence) -> tuple[tuple[str, ...], ...]:
    """Return sets of rewrites to try, the most promising first.

    Each suitable rewrite stands alone first, to change no more than necessary; the last set
    combines all that may be combined.
    """
    import torch

    if isinstance(eager.module, torch.jit.ScriptModule):
        return ()
    found = [rewrite for rewrite in REWRITE_TABLE if rewrite.may_help(eager.module, evidence)]
    found.sort(key=lambda rewrite: not rewrite.is_answer(evidence))
    joined = tuple(rewrite.name for rewrite in found if not rewrite.alone)
    return (*((rewrite.name,) for rewrite in found), *([joined] if len(joined) > 1 else []))


def match_rewrites(
    eager: Eager, evidence: RefusalEvidence, *, exclude: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the rewrites that answer the evidence, without the excluded ones."""
    return tuple(
        rewrite.name
        for rewrite in REWRITE_TABLE
        if rewrite.name not in exclude
        and rewrite.is_answer(evidence)
        and rewrite.may_help(eager.module, evidence)
    )


def describe_rewrite(name: str) -> str:
    """Describe a rewrite for `captured with ...`."""
    if name.startswith(PATCH):
        return f"--patch {name.removeprefix(PATCH)}"
    return f"{name}: {_find_rewrite(name).summary}"


def _find_rewrite(name: str) -> Rewrite:
    found = next((one for one in REWRITE_TABLE if one.name == name), None)
    if found is None:
        raise unknown_name_error("rewrite", name, [one.name for one in REWRITE_TABLE])
    return found


def _make_copy(eager: Eager, names: tuple[str, ...]) -> Eager:
    """Return the cached copy with these rewrites."""
    copies = _COPIES.setdefault(eager, {})
    if names not in copies:
        module = copy_sharing_weights(eager.module)
        for name in names:
            if name.startswith(PATCH):
                module = apply_patch(module, name.removeprefix(PATCH))
            else:
                module = _apply_change(module, _find_rewrite(name))
        copies[names] = eager.with_module(module)
    return copies[names]


def _apply_change(module: Module, rewrite: Rewrite) -> Module:
    try:
        return rewrite.change(module)
    except Exception as error:  # rewrites change internals of the user's module
        raise ConversionError(
            f"the rewrite {rewrite.name} fails on this model: {first_line(error)}",
            hint=Hint("change the copy yourself with ", Option("patch", "PKG.MOD:FN")),
            option="patch",
        ) from error


@contextmanager
def _check_patches(eager: Eager, names: Sequence[str]) -> Iterator[None]:
    """Check that patches do not write into the reference's weights."""
    patches = [name.removeprefix(PATCH) for name in names if name.startswith(PATCH)]
    before = weight_checksums(eager.module) if patches else {}
    try:
        yield
    finally:
        if patches:
            check_unmodified(eager.module, before, f"--patch {', '.join(patches)}")


def _check_outputs(
    copied: Eager, outputs: Sequence[str], example: Feed, names: Sequence[str]
) -> None:
    """Check that the copy's outputs have the reference's names."""
    patches = [name.removeprefix(PATCH) for name in names if name.startswith(PATCH)]
    what = f"--patch {', '.join(patches)}" if patches else f"the rewrite {', '.join(names)}"
    kind = CheckpointError if patches else ConversionError
    hint = "return the same outputs as the model, in the same order"
    try:
        given = copied.names(example)
    except CheckpointError as error:
        raise kind(f"with {what}, {error.message}", hint=hint) from error
    if tuple(given) != tuple(outputs):
        raise kind(
            f"with {what} the model returns {', '.join(given)} instead of {', '.join(outputs)}",
            hint=hint,
        )


def describe_misfit(names: Sequence[str], eager: Eager, example: Feed) -> str:
    """Return why the rewrites cannot be applied to the model; empty if they can."""
    try:
        with apply_rewrites(eager, names, example=example):
            return ""
    except ConversionError as error:
        return error.message
