from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.converters import aoti_compiler, aoti_package, exported_program
from modelc.converters.registry import target_for
from modelc.core.contract import Array, Feed, Job, Native, Runner
from modelc.core.errors import CheckpointError, ConversionError, ErrorCode, RunnerError
from modelc.core.torch_file import refuse_archive_code

from ..reasons import has_code

JobOf = Callable[..., Job]
MARK = np.float32(1234.5678)
needs_it = [pytest.mark.slow, pytest.mark.needs("aoti")]
TRUSTED = {"trust_engine": "true"}


class Sums(nn.Module):
    """Two inputs that share a dim, and sums that a fast-math compiler would reorder."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.nn.functional.gelu(self.layer(x)).softmax(-1)
        kept = (h + 1e8) - 1e8  # zero apart from rounding; reassociated it would be h
        return torch.where(torch.isnan(y), h, kept + h * y)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A conversion of `Sums`, made once; its example is known by its mark."""
    from modelc.checkpoints.eager_model import Eager
    from modelc.core.call import bind_inputs, parameters_of
    from modelc.core.grammar import parse_input
    from modelc.core.kinds import Capture, Precision
    from modelc.core.signature import merge_inputs

    torch.manual_seed(0)
    module = Sums().eval()
    texts = ("x:float32[batch=1..4,3]", "y:float32[batch=1..4,4]")
    signature = merge_inputs([parse_input(text) for text in texts], {}).with_outputs(["output"])
    made = Job(
        signature=signature,
        precision=Precision.FP32,
        folder=tmp_path_factory.mktemp("aoti"),
        stem="model",
        example={"x": np.full((2, 3), MARK, np.float32), "y": np.full((2, 4), MARK, np.float32)},
        model=Eager(module, ("x", "y"), bind_inputs(("x", "y"), parameters_of(module.forward))),
        capture=Capture.EXPORT,
        metadata={"checkpoint": "abc"},
    )
    aoti_package.convert(made)
    return made


@pytest.fixture
def path(job: Job) -> Path:
    return job.folder / "model.aoti.pt2"


@pytest.fixture
def runner(job: Job, path: Path) -> Runner:
    return aoti_package.open_runner(path, "cpu", job.signature)


def feed(batch: int, other: int | None = None) -> dict[str, Array]:
    generator = np.random.default_rng(batch)
    return {
        "x": generator.standard_normal((batch, 3)).astype(np.float32),
        "y": generator.standard_normal((batch if other is None else other, 4)).astype(np.float32),
    }


