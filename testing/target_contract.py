"""The tests that every target must pass, and the small conversion that they use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ..checkpoints.eager_model import Eager
from ..converters.registry import target_named
from ..core.call import bind_inputs, parameters_of
from ..core.contract import EAGER, Array, Converted, Feed, Job, Outputs, Runner, Target
from ..core.errors import ErrorCode, MissingError, RunnerError, UsageError
from ..core.grammar import parse_input
from ..core.kinds import QUANTIZED, Capture, Precision
from ..core.signature import Signature, merge_inputs
from ..core.verdict import Tolerance
from ..validators.feeds import draw_example_feed
from ..validators.tolerance import tolerance_for

if TYPE_CHECKING:
    from torch import nn

INPUT = "x:float32[batch=1..8,1,8,8]"
OUTPUT = "logits"
SIZES = {"min": 1, "opt": 4, "max": 8}  # of the batch
_FEED_SEED = 7


@dataclass(frozen=True, kw_only=True)
class Case:
    """The test case: a target's conversion, with eager's inputs and outputs as reference.

    `feeds` and `outputs` are by `min`, `opt` and `max`, the sizes of the batch. `parameters` is
    eager's number of weights, `operators` the artifact's minimum of operators.
    """

    target: Target
    job: Job
    converted: Converted
    feeds: Mapping[str, Feed]
    outputs: Mapping[str, Outputs]
    parameters: int
    operators: int = 5

    @property
    def model_file(self) -> Path:
        """The converted model file."""
        return self.job.folder / self.converted.files[0][0]


def case_of(
    target: Target,
    folder: Path,
    *,
    precision: Precision = Precision.FP32,
    capture: Capture | None = None,
) -> Case:
    """Convert a small convolutional net to a target, through the target's parents.

    Args:
        target: the tested target.
        folder: an empty work folder.
        precision: one of the target's; INT8 requires samples, and is not supported.
        capture: one of the target's; None means the first.

    Raises:
        UsageError: the target lacks the precision.
        ConversionError: the target rejected the net.
    """
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(_FEED_SEED)
        net = _make_net().eval()
    signature = signature_of_case()
    feeds = {name: _make_feed(batch) for name, batch in SIZES.items()}
    maker = _CaseMaker(net, signature, folder)
    job, converted = maker.make(target, precision, capture)
    with torch.no_grad():
        outputs = {
            name: {OUTPUT: net(torch.from_numpy(feed["x"].copy())).numpy()}
            for name, feed in feeds.items()
        }
    parameters = sum(one.numel() for one in net.parameters())
    return Case(target=target, job=job, converted=converted, feeds=feeds, outputs=outputs,
                parameters=parameters)  # fmt: skip


def signature_of_case() -> Signature:
    """Return the signature: one image in, one row of scores out, batches of 1 to 8."""
    return merge_inputs([parse_input(INPUT)], {}).with_outputs((OUTPUT,))


class _CaseMaker:
    """Converts the net to a target, and to its parents first."""

    def __init__(self, net: nn.Module, signature: Signature, folder: Path) -> None:
        self._eager = Eager(net, ("x",), bind_inputs(("x",), parameters_of(net.forward)))
        self._signature = signature
        self._folder = folder

    def make(
        self, target: Target, precision: Precision, capture: Capture | None
    ) -> tuple[Job, Converted]:
        """Return the job that the pipeline would pass to the target, and its result."""
        if precision not in target.MADE_FROM or precision in QUANTIZED:
            raise UsageError(
                f"the contract tests do not support {target.NAME} in {precision}",
                hint="name a precision of its MADE_FROM that needs no calibration",
                code=ErrorCode.UNSUPPORTED,
            )
        origin = target.MADE_FROM[precision]
        own = self._folder / f"{target.NAME}-{precision}"
        own.mkdir()
        captures = target.CAPTURES if origin == EAGER else ()
        job = Job(
            signature=self._signature,
            precision=precision,
            folder=own,
            stem="model",
            example=draw_example_feed(self._signature),
            model=self._eager if origin == EAGER else None,
            parent=None if origin == EAGER else self._parent(origin),
            capture=capture or (captures[0] if captures else None),
            metadata={"checkpoint": "0123456789abcdef" * 4},
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the frameworks' own: a run sends them to a log
            return job, target.convert(job)

    def _parent(self, origin: str) -> Path:
        name, _, precision = origin.partition(":")
        job, converted = self.make(
            target_named(name), Precision(precision) if precision else Precision.FP32, None
        )
        return job.folder / converted.files[0][0]


def _make_net() -> nn.Module:
    """Return a convolution, a norm, a pool and two layers: about 19,000 weights."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 36),
        nn.GELU(),
        nn.Linear(36, 10),
    )


def _make_feed(batch: int) -> Feed:
    import numpy as np

    rng = np.random.default_rng(_FEED_SEED + batch)
    return {"x": rng.standard_normal((batch, 1, 8, 8)).astype(np.float32)}


_FEED_SIZES = ("min", "opt", "max")


