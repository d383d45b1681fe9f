"""Commands that repeat the run of a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote

from ..core.manifest import Manifest
from ..core.nested_values import is_loader_spec
from .text_format import escape_control

EXAMPLE_FOLDER = "out"  # placeholder: a manifest does not know its folder
_WORDS = {"capture": "--capture", "opset": "--opset", "device": "--device",
          "calibration": "--calib", "quantizer": "--quantizer",
          "calib_method": "--calib-method", "calib_samples": "--calib-samples",
          "calib_select": "--calib-select", "calib_seed": "--calib-seed",
          "preprocess": "--preprocess", "atol": "--atol", "rtol": "--rtol",
          "min_sqnr": "--min-sqnr", "capture_timeout": "--capture-timeout",
          "search": "--search", "sensitivity": "--sensitivity",
          "max_trials": "--max-trials", "data": "--data",
          "metric": "--metric", "metric_output": "--metric-output",
          "max_drop": "--max-drop"}  # fmt: skip
_LISTS = {"to": "--to", "inputs": "--input", "keep_fp": "--keep-fp", "tolerance": "--tolerance",
          "accept_branch": "--accept-branch", "static": "--static", "patch": "--patch",
          "custom_op": "--custom-op", "for": "--for"}  # fmt: skip
_SWITCHES = {"external_data": "--external-data", "half_io": "--half-io", "narrow": "--narrow",
             "guard": "--guard"}  # fmt: skip
_DEFAULT_VALUES = ("auto", "default", "false")  # same as without the option


@dataclass(frozen=True, kw_only=True)
class ReplayCommand:
    """A command line and its purpose."""

    purpose: str
    text: str


def list_commands(manifest: Manifest) -> tuple[ReplayCommand, ...]:
    """Return commands that repeat the export and the validation, finish, and replay feeds."""
    return tuple(_make_commands(manifest))


def _make_commands(manifest: Manifest) -> Iterator[ReplayCommand]:
    if manifest.order.get("to"):
        yield ReplayCommand(purpose="export again", text=_export_command(manifest))
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


def _export_command(manifest: Manifest) -> str:
    """Return the `modelc export`, with paths relative to the parent of the manifest's folder."""
    checkpoint = manifest.checkpoint
    words = ["modelc", "export", _path_from_parent(checkpoint.path)]
    if checkpoint.factory:
        words += ["--model", checkpoint.factory]
    for key, value in checkpoint.factory_args.items():
        words += ["--model-arg", f"{key}={value}"]
    words += ["--weights-key", checkpoint.weights_key] if checkpoint.weights_key else []
    words += ["--method", checkpoint.method] if checkpoint.method else []
    for name in checkpoint.drop_outputs:
        words += ["--drop-output", name]
    words += [] if checkpoint.strict else ["--no-strict"]
    words += ["--allow-pickle"] if checkpoint.allow_pickle else []
    if manifest.feeds.samples:
        samples = manifest.feeds.samples
        words += ["--samples", samples if is_loader_spec(samples) else _path_from_parent(samples)]
    words += [*_order_options(manifest.order), "--feeds", str(manifest.feeds.count)]
    words += ["--seed", str(manifest.feeds.seed), "-o", EXAMPLE_FOLDER]
    return escape_control(" ".join(quote(word) for word in words))


def _path_from_parent(path: str) -> str:
    """Convert a path relative to the manifest's folder to one relative to its parent."""
    if path.startswith("../"):
        return path.removeprefix("../")
    return path if path.startswith("/") else f"{EXAMPLE_FOLDER}/{path}"


def _order_options(order: Mapping[str, str]) -> Iterator[str]:
    for key, value in order.items():
        if value in _DEFAULT_VALUES:
            continue
        if key in _WORDS:
            yield from (_WORDS[key], value)
        elif key in _SWITCHES:
            yield _SWITCHES[key]
        elif key in _LISTS:
            for one in value.split():
                yield from (_LISTS[key], one)


def options_left_out(order: Mapping[str, str]) -> dict[str, str]:
    """Return the requested options that the command lacks: those of a single format."""
    known = {*_WORDS, *_LISTS, *_SWITCHES}
    return {key: value for key, value in order.items() if key not in known}
