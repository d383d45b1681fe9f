"""Optimization profiles: from text, from a signature, and which one holds a feed."""

from __future__ import annotations

import pytest

from modelc.converters.trt.engine_options import ShapeRange, profile_text, read_profiles
from modelc.converters.trt.engine_profiles import find_unbounded, profiles_for, select_profile
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs


def signature(*inputs: str) -> Signature:
    return merge_inputs([parse_input(text) for text in inputs], {})


IMAGE = signature("x:float32[batch=1..2..8,3,16,16]")
TEXT = signature("ids:int64[batch=1..4,seq=2..16]", "mask:int64[batch=1..4,seq=2..16]")


def test_the_signature_has_one_profile() -> None:
    (profile,) = profiles_for(IMAGE, ())
    assert profile_text(profile) == "x=1x3x16x16:2x3x16x16:8x3x16x16"


def test_derived_dims_have_their_own_min_opt_and_max() -> None:
    related = signature("x:float32[batch=1..4,h=32*(k=1..8)]", "m:int64[n=k+1,rows=batch]")
    (profile,) = profiles_for(related, ())
    assert profile_text(profile) == "x=1x32:2x128:4x256,m=2x1:5x2:9x4"


def test_sums_of_dims_follow_a_profile() -> None:
    step = signature("x:int64[seq=1..2..8]", "p:float32[past=0..4..9]", "m:int64[total=past+seq]")
    profiles = profiles_for(step, read_profiles(["x=1:1:1", "x=4:4:8,p=0:0:0"]))
    assert [profile_text(one) for one in profiles] == [
        "x=1:2:8,p=0:4:9,m=1:6:17", "x=1:1:1,p=0:4:9,m=1:5:10", "x=4:4:8,p=0:0:0,m=4:4:8",
    ]  # fmt: skip


def test_extra_profiles_follow_the_signatures() -> None:
    extra = read_profiles(["x=1x3x16x16:1x3x16x16:1x3x16x16", "x=16x3x16x16:32x3x16x16:64x3x16x16"])
    assert [profile_text(one) for one in profiles_for(IMAGE, extra)[1:]] == [
        profile_text(one) for one in extra
    ]


def test_the_text_of_a_profile_can_be_parsed() -> None:
    (profile,) = profiles_for(TEXT, ())
    assert read_profiles([profile_text(profile)]) == (profile,)


def test_an_input_left_out_has_the_signatures_shapes() -> None:
    extra = read_profiles(["mask=1x2:1x2:1x2"])
    assert profile_text(profiles_for(TEXT, extra)[1]) == "ids=1x2:1x2:1x2,mask=1x2:1x2:1x2"
    doubled = signature(
        "x:float32[n=1..4,3]", "y:float32[n,k=1..9]", "z:float32[2*n+1]", "s:float32[]"
    )
    found = profiles_for(doubled, read_profiles(["x=8x3:8x3:16x3"]))[1]
    assert profile_text(found) == "x=8x3:8x3:16x3,y=8x1:8x5:16x9,z=17:17:33,s=::"


def test_inputs_that_share_a_dim_have_the_same_sizes_of_it() -> None:
    with pytest.raises(UsageError, match="batch"):
        profiles_for(TEXT, read_profiles(["ids=1x8:1x8:1x8,mask=2x8:2x8:2x8"]))


def test_a_scalar_has_an_empty_shape() -> None:
    assert read_profiles(["s=::"])[0][0] == ShapeRange(name="s", low=(), opt=(), high=())


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "=1:2:3",
        "x=1x3",
        "x=1x3:2x3",
        "x=1x3:ax3:4x3",
        "x=1x3:2x3:3x3:4x3",
        "x=4x3:2x3:8x3",
        "x=1x3:2x3:1x3",
        "x=1x3:2:4x3",
        "x=-1x3:2x3:4x3",
        "x=1:1:1,x=2:2:2",
        "x=1x3:2x3:2147483648x3",
    ],
)
def test_an_invalid_profile_is_rejected(text: str) -> None:
    with pytest.raises(UsageError) as failure:
        read_profiles([text])
    assert failure.value.option == "profile"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("y=1:1:1", "'y'"),
        ("x=1x3:1x3:1x3", "not 2$"),
        ("x=1x3x16x16:1x3x16x16:1x3x32x16", "16$"),
    ],
)
def test_a_profile_that_does_not_fit_the_signature_is_rejected(text: str, value: str) -> None:
    with pytest.raises(UsageError, match=value) as failure:
        profiles_for(IMAGE, read_profiles([text]))
    assert failure.value.option == "profile"


def test_the_first_profile_with_all_inputs_is_selected() -> None:
    profiles = profiles_for(TEXT, read_profiles(["ids=1x32:1x32:8x64,mask=1x32:1x32:8x64"]))
    assert select_profile(profiles, {"ids": (4, 16), "mask": (1, 2)}) == 0
    assert select_profile(profiles, {"ids": (8, 64), "mask": (8, 64)}) == 1
    assert select_profile(profiles, {"ids": (4, 16), "mask": (8, 64)}) is None
    assert select_profile(profiles, {"ids": (4,), "mask": (1, 2)}) is None


def test_a_dim_without_bounds_is_found_once_unless_a_profile_bounds_it() -> None:
    (error,) = find_unbounded(signature("x:float32[rows,6]"), ())
    assert (error.code, error.option) == (ErrorCode.MISSING_DIMS, "profile")
    assert "rows=min..max" in error.hint
    assert find_unbounded(signature("x:float32[rows,6]"), read_profiles(["x=1x6:4x6:8x6"])) == ()
    assert find_unbounded(IMAGE, ()) == ()


def test_a_stated_range_of_integers_is_in_the_profile() -> None:
    inputs = [parse_input("k:int64[2]{1..10}"), parse_input("x:float32[2]{0..1}")]
    signature = merge_inputs([*inputs, parse_input("i:int64[2]")], {})
    (profile,) = profiles_for(signature, ())
    assert [one.values for one in profile] == [(1, 5, 10), None, None]


def test_a_profile_is_selected_by_the_values_of_an_input_that_sets_a_size() -> None:
    small = ShapeRange(name="k", low=(2,), opt=(2,), high=(2,), values=(1, 4, 8))
    large = ShapeRange(name="k", low=(2,), opt=(2,), high=(2,), values=(6, 8, 20))
    profiles = ((small,), (large,))
    found = {
        given: select_profile(profiles, {"k": (2,)}, {"k": given})
        for given in ((1, 8), (8, 9), (1, 9), (0, 1))
    }
    assert found == {(1, 8): 0, (8, 9): 1, (1, 9): None, (0, 1): None}
    assert select_profile(profiles, {"k": (3,)}, {"k": (1, 1, 1)}) is None
