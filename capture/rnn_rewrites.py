"""RNNs for captures: padded batches for packed sequences, and any length.

Each direction of each layer runs over the padded batch separately: forward, padding does not affect
earlier steps; backward, each row is reversed within its length. Outputs and final states equal
those of the packed run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .evidence import Symptom
from .rewrite import Module, Rewrite, replace_parts, swap_attribute, swap_functions

if TYPE_CHECKING:
    import torch


_CLOSED_GATE = 1e4  # added to a gate: its sigmoid is 0 or 1 exactly, in every float dtype


@dataclass
class _PaddedSequence:
    """Replaces PackedSequence: rows (batch, time, features) and their lengths."""

    data: Any
    lengths: Any


def _has_packed_rnn(module: Module) -> bool:
    from torch import nn

    return any(isinstance(part, nn.LSTM | nn.GRU | nn.RNN) for part in module.modules())


@contextmanager
def _use_padded_rnn(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    from torch import nn
    from torch.nn.utils import rnn

    with ExitStack() as stack:
        stack.enter_context(
            swap_functions({rnn.pack_padded_sequence: _pack, rnn.pad_packed_sequence: _unpack})
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            stack.enter_context(swap_attribute(kind, "forward", _make_forward(kind)))
        yield


def _pack(
    input: torch.Tensor,  # noqa: A002 - torch's name
    lengths: torch.Tensor | list[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,  # noqa: ARG001 - torch's signature
) -> _PaddedSequence:
    import torch

    data = input if batch_first else input.transpose(0, 1)
    counts = lengths if isinstance(lengths, torch.Tensor) else torch.tensor(lengths)
    return _PaddedSequence(data=data, lengths=counts.to(torch.int64))


def _unpack(
    sequence: _PaddedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    data, lengths = sequence.data, sequence.lengths
    steps = torch.arange(data.shape[1])
    data = torch.where((steps < lengths[:, None])[:, :, None], data, padding_value)
    if total_length is None:
        data = _trim_rows(data, lengths)
    else:
        missing = total_length - data.shape[1]
        data = torch.nn.functional.pad(data, (0, 0, 0, missing), value=padding_value)
    return (data if batch_first else data.transpose(0, 1)), lengths


def _trim_rows(data: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Trim to the longest row, like unpacking."""
    import torch

    longest = lengths.max()
    if torch._C._get_tracing_state() is not None:
        return data[:, :longest]  # the tracer follows tensors, not ints
    steps: Any = longest.item()  # not int(): torch.export follows item()
    check: Any = torch._check
    check(steps >= 1)
    check(steps <= data.shape[1])
    return data[:, :steps]


