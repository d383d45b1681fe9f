"""Signatures: what `--input` and the samples say, merged, and what follows from it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from modelc.core.dims import Relation
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import Dim, InputSpec, Signature, ValueRange, merge_inputs


def spec(name: str, *sizes: int, dtype: str = "float32") -> InputSpec:
    return InputSpec(name=name, dtype=dtype, dims=tuple(Dim.of_size(size) for size in sizes))


def merged(*texts: str, known: tuple[InputSpec, ...] = ()) -> Signature:
    return merge_inputs([parse_input(text) for text in texts], {one.name: one for one in known})


def forms(signature: Signature) -> list[str]:
    return [str(one) for one in signature.inputs]


def test_inputs_keep_the_order_of_the_options() -> None:
    assert forms(merged("b:int64[2]", "a:int64[3]")) == ["b:int64[2]", "a:int64[3]"]


def test_samples_alone_make_a_signature() -> None:
    assert forms(merged(known=(spec("x", 2, 3),))) == ["x:float32[2,3]"]


def test_inputs_keep_the_order_of_the_samples() -> None:
    known = (spec("x", 2), spec("y", 2))
    assert forms(merged("y[n]", known=known)) == ["x:float32[2]", "y:float32[n]"]


def test_a_dtype_left_out_is_the_samples() -> None:
    assert forms(merged("x[_]", known=(spec("x", 2, dtype="int32"),))) == ["x:int32[2]"]


def test_a_given_dtype_goes_before_the_samples() -> None:
    assert forms(merged("x:float16", known=(spec("x", 2),))) == ["x:float16[2]"]


def test_an_underscore_keeps_the_samples_size() -> None:
    known = (spec("x", 8, 3, 32),)
    assert forms(merged("x[batch=1..8,_,_]", known=known)) == ["x:float32[batch=1..8,3,32]"]


def test_values_are_added_to_a_sample() -> None:
    assert merged("x{0..16}", known=(spec("x", 2),)).inputs[0].values == ValueRange(low=0, high=16)


def test_a_bare_dim_name_takes_the_samples_size_as_opt() -> None:
    dim = merged("x[batch]", known=(spec("x", 32),)).inputs[0].dims[0]
    assert (dim.low, dim.opt, dim.high, dim.bounded) == (1, 32, 32, False)


def test_a_range_keeps_its_own_opt_beside_a_sample() -> None:
    dim = merged("x[batch=1..2..64]", known=(spec("x", 32),)).inputs[0].dims[0]
    assert (dim.low, dim.opt, dim.high) == (1, 2, 64)


def test_a_range_given_once_holds_for_every_dim_of_that_name() -> None:
    signature = merged("x:float32[n,3]", "y:float32[n=1..2..6]")
    assert forms(signature) == ["x:float32[n=1..2..6,3]", "y:float32[n=1..2..6]"]


def test_two_bare_names_share_the_larger_sample_size() -> None:
    signature = merged("x[n]", "y[n]", known=(spec("x", 3), spec("y", 20)))
    assert {dim.high for dim in signature.dims_with_names()} == {20}


@pytest.mark.parametrize(
    ("texts", "known", "code"),
    [
        (("x:float32[n=1..4]", "y:float32[n=1..8]"), (), ErrorCode.CONFLICTING_RANGES),
        (("x:float32[2]", "x:float32[2]"), (), ErrorCode.DUPLICATE_INPUT),
        (("x:float32[2]", "x:float32[2]"), (spec("x", 2),), ErrorCode.DUPLICATE_INPUT),
        (("x[2]",), (), ErrorCode.MISSING_DTYPE),
        (("x:float32",), (), ErrorCode.MISSING_DIMS),
        (("x:float32[_]",), (), ErrorCode.MISSING_DIMS),
        (("z:float32[2]",), (spec("x", 2),), ErrorCode.UNKNOWN_INPUT),
        (("x[n]",), (spec("x", 2, 3),), ErrorCode.SAMPLE_MISMATCH),
        (("x[4]",), (spec("x", 2),), ErrorCode.SAMPLE_MISMATCH),
        (("x[h=32*k]",), (spec("x", 97),), ErrorCode.SAMPLE_MISMATCH),
    ],
)
def test_contradictions_are_rejected(
    texts: tuple[str, ...], known: tuple[InputSpec, ...], code: ErrorCode
) -> None:
    with pytest.raises(UsageError) as caught:
        merged(*texts, known=known)
    assert caught.value.code is code


def test_two_specs_of_one_name_are_rejected() -> None:
    with pytest.raises(UsageError) as caught:
        Signature(inputs=(spec("x", 2), spec("x", 2)))
    assert caught.value.code is ErrorCode.DUPLICATE_INPUT


def test_dynamic_dims_leave_out_ranges_of_one_size() -> None:
    signature = merged("x:float32[a,b=4..4,c=1..2,3]")
    assert list(signature.dynamic_dims) == ["a", "c"]


def test_axes_name_the_dynamic_places_of_each_input() -> None:
    signature = merged("x:float32[n,3,w=1..9]", "k:int64[]")
    assert signature.axes() == {"x": {0: "n", 2: "w"}}


def test_outputs_are_added_without_touching_the_inputs() -> None:
    signature = merged("x:float32[2]")
    named = signature.with_outputs(["y", "z"])
    assert named.outputs == ("y", "z")
    assert named.inputs == signature.inputs


ENDS = st.integers(1, 9)


@st.composite
def dims(draw: st.DrawFn, names: tuple[str, ...], *, related: bool) -> str:
    """A dim as people write it: a size, a range, or a relation to a dim of these names."""
    base = draw(st.sampled_from(names))
    times, plus = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    relation = Relation(base=base, times=times, plus=plus)
    low, most = sorted((draw(ENDS), draw(ENDS)))
    middle = draw(st.sampled_from(["", f"{low}..", f"{most}.."]))
    texts = [str(low), f"{base}={low}..{middle}{most}", base]
    if related:
        texts += [str(relation), f"m={relation}", relation.of(f"({base}={low}..{middle}{most})")]
    return draw(st.sampled_from(texts))


@st.composite
def written_inputs(draw: st.DrawFn) -> list[str]:
    """Inputs whose dims follow from those of others, in chains too."""
    first = draw(st.lists(dims(("n", "k"), related=False), min_size=1, max_size=2))
    second = draw(st.lists(dims(("n", "k", "j"), related=True), min_size=1, max_size=3))
    third = draw(st.lists(dims(("m", "k", "j"), related=True), max_size=2))
    values = draw(st.sampled_from(["", "{0..99}", "{-3..4 ascending}", "{0..n}"]))
    inputs = zip("abc", (first, second, third), strict=True)
    return [f"{name}:int64[{','.join(one)}]{values}" for name, one in inputs]


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(written_inputs())
def test_what_is_printed_is_read_as_the_same(texts: list[str]) -> None:
    try:
        found = merged(*texts)
    except UsageError:
        reject()
    assert merged(*forms(found)) == found


@pytest.mark.parametrize(
    ("texts", "printed"),
    [
        (["a:int64[n=2*(k=1..8)]", "b:int64[2*n]"], "b:int64[4*(k=1..8)]"),
        (["a:int64[n=1..8]", "c:int64[m=n]", "b:int64[2*m]"], "b:int64[2*n]"),
        (["a:int64[k=j+1]", "c:int64[j=1..2..5]", "b:int64[2*k+1]"], "b:int64[2*j+3]"),
    ],
)
def test_a_dim_that_follows_in_a_chain_is_printed_as_it_is_read(
    texts: list[str], printed: str
) -> None:
    assert forms(merged(*texts))[-1] == printed
