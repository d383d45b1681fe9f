"""`modelc verify`, `modelc sbom` and `--sign-key`: what is shown, what is loaded, how it ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from modelc.core.errors import ErrorCode
from modelc.core.records import sha256_of
from modelc.pipeline.manifest_file import encode_json
from modelc.pipeline.order import Source
from modelc.pipeline.provenance.seals import seal_document

Ran = subprocess.CompletedProcess[str]
Door = Callable[..., Ran]
PEM, NO_CIPHER = serialization.Encoding.PEM, serialization.NoEncryption()
FRAMEWORKS = ("torch", "onnxruntime", "openvino", "nncf", "transformers", "tensorrt")
ALONE = f"""
import sys
from modelc.cli.app import run_cli
code = run_cli(sys.argv[1:])
print(sorted(set({FRAMEWORKS!r}) & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A private key as PEM; `pub.pem` beside it is its public one."""
    made = ed25519.Ed25519PrivateKey.generate()
    path = tmp_path / "key.pem"
    path.write_bytes(made.private_bytes(PEM, serialization.PrivateFormat.PKCS8, NO_CIPHER))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "pub.pem").write_bytes(made.public_key().public_bytes(PEM, form))
    return path


def error_code(ran: Ran) -> str:
    """The code of the error in the document of `--json`."""
    return str(json.loads(ran.stdout)["error"]["code"])


@pytest.fixture
def gate(exports: Callable[[str], Path], tmp_path: Path) -> Path:
    return shutil.copytree(exports("gate"), tmp_path / "out")


@pytest.fixture
def gate_checkpoint(sources: Callable[[str], Source]) -> Path:
    return sources("gate").checkpoint


def test_a_sound_folder_is_shown_and_ends_with_0(digits_copy: Path, door: Door) -> None:
    ran = door("verify", digits_copy)
    assert ran.returncode == 0
    assert "0 failed" in ran.stdout
    for name in ("onnx-fp16", "openvino", "torchscript", "pt2", "checkpoint"):
        assert name in ran.stdout


def test_a_changed_file_is_named_and_ends_with_1(digits_copy: Path, door: Door) -> None:
    data = bytearray((digits_copy / "model.bin").read_bytes())
    data[len(data) // 2] ^= 1
    (digits_copy / "model.bin").write_bytes(data)
    ran = door("verify", digits_copy, "--quiet")
    assert ran.returncode == 1
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("  failed "))
    assert line.startswith("  failed openvino, files: model.bin ")


def test_json_has_every_check(digits_copy: Path, door: Door) -> None:
    ran = door("verify", digits_copy, "--json")
    document = json.loads(ran.stdout)
    assert document["passed"] is True
    checks = {(one["of"], one["what"]): one["found"] for one in document["models"][0]["checks"]}
    assert checks["onnx", "inside"] == "holds"
    assert checks["manifest", "signature"] == "unchecked"


def test_no_framework_is_loaded(digits_copy: Path, surroundings: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, "verify", str(digits_copy)],
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.strip() == "[]"


def test_what_is_signed_is_checked_with_the_key(gate: Path, key: Path, door: Door) -> None:
    public = key.with_name("pub.pem")
    assert door("verify", gate, "--key", public).returncode == 1
    assert door("validate", gate, "--sign-key", key).returncode == 0
    assert door("verify", gate, "--key", public).returncode == 0


@pytest.mark.slow
def test_judged_otherwise_without_the_key_the_signature_goes_and_that_is_told(
    gate: Path, key: Path, door: Door
) -> None:
    door("validate", gate, "--sign-key", key)
    ran = door("validate", gate, "--rejudge", "--min-sqnr", "20")
    assert ran.returncode == 0
    assert "manifest.json.sig" in ran.stderr
    assert not (gate / "manifest.json.sig").exists()
    assert door("verify", gate, "--key", key.with_name("pub.pem")).returncode == 1
    again = door("validate", gate, "--rejudge", "--sign-key", key, "--json")
    assert (again.returncode, error_code(again)) == (2, ErrorCode.NOT_SIGNED)


def test_a_key_that_is_none_is_refused_before_anything_is_done(
    gate: Path, tmp_path: Path, door: Door
) -> None:
    before = (gate / "manifest.json").read_bytes()
    (tmp_path / "key.pem").write_text("no key")
    ran = door("validate", gate, "--sign-key", tmp_path / "key.pem", "--json")
    assert (ran.returncode, error_code(ran)) == (2, ErrorCode.CORRUPT_FILE)
    assert "key.pem" in ran.stderr
    assert (gate / "manifest.json").read_bytes() == before


def test_a_key_beside_a_single_file_is_refused(gate: Path, key: Path, door: Door) -> None:
    ran = door("validate", gate / "model.torchscript.pt", "--sign-key", key, "--json")
    assert (ran.returncode, error_code(ran)) == (2, ErrorCode.NO_EFFECT)
    assert "--sign-key" in ran.stderr


def test_a_bill_of_materials_is_written_or_shown(gate: Path, tmp_path: Path, door: Door) -> None:
    shown = door("sbom", gate)
    ran = door("sbom", gate, "-o", tmp_path / "sbom.json")
    assert (shown.returncode, ran.returncode) == (0, 0)
    assert json.loads(shown.stdout)["bomFormat"] == "CycloneDX"
    assert (tmp_path / "sbom.json").read_text() == shown.stdout


PROJECT = """
[models.gate]
checkpoint = "{checkpoint}"
model = "modelc.sample_models.gate:gate"
input = ["x:float32[batch=1..4,16]"]
to = "torchscript"
feeds = 8
"""


def test_a_signed_run_signs_its_own_record(
    gate_checkpoint: Path, key: Path, door: Door, tmp_path: Path
) -> None:
    project = tmp_path / "modelc.toml"
    project.write_text(PROJECT.format(checkpoint=gate_checkpoint))
    out = tmp_path / "out"
    ran = door("run", "-f", project, "-o", out, "--no-cache", "--sign-key", key)
    assert ran.returncode == 0, ran.stderr
    public = key.with_name("pub.pem")
    assert door("verify", out, "--key", public).returncode == 0
    (out / "run.json.sig").unlink()
    found = door("verify", out, "--key", public)
    assert found.returncode == 1
    assert "failed run, signature" in found.stdout


def weaken(folder: Path) -> None:
    """Put a wrong model there, with a record whose limits let it pass."""
    import torch

    path = folder / "model.torchscript.pt"
    model = torch.jit.load(path)  # type: ignore[no-untyped-call]  # torch's own
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    torch.jit.save(model, path)
    file = folder / "manifest.json"
    document = json.loads(file.read_bytes())
    for one in document["artifacts"]:
        one["tolerance"] = {"atol": 1e6, "rtol": 1e6, "min_sqnr": -1e3, "floor_factor": None}
        for part in one["files"]:
            part["sha256"] = sha256_of(folder / part["name"])
            part["size"] = (folder / part["name"]).stat().st_size
    file.write_bytes(seal_document(encode_json({**document, "seal": ""})))


@pytest.mark.slow
def test_to_sign_no_limit_is_taken_from_the_record_that_is_signed(
    gate: Path, key: Path, door: Door
) -> None:
    weaken(gate)
    assert door("validate", gate).returncode == 0  # within the recorded limits
    ran = door("validate", gate, "--sign-key", key)
    assert ran.returncode == 1
    assert ran.stderr.count("not signed") == 1
    assert (gate / "rejected" / "model.torchscript.pt").is_file()


@pytest.mark.slow
def test_limits_that_the_key_has_signed_are_kept(gate: Path, key: Path, door: Door) -> None:
    loose = ("--tolerance", "floor-factor=1000")
    assert door("validate", gate, "--sign-key", key, *loose).returncode == 0
    ran = door("validate", gate, "--sign-key", key)
    assert ran.returncode == 0
    assert "not signed" not in ran.stderr
