"""Recurrent layers as captures see them in place of PyTorch's where they train on sequences of many lengths: scans of
the steps that PyTorch's own code for CPUs takes (native/RNN.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import linear

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
    projected = len(first) == 2 and first[0].shape[-1] != first[1].shape[-1]
    cells = num_layers * (2 if bidirectional else 1)
    fits = input.dim() == 3 and len(params) == (2 + 2 * has_biases + projected) * cells
    batch = input.shape[0 if batch_first else 1] if fits else 0
    fits = fits and all(state.dim() == 3 and state.shape[:2] == (cells, batch) for state in first)
    if (by_library and not projected) or not fits or input.shape[0] < 1 or input.shape[1] < 1:
        return None
    rows = input.transpose(0, 1) if batch_first else input
    last: list[list[Tensor]] = [[] for _ in first]
    for layer in range(num_layers):
        outputs: list[Tensor] = []
        for index in range(layer * cells // num_layers, (layer + 1) * cells // num_layers):
            weights = weights_of(params, has_biases, projected, index)
            reverse = len(outputs) == 1
            found = over_time(CELLS[name], rows, [state[index] for state in first], weights, reverse)
            if found is None:
                return None
            states, output = found
            outputs.append(output)
            for column, state in zip(last, states, strict=True):
                column.append(state)
        rows = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if drops and layer < num_layers - 1:
            rows = drop(rows, dropout)
    return (rows.transpose(0, 1) if batch_first else rows, *[torch.stack(column) for column in last])
