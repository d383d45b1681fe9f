"""Each name, keyword and arity of TensorRT that modelc uses, against 10.16 and 11.4.

The sources are read, not run: what has a type by annotation, constructor or return value is
looked up in the surface. The tests at the end show the check failing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from . import tensorrt_double

CONVERTERS = Path(__file__).parents[1] / "converters"
SOURCES = sorted([CONVERTERS / "tensorrt_engine.py", *(CONVERTERS / "trt").glob("*.py")])
MODULES = ("trt", "tensorrt")  # what the package is called, as a parameter and in annotations
Type: TypeAlias = tuple[str, str] | None  # ("module", ""), ("class", X), ("of", X), ("own", X)
MODULE: Type = ("module", "")


@dataclass
class Known:
    """What the sources themselves declare: fields of classes, and what functions return."""

    fields: dict[tuple[str, str], ast.expr] = field(default_factory=dict)
    returns: dict[str, ast.expr] = field(default_factory=dict)

    def read(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                self.returns[node.name] = node.returns
            if isinstance(node, ast.ClassDef):
                for part in ast.walk(node):
                    if isinstance(part, ast.AnnAssign):
                        name = ast.unparse(part.target).removeprefix("self.")
                        self.fields[node.name, name] = part.annotation


@dataclass
class Check:
    """Walks one file; `problems` are what the surface lacks, `seen` what it was asked for."""

    surface: Any
    known: Known
    problems: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    names: list[dict[str, Type]] = field(default_factory=lambda: [{}])
    owner: str = ""

    def run(self, tree: ast.Module) -> None:
        for statement in tree.body:
            self.visit(statement)

    def say(self, node: ast.AST, text: str) -> None:
        self.problems.append(f"{getattr(node, 'lineno', 0)}: {text}")

    def visit(self, node: ast.AST) -> None:
        """Statements that declare; everything else is walked for the expressions in it."""
        if isinstance(node, ast.FunctionDef):
            self.function(node)
        elif isinstance(node, ast.ClassDef):
            self.own_class(node)
        elif isinstance(node, ast.AnnAssign):
            self.bind(node.target, self.annotated(node.annotation), node.annotation)
            self.type_of(node.value)
        elif isinstance(node, ast.Assign):
            found = self.type_of(node.value)
            for target in node.targets:
                self.bind(target, found, self.returned(node.value))
        elif isinstance(node, ast.expr):
            self.type_of(node)
        else:
            for child in ast.iter_child_nodes(node):
                self.visit(child)

    def function(self, node: ast.FunctionDef) -> None:
        arguments = [*node.args.args, *node.args.kwonlyargs]
        scope = {one.arg: self.annotated(one.annotation) for one in arguments}
        scope.update({name: MODULE for name in scope if name in MODULES})
        if "self" in scope and self.owner:
            scope["self"] = ("own", self.owner)
        self.annotated(node.returns)
        self.names.append(scope)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()

    def own_class(self, node: ast.ClassDef) -> None:
        outer, self.owner = self.owner, node.name
        for base in map(self.type_of, node.bases):
            if base is not None and base[0] == "class":
                self.overrides(node, base[1])
        for statement in node.body:
            self.visit(statement)
        self.owner = outer

    def overrides(self, node: ast.ClassDef, base: str) -> None:
        """What an interface calls: its methods by name, with as many arguments."""
        methods = self.surface["classes"][base]["methods"]
        given = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        for name, method in methods.items():
            self.seen.add(f"{base}.{name}")
            wanted = len(tensorrt_double.parameters_of(method["signatures"][0]))
            if name not in given or len(given[name].args.args) - 1 != wanted:
                self.say(node, f"{base}.{name} is to be given with {wanted} arguments")

    def bind(self, target: ast.expr, found: Type, annotation: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.names[-1][target.id] = found
        elif isinstance(target, ast.Tuple) and isinstance(annotation, ast.Subscript):
            parts = getattr(annotation.slice, "elts", [])
            for one, part in zip(target.elts, parts, strict=False):
                self.bind(one, self.annotated(part), part)
        elif isinstance(target, ast.Attribute):
            self.attribute(target, writes=True)

    def returned(self, value: ast.expr | None) -> ast.expr | None:
        called = value.func if isinstance(value, ast.Call) else None
        return self.known.returns.get(called.id) if isinstance(called, ast.Name) else None

    def annotated(self, node: ast.expr | None) -> Type:
        """An annotation as a type; `X | None` is X."""
        if isinstance(node, ast.BinOp):
            return self.annotated(node.left) or self.annotated(node.right)
        if isinstance(node, ast.Subscript):
            for one in ast.walk(node.slice):
                if isinstance(one, ast.Attribute):
                    self.type_of(one)
            return None
        found = self.type_of(node) if isinstance(node, ast.Attribute | ast.Name) else None
        if found is not None and found[0] == "class":
            return ("of", found[1])
        owners = {name for name, _ in self.known.fields}
        if isinstance(node, ast.Name) and node.id in owners:
            return ("own", node.id)
        return None

    def type_of(self, node: ast.expr | None) -> Type:
        if node is None:
            return None
        if isinstance(node, ast.Name):
            scopes = [scope[node.id] for scope in reversed(self.names) if node.id in scope]
            return scopes[0] if scopes else MODULE if node.id in MODULES else None
        if isinstance(node, ast.Attribute):
            return self.attribute(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        for child in ast.iter_child_nodes(node):
            self.visit(child)
        return None

    def attribute(self, node: ast.Attribute, *, writes: bool = False) -> Type:
        base = self.type_of(node.value)
        if base is None:
            return None
        kind, name = base
        if kind == "own":
            return self.annotated(self.known.fields.get((name, node.attr)))
        full = f"{name}.{node.attr}" if name else node.attr
        self.seen.add(full)
        if kind == "of":
            return self.member(node, name, writes=writes)
        return self.static(node, full)

    def static(self, node: ast.AST, full: str) -> Type:
        """A name on the module, on a class or on an enum."""
        surface = self.surface
        owner, _, name = full.rpartition(".")
        if full in surface["classes"] or full in surface["enums"]:
            return ("class", full)
        if full in surface["functions"] or full in surface["values"]:
            return ("function", full)
        if owner in surface["enums"] and name in surface["enums"][owner]["members"]:
            return ("of", owner)
        constants = surface["classes"].get(owner, {}).get("constants", {})
        if name not in {*constants, "__init__"}:
            self.say(node, f"trt.{full} is not in TensorRT {surface['short']}")
        return None

    def member(self, node: ast.Attribute, name: str, *, writes: bool) -> Type:
        """A property or a method of an object."""
        for owner in self.lineage(name):
            entry = self.surface["classes"].get(owner) or self.surface["enums"][owner]
            if node.attr in entry.get("methods", {}):
                return ("method", f"{owner}.{node.attr}")
            if node.attr in entry["properties"]:
                found = entry["properties"][node.attr]
                if not found["writable" if writes else "readable"]:
                    self.say(node, f"{name}.{node.attr} cannot be {'set' if writes else 'read'}")
                return self.named(found["type"] or "")
        self.say(node, f"{name}.{node.attr} is not in TensorRT {self.surface['short']}")
        return None

    def lineage(self, name: str) -> Iterator[str]:
        yield name
        for base in self.surface["classes"].get(name, {}).get("bases", ()):
            yield from self.lineage(base)

    def named(self, text: str) -> Type:
        """The type that a signature writes."""
        name = text.rsplit("::", 1)[-1].removeprefix("tensorrt.").strip(" *&")
        name = {"IParserError": "ParserError"}.get(name, name)
        there = name in self.surface["classes"] or name in self.surface["enums"]
        return ("of", name) if there else None

    def call(self, node: ast.Call) -> Type:
        for argument in (*node.args, *(one.value for one in node.keywords)):
            self.type_of(argument)
        called = self.type_of(node.func)
        if called is None:
            returns = self.returned(node)
            return None if returns is None else self.annotated(returns)
        kind, name = called
        if kind == "class" and name in self.surface["enums"]:
            return ("of", name)
        if kind == "class":
            return self.takes(node, self.surface["classes"][name]["init"], name) and ("of", name)
        if kind == "method":
            owner, _, method = name.partition(".")
            signatures = self.surface["classes"][owner]["methods"][method]["signatures"]
            return self.takes(node, signatures, name)
        if kind == "function" and name in self.surface["functions"]:
            return self.takes(node, self.surface["functions"][name]["signatures"], name)
        return None

    def takes(self, node: ast.Call, signatures: list[str], name: str) -> Type:
        """The type that is returned by the first signature with these keywords and this arity."""
        given = {one.arg for one in node.keywords}
        for signature in signatures:
            wanted = tensorrt_double.parameters_of(signature)
            rest = {one.name: one for one in wanted[len(node.args) :]}
            if len(node.args) > len(wanted) or not given <= rest.keys():
                continue
            if all(one.name in given for one in rest.values() if one.required):
                return self.named(signature.rpartition("-> ")[2]) or ("nothing", "")
        self.say(node, f"trt.{name} does not take these arguments: {ast.unparse(node)}")
        return None


def check(surface: Any, texts: Iterable[str]) -> Check:
    """One check over several sources, which know each other's declarations."""
    trees = [ast.parse(text) for text in texts]
    whole = Check(surface, Known())
    for tree in trees:
        whole.known.read(tree)
    for tree in trees:
        whole.names = [{}]
        whole.run(tree)
    return whole


