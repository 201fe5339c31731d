"""One of some processes that run programs with DTensors, in eager and compiled: prints what differs."""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from compare import difference
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import magneto
from magneto import _test_settings

RANK, SIZE = (int(sys.argv[1]), int(sys.argv[3])) if __name__ == "__main__" else (0, 1)
Program = Callable[..., Any]
# The program, and its arguments of a turn: they are leaves. Of a module the parameters too.
PROGRAMS: dict[str, Callable[[], tuple[Program, Callable[[int], tuple[Any, ...]]]]] = {}


def program(make: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[make.__name__] = make
    return make


def plain(turn: int, rows: int = 4) -> torch.Tensor:
    return torch.arange(4.0 * rows).view(rows, 4) * (RANK + 1) / 8 + turn


def spread(turn: int, *placements: Any, shape: tuple[int, ...] = (8, 4)) -> DTensor:
    torch.manual_seed(turn)
    return distribute_tensor(torch.randn(shape), MESH, list(placements))


def of_one(function: Program, *placements: Any) -> tuple[Program, Callable[[int], tuple[Any, ...]]]:
    return function, lambda turn: (spread(turn, *placements),)


@program
def computed() -> Any:
    return of_one(lambda d: (d * 2 + 1).sin(), Shard(0))


@program
def local() -> Any:
    return of_one(lambda d: (d * 2).to_local() + 1, Shard(1))


@program
def made_from_local() -> Any:
    return lambda x: DTensor.from_local(x * 2, MESH, [Shard(0)]), lambda turn: (plain(turn),)


@program
def there_and_back() -> Any:
    return lambda x: DTensor.from_local(x * 2, MESH, [Shard(0)]).to_local() + 1, lambda turn: (plain(turn),)


@program
def sum_of_partial() -> Any:
    def function(x: Any) -> Any:
        return DTensor.from_local(x * 2, MESH, [Partial()]).redistribute(MESH, [Replicate()]).to_local() + 1

    return function, lambda turn: (plain(turn),)


@program
def redistributed() -> Any:
    return of_one(lambda d: (d * 2).redistribute(placements=[Replicate()]).to_local() * 3, Shard(0))


@program
def sharded_otherwise() -> Any:
    return of_one(lambda d: (d * 2).redistribute(placements=[Shard(1)]).to_local() * 3, Shard(0))


@program
def full() -> Any:
    return of_one(lambda d: (d.exp() + 1).full_tensor() * 2, Shard(0))


@program
def sums() -> Any:
    return of_one(lambda d: (d.sum(0).full_tensor(), d.mean().full_tensor(), d.sum(1).to_local()), Shard(0))


@program
def products() -> Any:
    def function(a: Any, b: Any) -> Any:
        return (a @ b).full_tensor()

    return function, lambda turn: (spread(turn, Shard(1)), spread(turn + 9, Shard(0), shape=(4, 6)))


@program
def views() -> Any:
    return of_one(lambda d: (d.view(8, 2, 2).transpose(1, 2).reshape(8, 4) + 1).to_local(), Shard(0))


@program
def joined() -> Any:
    def function(a: Any, b: Any) -> Any:
        return torch.cat([a, b * 2], 1).to_local(), F.softmax(a, -1).to_local()

    return function, lambda turn: (spread(turn, Shard(0)), spread(turn + 9, Shard(0)))


@program
def written() -> Any:
    def function(d: Any) -> Any:
        d = d.detach()
        d.add_(1).mul_(2)
        return d * 2, d.to_local()

    return of_one(function, Shard(0))


@program
def stepped() -> Any:
    """As an optimizer does it."""

    def function(d: Any) -> Any:
        if d.grad is not None:
            with torch.no_grad():
                d.add_(d.grad, alpha=-0.1)
        return d.detach().to_local() * 2

    def given(turn: int) -> tuple[DTensor]:
        leaf = spread(turn, Shard(0)).requires_grad_()
        leaf.grad = spread(turn + 1, Shard(0))
        return (leaf,)

    return function, given


@program
def asked() -> Any:
    def function(d: Any) -> Any:
        facts = d.placements, d.device_mesh.size(), d.shape, d.placements[0].is_shard(), d.placements[0] == Shard(0)
        return d.to_local() * 2, facts, isinstance(d, DTensor), type(d)

    return of_one(function, Shard(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = (each(x).view(batch, length, -1, 2).transpose(1, 2) for each in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


class Attention(Heads):
    def forward(self, x: Any) -> Any:
        return x + super().forward(x)


def parallel(module: Callable[[], nn.Module], plan: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    made = parallelize_module(module(), MESH, plan)

    def given(turn: int) -> tuple[torch.Tensor]:
        torch.manual_seed(turn)
        return (torch.randn(2, 4, 8),)

    return made, given


@program
def tensor_parallel() -> Any:
    return parallel(Net, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})


@program
def attention_in_parallel() -> Any:
    plan = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "o": RowwiseParallel()}
    return parallel(Attention, plan)


@program
def sequence_parallel() -> Any:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: Any) -> Any:
            return self.net.narrow(F.relu(self.net.wide(self.net.norm(x))))

    plan = {
        "net.norm": SequenceParallel(),
        "net.wide": ColwiseParallel(input_layouts=Shard(1)),
        "net.narrow": RowwiseParallel(output_layouts=Replicate()),
    }
    return parallel(Block, plan)


@program
def embedded() -> Any:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8))

    plan = {"0": ColwiseParallel(output_layouts=Replicate()), "1": ColwiseParallel(output_layouts=Replicate())}
    return parallel(make, plan)


