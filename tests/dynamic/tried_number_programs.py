"""Functions that read numbers of tensors: those that are one graph by default, and those that are not."""

from __future__ import annotations

import torch
from program_table import ProgramTable

Tensor = torch.Tensor
captured = CAPTURED = ProgramTable()
left = LEFT = ProgramTable()


# Each is given x (rows, 3) and lengths that add up to its rows.


@captured
def split_and_join(x: Tensor, lengths: Tensor) -> Tensor:
    parts = x.split(lengths.tolist())
    return torch.cat([part * (i + 1) for i, part in enumerate(parts)])


@captured
def split_by_a_function(x: Tensor, lengths: Tensor) -> Tensor:
    parts = torch.split(x.sin(), (lengths * 1).tolist(), dim=0)
    return torch.cat([parts[2], parts[0].cos(), parts[1]])


@captured
def sums_of_parts(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([part.sum(0) for part in x.split(lengths.tolist())])


@captured
def handed_on(x: Tensor, lengths: Tensor) -> tuple[Tensor, list[int]]:
    counts = lengths.tolist()
    return x * 2, counts


@captured
def summed(x: Tensor, lengths: Tensor) -> tuple[Tensor, int]:
    total = 0
    for count in (lengths * 2).tolist():
        total += count
    return x + total, total


def refuse(x: Tensor) -> Tensor:
    raise NotImplementedError(x)


@captured
def behind_exceptions_of_its_own(x: Tensor, lengths: Tensor) -> Tensor:
    parts = x.split([int(length) for length in lengths.tolist()])
    try:
        scale = {"first": 2.0}["last"]
    except KeyError:
        scale = 3.0
    try:
        return refuse(parts[0])
    except NotImplementedError:
        return torch.cat(parts[::-1]) * scale


@left
def narrowed(x: Tensor, lengths: Tensor) -> Tensor:
    first, second, _ = lengths.tolist()
    return x.narrow(0, first, second).sum(0)


@captured
def most_is_checked(x: Tensor, lengths: Tensor) -> Tensor:
    assert lengths.max().item() <= 90
    return x * 2


@captured
def least_is_checked(x: Tensor, lengths: Tensor) -> Tensor:
    if lengths.min().item() < 0:
        raise ValueError("negative")
    return x.sin()


@captured
def checked_by_a_size(x: Tensor, lengths: Tensor) -> Tensor:
    rows = x.size(0)
    assert lengths.sum().item() == rows, "lengths"
    return x + 1


@captured
def checked_from_the_left(x: Tensor, lengths: Tensor) -> Tensor:
    assert 1 <= (lengths + 1).min().item()
    return x + 1


@left
def asked(x: Tensor, lengths: Tensor) -> Tensor:
    for count in lengths.tolist():
        if count > 4:
            x = x + 1
    return x


@left
def named(x: Tensor, lengths: Tensor) -> tuple[Tensor, str]:
    counts = lengths.tolist()
    return x * 2, {3: "three"}.get(counts[0], "other")


@left
def counted(x: Tensor, lengths: Tensor) -> Tensor:
    for _ in range(lengths.tolist()[0]):
        x = x + 1
    return x


@left
def sorted_before(x: Tensor, lengths: Tensor) -> list[int]:
    return sorted(lengths.tolist())


@left
def drawn_from(x: Tensor, lengths: Tensor) -> list[Tensor]:
    return [part for part in x.split(lengths.tolist()) if len(part) > 3]


@left
def chosen_by_a_number(x: Tensor, lengths: Tensor) -> Tensor:
    return x + 1 if lengths.max().item() > 6 else x - 1


@left
def kept_besides(x: Tensor, lengths: Tensor) -> tuple[Tensor, int]:
    most = lengths.max().item()
    assert most <= 90
    return x * 2, most


@left
def of_floats(x: Tensor, lengths: Tensor) -> Tensor:
    assert x.amax().item() <= 3.5
    return x * 2


@left
def caught(x: Tensor, lengths: Tensor) -> Tensor:
    try:
        assert lengths.max().item() <= 5
    except AssertionError:
        x = x + 1
    return x * 2


@left
def narrowed_or_not(x: Tensor, lengths: Tensor) -> Tensor:
    first, second, _ = lengths.tolist()
    try:
        return x.narrow(0, first, second).sum(0)
    except (IndexError, RuntimeError):
        return x * 3
