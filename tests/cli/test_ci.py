"""`modelc run --ci`: what a forge reads in the log, and what a job leaves."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from modelc.cli.ci_forges import GitHubForge, GitLabForge, detect_job
from modelc.cli.ci_run import CiScreen, make_ci_run
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.events import Advanced, Finished, Noted, Started
from modelc.projects.annotations import Annotation
from modelc.projects.ci_documents import write_documents
from modelc.projects.run_record import RunRecord, write_record

from ..reasons import has_code

EARLIER_SUMMARY = "what an earlier command wrote\n"
DOCUMENTS = {"summary.md", "junit.xml", "comment.md"}

PROJECT = """\
[defaults]
to = "torchscript"

[models.one]
checkpoint = "one.safetensors"
model = "nets:gate"
input = "x:float32[batch=1..4,16]"
"""


def remark(**changes: str | int) -> str:
    given: dict[str, str | int] = {"level": "error", "title": "t", "message": "m"}
    return GitHubForge().remark(Annotation(**{**given, **changes}))  # type: ignore[arg-type]


def test_an_annotation_is_a_workflow_command() -> None:
    assert remark(file="modelc.toml", line=7) == "::error file=modelc.toml,line=7,title=t::m"
    assert remark() == "::error title=t::m"


def test_properties_and_messages_are_escaped() -> None:
    told = remark(title="a,b:c%d\ne", message="50% off:\r\n::error::x, y", file="a,b.py", line=1)
    assert told == (
        "::error file=a%2Cb.py,line=1,title=a%2Cb%3Ac%25d%0Ae::50%25 off:%0A::error::x, y"
    )
    assert "\n" not in told


def test_annotations_are_cut_to_the_limits_of_the_runner() -> None:
    assert len(remark(message="x" * 99_999, title="t" * 999)) < 5000


@pytest.mark.parametrize("line", ["::error::mine", "  ::stop-commands::x", "##[error]mine"])
def test_foreign_text_is_not_a_command(line: str) -> None:
    shown = GitHubForge().foreign(line)
    assert not shown.lstrip().startswith("::")
    assert "##[" not in shown


def test_names_with_colons_stay_as_they_are() -> None:
    assert GitHubForge().foreign("ok torch::nn::Linear") == "ok torch::nn::Linear"


def test_gitlab_sections_have_valid_names() -> None:
    begin, end = GitLabForge().begin("my net"), GitLabForge().end("my net")
    assert re.fullmatch(r"\x1b\[0Ksection_start:\d+:my_net\r\x1b\[0Kmy net", begin)
    assert re.fullmatch(r"\x1b\[0Ksection_end:\d+:my_net\r\x1b\[0K", end)
    assert "\x1b" not in GitLabForge().foreign("\x1b[0Ksection_start:1:x\r")


@dataclass
class Log:
    """The lines that a screen wrote."""

    lines: list[str]

    def screen(self, jobs: int) -> CiScreen:
        return CiScreen(GitHubForge(), self.lines.append, jobs=jobs)


@pytest.fixture
def log() -> Log:
    return Log([])


def test_a_failed_attempt_is_a_miss(log: Log) -> None:
    tell = log.screen(1).of("a")
    tell(Finished(step="convert onnx (export)", passed=False, seconds=1.0, attempt=True))
    tell(Finished(step="convert onnx (trace)", passed=True, seconds=1.0, attempt=True))
    assert [line.split()[0] for line in log.lines[1:]] == ["miss", "ok"]


def test_sequential_models_have_a_group_each(log: Log) -> None:
    screen = log.screen(1)
    screen.of("a")(Finished(step="convert onnx", passed=True, seconds=1.0))
    screen.of("b")(Noted(text="slow", warning=True))
    screen.of("b")(Finished(step="onnx", passed=False, seconds=2.0, detail="why"))
    screen.close()
    assert log.lines == [
        "::group::a",
        "ok   convert onnx 1.0 s",
        "::endgroup::",
        "::group::b",
        "warning: slow",
        "FAIL onnx 2.0 s  why",
        "::endgroup::",
    ]


def test_parallel_models_share_a_group_and_name_their_lines(log: Log) -> None:
    screen = log.screen(2)
    for name in ("a", "b", "a"):
        screen.of(name)(Noted(text="x"))
    screen.close()
    assert log.lines == ["::group::models", "a  x", "b  x", "a  x", "::endgroup::"]


def test_progress_within_a_step_has_no_line(log: Log) -> None:
    screen = log.screen(1)
    screen.of("a")(Started(step="s"))
    screen.of("a")(Advanced(step="s", done=1, total=2))
    screen.close()
    assert log.lines == []


def test_a_job_is_detected_by_its_environment() -> None:
    github = detect_job(
        {
            "GITHUB_WORKSPACE": "/w",
            "GITHUB_STEP_SUMMARY": "/s.md",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": "a/b",
            "GITHUB_RUN_ID": "5",
        }
    )
    assert isinstance(github.forge, GitHubForge)
    assert (github.root, github.summary) == (Path("/w"), Path("/s.md"))
    assert github.link == "https://github.com/a/b/actions/runs/5"
    gitlab = detect_job({"GITLAB_CI": "true", "CI_PROJECT_DIR": "/p", "CI_JOB_URL": "https://j/1"})
    assert isinstance(gitlab.forge, GitLabForge)
    assert (gitlab.root, gitlab.summary, gitlab.link) == (Path("/p"), None, "https://j/1")
    assert detect_job({}).link == ""


def test_quiet_contradicts_ci() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option="quiet")):
        make_ci_run(json=False, quiet=True)


@dataclass
class Job:
    """A checkout in a job of GitHub."""

    root: Path
    environment: dict[str, str]

    @property
    def summary(self) -> str:
        path = self.root / "step.md"
        return path.read_text() if path.exists() else ""

    def left(self, out: str) -> set[str]:
        """The files in a folder of results in the project."""
        return {path.name for path in (self.root / "ml" / out).iterdir()}

    def succeeded(self, out: str) -> Path:
        """What an earlier run in which all held left there, less its models."""
        folder = self.root / "ml" / out
        record = RunRecord(modelc="0.1.0", exit_code=0, seconds=1.0, models=())
        write_record(record, folder)
        write_documents(record, folder)
        return folder

    def run(self, *arguments: object, ci: bool = True) -> subprocess.CompletedProcess[str]:
        """`modelc run --ci`, the cache in the checkout's parent."""
        more = (*(("--ci",) if ci else ()), "--cache-dir", self.root / "cache", *arguments)
        return subprocess.run(
            [sys.executable, "-m", "modelc", "run", *map(str, more)],
            cwd=self.root / "ml",
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def job(tmp_path: Path, gate: tuple[str, ...], surroundings: dict[str, str]) -> Job:
    """A project in a folder of a checkout, with code of its own and colours forced."""
    project = tmp_path / "ml"
    project.mkdir()
    (project / "one.safetensors").write_bytes(Path(gate[0]).read_bytes())
    source = Path(__file__).parents[2] / "sample_models" / "gate.py"
    (project / "nets.py").write_text(source.read_text())
    (project / "modelc.toml").write_text(PROJECT)
    (tmp_path / "step.md").write_text(EARLIER_SUMMARY)
    github = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "step.md"),
        "FORCE_COLOR": "1",
        "CI": "true",
    }
    return Job(tmp_path, {**surroundings, **github})


