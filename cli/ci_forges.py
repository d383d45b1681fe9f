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
_TITLE_LIMIT = 200  # characters that a list of annotations shows
_MESSAGE_LIMIT = 4000


class Forge(Protocol):
    """The syntax of a forge for job logs."""

    def begin(self, name: str) -> str:
        """Begin a collapsible group of lines."""
        ...

    def end(self, name: str) -> str:
        """End the group."""
        ...

    def remark(self, note: Annotation) -> str:
        """Format an annotation on a line of a file, or on the whole run."""
        ...

    def foreign(self, text: str) -> str:
        """Escape foreign text, so that the forge does not execute commands in it."""
        ...


class GitHubForge:
    """Workflow commands of GitHub, which Forgejo and Gitea support too."""

    def begin(self, name: str) -> str:
        """Return `::group::NAME`."""
        return f"::group::{_escape_data(name)}"

    def end(self, name: str) -> str:  # noqa: ARG002 - groups do not nest: the last one ends
        """Return `::endgroup::`."""
        return "::endgroup::"

    def remark(self, note: Annotation) -> str:
        """Return `::error file=...,line=...,title=...::message`."""
        given = {"file": note.file, "line": str(note.line) if note.file and note.line else ""}
        given["title"] = note.title[:_TITLE_LIMIT]
        properties = ",".join(
            f"{name}={_escape_property(text)}" for name, text in given.items() if text
        )
        return f"::{note.level} {properties}::{_escape_data(note.message[:_MESSAGE_LIMIT])}"

    def foreign(self, text: str) -> str:
        """Escape the start of a command: `::` at the start of a line, or `##[` anywhere."""
        line = _to_one_line(text).replace("##[", "#\u200b#[")
        return f"| {line}" if line.lstrip().startswith("::") else line


class GitLabForge:
    """Collapsible sections of a job log; annotations are plain lines, as GitLab reads JUnit."""

    def begin(self, name: str) -> str:
        """Return the start of an expanded section."""
        return f"\x1b[0Ksection_start:{int(time.time())}:{_key(name)}\r\x1b[0K{_to_one_line(name)}"

    def end(self, name: str) -> str:
        """Return the end of the section."""
        return f"\x1b[0Ksection_end:{int(time.time())}:{_key(name)}\r\x1b[0K"

    def remark(self, note: Annotation) -> str:
        """Return one line in the format of compilers."""
        place = ":".join(filter(None, (note.file, str(note.line or ""))))
        parts = (place if note.file else "", note.level, f"{note.title}: {note.message}")
        return _to_one_line(": ".join(filter(None, parts)))

    def foreign(self, text: str) -> str:
        """Remove control characters, without which no section starts."""
        return _to_one_line(text)


def _to_one_line(text: str) -> str:
    """Join text to one line, and make control characters visible."""
    return escape_control(" ".join(text.split("\n")).replace("\r", " "))


def _key(name: str) -> str:
    """Return a section name in GitLab's characters: letters, digits, `_`, `.` and `-`."""
    return _SECTION_NAME.sub("_", name)


def _escape_data(text: str) -> str:
    """Escape text after the second `::`."""
    escaped = escape_control(text.replace("\r\n", "\n").replace("\r", "\n"))
    return escaped.replace("%", "%25").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    """Escape a value between the first `::` and the second."""
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


@dataclass(frozen=True, kw_only=True)
class CiJob:
    """A CI job; `root` is the checkout, `summary` the summary file of the job, if any.

    `link` is the URL of its log.
    """

    forge: Forge
    root: Path
    summary: Path | None = None
    link: str = ""


def detect_job(environment: Mapping[str, str] = os.environ) -> CiJob:
    """Detect the job of this process; defaults to GitHub's syntax."""
    if environment.get("GITLAB_CI"):
        root = environment.get("CI_PROJECT_DIR") or "."
        return CiJob(forge=GitLabForge(), root=Path(root), link=environment.get("CI_JOB_URL", ""))
    summary = environment.get("GITHUB_STEP_SUMMARY")
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (environment.get(name, "") for name in names)
    known = server and repository and run
    return CiJob(
        forge=GitHubForge(),
        root=Path(environment.get("GITHUB_WORKSPACE") or "."),
        summary=Path(summary) if summary else None,
        link=f"{server}/{repository}/actions/runs/{run}" if known else "",
    )
