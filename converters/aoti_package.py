"""AOTInductor package: machine code and weights in one archive, compiled here, loaded by torch.

The package is native code of one kind of CPU. It computes on whatever sizes it is given, so its
runner holds feeds to the signature in its record. To open one runs its code: that is done for what
this process compiled itself, and else only where the user says that its maker is trusted.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..capture.capture_strategies import capture_exported_program
from ..core.contract import (
    EAGER,
    RECORD,
    Converted,
    Feed,
    Inspection,
    Job,
    Readiness,
    Runner,
    TensorInfo,
)
from ..core.errors import Hint, MissingError, Option, RunnerError
from ..core.kinds import Capture, Precision
from ..core.records import sha256_of
from ..core.signature import Signature
from ..core.untrusted_files import zip_members
from . import aoti_compiler, archive_records, exported_program
from .archive_records import (
    build_call_record,
    parse_call_record,
    read_torch_metadata,
    record_origin,
)
from .installed_packages import package_versions
from .runner_base import TorchRunner, check_feed, order_inputs, runner_error

if TYPE_CHECKING:
    import torch

    from ..core.contract import Outputs

NAME: str = "aoti"
SUMMARY: str = "AOTInductor package: the model as machine code, for torch on this kind of CPU"
SUFFIX: str = ".aoti.pt2"
MADE_FROM: Mapping[Precision, str] = {Precision.FP32: EAGER}
CAPTURES: tuple[Capture, ...] = exported_program.CAPTURES
DEVICES: tuple[str, ...] = ("cpu",)

_INSIDE = "inside"  # the part of the record that says what the package holds
_LIBRARIES = "data/aotinductor/"
_SOURCES = (".cpp", ".h", ".o", ".S")  # what the library was compiled from; they name folders
_KEPT = 1 << 20  # bytes copied at once
_TRUST_HINT = "add --trust, only if you trust its maker"
_COMPILED: set[str] = set()  # digests of what this process compiled: its own code, not a stranger's


def readiness() -> Readiness:
    """Whether a C++ compiler with its headers is here, on a system that this is for."""
    if not sys.platform.startswith("linux"):
        reason = f"packages are made on Linux, not on {sys.platform}"
        return Readiness(ready=False, reason=reason, mend="run modelc on Linux")
    try:
        aoti_compiler.find_torch_headers()
        path = aoti_compiler.find_compiler()
    except MissingError as error:
        return Readiness(ready=False, reason=error.message, mend=error.hint)
    return Readiness(ready=True, version=f"{package_versions('torch').get('torch', '')}, {path}")


def claims(path: Path) -> bool:
    """A pt2 archive that holds a compiled library."""
    return exported_program.is_archive(path) and bool(_library_names(path))


def _library_names(path: Path) -> list[str]:
    return [name for name in zip_members(path) if _LIBRARIES in name]


def convert(job: Job) -> Converted:
    """Capture, compile in a process of its own, pack with our record."""
    taken = capture_exported_program(job)
    name = job.stem + SUFFIX
    place = job.folder / "aoti"
    place.mkdir()
    with exported_program.with_examples(taken.program, job) as program:
        from_one = any(dim.low <= 1 for dim in job.signature.dynamic_dims.values())
        package = aoti_compiler.compile_package(program, place, from_one=from_one)
        record = _build_record(job, program)
    _pack_archive(package, job.folder / name, record)
    shutil.rmtree(place)
    _COMPILED.add(sha256_of(job.folder / name))
    target = _platform_of(job.folder / name)
    return Converted(
        files=((name, "model"),),
        versions=package_versions("torch"),
        options={"compiled for": target},
        notes=(*taken.notes, f"machine code for {target}: export again for another kind of CPU"),
        places=taken.places,
    )


def _build_record(job: Job, program: torch.export.ExportedProgram) -> str:
    """The call record, with what can be said of the program: the library does not tell."""
    record: dict[str, Any] = json.loads(build_call_record(job, "flat"))
    inputs, outputs = archive_records.tensor_infos(program, record)
    inside = {
        "inputs": [asdict(info) for info in inputs],
        "outputs": [asdict(info) for info in outputs],
        "ranges": archive_records.size_ranges(program, job.signature.inputs),
        "weights": archive_records.count_weights(program),
        "operators": archive_records.count_operators(program),
    }
    return json.dumps({**record, _INSIDE: inside})


def _pack_archive(package: Path, path: Path, record: str) -> None:
    """The package without the sources of its library, and with the record."""
    with zipfile.ZipFile(package) as whole, zipfile.ZipFile(path, "w") as slim:
        entries = whole.infolist()
        root = entries[0].filename.partition("/")[0]
        for entry in entries:
            if _LIBRARIES in entry.filename and entry.filename.endswith(_SOURCES):
                continue
            kept = zipfile.ZipInfo(entry.filename)
            kept.file_size = entry.file_size
            with whole.open(entry) as source, slim.open(kept, "w") as target:
                shutil.copyfileobj(source, target, _KEPT)
        slim.writestr(zipfile.ZipInfo(f"{root}/extra/{RECORD}"), record)  # without the time of day


def _read_record(path: Path) -> dict[str, Any]:
    """The record of a package, which nothing is loaded for.

    Raises:
        RunnerError: it is no package, or its record cannot be read.
    """
    if not claims(path):
        raise RunnerError(
            f"{path.name} is no AOTInductor package", hint="give what modelc export made"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"/extra/{RECORD}")]
            return parse_call_record(archive.read(names[0]).decode("utf-8") if names else "")
    except Exception as error:  # zipfile raises anything at a damaged member
        raise runner_error("the package's record", error) from error


def _platform_of(path: Path) -> str:
    """The machine that it was compiled for, as Inductor's metadata says."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("wrapper_metadata.json")]
        found = json.loads(archive.read(names[0])) if names else {}
    keys = ("AOTI_PLATFORM", "AOTI_MACHINE", "AOTI_CPU_ISA")
    return " ".join(str(found[key]) for key in keys if found.get(key)) or "an unknown machine"


