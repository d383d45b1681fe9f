"""What becomes of an artifact whose capture froze a branch that no feed took otherwise."""

from __future__ import annotations

import itertools
import json
import linecache
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modelc.checkpoints.source_positions import parse_file
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.findings import BranchRecord
from modelc.core.kinds import Capture, ReasonCode
from modelc.core.manifest import Manifest
from modelc.pipeline.make_order import build_order
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.recorded_run import Moved
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import rejudge_folder, validate_file
from modelc.pipeline.validate_folder import validate_folder

from ..reasons import has_code, reason_codes

NETS = '''
import math
import torch
from torch import nn

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, x):
        if x.abs().max() > 1e8:
            return self.high(x)
        return self.low(x)

class Sizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
    def forward(self, x):
        if x.shape[1] > 3 and x.shape[0] > 0:
            x = x / math.sqrt(x.size(-1))
        return self.fc(x)

class Equal(nn.Module):
    """torch.equal: a trace freezes it and says nothing."""
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, x):
        if torch.equal(x, x + 1):
            return self.high(x)
        return self.low(x)

class Shortcut(nn.Module):
    """A shortcut that its author turns off while captured."""
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
    def forward(self, x):
        captured = torch.jit.is_tracing() or torch.compiler.is_compiling()
        if not captured and bool((x.abs() > 1e8).all()):
            return self.fc(x) * 1.0
        return self.fc(x)

class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
    def forward(self, x):
        count = int((x > 1e8).sum())
        return self.fc(x) * (count + 1)

class Checked(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
    def forward(self, x):
        if torch.isnan(x).any():
            raise ValueError("NaN")
        assert bool((x.abs() < 1e30).all())
        return self.fc(x)

class Hidden(nn.Module):
    """A number that differs between feeds, and hides behind max() on all of them."""
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
    def forward(self, x):
        scale = max(1.0, float(x.abs().max()) / 1e38)
        return self.fc(x) / scale

class Caught(nn.Module):
    """A check whose error is caught is a branch."""
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(8, 4), nn.Linear(8, 4)
    def checked(self, x):
        if 7.0 < float(x.max()) < 7.001:
            raise ValueError("x")
        return x
    def forward(self, x):
        try:
            return self.low(self.checked(x))
        except ValueError:
            return self.high(x)

class Asserting(nn.Module):
    """An assert whose error is caught: an export makes a check of it, that ONNX leaves out."""
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, x):
        most = x.max().item()
        try:
            assert most < 7e7
            return self.low(x)
        except AssertionError:
            return self.high(x)

class Hooked(nn.Module):
    """A hook that ends in a branch, and changes what it was called with."""
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.fc.register_forward_hook(self.changed)
    @staticmethod
    def changed(module, args, out):
        if 7.0 < float(out.max()) < 7.001:
            out.add_(1)
    def forward(self, x):
        return self.fc(x)

class Part(Gate):
    """The same gate, in a class that TorchScript takes."""

class Parts(nn.Module):
    """One part branches; TorchScript does not take the whole."""
    def __init__(self):
        super().__init__()
        self.fc, self.gate = nn.Linear(8, 8), Part()
    def forward(self, *xs):
        return self.gate(self.fc(xs[0]))

class Compiled(nn.Module):
    """What only strict export takes, beside a branch that it goes round."""
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
    def forward(self, x):
        rows = x.numpy().shape[0]
        if not torch.compiler.is_compiling() and float(x.abs().max()) > 1e38:
            return self.fc(x) * 2
        return self.fc(x)

class Masked(nn.Module):
    """torch's own encoder asks whether its mask holds anything."""
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 1, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    def forward(self, x):
        return self.encoder(x[:, None, :], mask=x[0, :1, None] > 1e30)

def low_only(gate):
    gate.forward = lambda x: gate.low(x)

def hooked(gate):
    gate.extra = nn.Identity()
'''
LINE = 1 + next(at for at, text in enumerate(NETS.splitlines()) if "abs().max()" in text)
_COUNT = itertools.count()
OrderOf = Callable[..., Order]


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OrderOf:
    """`net("Gate", "onnx", capture=...)`: an order for that net, its file written beside."""
    monkeypatch.chdir(tmp_path)
    module = f"branching_{next(_COUNT)}"

    def make(name: str, *targets: str, capture: Capture | None = None, accept: str = "") -> Order:
        (tmp_path / f"{module}.py").write_text(NETS)
        space: dict[str, type[torch.nn.Module]] = {}
        exec(NETS, space)
        torch.manual_seed(0)
        torch.save(space[name]().state_dict(), tmp_path / "net.pt")
        return Order(
            source=Source(
                checkpoint=tmp_path / "net.pt",
                model=f"{module}:{name}",
                inputs=("x:float32[batch=1..4,8]",),
            ),
            wanted=tuple(Wanted.parse(target) for target in targets),
            out=tmp_path / "out",
            capture=capture,
            judging=Judging(accept=(accept.replace("net", module),) if accept else ()),
        )

    return make


