"""What the environment of a job says of it: the forge, the checkout, where its summary goes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .ci_commands import Forge, GitHubForge, GitLabForge


@dataclass(frozen=True, kw_only=True)
class CiJob:
    """A job. `root` is the checkout, `summary` the file for the page of the job, if it has one.

    `link` leads to its log.
    """

    forge: Forge
    root: Path
    summary: Path | None = None
    link: str = ""


def detect_job(environment: Mapping[str, str] = os.environ) -> CiJob:
    """The job that this process is of; GitHub's form is written where no forge tells itself."""
    if environment.get("GITLAB_CI"):
        root = environment.get("CI_PROJECT_DIR") or "."
        return CiJob(forge=GitLabForge(), root=Path(root), link=environment.get("CI_JOB_URL", ""))
    summary = environment.get("GITHUB_STEP_SUMMARY")
    return CiJob(
        forge=GitHubForge(),
        root=Path(environment.get("GITHUB_WORKSPACE") or "."),
        summary=Path(summary) if summary else None,
        link=_job_link(environment),
    )


def _job_link(environment: Mapping[str, str]) -> str:
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (environment.get(name, "") for name in names)
    return f"{server}/{repository}/actions/runs/{run}" if server and repository and run else ""
