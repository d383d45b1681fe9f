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
from .onnx_custom_ops import (
    check_custom_ops,
    program_operators,
    register_symbolics,
    script_operators,
    translation_table,
)
from .onnx_rewrites import (
    complete_spectra,
    expand_attention_masks,
    name_padded_axes,
    rewrite_int64_comparisons,
    rewrite_whole_pools,
)
from .onnx_size_numbers import tabulate_size_numbers

if TYPE_CHECKING:
    import onnx_ir
    import torch

# folder of the TorchScript exporter's output; weights may be read from it until they are saved
DRAFT_STEM = "draft"


def export_onnx(job: Job, opset: int) -> tuple[onnx_ir.Model, CapturedProgram]:
    """Capture and translate the job's program.

    Raises:
        RefusedError: the capture or the exporter failed; names the operator and its module.
        UsageError: a custom operator is absent from the model.
    """
    captured = capture_program(job)
    if isinstance(captured, ExportCapture):
        model = _export_with_dynamo(job, opset, captured.program)
    else:
        model = _export_torchscript(job, opset, captured.module)
        share_transposed_weights(model)
    name_padded_axes(model)
    rewrite_int64_comparisons(model, job.signature)
    rewrite_whole_pools(model, job.signature)
    expand_attention_masks(model)
    feeds = (job.example, *job.feeds)
    tabulate_size_numbers(model, max(feeds, key=lambda feed: sum(a.size for a in feed.values())))
    return model, captured


def _export_with_dynamo(
    job: Job, opset: int, captured: torch.export.ExportedProgram
) -> onnx_ir.Model:
    """Export through torch.export and the dynamo exporter; name dims as in the signature."""
    import torch

    from .onnx_complex import split_complex

    operators = program_operators(captured)
    if job.custom_ops:
        check_custom_ops(job.custom_ops, operators)
    table = translation_table(job.custom_ops, opset, operators)
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
            "torch.onnx.export returned no program",
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
    """Rename inner values that share the name of an input or an output, in place.

    The exporter calls the result of `pad` `pad` even if an input has that name.
    """
    import onnx_ir

    ends = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    reserved = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.outputs:
            if value.name in reserved and id(value) not in ends:
                value.name = f"{value.name}::inner"


def _export_torchscript(job: Job, opset: int, module: torch.jit.ScriptModule) -> onnx_ir.Model:
    """Export through the TorchScript exporter, which keeps `If` and `Loop`."""
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
                training=torch.onnx.TrainingMode.PRESERVE,  # already in eval mode
            ),
            locate=lambda _, operator: _locate_module(module, operator, model_of(job).scope),
        )
    model = onnx_ir.load(path)
    _name_outputs(model, job.signature.outputs)
    if len(list(path.parent.iterdir())) == 1:  # no external weights to read later
        path.unlink()  # free memory before the cleaned model is written
    return model


def _name_outputs(model: onnx_ir.Model, names: Sequence[str]) -> None:
    """Restore output names that the exporter dropped where a trace made the output a constant."""
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


_WORTH_SHARING = 2**18  # bytes of a weight below which a second copy costs less than a node


def share_transposed_weights(model: onnx_ir.Model) -> None:
    """Compute weights that are the transpose of another one from that, so each is stored once.

    The TorchScript exporter folds the transpose of a Linear's weight: a tied embedding is then
    there twice.
    """
    stored: dict[tuple[int, ...], list[onnx_ir.Value]] = {}
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or len(tensor.shape) != 2 or tensor.nbytes < _WORTH_SHARING:  # noqa: PLR2004
            continue
        size = tuple(tensor.shape.numpy())
        others = stored.setdefault(size[::-1], [])
        twin = next((one for one in others if _is_transpose(one, value)), None)
        if twin is None:
            stored.setdefault(size, []).append(value)
        elif _feeds_products(value):
            _compute_by_transpose(model.graph, value, twin)
        elif _feeds_products(twin):
            _compute_by_transpose(model.graph, twin, value)
            others.remove(twin)
            stored.setdefault(size, []).append(value)


def _is_transpose(one: onnx_ir.Value, other: onnx_ir.Value) -> bool:
    """Whether the values are those of the other with rows and columns exchanged, bit by bit."""
    import numpy as np

    if one.const_value is None or other.const_value is None or one.dtype != other.dtype:
        return False
    first, second = one.const_value.numpy(), other.const_value.numpy().T
    bits = f"u{first.itemsize}"  # NaN is equal to itself as an integer
    return all(
        np.array_equal(row.view(bits), again.view(bits))
        for row, again in zip(first, second, strict=True)
    )


