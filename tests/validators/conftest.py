"""`judged`: one function of a feed is the eager model, another the artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelc.core.errors import RunnerError, first_line
from modelc.core.kinds import Precision
from modelc.validators.feeds import NamedFeed, draw_feeds
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs
from modelc.validators.tolerance import tolerance_for

from .judging import signature_of, verdict_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelc.core.contract import Feed, Outputs
    from modelc.core.verdict import Verdict

    Model = Callable[[Feed], Outputs]


@pytest.fixture
def judged() -> Callable[..., Verdict]:
    """`judged(eager, artifact, "x:float32[batch,6]", ...)` -> the Verdict at fp32's tolerance."""

    def judged(
        eager: Model,
        artifact: Model,
        *inputs: str,
        taken: Sequence[str] | None = None,
        precision: Precision = Precision.FP32,
    ) -> Verdict:
        bare = signature_of(*inputs)
        feeds = draw_feeds(bare)
        references = [ReferenceOutputs(feed=feed, outputs=eager(feed.arrays)) for feed in feeds]
        return verdict_on(
            references,
            [_reply(artifact, feed) for feed in feeds],
            tolerance=tolerance_for(precision),
            taken=taken,
            signature=bare.with_outputs(references[0].outputs),
        )

    return judged


def _reply(artifact: Model, feed: NamedFeed) -> ArtifactOutputs:
    try:
        return ArtifactOutputs(outputs=artifact(feed.arrays))
    except RunnerError as error:
        return ArtifactOutputs(outputs=None, error=first_line(error))
