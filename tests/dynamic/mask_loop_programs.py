"""Functions with loops over the places where a mask holds: those that are one graph, and those that are not."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from program_table import ProgramTable

Tensor = torch.Tensor
ENTRIES, TOKENS, WIDTH = 4, 6, 3
captured = CAPTURED = ProgramTable()
left = LEFT = ProgramTable()
# Operators ask of sizes what not all data answer alike.
MAY_BE_UNDONE = {"flattened", "skips_where_a_turn_may_be_empty", "raises_in_the_last_turn", "raises"}


# Each is given x (tokens, width), chosen (tokens): the entry of each token, w (entries, width, width), hit: mask of entries.


@captured
def index_add(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        (token,) = torch.where(chosen == row[0])
        out.index_add_(0, token, x[token] @ w[row[0]])
    return out


@captured
def raises_in_the_last_turn(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    try:
        for row in hit.nonzero():
            out += 1
            with torch.no_grad():
                out += w[:-1][row[0]].sum()
    except IndexError:
        return out - 1
    return out


@captured
def row_of_one(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        token = torch.where(chosen == row)[0]
        out.index_add_(0, token, (x[None, token].reshape(-1, WIDTH) @ w[row].squeeze(0)).relu())
    return out


@captured
def as_tuple(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in hit.nonzero(as_tuple=True)[0]:
        token = torch.where(chosen == e)[0]
        out.index_add_(0, token, x[token] @ w[e])
    return out


@captured
def squeezed(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = x.sin()
    for e in hit.nonzero().squeeze(-1):
        out.mul_(w[e].sum()).add_(e)
    return out


@captured
def flattened(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.ones_like(x)
    for e in torch.where(hit)[0].view(-1, 1):
        out *= w[e[0]].mean(0)
    return out.cos()


@captured
def numbers(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    scales = [0.5, 1.5, -2.0, 3.0]
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        e = int(row.item())
        out += x * scales[e] + e
    return out


@captured
def texts(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    table = {f"entry_{i}": i * 1.5 for i in range(ENTRIES)}
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        out += x @ w[row[0]] * table[f"entry_{row[0]}"]
    return out


@captured
def rebound(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    total = x.new_zeros(TOKENS, WIDTH)
    for row in hit.nonzero():
        total = total + x @ w[row[0]]
    return total * 2


@captured
def two_rebound(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> tuple[Tensor, Tensor]:
    total, most = x.sum(), x.amax() - 9
    for row in hit.nonzero():
        y = x @ w[row[0]]
        total, most = total * 0.5 + y.sum(), torch.maximum(most, y.amax())
    return total, most


@captured
def skips(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        e = row.item()
        if e % 2:
            continue
        out += x @ w[e]
    return out


@captured
def skips_empty(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in torch.bincount(chosen, minlength=ENTRIES)[:ENTRIES].nonzero():
        token = torch.where(chosen == row)[0]
        if token.numel() == 0:
            continue
        out.index_add_(0, token, x[token] @ w[row[0]])
    return out


@captured
def skips_where_a_turn_may_be_empty(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        token = torch.where(chosen == row)[0]
        if len(token) > 0:
            out.index_add_(0, token, x[token] @ w[row[0]])
        else:
            out += 1
    return out


@captured
def two_kinds(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        e = int(row)
        token = torch.where(chosen == e)[0]
        y = x[token] if e >= 2 else torch.nn.functional.linear(x[token], w[e])
        out.index_add_(0, token, y)
    return out


@captured
def nested(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for a in hit.nonzero():
        for b in (chosen[:ENTRIES] > 1).nonzero():
            out[a[0]] += w[a[0], :, 0] * w[b[0], 0] + b
        out *= 1.5
    return out


@captured
def items(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = x.new_zeros(ENTRIES, WIDTH)
    for row in hit.nonzero():
        out[row[0]] = x.sum(0) * w[row[0], 0]
    return out


@captured
def through_a_view(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        out.view(-1)[int(row) :: 2].add_(w[row[0]].sum())
        out.t()[0] *= 2
    return out


@captured
def made_in_a_turn(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        part = x @ w[row[0]]
        part[part < 0] = 0
        parts = [part, part * 2]
        parts.append(part.sin())
        out += sum(parts)
    return out


@captured
def without_gradients(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        row = row[0]
        with torch.no_grad():
            token = torch.where(chosen == row)[0]
        out.index_add_(0, token, x[token] * w[row, 0])
    return out


@captured
def one_after_the_other(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    rows = hit.nonzero()
    out = torch.zeros_like(x)
    for row in rows:
        out += w[row[0], 0]
    for row in rows:
        out *= w[row[0], 1]
    else:
        out -= 1
    return out + len(w)


@captured
def layers(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    for layer in range(3):
        x = index_add(x, (chosen + layer) % ENTRIES, w, hit.roll(layer)) + x
    return x


@captured
def other_masks(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for mask in (hit.long() * 3, hit.float() - 1, hit.to(torch.uint8)):
        for e in mask.nonzero():
            out += x @ w[e[0]] + e
    return out


@left
def columns(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = x.new_zeros(WIDTH, TOKENS).t()
    for row in hit.nonzero():
        out += (x @ w[row[0]]).t().contiguous().t()
    return out


@captured
def set_before(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in range(2):
        token = chosen == row
        out += x * token[:, None]
    for row in hit.nonzero():
        token = chosen == row
        out += x @ w[row[0]] * token[:, None]
    return out


@left
def leaves(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        out += x @ w[row[0]]
        if int(row) == 1:
            break
    return out


@left
def returns(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    for row in hit.nonzero():
        if int(row) > 0:
            return x @ w[row[0]]
    return x


@left
def collects(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> list[Tensor]:
    found = []
    for row in hit.nonzero():
        found.append(x @ w[row[0]])
    return found


@left
def counts(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> tuple[Tensor, int]:
    out, turns = torch.zeros_like(x), 0
    for row in hit.nonzero():
        turns += 1
        out += w[row[0], 0]
    return out, turns


@left
def keeps_the_last(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> tuple[Tensor, Tensor | None]:
    out, last = torch.zeros_like(x), None
    for row in hit.nonzero():
        last = w[row[0]] * 2
        out += last[0]
    return out, last


@left
def uses_the_last(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    y = x
    for row in hit.nonzero():
        y = y @ w[row[0]]
    return y


@left
def shares(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> tuple[Tensor, Tensor]:
    start = torch.zeros_like(x)
    total = start
    for row in hit.nonzero():
        total = total + w[row[0], 0]
    total += 1
    return start, total


@left
def writes_an_argument(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    for row in hit.nonzero():
        w[row[0]] += 1
    return x @ w[0]


@left
def writes_in_a_list(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> list[Tensor]:
    outs = [torch.zeros_like(x), torch.ones_like(x)]
    for row in hit.nonzero():
        outs[int(row) % 2] += w[row[0], 0]
    return outs


@left
def writes_part(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    base = x.new_zeros(2, TOKENS, WIDTH)
    out = base[0]
    del base
    for row in hit.nonzero():
        out += w[row[0], 0]
    return out


@left
def draws(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        out += torch.dropout(x @ w[row[0]], 0.5, True)
    return out + torch.rand(())


@left
def seeds(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    for row in hit.nonzero():
        torch.manual_seed(int(row))
    return x + torch.rand(())


@left
def changes_modes(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> tuple[Tensor, bool]:
    before = torch.is_grad_enabled()
    for row in hit.nonzero():
        torch.set_grad_enabled(int(row) > 1)
    after = torch.is_grad_enabled()
    torch.set_grad_enabled(before)
    return x * 2, after


@left
def changes_what_it_goes_over(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    rows = hit.nonzero()
    out = torch.zeros_like(x)
    for row in rows:
        out += row
        rows.add_(1)
    return out


@left
def fills_a_dict(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    for row in hit.nonzero():
        found[int(row)] = w[row[0]].sum()
    return found


@left
def closes_over(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    total = torch.zeros_like(x)

    def now() -> Tensor:
        return total * 2

    for row in hit.nonzero():
        total = total + w[row[0], 0]
    return now()


@left
def looks_at_locals(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> list[str]:
    for row in hit.nonzero():
        y = w[row[0]] * 2
        del y
    return sorted(locals())


@captured
def raises(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    try:
        for row in hit.nonzero():
            out += w[row[0], 0]
            if int(row) == 2:
                raise KeyError
    except KeyError:
        out += 100
    return out


@captured
def lacks(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    table = {0: 1.0, 1: 2.0, 2: 3.0}
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        out += table.get(int(row)) or len(table[3 - int(row)].hex())
    return out


@left
def changed_order(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero().flip(0):
        out = out * 2 + w[row[0], 0]
    return out


@left
def of_two_dimensions(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for a, b in (x > 0).nonzero():
        out += w[b % ENTRIES, 0] * a
    return out


def rows_of(hit: Tensor) -> Iterator[Tensor]:
    for row in hit.nonzero():
        yield row[0]


@left
def generated(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in rows_of(hit):
        out = out + w[e, 0]
    return out


@left
def numbered(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i, row in enumerate(hit.nonzero()):
        out += w[row[0], 0] * i
    return out


@captured
def asks(x: Tensor, chosen: Tensor, w: Tensor, hit: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in hit.nonzero():
        if x.sum() > int(row):
            out += w[row[0], 0]
    return out
