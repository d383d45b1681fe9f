"""What `modelc init` wrote, and what is left to do."""

from __future__ import annotations

from rich.markup import escape

from ..projects.init import NewProject
from .tables import print_line, result_console


def project_document(begun: NewProject) -> bytes:
    """The file, its models, the lines to edit, and what else is wrong."""
    from ..pipeline.manifest_file import encode_json

    left = [{"message": one.text, "hint": one.hint} for one in begun.left]
    return encode_json(
        {"file": str(begun.file), "models": begun.models, "edits": begun.edits, "left": left}
    )


def show_new_project(begun: NewProject) -> None:
    """The models, the lines to edit, and the command that comes next."""
    console = result_console()
    for name, one in zip(begun.models, begun.described, strict=True):
        held = f", {one.parameters:,} numbers in {len(one.tensors)} tensors" if one.tensors else ""
        print_line(console, f"{escape(name)}: {escape(one.kind)}{held}")
    print_line(console, f"wrote {escape(str(begun.file))}")
    for edit in begun.edits:
        what = ", ".join((*edit.sizes, edit.what))
        place = f"{begun.file}:{edit.line} {edit.key}"
        print_line(console, f"[yellow]edit[/] {escape(place)}: {escape(what)}")
    for fault in begun.left:
        print_line(console, f"[yellow]mend[/] {escape(fault.text)}")
        print_line(console, f"     [dim]{escape(fault.hint)}[/]")
    print_line(
        console,
        "then: modelc config, modelc run" if begun.edits or begun.left else "next: modelc run",
    )
