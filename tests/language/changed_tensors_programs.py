"""Tensors of all kinds, their memory and their gradients: changed between calls."""

import math
import operator

import numpy as np
import torch
from scenario import Registry, v
from torch.utils._device import DeviceContext

scenario = Registry()


def m():
    return torch.arange(6.0).view(2, 3)


@scenario
def views_of_inputs_written(start):

    def program(x):
        y = x.view(2, 3)
        z = y[0]
        z.add_(1)
        y[:, 1] *= 2
        w = x[::2]
        w.zero_()
        return (y, z, w, x)

    c = start(program)
    c(v())
    c(v(2))
    c(torch.arange(12.0)[::2]) if False else None
    b = torch.arange(20.0)
    c(b[3:9])
    c(b[4:10])


@scenario
def overlapping_arguments_written(start):

    def program(a, b):
        a.add_(1)
        b.mul_(2)
        return (a + b, a, b)

    c = start(program)
    base = torch.arange(10.0)
    c(base[:6], base[2:8])
    c(base[:6], base[:6])
    c(v(), v())
    c(base[4:], base[:6])
    x = v()
    c(x, x)


@scenario
def result_is_view_of_closure_tensor(start):
    t = torch.arange(12.0).view(3, 4)

    def program(x):
        return (t[1], t.T, x + t[0, 0])

    c = start(program, t)
    c(v())
    t.add_(1)
    c(v())
    r = c(v())
    r[0].fill_(7)
    c(v())


@scenario
def expanded_input_and_strides(start):

    def program(x):
        return (x + 1, x * x, x.clone(), x.contiguous(), torch.empty_like(x).stride(), x.sum(0))

    c = start(program)
    for t in (
        torch.ones(3, 1).expand(3, 4),
        torch.ones(3, 4).T,
        torch.ones(1, 4).expand(3, 4),
        torch.ones(3, 4)[:, ::2],
        torch.ones(0, 4),
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
    ):
        c(t)


@scenario
def dtype_promotion_scalars(start):

    def program(x, s):
        return (
            x + s,
            s * x,
            x / 2,
            x // 2 if not x.is_complex() else 0,
            x**2,
            torch.where(x == x, x, s),
            x.clamp(min=1) if not x.is_complex() else 0,
        )

    c = start(program)
    for dt in (
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    ):
        for s in (2, 2.5, torch.tensor(2), torch.tensor(2.5, dtype=torch.float64)):
            c(torch.tensor([1, 2, 3], dtype=dt), s)


@scenario
def integer_overflow(start):

    def program(x):
        return (x * x, x + x, -x, x << 3, x >> 1, abs(x), x.sum(), x.prod(), x.cumsum(0))

    c = start(program)
    for dt in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        i = torch.iinfo(dt)
        c(torch.tensor([i.max, i.min, 100, 1], dtype=dt))


@scenario
def integer_scalar_out_of_range(start):

    def program(x, k):
        return x + k

    c = start(program)
    for k in (1, 255, 256, -1, 300, 2**31, 2**62):
        c(torch.tensor([1, 2], dtype=torch.uint8), k)
        c(torch.tensor([1, 2], dtype=torch.int8), k)


@scenario
def zero_dim_against_dim(start):

    def program(x, y):
        return (x + y, y * x, torch.maximum(x, y) if x.dtype == y.dtype else 0)

    c = start(program)
    for a in (torch.tensor(1.5, dtype=torch.float64), torch.tensor(2), torch.tensor(True), torch.tensor(1 + 1j)):
        for b in (v(), v().int(), v().half(), torch.tensor([True, False]), v().to(torch.complex64)):
            c(a, b)


@scenario
def complex_math(start):

    def program(z):
        return (
            z.real,
            z.imag,
            z.conj(),
            z.conj() * 2,
            z.abs(),
            z.angle(),
            torch.view_as_real(z),
            z * 1j,
            z.exp(),
            z @ z.conj(),
            z.conj().resolve_conj(),
            z.imag.neg(),
        )

    c = start(program)
    c(torch.tensor([1 + 2j, 3 - 1j]))
    c(torch.tensor([1 + 2j, 3 - 1j]).conj())
    c(torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128))
    c(torch.tensor([1 + 2j, 0j, 3 - 1j, 9j])[::2])


@scenario
def negative_bit(start):

    def program(z):
        return (z + 1, z.is_neg(), z.clone().is_neg(), z * z)

    c = start(program)
    a = torch.tensor([1 + 2j, 3 - 1j])
    c(a.imag)
    c(a.conj().imag)
    c(a.real)


