"""Raw capture paths on the cases of coverage.py, each as a competent user writes it in ten lines.

All but scripting go through a wrapper that binds inputs by name and gives a tuple of tensors.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from modelc.benchmarks.coverage_check import call, tensors_of
from modelc.benchmarks.coverage_feeds import example, signature_of
from modelc.core.signature import Signature
from modelc.tests.nets.cases import Case


@dataclass(frozen=True, kw_only=True)
class Made:
    """A file of a raw path and how it is opened, or why there is none."""

    target: str
    path: Path
    rejected: str = ""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a path gets: the module, the wrapper, example tensors in order, and the signature."""

    module: nn.Module
    flat: nn.Module
    tensors: tuple[Tensor, ...]
    signature: Signature
    outputs: list[str]

    @property
    def names(self) -> list[str]:
        """The inputs, in order."""
        return [spec.name for spec in self.signature.inputs]


class Flat(nn.Module):
    """`forward(*tensors) -> tuple of tensors`."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Bind by name, run, and keep what are tensors."""
        value = call(self.model, dict(zip(self.names, tensors, strict=True)))
        return tuple(tensors_of(value, taken=self.names, caches=False)[0].values())


def dynamo(given: Given, path: Path) -> None:
    """`torch.onnx.export(dynamo=True)` with the signature's dims, then with any that it finds."""

    def export(shapes: dict[str, Any]) -> None:
        torch.onnx.export(
            given.flat,
            given.tensors,
            path,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=given.names,
            output_names=given.outputs,
            verbose=False,
        )

    _with_shapes(given, export)


def legacy(given: Given, path: Path) -> None:
    """`torch.onnx.export(dynamo=False)` with dynamic axes."""
    torch.onnx.export(
        given.flat,
        given.tensors,
        path,
        dynamo=False,
        dynamic_axes=given.signature.axes(),
        input_names=given.names,
        output_names=given.outputs,
    )


def trace(given: Given, path: Path) -> None:
    """`torch.jit.trace`."""
    record: Callable[..., Any] = torch.jit.trace  # typed nowhere
    record(given.flat, given.tensors, strict=False, check_trace=False).save(str(path))


def script(given: Given, path: Path) -> None:
    """`torch.jit.script` on the user's own module."""
    compiled: Callable[..., Any] = torch.jit.script
    compiled(given.module).save(str(path))


def program(given: Given, path: Path) -> None:
    """`torch.export.export` with the signature's dims, then with any that it finds."""

    def export(shapes: dict[str, Any]) -> None:
        made = torch.export.export(given.flat, given.tensors, dynamic_shapes=shapes)
        torch.export.save(made, path)

    _with_shapes(given, export)


def _with_shapes(given: Given, export: Callable[[dict[str, Any]], None]) -> None:
    """As torch's message advises: ranges that it will not have are given as Dim.DYNAMIC."""
    exact = {
        name: torch.export.Dim(name, min=dim.low, max=dim.high)
        for name, dim in given.signature.dynamic_dims.items()
    }
    try:
        export(_shapes(given.signature, exact))
    except Exception as first:  # noqa: BLE001 - raised again below
        try:
            export(_shapes(given.signature, dict.fromkeys(exact, torch.export.Dim.DYNAMIC)))
        except Exception:  # noqa: BLE001 - the first one says more
            raise first from None


def _shapes(signature: Signature, dims: dict[str, Any]) -> dict[str, Any]:
    return {
        "tensors": tuple(
            {at: dims[name] for at, name in signature.axes().get(spec.name, {}).items()}
            for spec in signature.inputs
        )
    }


_TAKE: dict[str, tuple[str, str, Callable[[Given, Path], None]]] = {
    "onnx dynamo": ("onnx", "dynamo.onnx", dynamo),
    "onnx legacy": ("onnx", "legacy.onnx", legacy),
    "jit.trace": ("torchscript", "trace.pt", trace),
    "jit.script": ("torchscript", "script.pt", script),
    "torch.export": ("pt2", "program.pt2", program),
}


def capture_raw(name: str, case: Case, module: nn.Module, folder: Path) -> Made:
    """Take the case down by one path, from a module that is its own."""
    target, file, take = _TAKE[name]
    signature, path = signature_of(case), folder / file
    names = [spec.name for spec in signature.inputs]
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    feed = {key: torch.from_numpy(array) for key, array in example(case).items()}
    try:
        with torch.no_grad():
            value = call(copy.deepcopy(module), feed)
            outputs = list(tensors_of(value, taken=names, caches=False)[0])
        given = Given(
            module=module,
            flat=Flat(module, names).eval(),
            tensors=tuple(feed.values()),
            signature=signature,
            outputs=outputs,
        )
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a tracer's warning stops nobody
            take(given, path)
    except Exception as error:  # noqa: BLE001 - whatever the framework raises, it rejects the case
        lines = str(error).strip().splitlines() or [""]
        return Made(target=target, path=path, rejected=f"{type(error).__name__}: {lines[0][:240]}")
    return Made(target=target, path=path)
