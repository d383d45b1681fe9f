"""Detect the kind of a checkpoint file by its first bytes, without loading a framework."""

from __future__ import annotations

import functools
import pickletools
import zipfile
import zlib
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError, ErrorCode, first_line
from ..core.torch_sizes import PICKLES
from ..core.untrusted_files import (
    HEADER_LIMIT,
    TruncatedFileError,
    find_archive_fault,
    is_zip_archive,
    read_safetensors_header,
)

if TYPE_CHECKING:
    from pathlib import Path

STATE_DICT = "state_dict"
SAFETENSORS = "safetensors"
TORCHSCRIPT = "torchscript"
PT2 = "pt2"
HUGGINGFACE = "huggingface"
PICKLE = "pickle"  # known only after a state_dict file is opened

_VALIDATE = "judge it: modelc validate {path} --against CHECKPOINT"
_BUILD = "; build from it: modelc build-ov {path} --against CHECKPOINT"
_ARTIFACT_KINDS = {  # files of converters by suffix: their kind, and the command that takes them
    ".onnx": ("an ONNX model", _VALIDATE + _BUILD), ".xml": ("an OpenVINO model", _VALIDATE),
    ".engine": ("a TensorRT engine", _VALIDATE), ".plan": ("a TensorRT engine", _VALIDATE),
}  # fmt: skip
_DOWNLOAD_HINT = "copy or download the file again, and compare its size with the original"


def sniff_kind(path: Path) -> str:
    """Return the kind of a file; a file that did not change is read once.

    Raises:
        CheckpointError: it is empty, truncated, or not a checkpoint.
    """
    found = path.stat()
    return _sniff_kind(path, (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


@functools.lru_cache(maxsize=4096)
def _sniff_kind(path: Path, _stamp: tuple[int, ...]) -> str:
    with path.open("rb") as file:
        head = file.read(40)
    if not head:
        raise CheckpointError(f"{path} is empty", hint=_DOWNLOAD_HINT, code=ErrorCode.CORRUPT_FILE)
    if head.startswith(b"PK\x03\x04"):
        return _kind_of_zip(path)
    if path.suffix == ".safetensors" or _is_safetensors_header(head):
        if head.startswith(b"version https://git-lfs"):
            raise _not_a_checkpoint_error(path, head)
        _check_safetensors(path)
        return SAFETENSORS
    if head.startswith(PICKLES):
        return STATE_DICT
    raise _not_a_checkpoint_error(path, head)


def find_pickled_class(path: Path) -> str | None:
    """Return the class of the object in a state_dict file; None if it is a dict.

    A file of weights begins with a dict, the file of `torch.save(module)` with the module's class.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            data = archive.read(name)
    except (zipfile.BadZipFile, StopIteration, RuntimeError, OSError, ValueError, zlib.error):
        return None
    try:
        opcodes = [opcode for opcode, _ in zip(pickletools.genops(data), range(4), strict=False)]
    except ValueError:
        return None
    for opcode, argument, _ in opcodes[1:2]:
        if opcode.name == "GLOBAL" and not str(argument).startswith(
            ("collections ", "torch._utils ")
        ):
            return str(argument).replace(" ", ".")
    return None


def _kind_of_zip(path: Path) -> str:
    if not is_zip_archive(path):
        raise CheckpointError(
            f"{path} is a truncated zip archive", hint=_DOWNLOAD_HINT, code=ErrorCode.CORRUPT_FILE
        )
    fault = find_archive_fault(path)
    if fault:
        raise CheckpointError(
            f"{path} is a corrupt zip archive: {fault}",
            hint=_DOWNLOAD_HINT,
            code=ErrorCode.CORRUPT_FILE,
        )
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    inner = {name.partition("/")[2] for name in names}
    if "archive_format" in inner or "serialized_exported_program.json" in names:
        return PT2
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return TORCHSCRIPT
    if "data.pkl" in inner:
        return STATE_DICT
    raise CheckpointError(
        f"{path} is a zip archive, but not PyTorch's: it contains {', '.join(names[:3])}",
        hint="use a file written by torch.save, torch.jit.save or torch.export.save",
        code=ErrorCode.NOT_A_CHECKPOINT,
    )


def _is_safetensors_header(head: bytes) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= HEADER_LIMIT


def _check_safetensors(path: Path) -> None:
    """Compare the sizes in the header with the file size."""
    try:
        read_safetensors_header(path)
    except TruncatedFileError as error:
        raise CheckpointError(
            f"{path} is truncated or corrupt: {first_line(error)}",
            hint=_DOWNLOAD_HINT,
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file: {first_line(error)}",
            hint=_DOWNLOAD_HINT,
            code=ErrorCode.CORRUPT_FILE,
        ) from error


def names_artifact(path: Path) -> bool:
    """Return whether the name is that of a converted model without a module of torch."""
    return path.suffix in _ARTIFACT_KINDS


def _not_a_checkpoint_error(path: Path, head: bytes) -> CheckpointError:
    if head.startswith(b"version https://git-lfs"):
        return CheckpointError(
            f"{path} is a Git LFS pointer, not the file itself",
            hint="run git lfs pull",
            code=ErrorCode.NOT_A_CHECKPOINT,
        )
    if path.suffix in _ARTIFACT_KINDS:
        what, hint = _ARTIFACT_KINDS[path.suffix]
        return CheckpointError(
            f"{path} is {what}, not a PyTorch checkpoint",
            hint=hint.format(path=path),
            code=ErrorCode.NOT_A_CHECKPOINT,
        )
    return CheckpointError(
        f"{path} is not a PyTorch checkpoint: it begins with {head[:16]!r}",
        hint="use a file written by torch.save, torch.jit.save, torch.export.save or safetensors",
        code=ErrorCode.NOT_A_CHECKPOINT,
    )