@scenario
def same_tensor_in_two_places(start):

    def program(d):
        d["a"].add_(1)
        return (d["a"] + d["b"], d["a"] is d["b"])

    c = start(program)
    x = v()
    y = v()
    c({"a": x, "b": x})
    c({"a": x, "b": y})
    c({"a": x, "b": x})
    c({"b": x, "a": x})


@scenario
def torch_function_tensor_like(start):

    class T:
        def __init__(s, t):
            s.t = t
            s.log = []

        @classmethod
        def __torch_function__(cls, f, types, args=(), kwargs=None):
            args = [a.t if isinstance(a, T) else a for a in args]
            r = f(*args, **kwargs or {})
            return T(r) if isinstance(r, torch.Tensor) else r

    def program(a, x):
        return (torch.add(a, x), torch.stack([x, x]) + 1, torch.sum(a))

    c = start(program)
    c(T(v()), v())
    c(v(), T(v(2)))
    c(v(), v())


@scenario
def attribute_on_tensor(start):

    def program(x):
        t = getattr(x, "tag", 1)
        x.seen = getattr(x, "seen", 0) + 1
        return (x * t, x.seen)

    c = start(program)
    x = v()
    c(x)
    c(x)
    x.tag = 3
    c(x)
    y = v()
    y.tag = 4
    c(y)
    c(y)


@scenario
def grad_attribute(start):
    w = v().requires_grad_()

    def program(x):
        g = w.grad
        return x + 1 if g is None else x + g

    c = start(program)
    c(v())
    (w * 2).sum().backward()
    c(v())
    w.grad.add_(1)
    c(v())
    w.grad = None
    c(v())
    w.grad = torch.ones(6) * 9
    c(v())


@scenario
def grad_written_inside(start):
    w = v().requires_grad_()

    def program(x):
        if w.grad is not None:
            w.grad.zero_()
        w.grad = x * 2
        return w.grad

    c = start(program, w)
    c(v())
    c(v(2))
    r = c(v(3))
    r.add_(1)
    c(v())


@scenario
def backward_inside(start):
    w = torch.ones(6).requires_grad_()

    def program(x):
        loss = (w * x).pow(2).sum()
        loss.backward()
        return (loss.detach(), w.grad)

    c = start(program, w)
    c(v())
    c(v())
    w.grad = None
    c(v())
    w.register_hook(lambda g: g * 10)
    c(v())
    w.grad.zero_()
    c(v())


@scenario
def backward_around(start):
    m = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    m.double()  # a norm over three rows multiplies roundings

    def program(x):
        return m(x)

    c = start(program, m, *m.parameters())
    for i in range(3):
        r = c((torch.arange(18.0).double().reshape(3, 6) + i).sin())
        r.sum().backward()
    c(torch.arange(18.0).double().reshape(3, 6).sin())
    [p.grad for p in m.parameters()]
    g = lambda x: [p.grad for p in m.parameters()]
    start(g)(v())


@scenario
def retain_graph_and_double(start):
    w = v().requires_grad_()
    out = []

    def program(x):
        return w.sin() * x

    c = start(program, w, out)
    y = c(v())
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    try:
        y.sum().backward()
    except RuntimeError as e:
        out.append(str(e)[:60])
    out.append(w.grad)
    y = c(v())
    (g,) = torch.autograd.grad(y.sum(), w, create_graph=True)
    g.sum().backward()
    out.append(w.grad.clone())
    c(v())
    y.retain_grad()
    z = c(v())
    z.retain_grad()
    z.sum().backward()
    out.append(z.grad)
    c(v())


@scenario
def needs_input_then_written(start):
    w = v().requires_grad_()
    out = []

    def program(x):
        y = x * w
        return (y, x)

    c = start(program, out)
    x = v()
    y, _ = c(x)
    x.add_(1)
    try:
        y.sum().backward()
        out.append("no error")
    except RuntimeError as e:
        out.append(str(e)[:80])
    c(v())


@scenario
def inplace_on_leaf_errors(start):

    def program(x):
        x.add_(1)
        return x

    c = start(program)
    c(v())
    c(v().requires_grad_())
    with torch.no_grad():
        c(v().requires_grad_())
    c(v().requires_grad_() * 1)


@scenario
def view_of_leaf_inplace(start):

    def program(x):
        y = x.view(2, 3)
        y[0].mul_(2)
        return y

    c = start(program)
    x = v().requires_grad_() * 1
    r = c(x)
    r.sum().backward()
    c(v())
    with torch.inference_mode():
        c(v())
    t = torch.ones(6).requires_grad_()
    c(t)
    c(t.view(3, 2))


