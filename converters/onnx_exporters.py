"""Translate a captured program to ONNX with one of torch's two exporters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..capture.capture_strategies import capture_program
from ..capture.captured_program import CapturedProgram, ExportCapture, example_tensors, model_of
from ..capture.framework_errors import ModelLocation, call_framework
from ..capture.refusals import RefusedError, last_user_place
from ..core.contract import Job
from ..core.errors import Hint, Option
from .onnx_complex import split_complex
from .onnx_custom_ops import (
    check_custom_ops,
    program_operators,
    register_symbolics,
    script_operators,
    translation_table,
)
from .onnx_image_ops import name_padded_axes
from .onnx_rewrites import complete_spectra, rewrite_int64_comparisons
from .onnx_size_numbers import tabulate_size_numbers

if TYPE_CHECKING:
    import onnx_ir
    import torch

DRAFT_STEM = (
    "draft"  # where the TorchScript exporter writes; weights may be read from it until saved
)


def export_onnx(job: Job, opset: int) -> tuple[onnx_ir.Model, CapturedProgram]:
    """The job's program, captured and translated.

    Raises:
        RefusedError: the capture or the exporter refused; the operator and its module are named.
        UsageError: a custom operator that the model has not.
    """
    taken = capture_program(job)
    if isinstance(taken, ExportCapture):
        model = _export_with_dynamo(job, opset, taken.program)
    else:
        model = _export_torchscript(job, opset, taken.module)
    name_padded_axes(model)
    rewrite_int64_comparisons(model, job.signature)
    feeds = (job.example, *job.feeds)
    tabulate_size_numbers(model, max(feeds, key=lambda feed: sum(a.size for a in feed.values())))
    return model, taken


def _export_with_dynamo(
    job: Job, opset: int, captured: torch.export.ExportedProgram
) -> onnx_ir.Model:
    """Through torch.export and the dynamo exporter; dims take the signature's names."""
    import torch

    if job.custom_ops:
        check_custom_ops(job.custom_ops, program_operators(captured))
    table = translation_table(job.custom_ops, opset)
    scope = model_of(job).scope
    captured = call_framework("torch.onnx.export", lambda: split_complex(captured))
    program = call_framework(
        "torch.onnx.export",
        lambda: torch.onnx.export(
            captured,
            dynamo=True,
            opset_version=opset,
            input_names=[spec.name for spec in job.signature.inputs],
            output_names=list(job.signature.outputs),
            custom_translation_table=table,
            verbose=False,
        ),
        locate=lambda error, _: _locate_node(error, scope),
    )
    if program is None:
        raise RefusedError(
            "torch.onnx.export gave no program",
            hint=Hint("try ", Option("capture", "script")),
            option="capture",
        )
    _separate_names(program.model)
    names: dict[str | onnx_ir.SymbolicDim, str] = {}
    axes = job.signature.axes()
    for value in program.model.graph.inputs:
        for axis, name in axes.get(value.name or "", {}).items():
            dim = value.shape[axis] if value.shape is not None else None
            if dim is not None and not isinstance(dim, int):
                names.setdefault(dim, name)
    program.rename_axes(names)
    complete_spectra(program.model)
    return program.model


def _separate_names(model: onnx_ir.Model) -> None:
    """Rename values within the graph that are named as an input or an output, in place.

    The exporter names what `pad` computes `pad`, whether or not an input has that name.
    """
    import onnx_ir

    ends = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    taken = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.outputs:
            if value.name in taken and id(value) not in ends:
                value.name = f"{value.name}::inner"


def _export_torchscript(job: Job, opset: int, module: torch.jit.ScriptModule) -> onnx_ir.Model:
    """Through the TorchScript exporter, which keeps `If` and `Loop`."""
    import onnx_ir
    import torch

    if job.custom_ops:
        check_custom_ops(job.custom_ops, script_operators(module))
    path = job.folder / DRAFT_STEM / f"{job.stem}.onnx"
    path.parent.mkdir()
    with register_symbolics(job.custom_ops, opset):
        call_framework(
            "torch.onnx.export (TorchScript)",
            lambda: torch.onnx.export(
                replace_slice_lists(module),
                example_tensors(job),
                str(path),
                dynamo=False,
                opset_version=opset,
                input_names=[spec.name for spec in job.signature.inputs],
                output_names=list(job.signature.outputs),
                dynamic_axes=job.signature.axes(),
                training=torch.onnx.TrainingMode.PRESERVE,  # it is in eval already
            ),
            locate=lambda _, operator: _locate_module(module, operator, model_of(job).scope),
        )
    model = onnx_ir.load(path)
    _name_outputs(model, job.signature.outputs)
    if len(list(path.parent.iterdir())) == 1:  # no weights beside it that are read later
        path.unlink()  # before the same is written again, cleaned
    return model


def _name_outputs(model: onnx_ir.Model, names: Sequence[str]) -> None:
    """Name the outputs that the exporter left as they were: what a trace made a constant."""
    import onnx_ir

    graph = model.graph
    for index, (value, name) in enumerate(zip(graph.outputs, names, strict=False)):
        if value.name == name:
            continue
        node = onnx_ir.node("Identity", [value])
        node.outputs[0].name, node.outputs[0].shape = name, value.shape
        node.outputs[0].type = value.type
        graph.append(node)
        graph.outputs[index] = node.outputs[0]


