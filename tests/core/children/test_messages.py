"""Messages between child and parent: one line each, and nothing else is believed."""

from __future__ import annotations

import pytest

from modelc.core.children.messages import (
    Returned,
    decode_message,
    describe_error,
    encode_message,
    message_types,
    rebuild_error,
)
from modelc.core.errors import MissingError
from modelc.core.events import Advanced, Entered, Event, Finished, Noted, Started

EVENTS: list[Event] = [
    Started(step="a\nb", runs_artifact=True),
    Advanced(step="a", done=1, total=2),
    Noted(text="né", warning=True),
    Finished(step="a", passed=False, seconds=0.5, detail="x"),
    Entered(artifact="onnx"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_crosses_as_one_line(event: Event) -> None:
    line = encode_message(event)
    assert line.count(b"\n") == 1
    assert decode_message(line, message_types()) == event


def test_a_result_crosses_as_a_result() -> None:
    line = encode_message(Returned(value=EVENTS[0]))
    assert decode_message(line, message_types()) == Returned(value=EVENTS[0])


def test_a_name_that_is_not_valid_text_crosses() -> None:
    found = decode_message(encode_message(Noted(text="a\udcff")), message_types())
    assert isinstance(found, Noted)


@pytest.mark.parametrize(
    "line", [b"", b"{}", b'["Unknown", {}]', b'["Started", {}]', b"\xff", b"[" * 10_000]
)
def test_a_line_that_is_no_message_is_rejected(line: bytes) -> None:
    with pytest.raises(ValueError, match="message"):
        decode_message(line, message_types())


def test_an_error_of_a_class_below_ours_crosses_as_ours() -> None:
    class DeeperError(MissingError):
        pass

    found = rebuild_error(describe_error(DeeperError("no device", hint="buy one")))
    assert type(found) is MissingError
    assert isinstance(found, MissingError)
    assert (found.message, found.hint) == ("no device", "buy one")
