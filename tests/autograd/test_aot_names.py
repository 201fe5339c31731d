"""aot_autograd's names: compilers of users get the forward and the backward of Magneto's own joint graph as torch.fx."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import magneto
from magneto import _aot, exc

aten = torch.ops.aten


class Halves:
    """Compilers that keep their graphs, and run them as they are."""

    def __init__(self) -> None:
        self.graphs: dict[str, list[torch.fx.GraphModule]] = {"forward": [], "backward": [], "inference": []}

    def of(self, half: str) -> Callable[[torch.fx.GraphModule, list[Any]], Any]:
        def compiler(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            self.graphs[half].append(gm)
            assert len(inputs) == len([node for node in gm.graph.nodes if node.op == "placeholder"])
            return gm

        return compiler

    def backend(self, **others: Any) -> Any:
        named = {"forward": "fw_compiler", "backward": "bw_compiler", "inference": "inference_compiler"}
        return _aot.aot_autograd(**{name: self.of(half) for half, name in named.items()}, **others)

    def one(self, half: str) -> torch.fx.GraphModule:
        (graph,) = self.graphs[half]
        return graph


def placeholders(gm: torch.fx.GraphModule) -> list[str]:
    return [node.name for node in gm.graph.nodes if node.op == "placeholder"]


def targets(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def returned(gm: torch.fx.GraphModule) -> list[str]:
    out = next(node for node in gm.graph.nodes if node.op == "output")
    return [str(item) for item in out.args[0]]


def check_functional(gm: torch.fx.GraphModule) -> None:
    """ATen operators that write nothing."""
    for target in targets(gm):
        if isinstance(target, torch._ops.OpOverload):
            assert not target._schema.is_mutable, target


# -- PyTorch's tutorial of AOTAutograd


@pytest.fixture
def installed() -> Iterator[None]:
    magneto.install()
    yield
    magneto.uninstall()


def tutorial(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return (a + b + c + d).cos().cos()


def leaves(count: int, *size: int) -> list[Tensor]:
    return [torch.randn(*size, requires_grad=True) for _ in range(count)]


def test_the_tutorials_function(installed: None, capsys: pytest.CaptureFixture[str]) -> None:
    from functorch.compile import aot_function

    def print_graph(fx_module: torch.fx.GraphModule, inputs: Any) -> Any:
        print(fx_module.code)
        return fx_module

    inputs, clones = leaves(4, 2, 4), []
    clones = [x.clone().detach().requires_grad_(True) for x in inputs]
    compiled = aot_function(tutorial, fw_compiler=print_graph, bw_compiler=print_graph)
    got, want = compiled(*clones), tutorial(*inputs)
    assert torch.equal(got, want)
    got.sum().backward()
    want.sum().backward()
    assert all(torch.equal(x.grad, y.grad) for x, y in zip(clones, inputs, strict=True))  # type: ignore[arg-type]
    text = capsys.readouterr().out
    forward, backward = text.split("def forward")[1:]
    assert "primals_1, primals_2, primals_3, primals_4" in forward and "torch.ops.aten.cos.default" in forward
    assert "tangents_1" in backward and "torch.ops.aten.sin.default" in backward
    assert text.count("torch.ops.aten.add.Tensor") == 3


def test_the_tutorials_partition(installed: None) -> None:
    from functorch.compile import aot_function, min_cut_rematerialization_partition, nop

    inputs, clones = leaves(4, 2, 4), []
    clones = [x.clone().detach().requires_grad_(True) for x in inputs]
    compiled = aot_function(tutorial, nop, nop, partition_fn=min_cut_rematerialization_partition)
    compiled(*clones).sum().backward()
    tutorial(*inputs).sum().backward()
    torch.testing.assert_close([x.grad for x in clones], [x.grad for x in inputs])


def test_every_name_is_there(installed: None) -> None:
    import functorch.compile as names
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import compilers, partitioners
    from torch._functorch.aot_autograd import aot_module_simplified

    assert aot_autograd is _aot.aot_autograd and aot_module_simplified is names.aot_module_simplified
    assert compilers.nop is names.nop and partitioners.default_partition is names.default_partition
    x = torch.randn(3, requires_grad=True)
    for fn in (
        names.compiled_function(torch.sin, names.nop, names.nop),
        names.aot_function(torch.sin, names.print_compile),
        names.memory_efficient_fusion(torch.sin),
        names.memory_efficient_fusion(torch.sin, fw_compiler=names.nop, bw_compiler=names.nop),
    ):
        (gradient,) = torch.autograd.grad(fn(x).sum(), x)
        torch.testing.assert_close(gradient, x.cos())
    model = nn.Linear(3, 2)
    for module in (names.aot_module(model, names.nop), names.compiled_module(model, names.nop, names.nop)):
        assert isinstance(module, nn.Module) and torch.equal(module(x), model(x))
        assert set(module.parameters()) == set(model.parameters())
    with pytest.raises(exc.NotYet, match="ts"):
        names.ts_compile(None, None)


def test_a_backend_by_its_name(installed: None) -> None:
    halves = Halves()
    torch._dynamo.register_backend(halves.backend(), name="halves")  # type: ignore[no-untyped-call]
    x = torch.randn(3, requires_grad=True)
    torch.compile(lambda x: x.sin(), backend="halves")(x).sum().backward()
    torch.testing.assert_close(x.grad, x.cos())
    assert len(halves.graphs["forward"]) == len(halves.graphs["backward"]) == 1
    magneto._backends._registered.pop("halves")


# -- the graphs


def test_the_form_of_the_graphs() -> None:
    halves = Halves()

    def program(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return (a * b).sin(), b.exp()

    a, b = torch.randn(3), torch.randn(3, requires_grad=True)
    one, two = magneto.compile(program, backend=halves.backend(), fullgraph=True)(a, b)
    forward, backward = halves.one("forward"), halves.one("backward")
    assert isinstance(forward, torch.fx.GraphModule) and not halves.graphs["inference"]
    assert placeholders(forward) == ["primals_1", "primals_2"]
    assert targets(forward) == [aten.mul.Tensor, aten.sin.default, aten.exp.default]
    assert returned(forward)[:2] == ["sin", "exp"]
    saved = returned(forward)[2:]
    assert placeholders(backward) == [*saved, "tangents_1", "tangents_2"]
    assert returned(backward)[0] == "None" and len(returned(backward)) == 2
    for node in forward.graph.nodes:
        if node.op != "output":
            assert node.meta["val"].shape == (3,) and node.meta["val"].dtype is torch.float32
    (one.sum() + two.sum()).backward()
    want = b.detach().clone().requires_grad_(True)
    sum(x.sum() for x in program(a, want)).backward()  # type: ignore[union-attr]
    assert torch.equal(b.grad, want.grad)  # type: ignore[arg-type]


def test_inference_has_a_graph_of_its_own() -> None:
    halves = Halves()
    compiled = magneto.compile(lambda x, y: x.sin() + y, backend=halves.backend(), fullgraph=True)
    x, y = torch.randn(2, 3)
    assert torch.equal(compiled(x, y), x.sin() + y)
    assert placeholders(halves.one("inference")) == ["arg0_1", "arg1_1"]
    assert not halves.graphs["forward"]
    with torch.no_grad():
        compiled(x.requires_grad_(True), y)
    assert len(halves.graphs["inference"]) == 2
    assert not _aot.aot_autograd(fw_compiler=halves.of("forward")).compile("inference", forward_of_nothing(), [], "")[2]
    assert len(halves.graphs["forward"]) == 1


def forward_of_nothing() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(())
    return torch.fx.GraphModule(nn.Module(), graph)


Program = Callable[..., Any]


def in_place(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y.add_(1)
    return y.tanh_()


def writes_an_input(x: Tensor, w: Tensor) -> Tensor:
    x.mul_(2)
    return x * w


def counts(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    x += 1
    return x, (w * x).sum()


def views(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y = x * w
    return x, x.t(), y, y[1:]


def one_view(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).t()


def writes_a_view(x: Tensor, w: Tensor) -> Tensor:
    x.t()[0].add_(w.detach().sum())
    return x[1:] * w


def same_twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = w.sin()
    return y, y, w.cos() * 2


def saves_its_result(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).exp()


def softmax(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w.expand(4, 4), -1).log()


def unused(x: Tensor, w: Tensor) -> Tensor:
    return w * 2


def integers(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (x * w).argmax(-1), (x * w).amax(-1)


def dropped(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x * w, 0.5)


PROGRAMS = [
    in_place,
    writes_an_input,
    counts,
    views,
    one_view,
    writes_a_view,
    same_twice,
    saves_its_result,
    softmax,
    unused,
    integers,
    dropped,
]


def flat(out: Any) -> list[Tensor]:
    return list(out) if isinstance(out, tuple) else [out]


def observe(fn: Program, w: Tensor) -> list[Any]:
    torch.manual_seed(1)
    x = torch.arange(16.0).reshape(4, 4) / 7
    w = w.detach().clone().requires_grad_(w.requires_grad)
    out = flat(fn(x, w))
    seen: list[Any] = [x.detach().clone(), x._version]
    for one in out:
        seen += [one.detach().clone(), one.requires_grad, one.stride(), one._version]
    seen += [[a.data_ptr() == b.data_ptr() for a in [x, *out]] for b in [x, *out]]
    loss = sum((one * (i + 1)).sum() for i, one in enumerate(out) if one.requires_grad)
    if isinstance(loss, Tensor):
        loss.backward()
    return [*seen, w.grad, torch.rand(2)]


@pytest.mark.parametrize("partition", [_aot.default_partition, _aot.min_cut_rematerialization_partition])
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Program, trains: bool, partition: Any) -> None:
    halves = Halves()
    compiled = magneto.compile(program, backend=halves.backend(partition_fn=partition), fullgraph=True)
    w = torch.linspace(-1, 1, 4).requires_grad_(trains)
    for _ in range(2):
        got, want = observe(compiled, w), observe(program, w)
        for one, other in zip(got, want, strict=True):
            if isinstance(one, Tensor) and partition is _aot.default_partition:
                assert torch.equal(one, other)
            elif isinstance(one, Tensor):
                torch.testing.assert_close(one, other)
            else:
                assert one == other
    stats = magneto.stats()
    assert not stats["no_joint"] and not stats["uncompiled"]
    for graphs in halves.graphs.values():
        for graph in graphs:
            check_functional(graph)
    assert bool(halves.graphs["backward"]) == trains


def test_graphs_may_write_their_inputs_where_that_is_asked_for() -> None:
    halves = Halves()
    compiled = magneto.compile(counts, backend=halves.backend(keep_inference_input_mutations=True), fullgraph=True)
    w = torch.linspace(-1, 1, 4)
    got, want = observe(compiled, w), observe(counts, w)
    torch.testing.assert_close(got, want)
    assert targets(halves.one("inference"))[-1] is aten.copy_.default
    assert len(returned(halves.one("inference"))) == 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


@pytest.mark.parametrize("partition", [_aot.default_partition, _aot.min_cut_rematerialization_partition])
def test_a_module_with_buffers(partition: Any) -> None:
    torch.manual_seed(0)
    model = Net()
    other = Net()
    other.load_state_dict(model.state_dict())
    halves = Halves()
    compiled = magneto.compile(model, backend=halves.backend(partition_fn=partition), fullgraph=True)
    for mode in (True, True, False):
        x = torch.randn(2, 3, 8, 8)
        model.train(mode), other.train(mode)
        got, want = compiled(x), other(x)
        torch.testing.assert_close(got, want)
        got.square().sum().backward()
        want.square().sum().backward()
        torch.testing.assert_close(model.state_dict(), other.state_dict())
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])
    assert len(halves.graphs["forward"]) == 2
    for graph in halves.graphs["forward"]:
        check_functional(graph)


@pytest.mark.parametrize("partition", [_aot.default_partition, _aot.min_cut_rematerialization_partition])
def test_dynamic_sizes(partition: Any) -> None:
    halves = Halves()

    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin().reshape(-1).cumsum(0) / x.shape[0]

    compiled = magneto.compile(program, backend=halves.backend(partition_fn=partition), fullgraph=True, dynamic=True)
    w = torch.randn(3, 5, requires_grad=True)
    for rows in (4, 7, 9):
        x = torch.randn(rows, 3, requires_grad=True)
        got, want = compiled(x, w), program(x, w)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.autograd.grad(got.sum(), (x, w)), torch.autograd.grad(want.sum(), (x, w)))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, w), want)
    forward, backward = halves.one("forward"), halves.one("backward")
    count = len(forward.graph.find_nodes(op="placeholder"))
    assert placeholders(forward) == [f"primals_{i + 1}" for i in range(count)]
    numbers = [node.name for node in forward.graph.nodes if isinstance(node.meta.get("val"), int)]
    assert numbers and "primals_1" in numbers and len(returned(backward)) == count
    halves.one("inference")


# -- backends as people write them


def test_a_pass_over_the_graphs() -> None:
    """Each `mul` becomes an addition, in the forward and in the backward."""

    def rewrite(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        for node in gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
            node.target = aten.add.Tensor
        gm.graph.lint()
        gm.recompile()
        return gm

    x = torch.randn(3, requires_grad=True)
    out = magneto.compile(lambda x: x * 3, backend=_aot.aot_autograd(fw_compiler=rewrite))(x)
    assert torch.equal(out, x + 3)
    out.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 4.0))  # type: ignore[arg-type]


def test_a_backend_that_hands_its_graph_on() -> None:
    halves = Halves()

    def mine(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return _aot.aot_module_simplified(
            gm, inputs, fw_compiler=halves.of("forward"), bw_compiler=halves.of("backward")
        )

    def also_mine(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return halves.backend()(gm, inputs)

    for backend in (mine, also_mine):
        model = nn.Linear(3, 2)
        compiled = magneto.compile(model, backend=backend)
        x = torch.randn(4, 3)
        out = compiled(x)
        assert torch.equal(out, model(x))
        out.sum().backward()
        got = model.weight.grad
        (want,) = torch.autograd.grad(model(x).sum(), model.weight)
        assert torch.equal(got, want)  # type: ignore[arg-type]
    assert len(halves.graphs["forward"]) == len(halves.graphs["backward"]) == 2


def test_boxed_functions() -> None:
    taken: list[int] = []

    def boxed(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(args: list[Any]) -> Any:
            taken.append(len(args))
            values = list(args)
            args.clear()
            return gm(*values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    x = torch.randn(3, requires_grad=True)
    magneto.compile(lambda x: x.sin(), backend=_aot.aot_autograd(fw_compiler=boxed))(x).sum().backward()
    assert taken == [1, 2] and torch.equal(x.grad, x.cos())  # type: ignore[arg-type]


def refuses(gm: torch.fx.GraphModule, inputs: Any) -> Any:
    raise ValueError("not this one")


def gives_nothing(gm: torch.fx.GraphModule, inputs: Any) -> Any:
    return None


def runs(gm: torch.fx.GraphModule, inputs: Any) -> Any:
    return gm


def returns_too_much(gm: torch.fx.GraphModule, inputs: Any) -> Any:
    return lambda *args: [*gm(*args), args[0]]


def raises_later(gm: torch.fx.GraphModule, inputs: Any) -> Any:
    def run(*args: Any) -> Any:
        raise KeyError("later")

    return run


def sine(x: Tensor) -> Tensor:
    return x.sin()


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_errors_name_the_compiler_and_the_half(half: str) -> None:
    def backend(compiler: Any) -> Any:
        return _aot.aot_autograd(**{"fw_compiler": runs, f"{half[0]}w_compiler": compiler})

    x = torch.randn(3, requires_grad=True)
    with pytest.raises(
        exc.BackendFailed, match=rf"(?s)refuses \(.*ValueError.*the {half} of sine.*not this one"
    ) as failed:
        magneto.compile(sine, backend=backend(refuses))(x)
    assert isinstance(failed.value.__cause__, ValueError)
    with pytest.raises(exc.BackendFailed, match=rf"gives_nothing .*the {half} of sine"):
        magneto.compile(sine, backend=backend(gives_nothing))(x)
    with pytest.raises(exc.BackendFailed, match=rf"returns_too_much .*the {half} of sine.* returned .* results"):
        magneto.compile(sine, backend=backend(returns_too_much))(x).sum().backward()
    with pytest.raises(KeyError, match="later"):
        magneto.compile(sine, backend=backend(raises_later))(x).sum().backward()


def test_wrong_arguments() -> None:
    with pytest.raises(exc.InvalidValue, match="fw_compiler"):
        _aot.aot_autograd()
    with pytest.raises(exc.InvalidValue, match="compiler of the backward"):
        _aot.aot_autograd(fw_compiler=runs, bw_compiler=3)


# -- partitions of the program's own


def recomputes_nothing_saves_inputs(joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int) -> Any:
    """All of the forward runs again in the backward: a partition as people write it, with torch.fx alone."""
    nodes = list(joint.graph.nodes)
    primals = [node for node in nodes if node.op == "placeholder" and "tangents" not in str(node.target)]
    tangents = [node for node in nodes if node.op == "placeholder" and "tangents" in str(node.target)]
    numbers = [node for node in primals if isinstance(node.meta["val"], int)]
    primals = [*numbers, *(node for node in primals if node not in numbers)]
    results = list(nodes[-1].args[0])

    def part(given: list[torch.fx.Node], wanted: list[Any], saved: list[Any]) -> torch.fx.GraphModule:
        graph, env = torch.fx.Graph(), {}
        for node in given:
            env[node] = graph.node_copy(node, env.__getitem__)
        needed = {node for node in wanted if node is not None}
        for node in reversed(nodes):
            if node in needed:
                needed |= set(node.all_input_nodes)
        for node in nodes:
            if node in needed and node not in env:
                env[node] = graph.node_copy(node, env.__getitem__)
        graph.output(tuple(None if node is None else env[node] for node in [*wanted, *saved]))
        return torch.fx.GraphModule(joint, graph)

    kept = [node for node in primals if node not in numbers]
    forward = part([n for n in nodes if n in primals], results[:num_fwd_outputs], [*kept, *numbers])
    return forward, part([*primals, *tangents], results[num_fwd_outputs:], [])


# What is drawn or written must not be computed again.
REPEATABLE = [program for program in PROGRAMS if program not in (dropped, writes_an_input, counts)]


@pytest.mark.parametrize("program", REPEATABLE, ids=lambda program: program.__name__)
def test_a_partition_of_the_programs_own(program: Program) -> None:
    halves = Halves()
    backend = halves.backend(partition_fn=recomputes_nothing_saves_inputs)
    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    w = torch.linspace(-1, 1, 4).requires_grad_()
    for _ in range(2):
        for one, other in zip(observe(compiled, w), observe(program, w), strict=True):
            assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    assert halves.graphs["forward"] and not magneto.stats()["no_joint"]


@pytest.mark.parametrize("ours", [_aot.default_partition, _aot.min_cut_rematerialization_partition])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_partition_that_asks_for_ours(ours: Any, dynamic: bool) -> None:
    seen: list[int] = []

    def mine(joint: torch.fx.GraphModule, inputs: Any, **others: Any) -> Any:
        primals, tangents = inputs
        assert placeholders(joint)[len(primals) :] == ["tangents_1", "tangents_2"] and len(tangents) == 2
        seen.append(others["num_fwd_outputs"])
        return ours(joint, inputs, **others)

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.nn.functional.gelu(x @ w)
        return y.reshape(-1).sin() / x.shape[0], y.sum(0)

    for partition in (mine, recomputes_nothing_saves_inputs):
        compiled = magneto.compile(program, backend=Halves().backend(partition_fn=partition), dynamic=dynamic)
        w = torch.randn(3, 5, requires_grad=True)
        for rows in (4, 7):
            x = torch.randn(rows, 3, requires_grad=True)
            for got, want in zip(compiled(x, w), program(x, w), strict=True):
                torch.testing.assert_close(got, want)
                ways = [torch.autograd.grad(y.square().sum(), (x, w), retain_graph=True) for y in (got, want)]
                torch.testing.assert_close(*ways)
    assert seen == ([2] if dynamic else [2, 2])


def test_partitions_that_are_wrong() -> None:
    def changes_it(joint: torch.fx.GraphModule, inputs: Any, **others: Any) -> Any:
        for node in joint.graph.find_nodes(op="call_function", target=aten.sin.default):
            node.target = aten.cos.default
        return _aot.default_partition(joint, inputs, **others)

    def drops_one(joint: torch.fx.GraphModule, inputs: Any, **others: Any) -> Any:
        forward, _ = _aot.default_partition(joint, inputs, **others)
        return forward, forward

    x = torch.randn(3, requires_grad=True)
    for partition, match in ((changes_it, "was changed"), (drops_one, "drops_one .*the joint graph of sine")):
        with pytest.raises(exc.BackendFailed, match=match):
            magneto.compile(sine, backend=_aot.aot_autograd(fw_compiler=runs, partition_fn=partition))(x)
    with pytest.raises(exc.InvalidValue, match="partition_fn"):
        _aot.default_partition(forward_of_nothing(), num_fwd_outputs=1)


def test_a_checkpoint_is_computed_again() -> None:
    from torch.utils.checkpoint import checkpoint

    halves = Halves()

    def block(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin().exp()

    def program(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(block, x, w, use_reentrant=False).sum()  # type: ignore[no-any-return]

    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    got, want = magneto.compile(program, backend=halves.backend(), fullgraph=True)(x, w), program(x, w)
    for one, other in zip(*(torch.autograd.grad(y, w) for y in (got, want)), strict=True):
        assert torch.equal(one, other)
    assert targets(halves.one("backward")).count(aten.mm.default) == 2  # of the gradient, and again of the forward


# -- decompositions


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    assert approximate == "none"
    return aten.mul.Tensor(x * 0.5, (x * 0.5**0.5).erf().add_(1))  # type: ignore[no-any-return]


def native_layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    rstd = (x.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
    out = (x - mean) * rstd
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, rstd


@pytest.mark.parametrize("trains", [False, True])
def test_decompositions(trains: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()).requires_grad_(trains)
    halves = Halves()
    table = {aten.gelu: gelu, aten.native_layer_norm.default: native_layer_norm}
    compiled = magneto.compile(model, backend=halves.backend(decompositions=table), fullgraph=True)
    for rows in (2, 3):
        x = torch.randn(rows, 4)
        got, want = compiled(x), model(x)
        torch.testing.assert_close(got, want)
        if trains:
            parameters = tuple(model.parameters())
            ways = [torch.autograd.grad(y.square().sum(), parameters) for y in (got, want)]
            torch.testing.assert_close(*ways)
    graphs = halves.graphs["forward" if trains else "inference"]
    assert len(graphs) == 2  # sizes are numbers
    for graph in graphs:
        check_functional(graph)
        assert aten.erf.default in targets(graph) and aten.rsqrt.default in targets(graph)
        assert not {aten.gelu.default, aten.native_layer_norm.default} & set(targets(graph))


def test_decompositions_of_pytorch() -> None:
    """Those that people fetch from its table."""
    from torch._decomp import get_decompositions

    halves = Halves()
    table = get_decompositions([aten.gelu_backward, aten.native_layer_norm_backward, aten._softmax_backward_data])
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Softmax(-1))
    x = torch.randn(2, 4)
    got, want = magneto.compile(model, backend=halves.backend(decompositions=table))(x), model(x)
    parameters = tuple(model.parameters())
    ways = [torch.autograd.grad(y.square().sum(), parameters) for y in (got, want)]
    torch.testing.assert_close(*ways)
    assert not set(table) & set(targets(halves.one("backward")))


def test_decompositions_that_are_wrong() -> None:
    def raises(x: Tensor) -> Tensor:
        raise ValueError("not here")

    def compiled(function: Any, **others: Any) -> Any:
        table = {aten.sin.default: function}
        return magneto.compile(sine, backend=_aot.aot_autograd(fw_compiler=runs, decompositions=table), **others)

    x = torch.randn(3)
    with pytest.raises(exc.BackendFailed, match=r"raises \(.*aten.sin.* raised ValueError: not here"):
        compiled(raises)(x)
    with pytest.raises(exc.InvalidValue, match="dynamic=True"):
        compiled(raises, dynamic=True)
    with pytest.raises(exc.InvalidValue, match="decompositions are of operators"):
        _aot.aot_autograd(fw_compiler=runs, decompositions={torch.sin: raises})
    for function, match in ((torch.sin, "lead to each other"), (lambda x: x.sum(), "another shape")):
        with pytest.warns(RuntimeWarning, match=match):
            assert torch.equal(compiled(function)(x), x.sin())


# -- gradients

DIFFERENTIABLE: list[Program] = [
    lambda a, b: (a * b).sin(),
    lambda a, b: a @ b.t(),
    lambda a, b: torch.softmax(a, -1) * b,
    lambda a, b: torch.nn.functional.layer_norm(a, (3,), b[0], b[1]),
    lambda a, b: (a.exp() + b.sigmoid()).sum(0),
    lambda a, b: torch.nn.functional.gelu(a) - b.tanh(),
    lambda a, b: torch.cat([a, b]).cumsum(0),
    lambda a, b: a[:, 1:].reshape(-1) * b[1:].amax(),
    lambda a, b: torch.nn.functional.conv1d(a[None], b[None], padding=1),
    lambda a, b: torch.where(a > b, a * 2, b.square()).std(),
]


@pytest.mark.parametrize("number", range(10))
def test_gradients(number: int) -> None:
    torch.manual_seed(number)
    a, b = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    compiled = magneto.compile(DIFFERENTIABLE[number], backend=Halves().backend(), fullgraph=True)
    assert torch.autograd.gradcheck(compiled, (a, b))
    assert torch.autograd.gradgradcheck(compiled, (a, b))
    assert not magneto.stats()["no_joint"]


def test_a_second_backward_raises_as_in_eager() -> None:
    x = torch.randn(3, requires_grad=True)
    loss = magneto.compile(sine, backend=Halves().backend())(x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.equal(x.grad, 2 * x.cos())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_what_is_saved_must_not_be_written() -> None:
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    out = magneto.compile(lambda x, w: x * w, backend=Halves().backend())(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_autocast_is_in_the_graph() -> None:
    halves = Halves()
    a, b = leaves(2, 4, 4)

    def program(a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (a @ b).relu()

    got, want = magneto.compile(program, backend=halves.backend())(a, b), program(a, b)
    assert got.dtype is torch.bfloat16 and torch.equal(got, want)
    for one, other in zip(*(torch.autograd.grad(x.float().sum(), (a, b)) for x in (got, want)), strict=True):
        assert one.dtype is torch.float32 and torch.equal(one, other)
    assert aten.mm.default in targets(halves.one("forward"))


@pytest.mark.threads
def test_two_threads() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    compiled = magneto.compile(model, backend=Halves().backend())
    wrong: list[BaseException] = []

    def train(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(20):
                x = torch.randn(3, 4, generator=generator, requires_grad=True)
                got = torch.autograd.grad(compiled(x).square().sum(), x)
                want = torch.autograd.grad(model(x).square().sum(), x)
                torch.testing.assert_close(got, want)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("program", [torch.exp, torch.tanh, lambda x: (x.exp(), x.sin())])
def test_no_history_holds_itself(program: Program) -> None:
    """A result that is saved for its own backward must not own the node that it belongs to."""
    x = torch.randn(3, requires_grad=True)
    held = weakref.ref(x)
    out = magneto.compile(program, backend=Halves().backend())(x)
    assert not magneto.stats()["no_joint"]
    del x, out
    magneto.reset()
    gc.collect()
    assert held() is None


def test_what_can_not_be_without_writes_runs_under_autograd() -> None:
    """The gradient of a write to a part is put into its place by as_strided."""

    def writes_a_part(x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        y.diagonal().mul_(2)
        return y.tanh()

    halves = Halves()

    def branches(x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x * w,))  # type: ignore[no-any-return]

    def chosen(x: Tensor, w: Tensor) -> Tensor:  # eager's torch.cond would run PyTorch's compiler, in this process
        return torch.sin(x * w) if x.sum() > 0 else torch.cos(x * w)

    x, w = torch.randn(4, 4), torch.randn(4, requires_grad=True)
    for program, plain, match in ((writes_a_part, writes_a_part, "as_strided"), (branches, chosen, "torch.cond")):
        with pytest.warns(RuntimeWarning, match=match):
            out = magneto.compile(program, backend=halves.backend())(x, w)
        (got,), (want,) = torch.autograd.grad(out.sum(), w), torch.autograd.grad(plain(x, w).sum(), w)
        assert torch.equal(got, want)
    assert len(magneto.stats()["no_joint"]) == 2 and not any(halves.graphs.values())
