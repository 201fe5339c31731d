"""Recurrent layers as captures see them in place of PyTorch's where they train on sequences of many lengths, or on
packed ones: scans of the steps that PyTorch's own code for CPUs takes (native/RNN.cpp). And what packs sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import linear

from magneto import _C
from magneto._control_flow import scanned

# Of a cell: the gates as the input and as the hidden state have them, the states; gives the new states.
Cell = Callable[[Tensor, Tensor, list[Tensor]], list[Tensor]]


def tanh_cell(row: Tensor, gates: Tensor, states: list[Tensor]) -> list[Tensor]:
    return [torch.tanh(gates + row)]


def relu_cell(row: Tensor, gates: Tensor, states: list[Tensor]) -> list[Tensor]:
    return [torch.relu(gates + row)]


def gru_cell(row: Tensor, gates: Tensor, states: list[Tensor]) -> list[Tensor]:
    row_reset, row_update, row_new = row.chunk(3, 1)
    reset, update, new = gates.chunk(3, 1)
    new = torch.tanh(row_new + new * torch.sigmoid(reset + row_reset))
    return [(states[0] - new) * torch.sigmoid(update + row_update) + new]


def lstm_cell(row: Tensor, gates: Tensor, states: list[Tensor]) -> list[Tensor]:
    ingate, forget, cell, outgate = (gates + row).chunk(4, 1)
    cell = torch.sigmoid(forget) * states[1] + torch.sigmoid(ingate) * torch.tanh(cell)
    return [torch.sigmoid(outgate) * torch.tanh(cell), cell]


CELLS: dict[str, Cell] = {"rnn_tanh": tanh_cell, "rnn_relu": relu_cell, "gru": gru_cell, "lstm": lstm_cell}


def over_time(cell: Cell, rows: Tensor, states: list[Tensor], weights: Sequence[Any], reverse: bool) -> Any:
    """The states at the end, and the output at each time; None: no scan of it can be had."""
    of_input, of_state, input_bias, state_bias, projection = weights

    def step(*given: Tensor) -> tuple[list[Tensor], Tensor]:
        *before, row = given
        after = cell(row, linear(before[0], of_state, state_bias), before)
        if projection is not None:
            after[0] = linear(after[0], projection)
        return after, after[0].clone()

    return scanned(step, states, [linear(rows, of_input, input_bias)], reverse)


def weights_of(params: Sequence[Tensor], has_biases: bool, projected: bool, index: int) -> list[Any]:
    """Those of one layer in one direction; None for what it has not."""
    count = 2 + 2 * has_biases + projected
    own = list(params[index * count : (index + 1) * count])
    return [*own[:2], *(own[2:4] if has_biases else [None, None]), own[-1] if projected else None]


def as_cast(name: str, states: list[Tensor], weights: list[Any]) -> tuple[list[Tensor], list[Any]]:
    """Weights as autocast makes them in each step, made once; and a state of the dtype that it has behind a step."""
    if not torch.is_autocast_enabled("cpu"):
        return states, weights
    dtype = torch.get_autocast_dtype("cpu")
    cast = [None if weight is None else narrowed(weight, dtype) for weight in weights]
    is_product = name.startswith("rnn") or weights[-1] is not None
    return [narrowed(states[0], dtype) if is_product else states[0], *states[1:]], cast


def narrowed(tensor: Tensor, dtype: Any) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)


def layers(
    name: str,
    one_layer: Callable[..., Any],
    rows: Tensor,
    first: list[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    projected: bool,
    num_layers: int,
    bidirectional: bool,
    dropout: float,
) -> Any:
    """One layer after the other: the output of the last, and the states of all at the end."""
    directions = 2 if bidirectional else 1
    last: list[list[Tensor]] = [[] for _ in first]
    for layer in range(num_layers):
        outputs: list[Tensor] = []
        for index in range(layer * directions, (layer + 1) * directions):
            weights = weights_of(params, has_biases, projected, index)
            states, weights = as_cast(name, [state[index] for state in first], weights)
            found = one_layer(rows, states, weights, len(outputs) == 1)
            if found is None:
                return None
            states, output = found
            outputs.append(output)
            for column, state in zip(last, states, strict=True):
                column.append(state)
        rows = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout > 0 and layer < num_layers - 1:
            rows = drop(rows, dropout)
    return rows, [torch.stack(column) for column in last]


def cells_fit(
    first: list[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int, bidirectional: bool
) -> tuple[bool, bool]:
    """Whether hidden states are projected, and whether all cells have their weights and states."""
    projected = len(first) == 2 and first[0].shape[-1] != first[1].shape[-1]
    cells = num_layers * (2 if bidirectional else 1)
    fits = len(params) == (2 + 2 * has_biases + projected) * cells
    return projected, fits and all(state.dim() == 3 and state.shape[0] == cells for state in first)


def recurrent(
    name: str,
    by_library: bool,
    input: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """The output and the states at the end. None: PyTorch's own operator is to be called. `by_library`: that is
    oneDNN's, but where hidden states are projected."""
    first = list(hx) if name == "lstm" else [hx]
    drops = train and dropout > 0
    if not drops and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in [input, *first, *params])):
        return None
    projected, fits = cells_fit(first, params, has_biases, num_layers, bidirectional)
    fits = fits and input.dim() == 3
    batch = input.shape[0 if batch_first else 1] if fits else 0
    fits = fits and all(state.shape[1] == batch for state in first)
    if (by_library and not projected) or not fits or input.shape[0] < 1 or input.shape[1] < 1:
        return None

    def one_layer(rows: Tensor, states: list[Tensor], weights: Any, reverse: bool) -> Any:
        return over_time(CELLS[name], rows, states, weights, reverse)

    rows = input.transpose(0, 1) if batch_first else input
    found = layers(
        name, one_layer, rows, first, params, has_biases, projected, num_layers, bidirectional, train * dropout
    )
    return None if found is None else (found[0].transpose(0, 1) if batch_first else found[0], *found[1])


