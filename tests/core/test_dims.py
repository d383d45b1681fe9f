"""Relations between dims, and misspelt names."""

from __future__ import annotations

import msgspec
import pytest

from modelc.core.errors import UsageError
from modelc.core.grammar import check_typos, parse_input
from modelc.core.signature import Dim, InputSpec, Signature, merge_inputs


def signature(*inputs: str) -> Signature:
    return merge_inputs([parse_input(text) for text in inputs], {})


def sizes(dim: Dim) -> tuple[int, int, int]:
    return dim.low, dim.opt, dim.high


@pytest.mark.parametrize(
    ("text", "low", "opt", "high"),
    [
        ("h=32*k", 32, 128, 256),
        ("2*k", 2, 8, 16),
        ("n=k+1", 2, 5, 9),
        ("k+3", 4, 7, 11),
        ("n=2*k-1", 1, 7, 15),
        ("n=k", 1, 4, 8),
        ("n = 2 * k + 1", 3, 9, 17),
    ],
)
def test_a_size_follows_from_its_base(text: str, low: int, opt: int, high: int) -> None:
    related = signature(f"x:float32[{text}]", "y:float32[k=1..8]").inputs[0].dims[0]
    assert sizes(related) == (low, opt, high)
    assert related.dynamic


def test_the_range_of_a_base_that_no_input_has_stands_with_the_relation() -> None:
    found = signature("x:float32[3,h=32*(k=1..2..7),w=32*k]")
    assert [sizes(dim) for dim in found.inputs[0].dims[1:]] == [(32, 64, 224)] * 2
    assert list(found.free_dims) == ["k"]
    assert sizes(found.free_dims["k"]) == (1, 2, 7)


def test_a_base_without_a_range_leaves_what_follows_without_bounds() -> None:
    found = signature("x:float32[h=32*k]").inputs[0].dims[0]
    assert not found.bounded
    assert sizes(found) == (32, 128, 256)


def test_the_range_may_stand_in_a_later_input() -> None:
    found = signature("b:int64[seq2=seq1]", "a:int64[seq1=2..6]")
    assert sizes(found.inputs[0].dims[0]) == (2, 4, 6)


def test_a_relation_holds_wherever_the_name_stands() -> None:
    found = signature("x:float32[h=8*(k=1..4)]", "mask:float32[h]")
    assert found.inputs[0].dims == found.inputs[1].dims


def test_relations_of_relations_lead_to_one_base() -> None:
    found = signature("x:float32[a=2*b+1,b=3*c,c=2..4]")
    assert str(found.inputs[0].dims[0]) == "a=6*c+1"
    assert list(found.free_dims) == ["c"]


@pytest.mark.parametrize(
    "inputs",
    [
        ("a:int64[batch=1..4,seq1=1..128]", "b:int64[batch,seq2=seq1]"),
        ("x:float32[h=32*(k=1..8),w=32*k]",),
        ("x:float32[h=32*k,2*k-1]",),
        ("x:float32[s=1..5]", "y:float32[2*s,n=s+1]"),
        ("x:float32[s=t]", "y:float32[u=t]"),
    ],
)
def test_what_is_printed_is_read_back_as_the_same(inputs: tuple[str, ...]) -> None:
    found = signature(*inputs)
    assert signature(*map(str, found.inputs)) == found


