"""The torch level: as a GraphModule and run call by call, against eager with gradients."""

import gc
import operator
import pathlib
import sys
import weakref
from collections import namedtuple

import fresh
import pytest
import torch

from magneto import _testing

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "graph"))
import golden  # noqa: E402

GOLDEN = pathlib.Path(__file__).parent / "golden"
Pair = namedtuple("Pair", "first second")


class V:
    """Stands for a value of the graph."""

    def __init__(self, number):
        self.id = number


def build(inputs, calls, outputs, constants=(), mutated=()):
    return _testing.torch_graph(V, list(inputs), list(constants), calls, outputs, list(mutated))


def both(graph, inputs):
    """Results of the GraphModule and of the program, which must be equal."""
    from_module = _testing.torch_graph_module(graph)(*inputs)
    from_program = _testing.torch_graph_run(graph, list(inputs))
    assert isinstance(from_module, tuple) and all(map(torch.equal, from_module, from_program))
    return from_program


def sample():
    x = torch.randn(4, 3)
    weight = torch.randn(3, 3, requires_grad=True)
    calls = [
        (torch.nn.functional.linear, (V(0), V(1)), {}, [((), 3)], "model.py", 4, "forward"),
        ("max", (V(3),), {"dim": 1}, [((0,), 4), ((1,), 5)], "model.py", 5, "forward"),
        (torch.add, (V(4), V(2)), {"alpha": 2}, [((), 6)]),
        (torch.cat, ([V(6), V(6)],), {"dim": 0}, [((), 7)]),
        (operator.getitem, (V(3), (slice(None, 2), 0)), {}, [((), 8)]),
    ]
    inputs = [("L['x']", x), ("L['self']._modules['0']._parameters['weight']", weight)]
    return build(inputs, calls, [7, 8], [torch.tensor(2.0)]), (x, weight)


def eager_sample(x, weight):
    y = torch.nn.functional.linear(x, weight)
    total = torch.add(y.max(dim=1)[0], torch.tensor(2.0), alpha=2)
    return torch.cat([total, total]), y[:2, 0]


def test_values_and_gradients_are_eagers():
    graph, (x, weight) = sample()
    results = both(graph, (x, weight))
    expected = eager_sample(x, weight)
    assert all(map(torch.equal, results, expected))
    (gradient,) = torch.autograd.grad(sum(map(torch.sum, results)), weight)
    (expected_gradient,) = torch.autograd.grad(sum(map(torch.sum, expected)), weight)
    assert torch.equal(gradient, expected_gradient)


def test_generated_code():
    graph, _ = sample()
    golden.check(GOLDEN / "sample_module.txt", _testing.torch_graph_module(graph).code.strip() + "\n")


def test_printed_graph():
    graph, _ = sample()
    golden.check(GOLDEN / "sample_graph.txt", _testing.torch_graph_print(graph))


def test_stack_traces_name_the_users_line():
    line = 1
    graph = build([("L['x']", torch.ones(2))], [(torch.relu, (V(0),), {}, [((), 1)], __file__, line, "forward")], [1])
    (node,) = [node for node in _testing.torch_graph_module(graph).graph.nodes if node.op == "call_function"]
    assert node.meta["stack_trace"].startswith(f'  File "{__file__}", line 1, in forward\n    """The torch level')


def test_code_is_generated_when_asked_for():
    graph, inputs = sample()
    module = _testing.torch_graph_module(graph)
    assert isinstance(module, torch.fx.GraphModule) and "_code" not in module.__dict__
    module(*inputs)
    assert "_code" in module.__dict__
    module.graph.lint()


@pytest.mark.parametrize(
    "names",
    [
        ["L['a.b']", "L['a_b']", "L['A_b']"],
        ["self", "self_", "class"],
        ["", "0", "☃"],
        ["L['x']", "l_x_", "L_x_"],
    ],
)
def test_hostile_input_names(names):
    tensors = [torch.full((2,), float(i)) for i in range(len(names))]
    graph = build(zip(names, tensors), [], [2, 0, 1])
    assert [t[0].item() for t in both(graph, tensors)] == [2, 0, 1]


