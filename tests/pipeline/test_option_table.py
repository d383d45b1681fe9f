"""The option table: its rows fit each other, the request and the Python function."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import Capture, Precision
from modelc.pipeline.call_options import CallOptions
from modelc.pipeline.make_order import choose_precision, make_order
from modelc.pipeline.option_spec import ValueKind, read_record, specs_of, summarize
from modelc.pipeline.option_table import (
    ENGINE_OPTIONS,
    OPTIONS,
    ArtifactOptions,
    ConversionOptions,
    JudgingOptions,
    LoweringOptions,
    SourceOptions,
    options_of,
)
from modelc.pipeline.order import Judging, Lowering, Order, Source, Wanted
from modelc.pipeline.python_export import export
from modelc.validators.feeds import LEAST_FEEDS

from ..reasons import has_code

COMMANDS = sorted({command for row in OPTIONS for command in row.commands})
WANTED = (Wanted(target="onnx"),)


def order(**given: object) -> Order:
    named = {name.replace("_", "-").strip("-"): value for name, value in given.items()}
    return make_order(named, Path("net.pt"), WANTED)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_an_option_once(command: str) -> None:
    flags = Counter(flag for row in options_of(command) for flag in row.flags or (row.name,))
    assert max(flags.values()) == 1


def test_a_row_has_a_help_a_use_and_its_own_key() -> None:
    assert all(row.help and (row.commands or row.key) for row in OPTIONS)
    keys = Counter(row.name for row in OPTIONS if row.key)
    assert max(keys.values()) == 1


def test_the_python_function_has_every_option_of_the_request() -> None:
    parameters = signature(export).parameters
    rows = [*specs_of(SourceOptions), *specs_of(ConversionOptions)]
    assert {row.field for row in rows} - {"depends"} <= set(parameters)  # which is of projects


@pytest.mark.parametrize(
    ("request_part", "options"),
    [
        (Source, SourceOptions),
        (Judging, JudgingOptions),
        (Lowering, LoweringOptions),
        (Order, ConversionOptions),
    ],
)
def test_a_part_of_the_request_has_the_options_as_fields(request_part: type, options: type) -> None:
    assert specs_of(request_part) == specs_of(options)


def test_the_least_number_of_feeds_is_that_of_the_judge() -> None:
    (row,) = (row for row in specs_of(JudgingOptions) if row.field == "feeds")
    assert (row.least, row.default) == (LEAST_FEEDS, LEAST_FEEDS)


def test_options_that_are_not_given_have_the_defaults_of_the_records() -> None:
    assert order() == Order(
        source=Source(checkpoint=Path("net.pt")), wanted=WANTED, out=Path("out")
    )
    assert read_record(CallOptions, {}) == CallOptions()


def test_values_become_fields() -> None:
    found = order(
        capture="trace", guard=True, no_strict=True, model_arg=["depth=2"], seed=0,
        samples="a.npz", patch=["nets:patch"], out="there",
    )  # fmt: skip
    assert (found.capture, found.guard, found.out) == (Capture.TRACE, True, Path("there"))
    assert (found.source.strict, found.source.samples) == (False, Path("a.npz"))
    assert (found.source.model_args, found.patches) == ({"depth": "2"}, ("nets:patch",))
    assert found.judging.seed == 0


def test_a_switch_can_be_turned_off_by_a_project() -> None:
    assert order(guard=False, no_strict=False, no_tf32=False, refittable=False) == order()


def test_settings_of_an_engine_are_text() -> None:
    given = {"no_tf32": True, "refittable": True, "optimization_level": 5, "plugins": ["a", "b"]}
    wanted = {"tf32": "false", "refittable": "true", "optimization_level": "5", "plugins": "a;b"}
    assert order(**given, trust_engine=True).settings == {**wanted, "trust_engine": "true"}


@pytest.mark.parametrize(
    ("given", "option"),
    [({"calib_seed": 1}, "calib-seed"), ({"metric": "mse"}, "metric")],
)
def test_an_option_without_its_main_option_is_an_error(
    given: dict[str, object], option: str
) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option=option)):
        order(**given)


def test_a_manifest_records_options_other_than_the_default() -> None:
    assert not any(summarize(ConversionOptions()).values())
    found = summarize(
        ConversionOptions(opset=19, patches=("a:b", "c:d"), custom_ops={"n::o": "m:f"})
    )
    assert {name: text for name, text in found.items() if text} == {
        "opset": "19",
        "patch": "a:b c:d",
        "custom_op": "n::o=m:f",
    }


def test_one_precision_at_a_time() -> None:
    assert choose_precision(ArtifactOptions()) is Precision.FP32
    assert choose_precision(ArtifactOptions(int8=True)) is Precision.INT8
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED)):
        choose_precision(ArtifactOptions(fp16=True, int8=True))


def test_engine_rows_name_settings_that_the_format_knows() -> None:
    from modelc.converters.trt.engine_options import OPTION_NAMES

    assert {row.field for row in ENGINE_OPTIONS} <= set(OPTION_NAMES)
    assert all(row.kind is not ValueKind.SOURCE for row in ENGINE_OPTIONS)


def test_every_option_has_a_field_of_its_record() -> None:
    for record in (SourceOptions, ConversionOptions, JudgingOptions, LoweringOptions, CallOptions):
        assert {row.field for row in specs_of(record)} == {one.name for one in fields(record)}
