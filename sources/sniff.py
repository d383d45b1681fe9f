"""What kind of checkpoint a file is, by its first bytes. Loads no framework."""

from __future__ import annotations

import json
import pickletools
import zipfile
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

STATE_DICT = "state_dict"
SAFETENSORS = "safetensors"
TORCHSCRIPT = "torchscript"
PT2 = "pt2"
HUGGINGFACE = "huggingface"
PICKLE = "pickle"  # known only once a state_dict file is opened

_AGAIN = "copy or download the file again and compare its size with the original's"
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # protocols 2 to 5
_HEADER_LIMIT = 100 * 2**20  # bytes; safetensors' own limit


def sniff(path: Path) -> str:
    """The kind of one file.

    Raises:
        CheckpointError: it is empty, cut short, or no checkpoint at all.
    """
    with path.open("rb") as file:
        head = file.read(40)
    if not head:
        raise CheckpointError(f"{path} is empty", hint=_AGAIN)
    if head.startswith(b"PK\x03\x04"):
        return _kind_of_zip(path)
    if path.suffix == ".safetensors" or _looks_like_safetensors(head):
        if head.startswith(b"version https://git-lfs"):
            raise _no_checkpoint(path, head)
        _check_safetensors(path)
        return SAFETENSORS
    if head.startswith(_PICKLES):
        return STATE_DICT
    raise _no_checkpoint(path, head)


def pickled_class(path: Path) -> str | None:
    """The class of the object that a state_dict file holds, where that is a class of its own.

    A file of weights alone begins with a dict; `torch.save(module)` begins with the module's class.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            data = archive.read(name)
    except zipfile.BadZipFile:
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
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{path} is a zip archive that was cut short", hint=_AGAIN) from error
    inner = {name.partition("/")[2] for name in names}
    if "archive_format" in inner or "serialized_exported_program.json" in names:
        return PT2
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return TORCHSCRIPT
    if "data.pkl" in inner:
        return STATE_DICT
    raise CheckpointError(
        f"{path} is a zip archive but not PyTorch's: it holds {', '.join(names[:3])}",
        hint="give a file that torch.save, torch.jit.save or torch.export.save wrote",
    )


def _looks_like_safetensors(head: bytes) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _HEADER_LIMIT


def _check_safetensors(path: Path) -> None:
    """Compare the sizes that the header promises with the file's."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= min(size, _HEADER_LIMIT) else b""
    try:
        entries = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name[:2] != "__"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"{path} is cut short or no safetensors file: no header of {length} bytes",
            hint=_AGAIN,
        ) from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise CheckpointError(
            f"{path} is cut short or damaged: {size} bytes where its header promises {expected}",
            hint=_AGAIN,
        )


def _no_checkpoint(path: Path, head: bytes) -> CheckpointError:
    if head.startswith(b"version https://git-lfs"):
        return CheckpointError(
            f"{path} is a Git LFS pointer, not the file itself", hint="run git lfs pull"
        )
    return CheckpointError(
        f"{path} is not a PyTorch checkpoint: it begins with {head[:16]!r}",
        hint="give a file that torch.save, torch.jit.save, torch.export.save or safetensors wrote",
    )
