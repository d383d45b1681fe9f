"""The dependencies of a result: files of the project that a run opens, modules, declared files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.records import Dependencies, sha256_of
from modelc.pipeline.cache.dependencies import (
    ABSENT,
    UNSURE,
    ReadLog,
    ReadTracker,
    check_declared_entries,
    find_unmet_dependency,
    merge_dependencies,
    track_reads,
)
from modelc.pipeline.cache.file_digests import FileDigests

from ...reasons import has_code

SCRIPT = """
import json, sys
from pathlib import Path
from modelc.pipeline.cache.dependencies import ReadTracker, track_reads
root = Path.cwd()
with track_reads(ReadTracker(root, keyed=[root / "weights.bin"], ours=[root / "out"])) as tracker:
    sys.path.insert(0, str(root))
    {code}
    needs = tracker.needs()
print(json.dumps([needs.files, needs.packages]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder with a module that reads a file, weights, and an output folder."""
    root = tmp_path / "project"
    (root / "out").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "nets.py").write_text("import json\nfrom pathlib import Path\n")
    for name in ("cfg.json", "weights.bin", "out/model.onnx", "data/1.txt"):
        (root / name).write_text("{}")
    return root


def needs_of(project: Path, net: str, code: str = "import nets") -> Dependencies:
    """What a fresh process reads that imports `nets` with this code in it."""
    (project / "nets.py").write_text(f"import json, os\nfrom pathlib import Path\n{net}\n")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(code=code)],
        cwd=project, capture_output=True, text=True, check=True,
    )  # fmt: skip
    files, packages = json.loads(ran.stdout.splitlines()[-1])
    return Dependencies(files=files, packages=packages)


def unmet(needs: Dependencies, project: Path) -> str:
    return find_unmet_dependency(needs, project, FileDigests(None))


@pytest.mark.parametrize(
    "net",
    [
        "json.load(open('cfg.json'))",
        "Path('cfg.json').read_bytes()",
        "os.close(os.open('cfg.json', os.O_RDONLY))",
        "import concurrent.futures as c; c.ThreadPoolExecutor().submit(open, 'cfg.json').result()",
        "import numpy; numpy.fromfile('cfg.json', dtype='uint8')",
    ],
)
def test_an_opened_file_of_the_project_is_a_dependency(project: Path, net: str) -> None:
    files = needs_of(project, net).files
    assert files == {
        "cfg.json": sha256_of(project / "cfg.json"),
        "nets.py": sha256_of(project / "nets.py"),
    }


def test_a_file_that_a_forked_worker_reads_is_a_dependency(project: Path) -> None:
    net = "import multiprocessing as m\ndef read(n): return Path(n).read_text()\n"
    code = "import nets\n    nets.m.get_context('fork').Pool(1).map(nets.read, ['cfg.json'])"
    assert "cfg.json" in needs_of(project, net, code).files


def test_a_missing_file_that_is_opened_is_a_dependency(project: Path) -> None:
    needs = needs_of(project, "try: open('more.json')\nexcept FileNotFoundError: pass")
    assert needs.files["more.json"] == ABSENT
    assert unmet(needs, project) == ""
    (project / "more.json").write_text("{}")
    assert unmet(needs, project).startswith("more.json")


@pytest.mark.parametrize(
    "net",
    [
        "open('weights.bin').read()",  # in the key
        "open('out/model.onnx').read()",  # modelc's own
        "Path('made.txt').write_text('1'); Path('made.txt').read_text()",
        "import importlib.metadata as m; m.version('numpy')",  # installed
        "open('/proc/self/status').read()",
    ],
)
def test_other_files_are_no_dependencies(project: Path, net: str) -> None:
    assert set(needs_of(project, net).files) == {"nets.py"}


@pytest.mark.parametrize(
    "net",
    [
        "import ctypes.util; ctypes.util.find_library('m')",  # as the CUDA wheel of torch does
        "import subprocess; subprocess.run(['true'])",
        "os.environ.get('HOME'); os.path.exists('/sbin/ldconfig')",
        "open('/etc/hostname').read() if os.path.exists('/etc/hostname') else None",
    ],
)
def test_reads_of_libraries_outside_of_the_project_are_no_dependencies(
    project: Path, net: str
) -> None:
    needs = needs_of(project, net)
    assert UNSURE not in needs.files.values()
    assert unmet(needs, project) == ""


def test_a_module_of_the_user_elsewhere_is_a_dependency_by_its_absolute_path(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "acts.py").write_text("act = 1")
    net = f"import sys; sys.path.append({str(tmp_path / 'shared')!r}); import acts"
    path = tmp_path / "shared" / "acts.py"
    assert needs_of(project, net).files[str(path)] == sha256_of(path)


def test_a_file_that_changed_between_two_reads_is_unsure(project: Path) -> None:
    net = "open('cfg.json').read(); Path('other').write_text('1'); os.replace('other', 'cfg.json')"
    needs = needs_of(project, f"{net}; open('cfg.json').read()")
    assert needs.files["cfg.json"] == UNSURE
    assert unmet(needs, project).startswith("cfg.json")


def test_a_later_run_of_the_process_depends_on_what_an_earlier_one_read(project: Path) -> None:
    with track_reads(ReadTracker(project)):
        (project / "cfg.json").read_text()
    with track_reads(ReadTracker(project)) as tracker:
        assert "cfg.json" in tracker.needs().files


@pytest.mark.parametrize("entry", ["data/*.txt", "data", "**/*.txt"])
def test_declared_files_are_dependencies_with_their_names(project: Path, entry: str) -> None:
    with track_reads(ReadTracker(project, declared=[entry], read=ReadLog())) as tracker:
        needs = Dependencies(declared=tracker.needs().declared)
    assert unmet(needs, project) == ""
    (project / "data" / "2.txt").write_text("")
    assert repr(entry) in unmet(needs, project)
    (project / "data" / "2.txt").unlink()
    assert unmet(needs, project) == ""
    (project / "data" / "1.txt").write_text("other")
    assert unmet(needs, project) != ""


def test_a_declared_variable_is_a_dependency(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIDTH", "3")
    with track_reads(ReadTracker(project, declared=["env:WIDTH"], read=ReadLog())) as tracker:
        needs = Dependencies(declared=tracker.needs().declared)
    assert unmet(needs, project) == ""
    monkeypatch.setenv("WIDTH", "4")
    assert unmet(needs, project) != ""
    monkeypatch.delenv("WIDTH")
    assert unmet(needs, project) != ""


@pytest.mark.parametrize("entry", ["configs/*.yaml", "env:"])
def test_an_entry_that_matches_nothing_is_an_error(project: Path, entry: str) -> None:
    check_declared_entries(["cfg.json", "env:HOME", str(project / "cfg.json")], project)
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND, naming=repr(entry))):
        check_declared_entries([entry], project)


def test_two_reads_that_differ_are_unsure() -> None:
    one, other = Dependencies(files={"x": "1"}, packages={"p": "1"}), Dependencies(files={"x": "2"})
    assert merge_dependencies(one, other) == Dependencies(files={"x": UNSURE}, packages={"p": "1"})
