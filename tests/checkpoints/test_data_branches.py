"""Which branches of a forward depend on tensor data, and which arms feeds take."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.checkpoints.data_branches import BranchReport
from modelc.checkpoints.eager_model import Eager
from modelc.core.call import bind_inputs, parameters_of
from modelc.core.contract import Feed
from modelc.core.findings import BranchRecord

HELPERS = """
def is_high(x):
    return bool(x.mean() > 0)


def shifted(x):
    if x.sum() > 0:
        return x + 1
    return x
"""


def feed_of(*rows: float) -> Feed:
    return {"x": np.array([rows], dtype="float32")}


UP, DOWN = feed_of(1, 2, 3), feed_of(-1, -2, -3)


def watched(
    forward: Callable[..., Any] | nn.Module, *feeds: Feed, example: Feed | None = UP
) -> BranchReport:
    """What watching a module, or a function as a module's forward, shows."""
    if not isinstance(forward, nn.Module):

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(1))
                self.register_buffer("seen", torch.ones(1))
                self.limit = 0.5

            def forward(self, x: Tensor) -> Any:
                return forward(self, x)

        module: nn.Module = Net().eval()
    else:
        module = forward.eval()
    eager = Eager(module, ("x",), bind_inputs(("x",), parameters_of(module.forward)))
    named = [(f"feed-{number}", feed) for number, feed in enumerate(feeds or (UP, UP), start=1)]
    found = eager.branches(named, example)
    assert not found.incomplete
    return found


def records(forward: Callable[..., Any], *feeds: Feed) -> Sequence[BranchRecord]:
    return watched(forward, *feeds).records


def line_in(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if text in line)


def statement(_: Any, x: Tensor) -> Tensor:
    if x.mean() > 0:
        return x + 1
    return x


def expression(_: Any, x: Tensor) -> Tensor:
    return x + 1 if x.mean() > 0 else x


def truth(_: Any, x: Tensor) -> Tensor:
    high = x.mean() > 0
    if high:
        x = x + 1
    return x


def item(_: Any, x: Tensor) -> Tensor:
    if x.mean().item() > 0:
        x = x + 1
    return x


def assigned(_: Any, x: Tensor) -> Tensor:
    level = int(x.max())
    twice = level * 2
    if twice > 3:
        x = x + 1
    return x


def kept_on_self(net: Any, x: Tensor) -> Tensor:
    net.high = float(x.max()) > 0
    if net.high:
        x = x + 1
    return x


def any_of_a_list(_: Any, x: Tensor) -> Tensor:
    peaks = [float(row.max()) for row in x]
    if any(peak > 0 for peak in peaks):
        x = x + 1
    return x


def appended(_: Any, x: Tensor) -> Tensor:
    peaks = []
    for row in x:
        peaks.append(float(row.max()))  # noqa: PERF401 - as users write it
    if max(peaks) > 0:
        x = x + 1
    return x


def each_of_a_list(_: Any, x: Tensor) -> Tensor:
    for peak in [float(row.max()) for row in x]:
        if peak > 0:
            x = x + 1
    return x


def contained(_: Any, x: Tensor) -> Tensor:
    if 3 in x:
        x = x + 1
    return x


def equal(_: Any, x: Tensor) -> Tensor:
    if torch.equal(x, x.abs()):
        x = x + 1
    return x


def close(_: Any, x: Tensor) -> Tensor:
    if torch.allclose(x, x.abs()):
        x = x + 1
    return x


def by_array(_: Any, x: Tensor) -> Tensor:
    values = x.numpy()
    if max(values.max(), 0) > 0:
        x = x + 1
    return x


def sized_by_data(_: Any, x: Tensor) -> Tensor:
    found = (x > 0).nonzero()
    if found.shape[0] > 0:
        x = x + 1
    return x


def masked(_: Any, x: Tensor) -> Tensor:
    if len(x[x > 0]):
        x = x + 1
    return x


def back_in_a_tensor(_: Any, x: Tensor) -> Tensor:
    level = torch.tensor(x.max().item())
    if level > 0:
        x = x + 1
    return x


