"""What every target must do, over the table of targets and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from modelc.converters.registry import TARGETS, target_of
from modelc.core.capture import Capture
from modelc.core.contract import EAGER, Converted, Feed, Job, Runner, Target
from modelc.core.errors import MissingError, RunnerError
from modelc.core.precision import Precision
from modelc.core.verdict import Tolerance
from modelc.pipeline.order import Source, Wanted
from modelc.pipeline.subject import Subject
from modelc.validators.tolerance import tolerance_for

each_target = pytest.mark.parametrize("each", TARGETS, ids=lambda target: target.NAME)


@pytest.fixture
def runner(target: Target, model_file: Path, job: Job) -> Iterator[Runner]:
    with target.open_runner(model_file, "cpu", job.signature) as opened:
        yield opened


@pytest.fixture
def opt(digits: Subject) -> Feed:
    return next(r.feed.arrays for r in digits.references if r.feed.name == "opt")


def close(artifact: object, eager: object, tolerance: Tolerance) -> bool:
    """Within `atol + rtol * peak`, in eager's own dtype."""
    assert isinstance(artifact, np.ndarray)
    assert isinstance(eager, np.ndarray)
    limit = tolerance.atol + tolerance.rtol * float(np.abs(eager).max())
    same_form = (artifact.dtype, artifact.shape) == (eager.dtype, eager.shape)
    return same_form and bool(np.abs(artifact - eager).max() <= limit)


@each_target
def test_a_target_has_a_name_a_summary_and_a_suffix(each: Target) -> None:
    assert each.NAME.replace("-", "_").isidentifier()
    assert each.NAME.lower() == each.NAME
    assert each.SUMMARY
    assert not each.SUMMARY.endswith(".")
    assert each.SUFFIX.startswith(".")


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


@each_target
def test_a_target_has_captures_if_and_only_if_it_is_made_from_eager(each: Target) -> None:
    assert bool(each.CAPTURES) == (EAGER in each.MADE_FROM.values())
    assert all(isinstance(capture, Capture) for capture in each.CAPTURES)


@each_target
def test_a_target_has_precisions_and_devices(each: Target) -> None:
    assert each.MADE_FROM
    assert all(isinstance(precision, Precision) for precision in each.MADE_FROM)
    assert each.DEVICES
    assert set(each.DEVICES) <= {"cpu", "cuda"}


@each_target
def test_readiness_says_a_version_or_why_not_and_what_to_do(each: Target) -> None:
    found = each.readiness()
    assert bool(found.version) if found.ready else bool(found.reason and found.mend)


def test_readiness_loads_no_framework() -> None:
    code = (
        "import sys; from modelc.converters.registry import TARGETS\n"
        "[target.readiness() for target in TARGETS]\n"
        "print(*{'numpy', 'torch', 'onnx', 'onnxruntime', 'openvino'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize("text", ["", "hello\n", "<network>\n<net/>\n", "\n\n{}"])
@each_target
def test_a_text_file_of_its_suffix_is_not_claimed(each: Target, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{each.SUFFIX}"
    path.write_text(text)
    assert not each.claims(path)


@each_target
def test_a_folder_or_nothing_at_all_is_not_claimed(each: Target, tmp_path: Path) -> None:
    (tmp_path / f"folder{each.SUFFIX}").mkdir()
    assert not each.claims(tmp_path / f"folder{each.SUFFIX}")
    assert not each.claims(tmp_path / f"absent{each.SUFFIX}")


@each_target
def test_a_checkpoint_or_a_sample_is_not_claimed(each: Target, digits_source: Source) -> None:
    assert digits_source.samples is not None
    assert not each.claims(digits_source.checkpoint)
    assert not each.claims(digits_source.samples)


def test_a_model_is_claimed_by_its_own_target_alone(target: Target, model_file: Path) -> None:
    assert target_of(model_file) is target


def test_convert_leaves_the_files_it_names_and_no_other(job: Job, converted: Converted) -> None:
    names = sorted(name for name, _ in converted.files)
    assert sorted(path.name for path in job.folder.iterdir()) == names


def test_the_model_comes_first_and_has_the_targets_suffix(
    target: Target, converted: Converted
) -> None:
    assert converted.files[0] == (f"model{target.SUFFIX}", "model")


def test_convert_records_the_versions_of_its_tools(converted: Converted) -> None:
    assert converted.versions
    assert all(converted.versions.values())


def test_a_runner_takes_the_signatures_inputs(runner: Runner, job: Job) -> None:
    assert runner.inputs == tuple(spec.name for spec in job.signature.inputs)


@pytest.mark.parametrize("feed", ["min", "opt", "max"])
def test_a_runner_gives_what_eager_gives(
    runner: Runner, job: Job, digits: Subject, feed: str
) -> None:
    reference = next(r for r in digits.references if r.feed.name == feed)
    outputs = runner.run(reference.feed.arrays)
    assert tuple(outputs) == job.signature.outputs
    for name, eager in reference.outputs.items():
        assert close(outputs[name], eager, tolerance_for(job.precision))


def test_the_three_feeds_have_three_batch_sizes(digits: Subject) -> None:
    sizes = {r.feed.name: r.feed.sizes["batch"] for r in digits.references}
    assert (sizes["min"], sizes["opt"], sizes["max"]) == (1, 4, 8)


def test_a_runner_never_writes_to_its_feed(runner: Runner, opt: Feed) -> None:
    mine = {name: array.copy() for name, array in opt.items()}
    for array in mine.values():
        array.setflags(write=False)
    runner.run(mine)
    assert all(np.array_equal(mine[name], opt[name]) for name in opt)


def test_a_runner_gives_the_same_twice(runner: Runner, opt: Feed) -> None:
    first, second = runner.run(opt), runner.run(opt)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_outputs_stay_when_the_runner_runs_again(runner: Runner, opt: Feed) -> None:
    first = runner.run(opt)
    kept = {name: array.copy() for name, array in first.items()}
    runner.run({name: array + 1 for name, array in opt.items()})
    assert all(np.array_equal(first[name], kept[name]) for name in first)


def test_a_feed_need_not_be_contiguous(runner: Runner, opt: Feed) -> None:
    wide = np.repeat(opt["x"], 2, axis=0)[::2]
    assert not wide.flags.c_contiguous
    plain, strided = runner.run(opt), runner.run({"x": wide})
    assert all(np.array_equal(plain[name], strided[name]) for name in plain)


def test_what_a_feed_holds_beside_the_inputs_is_left_alone(runner: Runner, opt: Feed) -> None:
    plain, richer = runner.run(opt), runner.run({"more": np.zeros(3), **opt})
    assert all(np.array_equal(plain[name], richer[name]) for name in plain)


@pytest.mark.parametrize("dtype", ["float64", "int64", "float16"])
def test_a_runner_refuses_another_dtype(runner: Runner, opt: Feed, dtype: str) -> None:
    with pytest.raises(RunnerError):
        runner.run({"x": opt["x"].astype(dtype)})


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 16, 16), (2, 64)])
def test_a_runner_refuses_another_shape(runner: Runner, shape: tuple[int, ...]) -> None:
    with pytest.raises(RunnerError):
        runner.run({"x": np.zeros(shape, np.float32)})


