"""ONNX models that run together in one folder; the oracle is ONNX Runtime on both files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from modelc.cli import app
from modelc.core.errors import ErrorCode
from modelc.serving import onnx_folder
from modelc.serving.pack_models import check_repository
from modelc.serving.repository_kinds import ONNX, kind_of
from modelc.serving.repository_records import FaultCode

from ..nets import composed_nets

NETS = "modelc.tests.nets.composed_nets"
EMBEDDING = 2500 * 32 * 4  # bytes
FEEDS: dict[str, dict[str, Any]] = {
    "encoder": {"ids": np.arange(12).reshape(2, 6)},
    "decoder": {
        "ids": np.arange(12).reshape(2, 6),
        "memory": np.linspace(-1, 1, 384, dtype=np.float32).reshape(2, 6, 32),
    },
}


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parts with one embedding, in ONNX. Copy it to change it."""
    folder = tmp_path_factory.mktemp("tied")
    torch.manual_seed(0)
    torch.save(composed_nets.Tied().state_dict(), folder / "tied.pt")
    given = [
        "export", folder / "tied.pt", "--model", f"{NETS}:build", "--model-arg", "kind=tied",
        "--part", "encoder=encode", "--part", "decoder=decode", "--compose", f"{NETS}:read_once",
        "--input", "ids:int64[batch=1..3,seq=2..9]{0..2499}", "--to", "onnx",
        "-o", folder / "out", "-q", "--sensitivity", "0", "--no-isolate",
    ]  # fmt: skip
    assert app.run_cli([*map(str, given)]) == 0
    return folder / "out"


@pytest.fixture
def out(tied: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tied, tmp_path / "out")


def run_pack(*given: object) -> int:
    return app.run_cli(["pack", *map(str, given), "--no-isolate"])


def run_model(path: Path, feed: dict[str, Any]) -> Any:
    return ort.InferenceSession(path).run(None, feed)


def size_of(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.suffix != ".json")


def test_shared_weights_are_stored_once(out: Path, tmp_path: Path) -> None:
    assert run_pack(out, "--to", "onnx", "-o", tmp_path / "packs", "--name", "tied") == 0
    place = tmp_path / "packs" / "tied" / "1"
    names = ["decoder.onnx", "encoder.onnx", "modelc.json", "weights.data"]
    assert sorted(one.name for one in place.iterdir()) == names
    apart = sum((out / name / "model.onnx").stat().st_size for name in FEEDS)
    assert apart > 2 * EMBEDDING
    assert EMBEDDING < size_of(place) < apart - 0.9 * EMBEDDING
    for name, feed in FEEDS.items():
        onnx.checker.check_model(place / f"{name}.onnx", full_check=True)
        expected = run_model(out / name / "model.onnx", feed)
        for one, two in zip(run_model(place / f"{name}.onnx", feed), expected, strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_pack_moves_and_is_checked(out: Path, tmp_path: Path) -> None:
    assert run_pack(out, "--to", "onnx", "-o", tmp_path / "packs") == 0
    (tmp_path / "packs").rename(tmp_path / "moved")
    shutil.rmtree(out)
    assert kind_of(tmp_path / "moved") is ONNX
    found = check_repository(tmp_path / "moved")
    assert (found.faults, found.versions) == ((), ("out/1",))
    place = tmp_path / "moved" / "out" / "1"
    assert run_model(place / "encoder.onnx", FEEDS["encoder"])
    record = json.loads((place / "modelc.json").read_text(encoding="utf-8"))
    assert [*record["members"]] == ["encoder.onnx", "decoder.onnx"]
    assert record["members"]["decoder.onnx"]["verdict"]["state"] == "passed"


def change_byte(place: Path) -> None:
    raw = bytearray((place / "weights.data").read_bytes())
    raw[len(raw) // 2] ^= 1
    (place / "weights.data").write_bytes(raw)


def exchange(place: Path) -> None:
    for source, name in (("encoder", "x"), ("decoder", "encoder"), ("x", "decoder")):
        (place / f"{source}.onnx").rename(place / f"{name}.onnx")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (change_byte, FaultCode.OTHER_FILE),
        (exchange, FaultCode.OTHER_FILE),
        (lambda place: (place / "weights.data").unlink(), FaultCode.MISSING_FILE),
    ],
)
def test_a_changed_pack_is_found(
    out: Path, tmp_path: Path, change: Callable[[Path], object], code: FaultCode
) -> None:
    assert run_pack(out, "--to", "onnx", "-o", tmp_path / "packs") == 0
    change(tmp_path / "packs" / "out" / "1")
    assert code in {one.code for one in check_repository(tmp_path / "packs").faults}


