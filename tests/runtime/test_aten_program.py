"""The ATen program against eager: results, aliasing, counters, lifetimes, errors, threads."""

import gc
import pathlib
import threading
import warnings
import weakref

import pytest
import torch

from magneto import _testing


def graph(*lines):
    return "graph {\n" + "\n".join(lines) + "\n}"


X = '%0: f32[2, 3] = input "x"'


def run(text, *inputs):
    return _testing.aten_run(text, list(inputs))


def test_arithmetic_is_bitwise_eagers():
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    text = graph(
        X,
        '%1: f32[2, 3] = input "y"',
        "%2: f32[2, 3] = aten.add.Scalar(%0, 0.1, 3)",
        "%3: f32[2, 3] = aten.mul.Tensor(%2, %1)",
        "%4: f32[2, 3] = aten.div.Scalar(%3, 3)",
        "%5: f32[2, 3] = aten.sub.Tensor(%4, %0, 2)",
        '%6: f32[2, 3] = aten.gelu.default(%5, "tanh")',
        "return (%3, %6)",
    )
    three = torch.add(x, 0.1, alpha=3) * y
    assert all(
        map(torch.equal, run(text, x, y), (three, torch.nn.functional.gelu(three / 3 - 2 * x, approximate="tanh")))
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.float64])
def test_numbers_promote_as_in_eager(dtype):
    """The captured types are not what decides: numbers wrapped ahead of time promote like Python's."""
    x = torch.ones(2, 3).to(dtype)
    (result,) = run(graph(X, "%1: f32[2, 3] = aten.add.Scalar(%0, 1.5, 1)", "return (%1)"), x)
    assert result.dtype == (x + 1.5).dtype and torch.equal(result, x + 1.5)


def test_in_place_on_an_input_bumps_its_version():
    x = torch.randn(2, 3)
    expected = x + 1
    version = x._version
    (out,) = run(graph(X, "%0 = aten.add_.Scalar(%0, 1, 1)", "return (%0)"), x)
    assert out is x and torch.equal(x, expected) and x._version == version + 1


def test_in_place_on_a_view_of_an_input_bumps_the_base():
    x = torch.zeros(2, 3)
    text = graph(X, "%1: f32[3] = aten.select.int(%0, 0, 0)", "%1 = aten.add_.Scalar(%1, 1, 1)", "return ()")
    run(text, x)
    assert x._version == 1 and x.tolist() == [[1, 1, 1], [0, 0, 0]]


def test_in_place_on_an_output_counts_as_in_eager():
    def f(x):
        y = x.relu()
        y.add_(1)
        return y

    x = torch.randn(2, 3)
    (out,) = run(graph(X, "%1: f32[2, 3] = aten.relu.default(%0)", "%1 = aten.add_.Scalar(%1, 1, 1)", "return (%1)"), x)
    assert torch.equal(out, f(x)) and out._version == f(x)._version == 1


def test_out_of_sight_writes_are_right():
    x = torch.randn(2, 3)
    text = graph(
        X,
        "%1: f32[2, 3] = aten.relu.default(%0)",
        "%2: f32[3]+3 = aten.select.int(%1, 0, 1)",
        "%2 = aten.mul_.Scalar(%2, 0)",
        "%3: f32[3, 2]{1, 3} = aten.t.default(%1)",
        "%4: f32[3] = aten.sum.dim_IntList(%3, [1], False, None)",
        "return (%4)",
    )
    y = x.relu()
    y[1] *= 0
    assert torch.equal(run(text, x)[0], y.t().sum(1))


VIEW_TEXTS = {
    "t": (X, "%1: f32[3, 2]{1, 3} = aten.t.default(%0)"),
    "view": (X, "%1: f32[6] = aten.view.default(%0, [6])"),
    "slice": (X, "%1: f32[1, 3]+3 = aten.slice.Tensor(%0, 0, 1, 9223372036854775807, 1)"),
    "chain": (X, "%2: f32[3, 2]{1, 3} = aten.t.default(%0)", "%1: f32[2]{3} = aten.select.int(%2, 0, 0)"),
}
VIEW_FUNCTIONS = {
    "t": lambda x: x.t(),
    "view": lambda x: x.view(6),
    "slice": lambda x: x[1:],
    "chain": lambda x: x.t()[0],
}


@pytest.mark.parametrize("name", VIEW_TEXTS)
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("inference", ["none", "mode", "tensor"])
def test_views_that_leave_are_linked_as_in_eager(name, grad, inference):
    with torch.inference_mode(inference == "tensor"):
        x = torch.randn(2, 3)
    with torch.set_grad_enabled(grad), torch.inference_mode(inference == "mode"):
        expected = VIEW_FUNCTIONS[name](x)
        (out,) = run(graph(*VIEW_TEXTS[name], "return (%1)"), x)
    assert torch.equal(out, expected)
    assert out.stride() == expected.stride() and out.storage_offset() == expected.storage_offset()
    assert out.data_ptr() == expected.data_ptr()
    assert out.is_inference() == expected.is_inference()
    assert out._is_view() == expected._is_view()
    assert out._base is expected._base
    if not out.is_inference():
        assert out._version == expected._version
        with torch.no_grad():
            x.add_(1)
        assert out._version == expected._version