def test_a_refusal_says_which_sizes_did_not_fit(runner: Runner) -> None:
    with pytest.raises(RunnerError, match=r"\b3\b|== 1") as caught:
        runner.run({"x": np.zeros((2, 3, 8, 8), np.float32)})
    assert not any(word in caught.value.message for word in ("interpreter", "Exception from"))


@pytest.mark.parametrize(
    "content", [b"", b"hello " * 99, bytes(range(256)), b"PK\x03\x04" + b"\0" * 99]
)
@each_target
def test_opening_garbage_is_a_runner_error(
    each: Target, content: bytes, tmp_path: Path, digits: Subject
) -> None:
    path = tmp_path / f"model{each.SUFFIX}"
    path.write_bytes(content)
    refusal = RunnerError if each.readiness().ready else MissingError
    with pytest.raises(refusal):
        each.open_runner(path, each.DEVICES[0], digits.signature)


@pytest.mark.parametrize("content", [b"hello " * 99, b"PK\x03\x04" + b"\0" * 99])
@each_target
def test_inspecting_garbage_is_a_runner_error(each: Target, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"model{each.SUFFIX}"
    path.write_bytes(content)
    with pytest.raises(RunnerError):
        each.inspect(path)


def test_opening_half_a_model_is_a_runner_error(
    target: Target, job: Job, model_file: Path, tmp_path: Path
) -> None:
    whole = model_file.read_bytes()
    (tmp_path / model_file.name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunnerError):
        target.open_runner(tmp_path / model_file.name, "cpu", job.signature)


def test_a_device_that_is_not_here_is_missing(target: Target, job: Job, model_file: Path) -> None:
    import torch

    if torch.cuda.is_available() and "cuda" in target.DEVICES:
        pytest.skip("there is a CUDA device here")
    with pytest.raises(MissingError):
        target.open_runner(model_file, "cuda", job.signature)


def test_inspect_names_inputs_and_outputs(target: Target, job: Job, model_file: Path) -> None:
    found = target.inspect(model_file)
    assert found.target == target.NAME
    assert tuple(info.name for info in found.outputs) == job.signature.outputs
    if found.facts.get("call") == "native":  # then its inputs are the user's own parameters
        assert [info.name for info in found.inputs] == ["input"]
    else:
        assert [info.name for info in found.inputs] == [s.name for s in job.signature.inputs]


def test_inspect_counts_weights_and_operators(target: Target, model_file: Path) -> None:
    found = target.inspect(model_file)
    assert 22_000 < sum(found.weights.values()) < 24_000
    assert sum(found.operators.values()) > 9


def test_inspect_gives_the_metadata_back(target: Target, job: Job, model_file: Path) -> None:
    found = target.inspect(model_file).metadata
    assert job.metadata["checkpoint"] in found.values()


def contents(path: Path) -> Iterator[bytes]:
    """The bytes of a file, and of each member of an archive unpacked."""
    yield path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist())


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[bytes], list[str]]:
    """Which places of this machine some bytes name."""
    import torch

    root = Path(__file__).parent.parent.parent
    places = {root, root.resolve(), Path(torch.__file__).parent, Path(sys.prefix), Path.home()}
    places |= {Path(sys.base_prefix), tmp_path.parent.parent}

    def found(content: bytes) -> list[str]:
        named = [str(place) for place in places if f"{place}/".encode() in content]
        return named + [word for word in ("site-packages", ".py:") if word.encode() in content]

    return found


def test_what_ships_names_no_place_of_this_machine(
    job: Job, converted: Converted, machine: Callable[[bytes], list[str]]
) -> None:
    for name, role in converted.files:
        if role != "debug":
            named = [machine(content) for content in contents(job.folder / name)]
            assert named
            assert not any(named)


def test_a_plain_save_does_name_places_of_this_machine(
    machine: Callable[[bytes], list[str]], tmp_path: Path
) -> None:
    import torch

    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "plain.pt")
    assert any(machine(content) for content in contents(tmp_path / "plain.pt"))


def test_an_input_that_the_feed_lacks_is_named(runner: Runner) -> None:
    with pytest.raises(RunnerError, match="the model takes 'x', which no input of the signature"):
        runner.run({"image": np.zeros((1, 1, 8, 8), np.float32)})