def test_an_error_of_the_project_is_annotated_on_its_line_and_summarised(job: Job) -> None:
    (job.root / "ml" / "modelc.toml").write_text(PROJECT.replace("to =", "too ="))
    ran = job.run()
    assert ran.returncode == 2
    (told,) = (one for one in ran.stdout.splitlines() if "line=2" in one)
    assert told.startswith("::error file=ml/modelc.toml,line=2,title=modelc::modelc.toml:2")
    assert job.summary


def test_a_missing_base_ends_the_run_before_it_starts(job: Job) -> None:
    ran = job.run("--fail-on-regression", "absent", "--json")
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["error"]["code"] == ErrorCode.NOT_FOUND
    assert "::error title=modelc::--fail-on-regression absent" in ran.stderr
    assert job.left("out") == DOCUMENTS
    assert "absent" in (job.root / "ml" / "out" / "comment.md").read_text()


BROKEN = {
    "no TOML": ("to =", "to ", "modelc.toml:2: not TOML"),
    "an unknown key": ("to =", "too =", "modelc.toml:2 [defaults]: unknown key 'too'"),
    "no checkpoint": ("one.safetensors", "absent.safetensors", "absent.safetensors"),
}


@pytest.mark.parametrize(("was", "is_", "told"), BROKEN.values(), ids=BROKEN)
def test_a_run_that_does_not_start_leaves_its_errors_and_no_old_success(
    job: Job, was: str, is_: str, told: str
) -> None:
    out = job.succeeded("out")
    (job.root / "ml" / "modelc.toml").write_text(PROJECT.replace(was, is_))
    assert job.run().returncode == 2
    assert job.left("out") == DOCUMENTS
    for name in DOCUMENTS:
        text = (out / name).read_text()
        assert "✅" not in text
        assert told in re.sub(r"\\|\u200b", "", text)
    errors = ET.parse(out / "junit.xml").getroot().findall(".//error")
    assert len(errors) == 1
    assert "hint" in str(errors[0].text)