def test_no_grad_views_refuse_later_writes_as_in_eager():
    """Creation under no_grad is part of a view's metadata."""
    x = torch.randn(2, 3, requires_grad=True)
    with torch.no_grad():
        (out,) = run(graph(X, "%1: f32[3, 2]{1, 3} = aten.t.default(%0)", "return (%1)"), x)
    with pytest.raises(RuntimeError, match="no_grad"):
        out.mul_(torch.ones(3, 2, requires_grad=True))


@pytest.mark.parametrize("inference", [False, True])
def test_inner_views_follow_the_tensor_at_hand(inference):
    """A view recorded for one layout runs right on another: eager's rule decides, not the recording."""
    text = graph(
        X,
        "%1: f32[3, 2]{1, 3} = aten.t.default(%0)",
        "%2: f32[3, 2] = aten.clone.default(%1, contiguous_format)",
        "%3: f32[6] = aten.view.default(%2, [6])",
        "%4: f32[6] = aten.relu.default(%3)",
        "return (%4)",
    )
    with torch.inference_mode(inference):
        for x in (torch.randn(2, 3), torch.randn(3, 2).t(), torch.randn(5, 3)[2:4], torch.randn(1, 3).expand(2, 3)):
            assert torch.equal(run(text, x)[0], x.t().clone(memory_format=torch.contiguous_format).view(6).relu())


def test_offsets_of_inner_views_are_relative():
    text = graph(
        X,
        "%1: f32[1, 3]+3 = aten.slice.Tensor(%0, 0, 1, 2, 1)",
        "%2: f32[1, 3] = aten.relu.default(%1)",
        "return (%2)",
    )
    x = torch.randn(7, 3)[4:6]
    assert torch.equal(run(text, x)[0], x[1:].relu())


def test_lists_and_absent_tensors():
    x, index = torch.randn(2, 3), torch.tensor([2, 0])
    text = graph(
        X,
        '%1: i64[2] = input "i"',
        "%2: f32[4, 3] = aten.cat.default([%0, %0], 0)",
        "%3: f32[4, 2] = aten.index.Tensor(%2, [None, %1])",
        "%4: f32[2, 2], %5: f32[2, 2]+4 = aten.split.Tensor(%3, 2, 0)",
        "%6: f32[2, 2] = aten.add.Tensor(%4, %5, 1)",
        "%7: f32[2, 2], %8: f32[2, 1], %9: f32[2, 1] = aten.native_layer_norm.default(%6, [2], None, None, 1e-05)",
        "return (%7, %6)",
    )
    halves = torch.cat([x, x])[:, index].split(2)
    total = halves[0] + halves[1]
    expected = torch.native_layer_norm(total, [2], None, None, 1e-05)[0]
    assert all(map(torch.equal, run(text, x, index), (expected, total)))


def test_constants_are_fresh_when_a_run_could_change_them():
    text = graph(X, "%1: i64[2] = constant [1, 2]", "%1 = aten.add_.Scalar(%1, 1, 1)", "return (%1)")
    program = _testing.aten_compile(text)
    x = torch.zeros(2, 3)
    first, second = _testing.aten_call(program, [x])[0], _testing.aten_call(program, [x])[0]
    assert first.tolist() == second.tolist() == [2, 3] and first is not second


def test_constants_that_leave_are_fresh():
    text = graph(X, "%1: i64[2] = constant [1, 2]", "%2: i64[2] = aten.lift_fresh.default(%1)", "return (%2)")
    program = _testing.aten_compile(text)
    x = torch.zeros(2, 3)
    _testing.aten_call(program, [x])[0].zero_()
    assert _testing.aten_call(program, [x])[0].tolist() == [1, 2]


def test_constants_that_stay_are_shared():
    text = graph(X, "%1: f32[3] = constant [1.0, 2.0, 3.0]", "%2: f32[2, 3] = aten.mul.Tensor(%0, %1)", "return (%2)")
    assert "copy" not in _testing.aten_print(_testing.aten_compile(text))
    x = torch.randn(2, 3)
    assert torch.equal(run(text, x)[0], x * torch.tensor([1.0, 2, 3]))


