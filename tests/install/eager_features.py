"""What eager PyTorch can do, a function each: `magneto.install()` must leave all of it alone.

Each runs in a process that has imported nothing but torch and Magneto (tests/install/test_eager_features.py), checks
what it gets, and uses of PyTorch what its documents offer. Its imports stand inside of it.
"""

from __future__ import annotations

import functools
import inspect
import types

import torch
from torch import nn


def close(got: object, want: object) -> None:
    """torch.testing.assert_close is a feature of its own."""
    got, want = torch.as_tensor(got), torch.as_tensor(want)
    assert got.dtype == want.dtype and torch.allclose(got, want, atol=1e-5), (got, want)


def features(names: dict[str, object]) -> dict[str, object]:
    """The functions of a module that are features: those without arguments that are no help for others."""
    return {
        name: value
        for name, value in names.items()
        if isinstance(value, types.FunctionType)
        and value.__module__ == names["__name__"]
        and not inspect.signature(value).parameters
        and not name.startswith("with_")
    }


def cube(x):
    return (x**3).sum()


# Tensors without data.


def meta_tensors():
    x = torch.empty(3, 4, device="meta")
    assert (x + 1).shape == (3, 4) and (x @ x.t()).shape == (3, 3) and x.softmax(-1).device.type == "meta"


def meta_operators_of_every_kind():
    x = torch.empty(2, 3, 8, 8, device="meta")
    weight = torch.empty(4, 3, 3, 3, device="meta")
    square = torch.empty(4, 4, device="meta")
    F = nn.functional
    assert F.conv2d(x, weight).shape == (2, 4, 6, 6)
    assert F.interpolate(x, scale_factor=2.0).shape == (2, 3, 16, 16)
    assert F.grid_sample(x, torch.empty(2, 5, 5, 2, device="meta"), align_corners=False).shape == (2, 3, 5, 5)
    assert F.max_pool2d(x, 2).shape == (2, 3, 4, 4) and F.pad(x, (1, 1)).shape == (2, 3, 8, 10)
    assert torch.linalg.solve_triangular(square, square, upper=True).shape == (4, 4)
    assert torch.linalg.qr(square)[0].shape == (4, 4) and torch.linalg.eigh(square)[0].shape == (4,)
    assert torch.fft.rfft(x).shape == (2, 3, 8, 5) and torch.cdist(square, square).shape == (4, 4)
    assert torch.stack([square, square]).cumsum(0).sort(-1).values.shape == (2, 4, 4)


def models_without_data():
    with torch.device("meta"):
        model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert model(torch.empty(1, 3, 8, device="meta")).shape == (1, 3, 8)
    model = model.to_empty(device="cpu")
    assert next(model.parameters()).device.type == "cpu"
    state = nn.Linear(2, 2).state_dict()
    with torch.device("meta"):
        linear = nn.Linear(2, 2)
    linear.load_state_dict(state, assign=True)
    assert linear(torch.ones(1, 2)).shape == (1, 2)


def fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.ones(4, 5)
        y = nn.Linear(5, 2)(x).relu()
    assert isinstance(y, FakeTensor) and y.shape == (4, 2)
    real = torch.rand(3, 3)
    fake = mode.from_tensor(real)
    assert (fake @ fake).shape == (3, 3) and (fake[0] * 2).stride() == (1,)


def fake_tensors_with_symbols():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
        statically_known_true,
    )

    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.rand(5, 3), symbolic_context=context)
    with mode:
        y = torch.cat([x, x])
    assert isinstance(y.shape[0], torch.SymInt) and y.shape[1] == 3
    assert statically_known_true(y.shape[0] == 2 * x.shape[0]) and int(y.shape[0]) == 10


# Derivatives.


def forward_ad():
    import torch.autograd.forward_ad as fwAD

    x, tangent = torch.rand(3, 4), torch.rand(3, 4)
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, tangent)
        for function in (
            torch.sin,
            nn.functional.gelu,
            nn.functional.softplus,
            lambda t: nn.functional.layer_norm(t, (4,)),
        ):
            assert fwAD.unpack_dual(function(dual)).tangent.shape == (3, 4)
        close(fwAD.unpack_dual(dual.sin()).tangent, x.cos() * tangent)