def _feeds_products(value: onnx_ir.Value) -> bool:
    """Whether products alone read it: only they can take a transpose without a copy at each run."""
    uses = value.uses()
    return bool(uses) and all(
        use.node.op_type in {"MatMul", "Gemm"} and use.idx == 1 for use in uses
    )


def _compute_by_transpose(
    graph: onnx_ir.Graph, value: onnx_ir.Value, source: onnx_ir.Value
) -> None:
    """Replace an initializer by the transpose of another one."""
    import onnx_ir

    node = onnx_ir.node("Transpose", [source], {"perm": [1, 0]})
    made = node.outputs[0]
    made.name, made.shape, made.type = f"{value.name}::transpose", value.shape, value.type
    value.replace_all_uses_with(made)
    graph.insert_before(graph[0], node)
    graph.initializers.pop(str(value.name))


def _locate_node(error: BaseException, scope: str) -> ModelLocation:
    """Return the node that the dynamo exporter was at, found in the frames that raised.

    A decomposed operator is named as in the user's program.
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
    """Return the operator (`ns::op`) of a node before its decomposition."""
    sources = node.meta.get("from_node") or ()
    target = sources[-1].target if sources else str(node.target)
    names = str(target).split(".")
    return "::".join(names[:2]) if len(names) > 1 and names[0].isidentifier() else ""


def _frame_locals(error: BaseException, name: str) -> Iterator[object]:
    """Yield the values of a local in the frames of an exception and of its causes."""
    one: BaseException | None = error
    while one is not None:
        trace = one.__traceback__
        while trace is not None:
            if name in trace.tb_frame.f_locals:
                yield trace.tb_frame.f_locals[name]
            trace = trace.tb_next
        one = one.__cause__


def _locate_module(module: torch.jit.ScriptModule, operator: str, scope: str) -> ModelLocation:
    """Return the innermost submodule with an operator, and the user's line that called it."""
    found = ModelLocation()
    for path, part in module.named_modules() if operator else ():
        line = _creation_line(part, operator)
        if line is not None:
            inner = path.removeprefix(scope).removeprefix(".")
            found = ModelLocation(operator=operator, module=inner, place=last_user_place(line))
    return found


def _creation_line(part: Any, operator: str) -> str | None:
    """Return the line at which a module calls that operator; None if it does not."""
    try:
        graph = part.inlined_graph  # keeps the node alive
    except (RuntimeError, AttributeError):  # never called: it has no forward
        return None
    node = graph.findNode(operator)
    return None if node is None else str(node.sourceRange())


_LIST, _LENGTH, _ITEM = "aten::unbind", "aten::len", "aten::__getitem__"


def replace_slice_lists(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Return a copy with slices in place of the lists of slices; the module itself if it has none.

    A list with any other use, such as a mutation, stays.
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
    """Find the nodes that create lists of slices which are only indexed and measured."""
    return [
        node
        for node in graph.findAllNodes(_LIST)
        if all(use.user.kind() in {_LENGTH, _ITEM} for use in node.output().uses())
    ]


def _take_slices(graph: Any, unbind: Any) -> None:
    """Replace the lengths and items of a list by sizes and slices, and remove the list."""
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


GENERATED_AXIS = ".axis"  # axis names that follow no dim: `logits.axis1`


def name_output_axes(model: onnx_ir.Model, axes: Mapping[str, Mapping[int, str]]) -> None:
    """Name the output axes whose size varies in eager.

    An exporter that took such a size for a constant declares it: runtimes then warn about other
    sizes, and callers that allocate by it reserve too little.
    """
    import onnx_ir

    for value in model.graph.outputs:
        names, shape = axes.get(value.name or "", {}), value.shape
        if shape is not None and names:
            value.shape = onnx_ir.Shape(
                _axis_name(dim, names.get(axis, "")) for axis, dim in enumerate(shape)
            )


def _axis_name(dim: int | onnx_ir.SymbolicDim, name: str) -> int | str | onnx_ir.SymbolicDim:
    """Return the name of an axis, if any; an exporter's own beats one derived from the output's."""
    if not name:
        return dim
    known = not isinstance(dim, int) and dim.value is not None
    return dim if known and GENERATED_AXIS in name else name
