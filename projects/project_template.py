"""`modelc init`: write a commented modelc.toml for checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..checkpoints.checkpoint_description import (
    CheckpointDescription,
    describe_checkpoint,
    find_first_layer,
)
from ..checkpoints.sniff import HUGGINGFACE
from ..converters.registry import TARGETS, is_stage
from ..core.atomic_write import draft_file
from ..core.contract import Native
from ..core.errors import ErrorCode, Hint, ModelcError, Option, UsageError
from ..core.events import ignore_events
from ..core.hub_ids import HUB_SCHEME, find_hub_id
from ..pipeline.hub_source import locate_path
from ..pipeline.option_values import parse_model_args
from ..pipeline.recorded_run import is_foreign_program
from .model_orders import plan_project
from .project_faults import FACTORY_FORM, make_model_name, open_sizes, split_faults
from .project_reader import read_project
from .setting_keys import RESERVED_NAMES

_MAX_MODELS = 100  # models of one call
_EDIT = "# EDIT: "  # marks a line that only the user can complete


@dataclass(frozen=True, kw_only=True)
class TemplateEdit:
    """A line that only the user can complete: `what` it needs, and its placeholder `sizes`."""

    line: int
    key: str
    what: str
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NewProject:
    """A modelc.toml that was written: its models, the lines to edit, and other faults.

    `left` are faults that a plan finds outside of `edits`.
    """

    file: Path
    models: tuple[str, ...]
    described: tuple[CheckpointDescription, ...]
    edits: tuple[TemplateEdit, ...]
    left: tuple[ModelcError, ...]


def create_project(
    checkpoints: Sequence[Path],
    file: Path,
    *,
    model: str | None = None,
    model_args: Sequence[str] = (),
    force: bool = False,
) -> NewProject:
    """Write a modelc.toml for checkpoints, and read it back.

    Args:
        checkpoints: the checkpoints; each gets a table.
        file: the path to write; an existing file is only replaced with `force`.
        model: `package.module:factory` for all; their code is imported only if given.
        model_args: its arguments, such as `depth=50`.
        force: replace an existing file.

    Raises:
        UsageError: the file exists or cannot be written; a checkpoint or the factory does not
            exist.
        CheckpointError: a checkpoint is invalid or damaged.
    """
    if file.exists() and not force:
        raise UsageError(
            f"{file} exists",
            hint="pass another file with -o, or add --force",
            code=ErrorCode.FILE_EXISTS,
        )
    if model_args and model is None:
        raise UsageError(
            "--model-arg has no effect without --model",
            hint=Hint("add ", Option("model")),
            option="model-arg",
            code=ErrorCode.NO_EFFECT,
        )
    arguments = parse_model_args(model_args)
    described = tuple(
        replace(describe_checkpoint(locate_path(path, ignore_events), model, arguments), path=path)
        for path in checkpoints
    )
    names = _name_models(checkpoints)
    draft_of = _TemplateDraft(folder=file.parent, model=model, arguments=tuple(model_args))
    text = "".join(
        (
            _TEMPLATE_HEAD,
            *_default_lines(),
            *draft_of.models(described, names),
            _TEMPLATE_TAIL,
        )
    )
    try:
        with draft_file(file) as draft:
            draft.write_text(text, encoding="utf-8")
            read_project(draft)  # an error here is a bug, and no file is left behind
    except OSError as error:
        raise UsageError(
            f"cannot write {file}: {error.strerror}",
            hint="pass another file with -o",
            code=ErrorCode.NOT_WRITABLE,
        ) from error
    edits = tuple(_find_edits(text))
    left = _find_other_faults(file, edits)
    return NewProject(file=file, models=names, described=described, edits=edits, left=left)


def _find_edits(text: str) -> Iterator[TemplateEdit]:
    """Yield the marked lines, except comments."""
    for number, line in enumerate(text.split("\n"), start=1):
        said, mark, what = line.rpartition(_EDIT)
        if mark and not line.startswith("#"):
            key = said.partition(" = ")[0]
            yield TemplateEdit(line=number, key=key, what=what, sizes=open_sizes(said))


def _find_other_faults(file: Path, edits: Sequence[TemplateEdit]) -> tuple[ModelcError, ...]:
    """Return the faults that a plan finds in the other lines of the file."""
    known = {one.line for one in edits}
    try:
        plan_project(file)
    except ModelcError as error:
        return tuple(
            one for one in split_faults(error) if one.place is None or one.place.line not in known
        )
    return ()


def _name_models(checkpoints: Iterable[Path]) -> tuple[str, ...]:
    """Choose a name for each checkpoint, unique regardless of case."""
    found: dict[str, str] = {}
    for path in checkpoints:
        stem = name = _model_name(path)
        number = 2
        while name.lower() in found:
            name, number = f"{stem[:58]}-{number}", number + 1
        found[name.lower()] = name
    return tuple(found.values())


def _model_name(path: Path) -> str:
    """Return the name of the file, or of its folder if the file has a generic name (`model`)."""
    hub = find_hub_id(path).removeprefix(HUB_SCHEME)
    if hub:
        return make_model_name(hub.partition("@")[0].split("/")[1])
    path = path.resolve()
    own = path.name if path.is_dir() else path.stem
    return make_model_name(path.parent.name if own in RESERVED_NAMES and path.parent.name else own)


_TEMPLATE_HEAD = """\
# Models and their artifacts. `modelc run` builds them, `modelc config` shows every setting.
# Each key of a model is an option of `modelc export`; paths are relative to this file.