def func_grad():
    close(torch.func.grad(cube)(torch.tensor([2.0])), torch.tensor([12.0]))
    gradient, value = torch.func.grad_and_value(cube)(torch.tensor([2.0]))
    close(value, torch.tensor(8.0))
    close(torch.func.grad(torch.func.grad(lambda x: x**3))(torch.tensor(2.0)), torch.tensor(12.0))


def func_vjp_and_jvp():
    x = torch.tensor([1.0, 2.0])
    value, pull = torch.func.vjp(torch.sin, x)
    close(pull(torch.ones(2))[0], x.cos())
    value, tangent = torch.func.jvp(torch.sin, (x,), (torch.ones(2),))
    close(tangent, x.cos())


def func_jacobians():
    x = torch.tensor([1.0, 2.0])
    close(torch.func.jacrev(torch.sin)(x), torch.diag(x.cos()))
    close(torch.func.jacfwd(torch.sin)(x), torch.diag(x.cos()))
    close(torch.autograd.functional.jacobian(torch.sin, x, vectorize=True), torch.diag(x.cos()))
    close(torch.autograd.functional.hessian(cube, x), torch.diag(6 * x))


def func_hessian():
    x = torch.tensor([1.0, 2.0])
    close(torch.func.hessian(cube)(x), torch.diag(6 * x))


def func_linearize():
    x = torch.tensor([1.0, 2.0])
    value, push = torch.func.linearize(torch.sin, x)
    close(push(torch.ones(2)), x.cos())


def func_vmap():
    x = torch.rand(4, 3)
    close(torch.vmap(torch.dot)(x, x), (x * x).sum(-1))
    close(torch.vmap(torch.func.grad(cube))(x), 3 * x**2)
    close(torch.vmap(lambda t: t + torch.randn(3) * 0, randomness="different", chunk_size=2)(x), x)


def func_functionalize():
    def writes(x):
        y = x.clone()
        y[0].add_(1)
        return y

    close(torch.func.functionalize(writes)(torch.zeros(2)), torch.tensor([1.0, 0.0]))
    graph = torch.fx.experimental.proxy_tensor.make_fx(torch.func.functionalize(writes))(torch.zeros(2))
    assert "add_" not in graph.code
    close(graph(torch.zeros(2)), torch.tensor([1.0, 0.0]))


def func_modules():
    models = [nn.Linear(3, 2) for _ in range(4)]
    params, buffers = torch.func.stack_module_state(models)
    x = torch.rand(5, 3)
    got = torch.vmap(lambda p, b: torch.func.functional_call(models[0], (p, b), (x,)))(params, buffers)
    close(got, torch.stack([model(x) for model in models]))


def gradcheck():
    assert torch.autograd.gradcheck(torch.sin, (torch.rand(3, dtype=torch.float64, requires_grad=True),))
    assert torch.autograd.gradgradcheck(torch.sin, (torch.rand(3, dtype=torch.float64, requires_grad=True),))


def checkpoints():
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), torch.rand(2, 3, requires_grad=True)
    for reentrant in (False, True):
        x.grad = None
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        assert x.grad is not None
    checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()
    matrices = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    checkpoint(model, x, use_reentrant=False, context_fn=matrices).sum().backward()


