"""What reads untrusted files: for each opening its seeds, and how it is called on bytes.

An opening ends well or in a ModelcError; anything else is a finding.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Opening:
    """One way in. `quick` and `slow` are how many inputs it is given in the two sets of tests."""

    name: str
    seeds: Callable[[], list[bytes]]
    open: Callable[[bytes, Path], object]
    quick: int
    slow: int
    allowed: tuple[str, ...] = ()  # exceptions beside ModelcError, where these are the room's own


def _placed(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _input(data: bytes, _: Path) -> None:
    from modelc.core.grammar import parse_input
    from modelc.core.signature import merge_inputs

    texts = data.decode("utf-8", "replace").split("\n")
    merge_inputs([parse_input(text) for text in texts], {})


def _input_seeds() -> list[bytes]:
    texts = (
        "x:float32[batch=1..8,3,224,224]", "ids:int64[batch,seq=1..16..64]{0..99}", "a.b[_]",
        "x:float32[b,3,h=32*(k=1..8)]", "a:int64[n=1..4]\nb:int64[2*n,n+1]{0..n-1}", "m:bool[]",
        "x:float16[n=seq+1]{-1.5e3..2.}\ny:uint8[seq=1..9]", "v:float64[h=(k=2..8)-1]",
    )  # fmt: skip
    return [text.encode() for text in texts]


def _toml(data: bytes, folder: Path) -> None:
    from modelc.projects.model_orders import plan_project

    plan_project(_placed(data, folder, "modelc.toml"))


def _toml_seeds() -> list[bytes]:
    weights = json.dumps(str(_ROOT / "sample_models" / "digits.safetensors"))
    return [
        f"""out = "out"