class TestPackage:
    """Tests of one compiled package; compiling takes half a minute."""

    pytestmark = needs_it

    @pytest.mark.parametrize("batch", [1, 3, 4])
    def test_it_computes_what_eager_does_without_fast_math(
        self, job: Job, runner: Runner, batch: int
    ) -> None:
        assert job.model is not None
        given = feed(batch)
        given["y"][0, 0] = np.nan
        with torch.no_grad():
            eager = job.model.module(*(torch.tensor(given[name]) for name in "xy")).numpy()
        found = runner.run(given)["output"]
        assert np.isfinite(found).all()
        assert np.abs(found - eager).max() < 1e-6

    @pytest.mark.parametrize(
        ("wrong", "named"),
        [
            (feed(5), r"1\.\.4"),
            (feed(2, 3), "batch is 2"),
            ({**feed(2), "x": np.zeros((2, 3), np.float64)}, "float64"),
            ({**feed(2), "x": np.zeros((2, 5), np.float32)}, "x is 5"),
        ],
    )
    def test_a_feed_outside_the_signature_is_an_error(
        self, runner: Runner, wrong: Feed, named: str
    ) -> None:
        with pytest.raises(RunnerError, match=named):
            runner.run(wrong)

    def test_the_own_check_of_the_library_has_the_signatures_bounds(self, path: Path) -> None:
        code = (
            "import sys, torch; p = torch._inductor.aoti_load_package(sys.argv[1])\n"
            "p(torch.ones(1, 3), torch.ones(1, 4)); p(torch.ones(4, 3), torch.ones(4, 4))\n"
            "p(torch.ones(5, 3), torch.ones(5, 4))"
        )
        done = subprocess.run(
            [sys.executable, "-c", "import torch._inductor; " + code, str(path)],
            env={**os.environ, "AOTI_RUNTIME_CHECK_INPUTS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
        assert "too large" in done.stderr
        assert "too small" not in done.stderr

    def test_a_foreign_package_is_not_opened(self, job: Job, path: Path, tmp_path: Path) -> None:
        foreign = tmp_path / "foreign.aoti.pt2"
        with zipfile.ZipFile(path) as ours, zipfile.ZipFile(foreign, "w") as theirs:
            for name in ours.namelist():
                theirs.writestr(name, ours.read(name))
            theirs.writestr("model.aoti/extra/more", "another digest")
        with pytest.raises(
            RunnerError, check=has_code(ErrorCode.CONSENT_REQUIRED, naming=foreign.name)
        ):
            aoti_package.open_runner(foreign, "cpu", job.signature)
        assert aoti_package.inspect(foreign).metadata["checkpoint"] == "abc"
        with aoti_package.open_runner(foreign, "cpu", job.signature, TRUSTED) as runner:
            assert runner.run(feed(2))["output"].shape == (2, 4)

    def test_it_is_a_checkpoint_only_with_consent(self, path: Path) -> None:
        with pytest.raises(
            CheckpointError,
            check=has_code(ErrorCode.CONSENT_REQUIRED, option="allow-pickle", naming=path.name),
        ):
            refuse_archive_code(path)

    def test_it_is_recognised_by_its_content(self, path: Path, tmp_path: Path) -> None:
        renamed = tmp_path / "model.pt2"
        renamed.write_bytes(path.read_bytes())
        assert target_for(renamed) is aoti_package
        assert not exported_program.claims(renamed)

    def test_it_contains_neither_the_users_data_nor_sources(self, path: Path) -> None:
        assert list(path.parent.iterdir()) == [path]
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            members = [archive.read(name) for name in names]
        assert not any(name.endswith((".cpp", ".h", ".o")) for name in names)
        assert not any(MARK.tobytes() in member for member in members)

    def test_inspect_shows_the_users_dims(self, path: Path) -> None:
        found = aoti_package.inspect(path)
        assert [info.dims for info in found.inputs] == [("batch", "3"), ("batch", "4")]
        assert [info.dims for info in found.outputs] == [("batch", "4")]
        assert found.facts["ranges"] == "batch=1..4"


def test_it_is_declared_as_native_code() -> None:
    assert isinstance(aoti_package, Native)
    assert not isinstance(exported_program, Native)


def test_the_missing_header_of_a_compiler_is_named(tmp_path: Path) -> None:
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\necho 'fatal error: omp.h: No such file or directory' >&2\nexit 1\n")
    fake.chmod(0o700)
    assert "omp.h" in aoti_compiler.find_header_fault(str(fake))
    assert "absent" in aoti_compiler.find_header_fault(str(tmp_path / "absent"))


FAULTY = """
import os, signal
def fail(request, parent):
    os.write(2, b"first\\nx.cpp:1: error: no\\n")
    os._exit(1)
def refuse(request, parent):
    raise RuntimeError("no such operator")
def crash(request, parent):
    os.kill(os.getpid(), signal.SIGSEGV)
def skip(request, parent):
    return None
"""


@pytest.mark.needs("aoti")
@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("fail", r"x\.cpp:1: error: no"),
        ("refuse", "no such operator"),
        ("crash", "SIGSEGV"),
        ("skip", "no message"),
    ],
)
def test_a_compiling_process_that_fails_is_a_conversion_error(
    function: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty_compiler.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    compiling = getattr(importlib.import_module("faulty_compiler"), function)
    program = torch.export.export(nn.Linear(3, 2), (torch.ones(2, 3),))
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(ConversionError, match=named):
        aoti_compiler.compile_package(program, place, compile_program=compiling)


def test_an_exported_program_is_not_claimed(job_of: JobOf) -> None:
    job = job_of(nn.Linear(3, 2), "x:float32[batch=1..4,3]")
    exported_program.convert(job)
    assert not aoti_package.claims(job.folder / "model.pt2")
    assert exported_program.claims(job.folder / "model.pt2")


def test_a_record_that_cannot_be_read_is_a_runner_error(tmp_path: Path) -> None:
    path = tmp_path / "model.aoti.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/data/aotinductor/model/x.so", "")
        archive.writestr("m/extra/modelc.json", "{")
    with pytest.raises(RunnerError):
        aoti_package.inspect(path)


def test_a_package_without_a_record_is_inspected(tmp_path: Path) -> None:
    path = tmp_path / "model.aoti.pt2"
    platform = {"AOTI_PLATFORM": "linux", "AOTI_MACHINE": "aarch64"}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/data/aotinductor/model/x.wrapper.so", "1234")
        archive.writestr("m/data/aotinductor/model/x.wrapper_metadata.json", json.dumps(platform))
    found = aoti_package.inspect(path)
    assert found.facts["compiled for"] == "linux aarch64"
    assert found.inputs == ()