def through_numpy(_: Any, x: Tensor) -> Tensor:
    level = torch.from_numpy(np.abs(x.numpy()) + x.numpy())
    if level.sum() > 0:
        x = x + 1
    return x


def written_in_place(_: Any, x: Tensor) -> Tensor:
    kept = torch.zeros(3)
    kept += x[0]
    if kept.sum() > 0:
        x = x + 1
    return x


def in_a_closure(_: Any, x: Tensor) -> Tensor:
    def high() -> bool:
        return bool(x.mean() > 0)

    if high():
        x = x + 1
    return x


def over_lines(_: Any, x: Tensor) -> Tensor:
    if (
        x.shape[0] > 0
        and x.mean() > 0
    ):  # fmt: skip
        x = x + 1
    return x


def in_a_comprehension(_: Any, x: Tensor) -> Tensor:
    rows = [row for row in x if row.mean() > 0]
    return torch.stack(rows) if rows else x


BRANCHES = [
    (statement, "if x.mean"), (expression, "if x.mean"), (truth, "if high"), (item, "if x.mean"),
    (assigned, "if twice"), (kept_on_self, "if net.high"), (contained, "if 3 in"),
    (equal, "if torch"), (close, "if torch"), (by_array, "if max"),
    (sized_by_data, "if found"), (masked, "if len"), (back_in_a_tensor, "if level"),
    (through_numpy, "if level"), (written_in_place, "if kept"), (in_a_closure, "if high()"),
    (over_lines, "if ("), (in_a_comprehension, "if row"),
    (any_of_a_list, "if any"), (appended, "if max"), (each_of_a_list, "if peak"),
]  # fmt: skip


@pytest.mark.parametrize(("forward", "text"), BRANCHES)
def test_a_branch_on_data_has_its_line_and_the_feed_of_each_outcome(
    forward: Callable[..., Any], text: str
) -> None:
    line = line_in(forward, text)
    (record,) = [r for r in records(forward, UP, DOWN) if r.line == line]
    assert Path(record.file).name == Path(__file__).name
    assert record.data
    assert record.kind == "if"
    assert record.arms == {"true": "feed-1", "false": "feed-2"}
    assert not record.gap_text
    (alone,) = [r for r in records(forward, UP) if r.line == line]
    assert alone.untaken == ("false",)
    assert alone.gap_text
    assert alone.label.startswith(f"{alone.file}:{line}: if ")


def by_size(_: Any, x: Tensor) -> Tensor:
    if x.shape[0] > 0 and len(x) > 0 and x.numel() > 2 and x.dim() == 2:
        x = x / math.sqrt(x.size(-1))
    return x


def by_parameter(net: Any, x: Tensor) -> Tensor:
    if net.weight.item() > 0 and net.seen.sum() > 0:
        x = x + 1
    return x


def by_setting(net: Any, x: Tensor) -> Tensor:
    if net.limit > 0.1 and not net.training:
        x = x + 1
    return x


def by_form_of_a_result(_: Any, x: Tensor) -> Tensor:
    low = (x > 0).any(dim=-1)
    if low.dtype is torch.bool and low.ndim == 1 and torch.zeros_like(x).sum() == 0:
        x = x + 1
    return x


def by_presence(net: Any, x: Tensor) -> Tensor:
    level = x.max() if net.limit else None
    if level is not None:
        x = x + level
    return x


def by_check(_: Any, x: Tensor) -> Tensor:
    assert (x > -100).all()
    if (x < -100).any():
        raise ValueError("too low")
    if x.isnan().any():
        warnings.warn("strange", stacklevel=1)
    torch._check(bool((x > -100).all()))  # type: ignore[no-untyped-call]  # torch's own
    return x


@pytest.mark.parametrize(
    "forward", [by_size, by_parameter, by_setting, by_form_of_a_result, by_presence, by_check]
)
def test_what_is_no_choice_by_data_is_not_reported(forward: Callable[..., Any]) -> None:
    assert records(forward, UP, feed_of(1, 2, 3, 4)) == ()


