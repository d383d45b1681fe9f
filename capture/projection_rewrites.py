"""LSTMs with `proj_size` as plain ones: ONNX's operator has no projection.

The output of such a layer is y = P h, and only y is fed back, as R y = (R P) h. So a plain LSTM
with the recurrent weight R P has the same hidden states, and its outputs are projected afterwards.
An initial state y0 becomes h0 = P+ y0 with the pseudo-inverse of P; P P+ is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .evidence import Symptom
from .rewrite import Module, Rewrite, replace_parts

if TYPE_CHECKING:
    import torch

# From torch's TorchScript exporter, and from ONNX Runtime on what the other exporter writes.
_SYMPTOMS = frozenset((Symptom.PROJECTED_LSTM, Symptom.RUNTIME_REFUSED))
_LSTM_FIELDS = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout",
          "bidirectional", "proj_size")  # fmt: skip


def _needs_plain_projections(module: Module) -> bool:
    return any(map(_is_projected_lstm, module.modules()))


def _is_projected_lstm(part: Module) -> bool:
    from torch import nn

    return isinstance(part, nn.LSTM) and bool(part.proj_size)


def _replace_projected_lstms(module: Module) -> Module:
    return replace_parts(
        module, lambda part: _make_plain_lstm(part) if _is_projected_lstm(part) else part
    )


def _make_plain_lstm(lstm: Any) -> Module:
    """Return an equivalent module of plain LSTMs with one layer each."""
    from torch import nn

    class Unprojected(nn.Module):
        """Plain LSTMs, their outputs projected."""

        def __init__(self) -> None:
            super().__init__()
            for name in _LSTM_FIELDS:
                setattr(self, name, getattr(lstm, name))
            self.turns = 2 if lstm.bidirectional else 1
            self.layers = nn.ModuleList(_make_lstm_layer(lstm, at) for at in range(lstm.num_layers))

        def flatten_parameters(self) -> None:
            """Do nothing; models may call it."""

        def forward(self, x: torch.Tensor, hx: Any = None) -> Any:
            import torch

            states, cells = [], []
            layers: Sequence[Any] = tuple(self.layers)
            for at, layer in enumerate(layers):
                given = slice(at * self.turns, (at + 1) * self.turns)
                first = None if hx is None else (layer.unproject(hx[0][given]), hx[1][given])
                y, (state, cell) = layer.lstm(x, first)
                x = layer.project(y)
                states.append(layer.project_states(state))
                cells.append(cell)
            return x, (torch.cat(states), torch.cat(cells))

    return Unprojected()


def _make_lstm_layer(lstm: Any, at: int) -> Module:
    """Return one layer: a plain LSTM, and the projections of its directions."""
    import torch
    from torch import nn

    suffixes = ["", "_reverse"] if lstm.bidirectional else [""]
    width = lstm.proj_size * len(suffixes) if at else lstm.input_size
    options = {"batch_first": lstm.batch_first, "bidirectional": lstm.bidirectional}
    plain = nn.LSTM(width, lstm.hidden_size, bias=lstm.bias, **options)
    projections = [getattr(lstm, f"weight_hr_l{at}{suffix}").detach() for suffix in suffixes]
    names = ["weight_ih", *(["bias_ih", "bias_hh"] if lstm.bias else [])]
    with torch.no_grad():
        plain.to(projections[0])
        for suffix, projection in zip(suffixes, projections, strict=True):
            for name in names:
                getattr(plain, f"{name}_l0{suffix}").copy_(getattr(lstm, f"{name}_l{at}{suffix}"))
            recurrent = getattr(lstm, f"weight_hh_l{at}{suffix}").double() @ projection.double()
            getattr(plain, f"weight_hh_l0{suffix}").copy_(recurrent)

    class Layer(nn.Module):
        """A plain LSTM with projections of its hidden states."""

        def __init__(self) -> None:
            super().__init__()
            self.lstm = plain
            self.down = nn.ParameterList(projections)
            inverse = (torch.linalg.pinv(one.double()).to(one) for one in projections)
            self.up = nn.ParameterList(inverse)

        def project(self, y: torch.Tensor) -> torch.Tensor:
            parts: Sequence[torch.Tensor] = torch.split(y, lstm.hidden_size, -1)
            found = [part @ one.T for part, one in zip(parts, self.down, strict=True)]
            return torch.cat(found, -1)

        def project_states(self, state: torch.Tensor) -> torch.Tensor:
            return torch.stack([state[turn] @ one.T for turn, one in enumerate(self.down)])

        def unproject(self, state: torch.Tensor) -> torch.Tensor:
            return torch.stack([state[turn] @ one.T for turn, one in enumerate(self.up)])

    layer: Module = Layer().eval().requires_grad_(requires_grad=False)
    return layer


PROJECTION_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="plain-projections",
        summary="LSTMs with proj_size as plain LSTMs with projected outputs",
        suits=_needs_plain_projections,
        change=_replace_projected_lstms,
        answers=_SYMPTOMS,
        needs=_SYMPTOMS,
    ),
)