@scenario
def nested_autocast(start):

    def program(a, b):
        r = [torch.mm(a, b).dtype]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            r.append(torch.mm(a, b))
            with torch.autocast("cpu", enabled=False):
                r.append(torch.mm(a, b))
            r.append(torch.mm(a, b) + a)
            with torch.autocast("cpu", dtype=torch.float16):
                r.append(torch.mm(a, b).dtype)
        return (r, torch.mm(a, b))

    c = start(program)
    a = torch.ones(2, 2)
    c(a, a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        c(a, a)
    with torch.autocast("cpu", dtype=torch.float16):
        c(a, a)
    c(a, a)


@scenario
def default_dtype_and_device(start):

    def program(x):
        return (
            torch.ones(2),
            torch.tensor(1.5),
            x + torch.arange(6),
            torch.zeros(3).device,
            torch.get_default_dtype(),
            torch.rand(1).dtype,
        )

    c = start(program)
    c(v())
    torch.set_default_dtype(torch.float64)
    try:
        c(v())
    finally:
        torch.set_default_dtype(torch.float32)
    c(v())
    torch.set_default_device("meta")
    try:
        c(torch.ones(6, device="cpu"))
    except BaseException:
        pass
    finally:
        torch.set_default_device(None)
    c(v())
    with torch.device("meta"):
        start(lambda: (torch.ones(2).device, torch.empty(3).device))()
    c(v())
    with torch.device("cpu"):
        c(v())


@scenario
def set_default_device_inside(start):

    def program(x):
        torch.set_default_device("meta")
        try:
            y = torch.ones(2)
        finally:
            torch.set_default_device(None)
        with torch.device("meta"):
            z = torch.zeros(3)
        return (x + 1, y.device, z.device, torch.ones(1).device)

    c = start(program)
    c(v())
    c(v())


@scenario
def device_context_inside(start):

    def program(x):
        with DeviceContext("meta"):
            y = torch.ones(2)
        torch.set_default_device("meta")
        z = torch.zeros(3)
        torch.set_default_device(None)
        return (x + 1, y.device, z.device, torch.ones(1).device)

    c = start(program)
    c(v())
    c(v())


@scenario
def numpy_negative_strides(start):

    def program(a, x):
        return (np.sum(a) + 1, a[::-1], a.copy(), a * 2)

    c = start(program)
    a = np.arange(6.0)
    c(a[::-1], v())
    c(a, v())
    c(a[::2], v())
    c(np.asfortranarray(a.reshape(2, 3)), v())
    c(a.reshape(2, 3).T, v())


@scenario
def from_numpy_negative(start):

    def program(a):
        return torch.from_numpy(a) + 1

    c = start(program)
    a = np.arange(6.0)
    c(a)
    c(a[::-1])
    c(a[::2])
    c(a.astype(np.int16))
    c(a.astype(np.uint16))
    c(a.astype(">f8"))
    c(a.astype(bool))


@scenario
def numpy_writes(start):

    def program(a, x):
        a[0] = 9
        a += 1
        a[a > 3] = 0
        a[1:3] *= 2
        b = a[a > 0]
        return (b, a, x * a, torch.from_numpy(a) + x)

    c = start(program)
    c(np.arange(6.0), v())
    c(np.arange(6.0)[::-1].copy(), v())
    a = np.arange(12.0)
    c(a[::2], v())


@scenario
def numpy_linalg_random(start):

    def program(a, x):
        np.random.seed(3)
        r = np.random.rand(2)
        return (
            np.linalg.norm(a),
            np.linalg.inv(a),
            r,
            np.random.randint(5),
            np.random.default_rng(1).normal(size=2),
            x + 1,
        )

    c = start(program)
    c(np.eye(3) * 2, v())
    c(np.ones((2, 2)) + np.eye(2), v())
    c2 = start(lambda x: (x + np.random.rand(), np.random.randint(100)))
    np.random.seed(0)
    c2(v())
    c2(v())
    np.random.seed(0)
    c2(v())


@scenario
def tensor_times_array(start):

    def program(x, a):
        return (
            x * a,
            a * x,
            x + np.float32(2),
            np.float64(2) * x,
            np.add(x, a),
            x.numpy() * 2,
            x @ a if a.ndim == 1 else 0,
        )

    c = start(program)
    c(v(), np.arange(6.0))
    c(v(), np.arange(6, dtype=np.float32))
    c(v().double(), np.arange(6))


@scenario
def array_shared_with_tensor(start):

    def program(x):
        a = x.numpy()
        a[0] = 100
        b = torch.from_numpy(a)
        b[1] = 200
        return (x, a, b)

    c = start(program)
    x = v()
    c(x)
    c(x)
    c(torch.arange(12.0)[::2])


@scenario
def tensor_in_dict_key_and_set(start):
    t = v()
    s = {t}
    d = {t: 1}

    def program(a, x):
        return (a in s, d.get(a, 5) + x, len({a, x}))

    c = start(program)
    c(t, v())
    c(v(), v())
    c(t, t)


@scenario
def inplace_ops_on_views_of_inputs(start):

    def program(x):
        a, b = x.chunk(2)
        a += b
        b *= a
        x[0] = 9
        c = x.unfold(0, 2, 2)
        c[:, 0] -= 1
        x.t_() if x.dim() == 2 else None
        return (a, b, c, x)

    c = start(program)
    c(v())
    c(m()[:, :2].clone())
    c(torch.arange(24.0)[::2][:6])
    c(v().requires_grad_() * 1)


@scenario
def result_aliases_input(start):

    def program(x):
        return (
            x,
            x.view(-1),
            x.detach(),
            x[1:],
            x.T,
            x.expand_as(x),
            x.contiguous(),
            x.to(torch.float32),
            x.reshape(6),
            x.flatten(),
        )

    c = start(program)
    c(v())
    r = c(v())
    r[3].fill_(5)
    c(torch.arange(12.0)[::2])


@scenario
def scalar_tensor_conversions(start):

    def program(x, i):
        k = int(i)
        return (x[:k], x * float(i), bool(i), x[i], range(k), [1, 2, 3][i], f"{i}", round(float(i)), operator.index(i))

    c = start(program)
    c(v(), torch.tensor(2))
    c(v(), torch.tensor(1))
    c(v(), torch.tensor(2, dtype=torch.uint8))


@scenario
def float_edge_values(start):

    def program(x, k):
        return (x * k, x + k, torch.full((2,), k), x.clamp(max=k), math.copysign(1, k), k == k, str(k))

    c = start(program)
    for k in (0.0, -0.0, float("inf"), float("nan"), 1e-45, 1e39, -float("inf"), True, 3):
        c(v(), k)


@scenario
def int_edge_values(start):

    def program(x, k):
        return (x * k, torch.tensor(k), k // 3, -k % 5, k**2, k.bit_length(), divmod(k, 7))

    c = start(program)
    for k in (0, 1, -1, 2**31, 2**53 + 1, -(2**62), 7, True):
        c(v(), k)


@scenario
def half_and_bfloat_math(start):

    def program(x):
        return (x + 1, x * x, x.sum(), x.exp(), x / 3, x.softmax(0), x @ x, x.mean(), x**0.5, x.float())

    c = start(program)
    c(v().half())
    c(v().bfloat16())
    c(v(1000).half())
    c(v(0.001).bfloat16())


@scenario
def bool_tensor_math(start):

    def program(a, b):
        return (
            a & b,
            a | b,
            a ^ b,
            ~a,
            a + b,
            a * b,
            a.sum(),
            a == b,
            a.any(),
            a.all(),
            a.float().mean(),
            torch.where(a, 1, 0),
            torch.where(a, 1.5, b),
        )

    c = start(program)
    a = torch.tensor([True, False, True])
    c(a, ~a)
    c(a, a)
    c(a[:1], a)


@scenario
def uint8_wraparound_and_mixed(start):

    def program(a, b):
        return (a - b, a * b, a // b, a % b, a > b, a + 1.5, a / b, a << 1, torch.bitwise_not(a))

    c = start(program)
    c(torch.tensor([1, 250], dtype=torch.uint8), torch.tensor([3, 7], dtype=torch.uint8))
    c(torch.tensor([1, 250], dtype=torch.uint8), torch.tensor([3, 7], dtype=torch.int8))
    c(torch.tensor([-7, 7]), torch.tensor([2, -2]))
    c(torch.tensor([-7.0, 7.0]), torch.tensor([2.0, -2.0]))


@scenario
def integer_division_by_zero(start):

    def program(a, b):
        try:
            return a // b
        except RuntimeError as e:
            return str(e)[:20]

    c = start(program)
    c(torch.tensor([1]), torch.tensor([0]))
    c(torch.tensor([1.0]), torch.tensor([0.0]))
    c(torch.tensor([4]), torch.tensor([2]))


@scenario
def memory_format_and_channels_last(start):

    def program(x):
        return (
            x + 1,
            x.relu(),
            torch.empty_like(x).stride(),
            x.contiguous(memory_format=torch.channels_last),
            x.is_contiguous(memory_format=torch.channels_last),
            x.permute(0, 2, 3, 1).is_contiguous(),
        )

    c = start(program)
    a = torch.arange(24.0).view(1, 2, 3, 4)
    c(a)
    c(a.to(memory_format=torch.channels_last))
    c(a.transpose(2, 3))
