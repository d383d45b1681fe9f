"""The JSON Schema of modelc.toml takes and refuses what the reader does."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from modelc.core.errors import UsageError
from modelc.projects.project_reader import read_project
from modelc.projects.schema import SCHEMA_FILE
from modelc.projects.setting_keys import GATE_KEYS, LIMIT_KEYS, MODEL_KEYS, RUN_KEYS

SCHEMA: Any = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)
DIGITS = '[models.digits]\ncheckpoint = "d.pt"\n'
TAKEN = [
    "",
    DIGITS,
    """\
out = "o"
jobs = 2
memory = "8 GB"
timeout = 90
keep-going = true
cache-dir = "c"
cache-limit = "20 GiB"
remote-cache = "s3://b/d"
report = ["html", "junit"]
""",
    f"{DIGITS}to = ['onnx', 'openvino:fp16']\nprecision = ['fp32', 'int8']\n",
    f"{DIGITS}to = 'onnx'\nfeeds = 5\natol = 1\nsearch = 0.5\nmax-drop = 0.005\n",
    "[defaults]\nseed = 0\nmax-drop = '0.5%'\n[defaults.gates]\nmax-size = '50 MB'\n",
    f"{DIGITS}[models.digits.gates.'*-int8']\nmax-latency-ratio = 1.5\nmax-drop = '1%'\n",
    f"{DIGITS}tolerance = ['min-sqnr=60', 'logits:atol=1']\n",
    f"{DIGITS}[models.digits.tolerance.logits]\nmin-agreement = 0.9\n",
    "[tolerance]\nfloor-factor = 8\n",
    f"{DIGITS}optimization-level = 5\nhardware-compatible = 'ampere-plus'\nplugins = 'a.so'\n",
]
REFUSED = [
    "seed = 3\n",
    "jobs = 0\n",
    "jobs = '2'\n",
    "memory = '8 apples'\n",
    "timeout = '5 weeks'\n",
    "timeout = 0\n",
    "keep-going = 1\n",
    "[defaults]\ncheckpoint = 'd.pt'\n",
    "[defaults]\njobs = 1\n",
    "[models.'a/b']\ncheckpoint = 'd.pt'\n",
    "[models.'a.']\ncheckpoint = 'd.pt'\n",
    f"{DIGITS}min_sqnr = 3\n",
    f"{DIGITS}feeds = 4\n",
    f"{DIGITS}feeds = 5.5\n",
    f"{DIGITS}seed = -1\n",
    f"{DIGITS}search = 0\n",
    f"{DIGITS}half-io = 'yes'\n",
    f"{DIGITS}precision = 'int2'\n",
    f"{DIGITS}capture = 'magic'\n",
    f"{DIGITS}to = []\n",
    f"{DIGITS}to = [1]\n",
    f"{DIGITS}method = ' '\n",
    f"{DIGITS}max-drop = 5\n",
    f"{DIGITS}max-drop = 'much'\n",
    f"{DIGITS}gates = 3\n",
    f"{DIGITS}[models.digits.gates]\nmax-sise = 3\n",
    f"{DIGITS}[models.digits.gates.'*']\nmax-latency-ratio = 0\n",
    f"{DIGITS}[models.digits.tolerance]\nmin-cosine = 2\n",
    f"{DIGITS}optimization-level = 6\n",
    "models = 3\n",
]


def read(text: str, folder: Path) -> None:
    (folder / "modelc.toml").write_text(text)
    read_project(folder / "modelc.toml")


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("text", TAKEN)
def test_both_take(text: str, tmp_path: Path) -> None:
    read(text, tmp_path)
    assert not list(VALIDATOR.iter_errors(tomllib.loads(text)))


@pytest.mark.parametrize("text", REFUSED)
def test_both_refuse(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read(text, tmp_path)
    assert list(VALIDATOR.iter_errors(tomllib.loads(text)))


def test_every_key_is_described_in_its_place() -> None:
    top = SCHEMA["properties"]
    model = top["models"]["additionalProperties"]["properties"]
    assert {*RUN_KEYS, "defaults", "models", "tolerance", "ensembles"} == set(top)
    assert set(model) == {*MODEL_KEYS, "gates", "tolerance", "meta", "parts"}
    assert set(top["defaults"]["properties"]) == set(model) - {"checkpoint", "parts"}
    assert set(model["gates"]["properties"]) == set(GATE_KEYS)
    assert set(top["tolerance"]["properties"]) == set(LIMIT_KEYS)
    assert not [name for name, one in {**top, **model}.items() if not one["description"]]


def test_names_of_formats_are_offered_and_others_are_taken() -> None:
    known = SCHEMA["properties"]["defaults"]["properties"]["to"]["anyOf"][0]["anyOf"][0]["enum"]
    assert {"onnx", "onnx:int8"} <= set(known)
    assert not list(VALIDATOR.iter_errors(tomllib.loads("[defaults]\nto = 'of-a-plugin'\n")))
