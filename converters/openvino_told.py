"""What an IR says of where it came from, read from its XML without OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.parsers import expat

from ..core.errors import RunnerError

_METADATA_PATH = ["net", "rt_info", "modelc"]


def read_ir_metadata(path: Path) -> dict[str, str]:
    """The entries of `net/rt_info/modelc`.

    A document type is refused: with one come entities, which grow or name other files.

    Raises:
        RunnerError: it is no XML, or not what OpenVINO writes.
    """
    found: dict[str, str] = {}
    at: list[str] = []

    def begin(name: str, attributes: Mapping[str, str]) -> None:
        if at == _METADATA_PATH:
            if name in found:
                raise _corrupt_error(path, f"it says {name} twice")
            found[name] = attributes.get("value", "")
        at.append(name)

    def end(name: str) -> None:  # noqa: ARG001 - expat's own order of calls
        at.pop()

    def doctype(*_: object) -> None:
        raise _corrupt_error(path, "it has a document type")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.StartDoctypeDeclHandler = doctype
    try:
        with path.open("rb") as stream:
            parser.ParseFile(stream)
    except (OSError, expat.ExpatError, ValueError) as error:
        raise _corrupt_error(path, str(error)) from error
    return found


def _corrupt_error(path: Path, why: str) -> RunnerError:
    return RunnerError(f"{path.name} is not what OpenVINO writes: {why}", hint="make it again")
