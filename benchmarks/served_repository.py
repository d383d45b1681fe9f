"""A model repository of two nets in three formats and two precisions, and faults planted in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_SAMPLES = Path(__file__).absolute().parents[1] / "sample_models"
_DIGITS = (
    str(_SAMPLES / "digits.safetensors"), "--model", "modelc.sample_models.digits:build",
    "--input", "x:float32[batch=1..8,1,8,8]",
)  # fmt: skip
_TWIN = (
    "--model", "modelc.benchmarks.served_nets:build_twin",
    "--input", "left:float32[batch=1..8,16]", "--input", "right:float32[batch=1..8,16]",
)  # fmt: skip
_HALVES = (
    "--model", "modelc.benchmarks.served_nets:build_halves", "--input", "x:float32[batch=1..8,16]",
)  # fmt: skip
_BACKENDS = {"onnx": "onnxruntime", "openvino": "openvino", "torchscript": "pytorch"}
_FILES = {"onnx": "model.onnx", "openvino": "model.xml", "torchscript": "model.pt"}
_FORMS = {
    "digits": (
        'input { name: "x" data_type: TYPE_FP32 dims: [1, 8, 8] }\n'
        'output { name: "output" data_type: TYPE_FP32 dims: [10] }\n'
    ),
    "twin": (
        'input { name: "left" data_type: TYPE_FP32 dims: [16] }\n'
        'input { name: "right" data_type: TYPE_FP32 dims: [16] }\n'
        'output { name: "output.0" data_type: TYPE_FP32 dims: [12] }\n'
        'output { name: "output.1" data_type: TYPE_FP32 dims: [1] reshape: { shape: [] } }\n'
    ),
}


@dataclass(frozen=True, kw_only=True)
class ServedCase:
    """A model of the repository, and the artifact that it serves."""

    model: str
    folder: str
    artifact: str

    @property
    def target(self) -> str:
        """The format of the artifact."""
        return self.artifact.split("-", maxsplit=1)[0]


GOOD = tuple(
    ServedCase(model=f"{folder}-{artifact}", folder=folder, artifact=artifact)
    for folder, artifact in (
        ("digits", "onnx"), ("digits", "onnx-fp16"), ("digits", "openvino"),
        ("digits", "openvino-fp16"), ("twin", "torchscript"), ("twin", "onnx"),
    )
)  # fmt: skip
"""Six models, three formats, two precisions."""


def export_folders(work: Path, modelc: tuple[str, ...] = (sys.executable, "-m", "modelc")) -> None:
    """Export the nets to `work/digits`, `work/twin` and `work/halves`.

    Raises:
        CalledProcessError: an export failed.
    """
    from safetensors.torch import save_file

    from modelc.benchmarks.served_nets import build_halves, build_twin

    save_file(build_twin().state_dict(), work / "twin.safetensors")
    save_file(build_halves().state_dict(), work / "halves.safetensors")
    twin = (str(work / "twin.safetensors"), *_TWIN)
    halves = (str(work / "halves.safetensors"), *_HALVES)
    precisions = ("--to", "onnx:fp16", "--to", "openvino:fp16")
    for name, source, formats in (
        ("digits", _DIGITS, ("--to", "onnx", "--to", "openvino", *precisions)),
        ("twin", twin, ("--to", "torchscript", "--to", "onnx")),
        ("halves", halves, ("--to", "onnx")),
    ):
        command = [*modelc, "export", *source, *formats, "-o", str(work / name), "-q"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write_repository(work: Path, repository: Path) -> None:
    """Write the good models into a repository by hand."""
    for case in GOOD:
        write_model(work, repository, case)


def write_model(
    work: Path, repository: Path, case: ServedCase, *, name: str = "", version: int = 1
) -> Path:
    """Write one model into a repository, and return its folder."""
    from modelc.pipeline.manifest_file import read_manifest

    folder = work / case.folder
    manifest = read_manifest(folder)
    artifact = next(one for one in (manifest.artifacts if manifest else ())
                    if one.name == case.artifact)  # fmt: skip
    place = repository / (name or case.model)
    (place / str(version)).mkdir(parents=True)
    model = Path(_FILES[case.target])
    for file in artifact.files:
        source = folder / file.name
        if source.suffix == ".bin" or file is artifact.files[0]:
            target = model.with_suffix(".bin") if source.suffix == ".bin" else model
            shutil.copy(source, place / str(version) / target)
    text = (
        f'name: "{place.name}"\nbackend: "{_BACKENDS[case.target]}"\nmax_batch_size: 8\n'
        f"{_FORMS[case.folder]}instance_group {{ kind: KIND_CPU }}\n"
        "dynamic_batching { max_queue_delay_microseconds: 2000 }\n"
    )
    (place / "config.pbtxt").write_text(text)
    return place


def _edit(pattern: str, new: str) -> Callable[[Path], None]:
    def edit(place: Path) -> None:
        config = place / "config.pbtxt"
        text, count = re.subn(pattern, new, config.read_text())
        if not count:
            raise ValueError(f"{pattern} is not in {config}")
        config.write_text(text)

    return edit


def _swap_inputs(place: Path) -> None:
    """Swap the names of the inputs in the file: each has the other's place."""
    import onnx

    path = place / "1/model.onnx"
    model = onnx.load(path)
    swapped = {"left": "right", "right": "left"}
    for value in model.graph.input:
        value.name = swapped[value.name]
    for node in model.graph.node:
        node.input[:] = [swapped.get(one, one) for one in node.input]
    onnx.save(model, path)


def _add_other_version(place: Path) -> None:
    """Add a version whose file has one weight scaled: another training, say."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    model = onnx.load(place / "1/model.onnx")
    weight = max(model.graph.initializer, key=lambda one: np.prod(one.dims))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.01, weight.name))
    (place / "2").mkdir()
    onnx.save(model, place / "2/model.onnx")


def _damage_file(place: Path) -> None:
    (place / "1/model.onnx").write_bytes(b"\x08")


_TWIN_ONNX = GOOD[5]
FAULTS: Mapping[str, Callable[[Path], None]] = {
    "swapped-inputs": _swap_inputs,
    "wrong-input-dims": _edit(r"dims: \[16\]", "dims: [17]"),
    "wrong-output-dims": _edit(r"dims: \[12\]", "dims: [13]"),
    "wrong-dtype": _edit(r'("left" data_type: TYPE_)FP32', r"\g<1>FP64"),
    "missing-output": _edit(r'output { name: "output.1".*\n', ""),
    "smaller-batch": _edit("max_batch_size: 8", "max_batch_size: 4"),
    "other-version": _add_other_version,
    "mixed-replies": _edit('backend: "onnxruntime"', 'backend: "mixing"'),
    "damaged-file": _damage_file,
}
"""Faults by the name of the model that has them; each is the net of two inputs in ONNX."""


def plant_faults(work: Path, repository: Path) -> tuple[ServedCase, ...]:
    """Add a model for each fault to a repository."""
    found = []
    for name, plant in FAULTS.items():
        plant(write_model(work, repository, _TWIN_ONNX, name=name))
        found.append(ServedCase(model=name, folder="twin", artifact=_TWIN_ONNX.artifact))
    return tuple(found)