def sources() -> list[str]:
    return [file.read_text(encoding="utf-8") for file in SOURCES]


USED = {
    "Builder.build_serialized_network",
    "BuilderFlag.STRIP_PLAN",
    "EngineInspector.get_engine_information",
    "IBuilderConfig.set_timing_cache",
    "ICudaEngine.get_tensor_profile_shape",
    "IExecutionContext.execute_async_v3",
    "IExecutionContext.set_output_allocator",
    "IProgressMonitor.step_complete",
    "ITimingCache.combine",
    "OnnxParser.parse_from_file",
    "ParserError.node_operator",
    "Refitter.refit_cuda_engine",
    "Runtime.engine_host_code_allowed",
}


@pytest.fixture(params=tensorrt_double.VERSIONS)
def surface(request: pytest.FixtureRequest) -> Any:
    return tensorrt_double.surface_of(request.param)


def test_modelc_uses_only_names_that_tensorrt_has(surface: Any) -> None:
    assert check(surface, sources()).problems == []


def test_the_check_resolves_the_calls_of_modelc(surface: Any) -> None:
    seen = check(surface, sources()).seen
    assert USED - seen == set()
    assert len(seen) > 80


def test_no_precision_flag_is_used(surface: Any) -> None:
    precise = {"FP16", "BF16", "INT8", "FP8", "INT4", "FP4"}
    assert not {f"BuilderFlag.{name}" for name in precise} & check(surface, sources()).seen


