"""The module with image preprocessing before it and postprocessing after it, as one module."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from ..core.call import Parameter
from ..core.dims import Dim
from ..core.errors import ErrorCode, Hint, Option, UsageError, unknown_name_error
from ..core.postprocess import (
    CLASS_IDS,
    PROBABILITIES,
    SCORES,
    Postprocess,
    Suppression,
    class_axis,
)
from ..core.preprocess import CHANNELS, Preprocess
from ..core.signature import InputSpec
from .box_suppression import suppress_boxes
from .image_steps import make_scale_constants, preprocess_images
from .module_outputs import split_outputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from ..core.records import Checkpoint
    from .loaded_module import LoadedModule

    Tensors: TypeAlias = Mapping[str, torch.Tensor]

_RANK, _SIDES = 3, 4  # dims of boxes and scores, numbers of a box
_FIXED = {"main_input_name"}  # attributes by which a module is called
# The steps of each wrapper class; not attributes, which a copy or a script would include.
_STEPS: WeakKeyDictionary[type, EnclosedSteps] = WeakKeyDictionary()


class EnclosedSteps:
    """What a wrapper does around the module; `image` is the parameter that takes the image."""

    def __init__(self, checkpoint: Checkpoint, takes: tuple[Parameter, ...]) -> None:
        self.before = Preprocess.parse(checkpoint.preprocess) if checkpoint.preprocess else None
        self.after = Postprocess.parse(checkpoint.postprocess) if checkpoint.postprocess else None
        names = [one.name for one in takes if not one.kind.value.startswith("*")]
        self.image = checkpoint.preprocess_input or next(iter(names), "")
        if self.before is not None and self.image not in names:
            raise UsageError(
                f"metadata preprocess-input: the model has no input {self.image!r}",
                hint=Hint("give ", Option("meta", f"preprocess-input={next(iter(names), 'x')}")),
                option="meta",
                code=ErrorCode.NOT_FOUND,
            )
        self.place = names.index(self.image) if self.image in names else 0

    def replace_image(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], constants: Tensors
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with the image as the model takes it."""
        if self.before is None:
            return args, kwargs
        if self.image in kwargs:
            image = preprocess_images(kwargs[self.image], self.before, constants)
            return args, {**kwargs, self.image: image}
        given = list(args)
        given[self.place] = preprocess_images(given[self.place], self.before, constants)
        return tuple(given), kwargs

    def replace_output(self, value: object) -> object:
        """Return the outputs of the model with those of the postprocessing, by name."""
        if self.after is None:
            return value
        tensors = split_outputs(value).tensors
        name, boxes, steps = find_class_output(tensors, self.after), "", self.after
        if steps.nms is None:
            made = apply_postprocess(tensors[name], steps)
        else:
            boxes = find_box_output(tensors, name, steps.nms)
            scores = activate_scores(tensors[name], steps)
            made = suppress_boxes(tensors[boxes], scores, steps.nms)
        found: dict[str, torch.Tensor] = {}
        for key, tensor in tensors.items():
            if key not in (name, boxes) and key in made:
                raise _output_error(f"the steps make {key!r}, which the model has as well")
            found |= made if key == name else {} if key == boxes else {key: tensor}
        return found


def find_class_output(tensors: Tensors, steps: Postprocess) -> str:
    """Return the output that the steps apply to: for `nms`, the scores.

    Raises:
        UsageError: there is none of its name, or several without one.
    """
    if steps.nms is not None:
        return _find_scores(tensors, steps.nms)
    if steps.output:
        name = _require_output(tensors, steps.output)
        if tensors[name].dim() < 2:  # noqa: PLR2004
            raise _output_error(f"{name!r} {_shape_text(tensors[name])} is not scores (N, C)")
        return name
    able = [name for name, one in tensors.items() if one.is_floating_point() and one.dim() > 1]
    if len(able) != 1:
        raise _output_error(f"needs a name, as the model has {', '.join(able or tensors)}",
                            replace(steps, output="NAME"))  # fmt: skip
    return able[0]


def _output_error(problem: str, steps: Postprocess | None = None) -> UsageError:
    hint = "return boxes (N, M, 4) and scores (N, M, C) from forward, and name them if need be"
    return UsageError(
        f"--postprocess: {problem}",
        hint=hint if steps is None else Hint("give ", Option("postprocess", str(steps))),
        option="postprocess",
        code=ErrorCode.INVALID_VALUE,
    )


def _require_output(tensors: Tensors, name: str) -> str:
    if name not in tensors:
        raise unknown_name_error("output in --postprocess:", name, tuple(tensors))
    return name


def _find_scores(tensors: Tensors, steps: Suppression) -> str:
    """Return the output (N, M, C) that is not the boxes (N, M, 4)."""
    if steps.scores:
        name = _require_output(tensors, steps.scores)
    else:
        able = _list_detections(tensors)
        boxes = steps.boxes or next((one for one in able if tensors[one].shape[2] == _SIDES), "")
        rest = [one for one in able if one != boxes]
        if len(rest) != 1 or (not steps.boxes and tensors[rest[0]].shape[2] == _SIDES):
            raise _names_error(tensors, steps)
        name = rest[0]
    if tensors[name].dim() != _RANK or not tensors[name].is_floating_point():
        raise _output_error(f"{name!r} {_shape_text(tensors[name])} is not scores (N, M, C)")
    return name


