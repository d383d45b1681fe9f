"""AOTInductor package: machine code and weights in one archive, compiled here, loaded by torch.

A package is native code for one kind of CPU. It accepts any sizes, so its runner checks feeds
against the signature in its record. Opening it runs its code, which is allowed for packages that
this process compiled, and else only if the user trusts their maker.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import (
    EAGER,
    RECORD,
    Converted,
    Feed,
    Inspection,
    Job,
    Readiness,
    Runner,
)
from ..core.errors import Hint, MissingError, Option, RunnerError
from ..core.kinds import Capture, Precision
from ..core.signature import Signature
from ..core.untrusted_files import zip_members
from . import aoti_compiler, archive_records, exported_program
from .archive_records import (
    INSIDE,
    build_call_record,
    check_trust,
    describe_program,
    inspect_record,
    read_record,
    read_torch_metadata,
    trust_file,
)
from .installed_packages import package_versions
from .runner_base import TorchRunner, check_feed, order_inputs, runner_error

if TYPE_CHECKING:
    from ..core.contract import Outputs

NAME: str = "aoti"
SUMMARY: str = "AOTInductor package: the model as machine code, for torch on this kind of CPU"
SUFFIX: str = ".aoti.pt2"
MADE_FROM: Mapping[Precision, str] = {Precision.FP32: EAGER}
CAPTURES: tuple[Capture, ...] = exported_program.CAPTURES
DEVICES: tuple[str, ...] = ("cpu",)
read_metadata = read_torch_metadata

_LIBRARIES = "data/aotinductor/"
_SOURCES = (".cpp", ".h", ".o", ".S")  # the sources of the library, which name folders
_CHUNK = 1 << 20  # bytes copied at once


def readiness() -> Readiness:
    """Return whether Linux and a C++ compiler with its headers are available."""
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
    """Return whether it is a pt2 archive with a compiled library."""
    return exported_program.is_archive(path) and any(
        _LIBRARIES in name for name in zip_members(path)
    )


def convert(job: Job) -> Converted:
    """Capture, compile in a child process, and pack with our record."""
    from ..capture.capture_strategies import capture_exported_program

    captured = capture_exported_program(job)
    name = job.stem + SUFFIX
    place = job.folder / "aoti"
    place.mkdir()
    with exported_program.with_examples(captured.program, job) as program:
        from_one = any(dim.low <= 1 for dim in job.signature.dynamic_dims.values())
        package = aoti_compiler.compile_package(program, place, from_one=from_one)
        record: dict[str, Any] = json.loads(build_call_record(job, "flat"))
        record[INSIDE] = describe_program(program, record)  # the library cannot say
    _pack_archive(package, job.folder / name, json.dumps(record))
    shutil.rmtree(place)
    trust_file(job.folder / name)
    target = _platform_of(job.folder / name)
    return Converted(
        files=((name, "model"),),
        versions=package_versions("torch"),
        options={"compiled for": target},
        notes=(*captured.notes, f"machine code for {target}: export again for another kind of CPU"),
        places=captured.places,
    )


def _pack_archive(package: Path, path: Path, record: str) -> None:
    """Write the package with the record and without the library's sources."""
    with zipfile.ZipFile(package) as whole, zipfile.ZipFile(path, "w") as slim:
        entries = whole.infolist()
        root = entries[0].filename.partition("/")[0]
        for entry in entries:
            if _LIBRARIES in entry.filename and entry.filename.endswith(_SOURCES):
                continue
            info = zipfile.ZipInfo(entry.filename)
            info.file_size = entry.file_size
            with whole.open(entry) as source, slim.open(info, "w") as target:
                shutil.copyfileobj(source, target, _CHUNK)
        slim.writestr(zipfile.ZipInfo(f"{root}/extra/{RECORD}"), record)  # no date


def _read_record(path: Path) -> dict[str, Any]:
    """Read the record of a package without loading it.

    Raises:
        RunnerError: it is no package, or its record cannot be read.
    """
    if not claims(path):
        hint = "give a package that modelc export wrote"
        raise RunnerError(f"{path.name} is not an AOTInductor package", hint=hint)
    return read_record(path)


def _platform_of(path: Path) -> str:
    """Return the machine that it was compiled for, from Inductor's metadata."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("wrapper_metadata.json")]
        found = json.loads(archive.read(names[0])) if names else {}
    keys = ("AOTI_PLATFORM", "AOTI_MACHINE", "AOTI_CPU_ISA")
    return " ".join(str(found[key]) for key in keys if found.get(key)) or "an unknown machine"


def open_runner(
    path: Path, device: str, signature: Signature, settings: Mapping[str, str] | None = None
) -> Runner:
    """Load the library, which runs its maker's code.

    Args:
        path: the package.
        device: `cpu`.
        signature: the accepted feeds, if the package has no record.
        settings: `trust_engine` allows a package that this process did not compile.

    Raises:
        MissingError: the device is not the CPU.
        RunnerError: the package is not trusted, or torch cannot load it.
    """
    if device != "cpu":
        raise MissingError(
            f"the package is for the CPU, not for {device}",
            hint=Hint("use ", Option("device", "cpu")),
            option="device",
        )
    record = _read_record(path)
    check_trust(distrust_reason(path, settings or {}))
    package = _load_package(path.resolve())
    found = Signature(inputs=archive_records.record_specs(record) or signature.inputs)
    return _AotiRunner(package, found, record.get("outputs"))


def _load_package(path: Path) -> Any:
    """Load the library in this process, keeping torch's CPU detection out of the cache."""
    from torch._inductor import aoti_load_package
    from torch._inductor.utils import fresh_cache

    try:
        with tempfile.TemporaryDirectory(prefix="modelc-") as place, fresh_cache(dir=place):
            return aoti_load_package(str(path))
    except Exception as error:  # torch raises anything here
        raise runner_error("torch._inductor.aoti_load_package", error) from error


def distrust_reason(path: Path, settings: Mapping[str, str]) -> str:
    """Return why the package must not be opened; empty if it may.

    Args:
        path: the package.
        settings: `trust_engine` trusts its maker.
    """
    return archive_records.distrust_reason(path, settings, "machine code")


class _AotiRunner(TorchRunner):
    """Calls the library with checked feeds: it would read past the end of others."""

    def __init__(self, package: Any, signature: Signature, outputs: list[str] | None) -> None:
        names = [spec.name for spec in signature.inputs]
        super().__init__(lambda tensors: package(*tensors), names, outputs=outputs, device="cpu")
        self._specs = signature.inputs

    def run(self, feed: Feed) -> Outputs:
        """Run a feed that fits the signature; reject others."""
        order_inputs(feed, self.inputs)
        check_feed(feed, self._specs)
        return super().run(feed)


def inspect(path: Path) -> Inspection:
    """Describe the package from its record; the library is code and stays unloaded."""
    record = _read_record(path)
    with zipfile.ZipFile(path) as archive:
        library = sum(
            entry.file_size for entry in archive.infolist() if entry.filename.endswith(".so")
        )
    facts = {
        "compiled for": _platform_of(path),
        "library": f"{library} bytes, weights included",
    }
    return inspect_record(NAME, record, facts)


def coverage(path: Path, example: Feed, device: str) -> None:
    """Return None: the library computes in the dtypes of the program."""
