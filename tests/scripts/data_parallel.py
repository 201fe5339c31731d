"""One of two processes that train together, in each way in eager and compiled: prints how far they are apart."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import magneto
from magneto import _testing

Wrap = Callable[[nn.Module, Callable[..., Any]], Any]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.norm(self.mix(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.BatchNorm1d(16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(3))
        self.head, self.unused = nn.Linear(16, 4), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.scale(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def ddp_of_compiled(net: nn.Module, compile: Callable[..., Any], **arguments: Any) -> Any:
    return DistributedDataParallel(compile(net), find_unused_parameters=True, **arguments)


def compiled_ddp(net: nn.Module, compile: Callable[..., Any], unused: bool = True, **arguments: Any) -> Any:
    if not unused:
        net.unused.requires_grad_(False)  # type: ignore[operator, union-attr]
    return compile(DistributedDataParallel(net, find_unused_parameters=unused, **arguments))


def small_buckets(net: nn.Module, compile: Callable[..., Any], hook: Any = None, **arguments: Any) -> Any:
    """Each of few gradients: the backward runs in many parts."""
    parallel = compiled_ddp(net, compile, bucket_cap_mb=0.001, **arguments)
    if hook is not None:
        getattr(parallel, "_orig_mod", parallel).register_comm_hook(None, hook)
    return parallel


def optimizers_in_backward(net: nn.Module, compile: Callable[..., Any]) -> Any:
    """Each parameter is written by a hook as soon as it has its gradient."""

    def step(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=1e-2)  # type: ignore[arg-type]

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    return small_buckets(net, compile, unused=False)


def step_inside(net: nn.Module, compile: Callable[..., Any]) -> Any:
    parallel = DistributedDataParallel(net, find_unused_parameters=True)
    step = compile(lambda x: parallel(x).square())

    def call(x: torch.Tensor) -> torch.Tensor:
        return step(x).sqrt()

    call.parameters, call.no_sync = parallel.parameters, parallel.no_sync  # type: ignore[attr-defined]
    return call


def fully_sharded(net: nn.Module, compile: Callable[..., Any], whole: bool = False, **arguments: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    arguments["mesh"] = init_device_mesh("cpu", (2,))  # also where there are GPUs
    for i, block in enumerate(net.blocks):  # type: ignore[arg-type]
        net.blocks[i] = block if whole else compile(block)  # type: ignore[index]
        fully_shard(net.blocks[i], **arguments)  # type: ignore[index]
    fully_shard(net, **arguments)
    return compile(net) if whole else net


#: What wraps the model, and how many graphs there are.
WAYS: dict[str, tuple[Wrap, int]] = {
    "DDP of a compiled module": (ddp_of_compiled, 2),
    "compiled DDP": (compiled_ddp, 2),
    "small buckets": (small_buckets, 2),
    "small buckets, all used": (lambda net, compile: small_buckets(net, compile, unused=False), 2),
    "small buckets, static": (lambda net, compile: small_buckets(net, compile, static_graph=True), 2),
    "small buckets, views": (lambda net, compile: small_buckets(net, compile, gradient_as_bucket_view=True), 2),
    "small buckets, hook": (lambda net, compile: small_buckets(net, compile, hook=fp16_compress_hook), 2),
    "small buckets around": (lambda net, compile: ddp_of_compiled(net, compile, bucket_cap_mb=0.001), 2),
    "optimizers in the backward": (optimizers_in_backward, 2),
    "gradients as views of buckets": (lambda net, compile: compiled_ddp(net, compile, gradient_as_bucket_view=True), 2),
    "compiled step": (step_inside, 4),
    "FSDP2 of compiled blocks": (fully_sharded, 6),
    "FSDP2, kept": (lambda net, compile: fully_sharded(net, compile, reshard_after_forward=False), 6),
    "FSDP2, compiled whole": (lambda net, compile: fully_sharded(net, compile, whole=True), 10),
}

IN_PARTS = {name for name in WAYS if name.startswith("small buckets")} | {"optimizers in the backward"}


def train(wrap: Wrap, compile: Callable[..., Any], rank: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = Net()
    parallel = wrap(net, compile)
    optimizer = torch.optim.AdamW(parallel.parameters(), 1e-2)
    losses = []
    for i in range(6):
        torch.manual_seed(10 * i + rank)
        waits = i == 3 and hasattr(parallel, "no_sync")  # gradients of two steps are exchanged together
        with parallel.no_sync() if waits else nullcontext():
            loss = (parallel(torch.randn(3 + i % 3, 16)) - 1).square().mean()
            loss.backward()
        losses.append(loss.detach())
        if not waits:
            optimizer.step()
            optimizer.zero_grad()
    return [*losses, *(buffer.float() for buffer in net.buffers())]


class Chain(nn.Module):
    """Three weights, each a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def events_of(around: bool, **arguments: Any) -> list[str]:
    """What happens in a backward: a part begins (all but the first), the exchange of a bucket begins."""
    torch.manual_seed(0)
    net: Any = Chain()
    parallel: Any = DistributedDataParallel(magneto.compile(net) if around else net, bucket_cap_mb=0.003, **arguments)
    call = parallel if around else magneto.compile(parallel)
    events: list[str] = []

    def exchange(state, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations
        events.append(f"bucket {bucket.index() + 1}")
        return allreduce_hook(state, bucket)

    parallel.register_comm_hook(None, exchange)
    for _ in range(3):  # DDP makes its buckets anew for the second one
        events.clear()
        result = call(torch.randn(4, 32))
        node, part = result.grad_fn, 1
        while followers := [n for n, _ in node.next_functions if n and n.name() == "CompiledFunctionBackwardPart"]:
            node, part = followers[0], part + 1
            node.register_prehook(lambda gradients, part=part: events.append(f"part {part}"))
        result.sum().backward()
    return events


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    magneto.config.strict = True
    outcome: dict[str, Any] = {}
    for name, (wrap, _) in WAYS.items():
        magneto.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, found = train(wrap, lambda f: f, rank), train(wrap, magneto.compile, rank)
        stats = magneto.stats()
        far = max(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True))
        outcome[name] = (
            far,
            stats["graphs"],
            dict(stats["no_joint"]),
            list(stats["break_reasons"]),
            stats["bucket_parts"],
        )
    magneto.reset()
    outcome["events"] = {
        "around": events_of(around=True),
        "compiled": events_of(around=False),
        "views": events_of(around=False, gradient_as_bucket_view=True),
    }
    outcome["parts"] = magneto.stats()["bucket_parts"]
    magneto.reset()
    with magneto.config.patch(optimize_ddp=False):
        outcome["events"]["off"] = events_of(around=False)
    outcome["kernels"] = _testing.kernel_stats()
    print(json.dumps(outcome))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