[defaults]
to = ["onnx", "openvino"]
precision = ["fp32", "int8"]
calib = "random"
min-sqnr = 20
tolerance = ["logits:rtol=0.01"]
[models.digits]
checkpoint = {weights}
model = "modelc.sample_models.digits:build"
input = ["x:float32[batch=1..8,1,8,8]"]
[models.digits.gates]
max-drop = "1%"
max-size = "20 MB"
[models."b c"]
checkpoint = "nothing.pt"
trust = true
""".encode(),
        b'[models.a]\ncheckpoint="x"\n[models.a.tolerance]\natol=1e-3\n[models.a.tolerance.out]\nrtol=1',
    ]


def _manifest(data: bytes, folder: Path) -> None:
    from modelc.pipeline.manifest_file import read_manifest_file
    from modelc.pipeline.report_files import render_report
    from modelc.reports.report_formats import REPORT_FORMATS

    manifest = read_manifest_file(_placed(data, folder, "manifest.json"))
    for one in REPORT_FORMATS:
        render_report(manifest, one)
    assert manifest.exit_code >= 0


def _manifest_seeds() -> list[bytes]:
    from modelc.pipeline.manifest_file import encode_json
    from modelc.tests.reports import records

    kinds = (records.full, records.failed_only, records.pending_only, records.hostile)
    return [encode_json(kind()) for kind in kinds]


def _run_record(data: bytes, folder: Path) -> None:
    from modelc.projects.verify_project import verify_results

    _placed(data, folder, "run.json")
    verify_results(folder)


def _run_record_seeds() -> list[bytes]:
    from modelc.pipeline.manifest_file import encode_json
    from modelc.projects.run_record import ArtifactRun, ModelRun, RunRecord
    from modelc.reports.result_rows import Outcome

    end = ArtifactRun(name="onnx", state=Outcome.PASSED, source="made", size=3, sqnr=90.5)
    model = ModelRun(name="digits", folder="out/digits", state=Outcome.PASSED,
                     exit_code=0, seconds=1.5, artifacts=(end,))  # fmt: skip
    return [encode_json(RunRecord(modelc="1", exit_code=0, seconds=2.0, models=(model,)))]


def _entry(data: bytes, _: Path) -> None:
    from modelc.pipeline.cache.store_layout import decode_entry, entry_name

    decode_entry(data, "a" * 64, entry_name(data))


def _entry_seeds() -> list[bytes]:
    from modelc.core.records import FileRecord
    from modelc.pipeline.cache.store_layout import CachedQuantization, CacheEntry, encode_entry
    from modelc.tests.reports.records import full

    file = FileRecord(name="m.onnx", size=3, sha256="0" * 64)
    said = CachedQuantization(model="m.onnx", versions={"onnx": "1"}, options={}, notes=("n",))
    entry = CacheEntry(key="a" * 64, model="m", artifact="onnx", files=(file,), calibrated=said)
    judged = CacheEntry(key="a" * 64, model="m", artifact="onnx", files=(file,), manifest=full())
    return [encode_entry(entry), encode_entry(judged)]


def _commit(data: bytes, folder: Path) -> None:
    from modelc.pipeline.manifest_file import COMMIT_FOLDER
    from modelc.pipeline.output_folder import settle_commit

    place = folder / COMMIT_FOLDER
    place.mkdir(exist_ok=True)
    _placed(data, place, "commit.json")
    settle_commit(folder)


def _commit_seeds() -> list[bytes]:
    return [b'{"moves":[{"source":".modelc.commit/0-m","name":"m.onnx"}],"removals":["a/b.onnx"]}']


def _checkpoint(name: str) -> Callable[[bytes, Path], None]:
    """Looks into a checkpoint, as `modelc init` does: its kind, names, sizes and tensors."""

    def look(data: bytes, folder: Path) -> None:
        from modelc.checkpoints.checkpoint_description import describe_checkpoint
        from modelc.checkpoints.sample_inputs import read_samples

        path = _placed(data, folder, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            describe_checkpoint(path)
            read_samples(path)

    return look


def _safetensors_seeds() -> list[bytes]:
    import torch
    from safetensors.torch import save

    tensors = {"a.weight": torch.ones(3, 4), "b": torch.zeros(2, dtype=torch.bfloat16)}
    return [save(tensors, {"format": "pt"}), save({"e": torch.zeros(0, 3)})]


def _torch_seeds(*, packed: bool) -> list[bytes]:
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    state = {"state_dict": net.state_dict(), "epoch": 3, "pytorch-lightning_version": "2"}
    views = {"v": torch.arange(12).view(3, 4).t(), "h": torch.zeros(3, dtype=torch.half)[1:]}
    return [_saved(one, packed=packed) for one in (state, views, net)]


def _saved(value: object, *, packed: bool) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=packed)
    return stream.getvalue()


def _npz(data: bytes, folder: Path) -> None:
    from modelc.checkpoints.sample_inputs import read_samples
    from modelc.core.errors import ModelcError
    from modelc.pipeline.worst_feed import read_feed

    path = _placed(data, folder, "x.npz")
    try:
        read_samples(path)
    except ModelcError:
        read_feed(path)


def _npz_seeds() -> list[bytes]:
    import numpy as np

    made = []
    for write in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        write(stream, x=np.zeros((2, 3), np.float32), y=np.arange(4))
        made.append(stream.getvalue())
    return made


def _calibration(name: str) -> Callable[[bytes, Path], None]:
    """A sample as calibration reads it; its own misfit is a finding of the data."""

    def read(data: bytes, folder: Path) -> None:
        from modelc.calibration.sample_formats import read_arrays

        for blob in (_placed(data, folder, name), io.BytesIO(data)):
            read_arrays(blob, Path(name).suffix)

    return read


def _npy_seeds() -> list[bytes]:
    import numpy as np

    stream = io.BytesIO()
    np.save(stream, np.ones((2, 3), np.float32))
    return [stream.getvalue()]


def _onnx(data: bytes, folder: Path) -> None:
    from modelc.converters.registry import target_for
    from modelc.core.signature import Signature

    path = _placed(data, folder, "m.onnx")
    (folder / "w.bin").write_bytes(bytes(64))
    target = target_for(path)
    target.inspect(path)
    with target.open_runner(path, "cpu", Signature(inputs=())):
        pass


def _onnx_seeds() -> list[bytes]:
    return [model.SerializeToString() for model in _onnx_models()]


def _onnx_models() -> Iterator[onnx.ModelProto]:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, parser

    head = '<ir_version: 8, opset_import: ["": 18]>'
    model = parser.parse_model(
        head + "g (float[n,3] x) => (float[n,4] y) <float[3,4] w> { z = MatMul(x, w) y = Relu(z) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 4), np.float32), "w"))
    yield model
    outside = helper.make_tensor("w", TensorProto.FLOAT, [3, 4], bytes(48), raw=True)
    outside.ClearField("raw_data")
    outside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "8"), ("length", "48")):
        outside.external_data.add(key=key, value=value)
    del model.graph.initializer[:]
    model.graph.initializer.append(outside)
    yield model
    yield parser.parse_model(
        head
        + "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = t () => (float[2]"
        " a) { a = Constant <value = float[2] {1, 2}> () }, else_branch = e () => (float[2] b)"
        " { b = Identity(x) }> }"
    )


def _archive(data: bytes, folder: Path) -> None:
    from modelc.converters.registry import target_for
    from modelc.core.torch_file import refuse_archive_code

    path = _placed(data, folder, "m.pt2")
    target = target_for(path)
    refuse_archive_code(path)
    if target.NAME == "aoti":
        target.inspect(path)


@cache
def _archive_seeds() -> list[bytes]:
    import torch

    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3),))
        torch.export.save(program, stream)
        script = io.BytesIO()
        torch.jit.save(torch.jit.trace(torch.nn.ReLU(), torch.zeros(2)), script)  # type: ignore[no-untyped-call]
    return [stream.getvalue(), script.getvalue()]


def _index(data: bytes, folder: Path) -> None:
    from modelc.checkpoints.checkpoint_files import check_openable

    check_openable(_placed(data, folder, "m.safetensors.index.json"), "a.b:c")


def _sidecar(data: bytes, folder: Path) -> None:
    from modelc.converters.onnx_origins import read_origins

    _placed(data, folder, "m.debug.json")
    read_origins(folder / "m.onnx")


def _engine(data: bytes, folder: Path) -> None:
    from modelc.converters.trt.engine_records import engine_sidecar_path, read_sidecar

    engine = _placed(b"ftrt", folder, "m.engine")
    engine_sidecar_path(engine).write_bytes(data)
    read_sidecar(engine)


def _json(*texts: str) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


OPENINGS = (
    Opening(name="input", seeds=_input_seeds, open=_input, quick=400, slow=40_000),
    Opening(name="toml", seeds=_toml_seeds, open=_toml, quick=200, slow=8_000),
    Opening(name="manifest", seeds=_manifest_seeds, open=_manifest, quick=200, slow=8_000),
    Opening(name="run-record", seeds=_run_record_seeds, open=_run_record, quick=200, slow=4_000),
    Opening(name="cache-entry", seeds=_entry_seeds, open=_entry, quick=300, slow=8_000,
            allowed=("CorruptEntryError",)),
    Opening(name="commit", seeds=_commit_seeds, open=_commit, quick=200, slow=3_000),
    Opening(name="safetensors", seeds=_safetensors_seeds, open=_checkpoint("m.safetensors"),
            quick=300, slow=9_000),
    Opening(name="torch-zip", seeds=lambda: _torch_seeds(packed=True), open=_checkpoint("m.pt"),
            quick=300, slow=9_000),
    Opening(name="torch-legacy", seeds=lambda: _torch_seeds(packed=False),
            open=_checkpoint("m.pt"), quick=300, slow=5_000),
    Opening(name="npz", seeds=_npz_seeds, open=_npz, quick=300, slow=8_000),
    Opening(name="npy", seeds=_npy_seeds, open=_calibration("x.npy"), quick=200, slow=3_000,
            allowed=("SampleError",)),
    Opening(name="onnx", seeds=_onnx_seeds, open=_onnx, quick=300, slow=6_000),
    Opening(name="pt2", seeds=_archive_seeds, open=_archive, quick=200, slow=2_500),
    Opening(name="index", seeds=_json('{"metadata":{},"weight_map":{"a":"b.safetensors"}}'),
            open=_index, quick=200, slow=3_000),
    Opening(name="sidecar", seeds=_json('{"nodes":{"n":{"module":"a.b","class":"C"}}}'),
            open=_sidecar, quick=200, slow=3_000),
    Opening(name="engine-sidecar", seeds=_json('{"engine":{"name":"m","size":3,"sha256":"a"}}'),
            open=_engine, quick=100, slow=1_500),
)  # fmt: skip
BY_NAME = {one.name: one for one in OPENINGS}