def _locate_node(error: BaseException, scope: str) -> ModelLocation:
    """The node that the dynamo exporter was at: it is a local of the frames that raised.

    What it decomposed is named as the user's program has it.
    """
    import torch

    for node in _frame_locals(error, "node"):
        if isinstance(node, torch.fx.Node):
            stack = list((node.meta.get("nn_module_stack") or {}).values())
            module = str(stack[-1][0]) if stack else ""
            return ModelLocation(
                operator=_original_operator(node),
                module=module.removeprefix(scope).removeprefix("."),
                place=last_user_place(str(node.meta.get("stack_trace") or "")),
            )
    return ModelLocation()


def _original_operator(node: torch.fx.Node) -> str:
    """`ns::op` of the operator that a node was before it was decomposed."""
    sources = node.meta.get("from_node") or ()
    target = sources[-1].target if sources else str(node.target)
    names = str(target).split(".")
    return "::".join(names[:2]) if len(names) > 1 and names[0].isidentifier() else ""


def _frame_locals(error: BaseException, name: str) -> Iterator[object]:
    """The values of a local in the frames of an exception and of what caused it."""
    one: BaseException | None = error
    while one is not None:
        trace = one.__traceback__
        while trace is not None:
            if name in trace.tb_frame.f_locals:
                yield trace.tb_frame.f_locals[name]
            trace = trace.tb_next
        one = one.__cause__


def _locate_module(module: torch.jit.ScriptModule, operator: str, scope: str) -> ModelLocation:
    """The innermost submodule that has an operator, and the user's line that made it."""
    found = ModelLocation()
    for path, part in module.named_modules() if operator else ():
        line = _creation_line(part, operator)
        if line is not None:
            inner = path.removeprefix(scope).removeprefix(".")
            found = ModelLocation(operator=operator, module=inner, place=last_user_place(line))
    return found


def _creation_line(part: Any, operator: str) -> str | None:
    """What a module says of where it makes that operator; None where it does not."""
    try:
        graph = part.inlined_graph  # held: the nodes die with it
    except (RuntimeError, AttributeError):  # never called: it has no forward
        return None
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            if node.kind() == operator:
                return str(node.sourceRange())
            blocks.extend(node.blocks())
    return None


_LIST, _LENGTH, _ITEM = "aten::unbind", "aten::len", "aten::__getitem__"


def replace_slice_lists(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """A copy that takes slices where the module makes a list of them; itself where it makes none.

    A list that is used otherwise, as one that is changed, stays.
    """
    import torch

    if not _find_lists(module.inlined_graph):
        return module
    frozen = torch._C._freeze_module(module._c, preserveParameters=True)
    copied: torch.jit.ScriptModule = torch.jit._recursive.wrap_cpp_module(frozen)  # type: ignore[no-untyped-call]  # torch's own
    for node in _find_lists(copied.graph):
        _take_slices(copied.graph, node)
    return copied


def _find_lists(graph: Any) -> list[Any]:
    """What makes lists of slices that are counted and read alone."""
    return [
        node
        for node in _block_nodes(graph)
        if node.kind() == _LIST
        and all(use.user.kind() in {_LENGTH, _ITEM} for use in node.output().uses())
    ]


def _block_nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _block_nodes(inner)


def _take_slices(graph: Any, unbind: Any) -> None:
    """Put sizes and slices in place of the lengths and items of a list, and remove the list."""
    import torch

    tensor, dim = unbind.inputs()
    for reader in [use.user for use in unbind.output().uses()]:
        if reader.kind() == _LENGTH:
            made = graph.create("aten::size", [tensor, dim], 1)
            made.output().setType(torch._C.IntType.get())
        else:
            _, place = reader.inputs()
            made = graph.create("aten::select", [tensor, dim, place], 1)
            made.output().setType(torch._C.TensorType.get())
        made.insertBefore(reader)
        made.copyMetadata(reader)
        reader.output().replaceAllUsesWith(made.output())
        reader.destroy()
    unbind.destroy()


GENERATED_AXIS = ".axis"  # in names of axes that follow no dim: `logits.axis1`


def name_output_axes(model: onnx_ir.Model, axes: Mapping[str, Mapping[int, str]]) -> None:
    """Name the axes of the outputs that change their size in eager.

    An exporter that took a number for granted declares it as the size: a runtime then warns of each
    other one, and whoever reserves memory by it has too little.
    """
    import onnx_ir

    for value in model.graph.outputs:
        names, shape = axes.get(value.name or "", {}), value.shape
        if shape is not None and names:
            value.shape = onnx_ir.Shape(
                _axis_name(dim, names.get(axis, "")) for axis, dim in enumerate(shape)
            )


def _axis_name(dim: int | onnx_ir.SymbolicDim, name: str) -> int | str | onnx_ir.SymbolicDim:
    """The name, if there is one; one made up of the output's gives way to an exporter's own."""
    if not name:
        return dim
    known = not isinstance(dim, int) and dim.value is not None
    return dim if known and GENERATED_AXIS in name else name