@pytest.mark.parametrize(
    ("top", "variable", "flags", "place"),
    [
        ("", {}, (), "out"),
        ('out = "results"', {}, (), "results"),
        ('out = "results"', {"MODELC_OUT": "there"}, (), "there"),
        ('out = "results"', {"MODELC_OUT": "there"}, ("-o", "here"), "here"),
        ('out = "results"\nnonsense', {}, (), "out"),
    ],
)
def test_errors_are_written_to_the_results_folder(
    job: Job, top: str, variable: dict[str, str], flags: tuple[str, ...], place: str
) -> None:
    (job.root / "ml" / "modelc.toml").write_text(f"{top}\n{PROJECT.replace('to =', 'too =')}")
    job.environment.update(variable)
    ran = job.run(*flags)
    assert ran.returncode == 2
    assert job.left(place) == DOCUMENTS
    assert f"written: {place}/comment.md" in ran.stdout
    assert {path.name for path in (job.root / "ml").iterdir() if path.is_dir()} == {place}


def test_an_unreadable_key_ends_the_run_before_it_starts(job: Job) -> None:
    job.succeeded("out")
    ran = job.run("--sign-key", "absent.pem")
    assert ran.returncode == 2
    assert job.left("out") == DOCUMENTS
    assert "absent.pem" in (job.root / "ml" / "out" / "summary.md").read_text()


def test_an_invalid_dry_run_changes_nothing(job: Job) -> None:
    out = job.succeeded("out")
    (job.root / "ml" / "modelc.toml").write_text(PROJECT.replace("to =", "too ="))
    assert job.run("--dry-run").returncode == 2
    assert job.left("out") == {*DOCUMENTS, "run.json"}
    assert "✅" in (out / "summary.md").read_text()


def test_a_foreign_file_is_kept_and_the_other_documents_are_written(job: Job) -> None:
    out = job.succeeded("out")
    (out / "summary.md").write_text("mine")
    (out / "run.json").write_text('{"mine": 1}')
    (job.root / "ml" / "modelc.toml").write_text(PROJECT.replace("to =", "too ="))
    ran = job.run()
    assert ran.returncode == 2
    assert "unknown key 'too'" in ran.stderr
    assert "::warning title=modelc::out/summary.md" in ran.stdout
    assert (out / "summary.md").read_text() == "mine"
    assert (out / "run.json").read_text() == '{"mine": 1}'
    assert (out / "comment.md").read_text()


def test_an_unwritable_folder_does_not_hide_the_error(job: Job) -> None:
    (job.root / "file").write_text("mine")
    (job.root / "ml" / "modelc.toml").write_text(PROJECT.replace("to =", "too ="))
    ran = job.run("-o", job.root / "file")
    assert ran.returncode == 2
    assert "unknown key 'too'" in ran.stderr
    assert "::warning title=modelc::" in ran.stdout
    assert (job.root / "file").read_text() == "mine"


