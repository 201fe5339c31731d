"""torch.export.unflatten: modules again, with eager's results; and what is noted of where nodes come from."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch import nn
from torch.export import Dim, ExportedProgram, export, unflatten

from magneto import exc

pytestmark = pytest.mark.usefixtures("installed")


X = torch.linspace(-1, 1, 12).view(3, 4)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.norm(self.linear(x)).relu() * scale


class Twice(nn.Module):
    """A module that is called twice, one in a list, a weight of another module, a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = Layer()
        self.rest = nn.ModuleList([Layer(), nn.Identity()])
        self.head = nn.Linear(4, 4)
        self.head.weight = self.first.linear.weight
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        self.steps.add_(1)
        y = self.first(x)
        y = self.rest[1](self.rest[0](y, scale=0.5))
        return {"y": self.head(self.first(y)), "rows": x.shape[0]}


class Split(nn.Module):
    """Structures and sizes between modules."""

    class Pair(nn.Module):
        def forward(self, pair: dict[str, torch.Tensor], rows: int) -> Any:
            return [pair["a"] + rows, {"b": pair["b"] * pair["a"].shape[0]}, None]

    def __init__(self) -> None:
        super().__init__()
        self.pair = self.Pair()

    def forward(self, x: torch.Tensor) -> Any:
        a, b, _ = self.pair({"a": x, "b": x + 1}, x.shape[0])
        return a.reshape(-1), b["b"]


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.one, lambda x: self.other(x).sin(), (x,)) + self.one(x)


class Picks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Any:
        picked = self.one(x[x.sum(1) > 0])
        return self.other(picked) * picked.shape[0], x.new_zeros(picked.shape[0], 2)


