"""CI forges: log groups and annotations of GitHub and GitLab, and the job's environment."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..projects.annotations import Annotation
from ..reports.text_format import escape_control

_SECTION_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_TITLE_LIMIT = 200  # characters: what a list of remarks shows
_MESSAGE_LIMIT = 4000


class Forge(Protocol):
    """The lines that a forge reads in the log of a job."""

    def begin(self, name: str) -> str:
        """Begin a group of lines that can be folded."""
        ...

    def end(self, name: str) -> str:
        """End it."""
        ...

    def remark(self, note: Annotation) -> str:
        """A remark on a line of a file, or on the whole."""
        ...

    def foreign(self, text: str) -> str:
        """Text of others, of which the forge takes no line for a command."""
        ...


class GitHubForge:
    """Workflow commands, which Forgejo and Gitea read as well."""

    def begin(self, name: str) -> str:
        """`::group::NAME`."""
        return f"::group::{_escape_data(name)}"

    def end(self, name: str) -> str:  # noqa: ARG002 - groups do not nest: the last one ends
        """`::endgroup::`."""
        return "::endgroup::"

    def remark(self, note: Annotation) -> str:
        """`::error file=...,line=...,title=...::message`."""
        given = {"file": note.file, "line": str(note.line) if note.file and note.line else ""}
        given["title"] = note.title[:_TITLE_LIMIT]
        told = ",".join(f"{name}={_escape_property(text)}" for name, text in given.items() if text)
        return f"::{note.level} {told}::{_escape_data(note.message[:_MESSAGE_LIMIT])}"

    def foreign(self, text: str) -> str:
        """Without what begins a command: `::` first on a line, blanks aside, or `##[` anywhere."""
        line = _to_one_line(text).replace("##[", "#\u200b#[")
        return f"| {line}" if line.lstrip().startswith("::") else line


class GitLabForge:
    """Sections of a job's log; remarks are lines, as GitLab reads them from JUnit instead."""

    def begin(self, name: str) -> str:
        """A section that can be folded, open."""
        return f"\x1b[0Ksection_start:{int(time.time())}:{_key(name)}\r\x1b[0K{_to_one_line(name)}"

    def end(self, name: str) -> str:
        """Its end."""
        return f"\x1b[0Ksection_end:{int(time.time())}:{_key(name)}\r\x1b[0K"

    def remark(self, note: Annotation) -> str:
        """One line, as compilers write them."""
        place = ":".join(filter(None, (note.file, str(note.line or ""))))
        parts = (place if note.file else "", note.level, f"{note.title}: {note.message}")
        return _to_one_line(": ".join(filter(None, parts)))

    def foreign(self, text: str) -> str:
        """Without control characters no section begins."""
        return _to_one_line(text)


def detect_forge(environment: dict[str, str]) -> Forge:
    """The forge whose runner this is; GitHub's form elsewhere."""
    return GitLabForge() if environment.get("GITLAB_CI") else GitHubForge()


def _to_one_line(text: str) -> str:
    """On one line, with what moves a cursor made visible."""
    return escape_control(" ".join(text.split("\n")).replace("\r", " "))


def _key(name: str) -> str:
    """A section's name: GitLab takes letters, digits, `_`, `.` and `-`."""
    return _SECTION_NAME.sub("_", name)


def _escape_data(text: str) -> str:
    """What stands after the second `::`."""
    escaped = escape_control(text.replace("\r\n", "\n").replace("\r", "\n"))
    return escaped.replace("%", "%25").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    """A value between the first `::` and the second."""
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


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
