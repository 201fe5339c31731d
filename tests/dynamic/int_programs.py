"""Random programs over an int of any sign and a size, and random marks: as source, deterministic by seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

import magneto

#: An int expression, of smaller ones.
SHAPES = ["{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} // {n}", "{a} % {n}", "{a} >> {s}", "-{a}", "abs({a})"]
SHAPES += ["min({a}, {b})", "max({a}, {b})", "{a} // 3 * 3 + {a} % 3", "{a} * 2 - {b}"]
#: What a tensor is made of from them; `{a}` may be of any sign, `{z}` is a size.
USES = [
    "torch.tensor([{a}, {b}, {c}])",
    "torch.tensor({a})",
    "torch.ones({z}) + {a}",
    "torch.full(({z}, 2), {a})",
    "torch.arange({z}) * {a} + {b}",
    "torch.arange({a}, {a} + {z})",
    "torch.zeros(2, {z} + 1).sum(1) + {a}",
    "x + {a}",
    "x * ({a} % 5)",
    "x.sum(0) - {a}",
    "x.new_ones({z}, 3) * {b}",
    "torch.ones({z} + 1, 4).reshape(2, -1) + {a}",
    "(torch.arange(12) + {a}) // 5 + {b}",
    "x[:{z}] * {a}",
    "x.unsqueeze(1).expand(-1, {z}, -1) + {a}",
    "torch.nn.functional.pad(x, ({z}, 1)) + {a}",
]
#: Where the int comes from: the argument `k`, an attribute of a module, a float, a tensor.
ORIGINS = ["k", "k", "m.k", "int(m.f)", "int(k * 1.0)"]
INTS = [2, 7, 3, -1, -4, -9, 0, 1, 5, -2, 64]


class Holder(torch.nn.Module):
    k: int
    f: float


def expression(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(["i", "i", "i", "n", str(rng.choice([1, 2, 3, 5, -1, -3]))])
    shape = rng.choice(SHAPES)
    a, b = expression(rng, depth - 1), expression(rng, depth - 1)
    number, shift = rng.choice([2, 3, 5, 8, -2, -3]), rng.choice([1, 2])
    return "(" + shape.format(a=a, b=b, n=number if number > 0 else f"({number})", s=shift) + ")"


def source(seed: int) -> str:
    rng = random.Random(seed)
    uses = []
    for _ in range(rng.randint(1, 4)):
        a, b, c = (expression(rng, rng.randint(0, 2)) for _ in range(3))
        size = rng.choice(["abs({a}) % 9", "max({a}, 0) % 11", "({a}) % 7", "-min(i, 0)", "max(i, 0)", "abs(i)"])
        uses.append(rng.choice(USES).format(a=a, b=b, c=c, z=f"({size.format(a=a)})"))
    return f"def program(x, k, m):\n    i, n = {rng.choice(ORIGINS)}, x.shape[0]\n    return [{', '.join(uses)}]\n"


def function(text: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, "<random program>", "exec"), scope)
    found: Callable[..., Any] = scope["program"]
    return found


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    try:
        return program(*args)
    except Exception as error:
        return type(error)


def alike(got: Any, want: Any) -> bool:
    if isinstance(got, type) or isinstance(want, type):
        return got is want
    return all(
        a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-6, atol=1e-6)
        for a, b in zip(got, want, strict=True)
    )


def difference(seed: int, backend: str, dynamic: bool | None) -> str:
    """What is unlike eager in the program of this seed; empty if nothing."""
    text = source(seed)
    program = function(text)
    magneto.reset()
    compiled = magneto.compile(program, backend=backend, dynamic=dynamic)
    rng, holder = random.Random(seed), Holder()
    marks = rng.choice([None, None, magneto.mark_dynamic, magneto.mark_unbacked, magneto.maybe_mark_dynamic])
    for number in rng.sample(INTS, 6):
        holder.k, holder.f = number, float(number)
        x = torch.arange(4.0 * rng.choice([2, 3, 5])).reshape(-1, 4)
        want = outcome(program, x, number, holder)
        if marks:
            marks(x, 0)
        got = outcome(compiled, x, number, holder)
        if got is magneto.exc.ConstraintViolation:  # the program is for this size alone
            return ""
        if not alike(got, want):
            return f"{text}\n# {backend}, dynamic={dynamic}, {marks}, k = {number}, {tuple(x.shape)}: {got} for {want}"
    return ""


if __name__ == "__main__":
    import sys

    for one in range(int(sys.argv[1]), int(sys.argv[2])):
        for kind in ("magneto", "aot_eager", "eager"):
            found_one = difference(one, kind, [True, None, False][one % 3])
            if found_one:
                print(f"seed {one}:\n{found_one}\n", flush=True)