def checked_and_kept(_: Any, x: Tensor) -> Tensor:
    most = float(x.max())
    if most > 1e9:
        raise ValueError("too high")
    return x * most


def checked_by_an_assert_and_kept(_: Any, x: Tensor) -> Tensor:
    most = x.max().item()
    assert most < 1e9
    scale = 1 / max(most, 1.0)
    return x * scale


def checked_where_it_is_named_and_kept(_: Any, x: Tensor) -> Tensor:
    if (most := x.max().item()) > 1e9:
        raise ValueError("too high")
    return x * most


def kept_where_it_is_not_too_high(_: Any, x: Tensor) -> Tensor:
    most = float(x.max())
    if most > 1e9:
        raise ValueError("too high")
    else:  # noqa: RET506 - the arm is what is tested
        x = x + most
    return x


def checked_by_who_makes_it(_: Any, x: Tensor) -> Tensor:
    return x * low_peak(x)


def low_peak(x: Tensor) -> float:
    most = float(x.max())
    if most > 1e9:
        raise ValueError("too high")
    return most


def checked_by_who_asks_for_it(_: Any, x: Tensor) -> Tensor:
    most = peak(x)
    if most > 1e9:
        raise ValueError("too high")
    return x * most


def peak(x: Tensor) -> float:
    return float(x.max())


def checked_and_left_on_self(net: Any, x: Tensor) -> Tensor:
    net.most = float(x.max())
    if net.most > 1e9:
        raise ValueError("too high")
    x = x * net.most
    return x  # noqa: RET504 - an attribute is of any type


PEAKS: list[float] = []
HIGHEST = 0.0


def checked_and_left_in_a_file(_: Any, x: Tensor) -> Tensor:
    global HIGHEST  # noqa: PLW0603 - what is tested
    HIGHEST = float(x.max())
    if HIGHEST > 1e9:
        raise ValueError("too high")
    return by_the_highest(x)


def by_the_highest(x: Tensor) -> Tensor:
    return x * (2 if HIGHEST > 1e6 else 1)


def checked_and_left_in_a_list(_: Any, x: Tensor) -> Tensor:
    most = float(x.max())
    PEAKS.append(most)
    if most > 1e9:
        raise ValueError("too high")
    return x


def checked_and_left_with_the_caller(_: Any, x: Tensor) -> Tensor:
    seen: dict[str, float] = {}
    leave_with(seen, x)
    return x


def leave_with(seen: dict[str, float], x: Tensor) -> None:
    most = float(x.max())
    seen["most"] = most
    if most > 1e9:
        raise ValueError("too high")


def checked_and_left_in_an_attribute_by_another_name(net: Any, x: Tensor) -> Tensor:
    net.kept = {}
    seen = net.kept
    most = float(x.max())
    seen["most"] = most
    if most > 1e9:
        raise ValueError("too high")
    return x


def checked_and_left_for_another(net: Any, x: Tensor) -> Tensor:
    net.most = float(x.max())
    if net.most > 1e9:
        raise ValueError("too high")
    return x


def checked_by_what_may_keep_it(net: Any, x: Tensor) -> Tensor:
    most = float(x.max())
    if too_high(net, most):
        raise ValueError("too high")
    return x


def asserted_by_what_may_keep_it(net: Any, x: Tensor) -> Tensor:
    most = float(x.max())
    assert not too_high(net, most)
    return x


def too_high(net: Any, most: float) -> bool:
    net.most = most
    return most > 1e9


