"""A target that does as it is told, for what no real one does at will; and short orders."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from modelc.converters.runner_base import RunnerBase
from modelc.core.contract import (
    EAGER,
    Branch,
    Converted,
    Feed,
    Inspection,
    Job,
    Outputs,
    Readiness,
    Runner,
)
from modelc.core.kinds import Capture, Precision
from modelc.core.records import Coverage
from modelc.core.signature import Signature
from modelc.core.verdict import Verdict
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.validate_file import validate_file
from modelc.sample_models.gate import gate


class FakeRunner(RunnerBase):
    """Answers with a function."""

    def __init__(self, signature: Signature, answer: Callable[[Feed], Outputs]) -> None:
        self.inputs = tuple(spec.name for spec in signature.inputs)
        self.run = answer

    run: Callable[[Feed], Outputs]


def eagerly(feed: Feed) -> Outputs:
    """What gate itself answers."""
    import torch

    with torch.no_grad():
        return {"output": gate()(torch.tensor(feed["x"])).numpy()}


@dataclass(frozen=True, kw_only=True)
class Fake:
    """A target made of text; `on_convert` and `on_open` may raise, after a file was written."""

    NAME: str = "fake"
    SUMMARY: str = "text"
    SUFFIX: str = ".fake"
    MADE_FROM: Mapping[Precision, str] = field(default_factory=lambda: {Precision.FP32: EAGER})
    CAPTURES: tuple[Capture, ...] = (Capture.TRACE,)
    DEVICES: tuple[str, ...] = ("cpu",)
    ready: Readiness = Readiness(ready=True, version="1")  # noqa: RUF009 - frozen
    text: str = "a model"
    frozen: tuple[Branch, ...] = ()
    answer: Callable[[Feed], Outputs] = eagerly
    on_convert: Callable[[Job], object] = lambda _: None
    on_open: Callable[[], object] = lambda: None
    covered: Coverage | None = None
    places: tuple[Mapping[str, int], ...] = ()

    def readiness(self) -> Readiness:
        return self.ready

    def claims(self, path: Path) -> bool:
        return path.suffix == self.SUFFIX

    def convert(self, job: Job) -> Converted:
        name = job.stem + self.SUFFIX
        (job.folder / name).write_text(self.text)
        self.on_convert(job)
        return Converted(
            files=((name, "model"),),
            versions={"text": "1"},
            frozen=self.frozen,
            places=self.places,
        )

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:
        assert path.read_text() == self.text
        assert device == "cpu"
        self.on_open()
        return FakeRunner(signature, self.answer)

    def inspect(self, path: Path) -> Inspection:
        raise NotImplementedError(path)

    def coverage(self, path: Path, example: Feed, device: str) -> Coverage | None:
        assert path.exists()
        assert example
        assert device == "cpu"
        return self.covered


@pytest.fixture
def fake() -> Callable[..., Fake]:
    """`fake(NAME="other", on_convert=...)` -> a target; `origin` is of all its precisions."""

    def make(
        origin: str = EAGER, precisions: tuple[Precision, ...] = (Precision.FP32,), **parts: object
    ) -> Fake:
        made_from = dict.fromkeys(precisions, origin)
        return replace(Fake(MADE_FROM=made_from), **parts)  # type: ignore[arg-type]  # the fields are Fake's own

    return make


@pytest.fixture
def order(gate_source: Source, tmp_path: Path) -> Callable[..., Order]:
    """`order("onnx", "openvino:fp16", source=..., opset=...)` -> an Order into tmp_path/out."""

    def make(*wanted: str, source: Source = gate_source, **parts: object) -> Order:
        plain = Order(
            source=source,
            wanted=tuple(Wanted.parse(text) for text in wanted),
            out=tmp_path / "out",
            judging=Judging(),
        )
        return replace(plain, **parts)  # type: ignore[arg-type]  # the fields are Order's own

    return make


@pytest.fixture
def judged(
    exports: Callable[[str], Path],
    exported_digits: Path,
    sources: Callable[[str], Source],
    tmp_path: Path,
) -> Callable[[str, str, Callable[[Path], None]], Verdict]:
    """`judged("nested", "model.onnx", spoil)`: a copy of it, spoiled, beside its checkpoint."""

    def judge(name: str, file: str, spoil: Callable[[Path], None]) -> Verdict:
        folder = exported_digits if name == "digits" else exports(name)
        for path in folder.glob("model*"):
            shutil.copy(path, tmp_path)
        spoil(tmp_path / file)
        precision = Precision.FP16 if "fp16" in file else None
        source = replace(sources(name), trust=True)  # no manifest knows what was spoiled
        return validate_file(tmp_path / file, source, precision=precision)

    return judge
