"""torch.export with Magneto's capture: the program is eager's, the module that was exported stays as it was."""

from __future__ import annotations

import copy
import io
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.export import AdditionalInputs, Dim, ExportedProgram, ShapesCollection, draft_export, export
from torch.export.graph_signature import InputKind, OutputKind

from magneto import exc

pytestmark = pytest.mark.usefixtures("installed")


X = torch.linspace(-1, 1, 12).view(3, 4)
Y = torch.linspace(0.5, 2, 12).view(3, 4)


class Block(nn.Module):
    """Parameters, buffers of both kinds, a plain tensor, a tensor in the code."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5)
        self.register_buffer("steps", torch.zeros(1), persistent=False)
        self.scale = torch.arange(5.0)

    def forward(self, x: torch.Tensor, options: dict[str, Any], *, flag: bool = True) -> Any:
        self.steps.add_(1)
        y = self.norm(self.linear(x)) + self.scale * torch.tensor([1.0, 2, 3, 4, 5])
        if flag:
            y = y + options["shift"]
        return {"y": y, "same": x, "steps": self.steps, "constants": (3, None, "text")}


OPTIONS = {"shift": torch.linspace(0, 1, 5), "others": [torch.ones(2), 1.5]}


def test_a_function_as_the_document_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    @torch.compile(backend="eager")
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    exported = export(fn, (X,))
    print(exported.graph_module.graph)
    assert "torch.ops.aten.mul.Tensor](args = (%x, 2)" in capsys.readouterr().out
    assert_same(exported.module()(X), X * 2 + 1)


def test_the_program_of_a_module() -> None:
    model = Block()
    before = copy.deepcopy(model)
    program = export(model, (X, OPTIONS), {"flag": True}, strict=True)
    assert isinstance(program, ExportedProgram)
    for name, value in before.state_dict().items():
        assert_same(model.state_dict()[name], value)
    assert_same(model.steps, before.steps)
    signature = program.graph_signature
    assert [spec.arg.name for spec in signature.input_specs] == [
        *("p_linear_weight", "p_linear_bias", "p_norm_weight", "p_norm_bias"),
        *("b_steps", "b_norm_running_mean", "b_norm_running_var", "b_norm_num_batches_tracked"),
        *("c_scale", "c_lifted_tensor_2", "x", "options_shift", "options_others_0", "options_others_1", "flag"),
    ]
    assert [node.name for node in program.graph.nodes if node.op == "placeholder"] == [
        spec.arg.name for spec in signature.input_specs
    ]
    assert [spec.kind for spec in signature.input_specs[8:11]] == [
        *(InputKind.CONSTANT_TENSOR, InputKind.CONSTANT_TENSOR, InputKind.USER_INPUT)
    ]
    assert [spec.target for spec in signature.output_specs if spec.kind is OutputKind.BUFFER_MUTATION] == [
        *("steps", "norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
    ]
    assert list(signature.non_persistent_buffers) == ["steps"]
    assert dict(program.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert program.example_inputs[0][0] is X
    assert "p_linear_weight: PARAMETER target='linear.weight'" in str(program)
    program.graph.lint()
    module = program.module()
    for x in (X, X * 2):
        assert_same(module(x, OPTIONS, flag=True), before(x, OPTIONS, flag=True))
        assert_same(model.norm.running_mean, before.norm.running_mean)


def test_parameters_of_the_module_are_trained() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))
    twin = copy.deepcopy(model)
    module = export(model, (X,)).module()
    module(X).sin().sum().backward()
    twin(X).sin().sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert_same(ours.grad, theirs.grad)


def test_a_program_with_batch_norm_is_trained() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3))
    twin, x = copy.deepcopy(model), torch.randn(2, 1, 3, 3)
    module = export(model, (x,)).module()
    for trained in (module, twin):
        for _ in range(2):
            trained(x).sin().sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert_same(ours.grad, theirs.grad)
    assert_same(dict(model.named_buffers()), dict(twin.named_buffers()))


def test_parameters_that_are_one() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert_same(export(model, (X,)).module()(X), model(X))


def test_arguments_that_are_written() -> None:
    def writes(x: torch.Tensor) -> Any:
        x.add_(1)
        return x, x * 2

    program = export(writes, (X.clone(),))
    assert [spec.kind for spec in program.graph_signature.output_specs] == [
        *(OutputKind.USER_INPUT_MUTATION, OutputKind.USER_OUTPUT, OutputKind.USER_OUTPUT)
    ]
    given = X.clone()
    results = program.module()(given)
    assert results[0] is given
    assert_same((given, results[1]), (X + 1, (X + 1) * 2))


def chosen(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def scaled_by_data(x: torch.Tensor) -> Any:
    return x * x.sum().item(), torch.chunk(x, 2)[0], torch.max(x, 0)


@pytest.mark.parametrize("program", [chosen, scaled_by_data])
def test_data_decides_in_the_graph(program: Callable[..., Any]) -> None:
    module = export(program, (X,)).module()
    for x in (Y, -Y):
        assert_same(module(x), program(x))


def test_a_scan_is_one_node() -> None:
    def summed(x: torch.Tensor) -> Any:
        return scan(lambda c, x: (c + x, c * x), torch.zeros(4), x)

    module = export(summed, (torch.randn(40, 4),)).module()
    x = torch.randn(40, 4)
    before = torch.cat([torch.zeros(1, 4), x.cumsum(0)[:-1]])
    torch.testing.assert_close(module(x), (x.sum(0), before * x))
    assert sum("run_scan" in str(node.target) for node in module.graph.nodes) == 1


# -- sizes


def both(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (x + y).sum(0) * x.shape[0] / (x.shape[1] - 1), y.reshape(-1)


@pytest.mark.parametrize(
    "dynamic_shapes",
    [
        {"x": {0: Dim("rows", min=2, max=9)}, "y": {0: Dim("rows", min=2, max=9)}},
        ({0: Dim.DYNAMIC(max=9)}, {0: Dim.DYNAMIC}),
        [(Dim.AUTO(max=9), Dim.STATIC), (Dim.AUTO, 4)],
    ],
    ids=["names", "dynamic", "auto"],
)
def test_sizes_that_vary(dynamic_shapes: Any) -> None:
    program = export(both, (X, Y), dynamic_shapes=dynamic_shapes)
    (low,) = re.findall(r"VR\[([12]), 9\]", str(program.range_constraints))
    module = program.module()
    for rows in (int(low), 3, 8):
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        assert_same(module(x, y), both(x, y))
    with pytest.raises(RuntimeError, match=r"\*args\[0\].shape\[0\] to be <= 9, but got 10"):
        module(torch.randn(10, 4), torch.randn(10, 4))
    with pytest.raises(RuntimeError, match=r"equal|Guard failed"):
        module(torch.randn(5, 4), torch.randn(6, 4))
    with pytest.raises(RuntimeError, match=r"\*args\[1\].shape\[1\] to be equal to 4, but got 5"):
        module(torch.randn(5, 4), torch.randn(5, 5))


def test_one_tensor_given_twice() -> None:
    module = export(lambda x, y: x - y, (X, X)).module()
    assert_same(module(X, Y), X - Y)


def test_one_name_is_one_size() -> None:
    rows = Dim("rows")
    program = export(lambda x, y: (x.sin(), y.cos()), (X, Y), dynamic_shapes={"x": {0: rows}, "y": {0: rows}})
    with pytest.raises(RuntimeError, match=r"\*args\[0\].shape\[0\], which is 5, but got 6"):
        program.module()(torch.randn(5, 4), torch.randn(6, 4))


def test_sizes_that_follow_from_others() -> None:
    rows = Dim("rows", min=3, max=6)
    program = export(lambda x, y: x + y[1:], (torch.ones(3), torch.ones(4)), dynamic_shapes=({0: rows}, {0: rows + 1}))
    assert_same(program.module()(torch.ones(5), torch.ones(6)), torch.full((5,), 2.0))
    for sizes in ((5, 5), (7, 8), (2, 3)):
        with pytest.raises(RuntimeError, match="Guard failed|to be >= 3|to be <= 6"):
            program.module()(*map(torch.ones, sizes))
    halves = export(lambda x: x.view(-1, 2).sum(1), (torch.ones(8),), dynamic_shapes=({0: 2 * Dim("half")},)).module()
    assert halves(torch.ones(12)).shape == (6,)
    with pytest.raises(RuntimeError, match="Guard failed"):
        halves(torch.ones(7))


def test_sizes_that_are_equal_have_names_of_their_own() -> None:
    shapes = {"x": (Dim.AUTO, Dim.AUTO), "y": (Dim.AUTO, Dim.DYNAMIC)}
    program = export(lambda x, y: x @ y, (torch.ones(4, 8), torch.ones(8, 2)), dynamic_shapes=shapes)
    assert program.module()(torch.ones(3, 5), torch.ones(5, 7)).shape == (3, 7)
    with pytest.raises(RuntimeError):
        program.module()(torch.ones(3, 5), torch.ones(6, 7))


def test_conditions_on_sizes_are_checked() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x[: x.shape[0] // 2] + 1 if x.shape[0] % 2 == 0 else x

    x = torch.randn(6, 4)
    shapes = ShapesCollection()
    shapes[x] = {0: Dim.DYNAMIC}
    module = export(halves, (x,), dynamic_shapes=shapes).module()
    assert_same(module(torch.ones(8, 4)), halves(torch.ones(8, 4)))
    with pytest.raises(RuntimeError, match="Guard failed: .*%2 == 0"):
        module(torch.ones(7, 4))


def test_numbers_among_results_that_follow_from_sizes() -> None:
    def sized(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return {"n": n, "k": [3, 2.5], "more": (2 * n + 1, n // 2, n * x.shape[1], n / 2), "x": x, "is": n > 1}

    program = export(sized, (X,), dynamic_shapes={"x": {0: Dim("n"), 1: Dim("m")}})
    kinds = [type(spec.arg).__name__ for spec in program.graph_signature.output_specs]
    assert kinds[:3] == ["SymIntArgument", "ConstantArgument", "ConstantArgument"]
    for x in (X, torch.ones(7, 6)):
        assert_same(program.module()(x), sized(x))


def test_a_size_that_the_program_fixes() -> None:
    def fixed(x: torch.Tensor) -> torch.Tensor:
        return x.view(3, 4) + 1

    with pytest.raises(exc.ConstraintViolation, match=r"size 3 alone.*test_export.py"):
        export(fixed, (X,), dynamic_shapes=({0: Dim("rows")},))
    assert export(fixed, (X,), dynamic_shapes=({0: Dim.AUTO},)).range_constraints == {}


VIOLATED: dict[str, tuple[Callable[..., Any], Any, Any, list[str], Callable[[], Any]]] = {
    "ranges and what is equal": (
        lambda x, y: x @ y[:, :16] if x.shape[0] <= 16 else y,
        (torch.ones(8, 16), torch.ones(16, 32)),
        ((Dim("x0"), Dim("x1")), (Dim("y0"), Dim("y1"))),
        ["x0 = Dim('x0', max=16)", "y1 = Dim('y1', min=16)", "y0 = x1"],
        lambda: ((Dim("x0", max=16), Dim("x1")), (Dim("x1"), Dim("y1", min=16))),
    ),
    "one more": (
        lambda x, y: x + y[1:],
        (torch.ones(4), torch.ones(5)),
        ({0: Dim("dx")}, {0: Dim("dy")}),
        ["dy = dx + 1"],
        lambda: ({0: Dim("dx")}, {0: Dim("dx") + 1}),
    ),
    "twice": (
        lambda x, y: torch.cat([x, x]) + y,
        (torch.ones(4), torch.ones(8)),
        ({0: Dim("dx")}, {0: Dim("dy")}),
        ["dy = 2*dx"],
        lambda: ({0: Dim("dx")}, {0: 2 * Dim("dx")}),
    ),
    "even": (
        lambda x: x.view(-1, 2),
        (torch.ones(8),),
        ({0: Dim("dx")},),
        ["_dx = Dim('_dx')", "dx = 2*_dx"],
        lambda: ({0: 2 * Dim("_dx")},),
    ),
    "large enough": (
        lambda x: nn.functional.conv1d(x, torch.ones(1, 1, 3)),
        (torch.ones(1, 1, 8),),
        ({2: Dim("dx", max=40)},),
        ["dx = Dim('dx', min=3, max=40)"],
        lambda: ({2: Dim("dx", min=3, max=40)},),
    ),
    "constant": (
        lambda x: x + torch.ones(8),
        (torch.ones(8),),
        ({0: Dim("dx")},),
        ["dx = 8"],
        lambda: ({0: 8},),
    ),
}


@pytest.mark.parametrize("name", VIOLATED)
def test_what_names_of_sizes_should_say_is_suggested(name: str) -> None:
    function, args, shapes, suggested, better = VIOLATED[name]
    with pytest.raises(torch._dynamo.exc.UserError) as raised:
        export(function, args, dynamic_shapes=shapes)
    assert isinstance(raised.value, exc.ConstraintViolation)
    lines = raised.value.msg.split("Suggested fixes:\n")[1].splitlines()
    assert [line.strip() for line in lines] == suggested
    export(function, args, dynamic_shapes=better())
    dynamic = [{dim: Dim.AUTO for dim in range(tensor.dim())} for tensor in args]
    assert_same(export(function, args, dynamic_shapes=dynamic).module()(*args), function(*args))


# -- what can't be exported


def branches(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return -x


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x


def two_breaks(x: torch.Tensor) -> torch.Tensor:
    print("begin")
    y = x.sin()
    print("end")
    return y


TABLE = {
    torch.ops.aten.addmm.default: lambda bias, x, w: x.mm(w) + bias,
    torch.ops.aten.gelu: lambda x, approximate="none": x * (1 + torch.erf(x * 0.5**0.5)) / 2,
}


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "branch": (lambda: export(branches, (X,)), exc.Unsupported, "DataDependentBranch(.|\n)*torch.where(.|\n)*if x.sum"),
    "attribute": (lambda: export(Counts(), (X,)), exc.Unsupported, "sets self.calls.*keep it in a buffer"),
    "class": (lambda: export(Counts, (X,)), exc.InvalidValue, "a module or a function"),
    "arguments": (lambda: export(Counts(), X), exc.InvalidValue, r"a tuple, \(x,\), not a Tensor"),
    "name": (lambda: export(both, (X, Y), dynamic_shapes={"z": {0: Dim("n")}}), exc.InvalidName, "'z'"),
    "dimension": (
        lambda: export(both, (X, Y), dynamic_shapes={"x": {2: Dim("n")}}),
        exc.InvalidValue,
        "no dimension 2",
    ),
    "range": (
        lambda: export(both, (X, Y), dynamic_shapes={"x": {0: Dim("n", min=4)}}),
        exc.InvalidValue,
        "is 3 in the example",
    ),
    "linear": (
        lambda: export(both, (X, Y), dynamic_shapes={"x": {0: 2 * Dim("n")}}),
        exc.InvalidValue,
        "does not fulfil .* % 2 == 0",
    ),
    "preserve": (lambda: export(Counts(), (X,), preserve_module_call_signature=("a",)), exc.NotYet, "preserve"),
    "pickle": (lambda: pickle.dumps(export(nn.ReLU(), (X,))), exc.NotYet, "torch.export.save"),
    "draft": (lambda: draft_export(two_breaks, (X,)), exc.Unsupported, r"2 places keep the call(.|\n)*\n2\. Input"),
    "an int below 2": (
        lambda: export(lambda x, n: x * n, (X, 1), dynamic_shapes=(None, Dim.DYNAMIC)),
        exc.NotYet,
        "from 2 on",
    ),
    "a bool of data": (lambda: export(lambda x: (x.nonzero().shape[0] > 3, x + 1), (X,)), exc.NotYet, "a bool among"),
    "a float that varies": (
        lambda: export(lambda x, n: x * n, (X, 1.5), dynamic_shapes=(None, Dim.DYNAMIC)),
        exc.NotYet,
        "sizes and ints vary",
    ),
    "train": (lambda: export(nn.ReLU(), (X,)).module().train(), NotImplementedError, "train"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        call()


def test_a_module_whose_export_is_refused_stays_as_it_was() -> None:
    counts = Counts()
    with pytest.raises(exc.Unsupported):
        export(counts, (X,))
    assert counts.calls == 0


def test_other_arguments() -> None:
    module = export(lambda x, k, mode: x * k if mode == "up" else x, (X, 2), {"mode": "up"}).module()
    assert_same(module(X, 2, mode="up"), X * 2)
    with pytest.raises(RuntimeError, match=r"\*args\[1\] to be equal to 2, but got 3"):
        module(X, 3, mode="up")
    with pytest.raises(RuntimeError, match="dtype torch.float32, but got torch.float64"):
        module(X.double(), 2, mode="up")
    with pytest.raises(ValueError, match="tree spec"):
        module(X, mode="up")


def test_nothing_is_decomposed_any_more() -> None:
    program = export(nn.Linear(4, 4), (X,))
    again = program.run_decompositions({})
    assert [node.target for node in again.graph.nodes] == [node.target for node in program.graph.nodes]


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.ones(4) * 2, persistent=False)
        self.table = torch.arange(4.0)

    def forward(self, given: Any, *, factor: float) -> Any:
        self.calls.add_(1)
        given["y"].mul_(2)
        x = nn.functional.gelu(self.last(self.first(given["x"][0]))) * self.scale + self.table
        return {"x": x * factor, "both": (given["y"], x)}


def test_decompositions() -> None:
    def arguments() -> Any:
        return ({"x": [X.clone()], "y": Y.clone()},)

    program = export(Everything(), arguments(), {"factor": 2.0})
    made = program.run_decompositions(TABLE)
    assert not {torch.ops.aten.addmm.default, torch.ops.aten.gelu.default} & {node.target for node in made.graph.nodes}
    assert [str(spec) for spec in made.graph_signature.input_specs] == [
        str(spec) for spec in program.graph_signature.input_specs
    ]
    assert [spec.kind for spec in made.graph_signature.output_specs] == [
        spec.kind for spec in program.graph_signature.output_specs
    ]
    for _ in range(2):
        theirs, ours = arguments(), arguments()
        want = copy.deepcopy(program).module()(*theirs, factor=2.0)
        got = copy.deepcopy(made).module()(*ours, factor=2.0)
        torch.testing.assert_close(got, want)
        assert_same(ours, theirs)
    with pytest.raises(RuntimeError, match="equal to 2.0"):
        made.module()(*arguments(), factor=3.0)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm, self.attention = nn.Linear(4, 4), nn.LayerNorm(4), nn.MultiheadAttention(4, 2)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        self.seen.add_(x.shape[0])
        y = nn.functional.gelu(self.norm(self.linear(x)))
        y = y + self.attention(y, y, y)[0]
        z = self.conv(y.t().unsqueeze(0)).squeeze(0).t()
        return z.softmax(-1), nn.functional.hardswish(z).reshape(-1) * x.shape[0], z.new_ones(x.shape[0] + 1).cumsum(0)


@pytest.mark.parametrize("table", [None, TABLE], ids=["default", "table"])
@pytest.mark.parametrize("varies", [True, False])
def test_decompositions_where_sizes_vary(table: Any, varies: bool) -> None:
    shapes = {"x": {0: Dim("n", max=50)}} if varies else None
    program = export(Mixed().eval(), (X,), dynamic_shapes=shapes)
    made = program.run_decompositions(table)
    targets = {node.target for node in made.graph.nodes}
    assert not {torch.ops.aten.gelu.default, torch.ops.aten.addmm.default} & targets if table else True
    assert torch.ops.aten.t.default not in targets or table
    for rows in (3, 9) if varies else (3,):
        x = torch.randn(rows, 4)
        want, got = copy.deepcopy(program).module()(x), copy.deepcopy(made).module()(x)
        torch.testing.assert_close(got, want)
    if varies:
        assert "50]" in str(made.range_constraints)
        with pytest.raises(RuntimeError, match="to be <= 50"):
            made.module()(torch.randn(51, 4))


def test_what_decompositions_ask_of_sizes_is_checked() -> None:
    def by_parity(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] % 2 == 0 else x.cos()

    program = export(lambda x: x.relu(), (torch.ones(4),), dynamic_shapes=({0: Dim("n")},))
    module = program.run_decompositions({torch.ops.aten.relu.default: by_parity}).module()
    assert_same(module(torch.ones(6)), torch.ones(6).sin())
    with pytest.raises(RuntimeError, match="Guard failed"):
        module(torch.ones(7))


def test_ints_that_vary() -> None:
    def first(x: torch.Tensor, n: int, m: int) -> Any:
        return x[:n] * n, x.new_zeros(n, m), n + m, m

    shapes = {"x": {0: Dim.DYNAMIC}, "n": Dim.DYNAMIC, "m": Dim("m", max=9)}
    program = export(first, (X, 2, 5), dynamic_shapes=shapes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for module in (program.module(), torch.export.load(file).module()):
        for n in (1, 3):
            assert_same(module(torch.ones(7, 4), n, 8), first(torch.ones(7, 4), n, 8))
        for given, text in (((X, 2, 10), "to be <= 9"), ((X, 0, 5), "to be >= 1"), ((X, 2.0, 5), "to be an int")):
            with pytest.raises(RuntimeError, match=text):
                module(*given)


class Gathered(torch.nn.Module):
    def forward(self, *xs: torch.Tensor, gain: Any = None, **more: torch.Tensor) -> torch.Tensor:
        y = xs[0] + xs[1] if gain is None else (xs[0] + xs[1]) * gain
        for name in sorted(more):
            y = y + more[name]
        return y


def test_sizes_by_the_names_of_parameters_that_gather() -> None:
    args, kwargs = (
        (torch.ones(3, 4), torch.ones(3, 4)),
        {"gain": torch.ones(1), "z": torch.ones(4), "b": torch.ones(3, 1)},
    )
    rows = {0: Dim.AUTO}
    for shapes in (
        {"xs": (rows, rows), "gain": None, "more": {"z": None, "b": rows}},
        {"xs_0": rows, "xs_1": rows, "b": rows},
    ):
        program = export(Gathered(), args, kwargs, dynamic_shapes=shapes)
        for count in (5, 1):
            given = (torch.randn(count, 4), torch.randn(count, 4))
            named = {"gain": torch.randn(1), "z": torch.randn(4), "b": torch.randn(count, 1)}
            assert_same(program.module()(*given, **named), Gathered()(*given, **named))
    with pytest.raises(exc.InvalidValue, match=r"dynamic_shapes of \*xs has 1 entries; it has 2 items"):
        export(Gathered(), args, kwargs, dynamic_shapes={"xs": (rows,), "gain": None, "more": None})


def test_shapes_collections_and_further_inputs() -> None:
    def scaled(given: Any, k: int) -> Any:
        return given["x"] * k, given["others"][0] * 2, given["others"][1]

    x, y, z = torch.ones(3, 4, 8), torch.ones(6), torch.ones(6)
    dim, shapes = Dim("dim"), ShapesCollection()
    shapes[x], shapes[y] = (dim, dim + 1, 8), {0: dim * 2}
    module = export(scaled, ({"x": x, "others": [y, z]}, 3), dynamic_shapes=shapes).module()
    assert module({"x": torch.ones(5, 6, 8), "others": [torch.ones(10), z]}, 3)[1].shape == (10,)
    inputs = AdditionalInputs()
    inputs.add(({"x": x, "others": [y, z]}, 3))
    inputs.add(({"x": x[:2], "others": [y, z]}, 4))
    module = export(scaled, ({"x": x, "others": [y, z]}, 3), dynamic_shapes=inputs).module()
    given = {"x": torch.ones(7, 4, 8), "others": [y, z]}, 9
    assert_same(module(*given), scaled(*given))


def test_of_sizes_that_are_tried_those_that_can_vary_do() -> None:
    def sums(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        return nn.functional.linear(w, torch.ones(3, 4)), (x + y).flatten()

    shapes = [(Dim.AUTO, Dim.AUTO), (Dim.AUTO,), (Dim.AUTO, Dim.AUTO)]
    module = export(sums, (X, torch.ones(4), torch.ones(6, 4)), dynamic_shapes=shapes).module()
    given = torch.ones(7, 4), torch.ones(5), torch.ones(3, 5)
    assert_same(module(*given), sums(*given))
    with pytest.raises(RuntimeError, match=r"\*args\[0\].shape\[1\] to be equal to 4"):
        module(torch.ones(7, 5), *given[1:])


def of_size(x: torch.Tensor) -> Any:
    return torch.cond(x.shape[0] > 4, lambda x: x.cos(), lambda x: x.sin() * x.shape[0], (x,))


def of_several(x: torch.Tensor) -> Any:
    y = torch.cond(2 * x.shape[0] == x.shape[1] + 6, torch.cos, torch.sin, (x,))
    return torch.cond(x.shape[0] % 2 != 0, lambda x: {"a": x + 1}, lambda x: {"a": x * 3}, (y,))


def of_constants(x: torch.Tensor) -> Any:
    return torch.cond(x.dim() > 2 and x.shape[0] > 4, torch.cos, torch.sin, (x,))


@pytest.mark.parametrize("chosen", [of_size, of_several, of_constants])
def test_branches_on_sizes_that_vary(chosen: Callable[..., Any]) -> None:
    program = export(chosen, (X,), dynamic_shapes={"x": {0: Dim("n"), 1: Dim("m")}})
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for module in (program.module(), torch.export.load(file).module()):
        for sizes in ((2, 3), (5, 4), (6, 6), (7, 2)):
            assert_same(module(torch.ones(sizes)), chosen(torch.ones(sizes)))
    conditions = sum("cond" in str(node.target) and node.op == "call_function" for node in program.graph.nodes)
    assert conditions == {of_size: 1, of_several: 2, of_constants: 0}[chosen]


QUESTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "bool": lambda x: (x.shape[0] > 3, x + 1),
    "nothing is computed": lambda x: (x.shape[0] > 3, x),
    "if": lambda x: x if x.shape[0] > 3 else (x, x),
    "not": lambda x: {"a": not (x.shape[0] > 3), "x": x + 1},
    "and": lambda x: (x.shape[0] > 1 and x.shape[0] > 3, x + 1),
    "is": lambda x: x * 2 if (x.shape[0] > 3) is True else x,
    "is not": lambda x: x * 2 if True is not (x.shape[0] > 3) else x,
    "equal": lambda x: x * 2 if (x.shape[0] > 3) == True else x,  # noqa: E712
    "key": lambda x: {True: x + 1, False: x}[x.shape[0] > 3],
    "index": lambda x: x * [3, 5][x.shape[0] > 3],
    "number": lambda x: ((x.shape[0] > 3) + 2, int(x.shape[0] > 3), str(x.shape[0] > 3), x + (x.shape[0] > 3)),
    "argument": lambda x: x.sum(0, keepdim=x.shape[0] > 3),
    "all": lambda x: x * 2 if all([x.shape[0] > 3, max(x.shape[0] > 3, False)]) else x,
    "assert": lambda x: (torch._check(x.shape[0] > 3), x + 1)[1],
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_asked_of_sizes_is_checked_wherever_the_answer_goes(name: str) -> None:
    module = export(QUESTIONS[name], (torch.ones(5, 3),), dynamic_shapes=({0: Dim.DYNAMIC},)).module()
    assert_same(module(torch.ones(7, 3)), QUESTIONS[name](torch.ones(7, 3)))
    with pytest.raises(RuntimeError, match="to be >= 4|Guard failed"):
        module(torch.ones(3, 3))


@pytest.mark.parametrize("sign", [1, -1])
def test_sizes_that_branches_read(sign: int) -> None:
    def chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cond(
            x.sum() > 0,
            lambda x: x * x.shape[0] + torch.arange(x.shape[0]).unsqueeze(1),
            lambda x: x - x.new_ones(x.shape[0], 1) * y.new_ones(y.shape[0] + 1).sum(),
            (x,),
        )

    program = export(chosen, (X, Y), dynamic_shapes={"x": {0: Dim("n")}, "y": {0: Dim("m")}})
    for rows in (2, 5):
        x, y = torch.rand(rows, 4) * sign, torch.rand(rows + 1, 4)
        ones = torch.arange(rows).unsqueeze(1) if sign > 0 else torch.full((rows, 1), -float(rows + 2))
        assert_same(program.module()(x, y), x * (rows if sign > 0 else 1) + ones)


def test_the_module_of_a_program_is_exported_and_compiled() -> None:
    def halves(x: torch.Tensor, n: torch.Tensor) -> Any:
        y = x[: x.shape[0] // 2] + 1 if x.shape[0] % 2 == 0 else x
        return y, torch.cond(x.shape[0] > 5, torch.sin, torch.cos, (y,)), y[y > 0] * n.item()

    shapes = {"x": {0: Dim.DYNAMIC}, "n": None}
    program = export(halves, (torch.randn(6, 4), torch.tensor(3)), dynamic_shapes=shapes)
    again = export(program.module(), (torch.randn(6, 4), torch.tensor(3)), dynamic_shapes=shapes).module()
    compiled = torch.compile(program.module(), fullgraph=True)
    for rows in (4, 8):
        given = torch.randn(rows, 4), torch.tensor(rows)
        want = halves(*given)
        assert_same(again(*given), want)
        torch.testing.assert_close(compiled(*given), want)
    with pytest.raises(RuntimeError, match="Guard failed"):
        again(torch.randn(7, 4), torch.tensor(3))


def test_attributes_of_tensors_are_no_results() -> None:
    def marked(x: torch.Tensor) -> torch.Tensor:
        x.mark = torch.zeros(2) + 1  # type: ignore[attr-defined]
        return x + 4

    assert_same(export(marked, (X.clone(),)).module()(X), X + 4)


def test_dynamo_export() -> None:
    for call in (torch._dynamo.export(both)(X, Y), torch._dynamo.export(both, X, Y)):
        graph_module, guards = call
        assert_same(graph_module(X, Y), both(X, Y))
        assert "L['x'].size()[0] == 3" in guards
        assert any(node.target is torch.ops.aten.add.Tensor for node in graph_module.graph.nodes)


ISOLATED = """
import sys, torch, torch.export, magneto
magneto.install()
import torch.export.exported_program
before = set(sys.modules)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
    def forward(self, x):
        return torch.softmax(self.norm(x), -1)[: x.shape[0] - 1]
program = torch.export.export(Net(), (torch.randn(6, 4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
program.module()(torch.randn(8, 4))
str(program), program.run_decompositions({})
parts = ("_dynamo", "_inductor", "_decomp", "_refs", "symbolic_shapes", "proxy_tensor", "sympy", "export._trace", "aot")
print(sorted(name for name in set(sys.modules) - before if any(part in name for part in parts)))
"""


def test_nothing_of_pytorchs_compiler_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", ISOLATED], capture_output=True, text=True, check=True)
    loaded = [name for name in eval(done.stdout) if not name.startswith("magneto")]
    assert loaded == []