def hooks_of_saved_tensors():
    packed = []
    x = torch.rand(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        y = x.sin().sum()
    y.backward()
    assert packed
    with torch.autograd.graph.save_on_cpu():
        x.exp().sum().backward()
    close(x.grad, x.detach().cos() + x.detach().exp())


def autograd_functions():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

        @staticmethod
        def vmap(info, in_dims, x):
            return Double.apply(x), in_dims[0]

    x = torch.rand(4, 3)
    close(torch.vmap(torch.func.grad(lambda t: Double.apply(t).sum()))(x), torch.full((4, 3), 2.0))


# Graphs and tracers of torch.fx.


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu() + x


def fx_trace_and_rewrite():
    from torch.fx import Interpreter, Tracer, subgraph_rewriter, symbolic_trace
    from torch.fx.passes.shape_prop import ShapeProp
    from torch.fx.passes.split_module import split_module

    model, x = Small(), torch.rand(2, 4)
    traced = symbolic_trace(model)
    assert Tracer().trace(model).nodes
    close(traced(x), model(x))
    close(Interpreter(traced).run(x), model(x))
    ShapeProp(traced).propagate(x)
    assert all(node.meta["tensor_meta"].shape == (2, 4) for node in traced.graph.nodes if node.op != "output")
    close(split_module(traced, model, lambda node: 0)(x), model(x))
    subgraph_rewriter.replace_pattern(traced, lambda a: a.relu(), lambda a: a.relu() * 2)
    close(traced(x), model.linear(x).relu() * 2 + x)
    assert "linear" in traced.print_readable(print_output=False)


def fx_fake_propagation():
    from torch.fx import symbolic_trace
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    traced = symbolic_trace(lambda x: x.sin() @ x.t())
    assert FakeTensorProp(traced).propagate(torch.rand(2, 4)).shape == (2, 2)


def make_fx():
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.rand(2, 4)
    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(lambda t: (t @ t.t()).softmax(-1), tracing_mode=mode)(x)
        assert any("softmax" in str(node.target) for node in graph.graph.nodes), graph.code
        close(graph(x), (x @ x.t()).softmax(-1))


def decompositions():
    from torch._decomp import core_aten_decompositions, get_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    table = get_decompositions([torch.ops.aten.gelu.default])
    graph = make_fx(nn.functional.gelu, decomposition_table=table)(torch.rand(3))
    assert not any("gelu" in str(node.target) for node in graph.graph.nodes) and core_aten_decompositions()


def references():
    import torch._prims
    import torch._refs

    x = torch.rand(3)
    close(torch._refs.softmax(x, 0), x.softmax(0))
    close(torch._prims.sin(x), x.sin())


def quantisation_with_fx():
    import torch.ao.quantization as quantization
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    torch.backends.quantized.engine = "fbgemm" if "fbgemm" in torch.backends.quantized.supported_engines else "qnnpack"
    x = torch.rand(2, 4)
    prepared = prepare_fx(Small().eval(), quantization.get_default_qconfig_mapping(), (x,))
    prepared(x)
    assert convert_fx(prepared)(x).shape == (2, 4)


def quantisation_in_eager():
    from torch.ao.quantization import quantize_dynamic

    model = quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}, dtype=torch.qint8)
    assert model(torch.rand(2, 4)).shape == (2, 4)


def torchscript():
    model, x = Small(), torch.rand(2, 4)
    close(torch.jit.trace(model, x)(x), model(x))
    close(torch.jit.script(model)(x), model(x))
    close(torch.jit.freeze(torch.jit.script(model.eval()))(x), model(x))


# Operators of one's own, subclasses, modes.


