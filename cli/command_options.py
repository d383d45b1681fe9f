"""Flags of a command from the option table: `with_options` adds them to its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import ErrorCode, Hint, UsageError
from ..pipeline.option_spec import Given, OptionSpec, Panel, ValueKind
from ..pipeline.option_table import options_of

Command = Callable[..., None]
_TYPES = {ValueKind.TRUTH: bool, ValueKind.WHOLE: int, ValueKind.NUMBER: float}
_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


def with_options(command: str) -> Callable[[Command], Command]:
    """Decorate the function of a command with the flags that the option table has for it.

    The function keeps its own arguments and options. As `given` it gets those options of the table
    that the user gave, by name; an option that was not given is not among them.
    """
    rows = options_of(command)

    def decorate(function: Command) -> Command:
        own = inspect.signature(function, eval_str=True).parameters
        takes_context = "context" in own

        def run(context: typer.Context, **values: Any) -> None:
            table = {row: values.pop(_parameter_name(row)) for row in rows}
            given = {
                row.name: [part for text in value for part in text.split(",")]
                if row.many and row.commas
                else value
                for row, value in table.items()
                if _is_given(row, context)
            }
            more = {"context": context} if takes_context else {}
            function(**values, **more, given=given)

        mine = [one for name, one in own.items() if name not in ("context", "given")]
        flags = [*filter(_panel_of, mine), *(_make_parameter(row, command) for row in rows)]
        order = list(Panel)
        flags.sort(key=lambda one: order.index(Panel(_panel_of(one))))
        arguments = [one for one in mine if not _panel_of(one)]
        first = inspect.signature(run, eval_str=True).parameters["context"]
        parameters = [one.replace(kind=_KEYWORD_ONLY) for one in (first, *arguments, *flags)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = function.__name__, _join_lines(function.__doc__ or "")
        return run

    return decorate


def _join_lines(text: str) -> str:
    """Put each paragraph on one line: typer would keep the breaks, and the terminal add its own."""
    return "\n\n".join(" ".join(one.split()) for one in text.split("\n\n"))


def _parameter_name(row: OptionSpec) -> str:
    name = row.name.replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def _is_given(row: OptionSpec, context: typer.Context) -> bool:
    """Whether the user gave the option, on the command line or as an environment variable."""
    source = context.get_parameter_source(_parameter_name(row))
    return source is not None and source.name != "DEFAULT"


def _panel_of(parameter: inspect.Parameter) -> str:
    """The panel of an option; empty for an argument."""
    for one in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(one, typer.models.OptionInfo):
            return str(one.rich_help_panel)
    return ""


def _make_parameter(row: OptionSpec, command: str) -> inspect.Parameter:
    """Make the parameter from which typer creates the flag."""
    kind, default = _type_and_default(row)
    required = command in row.required
    info = typer.Option(
        *(row.flags or (f"--{row.name}",)),
        help=row.help.replace("[", r"\["),
        metavar=row.metavar,
        envvar=row.env,
        rich_help_panel=row.panel,
        autocompletion=_complete_targets if row.name == "to" else None,
    )
    return inspect.Parameter(
        _parameter_name(row),
        _KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[kind if required or default is not None else kind | None, info],
    )


def _type_and_default(row: OptionSpec) -> tuple[Any, object]:
    """Return the type that the command line parses, and the default that the help shows."""
    if row.many:
        return list[str], None
    default = None if row.recorded else row.default
    if row.lists_choices:
        make_enum: Any = StrEnum  # the functional form, whose members mypy cannot know
        choice = make_enum("Choice", {one: one for one in row.choices})
        return choice, None if default is None else choice(str(default))
    if row.kind is ValueKind.TRUTH:
        return bool, default
    if row.kind is ValueKind.PATH and not row.words:
        return Path, None if default is None else Path(str(default))
    return _TYPES.get(row.kind, str), default


def _complete_targets(incomplete: str) -> list[str]:
    """Names of targets for shell completion."""
    from ..converters.registry import TARGETS

    return [target.NAME for target in TARGETS if target.NAME.startswith(incomplete)]


def refuse_others(given: Given, allowed: Collection[str], where: str, hint: str | Hint) -> None:
    """Reject a given option outside of `allowed`, as it would have no effect.

    Raises:
        UsageError: there is such an option.
    """
    refuse(given, [name for name in given if name not in allowed], where, hint)


def refuse(given: Given, names: Iterable[str], where: str, hint: str | Hint) -> None:
    """Reject these options if given, as they would have no effect.

    Raises:
        UsageError: one of them is given.
    """
    for name in names:
        if given.get(name) is not None:
            raise UsageError(
                f"--{name} has no effect {where}",
                hint=hint,
                code=ErrorCode.NO_EFFECT,
                option=name,
            )
