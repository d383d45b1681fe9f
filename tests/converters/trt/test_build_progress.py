"""Progress from nested phases that overlap."""

from __future__ import annotations

from modelc.converters.trt.trt_callbacks import PROGRESS_TOTAL, BuildPhases


def recorded_phases() -> tuple[BuildPhases, list[int]]:
    progress: list[int] = []
    return BuildPhases(lambda done, _: progress.append(done)), progress


def test_a_nested_phase_counts_as_part_of_its_parents_step() -> None:
    phases, progress = recorded_phases()
    phases.start("build", None, 2)
    phases.start("tactics", "build", 4)
    for step in range(4):
        phases.step("tactics", step)
    assert progress == [
        PROGRESS_TOTAL // 8,
        PROGRESS_TOTAL // 4,
        3 * PROGRESS_TOTAL // 8,
        PROGRESS_TOTAL // 2,
    ]


def test_progress_never_goes_back() -> None:
    phases, progress = recorded_phases()
    phases.start("build", None, 2)
    phases.start("tactics", "build", 2)
    phases.step("tactics", 0)
    phases.finish("tactics")
    phases.start("tactics", "build", 8)
    phases.step("tactics", 0)
    phases.finish("tactics")
    phases.step("build", 0)
    assert progress == sorted(set(progress)) == [PROGRESS_TOTAL // 4, PROGRESS_TOTAL // 2]


def test_a_phase_without_steps_or_without_a_start_is_ignored() -> None:
    phases, progress = recorded_phases()
    phases.start("build", None, 0)
    phases.step("other", 3)
    phases.step("build", 7)
    phases.finish("other")
    assert progress == [PROGRESS_TOTAL]
