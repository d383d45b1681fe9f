"""Compare the eager model with the user's own Python pipeline, before anything is converted.

The pipeline takes what an artifact takes and returns what an artifact returns. Artifacts are judged
against eager: if eager agrees with the pipeline, an artifact that passes is right for its user.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.user_code import keep_working_folder, locate_user_code
from ..core.contract import Array, Outputs
from ..core.errors import CheckpointError, ErrorCode, Hint, first_line
from ..core.findings import PipelineComparison
from ..core.kinds import Precision
from ..core.records import sha256_of
from ..core.torch_tools import is_tensor, to_array
from ..validators.edge_case_feeds import NONFINITE
from ..validators.feeds import NamedFeed, describe_named_feed
from ..validators.metrics import is_numeric, measure_arrays
from ..validators.tolerance import TOLERANCES
from .eager_reference import EagerReference
from .pipeline_distance import PipelineReply, measure_drifts
from .run_progress import Progress
from .stated_inputs import import_callable

if TYPE_CHECKING:
    import torch

    from ..validators.judge import ReferenceOutputs

PIPELINE_STEP = "compare with the Python pipeline"
_REPEATED = 8  # feeds that the pipeline gets twice


def load_pipeline(spec: str | None, progress: Progress) -> None:
    """Import the function of `package.module:function`; what that prints goes to a log.

    Raises:
        UsageError: there is no such function.
    """
    if spec is not None:
        with progress.step("load the Python pipeline", log="pipeline"):
            UserPipeline(spec)


def compare_pipeline(
    spec: str | None, eager: EagerReference, progress: Progress
) -> PipelineComparison | None:
    """Compare eager's outputs on all feeds with those of the pipeline `package.module:function`.

    Feeds with NaN, Inf or values beyond the declared range are left out.

    Raises:
        UsageError: there is no such function.
        CheckpointError: it fails on a feed, or its outputs are not the model's.
    """
    if spec is None or not eager.has_source:
        return None
    import torch

    log = progress.logs / "pipeline.log"
    with progress.step(PIPELINE_STEP, log=log.stem) as clock:
        with torch.random.fork_rng(devices=[]):  # its draws do not change those of modelc
            pipeline = UserPipeline(spec, eager.model.module)
            replies = _run_feeds(pipeline, eager, progress)
        drifts, problem = measure_drifts(eager, replies)
        if problem is not None:
            for again in (one for one in replies if one.reference.feed.name == problem.feed):
                pipeline.check_repeatable(again.reference, again.outputs)
            raise pipeline.error(problem.text, problem.hint)
        clock.detail = f"{len(replies)} feeds"
    left_out = sorted(set(eager.signature.outputs) - {one.output for one in drifts})
    if left_out:
        text = f"{spec} is not compared in {', '.join(left_out)}: eager's own runs differ there"
        progress.note(text, warning=True)
    if all(one.is_whole for one in drifts):
        progress.note(
            f"{spec} returns only whole numbers: what changes no class is not seen", warning=True
        )
    if log.is_file() and log.stat().st_size > 0:
        progress.note(f"{spec} printed text or warnings, see {log}")
    return PipelineComparison(
        function=spec, sha256=pipeline.sha256, feeds=len(replies), drifts=drifts
    )


def _run_feeds(
    pipeline: UserPipeline, eager: EagerReference, progress: Progress
) -> list[PipelineReply]:
    """Run the pipeline on the feeds, and on the first ones twice."""
    usual = [one for one in eager.references if not one.feed.beyond and one.feed.kind != NONFINITE]
    replies = []
    for done, one in enumerate(usual, start=1):
        outputs = pipeline.run(one)
        if done <= _REPEATED:
            pipeline.check_repeatable(one, outputs)
        replies.append(PipelineReply(reference=one, outputs=outputs))
        progress.advance(PIPELINE_STEP, done, len(usual))
    return replies


@contextmanager
def restore_globals() -> Iterator[None]:
    """Undo what the user's code changes of the process: its folder, and settings of torch."""
    import torch

    device, grad = torch.get_default_device(), torch.is_grad_enabled()
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    precision = torch.get_float32_matmul_precision()
    try:
        with keep_working_folder():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        if strict != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(strict, warn_only=warns)
        torch.set_float32_matmul_precision(precision)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)


def load_user_function(spec: str, option: str, hint: str) -> tuple[Callable[..., object], str]:
    """Import a function of the user; return it with the SHA-256 of its file, empty without one.

    Raises:
        UsageError: there is no such function.
        CheckpointError: its module raises.
    """
    with restore_globals():
        found = import_callable(spec, option, hint)
    file = getattr(inspect.getmodule(found), "__file__", None)
    return found, sha256_of(Path(file)) if file and Path(file).is_file() else ""


