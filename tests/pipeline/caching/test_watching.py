"""What the user's code reads is heard; what modelc and frameworks read for themselves is not."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from modelc.core.digest import sha256_of
from modelc.core.records import Needs
from modelc.pipeline.caching.digests import Digests
from modelc.pipeline.caching.needs import ABSENT, PRESENT, UNSURE, joined, merged, unmet
from modelc.pipeline.caching.watching import Read, watching

SCRIPT = """
import json, sys
from pathlib import Path
from modelc.pipeline.caching.watching import watching
root = Path.cwd()
with watching(root, keyed=[root / "weights.bin"], ours=[root / "out"]) as watched:
    sys.path.insert(0, str(root))
    {code}
    needs = watched.needs()
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


def heard(project: Path, net: str, code: str = "import nets") -> Needs:
    """What is heard of a fresh process that imports `nets` with this code in it."""
    (project / "nets.py").write_text(f"import json, os\nfrom pathlib import Path\n{net}\n")
    return heard_now(project, code)


def heard_now(project: Path, code: str = "import nets") -> Needs:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(code=code)],
        cwd=project, capture_output=True, text=True, check=True,
    )  # fmt: skip
    files, packages = json.loads(ran.stdout.splitlines()[-1])
    return Needs(files=files, packages=packages)


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
def test_a_file_that_the_users_code_opens_is_a_need(project: Path, net: str) -> None:
    files = heard(project, net).files
    assert files.get("cfg.json") == sha256_of(project / "cfg.json")
    assert files.get("nets.py") == sha256_of(project / "nets.py")


def test_code_is_a_need_when_only_its_compiled_form_is_opened(project: Path) -> None:
    py_compile.compile(str(project / "nets.py"))
    assert heard_now(project).files == {"nets.py": sha256_of(project / "nets.py")}


def test_a_file_outside_the_project_is_a_need_by_its_whole_path(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "shared.txt").write_text("1")
    files = heard(project, f"open({str(tmp_path / 'shared.txt')!r}).read()").files
    assert files[str(tmp_path / "shared.txt")] == sha256_of(tmp_path / "shared.txt")


def test_a_module_outside_the_project_that_is_loaded_by_its_path_is_a_need(
    project: Path, tmp_path: Path
) -> None:
    """It is none of `sys.modules`, and it is the import machinery that opens it."""
    (tmp_path / "act.py").write_text("act = 1")
    net = (
        "import importlib.util as u\n"
        f"spec = u.spec_from_file_location('act', {str(tmp_path / 'act.py')!r})\n"
        "spec.loader.exec_module(u.module_from_spec(spec))"
    )
    path = str(tmp_path / "act.py")
    assert heard(project, net).files[path] == sha256_of(tmp_path / "act.py")
    assert heard(project, net).files[path] == sha256_of(tmp_path / "act.py")  # now compiled


def test_a_file_that_a_forked_worker_reads_is_a_need(project: Path) -> None:
    net = "import multiprocessing as m\ndef read(n): return Path(n).read_text()\n"
    code = "import nets\n    nets.m.get_context('fork').Pool(1).map(nets.read, ['cfg.json'])"
    assert "cfg.json" in heard(project, net, code).files


def test_a_file_that_is_looked_for_in_vain_is_a_need(project: Path) -> None:
    needs = heard(project, "try: open('more.json')\nexcept FileNotFoundError: pass")
    assert needs.files["more.json"] == ABSENT
    assert unmet(needs, project, Digests(None)) == ""
    (project / "more.json").write_text("{}")
    assert unmet(needs, project, Digests(None)) == "more.json is new"


@pytest.mark.parametrize(
    "look",
    [
        "Path('flag').exists()",
        "Path('flag').is_file()",
        "os.path.exists('flag')",
        "os.path.isdir('flag')",
        "try: os.stat(b'flag')\nexcept OSError: pass",
        "Path('flag/more').exists()",
    ],
)
def test_a_file_that_code_asks_after_without_opening_it_is_a_need(project: Path, look: str) -> None:
    needs = heard(project, look)
    assert unmet(needs, project, Digests(None)) == ""
    (project / "flag").mkdir()
    (project / "flag" / "more").write_text("")
    assert unmet(needs, project, Digests(None)).endswith("is new")
    needs = heard(project, look)
    assert unmet(needs, project, Digests(None)) == ""
    (project / "flag" / "more").unlink()
    (project / "flag").rmdir()
    assert unmet(needs, project, Digests(None)).endswith("is gone")


def test_what_is_in_a_file_that_is_only_asked_after_does_not_count(project: Path) -> None:
    needs = heard(project, "Path('cfg.json').exists()")
    assert needs.files["cfg.json"] == PRESENT
    (project / "cfg.json").write_text("[]")
    assert unmet(needs, project, Digests(None)) == ""


def test_what_is_asked_after_and_then_read_counts_by_its_bytes(project: Path) -> None:
    net = "if Path('cfg.json').exists(): Path('cfg.json').read_text()\nPath('cfg.json').exists()"
    assert heard(project, net).files["cfg.json"] == sha256_of(project / "cfg.json")


def test_what_the_run_makes_itself_is_none_though_it_is_asked_after(project: Path) -> None:
    net = (
        "Path('made.txt').write_text('1'); Path('made.txt').exists()\n"
        "import shutil, tempfile; shutil.rmtree(tempfile.mkdtemp())"
    )
    assert set(heard(project, net).files) == {"nets.py"}


