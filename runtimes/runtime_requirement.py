"""What `--in` names: a release of a runtime, and the Python that it runs in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import ErrorCode, Hint, Option, UsageError, unknown_name_error
from .generation_files import ONNXRUNTIME_GENAI, OPENVINO_GENAI

_PYTHON = re.compile(r"\s*,\s*python\s*={1,2}\s*(?P<version>[0-9]{1,2}\.[0-9]{1,3})\s*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_LENGTH = 200  # characters
_EXAMPLES = {
    "onnxruntime": "1.22.0", "onnxruntime-gpu": "1.22.0", "openvino": "2025.3.0",
    ONNXRUNTIME_GENAI: "0.18.0", OPENVINO_GENAI: "2026.4.1.0",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KnownRuntime:
    """A package that runs artifacts: the module to import, and the formats that it opens.

    `old_numpy` is the first release that runs with numpy 2; its metadata does not say so. One that
    `generates` takes prompts and gives tokens.
    """

    module: str
    targets: tuple[str, ...]
    old_numpy: str = ""
    generates: bool = False


_ONNX = KnownRuntime(module="onnxruntime", targets=("onnx", "tensorrt-onnx"), old_numpy="1.19")
KNOWN_RUNTIMES: Mapping[str, KnownRuntime] = {
    "onnxruntime": _ONNX,
    "onnxruntime-gpu": _ONNX,
    "openvino": KnownRuntime(module="openvino", targets=("openvino",), old_numpy="2024.5"),
    ONNXRUNTIME_GENAI: KnownRuntime(module="onnxruntime_genai", targets=("onnx",), generates=True),
    OPENVINO_GENAI: KnownRuntime(module="openvino_genai", targets=("openvino",), generates=True),
    "torch": KnownRuntime(module="torch", targets=("torchscript", "pt2"), old_numpy="2.3"),
}
_ON_THEIR_HOST = ("tensorrt", "tensorrt-rtx", "torch-tensorrt", "onnxruntime-trt")


@dataclass(frozen=True, kw_only=True)
class RuntimeRequirement:
    """A release of a runtime: `onnxruntime==1.20.1`, maybe with the Python to use."""

    package: str
    specifier: str
    python: str = ""

    @property
    def requirement(self) -> str:
        """What an installer is given."""
        return f"{self.package}{self.specifier}"

    def __str__(self) -> str:
        return self.requirement + (f",python={self.python}" if self.python else "")

    @property
    def definition(self) -> KnownRuntime:
        """The package as modelc knows it."""
        return KNOWN_RUNTIMES[self.package]

    def accepts(self, version: str) -> bool:
        """Return whether a release fulfils the requirement."""
        from packaging.specifiers import SpecifierSet
        from packaging.version import InvalidVersion, Version

        try:
            return SpecifierSet(self.specifier).contains(Version(version), prereleases=True)
        except InvalidVersion:
            return False

    def packages(self) -> tuple[str, ...]:
        """Return all that is installed: the runtime and numpy."""
        from packaging.specifiers import SpecifierSet
        from packaging.version import Version

        release = next(iter(SpecifierSet(self.specifier))).version.removesuffix(".*")
        old = self.definition.old_numpy
        is_old = bool(old) and Version(release) < Version(old)
        return (self.requirement, "numpy<2" if is_old else "numpy")


def parse_requirement(text: str) -> RuntimeRequirement:
    """Parse one value of `--in`, such as `onnxruntime==1.20.1` or `openvino~=2025.3,python=3.12`.

    Raises:
        UsageError: it is no requirement, names no runtime, or no release of it.
    """
    python = _PYTHON.search(text)
    bare = text if python is None else text[: python.start()] + text[python.end() :]
    name, specifier = _read_requirement(bare.strip(), text)
    if name in _ON_THEIR_HOST:
        raise UsageError(
            f"--in {text}: an engine runs in the release that built it, on a host with its GPU",
            hint="judge it there: modelc validate FOLDER",
            option="in",
            code=ErrorCode.UNSUPPORTED,
        )
    if name not in KNOWN_RUNTIMES:
        raise unknown_name_error("runtime in --in:", name, list(KNOWN_RUNTIMES))
    return RuntimeRequirement(
        package=name, specifier=specifier, python="" if python is None else python["version"]
    )


def _read_requirement(bare: str, text: str) -> tuple[str, str]:
    """Return the canonical name and the specifier of a requirement that names one release.

    Raises:
        UsageError: it has options, a URL, a path, extras or markers, or does not name a release.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    shown = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
    if len(bare) > _MAX_LENGTH or _NAME.match(bare) is None:  # an option, a path, or nothing
        raise _form_error(shown, "is not RUNTIME==VERSION")
    try:
        found = Requirement(bare)
    except InvalidRequirement:
        raise _form_error(shown, "is not RUNTIME==VERSION") from None
    name = canonicalize_name(found.name)
    if found.url or found.extras or found.marker:
        raise _form_error(shown, "has a URL, extras or a marker", name)
    kinds = [one.operator for one in found.specifier]
    if kinds not in (["=="], ["~="]):
        raise _form_error(shown, "does not name one release, with == or ~=", name)
    return str(name), str(found.specifier)


def _form_error(shown: str, what: str, name: str = "onnxruntime") -> UsageError:
    example = f"{name}=={_EXAMPLES.get(name, '2.11.0')}"
    return UsageError(
        f"--in {shown!r} {what}",
        hint=Hint("for example ", Option("in", example)),
        option="in",
        code=ErrorCode.INVALID_VALUE,
    )