class UserPipeline:
    """The user's function, called with copies of a feed's arrays.

    `module` is the model that it is compared with; it must not call that itself.
    """

    def __init__(self, spec: str, module: torch.nn.Module | None = None) -> None:
        hint = "name a function that takes the inputs as arrays, and returns the outputs"
        self._function, self.sha256 = load_user_function(spec, "--against-pipeline", hint)
        self._spec = spec
        modules = () if module is None else module.modules()
        self._compared = {id(one) for one in modules if [*one.parameters(), *one.buffers()]}
        self._shares = False

    def run(self, reference: ReferenceOutputs) -> Outputs:
        """Return its outputs on a feed, in the shapes of eager's.

        Raises:
            CheckpointError: it raises, or returns something else.
        """
        arrays = self._read_outputs(self._call(reference.feed), reference)
        self._check_forms(arrays, reference)
        return arrays

    def check_repeatable(self, reference: ReferenceOutputs, before: Outputs) -> None:
        """Check that it returns the same for the same arrays, but for roundoff.

        Raises:
            CheckpointError: it returns other values.
        """
        rtol = TOLERANCES[Precision.FP32].rtol
        for name, values in self.run(reference).items():
            found = measure_arrays(before[name], values)
            if not found.exact and (found.max_abs or math.inf) > rtol * (found.peak or 0.0):
                raise self.error(
                    f"returns other values for the same arrays, of feed "
                    f"{describe_named_feed(reference.feed)}: {name!r} by up to "
                    f"{found.max_abs or 0.0:.3g}",
                    "leave out random augmentation, call eval() on its model, and keep no state",
                )

    def error(self, problem: str, hint: str | Hint) -> CheckpointError:
        """Return the error for a pipeline that does something else than the model."""
        return CheckpointError(
            f"the pipeline {self._spec} {problem}",
            hint=hint,
            option="against-pipeline",
            code=ErrorCode.PIPELINE_DIFFERS,
        )

    def _call(self, feed: NamedFeed) -> object:
        arrays = {name: array.copy() for name, array in feed.arrays.items()}
        takes = ", ".join(f"{name} {_form_text(array)}" for name, array in arrays.items())
        try:
            with restore_globals(), self._watch_modules():
                if self._takes_names(arrays):
                    found = self._function(**arrays)
                else:
                    found = self._function(*arrays.values())
        except (Exception, SystemExit) as error:
            raise self.error(
                f"raised {type(error).__name__}{locate_user_code(error)} on feed "
                f"{describe_named_feed(feed)}: {first_line(error)}",
                f"it gets {takes} as numpy arrays, by these names or in this order",
            ) from error
        if self._shares:
            raise self.error(
                "runs the very module that --model names, so that it is compared with itself",
                "name a factory in --model, and load the weights into another module in the "
                "pipeline",
            )
        return found

    @contextmanager
    def _watch_modules(self) -> Iterator[None]:
        """Note whether modules of the compared model are called within the context."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        def note_call(module: torch.nn.Module, _: object) -> None:
            self._shares = self._shares or id(module) in self._compared

        hook = register_module_forward_pre_hook(note_call)
        try:
            yield
        finally:
            hook.remove()

    def _takes_names(self, arrays: Mapping[str, Array]) -> bool:
        try:
            inspect.signature(self._function).bind(**arrays)
        except (TypeError, ValueError):  # other names, or no signature
            return False
        return True

    def _read_outputs(self, value: object, reference: ReferenceOutputs) -> Outputs:
        names = tuple(reference.outputs)
        found: dict[str, object] = {}
        if isinstance(value, Mapping):
            found = {name: value[name] for name in names if name in value}
        elif len(names) == 1 and not (isinstance(value, tuple) and len(value) == 1):
            found = {names[0]: value}
        elif isinstance(value, (tuple, list)) and len(value) == len(names):
            found = dict(zip(names, value, strict=True))
        if len(found) == len(names):
            return {name: self._read_array(one, name) for name, one in found.items()}
        what = type(value).__name__
        if isinstance(value, Mapping):
            what = f"{what} of {', '.join(map(str, value))}"
        elif isinstance(value, (tuple, list)):
            what = f"{what} of {len(value)}"
        raise self.error(
            f"returns a {what}, and the model returns {', '.join(names)}",
            "return an array, a tuple in the model's order, or a dict with these names",
        )

    def _read_array(self, value: object, name: str) -> Array:
        import numpy as np

        given: Any = value
        try:
            array: Array = to_array(given) if is_tensor(given) else np.array(given)
            if is_numeric(array):
                return array
            problem = ""
        except Exception as error:  # noqa: BLE001 - ragged, or what the class raises
            problem = f": {type(error).__name__}: {first_line(error)}"
        raise self.error(
            f"returns a {type(value).__name__} for {name!r}, which is not an array of numbers"
            f"{problem}",
            "return numpy arrays or tensors",
        )

    def _check_forms(self, arrays: Outputs, reference: ReferenceOutputs) -> None:
        import numpy as np

        feed, eager = describe_named_feed(reference.feed), reference.outputs
        wrong = [name for name in arrays if _form(arrays[name]) != _form(eager[name])]
        if wrong:
            name = wrong[0]
            fits = [one for one in wrong[1:] if _form(arrays[one]) == _form(eager[name])]
            raise self.error(
                f"returns {name!r} as {_form_text(arrays[name])} on feed {feed}, and the model as "
                f"{_form_text(eager[name])}{f'; it is exchanged with {fits[0]!r}' if fits else ''}",
                f"return {', '.join(eager)} as the model does, with the batch",
            )
        for name, values in arrays.items():
            odd = int((~np.isfinite(values) & np.isfinite(eager[name])).sum())
            if odd and name not in reference.left_out:
                raise self.error(
                    f"returns NaN or Inf in {odd} of {values.size} values of {name!r} on feed "
                    f"{feed}, and the model finite values",
                    "look for a division by 0 or an overflow in the pipeline",
                )


def _form(array: Array) -> tuple[object, ...]:
    return "i" if array.dtype.kind in "iub" else array.dtype.kind, array.shape


def _form_text(array: Array) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
