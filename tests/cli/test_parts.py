"""Models of several parts as a user converts and validates them; the oracle is torch itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import modelc
from modelc.cli import app
from modelc.core.errors import ErrorCode, RunnerError, UsageError
from modelc.core.events import ignore_events
from modelc.core.manifest import Manifest
from modelc.core.part_records import PARTS_FILE, PartsManifest
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.parts import export_parts
from modelc.pipeline.parts.parts_file import list_built, read_parts
from modelc.pipeline.parts.run_parts import PartsRequest
from modelc.pipeline.recorded_run import FinishRequest

from ..nets import composed_nets
from ..reasons import has_code
from .conftest import Ran

NETS = "modelc.tests.nets.composed_nets"
AFFINE = ("affine", "chain", ("x:float32[batch=1..4,4]",), ("first=first", "second=second"))
TWO = (
    "two_encoders", "join_encoders", ("ids:int64[batch=1..3,seq=2..6]{0..29}",),
    ("small=small", "large=large", "head=head"),
)  # fmt: skip
DIFFUSION = (
    "diffusion", "sample_image",
    (
        "ids:int64[batch=1..2,8]{0..59}", "empty:int64[batch,8]{0..0}",
        "noise:float32[batch,4,h=2*(k=2..5),h]",
    ),
    ("text_encoder=text_encoder", "unet=unet", "vae=vae.decode"),
)  # fmt: skip
Case = tuple[str, str, tuple[str, ...], tuple[str, ...]]
Door = Callable[..., Ran]


def store(kind: str, folder: Path, seed: int = 0) -> Path:
    """Write the weights of a net, of random values."""
    torch.manual_seed(seed)
    path = folder / f"{kind}{seed or ''}.pt"
    torch.save(composed_nets.build(kind).state_dict(), path)
    return path


def order(case: Case, weights: Path, out: Path, *more: object, compose: str = "") -> list[object]:
    """The command line that converts a case."""
    kind, function, inputs, parts = case
    return [
        "export", weights, "--model", f"{NETS}:build", "--model-arg", f"kind={kind}",
        *(word for one in parts for word in ("--part", one)),
        *(word for one in inputs for word in ("--input", one)),
        "--compose", f"{NETS}:{compose or function}", "-o", out, "-q", "--sensitivity", "0", *more,
    ]  # fmt: skip


def failing(parts: PartsManifest, artifact: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The parts that a rejection blames, and the lines of its reasons by their code."""
    (verdict,) = (one for one in parts.verdicts if one.artifact == artifact)
    assert not verdict.passed
    lines = [(str(one.code), one.text) for one in verdict.reasons]
    found = {code: "\n".join(text for other, text in lines if other == code) for code, _ in lines}
    return parts.wrong_parts.get(artifact, ()), found


