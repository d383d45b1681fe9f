"""Ensembles of modelc.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.core.errors import ModelcError
from modelc.projects.project_reader import read_project

STEP = '{ model = "digits", inputs = { x = "image" }, outputs = { y = "scores" } }'


def test_an_ensemble_is_read(tmp_path: Path) -> None:
    path = tmp_path / "modelc.toml"
    path.write_text(f'[ensembles.look]\nsteps = [{STEP}]\noutputs = ["scores"]\n')
    (ensemble,) = read_project(path).ensembles
    (step,) = ensemble.steps
    assert (ensemble.name, ensemble.outputs, step.model) == ("look", ("scores",), "digits")
    assert (dict(step.inputs), dict(step.outputs)) == ({"x": "image"}, {"y": "scores"})


@pytest.mark.parametrize(
    "text",
    [
        "ensembles = 3",
        "[ensembles.'a/b']\nsteps = []",
        "[ensembles.look]",
        "[ensembles.look]\nsteps = []",
        "[ensembles.look]\nsteps = ['digits']",
        "[ensembles.look]\nsteps = [{ model = 'digits' }]",
        "[ensembles.look]\nsteps = [{ inputs = { x = 'a' }, outputs = { y = 'b' } }]",
        "[ensembles.look]\nsteps = [{ model = 'd', inputs = { x = 1 }, outputs = { y = 'b' } }]",
        f"[ensembles.look]\nsteps = [{STEP}]\noutput = ['scores']",
        f"[ensembles.look]\nsteps = [{STEP}]\noutputs = 'scores'",
    ],
)
def test_another_form_is_an_error_at_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "modelc.toml"
    path.write_text(f"{text}\n")
    with pytest.raises(ModelcError) as caught:
        read_project(path)
    assert caught.value.place is not None
    assert caught.value.place.line == 1
