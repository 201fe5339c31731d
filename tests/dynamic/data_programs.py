"""Programs over a tensor of integers, with sizes and numbers that only its data says.

(A module of its own: pytest would rewrite the `assert`.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def item(x: torch.Tensor) -> Any:
    n = x.sum().item()
    return torch.zeros(n) + 1, n, n * 2 + 1


def to_int(x: torch.Tensor) -> Any:
    n = int(x.max())
    return x * n, torch.arange(n)


def to_list(x: torch.Tensor) -> Any:
    a, *rest = x.tolist()
    return x + a, rest


def beside_tensors(x: torch.Tensor) -> Any:
    n = x[0].item()
    return x.half() * n + n - 3 * n, n // 2, n % 3, max(n, 2)


def checked(x: torch.Tensor) -> Any:
    n = x.sum().item()
    torch._check(n >= 2, lambda: "too small")
    torch._check(n < 100)
    return (torch.ones(n), 1) if n > 1 else x - 1


def known_after_a_check(x: torch.Tensor) -> Any:
    n = x.sum().item()
    torch._check(n == 6)
    return torch.arange(n).view(2, 3) + n, [0] * n


def a_multiple(x: torch.Tensor) -> Any:
    n = x.sum().item()
    torch._check(n % 3 == 0)
    return torch.arange(n).view(-1, 3)


def asserted(x: torch.Tensor) -> Any:
    assert x.max().item() <= x.shape[0] * 2
    return x + 1


def sliced(x: torch.Tensor) -> Any:
    n = x[0].item()
    return x[:n] * 2, x[n:], x[-1:]


def nonzero(x: torch.Tensor) -> Any:
    found = x.nonzero()
    return found + 1, found.shape[0], found.sum(0)


def where(x: torch.Tensor) -> Any:
    (found,) = torch.where(x > 1)
    return x[found] * 2, found.numel(), len(found)


def masked(x: torch.Tensor) -> Any:
    return x[x > 1] * 2 + 1, x.masked_select(x > 1).sum()


def one_mask_twice(x: torch.Tensor) -> Any:
    mask = x > 1
    return x[mask] + (x * 3)[mask]


def written(x: torch.Tensor) -> Any:
    y = x.clone()
    rows = (y > 1).nonzero().view(-1)
    y[rows] = y[rows] * 2
    return y


def unique(x: torch.Tensor) -> Any:
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values[inverse], counts, torch.unique_consecutive(x).shape


def repeated(x: torch.Tensor) -> Any:
    return torch.repeat_interleave(x.float(), x) * 2, x.repeat_interleave(x, 0)


def rows_of_each(x: torch.Tensor) -> Any:
    chosen = torch.stack([x, x + 1], 1) > 1
    rows = torch.arange(24.0).view(-1, 2)[: chosen.numel()][chosen.flatten()]
    wide = rows.reshape(rows.shape[0], -1)
    return [part.sum(0) for part in wide.split(chosen.sum(1).tolist())]


def experts(x: torch.Tensor) -> Any:
    sizes = x[:2].tolist()
    rest = x.sum().item() - sizes[0] - sizes[1]
    rows = torch.arange(12.0).view(6, 2)
    parts = rows.split([*sizes, rest], 0)
    return torch.cat([part @ torch.full((2, 2), float(i)) for i, part in enumerate(parts)])


def new_sizes(x: torch.Tensor) -> Any:
    total = x.sum().item()
    torch._check(total >= 0)
    return torch.cat([torch.ones(total), torch.zeros(2)]), F.pad(torch.ones(total), (1, 1))


def masked_rows(x: torch.Tensor) -> Any:
    rows = torch.stack([x, x * 2], 1)[x > 1].float()
    return rows @ torch.ones(2, 3), rows.softmax(-1), rows.mean(0), rows.t()


def compared(x: torch.Tensor) -> Any:
    return x.sum().item() > 3, x.nonzero().shape[0] == 2


def greatest_of_found(x: torch.Tensor) -> Any:
    found = x[x > 2].float().exp()
    return found.max(), found.argmin()


def greatest_rows_of_found(x: torch.Tensor) -> Any:
    rows = torch.stack([x, x * 2], 1)[x > 1]
    return rows.amax(0), rows.max(1).values * 2, rows.sum(1) + rows.argmax(1)


def chains_between(x: torch.Tensor) -> Any:
    y = (x.float() * 2 + 1).sin()
    found = x.nonzero().squeeze(1)
    z = (y[found] * 3).tanh() + found
    again = (z > 1).nonzero().squeeze(1)
    return z[again].cos() * 2 + again, y.exp() + 1


def written_between(x: torch.Tensor) -> Any:
    y = x.float().sin() + 1
    view = y[1:]
    view[view > 1] = 0
    view.mul_(x.sum().item())
    return y * 2, view + 1


PROGRAMS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        item,
        to_int,
        to_list,
        beside_tensors,
        checked,
        known_after_a_check,
        a_multiple,
        asserted,
        sliced,
        nonzero,
        where,
        masked,
        one_mask_twice,
        written,
        unique,
        repeated,
        experts,
        rows_of_each,
        new_sizes,
        masked_rows,
        compared,
        greatest_of_found,
        greatest_rows_of_found,
        chains_between,
        written_between,
    )
}
