"""One of some processes that run programs with collectives, in eager and compiled: prints what differs."""

from __future__ import annotations

import inspect
import json
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from compare import difference
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

import magneto
from magneto import _test_settings

RANK, SIZE = (int(sys.argv[1]), int(sys.argv[3])) if __name__ == "__main__" else (0, 1)
PROGRAMS: dict[str, Callable[..., Any]] = {}
raw = torch.ops._c10d_functional


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[function.__name__] = function
    return function


def world() -> Any:
    return distributed.group.WORLD


@program
def reduced(x: Any) -> Any:
    return collectives.all_reduce(x * 2, "sum", world()) ** 2 + x


@program
def reduced_by_ranks(x: Any) -> Any:
    return collectives.all_reduce(x * 2, "sum", list(range(SIZE))) + 1


@program
def reduced_by_name(x: Any) -> Any:
    return collectives.all_reduce(x.detach() * 2, "max", world().group_name) + 1


@program
def reduced_by_mesh(x: Any) -> Any:
    return collectives.all_reduce(x * 2, "sum", MESH) * collectives.all_reduce(x.detach(), "AVG", (MESH, 0))


@program
def waited(x: Any) -> Any:
    return collectives.wait_tensor(collectives.all_reduce(x, "sum", world())) * 3


@program
def gathered(x: Any) -> Any:
    return collectives.all_gather_tensor(x * 2, 0, world()) ** 2


@program
def gathered_in_columns(x: Any) -> Any:
    return collectives.all_gather_tensor_autograd(x * 2, 1, world()) ** 2


@program
def scattered(x: Any) -> Any:
    return collectives.reduce_scatter_tensor((x * 2).repeat(SIZE, 1), "sum", 0, world()) ** 2


@program
def scattered_in_columns(x: Any) -> Any:
    return collectives.reduce_scatter_tensor_autograd((x * 2).repeat(1, SIZE), "sum", 1, world()) ** 2


@program
def exchanged(x: Any) -> Any:
    return collectives.all_to_all_single((x * 2).repeat(SIZE, 1), None, None, world()) ** 2


@program
def exchanged_in_parts(x: Any) -> Any:
    given, taken = [each + 1 for each in range(SIZE)], [RANK + 1] * SIZE
    rows = (x * 2).repeat(SIZE * SIZE, 1)[: sum(given)]
    return collectives.all_to_all_single_autograd(rows, taken, given, world()) ** 2


@program
def sent_from_one(x: Any) -> Any:
    return collectives.broadcast(x.detach() * (RANK + 1), SIZE - 1, world()) + x


@program
def permuted(x: Any) -> Any:
    return collectives.permute_tensor(x.view(-1) * 2, [(each + 1) % SIZE for each in range(SIZE)], world()) ** 2


@program
def several_reduced(x: Any) -> Any:
    left, right = collectives.all_reduce_coalesced([x * 2, x + 1], "sum", world())
    return left * right


@program
def several_gathered(x: Any) -> Any:
    left, right = collectives.all_gather_into_tensor_coalesced([x * 2, x + 1], world())
    return left * right


@program
def several_scattered(x: Any) -> Any:
    rows = [(x * 2).repeat(SIZE, 1), (x + 1).repeat(SIZE, 1)]
    left, right = collectives.reduce_scatter_tensor_coalesced(rows, "sum", [0, 0], world())
    return left * right


@program
def chained(x: Any) -> Any:
    whole = collectives.all_gather_tensor_autograd(x.exp(), 0, world())
    part = collectives.reduce_scatter_tensor_autograd(whole * whole, "sum", 0, world())
    return collectives.all_reduce(part, "sum", world()) * x, part


@program
def under_way_while_others_compute(x: Any) -> Any:
    y = raw.all_gather_into_tensor(x.detach() * 2, SIZE, world().group_name)
    z = (x + 1).relu()
    raw.wait_tensor(y)
    return y * y, z


@program
def result_unused(x: Any) -> Any:
    collectives.all_reduce(x.detach() * 2, "sum", world())
    return x + 1


@program
def result_written(x: Any) -> Any:
    y = collectives.all_reduce(x.detach() * 2, "sum", world())
    y.add_(1)
    y[0] = 5
    return y


