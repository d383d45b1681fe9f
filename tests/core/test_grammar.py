"""The `--input` mini-language: every form, and the character that each error names."""

from __future__ import annotations

import pytest

from modelc.core.errors import UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import DTYPES, Dim, InputPattern, ValueRange, merge_inputs


def only_dim(text: str) -> Dim | None:
    dims = parse_input(f"x:float32[{text}]").dims
    assert dims is not None
    assert len(dims) == 1
    return dims[0]


def ranged(low: int, opt: int, high: int) -> Dim:
    return Dim(name="b", low=low, opt=opt, high=high)


def test_a_name_alone_leaves_the_rest_to_a_sample() -> None:
    pattern = parse_input("x")
    assert pattern == InputPattern(name="x", dtype=None, dims=None, values=None, text="x")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_read(dtype: str) -> None:
    assert parse_input(f"x:{dtype}[2]").dtype == dtype


@pytest.mark.parametrize("name", ["x", "input_ids", "inputs.image", "args.0.mask", "_x1"])
def test_names_may_be_dotted(name: str) -> None:
    assert parse_input(f"{name}:int64[2]").name == name


def test_a_number_is_a_fixed_dim() -> None:
    assert only_dim("224") == Dim.of_size(224)


def test_a_name_is_an_unbounded_dim() -> None:
    assert only_dim("b") == Dim(name="b", low=1, opt=4, high=8, bounded=False)


def test_two_sizes_are_a_range_with_its_middle_as_opt() -> None:
    assert only_dim("b=1..8") == ranged(1, 4, 8)


def test_three_sizes_are_a_range_with_its_opt() -> None:
    assert only_dim("b=1..2..8") == ranged(1, 2, 8)


def test_a_range_of_one_size_is_named_and_not_dynamic() -> None:
    dim = only_dim("b=8..8")
    assert dim == ranged(8, 8, 8)
    assert not dim.dynamic


def test_an_underscore_is_the_size_of_the_sample() -> None:
    assert only_dim("_") is None


def test_a_name_that_starts_with_an_underscore_is_a_name() -> None:
    dim = only_dim("_b")
    assert dim is not None
    assert dim.name == "_b"


def test_no_dims_are_a_scalar() -> None:
    assert parse_input("x:float32[]").dims == ()


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("{0..1}", 0, 1),
        ("{-1..1}", -1, 1),
        ("{-1.5..+2.25}", -1.5, 2.25),
        ("{0...5}", 0, 0.5),
        ("{.5..1.}", 0.5, 1),
        ("{1e-3..1E2}", 0.001, 100),
        ("{7..7}", 7, 7),
    ],
)
def test_values_are_read_with_both_ends(text: str, low: float, high: float) -> None:
    assert parse_input(f"x:float32[2]{text}").values == ValueRange(low=low, high=high)


def test_values_may_stand_without_dtype_and_dims() -> None:
    assert parse_input("x{0..1}").values == ValueRange(low=0, high=1)


def test_spaces_between_tokens_are_skipped() -> None:
    spaced = parse_input("  x : float32 [ b = 1 .. 8 , 3 ] { 0 .. 1 } ")
    plain = parse_input("x:float32[b=1..8,3]{0..1}")
    assert (spaced.name, spaced.dims, spaced.values) == (plain.name, plain.dims, plain.values)


