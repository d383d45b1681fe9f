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


TRACED, EXPORTED = ("torchscript", Capture.TRACE), ("pt2", Capture.EXPORT)
GATE = f".py:{LINE}: if x.abs().max() > 1e8: "


@pytest.mark.parametrize(
    ("name", "how", "named"),
    [
        ("Gate", TRACED, GATE),
        ("Equal", TRACED, "if torch.equal(x, x + 1): "),  # the tracer does not warn
        ("Shortcut", TRACED, ""),
        ("Shortcut", EXPORTED, ""),
        ("Shortcut", ("onnx", Capture.EXPORT), ""),
        ("Asserting", EXPORTED, "if not (most < 7e7): "),
        ("Asserting", ("pt2", Capture.EXPORT_STRICT), "if not (most < 7e7): "),
        ("Hooked", TRACED, "if 7.0 < float(out.max()) < 7.001: "),
        ("Caught", TRACED, "float(x.max())"),
        ("Kept", TRACED, "count = int((x > 1e8).sum()): "),
        ("Hidden", TRACED, "scale = max"),
    ],
)
def test_a_frozen_branch_whose_other_outcome_no_feed_covers_is_rejected(
    net: OrderOf, name: str, how: tuple[str, Capture], named: str
) -> None:
    found = run(net(name, how[0], capture=how[1]))
    (verdict,) = found.verdicts
    assert found.exit_code == 1
    assert found.artifacts[0].rejected
    assert all(output.passed for output in verdict.outputs)
    assert reason_codes(verdict)[-1] is ReasonCode.BRANCH_UNCOVERED
    assert named in verdict.reason
    assert "--accept-branch" in verdict.reason
    assert the_branch(found).untaken == (() if name in ("Kept", "Hidden") else ("true",))
    assert the_branch(found).place in (found.artifacts[0].frozen or ())


def test_the_warnings_of_the_tracer_are_on_record(net: OrderOf) -> None:
    found = run(net("Gate", "torchscript", capture=Capture.TRACE))
    (warned,) = found.warned
    assert (warned.line, warned.kind) == (LINE, "TracerWarning")
    assert warned.file == the_branch(found).file


def test_a_patch_that_drops_an_uncovered_outcome_is_rejected_unless_accepted(net: OrderOf) -> None:
    found = run(patched(net("Gate", "torchscript"), "low_only"))
    (verdict,) = found.verdicts
    assert all(output.passed for output in verdict.outputs)
    assert GATE in verdict.reason
    assert reason_codes(verdict) == [ReasonCode.BRANCH_UNCOVERED]
    assert found.exit_code == 1
    order = net("Gate", "torchscript", accept=f"net.py:{LINE}")
    (verdict,) = run(patched(replace(order, overwrite=True), "low_only")).verdicts
    assert verdict.passed
    assert any(f".py:{LINE}" in note for note in verdict.notes)


def test_a_patch_that_leaves_the_branch_is_judged_as_the_model(net: OrderOf) -> None:
    (verdict,) = run(patched(net("Gate", "torchscript"), "hooked")).verdicts
    assert verdict.passed
    assert not any("rewritten copy" in note for note in verdict.notes)


@pytest.mark.needs("onnx")
def test_a_child_of_a_rejected_trace_is_not_built(net: OrderOf) -> None:
    found = run(net("Gate", "onnx", "onnx:fp16", capture=Capture.TRACE))
    assert [a.name for a in found.artifacts] == ["rejected/onnx"]
    assert [failure.step for failure in found.failures] == ["onnx-fp16"]


def test_a_script_keeps_the_branch_and_notes_the_uncovered_outcome(net: OrderOf) -> None:
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


