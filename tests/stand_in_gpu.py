"""modelc on a host whose GPU is played by ONNX Runtime: `python stand_in_gpu.py build-trt out/`.

The engine is the ONNX file behind TensorRT's magic; in place of a real engine of TensorRT-RTX, the
ONNX file that it was built from runs. `STAND_IN_FAULT=0.1` makes every output wrong by that share,
as a faulty engine would be. Between builder and verdict, the real code runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelc.converters import tensorrt_engine, tensorrt_rtx
from modelc.converters.runner_base import RunnerBase
from modelc.converters.trt.build_launcher import BuildHost
from modelc.converters.trt.engine_records import BuildRequest, BuildResult
from modelc.converters.trt.trt_installation import CudaDevice, CudaDriver, TensorrtInstallation
from modelc.core.contract import Feed, Outputs, Readiness
from modelc.core.records import Coverage
from modelc.core.signature import Signature

MAGIC = b"ftrt"
VERSION = "11.4.0"
DEVICE = CudaDevice(index=0, name="stand-in", capability=(8, 9), memory=8 << 30)
INT8 = Coverage(layers={"int8": 1}, share={"int8": 1.0}, work="layers", source="stand-in")


class StandInRunner(RunnerBase):
    """Runs the ONNX file in an engine."""

    def __init__(
        self,
        path: Path,
        device: str,
        signature: Signature,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        import onnxruntime

        assert device == "cuda"
        assert settings is not None
        model = path.read_bytes()[len(MAGIC) :]
        if path.name.endswith(tensorrt_rtx.SUFFIX):
            model = Path(settings["weights"]).read_bytes()
        self._session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.inputs = tuple(one.name for one in signature.inputs)
        self._fault = float(os.environ.get("STAND_IN_FAULT", "0"))

    def run(self, feed: Feed) -> Outputs:
        """Run one feed, with the fault in all floats."""
        names = [one.name for one in self._session.get_outputs()]
        found = self._session.run(names, {name: feed[name] for name in self.inputs})
        return {
            name: (array * (1 + self._fault)).astype(array.dtype)
            if array.dtype.kind == "f"
            else array
            for name, array in zip(names, found, strict=True)
        }


def build(request: BuildRequest, *_: object, **__: object) -> BuildResult:
    """Write the engine."""
    Path(request.engine).write_bytes(MAGIC + Path(request.onnx).read_bytes())
    return BuildResult(tensorrt=VERSION)


def coverage(path: Path, *_: object) -> Coverage | None:
    """Return what an inspector would say of an INT8 engine."""
    return INT8 if "int8" in path.name else None


def main() -> None:
    """Run modelc with the stand-in, in this process."""
    os.environ["MODELC_ISOLATE"] = "0"  # a child process would not have it
    engine: Any = tensorrt_engine
    rtx: Any = tensorrt_rtx
    convert = engine.convert
    host = BuildHost(
        driver=lambda: CudaDriver(version=13000, devices=(DEVICE,)),
        installed=lambda library: TensorrtInstallation(
            library=library, package=VERSION, importable=True
        ),
    )
    engine.readiness = rtx.readiness = lambda: Readiness(ready=True, version=VERSION)
    engine.build_with_python = build
    engine.convert = lambda job: convert(job, host)
    engine.open_runner = rtx.open_runner = StandInRunner
    engine.coverage = coverage

    from modelc.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
