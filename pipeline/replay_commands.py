"""Commands that repeat the run of a manifest, for its reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote

from ..core.manifest import Manifest
from ..core.nested_values import is_loader_spec
from ..reports.result_rows import EXAMPLE_FOLDER, ReplayCommand
from ..reports.text_format import escape_control
from .hub_source import commit_id
from .manifest_file import MANIFEST_FILE
from .option_spec import OptionSpec, ValueKind
from .option_table import options_of

_DEFAULT_VALUES = ("auto", "default", "false")  # same as without the option
_OTHER_KEYS = {"input": "inputs", "calib": "calibration"}  # names in the manifest


def list_commands(manifest: Manifest) -> Iterator[ReplayCommand]:
    """Yield commands that repeat the export and the validation, finish, and replay feeds."""
    if manifest.order.get("to"):
        options = _options_by_key()
        other = {key: value for key, value in manifest.order.items() if key not in options}
        added = ", ".join(f"{key}={value}" for key, value in other.items())
        purpose = f"export again (further options: {added})" if added else "export again"
        yield ReplayCommand(purpose=escape_control(purpose), text=_export_command(manifest))
    if manifest.artifacts:
        yield ReplayCommand(purpose="validate again", text=f"modelc validate {EXAMPLE_FOLDER}")
    for command in dict.fromkeys(pending.command for pending in manifest.pending):
        yield ReplayCommand(
            purpose="finish the pending steps", text=escape_control(f"{command} {EXAMPLE_FOLDER}")
        )
    for verdict in manifest.verdicts:
        if verdict.worst is not None and verdict.worst.replay:
            purpose = f"replay the worst feed of {verdict.artifact} ({verdict.worst.feed})"
            yield ReplayCommand(
                purpose=escape_control(purpose), text=escape_control(verdict.worst.replay)
            )


def _options_by_key() -> dict[str, OptionSpec]:
    """Return the options of export by their keys in the manifest."""
    return {
        _OTHER_KEYS.get(one.name, one.name.replace("-", "_")): one for one in options_of("export")
    }


def _export_command(manifest: Manifest) -> str:
    """Return the `modelc export`, with paths relative to the parent of the manifest's folder."""
    checkpoint = manifest.checkpoint
    place = commit_id(checkpoint.hub) or _path_from_parent(checkpoint.path)
    words = ["modelc", "export", place]
    if checkpoint.factory:
        words += ["--model", checkpoint.factory]
    for key, value in checkpoint.factory_args.items():
        words += ["--model-arg", f"{key}={value}"]
    words += ["--weights-key", checkpoint.weights_key] if checkpoint.weights_key else []
    words += ["--method", checkpoint.method] if checkpoint.method else []
    words += ["--include-preprocess"] if checkpoint.preprocess else []
    words += ["--postprocess", checkpoint.postprocess] if checkpoint.postprocess else []
    if not manifest.meta.is_empty:
        words += ["--meta", f"{EXAMPLE_FOLDER}/{MANIFEST_FILE}"]
    for name in checkpoint.drop_outputs:
        words += ["--drop-output", name]
    words += [] if checkpoint.strict else ["--no-strict"]
    words += ["--allow-pickle"] if checkpoint.allow_pickle else []
    if manifest.feeds.samples:
        samples = manifest.feeds.samples
        words += ["--samples", samples if is_loader_spec(samples) else _path_from_parent(samples)]
    if manifest.feeds.tokens is not None and manifest.feeds.tokens.source:
        words += ["--text", _path_from_parent(manifest.feeds.tokens.source)]
    words += [*_order_options(manifest.order), "--feeds", str(manifest.feeds.count)]
    words += ["--seed", str(manifest.feeds.seed), "-o", EXAMPLE_FOLDER]
    return escape_control(" ".join(quote(word) for word in words))


def _path_from_parent(path: str) -> str:
    """Convert a path relative to the manifest's folder to one relative to its parent."""
    if path.startswith("../"):
        return path.removeprefix("../")
    return path if path.startswith("/") else f"{EXAMPLE_FOLDER}/{path}"


def _order_options(order: Mapping[str, str]) -> Iterator[str]:
    options = _options_by_key()
    for key, value in order.items():
        if key not in options or value in _DEFAULT_VALUES:
            continue
        flag, spec = f"--{options[key].name}", options[key]
        if spec.kind is ValueKind.TRUTH:
            yield flag
        else:
            for one in value.split() if spec.many else [value]:
                yield from (flag, one)