def _make_forward(kind: type[Module]) -> Any:
    usual = vars(kind)["forward"]

    def forward(self: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002 - torch's own name
        if not isinstance(input, _PaddedSequence):
            return usual(self, input, hx)
        return _run_layers(self, input, hx)

    return forward


def _run_layers(rnn: Any, given: _PaddedSequence, hx: Any) -> tuple[_PaddedSequence, Any]:
    """Run every layer and direction; return states in torch's order."""
    import torch

    directions = 1 + rnn.bidirectional
    each = len(rnn._flat_weights) // (rnn.num_layers * directions)
    ends: list[tuple[torch.Tensor, ...]] = []
    data = given.data
    for layer in range(rnn.num_layers):
        outs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = rnn._flat_weights[index * each : (index + 1) * each]
            start = _initial_state(rnn, data, hx, index)
            turn = _reverse_rows(data, given.lengths) if direction else data
            out, end = _run_direction(rnn, turn, given.lengths, start, weights)
            outs.append(_reverse_rows(out, given.lengths) if direction else out)
            ends.append(end)
        data = torch.cat(outs, dim=2) if rnn.bidirectional else outs[0]
    states = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    state = states if rnn.mode == "LSTM" else states[0]
    return _PaddedSequence(data=data, lengths=given.lengths), state


def _initial_state(rnn: Any, data: torch.Tensor, hx: Any, index: int) -> tuple[torch.Tensor, ...]:
    """Return the initial state of one layer and direction, (1, batch, size) each."""
    if hx is not None:
        given = hx if isinstance(hx, tuple) else (hx,)
        return tuple(one[index : index + 1] for one in given)
    sizes = [rnn.proj_size or rnn.hidden_size]
    if rnn.mode == "LSTM":
        sizes.append(rnn.hidden_size)
    return tuple(data.new_zeros(1, data.shape[0], size) for size in sizes)


def _reverse_rows(data: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Reverse each row within its length."""
    import torch

    steps = torch.arange(data.shape[1])
    back = lengths[:, None] - 1 - steps
    index = torch.where(back >= 0, back, steps)
    return data.gather(1, index[:, :, None].expand(-1, -1, data.shape[2]))


def _run_direction(
    rnn: Any,
    data: torch.Tensor,
    lengths: torch.Tensor,
    start: tuple[torch.Tensor, ...],
    weights: list[torch.Tensor],
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Run one layer in one direction; return outputs, and the state at each row's end."""
    out = _run_kernel(rnn, data, start, weights)[0]
    last = (lengths - 1)[:, None, None].expand(-1, 1, out.shape[2])
    hidden = out.gather(1, last)[:, 0]
    if rnn.mode != "LSTM":
        return out, (hidden,)
    return out, (hidden, _last_cell_state(rnn, data, lengths, start, weights))


def _run_kernel(
    rnn: Any, data: torch.Tensor, start: tuple[torch.Tensor, ...], weights: list[torch.Tensor]
) -> Any:
    import torch

    run = getattr(torch._VF, rnn.mode.lower())
    state = start if rnn.mode == "LSTM" else start[0]
    return run(data, state, weights, rnn.bias, 1, 0.0, False, False, True)


def _last_cell_state(
    rnn: Any,
    data: torch.Tensor,
    lengths: torch.Tensor,
    start: tuple[torch.Tensor, ...],
    weights: list[torch.Tensor],
) -> torch.Tensor:
    """Return the cell state after each row's last step, in a separate run, as few models use it.

    An extra feature marks steps beyond the row. It closes the input gate and opens the forget
    gate, so that the cell does not change.
    """
    import torch

    steps = torch.arange(data.shape[1])
    beyond = (steps >= lengths[:, None])[:, :, None].to(data.dtype)
    size = rnn.hidden_size
    gates = torch.cat(
        [
            torch.full((size, 1), -_CLOSED_GATE),
            torch.full((size, 1), _CLOSED_GATE),
            torch.zeros(2 * size, 1),
        ]
    ).to(data.dtype)
    marked = torch.cat([data * (1 - beyond), beyond], dim=2)
    wider = [torch.cat([weights[0], gates], dim=1), *weights[1:]]
    cell: torch.Tensor = _run_kernel(rnn, marked, start, wider)[2][0]
    return cell


PADDED_RNN = Rewrite(
    name="padded-rnn",
    summary="packed sequences as padded batches with a mask",
    suits=_has_packed_rnn,
    during=_use_padded_rnn,
)


# LSTM and GRU of any length.
#
# The operator stays in torch.export's program, but torch infers its output sizes with a Python loop
# over time, which fixes the length. Torch's while-loop decomposition does not.


def _has_specialized_rnn(module: Module) -> bool:
    from torch import nn

    try:
        from torch.export import _patches
    except ImportError:
        return False
    known = hasattr(_patches, "register_gru_while_loop_decomposition")  # not in older torch
    return known and any(isinstance(part, nn.LSTM | nn.GRU) for part in module.modules())


@contextmanager
def _prevent_unrolling(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    from torch.export._patches import (
        register_gru_while_loop_decomposition,
        register_lstm_while_loop_decomposition,
    )

    with ExitStack() as stack:
        stack.callback(_clear_kernel_cache)  # after the decompositions are restored
        stack.enter_context(register_lstm_while_loop_decomposition())
        stack.enter_context(register_gru_while_loop_decomposition())
        _clear_kernel_cache()
        yield


def _clear_kernel_cache() -> None:
    """Clear the cached Python kernels of the operators."""
    import torch

    for operator in (torch.ops.aten.lstm.input, torch.ops.aten.gru.input):
        operator._dispatch_cache.clear()


ANY_LENGTH_RNN = Rewrite(
    name="any-length-rnn",
    summary="LSTM and GRU without unrolling",
    suits=_has_specialized_rnn,
    during=_prevent_unrolling,
    needs=frozenset((Symptom.FIXED_SIZE,)),
)


# LSTMs with `proj_size` as plain ones: ONNX's operator has no projection.
#
# The output of such a layer is y = P h, and only y is fed back, as R y = (R P) h. So a plain LSTM
# with
# the recurrent weight R P has the same hidden states, and its outputs are projected afterwards. An
# initial state y0 becomes h0 = P+ y0 with the pseudo-inverse of P; P P+ is the identity.

# From torch's TorchScript exporter, and from ONNX Runtime on what the other exporter writes.
_SYMPTOMS = frozenset((Symptom.PROJECTED_LSTM, Symptom.RUNTIME_REFUSED))
_LSTM_FIELDS = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout",
          "bidirectional", "proj_size")  # fmt: skip


def _is_projected_lstm(part: Module) -> bool:
    from torch import nn

    return isinstance(part, nn.LSTM) and bool(part.proj_size)


def _make_plain_lstm(lstm: Any) -> Module:
    """Return an equivalent module of plain LSTMs with one layer each; other modules unchanged."""
    from torch import nn

    if not _is_projected_lstm(lstm):
        return lstm  # type: ignore[no-any-return]  # a module

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


PLAIN_PROJECTIONS = Rewrite(
    name="plain-projections",
    summary="LSTMs with proj_size as plain LSTMs with projected outputs",
    suits=lambda module: any(map(_is_projected_lstm, module.modules())),
    change=lambda module: replace_parts(module, _make_plain_lstm),
    needs=_SYMPTOMS,
)
