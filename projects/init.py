"""`modelc init`: a commented modelc.toml from what checkpoints say."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..converters.registry import TARGETS, prepares
from ..core.contract import Native, Target
from ..core.errors import ModelcError, UsageError
from ..core.whole import drafted
from ..sources.describing import Described, describe, first_layer
from .existing import FACTORY
from .faults import each_of
from .keys import RESERVED
from .names import safe_name
from .orders import plan_project
from .reading import read_project

_MANY = 100  # models of one call


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A modelc.toml that was written: its models, and what is left to be edited in it."""

    file: Path
    models: tuple[str, ...]
    described: tuple[Described, ...]
    left: tuple[ModelcError, ...]


def begin_project(
    checkpoints: Sequence[Path],
    file: Path,
    *,
    model: str | None = None,
    force: bool = False,
    targets: tuple[Target, ...] = TARGETS,
) -> Begun:
    """Write a modelc.toml for checkpoints, and read it back.

    Args:
        checkpoints: one table each.
        file: where; nothing there is replaced without `force`.
        model: `package.module:factory` of them all; only then code of theirs is imported.
        force: replace a file that is there.
        targets: the table of formats.

    Raises:
        UsageError: the file is there, or cannot be written; there is no such checkpoint or factory.
        CheckpointError: a checkpoint is none, or is damaged.
    """
    if file.exists() and not force:
        raise UsageError(f"{file} is there", hint="name another with -o, or add --force")
    described = tuple(describe(path, model) for path in checkpoints)
    names = _names(checkpoints)
    text = "".join(_lines(described, names, file.parent, model, targets))
    try:
        with drafted(file) as draft:
            draft.write_text(text, encoding="utf-8")
            read_project(draft)  # a fault here would be ours, and nothing is left behind
    except OSError as error:
        raise UsageError(
            f"cannot write {file}: {error.strerror}", hint="give another -o"
        ) from error
    return Begun(file=file, models=names, described=described, left=_left(file))


def _left(file: Path) -> tuple[ModelcError, ...]:
    """What a plan of the file still finds wrong."""
    try:
        plan_project(file)
    except ModelcError as error:
        return each_of(error)
    return ()


def _names(checkpoints: Iterable[Path]) -> tuple[str, ...]:
    """A name for each, told apart where case does not count."""
    found: dict[str, str] = {}
    for path in checkpoints:
        stem = _name(path.resolve())
        name = stem
        number = 2
        while name.lower() in found:
            name, number = f"{stem[:58]}-{number}", number + 1
        found[name.lower()] = name
    return tuple(found.values())


def _name(path: Path) -> str:
    """The file's or the folder's name; the folder's for a file that is called `model`, say."""
    own = path.name if path.is_dir() else path.stem
    return safe_name(path.parent.name if own in RESERVED and path.parent.name else own)


def _lines(
    described: Sequence[Described],
    names: Sequence[str],
    folder: Path,
    model: str | None,
    targets: tuple[Target, ...],
) -> Iterator[str]:
    yield _HEAD
    yield from _defaults(targets)
    for one, name in zip(described, names, strict=True):
        yield from _model(one, name, folder, model)
    yield _TAIL


_HEAD = """\
# What modelc makes and what must hold of it: modelc run does it, modelc config shows it.
# Every key of a model is an option of modelc export by its name; paths begin in this file's folder.

out = "out"              # results of a model go to out/NAME
# jobs = 2               # steps side by side
# timeout = "30 min"     # of one step
# keep-going = true      # go on with what does not depend on a step that failed

"""
_TAIL = """
# [defaults.gates]       # what every artifact must keep to, or modelc run fails
# max-size = "50 MB"
# max-latency-ratio = 1.0  # of its FP32 parent's
"""


def _defaults(targets: tuple[Target, ...]) -> Iterator[str]:
    """What holds for every model: formats that are ready here, and precision."""
    ready = [one for one in targets if one.readiness().ready and not prepares(one, targets)]
    usual = [one.NAME for one in ready if not isinstance(one, Native)]
    others = [one.NAME for one in ready if one.NAME not in usual]
    yield "[defaults]             # for every model, unless its own table says otherwise\n"
    yield f"to = [{', '.join(map(_quoted, usual))}]\n"
    if others:
        yield f"# ready here as well, with files that run code when opened: {', '.join(others)}\n"
    yield 'precision = ["fp32"]     # of each format that has it: fp32, fp16, bf16, int8\n'


def _model(one: Described, name: str, folder: Path, model: str | None) -> Iterator[str]:
    """The table of one model, with what its checkpoint says in comments."""
    path = Path(os.path.relpath(one.path, folder)).as_posix()
    yield f"\n[models.{name if '.' not in name else _quoted(name)}]\n"
    yield from (f"# {line}\n" for line in _told(one))
    yield f"checkpoint = {_quoted(path)}\n"
    if one.refused:
        yield "allow-pickle = false     # EDIT: true, only if you trust its maker: it runs code\n"
    if not one.brings_code and not one.whole:
        mark = "" if model else "  # EDIT: the function or class that builds the module"
        yield f"model = {_quoted(model or FACTORY)}{mark}\n"
    yield from _input(one)
    yield '# calib = "samples/"     # real samples; then add "int8" to precision\n'
    yield '# data = "labelled/"     # labelled; then max-drop = "1%" is what INT8 may lose\n'


def _told(one: Described) -> Iterator[str]:
    if one.refused:
        yield f"{one.kind}, not opened: {_line(one.refused.removeprefix(str(one.path)).strip())}"
        return
    if not one.tensors:
        yield f"{one.kind}: it brings its own code, and was not opened"
        return
    dtypes = ", ".join(dict.fromkeys(note.dtype for note in one.tensors))
    yield f"{one.kind}: {len(one.tensors)} tensors, {one.parameters:,} numbers, {dtypes}"
    first = first_layer(one.tensors)
    if first is not None and not one.brings_code:
        yield f"its first layer seems to be {_line(str(first))}"


def _input(one: Described) -> Iterator[str]:
    """The line of the inputs; a comment where the checkpoint or the model says them itself."""
    specs = ", ".join(map(_quoted, one.inputs))
    if not one.inputs:
        yield "# input = [...]          # the checkpoint says them; give them for other sizes\n"
    elif one.certain:
        yield f"# input = [{specs}]  # as the model says itself\n"
    else:
        yield f"input = [{specs}]  # EDIT: name, sizes, values\n"


def _quoted(text: str) -> str:
    """A text as TOML has it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    shown = (c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped)
    return f'"{"".join(shown)}"'


def _line(text: str) -> str:
    """Names that come from a file, fit for one line of comment."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain if len(plain) <= _MANY else plain[: _MANY - 1] + "…"
