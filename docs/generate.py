"""Writes what comes from code: commands, options, targets, error codes, and schemas.

`make docs` writes them; `python docs/generate.py --check` exits 1 where one is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from modelc.cli.app import make_app
from modelc.converters.registry import BUILT_IN
from modelc.core.kinds import ErrorCode, ReasonCode
from modelc.pipeline.manifest_file import json_schema
from modelc.projects.schema import json_schema as project_schema

ROOT = Path(__file__).resolve().parent.parent
DIGITS = "sample_models/digits.safetensors --model sample_models.digits:build"
INPUT = '--input "x:float32[batch=1..8,1,8,8]"'
EXAMPLES = {
    "export": f"modelc export {DIGITS} {INPUT} --to onnx --to openvino:fp16 -o out",
    "build-ov": "modelc build-ov out/model.onnx --fp16 -o out",
    "build-trt": "modelc build-trt out/model.onnx --int8 --calib sample_models/digits_calib -o out",
    "bench": "modelc bench out --batch 1,8",
    "run": "modelc run --only onnx,int8",
    "validate": "modelc validate out",
    "cache": "modelc cache gc --limit 2GB --older-than 30d",
    "calibrate": f"modelc calibrate sample_models/digits_calib {INPUT}",
    "config": "modelc config --set seed=3",
    "debug": "modelc debug out/model.onnx",
    "doctor": "modelc doctor",
    "finish": "modelc finish --all -o out",
    "merge": "modelc merge --remote-cache s3://bucket/modelc --run-id nightly-42 -o out",
    "init": f"modelc init {DIGITS}",
    "inspect": "modelc inspect out/model.onnx",
    "pack": "modelc pack out --to triton -o repository",
    "report": "modelc report out --report html,md",
    "sbom": "modelc sbom out -o sbom.json",
    "targets": "modelc targets",
    "verify": "modelc verify out",
}
MAKING = "0 passed, 1 rejected, 2 usage, 3 checkpoint, 4 missing, 5 conversion, 6 run"
CODES = {
    "bench": "0 measured, 1 slower than with --compare, 2 usage, 3 checkpoint, 4 missing, "
    "6 a row could not be run",
    "export": MAKING,
    "build-ov": MAKING,
    "build-trt": f"{MAKING}; 4 as well where only the engine is pending",
    "validate": "0 passed, 1 rejected, 2 usage, 3 checkpoint, 4 missing, 6 run",
    "run": f"{MAKING}; 1 as well where a gate is broken, or anything is worse than BASE",
    "cache": "0 done; of verify 1 where anything was wrong; 2 usage",
    "calibrate": "0 usable, 1 not, 2 usage",
    "config": "0 shown, or sound with --check; 2 usage; 4 missing",
    "debug": "0 no layer is wrong, 1 one was named, 2 usage, 3 checkpoint, 4 missing, 6 run",
    "doctor": "0 nothing broken, 4 something installed cannot work",
    "finish": "0 passed, 1 rejected, a gate is broken or a file changed, 2 usage, 3 checkpoint, "
    "4 still pending, 5 conversion, 6 run",
    "merge": "those of a run of all models: 0 passed, 1 rejected, a gate is broken or anything is "
    "worse than BASE, else that of the first part that failed; 2 the parts are not one run",
    "init": "0 written, 2 usage, 3 checkpoint",
    "inspect": "0 shown, 2 usage, 3 unsafe, or a checkpoint that does not run; 6 unreadable",
    "pack": "0 packed, or nothing is wrong; 1 --check found a fault; 2 usage",
    "report": "0 written; 1 with --fail-on-regression where anything got worse, 2 usage",
    "sbom": "0 written, 2 usage or not as recorded, 4 missing",
    "targets": "0",
    "verify": "0 nothing is wrong, 1 something is, 2 usage, 4 missing",
}


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check
    stale = [path for path, text in pages() if not path.exists() or path.read_text() != text]
    for path, text in pages():
        if path in stale and not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{'out of date' if check else 'wrote'}: {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


def pages() -> Iterator[tuple[Path, str]]:
    """Every page with its text."""
    yield ROOT / "core" / "manifest.schema.json", json.dumps(json_schema(), indent=1) + "\n"
    yield ROOT / "docs" / "targets.md", targets_page()
    yield ROOT / "docs" / "errors.md", errors_page()
    group: Any = typer.main.get_command(make_app())
    schema = project_schema()
    yield ROOT / "projects" / "modelc.schema.json", json.dumps(schema, indent=1) + "\n"
    for name, command in group.commands.items():
        yield ROOT / "docs" / "commands" / f"{name}.md", command_page(name, command)
    yield ROOT / "docs" / "commands.md", commands_page(group.commands)
    yield ROOT / "docs" / "options.md", options_page(group.commands)


def command_page(name: str, command: Any) -> str:
    """What one command does, its arguments and options, its exit codes, an example."""
    if hasattr(command, "commands"):
        return group_page(name, command)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(["modelc", name, *(p.name.upper() for p in arguments), "[OPTIONS]"])
    lines = [f"# modelc {name}", "", command.help, "", f"    {usage}", ""]
    lines += [
        *_parameter_tables(command.params),
        f"Exit codes: {CODES[name]}.",
        "",
        "```",
        EXAMPLES[name],
        "```",
        "",
    ]
    return "\n".join(lines)


def group_page(name: str, group: Any) -> str:
    """As `command_page`, of a command that has further ones below it."""
    lines = [f"# modelc {name}", "", group.help, ""]
    for below, command in group.commands.items():
        lines += [f"## modelc {name} {below}", "", command.help, ""]
        lines += _parameter_tables(command.params)
    lines += [f"Exit codes: {CODES[name]}.", "", "```", EXAMPLES[name], "```", ""]
    return "\n".join(lines)


def _parameter_tables(parameters: Sequence[Any]) -> Iterator[str]:
    """A table of the arguments, and one for each panel of the help, in its order."""
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    if arguments:
        yield from ("| argument | |", "| --- | --- |")
        yield from (f"| `{one.name.upper()}` | {_plain(one.help)} |" for one in arguments)
        yield ""
    shown = [one for one in parameters if one not in arguments and one.name != "help"]
    for panel, rows in groupby(shown, key=lambda option: str(option.rich_help_panel)):
        yield from (f"| {panel} | | default |", "| --- | --- | --- |", *map(_row, rows), "")


def _row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len))
    choices = type(option.default) if isinstance(option.default, Enum) else ()
    values = option.metavar or ", ".join(str(choice) for choice in choices)
    value = f" `{values}`" if values else ""
    default = "required" if option.required else _default(option.default)
    return f"| {names}{value} | {_plain(option.help)} | {default} |"


def _default(value: object) -> str:
    if value is None or value is False or value == []:
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _plain(text: str | None) -> str:
    """Help fit for a table."""
    return _unescaped(text).replace("|", "\\|")


def _unescaped(text: str | None) -> str:
    """Help without rich's escapes."""
    return (text or "").replace("\\[", "[")