def patched(order: Order, function: str) -> Order:
    module = str(order.source.model).partition(":")[0]
    return replace(order, patches=(f"{module}:{function}",))


def the_branch(manifest: Manifest) -> BranchRecord:
    (record,) = manifest.branches
    return record


def test_the_untaken_arm_of_a_trace_is_named_and_refused(net: OrderOf) -> None:
    found = run(net("Gate", "torchscript", capture=Capture.TRACE))
    (verdict,) = found.verdicts
    assert found.exit_code == 1
    assert found.artifacts[0].rejected
    assert f".py:{LINE}: if x.abs().max() > 1e8: " in verdict.reason
    assert the_branch(found).untaken == ("true",)
    assert "--accept-branch" in verdict.reason
    assert verdict.faults


def test_what_is_refused_so_is_right_on_every_feed(net: OrderOf) -> None:
    (verdict,) = run(net("Gate", "torchscript", capture=Capture.TRACE)).verdicts
    assert all(output.passed for output in verdict.outputs)


def test_a_patch_that_drops_an_arm_no_feed_took_is_refused(net: OrderOf) -> None:
    found = run(patched(net("Gate", "torchscript"), "low_only"))
    (verdict,) = found.verdicts
    assert all(output.passed for output in verdict.outputs)
    assert f".py:{LINE}: if x.abs().max() > 1e8: " in verdict.reason
    assert the_branch(found).untaken == ("true",)
    assert reason_codes(verdict) == [ReasonCode.BRANCH_UNCOVERED]
    assert found.exit_code == 1


def test_the_arm_that_a_patch_drops_may_be_accepted_and_is_noted(net: OrderOf) -> None:
    order = net("Gate", "torchscript", accept=f"net.py:{LINE}")
    (verdict,) = run(patched(order, "low_only")).verdicts
    assert verdict.passed
    assert any(f".py:{LINE}" in note for note in verdict.notes)


def test_a_patch_that_leaves_the_branch_is_judged_as_the_model(net: OrderOf) -> None:
    (verdict,) = run(patched(net("Gate", "torchscript"), "hooked")).verdicts
    assert verdict.passed
    assert not any("rewritten copy" in note for note in verdict.notes)


@pytest.mark.needs("onnx")
def test_a_child_of_a_refused_trace_is_not_made(net: OrderOf) -> None:
    found = run(net("Gate", "onnx", "onnx:fp16", capture=Capture.TRACE))
    assert [a.name for a in found.artifacts] == ["rejected/onnx"]
    assert [failure.step for failure in found.failures] == ["onnx-fp16"]