def find_box_output(tensors: Tensors, scores: str, steps: Suppression) -> str:
    """Return the output of boxes (N, M, 4) that belong to the scores (N, M, C).

    Raises:
        UsageError: there is none of its name, or several without one, or it has another form.
    """
    able = [one for one in _list_detections(tensors) if one != scores]
    if steps.boxes:
        able = [_require_output(tensors, steps.boxes)]
    elif len(able) > 1:
        able = [one for one in able if tensors[one].shape[2] == _SIDES]
    if len(able) != 1:
        raise _names_error(tensors, steps)
    boxes, given = tensors[able[0]], tensors[scores]
    if boxes.dim() != _RANK or boxes.shape[2] != _SIDES or not boxes.is_floating_point():
        raise _output_error(f"{able[0]!r} {_shape_text(boxes)} is not boxes (N, M, 4)")
    if boxes.shape[1] != given.shape[1]:
        raise _output_error(
            f"{able[0]!r} {_shape_text(boxes)} and {scores!r} {_shape_text(given)} have different "
            "numbers of boxes"
        )
    return able[0]


def _names_error(tensors: Tensors, steps: Suppression) -> UsageError:
    given = ", ".join(f"{name} {_shape_text(one)}" for name, one in tensors.items())
    named = replace(steps, boxes=steps.boxes or "NAME", scores=steps.scores or "NAME")
    return _output_error(f"which outputs are boxes and scores is open: {given}",
                         Postprocess(nms=named))  # fmt: skip


def _list_detections(tensors: Tensors) -> list[str]:
    return [name for name, one in tensors.items() if one.is_floating_point() and one.dim() == _RANK]


def _shape_text(tensor: torch.Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def activate_scores(scores: torch.Tensor, steps: Postprocess) -> torch.Tensor:
    """Apply the activation along the class dim, if there is one."""
    import torch

    if steps.activation == "softmax":
        return torch.softmax(scores, dim=class_axis(scores.dim()))
    return torch.sigmoid(scores) if steps.activation == "sigmoid" else scores


def apply_postprocess(scores: torch.Tensor, steps: Postprocess) -> dict[str, torch.Tensor]:
    """Apply activation and selection along the class dim."""
    import torch

    axis, scores = class_axis(scores.dim()), activate_scores(scores, steps)
    if steps.argmax:
        return {CLASS_IDS: torch.argmax(scores, dim=axis)}
    if steps.best:
        if steps.best > scores.shape[axis]:
            count = int(scores.shape[axis])
            raise _output_error(f"topk={steps.best} of {count} classes", replace(steps, best=count))
        best, indices = torch.topk(scores, steps.best, dim=axis)
        return {SCORES: best, CLASS_IDS: indices}
    return {PROBABILITIES: scores}


def enclose(loaded: LoadedModule, checkpoint: Checkpoint) -> LoadedModule:
    """Return the module within its pre- and postprocessing, if the checkpoint asks for any.

    Raises:
        UsageError: it has no input of the image's name.
    """
    if not checkpoint.preprocess and not checkpoint.postprocess:
        return loaded
    steps = EnclosedSteps(checkpoint, loaded.takes)
    known = dict(loaded.known)
    if steps.before is not None and steps.image in known:
        known[steps.image] = _image_spec(known[steps.image], steps.before)
    return replace(loaded, module=_wrap(loaded.module, steps), known=known)


def _image_spec(spec: InputSpec, steps: Preprocess) -> InputSpec:
    """Return the input as an image: uint8, of any size, in the batch of the model's own input."""
    batch = spec.dims[0] if spec.dims else Dim.any_size("batch")
    channels = Dim.of_size(CHANNELS[steps.channels])
    dims = (batch, Dim.any_size("height"), Dim.any_size("width"), channels)
    return InputSpec(name=spec.name, dtype="uint8", dims=dims)


def _wrap(module: torch.nn.Module, steps: EnclosedSteps) -> torch.nn.Module:
    from torch import nn

    constants = {} if steps.before is None else make_scale_constants(steps.before)

    class Enclosed(nn.Module):
        """Calls the user's module between its pre- and postprocessing."""

        def __init__(self) -> None:
            super().__init__()
            self.model = module
            self.training = module.training
            for key, tensor in constants.items():
                self.register_buffer(key, tensor, persistent=False)
            for name in _FIXED & set(dir(module)):
                setattr(self, name, getattr(module, name))

        def forward(self, *args: Any, **kwargs: Any) -> object:
            """Preprocess the image, call the module, postprocess its output."""
            held = {key: getattr(self, key) for key in constants}
            args, kwargs = steps.replace_image(args, kwargs, held)
            return steps.replace_output(self.model(*args, **kwargs))

    _STEPS[Enclosed] = steps
    return Enclosed()


@contextmanager
def record_inner_outputs(module: torch.nn.Module) -> Iterator[list[object]]:
    """Collect what the module within the steps of `enclose` returns, call by call."""
    held: list[object] = []
    inner = module.get_submodule("model")
    hook = inner.register_forward_hook(lambda *call: held.append(call[-1]))
    try:
        yield held
    finally:
        hook.remove()


def find_steps(module: torch.nn.Module) -> EnclosedSteps | None:
    """Return the steps of a wrapper that `enclose` made; None for other modules."""
    return _STEPS.get(type(module))
