"""A program is asked line by line; one that dies, hangs or floods blocks nobody."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from modelc.core.children.conversation import Conversation
from modelc.core.children.processes import ProcessEnd

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
SOON = 15.0  # seconds on a slow machine
ECHO = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"


@contextmanager
def talk(text: str) -> Iterator[Conversation]:
    conversation = Conversation((sys.executable, "-c", text))
    try:
        yield conversation
    finally:
        conversation.close()


def test_each_request_has_its_reply() -> None:
    with talk(ECHO) as conversation:
        replies = [conversation.ask(f"{text}\n".encode(), SOON) for text in ("a", "b")]
    assert replies == [b"A", b"B"]


def test_a_program_may_speak_first() -> None:
    with talk("print('ready', flush=True); input()") as conversation:
        assert conversation.ask(b"", SOON) == b"ready"


def test_the_end_of_a_program_is_the_last_reply() -> None:
    with talk("raise SystemExit(3)") as conversation:
        ends = [conversation.ask(b"a\n", SOON) for _ in range(2)]
    assert [end.code for end in ends if isinstance(end, ProcessEnd)] == [3, 3]


def test_a_crash_is_named() -> None:
    code = "import os, signal\ninput()\nos.kill(os.getpid(), signal.SIGSEGV)"
    with talk(code) as conversation:
        end = conversation.ask(b"a\n", SOON)
    assert isinstance(end, ProcessEnd)
    assert end.signal_name == "SIGSEGV"


def test_a_program_that_does_not_exist_is_an_error_of_the_system() -> None:
    conversation = Conversation(("/does/not/exist",))
    reply = conversation.ask(b"", SOON)
    conversation.close()
    assert isinstance(reply, FileNotFoundError)


def test_a_program_that_hangs_gives_no_reply_and_is_ended() -> None:
    began = time.monotonic()
    with talk("import time; time.sleep(600)") as conversation:
        assert conversation.ask(b"a\n", 0.3) is None
    assert time.monotonic() - began < SOON


def test_a_closed_conversation_replies_at_once() -> None:
    with talk("import time; time.sleep(600)") as conversation:
        assert conversation.ask(b"a\n", 0.3) is None
        conversation.close()
        began = time.monotonic()
        assert isinstance(conversation.ask(b"b\n", 600.0), ProcessEnd)
    assert time.monotonic() - began < SOON


def test_a_program_that_floods_is_ended() -> None:
    began = time.monotonic()
    with talk("while True: print('x' * 1000, flush=True)") as conversation:
        assert conversation.ask(b"", SOON) == b"x" * 1000
    assert time.monotonic() - began < SOON


def test_errors_of_the_program_are_logged() -> None:
    with talk("import sys; print('bad', file=sys.stderr)") as conversation:
        conversation.ask(b"", SOON)
    assert conversation.log.content() == b"bad\n"
