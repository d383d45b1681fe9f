"""A step that this host cannot carry out: looked at, and left pending for one that can."""

from __future__ import annotations

from ..converters.registry import as_deferred
from ..core.contract import Readiness
from ..core.errors import ConversionError, Hint, ModelcError, Option
from ..core.manifest import Pending
from .bench import Parent, RunContext, StepResult
from .making import step_failure
from .plan import Step
from .trying import make_job


def prepare_pending(
    step: Step, parent: Parent, readiness: Readiness, bench: RunContext
) -> StepResult:
    """Run the target's pre-flight on the parent and leave the step pending.

    What the framework is sure to refuse is a failure here: another host could not finish it.
    """
    target = as_deferred(step.target)
    if target is None or parent.path is None:
        raise RuntimeError(f"{step.name} cannot be prepared")
    try:
        with bench.stage.step(f"pre-flight {step.name}", log=step.name) as clock:
            job = make_job(step, parent, bench, bench.folder.workplace(step.name))
            found = target.preflight(job)
            clock.passed = not found.blockers
            if found.blockers:
                more = f" (and {len(found.blockers) - 1} more)" if len(found.blockers) > 1 else ""
                raise ConversionError(
                    f"{step.name} cannot be built: {found.blockers[0]}{more}",
                    hint=Hint(
                        f"more is in {bench.folder.logs / step.name}.log; ",
                        Option("plugins"),
                        " names libraries for operators that it lacks",
                    ),
                    option="plugins",
                )
    except ModelcError as error:
        return StepResult(failure=step_failure(step, error, []))
    for warning in found.warnings:
        bench.stage.note(f"{step.name}: {warning}", warning=True)
    return StepResult(
        pending=Pending(
            step=step.name,
            target=step.target.NAME,
            precision=step.wanted.precision,
            made_from=parent.name,
            parent=parent.digest,
            reason=readiness.reason,
            command=f"modelc {target.FINISHED_BY}",
            warnings=found.warnings,
            memory=found.memory,
            source=found.source,
            settings=dict(bench.order.settings),
        )
    )
