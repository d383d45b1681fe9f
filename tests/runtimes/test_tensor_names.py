"""Inputs and outputs of programs have the names that modelc gives them in this process."""

from __future__ import annotations

import numpy as np
import pytest

from modelc.core.errors import RunnerError
from modelc.core.nested_values import iterate_leaves, name_leaves
from modelc.runtimes.program_files import SEPARATOR, ProgramTensor
from modelc.runtimes.tensor_names import PathNames, PortNames

FLOAT = np.ones(2, np.float32)


def is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


@pytest.mark.parametrize(
    "value",
    [
        FLOAT,
        (FLOAT,),
        (FLOAT, None, FLOAT),
        {"a": FLOAT, "x": [FLOAT, FLOAT], "deep": {"b": (FLOAT,)}},
        ({"a": FLOAT}, (FLOAT, FLOAT)),
        ({"a.b": FLOAT}, {"a": {"b": FLOAT}}),
    ],
)
def test_nested_outputs_have_the_names_of_their_leaves(value: object) -> None:
    sent = [
        ProgramTensor(name=SEPARATOR.join(path), dtype="float32", array=FLOAT)
        for path, _ in iterate_leaves(value, is_array)
    ]
    names = PathNames(inputs=("x.0", "a"), places=(), outputs=None)
    expected = name_leaves(value, is_array, reserved=("x.0", "a")).found
    assert list(names.name_outputs(sent)) == list(expected)


def test_eagers_names_are_taken_if_their_number_is_right() -> None:
    sent = [ProgramTensor(name=str(index), dtype="float32", array=FLOAT) for index in range(2)]
    names = PathNames(inputs=("x",), places=(), outputs=("a", "b"))
    assert list(names.name_outputs(sent)) == ["a", "b"]
    assert list(names.name_outputs(sent[:1])) == ["output.0"]


def test_inputs_go_to_their_places() -> None:
    names = PathNames(
        inputs=("state.0", "state.1"), places=(("state", "0"), ("state", "1")), outputs=None
    )
    sent = names.read_feed({"state.1": FLOAT, "state.0": FLOAT * 2})
    assert [one.name.split(SEPARATOR) for one in sent] == [["state", "0"], ["state", "1"]]
    assert sent[0].array[0] == 2


def ports(dtype: str, *, half_io: bool = False) -> PortNames:
    return PortNames(inputs=("x",), dtypes=(dtype,), outputs=("y",), half_io=half_io)


def test_half_inputs_of_modelcs_making_take_float32_and_return_it() -> None:
    names = ports("float16", half_io=True)
    (sent,) = names.read_feed({"x": FLOAT})
    assert (sent.dtype, str(sent.array.dtype)) == ("float16", "float16")
    assert names.name_outputs([sent])["y"].dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64"])
def test_another_dtype_is_not_converted_silently(dtype: str) -> None:
    with pytest.raises(RunnerError):
        ports(dtype).read_feed({"x": FLOAT})


def test_a_missing_output_is_an_error() -> None:
    with pytest.raises(RunnerError):
        ports("float32").name_outputs([])
