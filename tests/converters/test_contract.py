"""The contract of targets, for every target in the table."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelc.converters.registry import TARGETS, is_stage, target_for, target_named
from modelc.core.contract import EAGER, Converted, Job, Target
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import Precision
from modelc.pipeline.eager_reference import EagerReference
from modelc.pipeline.order import Source, Wanted
from modelc.testing import Case, TargetContract, case_of

from ..reasons import has_code

each_target = pytest.mark.parametrize("each", TARGETS, ids=lambda target: target.NAME)


class TestContract(TargetContract):
    """The contract that plugins are tested with, for the targets of modelc."""

    @pytest.fixture(params=TARGETS, ids=lambda target: target.NAME)
    def each(self, request: pytest.FixtureRequest) -> Target:
        found: Target = request.param
        return found

    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, target: Target, job: Job, converted: Converted, digits: EagerReference) -> Case:
        """Digits in every way, with the outputs of the eager model."""
        references = {one.feed.name: one for one in digits.references}
        return Case(
            target=target,
            job=job,
            converted=converted,
            feeds={name: references[name].feed.arrays for name in ("min", "opt", "max")},
            outputs={name: references[name].outputs for name in ("min", "opt", "max")},
            parameters=sum(one.numel() for one in digits.model.module.parameters()),
            operators=10,
        )


@pytest.mark.needs("onnx")
class TestContractOfTheSmallNet(TargetContract):
    """The net of the contract, from the eager model to a parent and to an artifact."""

    target = target_named("onnx")
    precision = Precision.FP16


def test_a_precision_that_a_target_lacks_cannot_be_tested(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="int8")):
        case_of(target_named("torchscript"), tmp_path, precision=Precision.INT8)


def test_no_two_targets_share_a_name_or_a_suffix() -> None:
    assert len({target.NAME for target in TARGETS}) == len(TARGETS)
    assert len({target.SUFFIX for target in TARGETS}) == len(TARGETS)


@each_target
def test_a_target_is_made_from_eager_or_from_one_before_it(each: Target) -> None:
    known = [EAGER]
    for target in TARGETS[: TARGETS.index(each) + 1]:
        known += [Wanted(target=target.NAME, precision=p).name for p in target.MADE_FROM]
    origins = [EAGER if o == EAGER else Wanted.parse(o).name for o in each.MADE_FROM.values()]
    assert not set(origins) - set(known)


def test_readiness_loads_no_framework() -> None:
    code = (
        "import sys; from modelc.converters.registry import TARGETS\n"
        "[target.readiness() for target in TARGETS]\n"
        "print(*{'numpy', 'torch', 'onnx', 'onnxruntime', 'openvino'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"


@each_target
def test_a_checkpoint_or_a_sample_is_not_claimed(each: Target, digits_source: Source) -> None:
    assert digits_source.samples is not None
    assert not each.claims(digits_source.checkpoint)
    assert not each.claims(digits_source.samples)


def test_a_model_is_claimed_by_its_own_target_alone(target: Target, model_file: Path) -> None:
    assert target_for(model_file).NAME == target.NAME


def contents(path: Path) -> Iterator[bytes]:
    """The bytes of a file, and of each member of an archive."""
    yield path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist())


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[bytes], list[str]]:
    """Returns which folders of this machine some bytes name."""
    import torch

    root = Path(__file__).parent.parent.parent
    places = {root, root.resolve(), Path(torch.__file__).parent, Path(sys.prefix), Path.home()}
    places |= {Path(sys.base_prefix), tmp_path.parent.parent}

    def found(content: bytes) -> list[str]:
        named = [str(place) for place in places if f"{place}/".encode() in content]
        return named + [word for word in ("site-packages", ".py:") if word.encode() in content]

    return found


def test_artifacts_name_no_folder_of_this_machine(
    job: Job, converted: Converted, machine: Callable[[bytes], list[str]]
) -> None:
    for name, role in converted.files:
        if role != "debug":
            named = [machine(content) for content in contents(job.folder / name)]
            assert named
            assert not any(named)


def test_a_plain_save_names_folders_of_this_machine(
    machine: Callable[[bytes], list[str]], tmp_path: Path
) -> None:
    import torch

    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "plain.pt")
    assert any(machine(content) for content in contents(tmp_path / "plain.pt"))


def test_only_what_nobody_runs_is_a_stage() -> None:
    assert [target.NAME for target in TARGETS if is_stage(target)] == ["tensorrt-onnx"]