def targets_page() -> str:
    """The table of targets."""
    lines = [
        "# Targets",
        "",
        "`modelc targets` says which of them are ready on your machine, and what is missing.",
        "",
        "| target | what it is | file | made from | captures, in order | precisions | devices |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for target in BUILT_IN:
        cells = (
            f"`{target.NAME}`",
            target.SUMMARY,
            f"`model{target.SUFFIX}`",
            ", ".join(dict.fromkeys(target.MADE_FROM.values())),
            ", ".join(target.CAPTURES),
            ", ".join(target.MADE_FROM),
            ", ".join(target.DEVICES),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def errors_page() -> str:
    """The codes of errors and of the reasons of verdicts: what each means, and what to do."""
    lines = [
        "# Error codes",
        "",
        "Texts of messages may change, codes do not. The hint of a message says more than this",
        "page. The [exit code](exit_codes.md) of a command depends on the kind of its error.",
        "",
        "## Errors",
        "",
        "`error.code` in Python, `errors[].code` with `--json`. It may be empty.",
        "",
        *_code_table(ErrorCode),
        "",
        "## Reasons of verdicts",
        "",
        "`verdicts[].reasons[].code` in [manifest.json](manifest.md): why it was rejected.",
        "",
        *_code_table(ReasonCode),
    ]
    return "\n".join([*lines, ""])


def _code_table(codes: Iterable[ErrorCode | ReasonCode]) -> Iterator[str]:
    yield from ("| code | meaning | what to do |", "| --- | --- | --- |")
    yield from (f"| `{one}` | {one.meaning} | {one.remedy} |" for one in codes)


def commands_page(commands: Mapping[str, Any]) -> str:
    """The table of commands."""
    lines = [
        "# Commands",
        "",
        "`modelc COMMAND --help` prints what a command's page has.",
        "",
        "| command | what it does |",
        "| --- | --- |",
    ]
    for name, command in commands.items():
        first = _plain(command.help).split("\n\n")[0].replace("\n", " ")
        lines.append(f"| [`{name}`](commands/{name}.md) | {first} |")
    return "\n".join([*lines, ""])


def options_page(commands: Mapping[str, Any]) -> str:
    """Every option by its name, with the commands that have it."""
    lines = [
        "# Options",
        "",
        "Every option, and the commands that have it. The keys of a model in [modelc.toml](run.md)",
        "are the options of `export` by their names, without the dashes in front.",
        "",
        "| option | what it does | commands |",
        "| --- | --- | --- |",
    ]
    found: dict[str, list[tuple[str, Any]]] = {}
    for name, command in commands.items():
        for option in _options_of(command):
            found.setdefault(option.opts[-1], []).append((name, option))
    for long, uses in sorted(found.items()):
        texts = dict.fromkeys(_plain(option.help) for _, option in uses)
        pages = dict.fromkeys(f"[{name}](commands/{name}.md)" for name, _ in uses)
        lines.append(f"| `{long}` | {'<br>'.join(texts)} | {', '.join(pages)} |")
    return "\n".join([*lines, ""])


def _options_of(command: Any) -> Iterator[Any]:
    """The options of a command, and of those below it."""
    for below in getattr(command, "commands", {}).values():
        yield from _options_of(below)
    yield from (
        one for one in command.params if one.param_type_name == "option" and one.name != "help"
    )


if __name__ == "__main__":
    sys.exit(main())