def operators_of_ones_own():
    @torch.library.custom_op("features::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.register_fake(lambda x: torch.empty_like(x))
    double.register_autograd(lambda ctx, grad: grad * 2)
    double.register_vmap(lambda info, dims, x: (double(x), dims[0]))
    x = torch.rand(3, requires_grad=True)
    double(x).sum().backward()
    close(x.grad, torch.full((3,), 2.0))
    assert double(torch.empty(3, device="meta")).shape == (3,)
    close(torch.vmap(double)(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def checks_of_operators():
    @torch.library.custom_op("features::triple", mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    triple.register_fake(lambda x: torch.empty_like(x))
    triple.register_autograd(lambda ctx, grad: grad * 3)
    result = torch.library.opcheck(triple, (torch.rand(3, requires_grad=True),))
    assert set(result.values()) == {"SUCCESS"}, result


def operators_with_a_library():
    library = torch.library.Library("features2", "DEF")
    library.define("four(Tensor x) -> Tensor")
    library.impl("four", lambda x: x * 4, "CompositeExplicitAutograd")
    torch.library.register_fake("features2::four", lambda x: torch.empty_like(x))
    close(torch.ops.features2.four(torch.ones(2)), torch.full((2,), 4.0))
    assert torch.ops.features2.four(torch.empty(2, device="meta")).shape == (2,)


def subclasses_and_modes():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    calls, functions = [], []

    class Logging(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            functions.append(func)
            return func(*args, **(kwargs or {}))

    with Logging(), Functions():
        torch.ones(2).softmax(0)
    assert any("softmax" in call for call in calls) and functions


def wrapper_subclasses():
    from torch.testing._internal.two_tensor import TwoTensor
    from torch.utils._pytree import tree_map

    both = TwoTensor(torch.ones(2), torch.zeros(2))
    got = both.sin() + 1
    assert type(got) is TwoTensor
    close(got.a, torch.ones(2).sin() + 1)
    assert tree_map(type, [both])[0] is TwoTensor


def counting_flops():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        nn.Linear(4, 8)(torch.rand(2, 4))
    assert counter.get_total_flops() == 2 * 2 * 4 * 8


def debug_mode():
    from torch.utils._debug_mode import DebugMode

    with DebugMode() as mode:
        torch.ones(2).sin()
    assert "sin" in mode.debug_string()


def functional_tensors():
    from torch._subclasses.functional_tensor import dispatch_functionalize

    x = torch.zeros(2)
    close(dispatch_functionalize(lambda t: t.clone().add_(1))(x), torch.ones(2))


# Nested, sparse, masked.


def nested_tensors():
    parts = [torch.rand(2, 4), torch.rand(3, 4)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    y = (nested * 2).sin()
    close(torch.cat(y.unbind()), (torch.cat(parts) * 2).sin())
    y.values().sum().backward()
    assert nested.grad is not None
    q = torch.nested.nested_tensor([torch.rand(2, 8), torch.rand(3, 8)], layout=torch.jagged)
    q = q.unflatten(-1, [2, 4]).transpose(1, 2)
    assert nn.functional.scaled_dot_product_attention(q, q, q).shape[0] == 2
    assert torch.nested.nested_tensor(parts).to_padded_tensor(0.0).shape == (2, 3, 4)


def sparse_tensors():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        close(sparse @ dense, dense @ dense)
        close(sparse.to_dense(), dense)
    assert torch.sparse.sum(dense.to_sparse()).item() == 3


def masked_tensors():
    import torch.masked

    masked = torch.masked.masked_tensor(torch.tensor([1.0, 2.0]), torch.tensor([True, False]))
    assert masked.sum().get_data().item() == 1
    close(torch.masked.mean(torch.tensor([1.0, 2.0]), mask=torch.tensor([True, False])), torch.tensor(1.0))


def complex_and_named():
    x = torch.view_as_complex(torch.rand(3, 2)).requires_grad_()
    (x.abs() ** 2).sum().backward()
    assert x.grad.shape == (3,) and torch.fft.fft(x).shape == (3,)


# Control flow and attention that PyTorch's compiler serves when it is compiled.


def control_flow():
    x = torch.rand(3)
    close(torch.cond(x.sum() > 100, torch.cos, torch.sin, (x,)), x.sin())
    from torch._higher_order_ops import associative_scan, scan, while_loop

    (count, total) = while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t + i), (torch.tensor(0), torch.tensor(0)))
    assert count.item() == 3 and total.item() == 3
    carry, each = scan(lambda c, v: (c + v, c * 1), torch.tensor(0.0), torch.tensor([1.0, 2.0, 3.0]))
    close(carry, torch.tensor(6.0))
    close(associative_scan(lambda a, b: a + b, torch.ones(4), 0, combine_mode="generic"), torch.tensor([1.0, 2, 3, 4]))


def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.rand(1, 2, 8, 16)
    with sdpa_kernel(SDPBackend.MATH):
        want = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    close(nn.functional.scaled_dot_product_attention(q, q, q, causal_lower_right(8, 8)), want)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, device="cpu", BLOCK_SIZE=8)
    close(flex_attention(q, q, q, block_mask=mask), want)
    bias = torch.rand(8)
    flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + bias[i])


FEATURES = features(globals())