def planted(version: str, line: str) -> list[str]:
    """Problems of the sources with one line put before the flags are set."""
    place = "    if options.refittable:\n"
    texts = sources()
    assert sum(place in text for text in texts) == 1
    changed = [text.replace(place, f"    {line}\n{place}") for text in texts]
    return check(tensorrt_double.surface_of(version), changed).problems


def test_a_planted_precision_flag_is_found_on_eleven() -> None:
    (problem,) = planted("11.4", "config.set_flag(trt.BuilderFlag.FP16)")
    assert "trt.BuilderFlag.FP16" in problem
    assert planted("10.16", "config.set_flag(trt.BuilderFlag.FP16)") == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("config.set_flag(flags=trt.BuilderFlag.TF32)", "IBuilderConfig.set_flag"),
        ("config.set_flag()", "IBuilderConfig.set_flag"),
        ("config.set_flag(trt.BuilderFlag.TF32, True)", "IBuilderConfig.set_flag"),
        ("config.set_timing_cache(config.get_timing_cache())", "IBuilderConfig.set_timing_cache"),
        ("config.max_workspace_size = 1", "max_workspace_size"),
        ("config.num_optimization_profiles = 1", "num_optimization_profiles"),
        ("trt.Builder()", "trt.Builder"),
        ("trt.Runtime(None).deserialize(b'')", "Runtime.deserialize"),
        ("trt.volumes((1, 2))", "trt.volumes"),
        ("config.get_timing_cache().combined", "ITimingCache.combined"),
    ],
)
@pytest.mark.parametrize("version", tensorrt_double.VERSIONS)
def test_a_wrong_name_keyword_or_arity_is_found(version: str, line: str, name: str) -> None:
    (problem,) = planted(version, line)
    assert name in problem


@pytest.mark.parametrize(
    "method", ["def step_complete(self, name):", "def steps_complete(self, name, step):"]
)
def test_a_callback_of_another_name_or_arity_is_found(surface: Any, method: str) -> None:
    text = f"""
def monitor(trt):
    class Monitor(trt.IProgressMonitor):
        def phase_start(self, phase_name, parent_phase, num_steps): ...
        def phase_finish(self, phase_name): ...
        {method} ...
"""
    (problem,) = check(surface, [text]).problems
    assert "IProgressMonitor.step_complete" in problem
    assert "2" in problem


RTX_PACKAGE = "tensorrt_rtx_bindings.tensorrt_rtx."
SEEN = sorted(check(tensorrt_double.surface_of("11.4"), sources()).seen)


@pytest.mark.rtx
@pytest.mark.parametrize("name", SEEN)
def test_tensorrt_rtx_has_the_same_names_and_signatures(name: str) -> None:
    found = reduce(getattr, name.split("."), pytest.importorskip("tensorrt_rtx"))
    owner, _, member = name.partition(".")
    methods = tensorrt_double.surface_of("11.4")["classes"].get(owner, {}).get("methods", {})
    text = str(getattr(found, "__doc__", "")).replace(RTX_PACKAGE, "tensorrt.")
    lines = [re.sub(r"^\s*\d+\. ", "", line) for line in text.splitlines()]
    described = {line for line in lines if "(self: tensorrt." in line and " -> " in line}
    if member in methods and described:
        assert described <= set(methods[member]["signatures"])