@pytest.mark.parametrize(
    ("forward", "line"),
    [
        *(
            (one, line_in(one, "most = "))
            for one in (
                checked_and_left_in_a_list,
                checked_and_left_in_an_attribute_by_another_name,
                checked_and_left_for_another,
                checked_by_what_may_keep_it,
                asserted_by_what_may_keep_it,
            )
        ),
        (checked_and_left_in_a_file, line_in(checked_and_left_in_a_file, "HIGHEST = ")),
        (checked_and_left_with_the_caller, line_in(leave_with, "most = ")),
        (checked_and_kept, line_in(checked_and_kept, "most = ")),
        (checked_by_an_assert_and_kept, line_in(checked_by_an_assert_and_kept, "most = ")),
        (checked_where_it_is_named_and_kept, line_in(checked_where_it_is_named_and_kept, ":=")),
        (kept_where_it_is_not_too_high, line_in(kept_where_it_is_not_too_high, "most = ")),
        (checked_by_who_makes_it, line_in(low_peak, "most = ")),
        (checked_by_who_asks_for_it, line_in(peak, "return")),
        (checked_and_left_on_self, line_in(checked_and_left_on_self, "most = ")),
    ],
)
def test_a_value_that_is_checked_and_kept_is_a_value(
    forward: Callable[..., Any], line: int
) -> None:
    (record,) = records(forward, UP, UP)
    assert (record.kind, record.line) == ("value", line)
    assert record.gap_text


def checked_alone(_: Any, x: Tensor) -> Tensor:
    most = float(x.max())
    twice = most * 2
    if twice > 1e9:
        text = f"{most} is too high"
        raise ValueError(text)
    if (least := x.min().item()) < -1e9:
        raise ValueError(f"{least} is too low")
    both = []
    both.append(most)
    if max(both) > 1e9:
        raise ValueError("too high")
    return x


def checked_further_out(_: Any, x: Tensor) -> Tensor:
    if peak(x) > 1e9:
        raise ValueError("too high")
    return x


@pytest.mark.parametrize("forward", [checked_alone, checked_further_out])
def test_a_value_that_is_checked_alone_is_none(forward: Callable[..., Any]) -> None:
    assert records(forward, UP, UP) == ()


def test_checks_are_known_as_idle_places() -> None:
    found = watched(by_check)
    lines = {line for _, line in found.idle}
    assert {line_in(by_check, "assert"), line_in(by_check, "if (x <")} <= lines


def test_branches_inside_torch_are_not_reported() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 1, 8, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, x: Tensor) -> Any:
            mask = x[0] > 100
            return self.encoder(x.repeat(3, 4)[None, :, :4], mask=mask.repeat(3, 1))

    found = watched(Masked(), UP)
    assert found.found == ()
    assert found.within


def test_a_submodules_branch_names_its_module() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.mean() > 0 else x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Identity(), Inner())

        def forward(self, x: Tensor) -> Any:
            return self.body(x)

    (record,) = watched(Outer(), UP).records
    assert record.module == "body.1"


@pytest.fixture
def helpers(tmp_path: Path) -> Any:
    sys.path.insert(0, str(tmp_path))
    (tmp_path / "helpers_of_net.py").write_text(HELPERS)
    import helpers_of_net  # type: ignore[import-not-found]  # written just now

    yield helpers_of_net
    sys.path.remove(str(tmp_path))
    del sys.modules["helpers_of_net"]


def test_a_branch_in_a_helper_of_another_file_is_reported_there(helpers: Any) -> None:
    (record,) = records(lambda _, x: helpers.shifted(x), UP)
    assert (record.file, record.line) == ("helpers_of_net.py", 7)


def test_a_helper_that_answers_leads_to_who_asked(helpers: Any) -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        return x + 1 if helpers.is_high(x) else x

    (found,) = watched(forward, UP).found
    assert found.record.line == line_in(forward, "is_high")
    assert any(Path(file).name == "helpers_of_net.py" and line == 3 for file, line in found.places)


def halving(_: Any, x: Tensor) -> Tensor:
    while x.abs().max() > 1:
        x = x / 2
    return x


def test_the_number_of_turns_is_a_way_of_its_own() -> None:
    (same,) = records(halving, UP, feed_of(1, 2, 2.5))
    assert same.arms == {"true": "feed-1", "false": "feed-1"}
    assert same.gap_text
    (other,) = records(halving, UP, feed_of(1, 2, 30))
    assert not other.gap_text


def repeating(_: Any, x: Tensor) -> Tensor:
    for _turn in range(int(x.max())):
        x = x + 1
    return x


def test_a_range_that_depends_on_data_is_a_branch() -> None:
    (record,) = records(repeating, UP, feed_of(1, 1, 1))
    assert record.kind == "for"
    assert record.condition.endswith("range(int(x.max()))")
    assert not record.gap_text
    assert records(repeating, UP)[0].gap_text