def test_a_script_keeps_the_branch_and_says_which_arm_no_feed_took(net: OrderOf) -> None:
    found = run(net("Gate", "torchscript"))
    (artifact,) = found.artifacts
    assert found.passed
    assert [(a.capture, a.outcome) for a in artifact.attempts] == [
        ("trace", "failed"),
        ("script", "passed"),
    ]
    assert artifact.frozen == ()
    assert any(the_branch(found).place in note for note in found.verdicts[0].notes)
    assert the_branch(found).untaken == ("true",)


def test_an_accepted_branch_passes_with_a_note_and_is_recorded(net: OrderOf) -> None:
    order = net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}")
    found = run(order)
    assert found.passed
    assert any(the_branch(found).place in note for note in found.verdicts[0].notes)
    assert the_branch(found).accepted
    assert found.artifacts[0].frozen == (the_branch(found).place,)


def test_a_name_that_accepts_nothing_is_refused_with_those_there_are(net: OrderOf) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME)) as caught:
        run(net("Gate", "torchscript", accept="net.py:1"))
    assert f".py:{LINE}" in caught.value.hint


def test_what_is_no_place_is_no_branch() -> None:
    with pytest.raises(UsageError, match="not FILE:LINE"):
        Judging(accept=("gate.py",))


def test_what_torch_itself_decides_is_noted_again_when_judged_again(net: OrderOf) -> None:
    order = net("Masked", "torchscript", capture=Capture.TRACE)
    (first,) = run(order).verdicts
    (again,) = validate_folder(order.out).verdicts
    alone = validate_file(order.out / "model.torchscript.pt")
    told = [note for note in first.notes if note.startswith("torch's own code, called at")]
    assert len(told) == 1
    assert set(told) <= set(again.notes)
    assert set(told) <= set(alone.notes)


def test_sizes_make_no_trace_fail(net: OrderOf) -> None:
    found = run(net("Sizes", "torchscript", capture=Capture.TRACE))
    assert found.passed
    assert found.branches == ()
    assert found.artifacts[0].frozen == ()
    assert found.verdicts[0].notes == ()
    assert found.warned  # the tracer warned of them


def test_what_the_tracer_does_not_warn_of_is_found_in_a_second_trace(net: OrderOf) -> None:
    found = run(net("Equal", "torchscript", capture=Capture.TRACE))
    assert found.exit_code == 1
    assert "if torch.equal(x, x + 1): " in found.verdicts[0].reason
    assert the_branch(found).untaken == ("true",)


@pytest.mark.parametrize(
    ("target", "capture"),
    [("torchscript", Capture.TRACE), ("pt2", Capture.EXPORT), ("onnx", Capture.EXPORT)],
)
def test_a_branch_that_the_code_leaves_out_of_captures_is_frozen(
    net: OrderOf, target: str, capture: Capture
) -> None:
    found = run(net("Shortcut", target, capture=capture))
    (artifact,) = found.artifacts
    assert found.exit_code == 1
    assert artifact.frozen == (the_branch(found).place,)
    assert the_branch(found).untaken == ("true",)
    assert reason_codes(found.verdicts[0])[-1] is ReasonCode.BRANCH_UNCOVERED


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.EXPORT_STRICT])
def test_an_assert_whose_error_forward_catches_is_a_branch_of_exports(
    net: OrderOf, capture: Capture
) -> None:
    found = run(net("Asserting", "pt2", capture=capture))
    assert found.exit_code == 1
    assert "if not (most < 7e7): " in found.verdicts[0].reason
    assert the_branch(found).untaken == ("true",)


def test_a_branch_at_the_end_of_a_hook_is_seen(net: OrderOf) -> None:
    found = run(net("Hooked", "torchscript", capture=Capture.TRACE))
    assert found.exit_code == 1
    assert the_branch(found).untaken == ("true",)
    assert "if 7.0 < float(out.max()) < 7.001: " in (found.verdicts[0].reason)


