"""Small tensor programs: aliasing, in-place changes, metadata, modules and random numbers, compiled as in eager."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scenario import BACKENDS, Registry

scenario = Registry()
Start = Callable[..., Any]


def vector(scale: float = 1.0) -> torch.Tensor:
    return torch.arange(1.0, 7.0) * scale


def matrix() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3)


@scenario
def input_is_returned(start: Start) -> None:
    call = start(lambda x: (x, [x], x + 1))
    call(vector())
    call(vector())


@scenario
def input_is_changed_in_place(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.add_(1)
        x.mul_(2)
        return y, y is x

    call = start(program)
    call(vector())
    call(vector())


@scenario
def view_of_an_input_is_changed(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        view = x[1:3]
        before = x * 1
        view.fill_(9)
        x[0] = 7
        x[-1] += 1
        return view, before, x.sum()

    call = start(program)
    call(vector())
    call(vector())


@scenario
def views_of_inputs_are_returned(start: Start) -> None:
    call = start(lambda x: (x.t(), x[0], x.view(-1), x.reshape(3, 2), x.T.reshape(-1), x.expand(4, 2, 3), x.detach()))
    call(matrix())
    call(matrix().t())


@scenario
def outputs_that_share_memory(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x + 1
        a, b = y.chunk(2)
        a.zero_()
        return y, a, b, y.unsqueeze(0), y

    call = start(program)
    call(vector())
    call(vector())


@scenario
def same_tensor_passed_twice(start: Start) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x += 1
        return x * y, x is y

    call = start(program)
    x = vector()
    call(x, x)
    call(x, vector())


@scenario
def overlapping_inputs(start: Start) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.mul_(2)
        y.add_(1)
        return x + 0, y + 0

    call = start(program)
    base = vector()
    call(base[:4], base[2:])
    call(base[:4], vector()[2:])


@scenario
def strides_are_kept(start: Start) -> None:
    call = start(lambda x: (x + 1, x.relu(), torch.empty_like(x).fill_(0), x.clone(), x.contiguous(), x.sum(0)))
    call(matrix().t())
    call(torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2))
    call(torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last))


@scenario
def dtype_promotion(start: Start) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x + n, x * True, x / 2, x // 2, x**2, x > n, n - x, torch.add(x, n, alpha=2)

    call = start(program)
    for dtype in (torch.int32, torch.float16, torch.float64):
        for n in (2, torch.tensor(1.5, dtype=torch.float64)):
            call(torch.arange(1, 4, dtype=dtype), n)


@scenario
def number_times_tensor_in_place(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        n: Any = 2
        n += x
        n *= 3
        k = 1.0
        k -= x.sum()
        return n, k, x

    call = start(program)
    call(vector())


@scenario
def indexing(start: Start) -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> Any:
        mask = torch.ones(2, dtype=torch.bool)
        return x[0], x[:, 1], x[..., -1], x[None], x[index], x[1:, ::2], x[[0, 1], [1, 2]], x[torch.tensor([1])], mask

    call = start(program)
    call(matrix(), torch.tensor([1, 0]))
    call(matrix(), torch.tensor([0, 0]))


@scenario
def index_assignment(start: Start) -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> Any:
        x[index] = 5
        x[:, 1] = torch.tensor([8.0, 9.0])
        x[0, 0] *= 3
        x[1] += x[0]
        return x.sum()

    call = start(program)
    call(matrix(), torch.tensor([1]))


@scenario
def sizes(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        rows, columns = x.shape
        size = x.size()
        half = x.new_zeros(size[:-1] + (columns // 2,))
        return (
            half,
            size,
            x.numel(),
            x.dim(),
            len(x),
            x.view(x.size(0), -1),
            size == (2, 3),
            rows * x,
            torch.Size([1, rows]),
        )

    call = start(program)
    call(matrix())
    call(torch.ones(4, 4))


@scenario
def control_flow_on_shapes(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        while x.shape[0] > 1:
            x = x[: x.shape[0] // 2] + x[x.shape[0] - x.shape[0] // 2 :]
        if x.dtype == torch.float32 and x.dim() == 1:
            return x * 2
        return x

    call = start(program)
    call(vector())
    call(torch.ones(9))
    call(torch.ones(4, 2))


@scenario
def out_argument(start: Start) -> None:
    def program(x: torch.Tensor, out: torch.Tensor) -> Any:
        y = torch.add(x, 1, out=out)
        return y, y is out, torch.mul(out, 2, out=out)

    call = start(program)
    call(vector(), torch.zeros(6))
    call(vector(), torch.zeros(6))


@scenario
def factories(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        made = torch.tensor([1, 2]), torch.zeros(2), torch.full((2,), 3), torch.arange(3), torch.eye(2)
        return *made, torch.ones_like(x), x.new_tensor([1.5]), torch.linspace(0, 1, 3), torch.tensor(2.5) * x

    call = start(program)
    call(vector())
    torch.set_default_dtype(torch.float64)
    try:
        call(vector())
    finally:
        torch.set_default_dtype(torch.float32)


@scenario
def constants_are_fresh(start: Start) -> None:
    call = start(lambda: torch.tensor([1.0, 2.0]))
    call().add_(5)
    call()


@scenario
def random_numbers(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        noise = torch.rand(3) + torch.randn(3)
        return torch.nn.functional.dropout(x, 0.5), noise, torch.randint(0, 10, (4,)), torch.bernoulli(x / 10)

    call = start(program)
    for _ in range(3):
        call(vector())


@scenario(breaks=True)
def manual_seed_inside(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        torch.manual_seed(7)
        return x + torch.rand(6)

    call = start(program)
    call(vector())
    call(vector())


@scenario
def dropout_module(start: Start) -> None:
    net = torch.nn.Dropout(0.3)
    call = start(lambda x: net(x))
    call(vector())
    call(vector())
    net.eval()
    call(vector())


@scenario
def batch_norm_statistics(start: Start) -> None:
    net = torch.nn.BatchNorm1d(3).requires_grad_(False)
    call = start(lambda x: net(x), net.running_mean, net.running_var, net.num_batches_tracked)
    for scale in (1, 2, 3):
        call(matrix() * scale)
    net.eval()
    call(matrix())


@scenario
def buffers_and_counters(start: Start) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(6))
            self.calls = 0
            self.history: list[Any] = []

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            self.total += x
            self.history.append(self.calls)
            self.total = self.total * 2
            return x + self.total, self.total is self._buffers["total"], list(self.buffers())

    net = Counting()
    call = start(lambda x: net(x), net)
    for _ in range(3):
        call(vector())


@scenario
def module_containers(start: Start) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])
            self.table = torch.nn.ModuleDict({"a": torch.nn.ReLU(), "b": torch.nn.Tanh()})
            self.weights = torch.nn.ParameterList([torch.ones(3), torch.ones(3) * 2])
            self.named = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.ones(3))})

        def forward(self, x: torch.Tensor, name: str) -> Any:
            for index, layer in enumerate(self.layers):
                x = self.table[name](layer(x)) + self.weights[index]
            names = [key for key, _ in self.named_parameters()]
            return x * self.named["w"], len(self.layers), "a" in self.table, names, x.shape

    net = Net().requires_grad_(False)
    call = start(lambda x, name: net(x, name))
    call(matrix(), "a")
    call(matrix(), "b")


@scenario
def hooks_run(start: Start) -> None:
    log: list[str] = []
    net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())
    net[0].register_forward_hook(lambda module, args, output: log.append(type(module).__name__))
    net[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    call = start(lambda x: net(x), log)
    call(vector())
    call(vector())


@scenario
def gradients_flow(start: Start) -> None:
    call = start(lambda x, w: ((x * w).sum(), x * 2))
    w = vector().requires_grad_()
    for _ in range(2):
        loss, _ = call(vector(), w)
        loss.backward()
        start(lambda: w.grad)()


@scenario
def detached_and_no_grad_results(start: Start) -> None:
    def program(w: torch.Tensor) -> Any:
        with torch.no_grad():
            frozen = w * 2
        return w.detach(), frozen, w + 1, w.requires_grad

    call = start(program)
    call(vector().requires_grad_())
    call(vector())


@scenario
def inference_mode(start: Start) -> None:
    linear = torch.nn.Linear(3, 2)

    def program(x: torch.Tensor) -> Any:
        return linear(x) @ torch.ones(2, 2), x.is_inference(), torch.is_inference_mode_enabled()

    call = start(program)
    with torch.inference_mode():
        call(matrix())
        call(matrix())
    with torch.no_grad():
        call(matrix())


@scenario
def weights_changed_behind_their_version(start: Start) -> None:
    linear = torch.nn.Linear(6, 2).requires_grad_(False)
    call = start(lambda x: linear(x))
    call(vector())
    linear.weight.data.mul_(2)
    call(vector())
    linear.weight.numpy()[:] = 1
    call(vector())
    with torch.inference_mode():
        linear.weight.add_(1)
    call(vector())
    linear.double()
    call(vector().double())


@scenario
def identity_of_tensors(start: Start) -> None:
    def program(xs: list[torch.Tensor], x: torch.Tensor) -> Any:
        seen = {x: 1}
        return [y is x for y in xs], x in seen, len({*xs, x}), id(x) == id(x), any(x is y for y in xs), xs[0] + 1

    call = start(program)
    a, b = vector(), vector(2)
    call([a, b], a)
    call([a, b], b)
    call([a, b], vector())


@scenario(breaks=True)
def registries_by_identity(start: Start) -> None:
    layer, other = torch.nn.ReLU(), torch.nn.ReLU()
    table: dict[Any, Any] = {layer: 2}
    call = start(lambda module, x: x * table.get(module, 5) + (module in table))
    call(layer, vector())
    call(other, vector())
    table[other] = 7
    call(other, vector())


@scenario(breaks=True)
def weak_registry(start: Start) -> None:
    layer = torch.nn.ReLU()
    table: Any = weakref.WeakKeyDictionary({layer: 2})
    call = start(lambda x: x * table[layer])
    call(vector())
    table[layer] = 3
    call(vector())


@scenario
def tensor_attributes_of_the_user(start: Start) -> None:
    call = start(lambda x: (x * getattr(x, "scale", 2), hasattr(x, "scale")))
    x = vector()
    call(x)
    x.scale = 3  # type: ignore[attr-defined]
    call.recompiles(x)
    x.scale = 4  # type: ignore[attr-defined]
    call.recompiles(x)


@scenario
def torch_functions_handed_to_c_code(start: Start) -> None:
    call = start(lambda xs: (list(map(torch.sin, xs)), sorted(xs, key=torch.Tensor.dim), max(xs, key=len), xs == xs))
    call([vector(), vector(2)])
    call([vector(2), vector()])


@scenario
def default_of_a_function_that_c_code_calls(start: Start) -> None:
    def scaled(x: torch.Tensor, w: Any = torch.tensor(2.0), *, k: int = 1) -> Any:  # noqa: B008
        return x * w + k

    call = start(lambda xs: list(map(scaled, xs)))
    call([vector(), vector(2)])
    scaled.__defaults__[0].add_(1)  # type: ignore[index]
    call.hits([vector(), vector(2)])
    scaled.__kwdefaults__["k"] = 2
    call.recompiles([vector(), vector(2)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", scenario.scenarios)
def test_program(name: str, backend: str) -> None:
    scenario.check(name, backend)