def test_arguments_of_every_kind():
    seen = []

    def record(*args, **kwargs):
        seen.append((args, kwargs))
        return args[0] + 1

    x = torch.ones(2)
    token = object()
    args = (V(0), (1, V(0)), [V(0), None], {"k": V(0), 3: 2.5}, Pair(V(0), 1), slice(V(0), None, 2), token)
    kwargs = {"dtype": torch.float32, "size": torch.Size([1, 2]), "inf": float("inf"), "text": "a'b", "f": len}
    graph = build([("x", x)], [(record, args, kwargs, [((), 1)])], [1])
    both(graph, (x,))
    expected = (x, (1, x), [x, None], {"k": x, 3: 2.5}, Pair(x, 1), slice(x, None, 2), token)
    # The program hands on exact types; fx makes plain tuples of torch.Size.
    assert type(seen[1][1]["size"]) is torch.Size
    for got_args, got_kwargs in seen:
        assert got_kwargs == kwargs
        assert got_args[0] is x and got_args[1] == (1, x) and got_args[2][0] is x and got_args[3]["k"] is x
        assert type(got_args[4]) is Pair and got_args[4].first is x and got_args[5].start is x
        assert got_args[6] is token and len(got_args) == len(expected)


def test_nested_results():
    def nested(x):
        return [(x + 1, [x + 2]), x + 3]

    x = torch.zeros(2)
    graph = build([("x", x)], [(nested, (V(0),), {}, [((0, 0), 1), ((0, 1, 0), 2), ((1,), 3)])], [3, 2, 1])
    assert [t[0].item() for t in both(graph, (x,))] == [3, 2, 1]


def test_in_place_calls_stay_and_return_their_argument():
    x = torch.zeros(2)
    calls = [("add_", (V(0), 1), {}, [((), 0)]), ("mul_", (V(0), 3), {}, [((), 0)])]
    graph = build([("x", x)], calls, [0])
    (out,) = _testing.torch_graph_run(graph, [x])
    assert out is x and x.tolist() == [3, 3]
    assert [n.target for n in _testing.torch_graph_module(graph).graph.nodes if n.op == "call_method"] == [
        "add_",
        "mul_",
    ]


def test_constants_that_change_are_fresh_in_each_run():
    calls = [("add_", (V(0), 1), {}, [((), 0)])]
    graph = build([], calls, [0], constants=[torch.tensor([1, 2])], mutated=[0])
    module = _testing.torch_graph_module(graph)
    for _ in range(2):
        assert module()[0].tolist() == _testing.torch_graph_run(graph, [])[0].tolist() == [2, 3]


def test_grad_mode_calls_are_kept():
    x = torch.ones(2, requires_grad=True)
    calls = [
        (torch._C._set_grad_enabled, (False,), {}, []),
        (torch.mul, (V(0), 2), {}, [((), 1)]),
        (torch._C._set_grad_enabled, (True,), {}, []),
        (torch.mul, (V(0), 3), {}, [((), 2)]),
    ]
    graph = build([("x", x)], calls, [1, 2])
    assert [t.requires_grad for t in both(graph, (x,))] == [False, True]


def test_errors_keep_their_traceback():
    def fails(x):
        raise KeyError("mine")

    x = torch.ones(2)
    graph = build([("x", x)], [(fails, (V(0),), {}, [((), 1)])], [1])
    with pytest.raises(KeyError, match="mine") as error:
        _testing.torch_graph_run(graph, [x])
    assert error.traceback[-1].name == "fails"


def test_tensors_die_at_their_last_use():
    alive = []

    def make(x):
        y = x + 1
        alive.append(weakref.ref(y))
        return y

    def look(x):
        gc.collect()
        return x + sum(reference() is not None for reference in alive)

    x = torch.zeros(1)
    calls = [(make, (V(0),), {}, [((), 1)]), (torch.relu, (V(1),), {}, [((), 2)]), (look, (V(2),), {}, [((), 3)])]
    assert _testing.torch_graph_run(build([("x", x)], calls, [3]), [x])[0].item() == 1


def test_values_that_no_call_makes_are_refused():
    graph = build([("x", torch.ones(1))], [(torch.relu, (V(0),), {}, [((), 2)])], [1])
    for use in (_testing.torch_graph_module, lambda g: _testing.torch_graph_run(g, [torch.ones(1)])):
        with pytest.raises(ValueError, match="%1 is not made by any torch call"):
            use(graph)


def test_nothing_of_the_peer_is_imported():
    """torch.fx comes in with the first GraphModule; the compiler and sympy never do."""
    code = (
        "import sys, torch; before = set(sys.modules); from magneto import _testing\n"
        "class V: pass\n"
        "new = lambda: {m for m in set(sys.modules) - before if m.startswith(('torch.', 'sympy'))}\n"
        "assert not new(), new()\n"
        "g = _testing.torch_graph(V, [('x', torch.ones(1))], [], [], [0], [])\n"
        "gm = _testing.torch_graph_module(g); gm(torch.ones(1)); gm.code\n"
        "bad = [m for m in new() if m.startswith(('torch._dynamo', 'torch._inductor', 'sympy', 'torch.fx.experimental.sym'))]\n"
        "assert not bad, bad\n"
    )
    fresh.python("-c", code, check=True)
