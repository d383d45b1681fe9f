from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modelc.checkpoints.factory import call_factory
from modelc.core.errors import CheckpointError, ErrorCode, UsageError

from ..reasons import has_code

Write = Callable[[str], str]

TYPED = """
    from __future__ import annotations
    from torch import nn
    class Net(nn.Module):
        def __init__(self, size: int = 1, rate: float | None = 0.5, deep: bool = True,
                     name: str = "", widths=()) -> None:
            super().__init__()
            self.got = (size, rate, deep, name, widths)
    def number() -> int:
        return 3
    ready = nn.Linear(1, 1)
    VALUE = 7
"""


def test_arguments_are_converted_by_annotation(write_module: Write) -> None:
    spec = f"{write_module(TYPED)}:Net"
    values = {"size": "3", "rate": "none", "deep": "no", "name": "4", "widths": "[1, 2]"}
    assert call_factory(spec, values).module.got == (3, None, False, "4", [1, 2])


def test_an_optional_is_converted_to_its_type(write_module: Write) -> None:
    got = call_factory(f"{write_module(TYPED)}:Net", {"rate": "2", "widths": "wide"}).module.got
    assert isinstance(got, tuple)
    assert got[1] == 2.0
    assert got[4] == "wide"


@pytest.mark.parametrize(("key", "text"), [("size", "big"), ("deep", "maybe")])
def test_a_value_of_the_wrong_type_is_rejected(write_module: Write, key: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"{key}={text}"):
        call_factory(f"{write_module(TYPED)}:Net", {key: text})


def test_a_wrong_keyword_lists_the_parameters(write_module: Write) -> None:
    with pytest.raises(UsageError, match="takes size, rate, deep, name, widths") as caught:
        call_factory(f"{write_module(TYPED)}:Net", {"sise": "1"})
    assert "size?" in caught.value.hint


def test_a_missing_argument_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="out_features"):
        call_factory("torch.nn:Linear", {"in_features": "1"})


def test_a_module_that_is_already_built_is_taken(write_module: Write) -> None:
    assert isinstance(call_factory(f"{write_module(TYPED)}:ready", {}).module, nn.Linear)


def test_a_class_of_a_library_is_a_factory() -> None:
    module = call_factory("torch.nn:Linear", {"in_features": "3", "out_features": "2"}).module
    assert isinstance(module, nn.Linear)
    assert module.in_features == 3


@pytest.mark.parametrize("spec", ["nets", "nets:", ":build", "nets/a:build", "a:b:c"])
def test_a_wrong_form_is_rejected(spec: str) -> None:
    with pytest.raises(UsageError, match=r"PKG\.MOD:FACTORY"):
        call_factory(spec, {})


def test_a_file_name_is_turned_into_the_right_form() -> None:
    with pytest.raises(UsageError) as caught:
        call_factory("src/nets.py:build", {})
    assert caught.value.hint == "write --model src.nets:build"


def test_a_missing_module_is_reported_with_the_closest(write_module: Write) -> None:
    name = write_module(TYPED)
    with pytest.raises(UsageError) as caught:
        call_factory(f"{name[:-1]}:Net", {})
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert name in caught.value.hint


def test_a_folder_that_vanishes_meanwhile_is_passed_over(
    write_module: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, scan = write_module(TYPED), os.scandir
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path)

    def vanish(path: str = ".") -> Any:
        if str(path).endswith("gone"):
            raise FileNotFoundError(2, "No such file or directory")
        return scan(path)

    monkeypatch.setattr(os, "scandir", vanish)
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND)):
        call_factory(f"{name}x:Net", {})


def test_a_working_folder_that_the_code_changes_is_restored(
    write_module: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    moving = TYPED.replace("class Net", "import os; os.chdir(os.sep)\n    class Net")
    call_factory(f"{write_module(moving)}:Net", {})
    assert Path.cwd() == tmp_path


def test_a_missing_factory_is_reported_with_close_names(write_module: Write) -> None:
    with pytest.raises(UsageError, match="has no 'numbr'") as caught:
        call_factory(f"{write_module(TYPED)}:numbr", {})
    assert "number?" in caught.value.hint


def test_a_factory_that_gives_no_module_is_rejected(write_module: Write) -> None:
    with pytest.raises(CheckpointError, match=" int"):
        call_factory(f"{write_module(TYPED)}:number", {})


def test_what_cannot_be_called_is_rejected(write_module: Write) -> None:
    with pytest.raises(UsageError, match=" int"):
        call_factory(f"{write_module(TYPED)}:VALUE", {})


def test_an_error_in_the_factory_names_the_users_line(write_module: Write) -> None:
    name = write_module("""
        import torch
        def build():
            torch.ones(2) @ torch.ones(3)
    """)
    with pytest.raises(CheckpointError, match=rf"RuntimeError at .*{name}\.py:4: "):
        call_factory(f"{name}:build", {})


def test_an_error_while_importing_names_the_users_line(write_module: Write) -> None:
    name = write_module("import not_installed_anywhere\n")
    with pytest.raises(CheckpointError, match=rf"ModuleNotFoundError at .*{name}\.py:1"):
        call_factory(f"{name}:build", {})


def test_the_working_folder_is_on_the_path_while_the_factory_is_imported_and_behind_all_else(
    write_module: Write, tmp_path: Path
) -> None:
    before = list(sys.path)
    name = write_module("""
        import sys
        import torch
        SEEN = list(sys.path)
        def build():
            return torch.nn.Identity()
    """)
    call_factory(f"{name}:build", {})
    seen = sys.modules[name].SEEN
    assert seen == [*before, str(tmp_path)]
    assert sys.path == before


def test_a_module_of_the_users_is_found_for_the_users_code_alone(
    write_module: Write,
) -> None:
    later = write_module("VALUE = 7")
    name = write_module(f"""
        import torch
        class Net(torch.nn.Module):
            def forward(self, x):
                from {later} import VALUE
                return x + VALUE
    """)
    net = call_factory(f"{name}:Net", {}).module
    assert find_spec(later) is None  # as a library would look for a package that it can use
    assert net(torch.zeros(1)) == 7


def test_what_the_factory_draws_is_the_same_each_time_and_no_draw_of_the_users_is_lost() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, second = (
        call_factory("torch.nn:Linear", {"in_features": "3", "out_features": "2"}).module
        for _ in range(2)
    )
    assert torch.equal(first.state_dict()["weight"], second.state_dict()["weight"])
    assert torch.equal(torch.rand(1), expected)