def test_dims_that_are_equal_have_one_axis_name() -> None:
    found = signature("a:int64[s=1..8]", "b:int64[s2=s]", "c:int64[2*s]")
    assert found.axes() == {"a": {0: "s"}, "b": {0: "s"}, "c": {0: "2*s"}}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (("x:float32[a=b,b=a]",), "in a circle: a from b from a"),
        (("x:float32[a=a]",), "in a circle"),
        (("x:float32[a=b-1,b=1..4]",), "'a' would be 0 where b is 1"),
        (("x:float32[h=32*(k=1..8)]", "y:float32[2*(k=1..9)]"), "'k' has two ranges"),
        (("x:float32[h=32*(k=1..8)]", "y:float32[h=1..8]"), "'h' has two ranges"),
        (("x:float32[k=1..8]", "y:float32[2*(k=1..9)]"), "'k' has two ranges"),
        (("x:float32[h=32*]",), "expected a dim name at character 16"),
        (("x:float32[h=0*k]",), "expected a factor above 0 at character 13"),
        (("x:float32[h=(k=1..3]",), r"expected '\)' at character 20"),
        (("x:float32[s+]",), "expected a number at character 13"),
        (("m:int64[n=a+b]", "x:int64[b=1..4]"), "'n' is a\\+b, and no input has the dim 'a'"),
        (("m:int64[n=a+b-3]", "x:int64[a=0..2,b=1..4]"), "'n' would be -2 where a is 0 and b is 1"),
        (("m:int64[n=a+b,a=n+1]", "x:int64[b=1..4]"), "in a circle: n from a from n"),
        (("m:int64[n=a+b]", "x:int64[a=1..2,b=1..4]", "y:int64[n=1..9]"), "'n' has two ranges"),
        (("m:int64[b=n-a]",), r"expected '\+' at character 12"),
        (("m:int64[(a=1..3)+b]",), "expected names of dims in a sum at character 9"),
    ],
)
def test_a_relation_that_cannot_be_is_an_error(inputs: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        signature(*inputs)


def test_the_hint_says_where_the_base_may_begin() -> None:
    with pytest.raises(UsageError) as caught:
        signature("x:float32[a=2*b-7,b=1..9]")
    assert caught.value.hint.endswith(" b at 4")
    assert sizes(signature("x:float32[a=2*b-7,b=4..9]").inputs[0].dims[0])[0] == 1


STEP = ("ids:int64[batch=1..4,seq=1..3..8]", "past:float32[batch,past=0..5..12]")


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("total=past+seq", "total=past+seq", (1, 8, 20)),
        ("past+seq+1", "past+seq+1", (2, 9, 21)),
        ("total = 2 * past + 3*seq - 1", "total=2*past+3*seq-1", (2, 18, 47)),
        ("twice=past+past", "twice=2*past", (0, 10, 24)),
        ("total=half+seq,half=2*past", "total=2*past+seq", (1, 13, 32)),
    ],
)
def test_a_size_follows_from_the_sum_of_others(
    text: str, found: str, expected: tuple[int, int, int]
) -> None:
    inputs = signature(f"mask:int64[{text}]", *STEP)
    total = inputs.inputs[0].dims[0]
    assert (str(total), sizes(total)) == (found, expected)
    assert {*inputs.free_dims} == {"batch", "seq", "past"}
    assert signature(*map(str, inputs.inputs)) == inputs
    assert msgspec.json.decode(msgspec.json.encode(inputs), type=Signature) == inputs


def test_a_sum_without_ranges_has_none_and_a_fixed_part_is_a_number() -> None:
    loose = signature("m:int64[total=past+seq]", "x:int64[past,seq]").inputs[0].dims[0]
    assert (loose.bounded, loose.is_sum) == (False, True)
    fixed = signature("m:int64[total=past+seq]", "x:int64[past=0..4,seq=1..1]").inputs[0].dims[0]
    assert str(fixed) == "total=past+1"
    whole = signature("m:int64[total=past+seq]", *STEP)
    step = whole.fix_at_opt(["seq"])
    assert (str(step.inputs[0].dims[0]), {*step.free_dims}) == ("total=past+3", {"past", "batch"})
    assert whole.fix_at_opt(["total"]).inputs[0].dims[0] == Dim.of_size(8)


def test_values_may_follow_a_sum() -> None:
    places = (
        signature("p:int64[seq]{0..total-1}", "m:int64[total=past+seq]", *STEP).inputs[0].values
    )
    assert places is not None
    assert (places.low, places.high, places.at({"total": 7}).high) == (0, 19, 6)


