from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.converters import exported_program, torchscript_module
from modelc.core.contract import Job
from modelc.core.errors import RunnerError
from modelc.core.kinds import Capture

JobOf = Callable[..., Job]
MARK = np.float32(1234.5678)


@pytest.fixture
def job(job_of: JobOf) -> Job:
    """A job whose example is the user's own data, known by its mark."""
    made = job_of(nn.Linear(3, 2), "x:float32[batch=1..4,3]")
    return replace(made, example={"x": np.full((2, 3), MARK, np.float32)})


def test_a_program_contains_no_user_data(job: Job) -> None:
    (name, _), *_ = exported_program.convert(job).files
    with zipfile.ZipFile(job.folder / name) as archive:
        members = [archive.read(entry) for entry in archive.namelist()]
    assert not any(MARK.tobytes() in member for member in members)


def test_a_program_without_examples_runs_and_is_a_checkpoint(job: Job) -> None:
    (name, _), *_ = exported_program.convert(job).files
    path = job.folder / name
    with exported_program.open_runner(path, "cpu", job.signature) as runner:
        assert runner.run({"x": np.ones((4, 3), np.float32)})["output"].shape == (4, 2)
    loaded = load_checkpoint(identify(path, factory=None, factory_args={}))
    assert [str(spec) for spec in loaded.known.values()] == ["x:float32[batch=1..4,3]"]


class Odd(nn.Module):
    """Gives what numpy does not have."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.to(torch.bfloat16), torch.complex(x, x).conj()


@pytest.mark.parametrize("capture", [Capture.TRACE, Capture.SCRIPT])
def test_torchs_own_formats_give_bfloat16_and_complex_as_eager_does(
    job_of: JobOf, capture: Capture
) -> None:
    job = job_of(Odd(), "x:float32[4,3]", capture=capture, outputs=("output.0", "output.1"))
    assert job.model is not None
    (name, _), *_ = torchscript_module.convert(job).files
    with torchscript_module.open_runner(job.folder / name, "cpu", job.signature) as runner:
        found = runner.run(job.example)
    assert [str(array.dtype) for array in found.values()] == ["float32", "complex64"]
    assert np.array_equal(found["output.1"], np.conj(job.example["x"] * (1 + 1j)))


class Pair(nn.Module):
    """Outputs whose sizes follow from two dims."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x, x], dim=1), x.sum() + y


def test_inspect_shows_the_users_dims_and_ranges(job_of: JobOf) -> None:
    texts = ("x:float32[batch=1..4,seq=3..9]", "y:float32[any]")
    job = job_of(Pair(), *texts, outputs=("twice", "sum"))
    (name, _), *_ = exported_program.convert(job).files
    found = exported_program.inspect(job.folder / name)
    assert [info.dims for info in found.inputs] == [("batch", "seq"), ("any",)]
    assert [info.dims for info in found.outputs] == [("batch", "2*seq"), ("any",)]
    assert found.facts["ranges"] == "batch=1..4, seq=3..9, any=1.."


def test_inspect_shows_torchs_names_where_there_is_no_record(job: Job) -> None:
    dims = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(nn.Linear(3, 2), (torch.ones(4, 3),), dynamic_shapes=dims)
    torch.export.save(program, job.folder / "plain.pt2")
    (first, _) = exported_program.inspect(job.folder / "plain.pt2").inputs[0].dims
    assert first.startswith("s")


@pytest.mark.parametrize("batch", [2, 6])
def test_a_program_rejects_sizes_outside_its_range(job_of: JobOf, batch: int) -> None:
    job = job_of(nn.Linear(3, 2), "x:float32[batch=3..5,3]")
    (name, _), *_ = exported_program.convert(job).files
    with (
        exported_program.open_runner(job.folder / name, "cpu", job.signature) as runner,
        pytest.raises(RunnerError),
    ):
        runner.run({"x": np.ones((batch, 3), np.float32)})


@pytest.mark.slow
def test_a_scale_computed_from_data(job_of: JobOf) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / (float(x.abs().max()) / 127.5)

    job = job_of(Scaled(), "x:float32[batch=1..4,3]", capture=Capture.EXPORT_STRICT)
    (name, _), *_ = exported_program.convert(job).files
    with exported_program.open_runner(job.folder / name, "cpu", job.signature) as runner:
        found = runner.run({"x": np.full((3, 3), 2.0, np.float32)})["output"]
    assert np.allclose(found, 127.5)


def test_a_program_with_code_does_not_open(job: Job) -> None:
    path = job.folder / "bad.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bad/archive_format", "pt2")
        archive.writestr("bad/models/model.json", '{"expr_str": "__import__(\'os\')"}')
    with pytest.raises(RunnerError, match=r"bad\.pt2\b.*\bmodel\.json"):
        exported_program.open_runner(path, "cpu", job.signature)
