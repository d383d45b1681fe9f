"""modelc on a host whose GPU is played by ONNX Runtime: `python stand_in_gpu.py build-trt out/`.

The engine is the ONNX file behind TensorRT's magic; `STAND_IN_FAULT=0.1` makes every output wrong by
that share, as a faulty engine would be. Everything between builder and verdict is the real code.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from modelc.converters import tensorrt_engine
from modelc.converters.runner_base import RunnerBase
from modelc.converters.trt.build_launcher import BuildHost
from modelc.converters.trt.engine_records import BuildRequest, BuildResult
from modelc.converters.trt.trt_installation import CudaDevice, CudaDriver, TensorrtInstallation
from modelc.core.contract import Feed, Outputs, Readiness
from modelc.core.records import Coverage
from modelc.core.signature import Signature

MAGIC = b"ftrt"
DEVICE = CudaDevice(index=0, name="stand-in", capability=(8, 9), memory=8 << 30)
INT8 = Coverage(layers={"int8": 1}, share={"int8": 1.0}, work="layers", source="stand-in")


class StandInRunner(RunnerBase):
    """Runs the ONNX file in an engine."""

    def __init__(self, path: Path, signature: Signature) -> None:
        import onnxruntime

        plain = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(
            path.read_bytes()[len(MAGIC) :], providers=plain
        )
        self.inputs = tuple(one.name for one in self._session.get_inputs())
        self._fault = float(os.environ.get("STAND_IN_FAULT", "0"))

    def run(self, feed: Feed) -> Outputs:
        names = [one.name for one in self._session.get_outputs()]
        found = self._session.run(names, {name: feed[name] for name in self.inputs})
        outputs = dict(zip(names, found, strict=True))
        if self._fault:
            for name, array in outputs.items():
                if array.dtype.kind == "f":
                    outputs[name] = (array * (1 + self._fault)).astype(array.dtype)
        return outputs


def build(request: BuildRequest, advance: object = None, **_: object) -> BuildResult:
    """Write the engine."""
    del advance
    Path(request.engine).write_bytes(MAGIC + Path(request.onnx).read_bytes())
    return BuildResult(tensorrt="11.4.0", inputs=(), outputs=(), layers="")


def main() -> None:
    """Run modelc with the stand-in, in this process."""
    os.environ["MODELC_ISOLATE"] = "0"  # a child process would not have it
    engine: Any = tensorrt_engine
    real = engine.convert
    host = BuildHost(
        driver=lambda: CudaDriver(version=13000, devices=(DEVICE,)),
        installed=lambda: TensorrtInstallation(package="11.4.0", importable=True),
    )
    engine.readiness = lambda: Readiness(ready=True, version="11.4.0")
    engine.build_with_python = build
    engine.convert = lambda job: real(job, host)
    engine.open_runner = lambda path, device, signature, settings=None: StandInRunner(
        path, signature
    )
    engine.coverage = lambda path, example, device: INT8 if "int8" in path.name else None

    from modelc.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