@pytest.mark.parametrize(("name", "text"), [("Gate", "abs().max()"), ("Hidden", "scale = max")])
def test_an_accepted_branch_passes_with_a_note_and_is_recorded(
    net: OrderOf, name: str, text: str
) -> None:
    line = 1 + next(at for at, code in enumerate(NETS.splitlines()) if text in code)
    found = run(net(name, "torchscript", capture=Capture.TRACE, accept=f"net.py:{line}"))
    assert found.passed
    assert any(the_branch(found).place in note for note in found.verdicts[0].notes)
    assert the_branch(found).accepted
    assert found.artifacts[0].frozen == (the_branch(found).place,)


def test_accepting_an_unknown_branch_names_the_known_ones(net: OrderOf) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME)) as caught:
        run(net("Gate", "torchscript", accept="net.py:1"))
    assert f".py:{LINE}" in caught.value.hint


def test_a_branch_to_accept_must_be_a_place() -> None:
    with pytest.raises(UsageError, match="not FILE:LINE"):
        Judging(accept=("gate.py",))


def test_branches_in_torch_itself_are_noted_again_by_validate(net: OrderOf) -> None:
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


def test_an_uncovered_branch_in_a_scripted_part_is_kept(
    net: OrderOf,
) -> None:
    found = run(net("Parts", "torchscript", capture=Capture.MIXED))
    assert found.passed
    assert found.artifacts[0].frozen == ()
    assert the_branch(found).untaken == ("true",)


def test_strict_export_fails_with_a_branch_that_cannot_be_observed(net: OrderOf) -> None:
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


def forget(folder: Path) -> None:
    """Take back what was accepted."""
    manifest = read_manifest(folder)
    assert manifest is not None
    branches = tuple(replace(one, accepted=False) for one in manifest.branches)
    write_manifest(replace(manifest, branches=branches), folder)


def test_a_folder_is_validated_by_the_branches_that_were_accepted(
    net: OrderOf, tmp_path: Path
) -> None:
    order = net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}")
    run(order)
    again = validate_folder(order.out)
    assert again.passed
    assert the_branch(again).accepted
    forget(order.out)
    assert not validate_file(order.out / "model.torchscript.pt").passed
    now = validate_folder(order.out, judging=Judging(accept=order.judging.accept))
    assert now.passed
    assert the_branch(now).accepted
    forget(order.out)
    assert validate_folder(order.out).exit_code == 1
    assert (tmp_path / "out" / "rejected" / "model.torchscript.pt").exists()


@pytest.mark.parametrize(("capture", "passes"), [(Capture.TRACE, False), (Capture.SCRIPT, True)])
def test_an_older_record_without_frozen_places(
    net: OrderOf, tmp_path: Path, capture: Capture, passes: bool
) -> None:
    run(net("Gate", "torchscript", capture=capture, accept=f"net.py:{LINE}"))
    forget(tmp_path / "out")
    record = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    del record["artifacts"][0]["frozen"]
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(record))
    assert validate_file(tmp_path / "out" / "model.torchscript.pt").passed is passes
    assert validate_folder(tmp_path / "out").passed is passes


def test_other_tolerances_do_not_accept_a_frozen_branch(net: OrderOf, tmp_path: Path) -> None:
    run(net("Gate", "torchscript", capture=Capture.TRACE))
    done = rejudge_folder(tmp_path / "out", Judging(min_sqnr=0.0, rtol=1e9))
    assert done.exit_code == 1
    assert f":{LINE}" in done.verdicts[0].reason
    assert not (tmp_path / "out" / "model.torchscript.pt").exists()


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


def test_with_another_seed_the_frozen_branch_stays_uncovered(net: OrderOf, tmp_path: Path) -> None:
    run(net("Gate", "torchscript", capture=Capture.TRACE, accept=f"net.py:{LINE}"))
    forget(tmp_path / "out")
    assert not validate_folder(tmp_path / "out", judging=Judging(seed=7)).passed


@pytest.mark.needs("onnx")
def test_a_build_from_an_accepted_trace_has_its_frozen_places(net: OrderOf, tmp_path: Path) -> None:
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


def test_a_frozen_branch_with_both_outcomes_covered_fails_by_value(
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
