"""The smallest part that shows the fault, as files that run without modelc."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ...core.probe import Probe
from ...core.whole import flush_file
from ...reports.words import one_line
from ..folder import refuse_links
from .refine import Culprit

DEBUG_FOLDER = "debug"  # the folder beside the artifacts
_MAX_NAME = 100  # characters of a folder's name
_MAX_ABOUT = 2000  # characters

_SCRIPT = '''"""Runs the part of {artifact} that implements {module}, and prints its error.

{about}
"""

from pathlib import Path

import numpy as np

{loader}

HERE = Path(__file__).parent
INPUTS = {inputs}
OUTPUT = {output}


def main() -> None:
    held = np.load(HERE / "inputs.npz")
    given = {{name: held[key] for key, name in INPUTS.items()}}
    expected = np.load(HERE / "expected.npz")["expected"].astype(np.float64)
    made = run(HERE / {model}, given, OUTPUT).astype(np.float64)
    gap = np.abs(made - expected)
    signal, noise = float(np.sum(expected**2)), float(np.sum(gap**2))
    ratio = "exact" if noise == 0 else f"{{10 * np.log10(max(signal, 1e-300) / noise):.1f}} dB"
    peak = np.abs(expected).max()
    print(f"{{OUTPUT}}: SQNR {{ratio}}, largest error {{gap.max():.6g}} of {{peak:.6g}}")


if __name__ == "__main__":
    main()
'''


def write_reproducer(
    culprit: Culprit, probe: Probe, folder: Path, *, artifact: str, about: str
) -> Path:
    """Write model, inputs, expected result and script; returns their folder.

    Args:
        culprit: the part.
        probe: the artifact.
        folder: the run's output folder.
        artifact: its file, for the script's first line.
        about: what was found, in a line.
    """
    place = folder / DEBUG_FOLDER / _file_name(culprit.node.name)
    refuse_links(folder, f"{DEBUG_FOLDER}/{place.name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=place.parent) as name:
        draft = Path(name) / place.name
        draft.mkdir()
        _write_files(draft, culprit, probe, artifact=artifact, about=about)
        for path in draft.rglob("*"):
            if path.is_file():
                flush_file(path)
        if place.exists():
            shutil.rmtree(place)
        draft.rename(place)
    return place


def _file_name(node: str) -> str:
    """A node's name as that of a folder: a model may call its nodes `..`, or longer than a name."""
    return re.sub(r"[^\w.-]+", "_", node)[:_MAX_NAME].strip(".") or "node"


def _quote(text: str) -> str:
    """Foreign text for the inside of a docstring: it may neither end it nor begin a line."""
    return one_line(text, _MAX_ABOUT).replace("\\", "/").replace('"', "'")


def _write_files(place: Path, culprit: Culprit, probe: Probe, *, artifact: str, about: str) -> None:
    import numpy as np

    model = probe.extract(culprit.given, [culprit.tensor], place)
    keys = {f"input_{i}": name for i, name in enumerate(culprit.given)}
    inputs: dict[str, Any] = {key: culprit.given[name] for key, name in keys.items()}
    np.savez(place / "inputs.npz", **inputs)
    np.savez(place / "expected.npz", expected=culprit.expected)
    text = _SCRIPT.format(
        artifact=_quote(artifact),
        module=_quote(culprit.module or "the model's own forward"),
        about=_quote(about),
        loader=probe.loader.strip(),
        inputs=json.dumps(keys, indent=4),
        output=json.dumps(culprit.tensor),
        model=json.dumps(model),
    )
    (place / "reproduce.py").write_text(text, encoding="utf-8")