class TargetContract:
    """The contract tests. Subclass it in a test file and set `target`; one class per precision.

    A subclass may provide its own `case`.
    """

    target: ClassVar[Any]  # a Target, such as a module
    precision: ClassVar[Precision] = Precision.FP32
    capture: ClassVar[Capture | None] = None

    @pytest.fixture
    def each(self) -> Target:
        """The target itself, for tests without a model."""
        found: Target = self.target
        return found

    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory: pytest.TempPathFactory) -> Case:
        """The converted net, shared by all tests of the class."""
        folder = tmp_path_factory.mktemp("case")
        return case_of(cls.target, folder, precision=cls.precision, capture=cls.capture)

    @pytest.fixture
    def runner(self, case: Case) -> Iterator[Runner]:
        """The artifact opened on the CPU."""
        with case.target.open_runner(case.model_file, "cpu", case.job.signature) as opened:
            yield opened

    def test_a_target_has_a_name_a_summary_and_a_suffix(self, each: Target) -> None:
        assert each.NAME.replace("-", "_").isidentifier()
        assert each.NAME.lower() == each.NAME
        assert each.SUMMARY
        assert not each.SUMMARY.endswith(".")
        assert each.SUFFIX.startswith(".")

    def test_a_target_has_captures_if_and_only_if_it_is_made_from_eager(self, each: Target) -> None:
        assert bool(each.CAPTURES) == (EAGER in each.MADE_FROM.values())
        assert all(isinstance(capture, Capture) for capture in each.CAPTURES)

    def test_a_target_has_precisions_and_devices(self, each: Target) -> None:
        assert each.MADE_FROM
        assert all(isinstance(precision, Precision) for precision in each.MADE_FROM)
        assert each.DEVICES
        assert set(each.DEVICES) <= {"cpu", "cuda"}

    def test_readiness_says_a_version_or_why_not_and_what_to_do(self, each: Target) -> None:
        found = each.readiness()
        assert bool(found.version) if found.ready else bool(found.reason and found.mend)

    @pytest.mark.parametrize("text", ["", "hello\n", "<network>\n<net/>\n", "\n\n{}"])
    def test_a_text_file_of_its_suffix_is_not_claimed(
        self, each: Target, text: str, tmp_path: Path
    ) -> None:
        path = tmp_path / f"model{each.SUFFIX}"
        path.write_text(text)
        assert not each.claims(path)

    def test_a_folder_or_nothing_at_all_is_not_claimed(self, each: Target, tmp_path: Path) -> None:
        (tmp_path / f"folder{each.SUFFIX}").mkdir()
        assert not each.claims(tmp_path / f"folder{each.SUFFIX}")
        assert not each.claims(tmp_path / f"absent{each.SUFFIX}")

    @pytest.mark.parametrize("content", [b"hello " * 99, b"PK\x03\x04" + b"\0" * 99])
    def test_inspecting_garbage_is_a_runner_error(
        self, each: Target, content: bytes, tmp_path: Path
    ) -> None:
        path = tmp_path / f"model{each.SUFFIX}"
        path.write_bytes(content)
        with pytest.raises(RunnerError):
            each.inspect(path)

    @pytest.mark.parametrize(
        "content", [b"", b"hello " * 99, bytes(range(256)), b"PK\x03\x04" + b"\0" * 99]
    )
    def test_opening_garbage_is_a_runner_error(
        self, each: Target, content: bytes, tmp_path: Path
    ) -> None:
        path = tmp_path / f"model{each.SUFFIX}"
        path.write_bytes(content)
        refusal = RunnerError if each.readiness().ready else MissingError
        with pytest.raises(refusal):
            each.open_runner(path, each.DEVICES[0], signature_of_case())

    def test_its_own_model_is_claimed(self, case: Case) -> None:
        assert case.target.claims(case.model_file)

    def test_convert_leaves_the_files_it_names_and_no_other(self, case: Case) -> None:
        names = sorted(name for name, _ in case.converted.files)
        assert sorted(path.name for path in case.job.folder.iterdir()) == names

    def test_the_model_comes_first_and_has_the_targets_suffix(self, case: Case) -> None:
        assert case.converted.files[0] == (f"model{case.target.SUFFIX}", "model")

    def test_convert_records_the_versions_of_its_tools(self, case: Case) -> None:
        assert case.converted.versions
        assert all(case.converted.versions.values())

    def test_a_runner_takes_the_signatures_inputs(self, runner: Runner, case: Case) -> None:
        assert runner.inputs == tuple(spec.name for spec in case.job.signature.inputs)

    @pytest.mark.parametrize("size", _FEED_SIZES)
    def test_a_runner_gives_what_eager_gives(self, runner: Runner, case: Case, size: str) -> None:
        outputs = runner.run(case.feeds[size])
        assert tuple(outputs) == case.job.signature.outputs
        for name, eager in case.outputs[size].items():
            assert _is_close(outputs[name], eager, tolerance_for(case.job.precision))

    def test_the_three_feeds_have_three_batch_sizes(self, case: Case) -> None:
        assert [len(next(iter(case.feeds[size].values()))) for size in _FEED_SIZES] == [1, 4, 8]

    def test_a_runner_never_writes_to_its_feed(self, runner: Runner, case: Case) -> None:
        opt = case.feeds["opt"]
        mine = {name: array.copy() for name, array in opt.items()}
        for array in mine.values():
            array.setflags(write=False)
        runner.run(mine)
        assert all(_is_same(mine[name], opt[name]) for name in opt)

    def test_a_runner_gives_the_same_twice(self, runner: Runner, case: Case) -> None:
        first, second = runner.run(case.feeds["opt"]), runner.run(case.feeds["opt"])
        assert all(_is_same(first[name], second[name]) for name in first)

    def test_outputs_stay_when_the_runner_runs_again(self, runner: Runner, case: Case) -> None:
        opt = case.feeds["opt"]
        first = runner.run(opt)
        kept = {name: array.copy() for name, array in first.items()}
        runner.run({name: array + 1 for name, array in opt.items()})
        assert all(_is_same(first[name], kept[name]) for name in first)

    def test_a_feed_need_not_be_contiguous(self, runner: Runner, case: Case) -> None:
        opt = case.feeds["opt"]
        strided = {name: array.repeat(2, axis=0)[::2] for name, array in opt.items()}
        assert not any(array.flags.c_contiguous for array in strided.values())
        plain, other = runner.run(opt), runner.run(strided)
        assert all(_is_same(plain[name], other[name]) for name in plain)

    def test_what_a_feed_holds_beside_the_inputs_is_left_alone(
        self, runner: Runner, case: Case
    ) -> None:
        opt = case.feeds["opt"]
        more = next(iter(opt.values())).ravel()[:3]
        plain, richer = runner.run(opt), runner.run({"more": more, **opt})
        assert all(_is_same(plain[name], richer[name]) for name in plain)

    def test_an_input_that_the_feed_lacks_is_named(self, runner: Runner, case: Case) -> None:
        feed = {"image": next(iter(case.feeds["opt"].values()))}
        with pytest.raises(RunnerError, match="'x'"):
            runner.run(feed)

    @pytest.mark.parametrize("dtype", ["float64", "int64", "float16"])
    def test_a_runner_refuses_another_dtype(self, runner: Runner, case: Case, dtype: str) -> None:
        with pytest.raises(RunnerError):
            runner.run({"x": case.feeds["opt"]["x"].astype(dtype)})

    @pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 16, 16), (2, 64)])
    def test_a_runner_refuses_another_shape(self, runner: Runner, shape: tuple[int, ...]) -> None:
        import numpy as np

        with pytest.raises(RunnerError):
            runner.run({"x": np.zeros(shape, np.float32)})

    def test_a_refusal_says_which_sizes_did_not_fit(self, runner: Runner) -> None:
        import numpy as np

        with pytest.raises(RunnerError, match=r"\b3\b|== 1") as caught:
            runner.run({"x": np.zeros((2, 3, 8, 8), np.float32)})
        message = caught.value.message
        assert not any(word in message for word in ("interpreter", "Exception from"))

    def test_opening_half_a_model_is_a_runner_error(self, case: Case, tmp_path: Path) -> None:
        whole = case.model_file.read_bytes()
        half = tmp_path / case.model_file.name
        half.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(RunnerError):
            case.target.open_runner(half, "cpu", case.job.signature)

    def test_a_device_that_is_not_here_is_missing(self, case: Case) -> None:
        import torch

        if torch.cuda.is_available() and "cuda" in case.target.DEVICES:
            pytest.skip("there is a CUDA device here")
        with pytest.raises(MissingError):
            case.target.open_runner(case.model_file, "cuda", case.job.signature)

    def test_inspect_names_inputs_and_outputs(self, case: Case) -> None:
        found = case.target.inspect(case.model_file)
        signature = case.job.signature
        assert found.target == case.target.NAME
        assert tuple(info.name for info in found.outputs) == signature.outputs
        if found.facts.get("call") == "native":  # then its inputs are the user's own parameters
            assert [info.name for info in found.inputs] == ["input"]
        else:
            assert [info.name for info in found.inputs] == [spec.name for spec in signature.inputs]

    def test_inspect_counts_weights_and_operators(self, case: Case) -> None:
        found = case.target.inspect(case.model_file)
        count = sum(found.weights.values())
        assert 0.95 * case.parameters < count < 1.05 * case.parameters
        assert sum(found.operators.values()) >= case.operators

    def test_inspect_gives_the_metadata_back(self, case: Case) -> None:
        found = case.target.inspect(case.model_file).metadata
        assert case.job.metadata["checkpoint"] in found.values()


def _is_close(artifact: Array, eager: Array, tolerance: Tolerance) -> bool:
    """Return whether arrays agree within `atol + rtol * peak`, in eager's own dtype."""
    import numpy as np

    limit = tolerance.atol + tolerance.rtol * float(np.abs(eager).max())
    same_form = (artifact.dtype, artifact.shape) == (eager.dtype, eager.shape)
    return same_form and bool(np.abs(artifact - eager).max() <= limit)


def _is_same(one: Array, other: Array) -> bool:
    import numpy as np

    return bool(np.array_equal(one, other))