def test_registers_die_at_their_last_use():
    """Every step but the last gives up what nobody needs any more."""
    text = graph(
        X,
        "%1: f32[2, 3] = aten.relu.default(%0)",
        "%2: f32[2, 3] = aten.add.Tensor(%1, %1, 1)",
        "%3: f32[2, 3] = aten.tanh.default(%2)",
        "%4: f32[2, 3] = aten.exp.default(%3)",
        "return (%3)",
    )
    assert _testing.aten_print(_testing.aten_compile(text)).splitlines() == [
        "r0 = typed aten.relu.default(i0)",
        "r1 = typed aten.add.Tensor(r0, r0!)",
        "r2 = typed aten.tanh.default(r1!)",
        "_ = typed aten.exp.default(r2)",
        "return (r2)",
    ]


def test_results_do_not_outlive_the_call():
    x = torch.randn(2, 3)
    program = _testing.aten_compile(graph(X, "%1: f32[2, 3] = aten.relu.default(%0)", "return (%1)"))
    (out,) = _testing.aten_call(program, [x])
    alive = weakref.ref(out)
    del out
    gc.collect()
    assert alive() is None


def test_a_failed_run_keeps_nothing():
    text = graph(
        X,
        '%1: f32[2, 3] = input "y"',
        "%2: f32[2, 3] = aten.lift_fresh.default(%0)",
        "%3: f32[2, 2] = aten.mm.default(%2, %1)",
        "%4: f32[2, 2] = aten.relu.default(%3)",
        "return (%4, %2)",
    )
    x = torch.randn(2, 3)
    alive = weakref.ref(x)
    program = _testing.aten_compile(text)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            _testing.aten_call(program, [x, torch.randn(2, 3)])
    del x
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("line", "eager"),
    [
        ("%1: f32[2, 2] = aten.mm.default(%0, %0)", lambda x: torch.mm(x, x)),
        ("%1: f32[2] = aten.select.int(%0, 0, 7)", lambda x: x.select(0, 7)),
        ("%1: f32[2, 3] = aten.index.Tensor(%0, [%2])", lambda x: x[torch.tensor([5])]),
        ("%1: f32[4] = aten.view.default(%0, [4])", lambda x: x.view(4)),
        ("%1: f32[3, 3] = aten.linalg_cholesky.default(%0, False)", lambda x: torch.linalg.cholesky(x)),
    ],
)
def test_errors_are_eagers(line, eager):
    x = torch.randn(2, 3)
    text = graph(X, "%2: i64[1] = constant [5]", line, "return (%1)")
    with pytest.raises(Exception) as expected:
        eager(x)
    with pytest.raises(type(expected.value)) as actual:
        run(text, x)
    assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_warnings_reach_python():
    text = graph(
        '%0: c64[2] = input "x"',
        "%1: f32[2] = aten._to_copy.default(%0, f32, None, None, None, False, None)",
        "return (%1)",
    )
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run(text, torch.ones(2, dtype=torch.complex64))
        assert any("discards the imaginary part" in str(item.message) for item in seen)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="discards the imaginary part"):
                run(text, torch.ones(2, dtype=torch.complex64))
    finally:
        torch.set_warn_always(False)


def test_conjugation_is_resolved():
    """A conjugate view reaches operators through the dispatcher, whether it comes from outside or from inside."""
    x = torch.randn(3, dtype=torch.complex64)
    text = graph(
        '%0: c64[3] = input "x"',
        "%1: c64[3] = aten._conj.default(%0)",
        "%2: c64[3] = aten.mul.Tensor(%1, %0)",
        "return (%2)",
    )
    assert torch.equal(run(text, x)[0], x.conj() * x)
    assert torch.equal(run(text, x.conj())[0], x * x.conj())