@pytest.mark.parametrize(
    "text",
    [
        "x:float32[batch,3,224,224]",
        "x:float32[batch=1..8,3]",
        "x:float32[batch=1..2..8,3]",
        "x:int64[batch=4..4]{0..50256}",
        "ids:int64[batch,seq=1..512]{0..1234567}",
        "x:float32[(k=2..8)-1,32*(j=1..2..8)]",
        "x:float16[]{-0.125..0.1}",
        "x:float64[1]{1e-07..16777217}",
        "inputs.image:uint8[2,2]",
        "flag:bool[]",
    ],
)
def test_a_spec_is_written_as_it_is_read(text: str) -> None:
    spec = merge_inputs([parse_input(text)], {}).inputs[0]
    assert str(spec) == text
    assert merge_inputs([parse_input(str(spec))], {}).inputs[0] == spec


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ("x:float32[1,3,32..224,64]", "x:float32[1,3,height=32..224,64]"),
        ("x:float32[1..8,3,32..224,32..64..96]",
         "x:float32[batch=1..8,3,height=32..224,width=32..64..96]"),
        ("x:float32[batch=1..8, 4..8]", "x:float32[batch=1..8, d1=4..8]"),
        ("x:float32[d1=1..8,1 .. 9]{0..1}", "x:float32[d1=1..8,d1_2=1 .. 9]{0..1}"),
        ("x[2*seq,3..4]", "x[2*seq,d1=3..4]"),
    ],
)  # fmt: skip
def test_a_range_without_a_name_is_shown_with_one(text: str, mended: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert mended in caught.value.hint
    parse_input(mended)


@pytest.mark.parametrize(
    ("text", "expected", "character", "found"),
    [
        ("", "an input name", 1, "the end"),
        ("1x:float32[2]", "an input name", 1, "'1'"),
        ("x float32", "':', '[', '{' or the end", 3, "'f'"),
        ("x:float32[2]!", "':', '[', '{' or the end", 13, "'!'"),
        ("x:[2]", "a dtype", 3, "'['"),
        ("x:flaot32[2]", "a dtype", 3, "'f'"),
        ("x:float32[", "a size, a dim name or '_'", 11, "the end"),
        ("x:float32[2", "',' or ']'", 12, "the end"),
        ("x:float32[2,]", "a size, a dim name or '_'", 13, "']'"),
        ("x:float32[2x]", "',' or ']'", 12, "'x'"),
        ("x:float32[3 224]", "',' or ']'", 13, "'2'"),
        ("x:float32[-1]", "a size, a dim name or '_'", 11, "'-'"),
        ("x:float32[2,0]", "a size above 0", 13, "'0'"),
        ("x:float32[b=]", "a size", 13, "']'"),
        ("x:float32[b=1]", "'..' and the largest size", 14, "']'"),
        ("x:float32[b=1..]", "a size", 16, "']'"),
        ("x:float32[b=1..2..3..4]", "',' or ']'", 20, "'.'"),
        ("x:float32[b=1..2..3..]", "',' or ']'", 20, "'.'"),
        ("x:float32[2]{", "the smallest value", 14, "the end"),
        ("x:float32[2]{0}", "'..'", 15, "'}'"),
        ("x:float32[2]{0..}", "the largest value", 17, "'}'"),
        ("x:float32[2]{0..1", "'}'", 18, "the end"),
        ("x:float32[2]{0..1e999}", "values that a float can hold", 14, "'0'"),
        ("x:int64[2]{0..0.5}", "whole numbers for int64", 12, "'0'"),
    ],
)
def test_an_error_names_the_character(text: str, expected: str, character: int, found: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    wanted = f"expected {expected} at character {character}, found {found}"
    assert caught.value.message == f"--input {text!r}: {wanted}"


@pytest.mark.parametrize(
    ("text", "wanted", "hint"),
    [
        ("x:float32[b=8..1]", "b=8..1 is not a range: 8 is larger than 1", "b=1..8"),
        ("x:float32[b=1..9..8]", "b=1..9..8 is not a range: 9 is larger than 8", "b=1..8..9"),
        ("x:float32[b=0..0]", "b=0..0 is not a range: only the least size may be 0", "b=0..1"),
        (
            "x:float32[b=0..0..4]",
            "b=0..0..4 is not a range: only the least size may be 0",
            "b=0..1..4",
        ),
        ("x:float32[2]{1.5..-2}", "1.5 is larger than -2", "{-2..1.5}"),
    ],
)
def test_a_range_that_falls_says_which_end_is_larger(text: str, wanted: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert caught.value.message == f"--input {text!r}: {wanted}"
    assert caught.value.hint.startswith(f"write {hint}: the smallest")


def test_a_misspelt_dtype_gets_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        parse_input("x:flaot32[2]")
    assert "'float32'" in caught.value.hint


def test_an_unknown_dtype_gets_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        parse_input("x:quux[2]")
    assert "float32, float64" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["{0..1000 ascending}", "{0..seq-1 ascending}", "{-1.5..2 descending}"]
)
def test_values_in_order_are_read_and_written_alike(text: str) -> None:
    values = parse_input(f"box:float32[batch,seq=1..9,4]{text}").values
    assert values is not None
    assert values.order == text.strip("}").split()[-1]
    assert str(values) == text