def test_links_are_copied_as_ever_while_looks_are_heard(tmp_path: Path) -> None:
    """`shutil` asks whether its `os.stat` is one that can be asked about links themselves."""
    import shutil

    (tmp_path / "a").symlink_to("nowhere")
    with watching(tmp_path, read=Read()):
        shutil.copy2(tmp_path / "a", tmp_path / "b", follow_symlinks=False)
    assert (tmp_path / "b").is_symlink()


def test_a_folder_that_the_users_code_lists_is_a_need(project: Path) -> None:
    needs = heard(project, "[p for p in Path('data').glob('*')]")
    assert "data/" in needs.files
    (project / "data" / "2.txt").write_text("")
    assert unmet(needs, project, Digests(None)) == "data/ changed"


def test_a_folder_that_an_import_looks_through_is_none(project: Path) -> None:
    assert not [name for name in heard(project, "").files if name.endswith("/")]


def test_where_packages_are_looked_for_is_none(project: Path) -> None:
    """Else no result would hold on a machine that has Python elsewhere."""
    net = "import importlib.metadata as m; m.version('rich'); import huggingface_hub"
    assert set(heard(project, net).files) == {"nets.py"}


def test_what_the_run_wrote_itself_is_no_need(project: Path) -> None:
    net = "Path('cache.txt').write_text('1'); Path('cache.txt').read_text()"
    assert "cache.txt" not in heard(project, net).files


def test_output_and_passing_files_are_no_needs(project: Path) -> None:
    net = (
        "import tempfile\nopen('out/model.onnx').read()\n"
        "with tempfile.NamedTemporaryFile() as f: open(f.name).read()\n"
    )
    assert set(heard(project, net).files) == {"nets.py"}


def test_a_temporary_file_that_was_there_before_is_a_need(project: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat")
    files = heard(project, f"open({str(tmp_path / 'labels.txt')!r}).read()").files
    assert str(tmp_path / "labels.txt") in files


def test_weights_that_the_users_code_reads_itself_are_a_need(project: Path) -> None:
    assert "weights.bin" in heard(project, "open('weights.bin').read()").files


def test_what_changes_while_it_is_read_is_in_doubt(project: Path) -> None:
    net = "a = open('cfg.json').read(); os.truncate('cfg.json', 1); b = open('cfg.json').read()"
    needs = heard(project, net)
    assert needs.files["cfg.json"] == UNSURE
    assert "cannot be known" in unmet(needs, project, Digests(None))


def test_another_program_that_the_users_code_runs_is_a_doubt(project: Path) -> None:
    needs = heard(project, "import subprocess; subprocess.run(['true'])")
    assert needs.files["program true"] == UNSURE


def test_packages_are_needs_with_their_files(project: Path) -> None:
    needs = heard(project, "import rich")
    assert needs.packages["rich"]
    assert unmet(needs, project, Digests(None)) == ""
    other = Needs(packages={"rich": needs.packages["rich"][:-1] + "!"})
    assert unmet(other, project, Digests(None)).startswith("the package rich changed")


def test_a_hook_never_ends_the_users_call(tmp_path: Path) -> None:
    read = Read()
    with watching(tmp_path, read=read) as watched:
        watched.hear("open", (object(), None, "no flags"))
        watched.hear("subprocess.Popen", ())
    assert UNSURE in read.files.values()


def test_nothing_is_heard_after_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1")
    read = Read()
    with watching(tmp_path, read=read):
        pass
    (tmp_path / "a.txt").read_text()
    assert not read.files


def test_modules_that_were_loaded_before_are_needs(tmp_path: Path) -> None:
    with watching(tmp_path, read=Read()) as watched:
        needs = watched.needs()
    assert needs.files[str(Path(__file__))] == sha256_of(Path(__file__))
    assert not [name for name in needs.files if f"{os.sep}modelc{os.sep}core{os.sep}" in name]


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ({"a.txt": "0" * 64}, "a.txt changed"),
        ({"gone.txt": "0" * 64}, "gone.txt is gone"),
        ({"gone/": "0" * 64}, "gone/ is gone"),
        ({"a.txt": ABSENT}, "a.txt is new"),
        ({"gone.txt": ABSENT}, ""),
    ],
)
def test_what_changed_is_told(tmp_path: Path, then: dict[str, str], told: str) -> None:
    (tmp_path / "a.txt").write_text("1")
    assert unmet(Needs(files=then), tmp_path, Digests(None)) == told


def test_needs_that_contradict_each_other_are_a_doubt() -> None:
    both = merged(Needs(files={"a": "1", "b": "1"}), Needs(files={"a": "2"}, packages={"p": "1"}))
    assert both == Needs(files={"a": UNSURE, "b": "1"}, packages={"p": "1"})


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (PRESENT, PRESENT, PRESENT),
        (PRESENT, "1", "1"),
        ("1", PRESENT, "1"),
        (PRESENT, ABSENT, UNSURE),
        (ABSENT, PRESENT, UNSURE),
        (ABSENT, ABSENT, ABSENT),
        (ABSENT, "1", UNSURE),
        ("1", "2", UNSURE),
        (UNSURE, PRESENT, UNSURE),
    ],
)
def test_two_looks_at_a_name_say_together(one: str, other: str, both: str) -> None:
    assert joined(one, other) == both