def test_negative_inputs_are_resolved():
    x = torch.randn(3, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    (out,) = run(graph('%0: f32[3] = input "x"', "%1: f32[3] = aten.exp.default(%0)", "return (%1)"), x)
    assert torch.equal(out, x.exp())


def test_subclasses_and_modes_see_the_operators():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Record(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(2, 3)
    program = _testing.aten_compile(graph(X, "%1: f32[2, 3] = aten.relu.default(%0)", "return (%1)"))
    with Record() as mode:
        _testing.aten_call(program, [x])
    assert mode.seen == ["aten.relu.default"]


def test_profilers_see_the_operators():
    with torch.profiler.profile() as profile:
        run(graph(X, "%1: f32[2, 3] = aten.relu.default(%0)", "return (%1)"), torch.randn(2, 3))
    assert "aten::relu" in [event.key for event in profile.key_averages()]


def test_autograd_is_out_of_the_way():
    """The program computes values; whoever needs gradients runs the torch level."""
    w = torch.randn(2, 3, requires_grad=True)
    with torch.no_grad():
        (out,) = run(graph(X, "%1: f32[2, 3] = aten.relu.default(%0)", "return (%1)"), w)
    assert not out.requires_grad and torch.equal(out, w.relu())


def test_autocast_was_applied_at_capture():
    x = torch.randn(2, 3)
    text = graph(
        X, "%1: f32[3, 2]{1, 3} = aten.t.default(%0)", "%2: f32[2, 2] = aten.mm.default(%0, %1)", "return (%2)"
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (out,) = run(text, x)
    assert out.dtype == torch.float32 and torch.equal(out, x @ x.t())


def test_inference_mode_results_are_inference_tensors():
    text = graph(X, "%1: f32[2, 3] = aten.relu.default(%0)", "%1 = aten.add_.Scalar(%1, 1, 1)", "return (%1)")
    with torch.inference_mode():
        (out,) = run(text, torch.randn(2, 3))
    assert out.is_inference()


def test_writing_an_inference_tensor_outside_is_refused():
    with torch.inference_mode():
        x = torch.randn(2, 3)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        run(graph(X, "%0 = aten.add_.Scalar(%0, 1, 1)", "return (%0)"), x)


def test_factories_and_random_numbers():
    text = graph(
        X,
        "%1: f32[2, 3] = aten.rand.default([2, 3], f32, strided, cpu, False)",
        "%2: f32[2, 3] = aten.ones.default([2, 3], None, None, None, None)",
        "%3: f32[2, 3] = aten.add.Tensor(%1, %2, 1)",
        "return (%3)",
    )
    torch.manual_seed(7)
    expected = torch.rand(2, 3) + torch.ones(2, 3)
    torch.manual_seed(7)
    assert torch.equal(run(text, torch.zeros(2, 3))[0], expected)


@pytest.mark.threads
def test_threads_and_reentrance():
    """One program, many threads; operators written in Python come back into the runtime."""
    lines = [X] + [f"%{i + 1}: f32[2, 3] = aten.add.Scalar(%{i}, {i}, 1)" for i in range(50)]
    program = _testing.aten_compile(graph(*lines, "return (%50)"))
    failures = []

    def work(seed):
        x = torch.full((2, 3), float(seed))
        for _ in range(200):
            if not torch.equal(_testing.aten_call(program, [x])[0], x + sum(range(50))):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_operators_in_python_may_run_programs():
    inner = _testing.aten_compile(graph(X, "%1: f32[2, 3] = aten.relu.default(%0)", "return (%1)"))

    @torch.library.custom_op("magneto_tests::nested", mutates_args=())
    def nested(x: torch.Tensor) -> torch.Tensor:
        return _testing.aten_call(inner, [x])[0] + 1

    text = graph(
        X,
        "%1: f32[2, 3] = aten.tanh.default(%0)",
        "%2: f32[2, 3] = magneto_tests.nested.default(%1)",
        "%3: f32[2, 3] = aten.add.Tensor(%1, %2, 1)",
        "return (%3)",
    )
    x = torch.randn(2, 3)
    assert torch.equal(run(text, x)[0], x.tanh() + (x.tanh().relu() + 1))


def test_custom_operators_that_write_bump_versions():
    @torch.library.custom_op("magneto_tests::fill", mutates_args=("x",))
    def fill(x: torch.Tensor, value: float) -> None:
        x.fill_(value)

    x = torch.zeros(2, 3)
    y = torch.zeros(2, 3)
    fill(y, 2.0)
    run(graph(X, "magneto_tests.fill.default(%0, 2.0)", "return ()"), x)
    assert torch.equal(x, y) and x._version == y._version


def test_wrong_inputs_are_named():
    program = _testing.aten_compile(graph(X, "return (%0)"))
    with pytest.raises(ValueError, match="1 inputs, got 0"):
        _testing.aten_call(program, [])
    with pytest.raises(ValueError, match="input 0 is no tensor"):
        _testing.aten_call(program, [1])


def test_regions() -> None:
    """A graph that is written by hand: the branch that the predicate names runs, the other one does not."""
    text = (pathlib.Path(__file__).parents[1] / "graph" / "golden" / "regions.graph").read_text()
    x = torch.tensor([-1.0, 0.0, 2.0])
    for pred, y, expected in ((True, x, x.sin()), (False, x, -x), (False, torch.zeros(3), torch.zeros(3))):
        assert torch.equal(run(text, y, torch.tensor(pred))[0], expected)


def test_a_scan() -> None:
    """Its steps from the last slice on; what is carried into each is kept."""
    text = (pathlib.Path(__file__).parents[1] / "graph" / "golden" / "scan.graph").read_text()
    init, xs, y = torch.randn(3), torch.randn(5, 3), torch.rand(3)
    carry, steps = init, []
    for x in reversed(xs):
        steps.insert(0, (carry * y + x, carry))
        carry = steps[0][0]
    last, given, kept = run(text, init, xs, y)
    torch.testing.assert_close(last, carry)
    torch.testing.assert_close(given, torch.stack([step[0].sin() for step in steps]))
    torch.testing.assert_close(kept, torch.stack([step[1] for step in steps]))