def test_a_part_that_was_built_again_is_not_packed(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old pack keeps what it was made of; the new part must be judged with the other first."""
    assert run_pack(out, "--to", "onnx", "-o", tmp_path / "packs") == 0
    before = {one: one.read_bytes() for one in (tmp_path / "packs").rglob("*.*")}
    shutil.rmtree(out / "decoder")
    shutil.copytree(out / "encoder", out / "decoder")
    capsys.readouterr()
    assert run_pack(out, "--to", "onnx", "-o", tmp_path / "packs", "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == ErrorCode.NOTHING_TO_DO
    assert "decoder" in error["message"]
    assert {one: one.read_bytes() for one in (tmp_path / "packs").rglob("*.*")} == before


def test_the_same_parts_are_packed_once(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_new in (True, False):
        capsys.readouterr()
        assert run_pack(out, "--to", "onnx", "-o", tmp_path / "packs", "--json") == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert (model["version"], model["is_new"]) == (1, is_new)


def test_folders_need_a_name_together(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (out / "encoder", out / "decoder", "--to", "onnx", "-o", tmp_path / "packs")
    assert run_pack(*given, "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["option"]) == (ErrorCode.INVALID_VALUE, "name")
    assert run_pack(*given, "--name", "both") == 0
    assert (tmp_path / "packs" / "both" / "1" / "weights.data").is_file()


def test_parts_become_models_of_a_server(out: Path, tmp_path: Path) -> None:
    assert run_pack(out, "--to", "triton", "-o", tmp_path / "packs", "--name", "tied") == 0
    models = sorted(one.name for one in (tmp_path / "packs").iterdir() if one.is_dir())
    assert models == ["tied-decoder", "tied-encoder"]


def test_weights_beyond_the_limit_of_a_file_go_to_several(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_folder, "FILE_LIMIT", EMBEDDING + 100)
    assert run_pack(out, "--to", "onnx", "-o", tmp_path / "packs") == 0
    place = tmp_path / "packs" / "out" / "1"
    assert sorted(one.name for one in place.glob("*.data")) == ["2.weights.data", "weights.data"]
    expected = run_model(out / "decoder" / "model.onnx", FEEDS["decoder"])
    np.testing.assert_array_equal(run_model(place / "decoder.onnx", FEEDS["decoder"]), expected)


def test_external_weights_are_read_from_their_file(tmp_path: Path) -> None:
    """Of a model with its weights in a file, and of one with a name that leads out of it."""
    weights = np.arange(2048, dtype=np.float32)
    tensor = onnx.numpy_helper.from_array(weights, "w")
    value = onnx.helper.make_tensor_value_info("x", 1, [2048])
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    result = onnx.helper.make_tensor_value_info("y", 1, [2048])
    graph = onnx.helper.make_graph([node], "g", [value], [result], [tensor])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=0)
    shared = onnx_folder.SharedWeights()
    content = shared.add_model(path)
    assert shared.add_model(path) == content
    (file,) = shared.plan_files()
    assert (file.name, shared.repeated) == ("weights.data", weights.nbytes)
    assert b"".join(file.read_blocks()) == weights.tobytes()