def scaled(_: Any, x: Tensor) -> Tensor:
    scale = float(x.max())
    return x / scale


def test_a_value_that_is_kept_is_tested_by_other_values() -> None:
    (record,) = records(scaled, UP)
    assert (record.kind, record.condition) == ("value", "scale = float(x.max())")
    assert record.gap_text
    assert not records(scaled, UP, DOWN)[0].gap_text


def behind_a_setting(net: Any, x: Tensor) -> Tensor:
    high = x.max().item() > 100
    if net.limit > 100:
        if high:
            x = x + 1
        return x
    return net.helper(x, high) if hasattr(net, "helper") else x


def test_a_branch_that_no_feed_comes_by_is_not_reported_but_the_value_is() -> None:
    (record,) = records(behind_a_setting, UP)
    assert (record.kind, record.line) == ("value", line_in(behind_a_setting, "high ="))
    assert record.gap_text


def nested(_: Any, x: Tensor) -> Tensor:
    if x.mean() > 0:
        return x
    if x.max() < -100:
        return x + 1
    return x + 2


def test_a_branch_behind_a_branch_is_reported_where_any_feed_comes_by() -> None:
    assert len(records(nested, UP)) == 1
    inner = records(nested, UP, DOWN)[1]
    assert inner.arms == {"false": "feed-2"}


def sized_then_valued(_: Any, x: Tensor) -> Tensor:
    if x.shape[1] > 3 and x.mean() > 0:
        return x + 1
    return x


def test_feeds_of_a_form_that_was_skipped_are_watched_once_data_matters() -> None:
    wide = feed_of(1, 2, 3, 4)
    (record,) = records(sized_then_valued, UP, UP, wide)
    assert record.arms == {"false": "feed-1", "true": "feed-3"}


def test_without_data_in_python_one_feed_of_each_form_is_watched() -> None:
    assert watched(by_size, UP, DOWN, UP, feed_of(1, 2, 3, 4)).runs == 2


def test_a_way_that_only_the_captured_feed_took_counts() -> None:
    (found,) = watched(statement, DOWN, DOWN, example=UP).found
    assert found.record.arms == {"false": "feed-1", "true": "example"}
    assert found.others == ("feed-1", "feed-2")


def test_eager_is_not_changed_by_being_watched() -> None:
    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.max().item()

    module = Counting().eval()
    eager = Eager(module, ("x",), bind_inputs(("x",), parameters_of(module.forward)))
    before = eager.run(UP)
    eager.branches([("one", UP)], DOWN)
    after = eager.run(UP)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_run_that_cannot_be_watched_says_so() -> None:
    class Shy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if type(torch.zeros(1) + x) is Tensor and torch._C._len_torch_function_stack():
                raise RuntimeError("not while I am watched")
            return x

    module = Shy().eval()
    eager = Eager(module, ("x",), bind_inputs(("x",), parameters_of(module.forward)))
    found = eager.branches([("one", UP)], DOWN)
    assert found.incomplete
    assert found.found == ()


def test_a_value_that_goes_through_many_functions_is_followed_once_through_each(
    tmp_path: Path,
) -> None:
    """Each function asks for its caller's meaning several times: unremembered, that is 5^24."""
    deep = 24
    first = "def f0(x):\n    return float(x.max())\n"
    rest = "".join(
        f"def f{n}(x):\n    m = f{n - 1}(x)\n    if m is None:\n        return m\n    return m\n"
        for n in range(1, deep + 1)
    )
    (tmp_path / "deep.py").write_text(first + rest)
    space: dict[str, Any] = {}
    exec(compile((tmp_path / "deep.py").read_text(), tmp_path / "deep.py", "exec"), space)
    last = space[f"f{deep}"]

    def forward(_: Any, x: Tensor) -> Tensor:
        if last(x) > 2:
            return x + 1
        return x

    found = records(forward, UP, DOWN)
    assert [record.condition for record in found] == ["last(x) > 2"]
