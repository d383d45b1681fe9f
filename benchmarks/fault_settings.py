"""The choices of the zoo's own nets that are planted otherwise: kind, attribute, value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SETTINGS: Mapping[str, Sequence[tuple[str, str, object]]] = {
    "perceptron": (
        ("gelu exact / tanh", "gelu", "tanh"),
        ("residual dropped", "residual", 0.0),
        ("residual x 0.999", "residual", 0.999),
        ("clamp at 6", "clamp", 6.0),
        ("clamp at 1", "clamp", 1.0),
        ("dropout left on (x 1.1)", "scale", 1.1),
        ("dropout left on (x 1.001)", "scale", 1.001),
        ("a factor off by 1e-5", "scale", 1 + 1e-5),
    ),
    "attention": (
        ("softmax axis", "axis", -2),
        ("residual dropped", "residual", 0.0),
        ("residual x 0.999", "residual", 0.999),
        ("mask ignored", "masking", False),
        ("index off by one", "token", 1),
        ("index off by one", "token", -1),
        ("positions off by one", "offset", 1),
        ("softmax temperature x 1.01", "temper", 1.01),
        ("softmax temperature x 1.0001", "temper", 1.0001),
        ("number of heads", "heads", 2),
        ("a result reversed", "swap", True),
    ),
    "convolutions": (
        ("padding mode", "pad_mode", "reflect"),
        ("padding mode", "pad_mode", "replicate"),
        ("padding mode", "pad_mode", "circular"),
        ("relu6 at 7", "most", 7.0),
        ("relu6 at 5.9", "most", 5.9),
        ("relu6 at 3", "most", 3.0),
        ("relu with a slope", "slope", 0.01),
        ("relu with a slope", "slope", 1e-4),
        ("residual dropped", "residual", 0.0),
        ("padding counted in a mean", "count_pad", False),
        ("pooling rounds up", "ceil", True),
        ("groups of a norm", "group.num_groups", 2),
    ),
    "upsampling": (
        ("interpolation mode", "mode", "nearest"),
        ("interpolation mode", "mode", "bicubic"),
        ("align_corners", "align", True),
        ("operands swapped", "flip", True),
    ),
    "lstm": (("index off by one", "shift", 1), ("index off by one", "shift", -1)),
    "gru": (("index off by one", "shift", 1),),
    "pointing": (
        ("integer output off by one", "more", 1),
        ("outputs swapped", "swap", True),
        ("an exponent off by 0.1 %", "power", 2.002),
        ("an exponent off by 0.001 %", "power", 2.00002),
    ),
    "waves": (
        ("a constant of an activation", "alpha", 0.99),
        ("a constant of an activation", "beta", 1.001),
        ("folded from the sample input", "level", 2.5),
        ("folded from the sample input", "level", 3.0),
    ),
}
