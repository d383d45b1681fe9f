"""JUnit XML: read by a JUnit parser, and by the rules that readers hold it to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree as ET

import junitparser
import pytest

from modelc.core.manifest import Manifest
from modelc.reports import junit

from ..reasons import because

CHILDREN = {
    "testsuites": ["testsuite"],
    "testsuite": ["properties", "testcase"],
    "properties": ["property"],
    "testcase": ["skipped", "error", "failure", "system-out"],
}
WANTED = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "testcase": {"name", "classname"},
    "property": {"name", "value"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
}


def read(manifest: Manifest) -> junitparser.JUnitXml:
    return junitparser.JUnitXml.fromstring(junit.render_junit(manifest).encode())


def ended(manifest: Manifest) -> dict[tuple[str, str], str]:
    """How each case ended, by suite and name."""
    kinds = {
        junitparser.Failure: "failure",
        junitparser.Error: "error",
        junitparser.Skipped: "skipped",
    }
    found = {}
    for suite in read(manifest):
        for case in suite:
            assert len(case.result) <= 1
            kind = kinds[type(case.result[0])] if case.result else "passed"
            assert (suite.name, case.name) not in found, "one case, one name"
            found[suite.name, case.name] = kind
    return found


def test_each_case_ends_as_it_was_judged(full: Manifest) -> None:
    assert ended(full) == {
        ("onnx", "sample"): "passed", ("onnx", "zeros"): "passed", ("onnx", "huge"): "passed",
        ("onnx", "batch=7"): "skipped",
        ("onnx-int8", "held-1"): "passed", ("onnx-int8", "sample"): "passed",
        ("onnx-int8", "zeros"): "passed", ("onnx-int8", "batch=7"): "skipped",
        ("rejected/openvino", "sample"): "failure", ("rejected/openvino", "zeros"): "passed",
        ("rejected/openvino", "batch=7"): "skipped",
        ("rejected/torchscript", "sample"): "error", ("rejected/torchscript", "batch=7"): "skipped",
        ("pt2", "verdict"): "error",
        ("tensorrt", "verdict"): "skipped",
    }  # fmt: skip


def test_a_fault_that_no_feed_shows_is_a_failure_of_its_own(
    made: Callable[[str], Manifest],
) -> None:
    found = ended(made("refused"))
    assert found == {("rejected/onnx", "sample"): "passed", ("rejected/onnx", "verdict"): "failure"}


def test_nothing_judged_is_an_error(made: Callable[[str], Manifest]) -> None:
    assert ended(made("empty")) == {("run", "verdict"): "error"}


def test_an_artifact_without_a_verdict_is_an_error(full: Manifest) -> None:
    bare = replace(full, artifacts=full.artifacts[:1], verdicts=(), failures=(), pending=())
    assert ended(bare) == {("onnx", "verdict"): "error"}


def test_reasons_are_said(full: Manifest) -> None:
    text = junit.render_junit(full)
    for reason in ("SQNR 31.5 dB &lt; 90", "signal 11", "no CUDA driver", "the batch must be even"):
        assert reason in text
    suites = {suite.name: suite for suite in read(full)}
    every = suites["onnx"].properties()  # type: ignore[no-untyped-call]
    properties = {one.name: one.value for one in every}
    assert properties["version.torch"] == "2.13.0"
    assert properties["modelc"] == "0.1.0"


def test_every_document_is_xml_by_the_usual_rules(any_manifest: Manifest) -> None:
    root = ET.fromstring(junit.render_junit(any_manifest))
    for element in root.iter():
        order = [child.tag for child in element]
        allowed = CHILDREN.get(element.tag, [])
        assert order == sorted(order, key=allowed.index), "children in the schemas' order"
        assert set(element.attrib) == WANTED.get(element.tag, set())


def test_counts_are_those_of_the_cases(any_manifest: Manifest) -> None:
    root = ET.fromstring(junit.render_junit(any_manifest))
    for element in (root, *root.iter("testsuite")):
        found = {
            "tests": len(list(element.iter("testcase"))),
            "failures": len(list(element.iter("failure"))),
            "errors": len(list(element.iter("error"))),
            "skipped": len(list(element.iter("skipped"))),
        }
        assert {key: int(element.attrib[key]) for key in found} == found


def test_the_timestamp_is_one_of_the_schema(full: Manifest) -> None:
    suite = next(ET.fromstring(junit.render_junit(full)).iter("testsuite"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])


@pytest.mark.parametrize(
    "odd", ["\x00", "\x1b[2J", "\x0b", "\ufffe", "\ud800", "]]>", "<&\"'>", "\r", "😀"]
)
def test_no_name_or_reason_breaks_the_xml(full: Manifest, odd: str) -> None:
    verdict = replace(full.verdicts[2], reasons=because(f"a{odd}b"), artifact=f"x{odd}")
    artifact = replace(full.artifacts[2], name=f"x{odd}")
    feeds = tuple(replace(output, feed=f"{output.feed}{odd}") for output in verdict.outputs)
    verdict = replace(verdict, outputs=feeds, feeds=())
    text = junit.render_junit(replace(full, artifacts=(artifact,), verdicts=(verdict,)))
    root = ET.fromstring(text.encode())
    assert root[0].attrib["name"].startswith("x")
    assert "failure" in {element.tag for element in root.iter()}