@program
def module_input_prepared() -> Any:
    def make() -> nn.Module:
        return nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)))

    plan = {
        "0": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
        "0.0": ColwiseParallel(use_local_output=False),
        "0.2": RowwiseParallel(use_local_output=False),
    }
    return parallel(make, plan)


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.first, self.second, self.last = (nn.RMSNorm(8) for _ in range(3))
        self.heads, self.net = Heads(), nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Any) -> Any:
        x = self.embedding((x[..., 0] * 100).long() % 16)
        x = x + self.heads(self.first(x))
        return self.out(self.last(x + self.net(self.second(x))))


def whole_input() -> PrepareModuleInput:
    return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))


LLAMA = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    **{norm: SequenceParallel() for norm in ("first", "second", "last")},
    "heads": whole_input(),
    **{f"heads.{name}": ColwiseParallel() for name in "qkv"},
    "heads.o": RowwiseParallel(output_layouts=Shard(1)),
    "net": whole_input(),
    "net.0": ColwiseParallel(),
    "net.2": RowwiseParallel(output_layouts=Shard(1)),
    "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


class Pieces(nn.Module):
    """The first gives a DTensor, of which the second is made."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Net(), Net()

    def forward(self, x: Any) -> Any:
        x = F.relu(self.first.narrow(self.first.wide(x)))
        return self.second.narrow(self.second.wide(x * 2))


PIECES = {
    "first.wide": ColwiseParallel(),
    "first.narrow": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    "second.wide": ColwiseParallel(input_layouts=Shard(1)),
    "second.narrow": RowwiseParallel(use_local_output=False),
}


@program
def embedded_by_rows() -> Any:
    plan = {"1": LLAMA["embedding"], "2": LLAMA["out"]}
    return parallel(lambda: nn.Sequential(Picked(), nn.Embedding(16, 8), nn.Linear(8, 8)), plan)


class Picked(nn.Module):
    def forward(self, x: Any) -> Any:
        return (x[..., 0] * 100).long() % 16


@program
def given_on() -> Any:
    return parallel(Pieces, PIECES)


@program
def added_in_place() -> Any:
    return of_one(lambda d: (d * 2).add_(1).mul_(3).rsqrt() * d.pow(2).mean(1, keepdim=True).add_(1).rsqrt(), Shard(0))


@program
def with_and_without_history() -> Any:
    return of_one(lambda d: (d.detach() + 1, d * 2, d), Shard(0))


def varying(made: tuple[Any, Callable[[int], Any]], dim: int) -> Any:
    """Tensors of another size in each turn."""
    rows = {1: 4, 2: 8, 3: 12}
    function, given = made

    def of_turn(turn: int) -> Any:
        return tuple(torch.cat([x.narrow(dim, 0, 1) / 4] * rows[turn], dim) + torch.randn(8) / 4 for x in given(turn))

    return function, of_turn


@program
def parallel_of_any_batch() -> Any:
    return varying(tensor_parallel(), 0)


@program
def parallel_of_any_length() -> Any:
    return varying(tensor_parallel(), 1)


@program
def attention_of_any_length() -> Any:
    return varying(attention_in_parallel(), 1)


@program
def llama_of_any_length() -> Any:
    return varying(parallel(Llama, LLAMA), 1)


@program
def given_on_of_any_length() -> Any:
    return varying(parallel(Pieces, PIECES), 1)


@program
def local_of_any_size() -> Any:
    def function(x: Any) -> Any:
        d = DTensor.from_local(x * 2, MESH, [Shard(0)])
        return d.sum(1).full_tensor() + d.shape[0], d.redistribute(placements=[Replicate()]).mean(), d.t().to_local()

    return function, lambda turn: (plain(turn, 2 * turn),)


@program
def handed_on_at_an_exit() -> Any:
    def function(x: Any) -> Any:
        d = DTensor.from_local(x * 2, MESH, [Shard(0)])
        SEEN.append(str(d.shape))  # an exit
        print(end="")
        return (d * d).full_tensor()

    return function, lambda turn: (plain(turn, 2 * turn),)


SEEN: list[str] = []
EXITS = {"handed_on_at_an_exit"}
# Of which gradients have other strides than what they are of. (Where torch calls run under autograd, backend="eager",
# each of them is an exit.)
GRADIENT_EXITS = {"joined", "sums"}
# A mask that is in a DTensor is not handed on: a segment that would end there is left to CPython.
MASKED = {"embedded_by_rows", "llama_of_any_length"}
# In so many graphs: of the first size, and of any.
VARYING = {name for name in PROGRAMS if name.endswith(("of_any_batch", "of_any_length", "of_any_size"))}


def said(value: Any) -> Any:
    """Without what waits when it is used, and DTensors as what they are."""
    if isinstance(value, DTensor):
        return (
            "DTensor",
            str(value.placements),
            tuple(value.shape),
            value.stride(),
            value.requires_grad,
            said(local_of(value)),
        )
    if isinstance(value, torch.Tensor):
        waited = value.wait() if type(value).__name__ == "AsyncCollectiveTensor" else value
        return waited.detach().requires_grad_(value.requires_grad)
    if isinstance(value, (tuple, list)):
        return tuple(said(each) for each in value)
    return value


def local_of(tensor: Any) -> Any:
    return tensor.detach().to_local()


def outcome(function: Program, arguments: tuple[Any, ...], parameters: Any, gradients: bool) -> Any:
    arguments = tuple(each.requires_grad_() if gradients else each for each in arguments)
    with torch.set_grad_enabled(gradients):
        try:
            result = function(*arguments)
        except Exception as error:
            return type(error), str(error)
        results = result if isinstance(result, tuple) else (result,)
        for each in results:
            if isinstance(each, torch.Tensor) and each.requires_grad:
                whole = each.full_tensor() if isinstance(each, DTensor) else each
                (whole**2).sum().backward(retain_graph=True)
        found = said(result), [said(each.grad) for each in (*arguments, *parameters)], said(arguments)
        for each in parameters:
            each.grad = None
    return said(found)


def compare(name: str, backend: str, every: int, gradients: bool) -> tuple[str, int, int]:
    magneto.reset()
    problems = []
    function, given = PROGRAMS[name]()
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    with _test_settings.patch(exit_every=every), magneto.config.patch(cache_size_limit=1000):
        compiled = magneto.compile(function, backend=backend)
        for turn in (1, 2, 3):
            want = outcome(function, given(turn), parameters, gradients)
            problems.append(difference(outcome(compiled, given(turn), parameters, gradients), want))
    stats = magneto.stats()
    fallbacks = set(stats["fallbacks"]) - ({"Rebuild"} if every and name in MASKED else set())
    assert not fallbacks, (name, stats["fallbacks"])
    if sys.argv[4:]:
        print(name, backend, every, gradients, stats["break_reasons"], file=sys.stderr)
    return "; ".join(filter(None, problems)), sum(stats["break_reasons"].values()), stats["graphs"]


def changed() -> list[str]:
    """Calls that differ from the one that was captured."""
    magneto.reset()
    other = init_device_mesh("cpu", (SIZE,))

    def function(d: Any) -> Any:
        return (d * 2).full_tensor() + d.to_local().sum(), d.placements

    compiled = magneto.compile(function)
    given = [spread(1, Shard(0)), spread(2, Shard(1)), spread(3, Replicate()), spread(4, Shard(0), shape=(16, 4))]
    given += [distribute_tensor(torch.randn(8, 4), other, [Shard(0)]), spread(5, Shard(0)).double(), plain(1)]
    given += [DTensor.from_local(plain(2), MESH, [Partial()]), DTensor.from_local(plain(2), MESH, [Partial("max")])]
    problems = []
    for turn, each in enumerate([*given, *given]):
        found = []
        for called in (function, compiled):
            try:
                found.append(said(called(each)))
            except Exception as error:
                found.append((type(error), str(error)))
        if problem := difference(*reversed(found)):
            problems.append(f"{turn}: {problem}")
    return problems


WAYS = [(backend, 0, gradients) for gradients in (False, True) for backend in ("magneto", "aot_eager", "eager")]
WAYS += [("magneto", 7, False), ("aot_eager", 5, True)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=SIZE)
    MESH = init_device_mesh("cpu", (SIZE,))
    outcomes: dict[str, list[Any]] = {}
    for each in sys.argv[4:] or PROGRAMS:
        for way in WAYS[::3] if SIZE > 2 else WAYS:
            try:
                outcomes.setdefault(each, []).append([*way, *compare(each, *way)])
            except Exception:
                outcomes.setdefault(each, []).append([*way, traceback.format_exc(), 0, 0])
    outcomes["changed"] = changed()
    distributed.destroy_process_group()
    print(json.dumps(outcomes))
