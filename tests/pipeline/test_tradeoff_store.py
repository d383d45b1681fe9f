"""The store of measurements of accuracy-aware INT8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modelc.core.findings import TradeOff
from modelc.pipeline.layer_noise import (
    TradeOffStore,
    digest_references,
    digest_texts,
    open_tradeoff_store,
)
from modelc.validators.feeds import NamedFeed
from modelc.validators.judge import ReferenceOutputs

POINT = TradeOff(kept=("a", "b"), passed=True, sqnr=31.5, latency=1.0, parent=2.0, share=0.5)


def test_a_stored_value_is_read_back(tmp_path: Path) -> None:
    TradeOffStore(tmp_path).keep("key", POINT)
    assert TradeOffStore(tmp_path).take("key", TradeOff) == POINT
    assert TradeOffStore(tmp_path).take("other", TradeOff) is None


def test_nothing_is_stored_without_a_folder() -> None:
    store = open_tradeoff_store(None)
    store.keep("key", POINT)
    assert store.take("key", TradeOff) is None


@pytest.mark.parametrize("damage", [b"", b"{", b'{"kept": 3}', b"\xff\xfe"])
def test_a_damaged_entry_is_a_miss(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "key.json").write_bytes(damage)
    assert TradeOffStore(tmp_path).take("key", TradeOff) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = TradeOffStore(tmp_path / "file" / "below")
    store.keep("key", POINT)
    assert store.take("key", TradeOff) is None
    assert (tmp_path / "file").read_text() == ""


def test_the_number_of_entries_is_limited(tmp_path: Path) -> None:
    store = TradeOffStore(tmp_path, most=3)
    for number in range(6):
        store.keep(f"key{number}", POINT)
    assert len(list(tmp_path.iterdir())) == 3
    assert store.take("key5", TradeOff) == POINT


def test_a_key_depends_on_all_parts_in_order() -> None:
    assert digest_texts(["a", "b"]) == digest_texts(["a", "b"])
    texts: tuple[list[str], ...] = (["a", "b"], ["b", "a"], ["ab"], [])
    assert len({digest_texts(one) for one in texts}) == 4


def test_a_digest_depends_on_feeds_and_outputs() -> None:
    def reference(x: float, y: float) -> ReferenceOutputs:
        feed = NamedFeed(name="one", arrays={"x": np.array([x])}, sizes={})
        return ReferenceOutputs(feed=feed, outputs={"y": np.array([y])})

    same, other = digest_references([reference(1, 2)]), digest_references([reference(1, 3)])
    assert same == digest_references([reference(1, 2)])
    assert len({same, other, digest_references([reference(2, 2)])}) == 3