@program
def result_as_it_is(x: Any) -> Any:
    return collectives.all_reduce(x.detach(), "sum", world())


@program
def transposed(x: Any) -> Any:
    y = x.detach().t()
    return collectives.all_reduce(y * 2, "sum", world()), collectives.all_gather_tensor(y, 0, world())


@program
def given_under_way(x: Any) -> Any:
    y = raw.wait_tensor(x)
    y.add_(1)
    return x * 2


@program
def numbers_of_the_group(x: Any) -> Any:
    numbers = (
        distributed.get_rank(), distributed.get_world_size(), world().rank(), world().size(), MESH.size(), MESH.ndim,
        MESH.get_rank(), MESH.get_local_rank(), MESH.get_group().size(), MESH.get_coordinate()[0],
        distributed.get_rank(world()), distributed.get_process_group_ranks(world()), distributed.is_initialized(),
        distributed.get_backend(),
    )  # fmt: skip
    return x * numbers[0] + numbers[1], numbers


@program
def reduced_in_place(x: Any) -> Any:
    y = x.detach() * 2
    return distributed.all_reduce(y), y + x


@program
def reduced_in_place_by_others(x: Any) -> Any:
    y, z, i = x.detach() + 1, x.detach() * 1, (x.detach() * 3).long()
    distributed.all_reduce(y, distributed.ReduceOp.PRODUCT, world())
    distributed.all_reduce(z, op=distributed.ReduceOp.MAX)
    distributed.all_reduce(i, distributed.ReduceOp.MIN)
    return y, z, i


@program
def argument_reduced_in_place(x: Any) -> Any:
    part = x.detach()[0]
    distributed.all_reduce(part)
    return x.detach() + 1


@program
def reduced_under_autograd(x: Any) -> Any:
    y = x * 2
    distributed.all_reduce(y)
    return y * y


@program
def leaf_reduced(x: Any) -> Any:
    distributed.all_reduce(x)
    return x * 2


@program
def sent_in_place(x: Any) -> Any:
    y = x.detach() * (RANK + 1)
    distributed.broadcast(y, SIZE - 1)
    distributed.broadcast(y, group_src=0, group=world())
    return y + 1


@program
def gathered_into(x: Any) -> Any:
    y = x.new_empty(SIZE * x.shape[0], x.shape[1])
    distributed.all_gather_into_tensor(y, x.detach() * 2)
    return y + 1


@program
def scattered_into(x: Any) -> Any:
    y = torch.empty_like(x.detach())
    distributed.reduce_scatter_tensor(y, (x.detach() * 2).repeat(SIZE, 1))
    return y + 1


@program
def exchanged_into(x: Any) -> Any:
    rows = (x.detach() * 2).repeat(SIZE, 1)
    y = torch.empty_like(rows)
    distributed.all_to_all_single(y, rows)
    return y + 1


@program
def gathered_in_a_list(x: Any) -> Any:
    pieces = [torch.empty_like(x.detach()) for _ in range(SIZE)]
    distributed.all_gather(pieces, x.detach() * 2)
    return torch.cat(pieces) + 1


@program
def number_reduced(x: Any) -> Any:
    y = x.detach().sum()
    distributed.all_reduce(y)
    return y / SIZE, collectives.all_reduce(x.sum(), "sum", world()) + 1


@program
def index_out_of_range(x: Any) -> Any:
    y = collectives.all_reduce(x.detach(), "sum", world())
    return y[torch.tensor([7])]


@program
def index_out_of_range_handled(x: Any) -> Any:
    y = collectives.all_reduce(x.detach(), "sum", world())
    try:
        y = y[(x[0, :1] * 0 + 77).long()]
    except IndexError:
        y = y + 1
    return collectives.all_reduce(y, "sum", world()) + 0


@program
def one_process_handles_an_error(x: Any) -> Any:
    y = collectives.all_reduce(x.detach(), "sum", world())
    z = collectives.all_gather_tensor(x.detach() * 3, 0, world()).sum(0)
    try:
        y = y[(x[0, :1].detach() * 0 + (77 if distributed.get_rank() == 0 else 0)).long()]
    except IndexError:
        y = y[:1] + 1
    return collectives.all_reduce(y, "sum", world()) + z


