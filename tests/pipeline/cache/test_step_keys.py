"""The key of a step contains every part of an order that changes its result, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from modelc.calibration.calibration_options import CalibrationOptions, LabelledOptions
from modelc.core.kinds import Capture
from modelc.core.verdict import Limits
from modelc.pipeline.cache.environment import describe_machine
from modelc.pipeline.cache.file_digests import (
    ARTIFACT_PACKAGES,
    OUTPUT_PACKAGES,
    FileDigests,
    digest_of_code,
)
from modelc.pipeline.cache.step_keys import canonical_bytes, step_keys
from modelc.pipeline.limit_text import Measuring
from modelc.pipeline.order import Judging, Lowering, Order, ResumeState, Source, Wanted
from modelc.pipeline.plan import make_plan

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def plain(tmp_path: Path) -> Order:
    """Three steps: onnx, made from it onnx-int8, and openvino-fp16."""
    (tmp_path / "w.safetensors").write_bytes(
        (ROOT / "sample_models/digits.safetensors").read_bytes()
    )
    (tmp_path / "calib").mkdir()
    (tmp_path / "calib" / "1.npy").write_bytes(b"1")
    return Order(
        source=Source(checkpoint=Path("w.safetensors"), model="nets:build"),
        wanted=tuple(map(Wanted.parse, ("onnx", "onnx:int8", "openvino:fp16"))),
        out=tmp_path / "out",
        lowering=Lowering(calibration=CalibrationOptions(source="calib", selection="first")),
    )


def keys_of(order: Order, root: Path) -> dict[str, str]:
    return step_keys(order, make_plan(order), root=root, digests=FileDigests(None))


def changed(before: Order, after: Order, root: Path) -> set[str]:
    """The steps of both that have another key."""
    old, new = keys_of(before, root), keys_of(after, root)
    return {name for name in old if old[name] != new[name]}


def test_every_package_makes_artifacts_or_only_output() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert {*ARTIFACT_PACKAGES, *OUTPUT_PACKAGES} == packages - {"sample_models", "tests"}


ALL = {"onnx", "onnx-int8", "openvino-fp16"}
LOWER = {"onnx-int8", "openvino-fp16"}


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (lambda o: replace(o, source=replace(o.source, model="nets:other")), ALL),
        (lambda o: replace(o, source=replace(o.source, model_args={"depth": "2"})), ALL),
        (lambda o: replace(o, source=replace(o.source, inputs=("x:float32[2]",))), ALL),
        (lambda o: replace(o, source=replace(o.source, method="encode")), ALL),
        (lambda o: replace(o, source=replace(o.source, static=("seq",))), ALL),
        (lambda o: replace(o, source=replace(o.source, samples=Path("calib/1.npy"))), ALL),
        (lambda o: replace(o, capture=Capture.TRACE), ALL),
        (lambda o: replace(o, opset=19), ALL),
        (lambda o: replace(o, external_data=True), ALL),
        (lambda o: replace(o, settings={"a": "b"}), ALL),
        (lambda o: replace(o, patches=("nets:patch",)), ALL),
        (lambda o: replace(o, custom_ops={"a::b": "nets:op"}), ALL),
        (lambda o: replace(o, judging=Judging(feeds=20)), ALL),
        (lambda o: replace(o, judging=Judging(seed=1)), ALL),
        (lambda o: replace(o, judging=Judging(by_output={"y": Limits(rtol=1.0)})), ALL),
        (lambda o: replace(o, judging=Judging(search=1.0)), ALL),
        (lambda o: replace(o, judging=Judging(accept=("a.py:1",))), ALL),
        (lambda o: replace(o, measuring=Measuring(data=LabelledOptions(source="calib"))), ALL),
        (lambda o: replace(o, lowering=replace(o.lowering, keep=("head",))), LOWER),
        (lambda o: replace(o, lowering=replace(o.lowering, method="entropy")), LOWER),
        (
            lambda o: replace(
                o, lowering=replace(o.lowering, calibration=replace(o.lowering.calibration, seed=3))
            ),
            {"onnx-int8"},
        ),
        (lambda o: replace(o, out=Path("elsewhere")), set()),
        (lambda o: replace(o, overwrite=True, cache=Path("cache")), set()),
        (lambda o: replace(o, resume=ResumeState(kept=frozenset({"onnx"}))), set()),
    ],
)
def test_a_change_of_the_order_changes_the_keys_of_its_steps(
    plain: Order, tmp_path: Path, change: Callable[[Order], Order], steps: set[str]
) -> None:
    assert changed(plain, change(plain), tmp_path) == steps


def test_half_io_is_in_the_keys_of_lower_precisions(plain: Order, tmp_path: Path) -> None:
    order = replace(plain, wanted=(*plain.wanted, Wanted.parse("onnx:fp16")))
    half = replace(order, lowering=replace(order.lowering, half_io=True))
    assert changed(order, half, tmp_path) == {*LOWER, "onnx-fp16"}


@pytest.mark.parametrize(
    ("file", "steps"), [("w.safetensors", ALL), ("plugin.so", ALL), ("calib/1.npy", {"onnx-int8"})]
)
def test_the_bytes_of_an_input_are_in_the_key(
    plain: Order, tmp_path: Path, file: str, steps: set[str]
) -> None:
    (tmp_path / "plugin.so").write_bytes(b"1")
    order = replace(plain, settings={"plugins": "plugin.so"})
    before = keys_of(order, tmp_path)
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    after = keys_of(order, tmp_path)
    assert {name for name in before if before[name] != after[name]} == steps


def test_the_bytes_of_labelled_data_and_samples_are_in_the_key(
    plain: Order, tmp_path: Path
) -> None:
    (tmp_path / "s.npz").write_bytes(b"1")
    order = replace(plain, source=replace(plain.source, samples=Path("s.npz")))
    order = replace(order, measuring=Measuring(data=LabelledOptions(source="data.npz")))
    (tmp_path / "data.npz").write_bytes(b"1")
    found = [keys_of(order, tmp_path)["onnx"]]
    (tmp_path / "s.npz").write_bytes(b"2")
    found.append(keys_of(order, tmp_path)["onnx"])
    (tmp_path / "data.npz").write_bytes(b"2")
    found.append(keys_of(order, tmp_path)["onnx"])
    assert len(set(found)) == 3


def test_the_bytes_of_files_in_a_list_of_labels_are_in_the_key(
    plain: Order, tmp_path: Path
) -> None:
    """They may lie anywhere; so may the classes, which are beside the list."""
    root = tmp_path / "project"
    shutil.copytree(tmp_path, root, ignore=shutil.ignore_patterns("project"))
    (tmp_path / "far.npy").write_bytes(b"1")
    (root / "list.csv").write_text(f"file,label\n../far.npy,0\n{tmp_path}/other.npy,1\n")
    order = replace(plain, measuring=Measuring(data=LabelledOptions(source="list.csv")))
    found = [keys_of(order, root)["onnx"]]
    for name in ("far.npy", "other.npy", "project/classes.txt"):
        (tmp_path / name).write_bytes(b"2")
        found.append(keys_of(order, root)["onnx"])
    assert len(set(found)) == 4


def test_other_targets_change_no_key(plain: Order, tmp_path: Path) -> None:
    alone = replace(plain, wanted=plain.wanted[:1], lowering=Lowering())
    assert keys_of(alone, tmp_path)["onnx"] == keys_of(plain, tmp_path)["onnx"]


def test_a_change_of_the_parent_alone_changes_its_children(plain: Order, tmp_path: Path) -> None:
    """A parent that nobody asked for is not held to --min-sqnr; one that was asked for is."""
    order = replace(plain, judging=Judging(min_sqnr=40), wanted=plain.wanted[1:2])
    both = replace(order, wanted=plain.wanted[:2])
    assert changed(order, both, tmp_path) == {"onnx", "onnx-int8"}


def test_a_parent_that_is_asked_for_as_well_keeps_its_key(plain: Order, tmp_path: Path) -> None:
    alone = replace(plain, wanted=plain.wanted[1:2])
    assert not changed(alone, replace(plain, wanted=plain.wanted[:2]), tmp_path)


def test_the_location_of_files_is_not_in_the_key(plain: Order, tmp_path: Path) -> None:
    here = keys_of(plain, tmp_path)
    absolute = replace(plain, source=replace(plain.source, checkpoint=tmp_path / "w.safetensors"))
    assert keys_of(absolute, tmp_path) == here


def test_an_order_that_starts_from_a_converted_model_has_no_keys(
    plain: Order, tmp_path: Path
) -> None:
    plan = make_plan(plain)
    order = replace(plain, parent=tmp_path / "model.onnx")
    assert step_keys(order, plan, root=tmp_path, digests=FileDigests(None)) == {}


def test_a_changed_line_of_our_own_is_another_digest(tmp_path: Path) -> None:
    for room in ARTIFACT_PACKAGES:
        (tmp_path / room).mkdir()
        (tmp_path / room / "a.py").write_text("1")
    before = digest_of_code(FileDigests(None), tmp_path)
    (tmp_path / "validators" / "a.py").write_text("2")
    assert digest_of_code(FileDigests(None), tmp_path) != before


def test_a_processor_with_other_instructions_is_another_machine(tmp_path: Path) -> None:
    texts = []
    for flags in ("fpu avx2 fma", "fpu avx2 fma avx512f", "vme avx2 fma"):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
        texts.append(describe_machine(tmp_path / "cpuinfo"))
    assert texts[0] != texts[1]
    assert texts[0] == texts[2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b"), ("ab",)),
        (("a", ""), ("a",)),
        ({"a": 1}, {"a": "1"}),
        (1, True),
        (1, 1.0),
        (None, "None"),
        ((("a",), "b"), ("a", ("b",))),
        (Path("a"), "a"),
        (Wanted(target="a"), Wanted(target="b")),
    ],
)
def test_different_values_have_different_encodings(one: object, other: object) -> None:
    assert canonical_bytes(one) != canonical_bytes(other)


def test_the_order_of_a_mapping_is_not_in_the_encoding() -> None:
    assert canonical_bytes({"a": 1, "b": 2}) == canonical_bytes({"b": 2, "a": 1})


def test_a_value_of_an_unknown_type_is_an_error() -> None:
    with pytest.raises(TypeError, match="object"):
        canonical_bytes([object()])


# A value of each type that a field of an order may hold, beside enums, records and containers.
VALUES = {type(None): None, str: "a", int: 2, float: 0.5, bool: True, Path: Path("a")}


def list_forms(kind: Any, seen: set[Any]) -> list[str]:
    """Return the forms of a field's values in an encoding: enums are text, paths a sequence.

    Each type that a value is made of must have an encoding.
    """
    origin, inner = get_origin(kind), [one for one in get_args(kind) if one is not ...]
    if origin in (Union, UnionType):
        return [form for one in inner for form in list_forms(one, seen)]
    if origin in (tuple, frozenset, dict, Mapping):
        form = "mapping" if issubclass(origin, Mapping) else "sequence"
        assert form == "sequence" or inner[0] is str
        for one in inner:
            check_forms(one, seen)
        return [form]
    if is_dataclass(kind):
        hints = {} if kind in seen else get_type_hints(kind)
        seen.add(kind)
        for field in fields(kind):
            if field.name in hints:
                check_forms(hints[field.name], seen)
        return ["mapping"]
    value = next(iter(kind)) if issubclass(kind, Enum) else VALUES[kind]
    assert canonical_bytes(value)
    return ["sequence" if kind is Path else "str" if isinstance(value, str) else kind.__name__]


def check_forms(kind: Any, seen: set[Any]) -> None:
    forms = list_forms(kind, seen)
    assert len(set(forms)) == len(forms), f"two types of {kind} look the same in a key"


def test_each_type_that_a_field_of_an_order_may_hold_has_an_encoding_of_its_own() -> None:
    seen: set[Any] = set()
    check_forms(Order, seen)
    assert {Source, Judging, Lowering, Measuring, Wanted, Limits} <= seen
    with pytest.raises(KeyError):
        check_forms(object, seen)
    with pytest.raises(AssertionError, match="tuple"):
        check_forms(Path | tuple[str, ...], seen)


@pytest.mark.usefixtures("plain")
def test_no_framework_is_imported_for_a_key(tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path\n"
        "from modelc.pipeline.cache.file_digests import FileDigests\n"
        "from modelc.pipeline.cache.step_keys import step_keys\n"
        "from modelc.pipeline.cache.reuse import ReuseSources, reuse_results\n"
        "from modelc.pipeline.order import Order, Source, Wanted\n"
        "from modelc.pipeline.plan import make_plan\n"
        "root = Path(sys.argv[1])\n"
        "order = Order(source=Source(checkpoint=Path('w.safetensors'), model='n:b'),"
        " wanted=(Wanted(target='onnx'),), out=root / 'none')\n"
        "plan = make_plan(order)\n"
        "keys = step_keys(order, plan, root=root, digests=FileDigests(root))\n"
        "reuse_results(order, plan, keys, ReuseSources(root=root, digests=FileDigests(root)))\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True
    )
    heavy = {"torch", "numpy", "onnx", "onnxruntime", "openvino", "nncf", "safetensors", "fsspec"}
    assert not heavy & set(json.loads(ran.stdout))
