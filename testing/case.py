"""One conversion of a small net by a target, with what eager says: what the contract is held to."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..converters.registry import target_named
from ..core.call import bind_inputs, parameters_of
from ..core.capture import Capture
from ..core.contract import EAGER, Converted, Feed, Job, Outputs, Target
from ..core.errors import UsageError
from ..core.grammar import parse_input
from ..core.precision import Precision
from ..core.signature import Signature, merge_inputs
from ..sources.eager_model import Eager
from ..validators.feeds import draw_example_feed

if TYPE_CHECKING:
    from torch import nn

INPUT = "x:float32[batch=1..8,1,8,8]"
OUTPUT = "logits"
SIZES = {"min": 1, "opt": 4, "max": 8}  # of the batch
_FEED_SEED = 7


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the tests get: a target's conversion, and eager's inputs and outputs to hold it to.

    `feeds` and `outputs` are by `min`, `opt` and `max`, the sizes of the batch. `parameters` is how
    many weights eager has, `operators` the least number of operators that the artifact must have.
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
        """The model file that was made."""
        return self.job.folder / self.converted.files[0][0]


def case_of(
    target: Target,
    folder: Path,
    *,
    precision: Precision = Precision.FP32,
    capture: Capture | None = None,
) -> Case:
    """Convert a small convolutional net to a target, and to what it is made from before that.

    Args:
        target: what is tested.
        folder: an empty folder to work in.
        precision: one that the target has; INT8 needs samples, and is not for this net.
        capture: one that it has; None is the first.

    Raises:
        UsageError: the target has no such precision.
        ConversionError: the target refused the net.
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
    """One image in, one row of scores out, batches of 1 to 8."""
    return merge_inputs([parse_input(INPUT)], {}).with_outputs((OUTPUT,))


class _CaseMaker:
    """Makes a target's artifact of the net, its parents before it."""

    def __init__(self, net: nn.Module, signature: Signature, folder: Path) -> None:
        self._eager = Eager(net, ("x",), bind_inputs(("x",), parameters_of(net.forward)))
        self._signature = signature
        self._folder = folder

    def make(
        self, target: Target, precision: Precision, capture: Capture | None
    ) -> tuple[Job, Converted]:
        """The job that the pipeline would hand the target, and what came of it."""
        if precision not in target.MADE_FROM or precision is Precision.INT8:
            raise UsageError(
                f"{target.NAME} in {precision} cannot be tested so",
                hint="name a precision of its MADE_FROM other than int8",
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
    """A convolution, a norm, a pool and two layers: about 19,000 weights."""
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