def test_a_kept_value_that_is_the_same_on_every_feed_is_refused(net: OrderOf) -> None:
    found = run(net("Kept", "torchscript", capture=Capture.TRACE))
    assert found.exit_code == 1
    assert "count = int((x > 1e8).sum()): " in found.verdicts[0].reason
    assert reason_codes(found.verdicts[0]) == [ReasonCode.BRANCH_UNCOVERED]


def test_a_frozen_value_whose_difference_no_feed_shows_is_refused(net: OrderOf) -> None:
    found = run(net("Hidden", "torchscript", capture=Capture.TRACE))
    assert found.exit_code == 1
    assert reason_codes(found.verdicts[0]) == [ReasonCode.BRANCH_UNCOVERED]


def test_a_check_whose_error_forward_catches_is_a_branch(net: OrderOf) -> None:
    found = run(net("Caught", "torchscript", capture=Capture.TRACE))
    assert found.exit_code == 1
    assert "float(x.max())" in found.verdicts[0].reason


def test_such_a_value_may_be_accepted(net: OrderOf) -> None:
    line = 1 + next(at for at, text in enumerate(NETS.splitlines()) if "scale = max" in text)
    found = run(net("Hidden", "torchscript", capture=Capture.TRACE, accept=f"net.py:{line}"))
    assert found.passed


def test_a_branch_in_a_scripted_part_is_kept_though_no_feed_takes_its_other_arm(
    net: OrderOf,
) -> None:
    found = run(net("Parts", "torchscript", capture=Capture.MIXED))
    assert found.passed
    assert found.artifacts[0].frozen == ()
    assert the_branch(found).untaken == ("true",)


def test_strict_export_does_not_pass_with_a_branch_that_nobody_could_watch(net: OrderOf) -> None:
    found = run(net("Compiled", "pt2"))
    assert found.exit_code == 1
    assert [(a.capture, a.outcome) for a in found.artifacts[0].attempts] == [
        ("export", "error"),
        ("export-strict", "failed"),
    ]
    assert reason_codes(found.verdicts[0])[-1] is ReasonCode.BRANCH_UNCOVERED


def test_checks_of_data_are_no_branches(net: OrderOf) -> None:
    found = run(net("Checked", "torchscript", capture=Capture.TRACE))
    assert found.passed
    assert found.branches == ()


def test_the_tracers_warnings_are_findings(net: OrderOf) -> None:
    found = run(net("Gate", "torchscript", capture=Capture.TRACE))
    (warned,) = found.warned
    assert (warned.line, warned.kind) == (LINE, "TracerWarning")
    assert warned.file == the_branch(found).file


def test_a_folder_is_validated_to_the_same_verdict(net: OrderOf, tmp_path: Path) -> None:
    order = net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}")
    run(order)
    again = validate_folder(tmp_path / "out")
    assert again.passed
    assert the_branch(again).accepted


def forget(folder: Path) -> None:
    """Take back what was accepted."""
    manifest = read_manifest(folder)
    assert manifest is not None
    branches = tuple(replace(one, accepted=False) for one in manifest.branches)
    write_manifest(replace(manifest, branches=branches), folder)


def test_without_the_acceptance_validating_refuses_it(net: OrderOf, tmp_path: Path) -> None:
    run(net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}"))
    forget(tmp_path / "out")
    assert not validate_file(tmp_path / "out" / "model.torchscript.pt").passed
    again = validate_folder(tmp_path / "out")
    assert again.exit_code == 1
    assert (tmp_path / "out" / "rejected" / "model.torchscript.pt").exists()


def test_a_trace_of_which_an_older_record_says_nothing_is_refused(
    net: OrderOf, tmp_path: Path
) -> None:
    run(net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}"))
    forget(tmp_path / "out")
    record = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    del record["artifacts"][0]["frozen"]
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(record))
    assert not validate_file(tmp_path / "out" / "model.torchscript.pt").passed
    assert validate_folder(tmp_path / "out").exit_code == 1