def test_a_sample_says_the_bases_size() -> None:
    known = {"x": InputSpec(name="x", dtype="float32", dims=(Dim.of_size(96),))}
    found = merge_inputs([parse_input("x[h=32*k]")], known)
    assert found.free_dims["k"].opt == 3


def test_a_static_dim_is_fixed_at_its_opt_and_others_stay() -> None:
    found = signature("x:float32[batch=1..8,s=1..3..9]").fix_at_opt(["s"])
    assert found.inputs[0].dims[1] == Dim.of_size(3)
    assert list(found.dynamic_dims) == ["batch"]


@pytest.mark.parametrize("name", ["k", "h"])
def test_what_follows_from_a_static_dim_is_fixed_too(name: str) -> None:
    found = signature("x:float32[b=1..2,h=8*(k=1..3),w=8*k]").fix_at_opt([name])
    assert found.inputs[0].dims[1:] == (Dim.of_size(16), Dim.of_size(16))


def test_an_unknown_static_dim_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="--static: 'z'") as caught:
        signature("x:float32[batch=1..8,s=1..9,4]").fix_at_opt(["z"])
    assert caught.value.hint == "choose from: batch, s"


def test_a_signature_goes_through_json_with_its_relations() -> None:
    found = signature("x:float32[b=1..2,h=8*(k=1..3)]")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Signature) == found


def test_a_dim_of_an_older_record_is_read() -> None:
    old = b'{"low": 1, "opt": 2, "high": 4, "name": "b", "bounded": true}'
    assert msgspec.json.decode(old, type=Dim) == Dim(name="b", low=1, opt=2, high=4)


@pytest.mark.parametrize(
    ("text", "low", "opt", "high"),
    [
        ("past:float32[past=0..12]", 0, 6, 12),
        ("past:float32[past=0..1]", 0, 1, 1),
        ("past:float32[past=0..3..12]", 0, 3, 12),
        ("past:float32[2*(k=0..4)]", 0, 4, 8),
        ("past:float32[total=(past=0..12)+1]", 1, 7, 13),
    ],
)
def test_the_least_size_of_a_range_may_be_zero(text: str, low: int, opt: int, high: int) -> None:
    (dim,) = merge_inputs([parse_input(text)], {}).inputs[0].dims
    assert (dim.low, dim.opt, dim.high) == (low, opt, high)
    assert (dim.free.low, dim.dynamic) == (0, True)
    again = merge_inputs([parse_input(str(merge_inputs([parse_input(text)], {}).inputs[0]))], {})
    assert again.inputs[0].dims == (dim,)


def test_a_size_below_zero_is_an_error() -> None:
    with pytest.raises(UsageError) as caught:
        merge_inputs([parse_input("x:float32[n=0..4,m=n-1]")], {})
    merge_inputs([parse_input("x:float32[n=1..4,m=n+0]")], {})
    assert "at 2" in caught.value.hint


def check(*texts: str, known: tuple[str, ...] = ()) -> None:
    check_typos([d for text in texts for d in parse_input(text).dims or () if d], known)


@pytest.mark.parametrize(
    ("text", "meant"), [("m[bacth]", "batch"), ("m[n=sqe+1]", "seq"), ("m[btch]", "batch")]
)
def test_a_typo_names_the_dim_that_was_meant(text: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"'{meant}'"):
        check("ids[batch=1..4,seq=1..9]", text)


def test_a_typo_of_a_dim_that_the_checkpoint_names_is_found() -> None:
    with pytest.raises(UsageError, match="'sequence'"):
        check("ids[4,seqence]", known=("batch", "sequence"))


@pytest.mark.parametrize(
    "text",
    ["m[seq2]", "m[q_len,k_len]", "m[bacth=1..3]", "m[bacth,bacth]", "m[batch,seq]", "m[h,w]"],
)
def test_names_that_are_meant_are_let_through(text: str) -> None:
    check("ids[batch=1..4,seq=1..9]", text)
