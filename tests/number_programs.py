"""Programs whose numbers differ from turn to turn, for test_numbers.py. TURNS is far above any limit on captures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

TURNS = 60
PROGRAMS: list[Callable[..., Any]] = []


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(function)
    return function


@program
def counter_and_list(x):
    i, out = 0, []
    for _ in range(TURNS):
        x = x * 0.99
        i += 1
        out.append(x.sum().item())
    return x, i, out


@program
def while_with_sums(x):
    total, i = 0.0, 0
    while i < TURNS:
        x = x * 0.99
        total += x.sum().item()
        total = total / 2 - 1
        i = i + 1
    return x, total, i


@program
def nested_loops(x):
    count, rows = 0, []
    for i in range(8):
        row = []
        for j in range(TURNS // 8):
            x = x + 0.5
            row.append(x.sum().item() * i - j)
            count += j
        rows.append(row)
        rows.append(count)
    return x, rows, count


@program
def comprehension(x):
    return [(x * k).sum().item() + k for k in range(TURNS)]


@program
def counter_in_an_operator(x):
    i = 0
    while i < TURNS:
        x = x * i - i
        x = x.clamp(-1, 1)
        x.sum().item()
        i += 1
    return x


@program
def counter_as_an_index(x):
    parts = [x * k for k in range(TURNS)]
    total, i = x, 0
    while i < TURNS:
        total = total + parts[i] + x[i % 3]
        total.sum().item()
        i += 1
    return total


@program
def counter_in_a_text(x):
    texts, named, i = [], {}, 0
    while i < TURNS:
        x = x + 1
        x.sum().item()
        texts.append(f"turn {i:03d}")
        named[f"turn {i}"] = i
        named[i] = x
        i += 1
    return x, texts, named


@program
def counter_in_a_range(x):
    i = 0
    while i < 12:
        x.sum().item()
        for _ in range(i):
            x = x + 0.25
        i += 1
    return x


@program
def list_that_is_read(x):
    out, ends, lengths = [0.5], [], []
    for _ in range(TURNS):
        x = x * 0.99
        out.append(x.sum().item())
        ends.append(out[-1] - out[0])
        lengths.append(len(out))
    return x, out, ends, lengths, sum(out), max(out), sorted(out)


@program
def list_that_is_summed_each_turn(x):
    out, sums = [], []
    for _ in range(20):
        x = x * 0.99
        out.append(x.sum().item())
        sums.append(sum(out) / len(out))
    return x, sums


@program
def least_so_far(x):
    best, since, stopped = math.inf, 0, None
    for turn in range(TURNS):
        x = torch.sin(x * 1.7 + turn)
        loss = x.sum().item()
        if loss < best:
            best, since = loss, 0
        else:
            since += 1
        if since > 12:
            stopped = turn
            break
    return x, best, since, stopped


@program
def int_that_becomes_a_float(x):
    total = 0
    for _ in range(TURNS):
        total += x.sum().item()
        x = x + 1
    return total, x


@program
def numbers_that_grow(x):
    big, small = 1, 1.0
    for _ in range(TURNS):
        big = big * 7 + 1
        small = -small / 3
        x = x + 1
        x.sum().item()
    return x, big, small, -big


@program
def division_by_a_counter(x):
    left, found = 5, []
    for _ in range(TURNS):
        x = x + 1
        x.sum().item()
        left -= 1
        try:
            found.append(10 // left)
            found.append(10 % left)
        except ZeroDivisionError as error:
            found.append(str(error))
    return x, found


@program
def questions_about_a_counter(x):
    i, found = 0, []
    while i < TURNS:
        x = x + 1
        x.sum().item()
        found.append((isinstance(i, int), type(i) is int, i is None, i == 3, i != 3.0, not i, i % 7 == 0, -i))
        i += 1
    return x, found


@program
def functions_of_a_counter(x):
    i, found = 0, []
    while i < TURNS:
        x = x + 1
        value = x.sum().item()
        found.append((min(i, 5), abs(-i), float(i), int(value), round(value, 2), divmod(i, 4), i**2, i & 3, ~i, str(i)))
        i += 1
    return x, found


@program
def containers_of_a_counter(x):
    i, found, seen = 0, [], set()
    while i < TURNS:
        x = x + 1
        x.sum().item()
        pair = (i, i + 1)
        found.append({"pair": pair, "list": [i, *pair], "in": i in (3, 4), "equal": pair == (3, 4)})
        seen.add(i)
        i += 1
    return x, found, seen


@program
def counter_as_a_shape(x):
    i, found = 1, []
    while i < 12:
        x.sum().item()
        found.append(torch.full((i,), float(i)))
        found.append(torch.arange(i) + torch.tensor([i, i]).sum())
        i += 1
    return found


class Counter:
    def __init__(self):
        self.turns = 0
        self.total = 0.0


@program
def counter_in_an_attribute(x):
    counter = Counter()
    for _ in range(TURNS):
        x = x * 0.99
        counter.turns += 1
        counter.total += x.sum().item()
    return x, counter.turns, counter.total


@program
def counter_in_a_closure(x):
    count, total = 0, 0.0

    def step(y):
        nonlocal count, total
        count += 1
        total += y.sum().item()
        return y * 0.99

    for _ in range(TURNS):
        x = step(x)
    return x, count, total


@program
def counter_in_a_called_function(x):
    def inner(y, i, total):
        y = y + 1
        total = total + y.sum().item()
        return y, i + 1, total

    i, total = 0, 0.0
    while i < TURNS:
        x, i, total = inner(x, i, total)
    return x, i, total


@program
def lists_that_alias(x):
    out = []
    both, out2 = [out, out], out
    for _ in range(TURNS):
        x = x * 0.99
        both[0].append(x.sum().item())
        out2.append(len(both[1]))
    return x, out, both, out2


@program
def list_of_tensors(x):
    out = []
    for _ in range(12):
        x = x * 0.99
        out.append(x)
        x.sum().item()
    return torch.stack(out), out


@program
def counter_beside_tensors(x):
    i, found = 1, []
    whole, mask, half = x.long(), x > 1, x.bfloat16()
    while i < 12:
        scale = x.sum().item() / 3 + i
        x = x * 0.5
        found += [x * i, i * x, x - i, i - x, x + i, i + x, x / i, i / x, x // i, x % i, x**i, x > i, i > x, x == i]
        found += [whole * i, i - whole, whole / i, whole // i, whole == i, mask * i, mask + i, half * i, i - half]
        found += [x * scale, scale - x, whole * scale, scale / whole, half * scale, half + scale, x[0] * scale]
        y = x.clone()
        y += i
        y *= scale
        y -= scale
        y /= i
        z = i
        z += x
        found += [y, z, x.t() * scale if x.dim() == 2 else scale * x[::2]]
        i += 1
    return found