def test_a_script_of_which_an_older_record_says_nothing_passes(
    net: OrderOf, tmp_path: Path
) -> None:
    run(net("Gate", "torchscript", capture=Capture.SCRIPT))
    record = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    del record["artifacts"][0]["frozen"]
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(record))
    assert validate_folder(tmp_path / "out").passed


def test_other_tolerances_do_not_forgive_a_frozen_branch(net: OrderOf, tmp_path: Path) -> None:
    run(net("Gate", "torchscript", capture=Capture.TRACE))
    done = rejudge_folder(tmp_path / "out", Judging(min_sqnr=0.0, rtol=1e9))
    assert done.exit_code == 1
    assert f":{LINE}" in done.verdicts[0].reason
    assert not (tmp_path / "out" / "model.torchscript.pt").exists()


def test_it_may_be_accepted_when_it_is_validated(net: OrderOf, tmp_path: Path) -> None:
    order = net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}")
    run(order)
    forget(tmp_path / "out")
    again = validate_folder(tmp_path / "out", judging=Judging(accept=order.judging.accept))
    assert again.passed
    assert the_branch(again).accepted


def edited(folder: Path, *, text: str) -> None:
    """The net's file with other text before the branch, as after an edit."""
    (file,) = folder.glob("branching_*.py")
    file.write_text(text)
    linecache.checkcache()
    parse_file.cache_clear()
    sys.modules.pop(file.stem, None)


def test_moved_lines_are_the_same_branch_time_and_again(net: OrderOf, tmp_path: Path) -> None:
    run(net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}"))
    edited(tmp_path, text=f"# moved\n# down\n{NETS}")
    for _ in range(2):
        again = validate_folder(tmp_path / "out")
        assert again.passed, again.verdicts[0].reason
        assert the_branch(again).line == LINE + 2


def test_another_branch_on_an_accepted_line_is_not_accepted(net: OrderOf, tmp_path: Path) -> None:
    run(net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}"))
    edited(tmp_path, text=NETS.replace("x.abs().max() > 1e8", "x.sum() > 1e9"))
    found = validate_folder(tmp_path / "out")
    assert [one.condition for one in found.branches] == ["x.sum() > 1e9"]
    assert not the_branch(found).accepted


def test_validated_from_another_folder_it_is_the_same_branch(
    net: OrderOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert validate_folder(tmp_path / "out").passed


def test_other_feeds_do_not_make_the_captured_way_another(net: OrderOf, tmp_path: Path) -> None:
    run(net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}"))
    forget(tmp_path / "out")
    assert not validate_folder(tmp_path / "out", judging=Judging(seed=7)).passed


@pytest.mark.needs("onnx")
def test_a_build_from_an_accepted_trace_is_accepted_and_knows_what_is_frozen(
    net: OrderOf, tmp_path: Path
) -> None:
    order = net("Gate", "onnx", capture=Capture.TRACE, accept=f"net.py:{LINE}")
    run(order)
    parent = tmp_path / "out" / "model.onnx"
    half = Order(
        source=replace(order.source, checkpoint=parent),
        wanted=(Wanted.parse("onnx:fp16"),),
        out=tmp_path / "half",
    )
    found = run(build_order(parent, half))
    assert found.passed
    assert found.artifacts[0].frozen == (the_branch(found).place,)
    assert validate_folder(tmp_path / "half", moved=Moved()).passed


def test_a_frozen_branch_of_which_feeds_take_both_arms_fails_by_its_values(
    net: OrderOf,
) -> None:
    order = net("Gate", "torchscript", capture=Capture.TRACE)
    high = "x:float32[batch=1..4,8]{-2e8..2e8}"
    low = replace(order.source, inputs=(high,))
    found = run(replace(order, source=low))
    (verdict,) = found.verdicts
    assert found.exit_code == 1
    assert the_branch(found).untaken == ()
    assert reason_codes(verdict) == [ReasonCode.BRANCH_FROZEN, ReasonCode.OUTPUT_DIFFERS]