def error_of(ran: Ran) -> dict[str, str]:
    """The error of a command with --json."""
    found: dict[str, str] = json.loads(ran.stdout)["error"]
    return found


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two small TorchScript parts, from weights beside it."""
    folder = tmp_path_factory.mktemp("affine")
    given = order(AFFINE, store("affine", folder), folder / "out", "--to", "torchscript")
    assert app.run_cli([*map(str, given), "--no-isolate"]) == 0
    return folder


@pytest.fixture
def copied(affine: Path, tmp_path: Path) -> Path:
    shutil.copytree(affine, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out"


def test_each_part_and_the_whole_are_judged(affine: Path) -> None:
    out = affine / "out"
    parts = read_parts(out)
    assert [one.name for one in parts.parts] == ["first", "second"]
    (verdict,) = parts.verdicts
    assert (verdict.artifact, verdict.passed) == ("torchscript", True)
    for part in parts.parts:
        manifest = read_manifest(out / part.name)
        assert manifest is not None
        assert manifest.passed
        assert manifest.checkpoint.method == part.name
        assert part.artifacts == {one.name: one.joint_digest for one in manifest.artifacts}


def test_a_part_is_judged_over_the_calls_that_the_pipeline_makes(affine: Path) -> None:
    manifest = read_manifest(affine / "out" / "second")
    assert manifest is not None
    (spec,) = manifest.signature.inputs
    assert (spec.name, spec.dims[0].low, spec.dims[0].high) == ("input", 2, 8)  # rows are doubled


def test_the_parts_composed_by_hand_give_what_torch_gives(affine: Path) -> None:
    torch.manual_seed(0)
    net = composed_nets.Affine().eval()
    x = np.random.default_rng(1).standard_normal((3, 4), dtype=np.float32)
    with torch.no_grad():
        rows = torch.cat([torch.tensor(x)] * 2)
        expected = net.second(net.first(rows).tanh()).numpy()
    loaded = {
        name: torch.jit.load(str(affine / "out" / name / "model.torchscript.pt"))  # type: ignore[no-untyped-call]
        for name in ("first", "second")
    }

    def call(name: str) -> Callable[[Any], Any]:
        return lambda array: loaded[name](torch.from_numpy(array))[0].numpy()

    found = composed_nets.chain({name: call(name) for name in loaded}, x)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-6)


def test_validate_repeats_both(affine: Path, door: Door) -> None:
    ran = door("validate", affine / "out", "-q", "--no-isolate")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"({NETS}:chain)" in ran.stdout
    assert f"1 passed, 0 rejected · {affine / 'out' / PARTS_FILE}" in ran.stdout


def test_a_stale_part_is_named(copied: Path, door: Door) -> None:
    """`second` of other weights, as a folder that is right by itself."""
    other, new = store("affine", copied.parent, seed=1), copied.parent / "new"
    ran = door(*order(AFFINE, other, new, "--to", "torchscript"), "--no-isolate")
    assert ran.returncode == 0, ran.stderr
    shutil.rmtree(copied / "second")
    shutil.copytree(copied.parent / "new" / "second", copied / "second")
    ran = door("validate", copied, "-q", "--no-isolate", "--report", "md")
    assert ran.returncode == 1
    wrong, reasons = failing(read_parts(copied), "torchscript")
    assert wrong == ("second",)
    report = (copied / "report.md").read_text(encoding="utf-8")
    assert "No: whole/torchscript " in report
    assert f" {reasons['part-differs']}." in report
    assert {"part-differs", "part-stale", "output-differs"} <= {*reasons}
    stale = reasons["part-stale"]
    assert stale.startswith("second ")
    assert f"sha256 {read_parts(new).checkpoint.digest[:12]}" in stale
    assert reasons["part-differs"] in ran.stdout
    assert stale in ran.stdout


def test_a_program_that_changed_is_not_opened(copied: Path, door: Door) -> None:
    (copied / "first" / "model.torchscript.pt").write_bytes(b"PK\x03\x04 another program")
    ran = door("validate", copied, "-q", "--no-isolate")
    assert ran.returncode != 0
    (failure,) = read_parts(copied).failures
    assert (failure.step, failure.exit_code) == ("torchscript", RunnerError.exit_code)
    assert "first " in failure.message
    assert read_parts(copied).verdicts == ()


def failed_checks(ran: Ran) -> dict[str, str]:
    """The details of the failed checks of `verify --json`, by what they are of."""
    found = json.loads(ran.stdout)
    checks = [one for model in found["models"] for one in model["checks"]] + found["run"]
    return {f"{one['of']}/{one['what']}": one["detail"] for one in checks
            if one["found"] == "failed"}  # fmt: skip


def test_verify_looks_at_parts_and_whole(copied: Path, door: Door) -> None:
    ran = door("verify", copied, "--json")
    assert (ran.returncode, failed_checks(ran)) == (0, {})
    run = {(one["of"], one["what"]): one["found"] for one in json.loads(ran.stdout)["run"]}
    assert run[PARTS_FILE, "seal"] == "holds"
    assert run["first", "lineage"] == run["second", "lineage"] == "holds"
    assert run["whole/torchscript", "verdict"] == "holds"


@pytest.mark.parametrize("change", ["", "# another\n", None])
def test_verify_looks_at_the_file_of_the_function(
    copied: Path, door: Door, tmp_path: Path, change: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "import numpy as np\n\n\ndef chain(parts, x):\n"
        "    return parts['second'](np.tanh(parts['first'](x)))\n"
    )
    code = tmp_path / "composed_here.py"
    code.write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path = copied / PARTS_FILE
    text = path.read_text(encoding="utf-8").replace(f"{NETS}:chain", "composed_here:chain")
    path.write_text(text, encoding="utf-8")
    door("validate", copied, "-q", "--no-isolate")
    code.write_text(source + (change or ""), encoding="utf-8")
    if change is None:
        code.unlink()
    ran = door("verify", copied, "--json")
    found = {(one["of"], one["what"]): one["found"] for one in json.loads(ran.stdout)["run"]}
    states = {"": "holds", "# another\n": "failed", None: "unchecked"}
    assert found["whole", "files"] == states[change]
    assert ran.returncode == (1 if change else 0)


def exchange(out: Path) -> None:
    for source, name in (("first", "x"), ("second", "first"), ("x", "second")):
        (out / source).rename(out / name)


def forge_digest(out: Path) -> None:
    path = out / PARTS_FILE
    document = json.loads(path.read_text(encoding="utf-8"))
    document["parts"][0]["artifacts"]["torchscript"] = "0" * 64
    path.write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        (exchange, {"first/lineage", "second/lineage"}),
        (forge_digest, {f"{PARTS_FILE}/seal", "first/lineage"}),
        (lambda out: shutil.rmtree(out / "second"), {"second/lineage"}),
        (lambda out: (out / PARTS_FILE).write_text("{}"), {f"{PARTS_FILE}/form"}),
    ],
)
def test_verify_finds_parts_that_the_whole_was_not_judged_with(
    copied: Path, door: Door, change: Callable[[Path], object], failed: set[str]
) -> None:
    change(copied)
    ran = door("verify", copied, "--json")
    assert ran.returncode == 1
    assert failed <= set(failed_checks(ran))


def test_all_records_are_signed(copied: Path, door: Door, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem, plain = form.Encoding.PEM, form.NoEncryption()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, form.PrivateFormat.PKCS8, plain))
    public = key.public_key().public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "pub.pem").write_bytes(public)
    given = ("validate", copied, "-q", "--no-isolate", "--sign-key", tmp_path / "key.pem")
    assert door(*given).returncode == 0
    verify = ("verify", copied, "--key", tmp_path / "pub.pem", "--json")
    assert failed_checks(door(*verify)) == {}
    assert door("validate", copied, "-q", "--no-isolate").returncode == 0  # unsigned since
    assert {"manifest/signature", f"{PARTS_FILE}/signature"} <= set(failed_checks(door(*verify)))


def test_a_report_shows_parts_and_whole(copied: Path, door: Door) -> None:
    ran = door("report", copied, "--report", "html,md,junit")
    assert ran.returncode == 0, ran.stderr
    text = (copied / "report.md").read_text(encoding="utf-8")
    assert "Yes: " in text
    for name in ("first/torchscript", "second/torchscript", "whole/torchscript"):
        assert name in text
        assert name in (copied / "report.html").read_text(encoding="utf-8")
    assert "--part first=first --part second=second --compose" in text
    record = json.loads((copied / PARTS_FILE).read_text(encoding="utf-8"))
    del record["verdicts"]
    (copied / PARTS_FILE).write_text(json.dumps(record), encoding="utf-8")
    assert door("report", copied, "--report", "md").returncode == 0
    assert "Not yet: " in (copied / "report.md").read_text(encoding="utf-8")


def test_a_dry_run_shows_the_steps_of_each_part(affine: Path, tmp_path: Path, door: Door) -> None:
    given = order(AFFINE, affine / "affine.pt", tmp_path / "new", "--to", "onnx,onnx:fp16")
    ran = door(*given, "--dry-run", "--json")
    rows = {row["artifact"]: row["made_from"] for row in json.loads(ran.stdout)["plan"]}
    assert [*rows][-2:] == ["whole/onnx", "whole/onnx-fp16"]
    assert rows["second/onnx-fp16"] == "second/onnx"
    assert not (tmp_path / "new").exists()


def test_commands_on_one_artifact_name_those_of_the_parts(affine: Path, door: Door) -> None:
    out = affine / "out"
    error = error_of(door("inspect", out, "--json"))
    assert error["code"] == ErrorCode.NOT_AN_ARTIFACT
    assert f"modelc inspect {out / 'first' / 'model.torchscript.pt'}" in error["hint"]


def test_finish_of_parts_judges_what_all_of_them_have_since(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[tuple[str, ...]] = []

    def finish(request: FinishRequest, *_: object) -> Manifest:
        assert list_built(read_parts(copied), copied) == ("torchscript",)
        manifest = read_manifest(request.out)
        assert manifest is not None
        engine = replace(manifest.artifacts[0], name="tensorrt", target="tensorrt")
        done = replace(manifest, artifacts=(*manifest.artifacts, engine))
        write_manifest(done, request.out)
        return done

    def judge(request: PartsRequest, names: tuple[str, ...], *_: object) -> PartsManifest:
        judged.append(names)
        return read_parts(request.out)

    monkeypatch.setattr(export_parts, "run_request", finish)
    monkeypatch.setattr(export_parts, "judge_whole", judge)
    request = PartsRequest.of_record(copied)
    _, manifests = export_parts.finish_parts(
        request, lambda folder: FinishRequest(out=folder), None, ignore_events
    )
    assert [*manifests] == ["first", "second"]
    assert judged == [("torchscript", "tensorrt")]


def test_finish_of_parts_without_pending_steps_checks_their_digests(
    copied: Path, door: Door
) -> None:
    before = (copied / PARTS_FILE).read_bytes()
    assert door("finish", copied, "-q").returncode == 0
    assert (copied / PARTS_FILE).read_bytes() == before
    (copied / "first" / "model.torchscript.pt").write_bytes(b"other")
    assert door("finish", copied, "-q").returncode == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"name": "first"', '"name": "../first"'), "'../first' cannot"),
        (lambda text: text.replace('"name": "first"', '"name": "logs"'), "'logs' cannot be"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 9'), "version 9"),
        (lambda text: text[:100], "is not a manifest of parts"),
        (lambda _: "[" * 100_000, "is not a manifest of parts"),
    ],
)
def test_a_damaged_record_is_an_error(
    copied: Path, door: Door, change: Callable[[str], str], message: str
) -> None:
    path = copied / PARTS_FILE
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    ran = door("validate", copied, "-q", "--no-isolate")
    assert ran.returncode == 2
    assert message in ran.stderr


def test_a_part_behind_a_link_is_an_error(copied: Path, door: Door) -> None:
    (copied / "first").rename(copied.parent / "elsewhere")
    (copied / "first").symlink_to(copied.parent / "elsewhere")
    ran = door("validate", copied, "--json", "--no-isolate")
    assert (ran.returncode, error_of(ran)["code"]) == (2, ErrorCode.UNSAFE_PATH)
    assert str(copied / "first") in error_of(ran)["message"]


def test_another_checkpoint_is_an_error(copied: Path, door: Door) -> None:
    store("affine", copied.parent, seed=1).rename(copied.parent / "affine.pt")
    ran = door("validate", copied, "--json", "--no-isolate")
    assert (ran.returncode, error_of(ran)["code"]) == (3, ErrorCode.FILE_CHANGED)
    assert error_of(ran)["option"] == "checkpoint"
    assert read_parts(copied).checkpoint.digest[:12] in error_of(ran)["message"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--part", "second"], "--part 'second' is not NAME=METHOD"),
        (["--part", "third=secnd"], "--part third=secnd: Affine has no method 'secnd'"),
        (["--part", "../x=first"], "'../x' cannot be the name of a part"),
        (["--part", "first=second"], "--part 'first=second' is given twice"),
        (["--part", "third=second"], "never calls the part 'third'"),
        (["--input", "third.x[_,_]"], "--input third.x: there is no part 'third'"),
        (["--input", "first.y[_,_]"], "--input first.y: part 'first' is called with input"),
        (["--input", "y:float32[3]"], "takes the parts and x, the inputs are x, y"),
        (["--input", "y:float32[rows]"], "dim 'rows' of the pipeline has no range"),
        (["--method", "first"], "--method has no effect with --part"),
        (["--data", "held"], "--data has no effect with --part"),
    ],
)
def test_what_is_wrong_in_an_order_is_said(
    tmp_path: Path, door: Door, more: list[str], message: str
) -> None:
    weights = store("affine", tmp_path)
    ran = door(*order(AFFINE, weights, tmp_path / "out", "--to", "onnx", "--no-isolate", *more))
    assert ran.returncode == 2
    assert message in ran.stderr
    assert not (tmp_path / "out" / PARTS_FILE).exists()


@pytest.mark.parametrize(
    ("compose", "message"),
    [
        ("chain_at_random", "returns other values for the same arrays"),
        ("chain_tensors", "part 'second' got 'input' as Tensor, not as a numpy array"),
        ("nothing", f"{NETS} has no 'nothing'"),
        ("join_encoders", "takes the parts and ids, the inputs are x"),
    ],
)
def test_what_is_wrong_in_the_function_is_said(
    affine: Path, tmp_path: Path, door: Door, compose: str, message: str
) -> None:
    given = order(AFFINE, affine / "affine.pt", tmp_path / "out", "--to", "torchscript",
                  "--no-isolate", compose=compose)  # fmt: skip
    ran = door(*given)
    assert ran.returncode in (2, 3)
    assert message in ran.stderr


def test_parts_need_both_options(tmp_path: Path, door: Door) -> None:
    given = ["export", store("affine", tmp_path), "--to", "onnx"]
    for one, value, missing in (("--part", "a=first", "compose"), ("--compose", "a:b", "part")):
        error = error_of(door(*given, one, value, "--json"))
        assert (error["code"], error["option"]) == (ErrorCode.NO_EFFECT, one.removeprefix("--"))
        assert f"--{missing}" in error["message"]


@pytest.mark.parametrize("compose", ["chain_from_memory", "chain_of_shapes"])
def test_a_function_that_does_not_use_a_part_is_an_error(
    affine: Path, tmp_path: Path, door: Door, compose: str
) -> None:
    given = order(AFFINE, affine / "affine.pt", tmp_path / "out", "--to", "torchscript",
                  "--no-isolate", "--json", compose=compose)  # fmt: skip
    error = error_of(door(*given))
    assert (error["code"], error["option"]) == (ErrorCode.NO_EFFECT, "part")
    assert "'first'" in error["message"]


def test_a_function_that_keeps_results_does_not_hide_the_artifacts(
    copied: Path, door: Door
) -> None:
    """It was right when the parts were built."""
    path = copied / PARTS_FILE
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f"{NETS}:chain", f"{NETS}:chain_from_memory"), encoding="utf-8")
    assert door("validate", copied, "-q", "--no-isolate").returncode == 1
    _, reasons = failing(read_parts(copied), "torchscript")
    assert [*reasons] == ["not-measured"]
    assert " first " in reasons["not-measured"]


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_python_exports_parts(affine: Path, tmp_path: Path, isolate: bool) -> None:
    result = modelc.export(
        affine / "affine.pt", model=f"{NETS}:build", model_args={"kind": "affine"},
        to="torchscript", out=tmp_path / "out", parts={"first": "first", "second": "second"},
        compose=f"{NETS}:chain", inputs=["x:float32[batch=1..4,4]", "second.input[rows=1..9,_]"],
        judging=modelc.Judging(sensitivity=0), isolate=isolate,
    )  # fmt: skip
    assert result.passed
    assert [one.name for one in result][-1] == "whole/torchscript"
    assert result["second/torchscript"].path.is_file()
    assert [one.passed for one in read_parts(tmp_path / "out").verdicts] == [True]


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"parts": {"first": "first"}}, "parts"), ({"compose": "a:b"}, "compose"),
        ({"parts": {"first": "first"}, "compose": "a:b", "method": "first"}, "method"),
    ],
)  # fmt: skip
def test_python_refuses_what_parts_cannot_have(
    affine: Path, tmp_path: Path, given: dict[str, Any], option: str
) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option=option)):
        modelc.export(
            affine / "affine.pt", model=f"{NETS}:build", model_args={"kind": "affine"},
            to="onnx", out=tmp_path / "out", inputs="x:float32[batch=1..4,4]", **given,
        )  # fmt: skip


@pytest.mark.slow
def test_int8_parts_are_calibrated_with_what_they_receive(tmp_path: Path, door: Door) -> None:
    draw, weights = np.random.default_rng(5), store("affine", tmp_path)
    samples = draw.standard_normal((40, 4), dtype=np.float32)
    np.save(tmp_path / "samples.npy", samples)
    given = order(AFFINE, weights, tmp_path / "out", "--to", "onnx:int8", "--no-isolate",
                  "--calib", tmp_path / "samples.npy", "--calib-samples", 24)  # fmt: skip
    ran = door(*given)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {one.artifact: one.passed for one in read_parts(tmp_path / "out").verdicts} == {
        "onnx-int8": True
    }
    _check_held_out(tmp_path / "out", samples, door)
    torch.manual_seed(0)
    net = composed_nets.Affine().eval()
    with torch.no_grad():
        expected = net.first(torch.tensor(samples)).tanh().numpy()
    files = sorted((tmp_path / "out" / "calibration" / "second").iterdir())
    assert len(files) >= 24
    for path in files:
        (found,) = np.load(path).values()
        assert found.shape == (2, 4)  # rows are doubled
        assert any(np.allclose(found, row, atol=1e-6) for row in expected)
    for name in ("first", "second"):
        manifest = read_manifest(tmp_path / "out" / name)
        assert manifest is not None
        (artifact,) = (one for one in manifest.artifacts if one.name == "onnx-int8")
        assert artifact.calibration is not None
        assert artifact.calibration.source == f"../calibration/{name}"


def _check_held_out(out: Path, samples: Any, door: Door) -> None:
    """The whole is judged on samples of the user that neither part was calibrated with."""
    whole = read_parts(out)
    (verdict,) = whole.verdicts
    assert {*verdict.feeds} == {Path(name).stem for name in whole.held_out}
    for name in whole.held_out:  # a sample of the user, that neither part was calibrated with
        (found,) = np.load(out / "calibration" / "whole" / name).values()
        assert any(np.array_equal(found[0], row) for row in samples)
    door("validate", out, "-q", "--no-isolate")
    assert read_parts(out).verdicts[0].feeds == verdict.feeds
    assert door("verify", out).returncode == 0
    sample = out / "calibration" / "whole" / min(whole.held_out)
    sample.write_bytes(b"other")
    assert [*failed_checks(door("verify", out, "--json"))] == ["whole/samples"]
    shutil.rmtree(out / "calibration" / "whole")
    assert door("verify", out).returncode == 0
    door("validate", out, "-q", "--no-isolate")
    assert "opt" in read_parts(out).verdicts[0].feeds


@pytest.mark.slow
def test_exchanged_parts_are_both_named(tmp_path: Path, modelc: Door) -> None:
    """Two parts of one interface: each folder is right by itself."""
    out = tmp_path / "out"
    ran = modelc(*order(TWO, store("two_encoders", tmp_path), out, "--to", "onnx"))
    assert ran.returncode == 0, ran.stderr
    for source, name in (("small", "x"), ("large", "small"), ("x", "large")):
        (out / source).rename(out / name)
    assert modelc("validate", out, "-q").returncode == 1
    wrong, reasons = failing(read_parts(out), "onnx")
    assert wrong == ("small", "large")
    assert {"part-differs", "part-stale", "output-differs"} <= {*reasons}
    assert all(
        name in line for line in reasons["part-stale"].splitlines() for name in ("small", "large")
    )


@pytest.mark.slow
def test_a_toy_diffusion_pipeline_in_three_artifacts(tmp_path: Path, modelc: Door) -> None:
    """Compared with torch by hand too; then one weight of the UNet is changed after the build."""
    out, weights = tmp_path / "out", store("diffusion", tmp_path)
    ran = modelc(*order(DIFFUSION, weights, out, "--to", "onnx,openvino,onnx:fp16"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = {one.artifact: one.passed for one in read_parts(out).verdicts}
    assert passed == {"onnx": True, "openvino": True, "onnx-fp16": True}
    _check_image_by_hand(out)
    path = out / "unet" / "model.onnx"
    _change_one_weight(path)
    assert modelc("validate", out, "-q").returncode == 1
    wrong, reasons = failing(read_parts(out), "onnx")
    assert wrong == ("unet",)
    assert {"part-differs", "changed-file", "output-differs"} <= {*reasons}
    assert reasons["changed-file"].startswith("unet: model.onnx ")
    whole = json.loads((out / PARTS_FILE).read_text(encoding="utf-8"))
    assert whole["wrong_parts"] == {"onnx": ["unet"]}


def _check_image_by_hand(out: Path) -> None:
    import onnxruntime as ort

    torch.manual_seed(0)
    net = composed_nets.Diffusion().eval()
    owners: dict[str, Callable[..., Any]] = {
        "text_encoder": net.text_encoder, "unet": net.unet, "vae": net.vae.decode
    }  # fmt: skip
    draw = np.random.default_rng(3)
    feed = {
        "ids": draw.integers(0, 60, (2, 8)), "empty": np.zeros((2, 8), np.int64),
        "noise": draw.standard_normal((2, 4, 6, 6), dtype=np.float32),
    }  # fmt: skip

    def eager(name: str) -> Callable[..., Any]:
        def call(*arrays: Any, **named: Any) -> Any:
            tensors = [torch.from_numpy(one) for one in (*arrays, *named.values())]
            with torch.no_grad():
                return owners[name](*tensors).numpy()

        return call

    def artifact(name: str) -> Callable[..., Any]:
        session = ort.InferenceSession(out / name / "model.onnx")
        names = [one.name for one in session.get_inputs()]

        def call(*arrays: Any, **named: Any) -> Any:
            return session.run(None, {**dict(zip(names, arrays, strict=False)), **named})[0]

        return call

    expected = composed_nets.sample_image({name: eager(name) for name in owners}, **feed)
    found = composed_nets.sample_image({name: artifact(name) for name in owners}, **feed)
    np.testing.assert_allclose(found["image"], expected["image"], atol=2e-5)


def _change_one_weight(path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    floats = [one for one in model.graph.initializer if one.data_type == onnx.TensorProto.FLOAT]
    largest = max(floats, key=lambda one: np.prod(one.dims))
    array = numpy_helper.to_array(largest).copy()
    array.flat[array.size // 3] += array.std()
    largest.CopyFrom(numpy_helper.from_array(array, largest.name))
    onnx.save(model, path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        ("translator", "translate", ("ids:int64[batch=1..3,seq=2..9]{0..39}",),
            ("encoder=encode", "decoder=decode")),
        ("detector", "detect", ("image:float32[1,3,h=4*(a=4..8),w=4*(b=4..8)]",),
            ("detector=forward",)),
    ],
    ids=["encoder and decoder", "detector and boxes in Python"],
)  # fmt: skip
def test_loops_and_sizes_that_depend_on_data(case: Case, tmp_path: Path, modelc: Door) -> None:
    out = tmp_path / "out"
    ran = modelc(*order(case, store(case[0], tmp_path), out, "--to", "onnx"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (verdict,) = read_parts(out).verdicts
    assert verdict.passed
    assert {one.output for one in verdict.outputs} & {"tokens", "boxes"}