def open_runner(
    path: Path, device: str, signature: Signature, settings: Mapping[str, str] | None = None
) -> Runner:
    """Load the library; that runs code of its maker.

    Args:
        path: the package.
        device: `cpu`.
        signature: says which feeds are taken, where the package has no record.
        settings: `trust_engine` allows a package that this process did not compile.

    Raises:
        MissingError: it is for the CPU.
        RunnerError: it is not trusted, or torch would not load it.
    """
    if device != "cpu":
        raise MissingError(
            f"the package is for the CPU, not for {device}",
            hint=Hint("use ", Option("device", "cpu")),
            option="device",
        )
    record = _read_record(path)
    reason = distrust_reason(path, settings or {})
    if reason:
        raise RunnerError(reason, hint=_TRUST_HINT)

    package = _load_package(path.resolve())
    found = Signature(inputs=archive_records.record_specs(record) or signature.inputs)
    return _AotiRunner(package, found, record.get("outputs"))


def _load_package(path: Path) -> Any:
    """The library in this process; what torch compiles to learn of the CPU goes to no cache."""
    from torch._inductor import aoti_load_package
    from torch._inductor.utils import fresh_cache

    try:
        with tempfile.TemporaryDirectory(prefix="modelc-") as place, fresh_cache(dir=place):
            return aoti_load_package(str(path))
    except Exception as error:  # the runtime's edge: torch raises anything
        raise runner_error("torch._inductor.aoti_load_package", error) from error


def distrust_reason(path: Path, settings: Mapping[str, str]) -> str:
    """Why the package is not opened: it is code, of whoever made it; empty where it may be.

    Args:
        path: the package.
        settings: `trust_engine` trusts its maker.
    """
    if settings.get("trust_engine") == "true" or sha256_of(path) in _COMPILED:
        return ""
    return f"{path.name} is machine code, which runs when it is opened"


class _AotiRunner(TorchRunner):
    """Calls the library with feeds that fit; it would take others, and read past their ends."""

    def __init__(self, package: Any, signature: Signature, outputs: list[str] | None) -> None:
        names = [spec.name for spec in signature.inputs]
        super().__init__(lambda tensors: package(*tensors), names, outputs=outputs, device="cpu")
        self._specs = signature.inputs

    def run(self, feed: Feed) -> Outputs:
        """Run a feed within the signature; anything else is refused."""
        order_inputs(feed, self.inputs)
        check_feed(feed, self._specs)
        return super().run(feed)


def read_metadata(path: Path) -> dict[str, str]:
    """What the archive says of the job that made it."""
    return read_torch_metadata(path)


def inspect(path: Path) -> Inspection:
    """Read the record; the library is code, and is not loaded."""
    record = _read_record(path)
    inside = record.pop(_INSIDE, {})
    with zipfile.ZipFile(path) as archive:
        library = sum(entry.file_size for entry in _library_entries(archive))
    return Inspection(
        target=NAME,
        inputs=tuple(_tensor_infos(inside.get("inputs", ()))),
        outputs=tuple(_tensor_infos(inside.get("outputs", ()))),
        facts={
            "compiled for": _platform_of(path),
            "library": f"{library} bytes, weights included",
            "ranges": str(inside.get("ranges", "")),
        },
        weights=dict(inside.get("weights", {})),
        operators=dict(inside.get("operators", {})),
        metadata=record_origin(record),
    )


def _library_entries(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [entry for entry in archive.infolist() if entry.filename.endswith(".so")]


def _tensor_infos(found: list[dict[str, Any]]) -> Iterator[TensorInfo]:
    for info in found:
        yield TensorInfo(name=info["name"], dtype=info["dtype"], dims=tuple(info["dims"]))


def coverage(path: Path, example: Feed, device: str) -> None:
    """The library computes in the dtypes of the program: there is nothing to measure."""