class Normed(nn.Module):
    """A weight that a module of its own computes, behind sizes that no module computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        y = torch.cos(torch.arange(4) / 4) + x
        return self.linear(y).view(rows * 2, 2) * (rows + 1)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


MODELS: list[Callable[[], nn.Module]] = [
    Twice,
    lambda: Twice().eval(),
    Split,
    Chooses,
    lambda: seeded(lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()),
    lambda: seeded(Normed),
]
IDS = ["twice", "twice-eval", "split", "chooses", "encoder", "normed"]


def exported(make: Callable[[], nn.Module], varies: bool = True, **options: Any) -> ExportedProgram:
    x = torch.linspace(-1, 1, 24).view(2, 3, 4) if isinstance(make(), nn.TransformerEncoderLayer) else X
    return export(make(), (x,), dynamic_shapes=({0: Dim.AUTO},) if varies else None, **options)


def saved(program: ExportedProgram) -> Any:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def as_it_is(program: ExportedProgram) -> Any:
    return program


def decomposed(program: ExportedProgram) -> Any:
    return program.run_decompositions()


def check(module: Any, make: Callable[[], nn.Module], rows_of: tuple[int, ...] = (3, 5)) -> None:
    model = make()
    for rows in rows_of:
        x = torch.linspace(-1, 2, rows * 4).view(rows, 4)
        x = x.view(1, rows, 4).expand(rows, rows, 4)[:, :3] if isinstance(model, nn.TransformerEncoderLayer) else x
        assert_same(module(x), model(x))
    assert_same(dict(module.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("make", MODELS, ids=IDS)
@pytest.mark.parametrize("way", [as_it_is, saved, decomposed])
@pytest.mark.parametrize("preserves", [False, True])
def test_results_are_those_of_eager(make: Any, way: Any, preserves: bool) -> None:
    of_models = {Twice: ("rest.0", "rest"), Split: ("pair",), Chooses: (), Normed: ("linear",)}
    kept = of_models.get(type(make()), ("self_attn", "linear1"))
    # PyTorch's function for a batch norm in training asks sizes for floats.
    varies = way is not decomposed or not (type(make()) is Twice and make().training)
    for final in (as_it_is, copy.deepcopy):
        program = way(exported(make, varies, preserve_module_call_signature=tuple(kept) if preserves else ()))
        check(final(unflatten(program)), make, (3, 5) if varies else (3, 3))


@pytest.mark.parametrize("way", [as_it_is, saved])
@pytest.mark.parametrize("kept", [(), ("one", "other")])
def test_sizes_that_data_say(way: Any, kept: Any) -> None:
    check(unflatten(way(exported(Picks, preserve_module_call_signature=kept))), Picks)


def test_the_modules_are_there() -> None:
    module = unflatten(exported(Twice))
    assert isinstance(module, torch.export.UnflattenedModule)
    assert module.first.linear.weight is module.head.weight
    assert [node.target for node in module.first.graph.nodes if node.op == "call_module"] == ["linear", "norm"]
    names = [str(node.target) for node in module.graph.nodes if node.op == "call_module"]
    assert names == ["first", "rest.0", "first@1", "head"]  # batch norm writes: the second call reads what is new
    assert [str(node.target) for node in unflatten(exported(MODELS[1])).graph.nodes if node.op == "call_module"] == [
        *("first", "rest.0", "first", "head")
    ]


def test_a_module_is_replaced() -> None:
    class Other(nn.Module):
        def forward(self, x: torch.Tensor, *, scale: float) -> torch.Tensor:
            return x - scale

    make = MODELS[1]
    module = unflatten(exported(make, preserve_module_call_signature=("rest.0",)))
    setattr(module.rest, "0", Other())
    model = make()
    model.rest[0] = Other()
    assert_same(module(X), model(X))


def test_signatures_of_calls() -> None:
    program = exported(Twice, preserve_module_call_signature=("first", "rest.0"))
    entries = {entry.fqn: entry.signature for entry in program.module_call_graph}
    assert list(entries) == [
        *(
            "",
            "first",
            "first.linear",
            "first.norm",
            "rest",
            "rest.0",
            "rest.0.linear",
            "rest.0.norm",
            "rest.1",
            "head",
        ),
        "first@1",
    ]
    assert [path for path, signature in entries.items() if signature] == ["", "first", "rest.0", "first@1"]
    assert [argument.name for argument in entries["first"].inputs] == ["x"]
    assert entries["rest.0"].inputs[0].name == entries["first"].outputs[0].name
    assert entries["rest.0"].inputs[1].value == 0.5
    assert entries["first@1"].inputs[0].name == entries["rest.0"].outputs[0].name
    with pytest.raises(exc.NotYet, match=r"preserve_module_call_signature.*nothing"):
        exported(Twice, preserve_module_call_signature=("nothing",))


@pytest.mark.parametrize("way", [as_it_is, saved, decomposed])
def test_where_nodes_come_from(way: Any) -> None:
    program = way(exported(Twice, varies=False))
    nodes = [node for node in program.graph.nodes if node.op == "call_function" and "nn_module_stack" in node.meta]
    stacks = [list(node.meta["nn_module_stack"].items()) for node in nodes]
    name = f"{__name__}.Twice"
    assert all(stack[0] == ("L__self__", ("", name)) for stack in stacks)
    linear = ("L__self__first.linear", ("first.linear", "torch.nn.modules.linear.Linear"))
    first = ("L__self__first", ("first", f"{__name__}.Layer"))
    assert [stacks[0][0], first, linear] in stacks
    again = [("L__self__first@1", first[1]), ("L__self__first.linear@1", linear[1])]
    assert [stacks[0][0], *again] in stacks
    product = next(node for node, stack in zip(nodes, stacks, strict=True) if stack[-1] == linear)
    assert product.meta["source_fn_stack"] == [("linear", torch.nn.functional.linear)]
    assert product.meta["torch_fn"] == ("linear", "builtin_function_or_method.linear")
    lines = product.meta["stack_trace"].splitlines()
    assert [line.strip() for line in lines[1::2]] == [
        "y = self.first(x)",
        "return self.norm(self.linear(x)).relu() * scale",
        "return F.linear(input, self.weight, self.bias)",
    ]
    assert lines[0].startswith(f'File "{__file__}", line ') and lines[0].endswith(", in forward")


def test_arguments_that_an_adapter_makes() -> None:
    class Adapter(torch.export.FlatArgsAdapter):
        def adapt(
            self, target_spec: Any, input_spec: Any, input_args: Any, metadata: Any = None, obj: Any = None
        ) -> Any:
            return [sum(input_args)]

    module = unflatten(exported(MODELS[1]), Adapter())
    assert_same(module(X, X), MODELS[1]()(X + X))


def test_arguments_are_checked() -> None:
    module = unflatten(exported(MODELS[1]))
    with pytest.raises(RuntimeError, match=r"\*args\[0\].shape\[1\] to be equal to 4, but got 5"):
        module(torch.ones(3, 5))


def test_what_a_kept_signature_does_not_say() -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.writes = Writes()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.sin()
            return self.writes(y) + y

    assert_same(unflatten(export(Model(), (X,)))(X), Model()(X))
    with pytest.raises(exc.NotYet, match="changes or gives"):
        unflatten(export(Model(), (X,), preserve_module_call_signature=("writes",)))
