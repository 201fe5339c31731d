"""Tensors of any layout that are written and then viewed: random programs, and the views one by one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

COUNT = int(os.environ.get("MAGNETO_RANDOM_PROGRAMS", "60"))
BACKENDS = ["magneto", "aot_eager", "eager"]

#: Strided, with gaps, transposed, with an offset: of 4 x 8 elements.
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda m: m[: 4 * 8].view(4, 8),
    "gaps": lambda m: m[: 4 * 16].view(4, 16)[..., ::2],
    "rows": lambda m: m[: 8 * 8].view(8, 8)[::2],
    "transposed": lambda m: m[: 8 * 4].view(8, 4).t(),
    "transposed_gaps": lambda m: m[: 8 * 8].view(8, 8)[:, ::2].t(),
    "offset": lambda m: m[5 : 5 + 4 * 8].view(4, 8),
    "part": lambda m: m[: 4 * 12].view(4, 12)[:, 2:10],
    "both": lambda m: m[: 8 * 16].view(8, 16)[::2, 1::2],
}
WRITES = [
    "x.mul_(2)",
    "x.add_(1)",
    "x[0] = 5.0",
    "x[:, 1].mul_(3)",
    "x.t().add_(x.t())",
    "x.view_as(x).sub_(1)",
    "x[::2].zero_()",
    "x.reshape(-1)[3:7].add_(4)",
    "x.unsqueeze(0).neg_()",
    "x[..., 1:3].copy_(x[..., 3:5].clone())",
    "x.diagonal().fill_(9)",
    "x.transpose(0, 1)[2].mul_(2)",
    "x.clamp_(max=40)",
]
VIEWS = [
    "x.reshape(-1)",
    "x.reshape(8, 4)",
    "x.reshape(2, 2, 8)",
    "x.reshape(2, 2, 2, 4)",
    "x.reshape(4, 2, 4)",
    "x.flatten()",
    "x.flatten(0, 1)",
    "x.unflatten(1, (2, 4))",
    "x.unflatten(0, (2, 2))",
    "x.view(4, 2, 4)",
    "x.view(2, 2, 8)",
    "x.view(4, 8)",
    "x.unsqueeze(1)",
    "x.unsqueeze(1).squeeze(1)",
    "x.t()",
    "x.t().reshape(-1)",
    "x[1]",
    "x[:, 2:5]",
    "x[:, ::3]",
    "x.narrow(1, 1, 4)",
    "x.select(1, 2)",
    "x.expand(2, 4, 8)",
    "x.permute(1, 0)",
    "x.movedim(0, 1)",
    "x.diagonal()",
    "x.unbind(1)[2]",
    "x.split(3, 1)[1]",
    "x.chunk(2)[1]",
    "x.tensor_split(3, 1)[1]",
    "x.unfold(1, 3, 2)",
    "x.mT",
    "x.ravel()",
    "x.as_strided((2, 3), (1, 2))",
    "x.swapaxes(0, 1)",
    "x.view_as(x)",
    "x.detach()",
    "x.hsplit(2)[1]",
    "x.reshape(4, 8)",
    "x.contiguous()",
    "x.reshape(x.shape[1], -1)",
]


def program_of(lines: list[str], result: str) -> Callable[..., Any]:
    text = "def program(x):\n" + "".join(f"    {line}\n" for line in lines) + f"    return {result}\n"
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, "<written>", "exec"), scope)
    scope["program"].text = text
    program: Callable[..., Any] = scope["program"]
    return program


def outcome(program: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    try:
        found = program(x)
    except Exception as error:
        return [type(error)]
    results = list(found) if isinstance(found, tuple) else [found]
    geometry = [(r.shape, r.stride(), r.storage_offset() if r._base is not None else None) for r in results]
    shares = [r.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for r in results]
    return [*results, geometry, shares]


def difference(program: Callable[..., Any], layout: str, backend: str, dynamic: bool, dtype: torch.dtype) -> str:
    memory = torch.arange(1, 161).to(dtype)
    ours, theirs = memory.clone(), memory.clone()
    magneto.reset()
    want = outcome(program, LAYOUTS[layout](theirs))
    got = outcome(magneto.compile(program, backend=backend, dynamic=dynamic), LAYOUTS[layout](ours))
    same = len(want) == len(got) and torch.equal(ours, theirs)
    for a, b in zip(got, want, strict=False):
        same = same and (torch.equal(a, b) if isinstance(b, torch.Tensor) and isinstance(a, torch.Tensor) else a == b)
    return "" if same else f"{program.text}{layout} {backend} {dynamic} {dtype}: {got} for {want}, {ours} for {theirs}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_view_of_what_was_written(layout: str, backend: str) -> None:
    for view in VIEWS:
        cases = [(["x.mul_(2)"], f"({view}) * 2"), ([f"y = {view}", "x.add_(1)"], "y * 2, x + 0")]
        for lines, result in [*cases, ([f"y = {view}"], "x * 2, y"), (["x = x * 2", f"y = {view}"], "y")]:
            found = difference(program_of(lines, result), layout, backend, False, torch.float32)
            assert not found, found


def random_difference(seed: int, backend: str, dynamic: bool) -> str:
    rng = random.Random(seed)
    lines, names = [], ["x"]
    for i in range(rng.randint(1, 5)):
        at = rng.choice(names)
        if rng.random() < 0.5:
            lines.append(
                rng.choice(WRITES).replace("x", at) if at == "x" else f"{at}.{rng.choice(['mul_(2)', 'add_(1)'])}"
            )
            if at != "x" and rng.random() < 0.3:
                lines[-1] = f"{at}[..., :1].add_(3)"
        else:
            lines.append(f"y{i} = {rng.choice(VIEWS)}")
            names.append(f"y{i}")
    results = [f"{rng.choice(names)} * {k + 2}" for k in range(rng.randint(1, 2))]
    if rng.random() < 0.5:
        results.append(rng.choice(names))
    dtype = rng.choice([torch.float32, torch.float32, torch.int64, torch.float64])
    if rng.random() < 0.2:
        lines.insert(0, "x = x.clone()")
    return difference(program_of(lines, ", ".join(results)), rng.choice(list(LAYOUTS)), backend, dynamic, dtype)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_programs(backend: str, dynamic: bool) -> None:
    first = (BACKENDS.index(backend) + 3 * dynamic) * 100_000
    for seed in range(first, first + COUNT):
        found = random_difference(seed, backend, dynamic)
        assert not found, f"seed {seed}: {found}"


if __name__ == "__main__":
    import sys

    for one in range(int(sys.argv[1]), int(sys.argv[2])):
        text = random_difference(one, BACKENDS[one % 3], one % 2 == 1)
        if text:
            print(f"seed {one}: {text}", flush=True)
