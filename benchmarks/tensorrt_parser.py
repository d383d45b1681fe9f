"""The pre-flight beside NVIDIA's parser: python -m modelc.benchmarks.tensorrt_parser --write PAGE.

Each model has one operator. It is looked at by the pre-flight's table, then parsed and built by
TensorRT-RTX in a child process. A false blocker is a model that the table rejects and the builder
builds; a miss is one that the table accepts without a warning and the parser or the builder
rejects. Operators for which TensorRT-RTX lacks a plugin are listed apart. Exits 1 where there is a
false blocker, or where the child gave no verdict.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from modelc.converters.trt.engine_build import parse_network
from modelc.converters.trt.parser_support import PLUGIN_OPERATORS
from modelc.converters.trt.parser_verdict import (
    ParserProblem,
    ParserVerdict,
    ask_parser,
    parse_in_child,
)
from modelc.converters.trt.trt_callbacks import make_error_log
from modelc.converters.trt.trt_preflight import look_up_table
from modelc.core.children.child_call import ParentConnection
from modelc.core.errors import ConversionError
from modelc.tests.nets.one_operator import OneOperator, operators

_TIMEOUT = 120.0  # seconds for a model
_FAULTS = ("false blocker", "no verdict")


@dataclass(frozen=True, kw_only=True)
class ParserCase:
    """A model: what the table says of it, and the errors of the parser or the builder."""

    name: str
    blockers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    built: bool = False
    error: str = ""
    failed: bool = False  # no verdict: the child crashed or took too long
    operator: str = ""  # that the parser names

    @property
    def finding(self) -> str:
        """How table and builder agree."""
        if self.failed:
            return "no verdict"
        if self.built:
            return "false blocker" if self.blockers else "right"
        if {self.operator, self.name.partition(":")[0]} & PLUGIN_OPERATORS:
            return "plugin"
        return "right" if self.blockers else "warned" if self.warnings else "miss"


def measure(model: OneOperator) -> ParserCase:
    """Look at one model by the table, then by the parser and the builder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.make().SerializeToString())
        return measure_file(model.name, path)


def measure_file(name: str, path: Path, *, build: bool = True) -> ParserCase:
    """Look at a file by the table, and by the parser and the builder in a child process."""
    blockers, warnings = look_up_table(path)
    verdict = ask_parser(path, parse=build_in_child if build else parse_in_child, timeout=_TIMEOUT)
    error = verdict.failure or "; ".join(one.text for one in verdict.problems)
    operator = next((one.operator for one in verdict.problems), "")
    return ParserCase(
        name=name, blockers=blockers, warnings=warnings, built=verdict.is_accepted,
        error=" ".join(error.split()), failed=bool(verdict.failure), operator=operator,
    )  # fmt: skip


def build_in_child(path: str, parent: ParentConnection) -> ParserVerdict:  # noqa: ARG001 - contract
    """Parse and build a model, with 1 for each element of an input that sets a size."""
    import tensorrt_rtx as trt

    version, log = str(trt.__version__), make_error_log(trt)
    builder = trt.Builder(log)
    try:
        # the parser owns the weights of the network
        network, _parser = parse_network(trt, builder, Path(path), log)
    except ConversionError as error:
        problem = ParserProblem(node="", operator="", text=error.message, code="PARSER")
        return ParserVerdict(version=version, problems=(problem,))
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for tensor in map(network.get_input, range(network.num_inputs)):
        if tensor.is_shape_tensor:
            profile.set_shape_input(tensor.name, *[[1] * max(1, math.prod(tensor.shape))] * 3)
    config.add_optimization_profile(profile)
    if builder.build_serialized_network(network, config) is not None:
        return ParserVerdict(version=version)
    problem = ParserProblem(node="", operator="", text=log.reason, code="BUILDER")
    return ParserVerdict(version=version, problems=(problem,))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every model and write the table; 1 where there is a false blocker."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--files", type=Path, help="a folder of ONNX models to parse as well")
    asked.add_argument("--only", default="*", help="names, as 'Resize*'")
    asked.add_argument("--write", type=Path, help="the table to write")
    args = asked.parse_args(argv)
    found = [measure(model) for model in operators() if fnmatch(model.name, args.only)]
    paths = sorted(args.files.rglob("*.onnx")) if args.files else ()
    found += [measure_file(str(p.relative_to(args.files)), p, build=False) for p in paths]
    text = make_page(found)
    print(text)
    if args.write is not None:
        args.write.write_text(text)
    return int(any(one.finding in _FAULTS for one in found))


def make_page(found: Sequence[ParserCase]) -> str:
    """Return the counts, and every model on which table and builder do not agree."""
    counts = Counter(one.finding for one in found)
    lines = [f"{len(found)} models: " + ", ".join(f"{n} {name}" for name, n in counts.items()), ""]
    for one in found:
        if one.finding != "right":
            said = "; ".join(one.blockers) or one.error
            lines.append(f"- {one.finding}: {one.name}: {' '.join(said.split())[:160]}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from modelc.benchmarks import tensorrt_parser  # a child cannot import __main__

    raise SystemExit(tensorrt_parser.main())