out = "out"              # the results of a model go to out/NAME
# jobs = 2               # models in parallel
# timeout = "30 min"     # per step
# keep-going = true      # continue with the next model after a failure

"""
_TEMPLATE_SAMPLES = """\
# calib = "samples/"     # real samples; then add "int8" to precision
# data = "labelled/"     # labelled samples; then max-drop = "1%" limits the loss of INT8
"""
_TEMPLATE_TASK = (
    '# model-arg = ["task=text-generation-merged"]  # a decoder: one graph for prompt and steps\n'
)
_TEMPLATE_TAIL = """
# [models.NAME.parts]    # a model of several parts: submodules or methods, each an artifact;
# decoder = "vae.decode" # compose = "pkg.mod:fn" in [models.NAME] is the function that calls them

# [defaults.gates]       # limits for every artifact; modelc run fails beyond them
# max-size = "50 MB"
# max-latency-ratio = 1.0  # relative to the FP32 artifact
"""


def _default_lines() -> Iterator[str]:
    """Yield the defaults for every model: formats that are ready here, and precision."""
    ready = [one for one in TARGETS if one.readiness().ready and not is_stage(one)]
    usual = [one.NAME for one in ready if not isinstance(one, Native)]
    others = [one.NAME for one in ready if one.NAME not in usual]
    yield "[defaults]             # for every model, unless its table overrides them\n"
    yield f"to = [{', '.join(map(_quote, usual))}]\n"
    if others:
        yield f"# also available here, in files that run code when opened: {', '.join(others)}\n"
    yield 'precision = ["fp32"]     # for each format that supports it: fp32, fp16, bf16, int8...\n'


@dataclass(frozen=True, kw_only=True)
class _TemplateDraft:
    """The parts that the tables of all models share."""

    folder: Path
    model: str | None
    arguments: tuple[str, ...]

    def models(
        self, described: Sequence[CheckpointDescription], names: Sequence[str]
    ) -> Iterator[str]:
        """Yield the tables, with the facts of each checkpoint in comments."""
        for one, name in zip(described, names, strict=True):
            path = find_hub_id(one.path) or Path(os.path.relpath(one.path, self.folder)).as_posix()
            yield f"\n[models.{name}]\n"
            yield from (f"# {line}\n" for line in _describe_checkpoint(one))
            yield f"checkpoint = {_quote(path)}\n"
            if one.unreadable:
                yield f"allow-pickle = false     {_EDIT}true, if you trust its author: it is code\n"
            if is_foreign_program(one.kind):
                yield f"trust = false            {_EDIT}true, if you trust its author: it is code\n"
            if not one.brings_code and not one.whole:
                yield from self._factory()
            if one.kind == HUGGINGFACE:
                yield _TEMPLATE_TASK
            yield from _input_line(one)
            yield _TEMPLATE_SAMPLES

    def _factory(self) -> Iterator[str]:
        mark = "" if self.model else f"  {_EDIT}the function or class that builds the module"
        yield f"model = {_quote(self.model or FACTORY_FORM)}{mark}\n"
        if self.arguments:
            yield f"model-arg = [{', '.join(map(_quote, self.arguments))}]\n"


def _describe_checkpoint(one: CheckpointDescription) -> Iterator[str]:
    if one.unreadable:
        reason = one.unreadable.removeprefix(str(one.path)).strip()
        yield f"{one.kind}, not opened: {_comment(reason)}"
        return
    if not one.tensors:
        yield f"{one.kind}: it contains code and was not opened"
        return
    dtypes = ", ".join(dict.fromkeys(note.dtype for note in one.tensors))
    yield f"{one.kind}: {len(one.tensors)} tensors, {one.parameters:,} numbers, {dtypes}"
    first = find_first_layer(one.tensors)
    if first is not None and not one.brings_code:
        yield f"its first layer seems to be {_comment(str(first))}"


def _input_line(one: CheckpointDescription) -> Iterator[str]:
    """Yield the line of the inputs; as a comment if the checkpoint or the model defines them."""
    specs = ", ".join(map(_quote, one.inputs))
    if not one.inputs:
        yield "# input = [...]          # the checkpoint defines them; state them for other sizes\n"
    elif one.certain:
        yield f"# input = [{specs}]  # as the model declares\n"
    else:
        yield f"input = [{specs}]  {_EDIT}name, sizes, values\n"


def _quote(text: str) -> str:
    """Quote a text as a TOML string."""
    if any("\ud800" <= c <= "\udfff" for c in text):  # bytes of a name that is not UTF-8
        raise UsageError(
            f"{text!r} cannot be written in TOML",
            hint="rename the file",
            code=ErrorCode.INVALID_VALUE,
        )
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    shown = (c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped)
    return f'"{"".join(shown)}"'


def _comment(text: str) -> str:
    """Make names from a file safe for one line of comment."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain if len(plain) <= _MAX_MODELS else plain[: _MAX_MODELS - 1] + "…"
