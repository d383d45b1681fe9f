"""An untrusted pickle runs nothing, whichever function opens it."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from modelc.calibration import sample_formats
from modelc.calibration.sample_content import SampleError
from modelc.checkpoints.checkpoint_description import describe_checkpoint
from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.sample_inputs import read_samples
from modelc.core.errors import ModelcError
from modelc.core.torch_file import refuse_archive_code
from modelc.pipeline.worst_feed import read_feed

DIGITS = "modelc.sample_models.digits:build"


class Evil:
    """Leaves a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def torch_file(path: Path, value: object, *, packed: bool = True) -> Path:
    torch.save({"w": torch.ones(2), "evil": value}, path, _use_new_zipfile_serialization=packed)
    return path


def open_checkpoint(path: Path, factory: str | None = DIGITS) -> object:
    return load_checkpoint(identify(path, factory=factory, factory_args={}))


def _checkpoint(folder: Path, evil: Evil) -> None:
    open_checkpoint(torch_file(folder / "m.pt", evil))


def _legacy_checkpoint(folder: Path, evil: Evil) -> None:
    open_checkpoint(torch_file(folder / "m.pt", evil, packed=False))


def _bare_pickle(folder: Path, evil: Evil) -> None:
    (folder / "m.pt").write_bytes(pickle.dumps(evil, protocol=2))
    open_checkpoint(folder / "m.pt")


def _shard(folder: Path, evil: Evil) -> None:
    torch_file(folder / "part.bin", evil)
    index = folder / "m.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "part.bin"}}))
    open_checkpoint(index)


def _samples(folder: Path, evil: Evil) -> None:
    read_samples(torch_file(folder / "x.pt", evil))


def _npz(folder: Path, evil: Evil) -> None:
    np.savez(folder / "x.npz", a=np.array([evil], dtype=object))
    read_samples(folder / "x.npz")


def _feed(folder: Path, evil: Evil) -> None:
    np.savez(folder / "x.npz", a=np.array([evil], dtype=object))
    read_feed(folder / "x.npz")


def _calibration_torch(folder: Path, evil: Evil) -> None:
    sample_formats.read_arrays(torch_file(folder / "x.pt", evil), ".pt")


def _calibration_shard(folder: Path, evil: Evil) -> None:
    data = torch_file(folder / "x.pt", evil).read_bytes()
    with tarfile.open(folder / "s.tar", "w") as archive:
        entry = tarfile.TarInfo("x.pt")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    with tarfile.open(folder / "s.tar") as archive:
        held = archive.extractfile("x.pt")
        sample_formats.read_arrays(io.BytesIO(held.read() if held else b""), ".pt")


def _calibration_npz(folder: Path, evil: Evil) -> None:
    np.savez(folder / "x.npz", a=np.array([evil], dtype=object))
    sample_formats.read_arrays(folder / "x.npz", ".npz")


def _calibration_npy(folder: Path, evil: Evil) -> None:
    np.save(folder / "x.npy", np.array([evil], dtype=object))
    sample_formats.read_arrays(folder / "x.npy", ".npy")


def _exported_program(folder: Path, evil: Evil) -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    torch.export.save(program, folder / "plain.pt2")
    source = zipfile.ZipFile(folder / "plain.pt2")
    stream = io.BytesIO()
    torch.save(((evil,), {}), stream)
    with zipfile.ZipFile(folder / "m.pt2", "w") as archive:
        for name in source.namelist():
            data = stream.getvalue() if "sample_inputs" in name else source.read(name)
            archive.writestr(name, data)
    refuse_archive_code(folder / "m.pt2")


def _folder_of_transformers(folder: Path, evil: Evil) -> None:
    pytest.importorskip("transformers")
    (folder / "config.json").write_text('{"model_type":"bert","architectures":["BertModel"]}')
    torch_file(folder / "pytorch_model.bin", evil)
    open_checkpoint(folder, factory=None)


OPENERS = (
    _checkpoint, _legacy_checkpoint, _bare_pickle, _shard, _samples, _npz, _feed,
    _calibration_torch, _calibration_shard, _calibration_npz, _calibration_npy, _exported_program,
    pytest.param(_folder_of_transformers, marks=pytest.mark.slow),
)  # fmt: skip


@pytest.mark.parametrize("opener", OPENERS)
def test_a_pickle_is_rejected_and_nothing_of_it_runs(
    tmp_path: Path, opener: Callable[[Path, Evil], None]
) -> None:
    with pytest.raises((ModelcError, SampleError)):
        opener(tmp_path, Evil(tmp_path / "it-ran"))
    assert not (tmp_path / "it-ran").exists()


def test_what_is_rejected_is_described_without_being_run(tmp_path: Path) -> None:
    found = describe_checkpoint(torch_file(tmp_path / "m.pt", Evil(tmp_path / "it-ran")))
    assert found.unreadable
    assert not (tmp_path / "it-ran").exists()


def test_the_planted_pickle_would_run(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Evil(tmp_path / "it-ran")))
    assert (tmp_path / "it-ran").exists()
