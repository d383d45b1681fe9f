"""Progress from nested phases that overlap."""

from __future__ import annotations

from modelc.converters.trt.trt_callbacks import PROGRESS_TOTAL, BuildPhases


def collected() -> tuple[BuildPhases, list[int]]:
    told: list[int] = []
    return BuildPhases(lambda done, _: told.append(done)), told


def test_a_phase_within_counts_as_part_of_its_parents_step() -> None:
    phases, told = collected()
    phases.start("build", None, 2)
    phases.start("tactics", "build", 4)
    for step in range(4):
        phases.step("tactics", step)
    assert told == [
        PROGRESS_TOTAL // 8,
        PROGRESS_TOTAL // 4,
        3 * PROGRESS_TOTAL // 8,
        PROGRESS_TOTAL // 2,
    ]


def test_progress_never_goes_back() -> None:
    phases, told = collected()
    phases.start("build", None, 2)
    phases.start("tactics", "build", 2)
    phases.step("tactics", 0)
    phases.finish("tactics")
    phases.start("tactics", "build", 8)
    phases.step("tactics", 0)
    phases.finish("tactics")
    phases.step("build", 0)
    assert told == sorted(set(told)) == [PROGRESS_TOTAL // 4, PROGRESS_TOTAL // 2]


def test_a_phase_without_steps_and_one_that_nobody_started_do_no_harm() -> None:
    phases, told = collected()
    phases.start("build", None, 0)
    phases.step("other", 3)
    phases.step("build", 7)
    phases.finish("other")
    assert told == [PROGRESS_TOTAL]
