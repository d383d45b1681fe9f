from __future__ import annotations

from collections.abc import Callable

import pytest

from modelc.core.call import Parameter, ParameterKind, bind_inputs, parameters_of
from modelc.core.errors import UsageError


def plain(x: object, mask: object = None) -> object:
    return {"x": x, "mask": mask}


def optional(input_ids: object = None, attention_mask: object = None, labels: object = 0) -> object:
    return (input_ids, attention_mask, labels)


def listed(xs: list[int], pair: tuple[int, int]) -> object:
    return (xs, pair)


def starred(first: object, *rest: object) -> object:
    return (first, rest)


def named(x: object, **more: object) -> object:
    return (x, more)


def by_place(x: object, /, *, mask: object) -> object:
    return (x, mask)


def result(function: Callable[..., object], *names: str) -> object:
    return bind_inputs(names, parameters_of(function)).call(function, names)


@pytest.mark.parametrize(
    ("function", "names", "expected"),
    [
        (plain, ("mask", "x"), {"x": "x", "mask": "mask"}),
        (plain, ("image",), {"x": "image", "mask": None}),
        (plain, ("a", "b"), {"x": "a", "mask": "b"}),
        (plain, ("mask", "image"), {"x": "image", "mask": "mask"}),
        (plain, ("x.a", "x.b.0"), {"x": {"a": "x.a", "b": ("x.b.0",)}, "mask": None}),
        (optional, ("attention_mask", "input_ids"), ("input_ids", "attention_mask", 0)),
        (listed, ("xs.0", "xs.1", "pair.0", "pair.1"), (["xs.0", "xs.1"], ("pair.0", "pair.1"))),
        (starred, ("first", "b", "c"), ("first", ("b", "c"))),
        (starred, ("a", "b"), ("a", ("b",))),
        (named, ("x", "depth"), ("x", {"depth": "depth"})),
        (by_place, ("x", "mask"), ("x", "mask")),
    ],
)
def test_each_input_finds_its_parameter(
    function: Callable[..., object], names: tuple[str, ...], expected: object
) -> None:
    assert result(function, *names) == expected


def test_a_misspelt_optional_input_is_rejected_rather_than_bound_by_order() -> None:
    with pytest.raises(UsageError, match="no parameter 'attention_maks'") as caught:
        result(optional, "input_ids", "attention_maks")
    assert "'attention_mask'" in caught.value.hint


def test_a_misspelt_input_is_not_swallowed_by_kwargs() -> None:
    with pytest.raises(UsageError, match="no parameter 'xx'"):
        result(named, "x", "xx")


def test_a_missing_required_parameter_is_named() -> None:
    with pytest.raises(UsageError, match=r"requires pair\b.*xs, pair"):
        result(listed, "xs.0")


def test_too_many_inputs_are_rejected() -> None:
    with pytest.raises(UsageError, match="x, mask"):
        result(plain, "a", "b", "c")


def test_a_gap_in_a_sequence_is_rejected_when_binding() -> None:
    with pytest.raises(UsageError, match="positions 1"):
        bind_inputs(["xs.1", "pair"], parameters_of(listed))


def test_a_constant_is_always_given() -> None:
    takes = (
        Parameter(name="x", kind=ParameterKind.POSITIONAL),
        Parameter(name="flag", kind=ParameterKind.POSITIONAL, constant=(None,)),
    )
    assert bind_inputs(["x"], takes).call(lambda *args: args, ["x"]) == ("x", None)