@program
def one_process_handles_an_error_in_place(x: Any) -> Any:
    y, z = x.detach() * 2, x.detach() + 1
    distributed.all_reduce(y)
    distributed.broadcast(z, SIZE - 1)
    several = collectives.all_reduce_coalesced([y, z], "sum", world())
    try:
        y = y[(x[0, :1].detach() * 0 + (77 if distributed.get_rank() == 0 else 0)).long()]
    except IndexError:
        y = y[:1] + 1
    distributed.all_reduce(y)
    return y + z.sum() + several[0] - several[1]


# With an exit.
@program
def asynchronous(x: Any) -> Any:
    y = x.detach() * 2
    work = distributed.all_reduce(y, async_op=True)
    work.wait()
    return y + 1


@program
def one_process_prints(x: Any) -> Any:
    y = collectives.all_reduce(x.detach(), "sum", world())
    if distributed.get_rank() == 0:
        print(end="")
        y = y + 1
    return collectives.all_reduce(y, "sum", world()) + 0


@program
def complex_reduced_in_place(x: Any) -> Any:
    y = torch.complex(x.detach(), x.detach())
    distributed.all_reduce(y)
    return y + 1


@program
def strided_reduced_in_place(x: Any) -> Any:
    distributed.all_reduce(x.detach().t())
    return x * 2


EXITS = {"asynchronous", "one_process_prints", "complex_reduced_in_place", "strided_reduced_in_place"}
if "has_torch_function" not in inspect.unwrap(distributed.broadcast).__code__.co_names:  # before PyTorch 2.13
    EXITS |= {"sent_in_place", "one_process_handles_an_error_in_place"}


def plain(value: Any) -> Any:
    if isinstance(value, collectives.AsyncCollectiveTensor):
        return value.wait()
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return value


def outcome(function: Callable[..., Any], name: str, x: torch.Tensor) -> Any:
    """What it gives, the gradient, and what became of the argument."""
    x = x.clone()
    if name == "given_under_way":
        x = raw.all_reduce(x, "sum", world().group_name)
    elif name not in ("argument_reduced_in_place",):
        x.requires_grad_()
    try:
        result = plain(function(x))
    except Exception as error:
        return type(error), str(error), x.detach()
    results = result if isinstance(result, tuple) else (result,)
    needing = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
    if needing:
        sum(each.sum() for each in needing).backward()
    return results, x.grad, x.detach()


def compare(name: str, backend: str, every: int, dynamic: bool | None) -> tuple[str, int]:
    function, problems = PROGRAMS[name], []
    magneto.reset()
    with _test_settings.patch(exit_every=every), magneto.config.patch(cache_size_limit=1000):
        compiled = magneto.compile(function, backend=backend, dynamic=dynamic)
        for rows in (2, 2, 5, 3):
            x = torch.arange(3.0 * rows).view(rows, 3) * (RANK + 1) / 4 + rows
            want, got = outcome(function, name, x), outcome(compiled, name, x)
            problems.append(difference(got, want))
    stats = magneto.stats()
    assert not stats["fallbacks"], (name, stats["fallbacks"])
    return "; ".join(filter(None, problems)), sum(stats["break_reasons"].values())


# Backend, a forced exit after how many instructions, dynamic.
WAYS: list[tuple[str, int, bool | None]] = [("magneto", 0, None), ("aot_eager", 0, None), ("eager", 0, None)]
WAYS += [("magneto", 0, True), ("magneto", 7, None), ("aot_eager", 3, None)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=SIZE)
    MESH = init_device_mesh("cpu", (SIZE,))
    found: dict[str, list[Any]] = {}
    for each in sys.argv[4:] or PROGRAMS:
        for way in WAYS[:1] if SIZE > 2 else WAYS:
            try:
                found.setdefault(each, []).append([*way, *compare(each, *way)])
            except Exception:
                found.setdefault(each, []).append([*way, traceback.format_exc(), 0])
    distributed.destroy_process_group()
    print(json.dumps(found))