def test_without_ci_only_the_old_record_is_removed(job: Job) -> None:
    out = job.succeeded("out")
    (job.root / "ml" / "modelc.toml").write_text(PROJECT.replace("to =", "too ="))
    ran = job.run(ci=False)
    assert ran.returncode == 2
    assert job.left("out") == DOCUMENTS
    assert "✅" in (out / "summary.md").read_text()
    assert job.run("-f", "absent.toml", ci=False).returncode == 2
    assert job.left("out") == DOCUMENTS


def test_an_index_is_removed_with_the_record_unless_foreign(job: Job) -> None:
    index = job.succeeded("out") / "index.html"
    index.write_text('<meta name="generator" content="modelc report">')
    (job.root / "ml" / "modelc.toml").write_text(PROJECT.replace("to =", "too ="))
    assert job.run(ci=False).returncode == 2
    assert not index.exists()
    index.write_text("mine")
    ran = job.run(ci=False)
    assert ran.returncode == 2
    assert index.read_text() == "mine"


@pytest.mark.slow
def test_a_run_with_pages_has_an_index(job: Job) -> None:
    ran = job.run("--report", "html", ci=False)
    assert ran.returncode == 0, ran.stderr
    out = job.root / "ml" / "out"
    assert 'href="one/report.html#row-0"' in (out / "index.html").read_text(encoding="utf-8")
    assert (out / "one" / "report.html").is_file()


@pytest.mark.parametrize("more", [(), ("--report", "html")])
def test_a_file_in_place_of_the_results_folder_is_kept(job: Job, more: tuple[str, ...]) -> None:
    (job.root / "file").write_text("mine")
    ran = job.run("-o", job.root / "file", *more)
    assert ran.returncode == 2, ran.stderr
    assert os.strerror(errno.ENOTDIR) in ran.stderr
    assert (job.root / "file").read_text() == "mine"


@pytest.mark.slow
def test_a_killed_run_leaves_no_record_of_an_earlier_one(job: Job) -> None:
    assert job.run("-o", job.root / "out").returncode == 0
    ends = "import os, signal\nos.kill(os.getppid(), signal.SIGTERM)\nsignal.pause()\n"
    (job.root / "ml" / "nets.py").write_text(ends)
    assert job.run("-o", job.root / "out").returncode == 143
    assert {path.name for path in (job.root / "out").iterdir()} == {"one"}


@pytest.mark.slow
def test_a_second_run_is_compared_with_the_first(job: Job) -> None:
    first = job.run("-o", job.root / "base")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "\x1b" not in first.stdout
    lines = first.stdout.splitlines()
    assert lines.index("::group::one") < lines.index("::endgroup::")
    assert "::error" not in first.stdout
    out = job.root / "base"
    names = {path.name for path in out.iterdir()}
    assert {"comment.md", "junit.xml", "run.json", "summary.md"} <= names
    assert job.summary == EARLIER_SUMMARY + (out / "summary.md").read_text()
    worse = job.run("--fail-on-regression", out, "--set", "capture=trace", "--json")
    assert worse.returncode == 1
    record = json.loads(worse.stdout)
    changed = record["regression"]["changed"]
    assert [(c["artifact"], c["measure"], c["change"]) for c in changed][:1] == [
        ("torchscript", "verdict", "worse")
    ]
    remarks = [line for line in worse.stderr.splitlines() if line.startswith("::error")]
    assert any("file=ml/nets.py,line=24" in line for line in remarks)
    assert any("title=one/torchscript%3A worse" in line for line in remarks)


@pytest.mark.slow
def test_a_broken_gate_is_annotated_on_its_line(job: Job) -> None:
    gated = PROJECT + '\n[models.one.gates]\nmax-size = "1 kB"\n'
    (job.root / "ml" / "modelc.toml").write_text(gated)
    ran = job.run()
    assert ran.returncode == 1
    expected = "::error file=ml/modelc.toml,line=10,title=one/torchscript%3A max-size::"
    assert expected in ran.stdout


@pytest.mark.slow
def test_gitlab_gets_sections_and_no_commands(job: Job) -> None:
    job.environment.update(GITLAB_CI="true", CI_PROJECT_DIR=str(job.root))
    ran = job.run()
    assert ran.returncode == 0, ran.stderr
    assert "section_start:" in ran.stdout
    assert "::group::" not in ran.stdout