# -- packed sequences --------------------------------------------------------------------------------------------------


def batch_of(batch_sizes: Tensor) -> Any:
    """How many sequences there are: known to the capture that interprets this."""
    return batch_sizes[0]


def pack_padded(input: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """torch._pack_padded_sequence. None: that is to be called."""
    batch_dim = 0 if batch_first else 1
    fits = input.dim() >= 2 and input.numel() > 0 and lengths.dim() == 1 and lengths.dtype == torch.int64
    if not fits or lengths.device.type != "cpu" or lengths.shape[0] != input.shape[batch_dim]:
        return None
    batch, steps = input.shape[batch_dim], input.shape[1 - batch_dim]
    batch_sizes = torch.ops.magneto.batch_sizes(lengths, steps)
    strides = (1, steps) if batch_first else (batch, 1)
    places = torch.ops.magneto.packed_places(batch_sizes, batch, *strides, None)
    return input.flatten(0, 1).index_select(0, places.to(input.device)), batch_sizes


def pad_sequences(sequences: Sequence[Tensor], batch_first: bool, padding_value: float, padding_side: str) -> Any:
    """torch._C._nn.pad_sequence, which asks which one is the longest, and writes to views. None: call that."""
    if padding_side not in ("left", "right"):
        return None
    first, batch = sequences[0], len(sequences)
    lengths = [sequence.shape[0] for sequence in sequences]
    steps = _C.largest(lengths)
    places = []
    for row, length in enumerate(lengths):
        step = torch.arange(length, device=first.device) + (steps - length if padding_side == "left" else 0)
        places.append(step + row * steps if batch_first else step * batch + row)
    rows = first.new_full((steps * batch, *first.shape[1:]), padding_value)
    rows = rows.index_copy(0, torch.cat(places), torch.cat(list(sequences)).to(first.dtype))
    return rows.view(*(batch, steps) if batch_first else (steps, batch), *first.shape[1:])


class Packing:
    """Where the rows of a packed sequence lie in a padded batch, step after step."""

    def __init__(self, data: Tensor, batch_sizes: Tensor, batch: Any) -> None:
        self.steps, self.batch = batch_sizes.shape[0], batch
        self.places = torch.ops.magneto.packed_places(batch_sizes, batch, batch, 1, data.shape[0])
        self.valid = torch.arange(batch) < batch_sizes.unsqueeze(1)

    def padded(self, data: Tensor, value: Any, steps: Any) -> Tensor:
        rows = data.new_full((steps * self.batch, *data.shape[1:]), value)
        return rows.index_copy(0, self.places, data).view(steps, self.batch, *data.shape[1:])

    def packed(self, rows: Tensor) -> Tensor:
        return rows.flatten(0, 1).index_select(0, self.places)


def pad_packed(data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: Any, total_length: Any) -> Any:
    """torch._pad_packed_sequence. None: that is to be called."""
    if data.dim() < 1 or batch_sizes.dim() != 1 or batch_sizes.dtype != torch.int64 or batch_sizes.shape[0] < 1:
        return None
    packing = Packing(data, batch_sizes, batch_of(batch_sizes))
    rows = packing.padded(data, padding_value, total_length)
    return rows.transpose(0, 1) if batch_first else rows, packing.valid.sum(0)


def pad_packed_sequence(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """torch.nn.utils.rnn.pad_packed_sequence, whose question about the longest sequence is a check: CPython raises."""
    steps = sequence.batch_sizes.size(0)
    if total_length is not None:
        torch._check(steps <= total_length)  # type: ignore[no-untyped-call]
        steps = total_length
    data, batch_sizes, _, unsorted_indices = sequence
    padded, lengths = torch._VF._pad_packed_sequence(data, batch_sizes, batch_first, padding_value, steps)
    if unsorted_indices is None:
        return padded, lengths
    return padded.index_select(0 if batch_first else 1, unsorted_indices), lengths[unsorted_indices.cpu()]


def over_packed(cell: Cell, data: Tensor, packing: Packing, states: list[Tensor], weights: Any, reverse: bool) -> Any:
    """As `over_time`: a sequence that has ended, or has not begun, keeps its state."""
    of_input, of_state, input_bias, state_bias, projection = weights

    def step(*given: Tensor) -> tuple[list[Tensor], Tensor]:
        *before, row, valid = given
        after = cell(row, linear(before[0], of_state, state_bias), before)
        if projection is not None:
            after[0] = linear(after[0], projection)
        after = [torch.where(valid, new, old) for new, old in zip(after, before, strict=True)]
        return after, after[0].clone()

    rows = packing.padded(linear(data, of_input, input_bias), 0, packing.steps)
    found = scanned(step, states, [rows, packing.valid.unsqueeze(2)], reverse)
    return None if found is None else (found[0], packing.packed(found[1]))


def packed_recurrent(
    name: str,
    data: Tensor,
    batch_sizes: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Any:
    """The output, packed, and the states at the end. None: PyTorch's own operator is to be called."""
    first = list(hx) if name == "lstm" else [hx]
    projected, fits = cells_fit(first, params, has_biases, num_layers, bidirectional)
    fits = fits and data.dim() == 2 and batch_sizes.dim() == 1
    if not fits or batch_sizes.dtype != torch.int64 or data.shape[0] < 1 or batch_sizes.shape[0] < 1:
        return None
    packing = Packing(data, batch_sizes, first[0].shape[1])

    def one_layer(rows: Tensor, states: list[Tensor], weights: Any, reverse: bool) -> Any:
        return over_packed(CELLS[name], rows, packing, states, weights, reverse)

    found = layers(
        name, one_layer, data, first, params, has_biases, projected, num_layers, bidirectional, train * dropout
    )
    return None if found is None else (found[0], *found[1])
