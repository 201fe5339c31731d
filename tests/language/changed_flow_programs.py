"""Control flow, exceptions and items, with what is given changed between calls: numbers, shapes, arrays, tensors."""

import numpy as np
import torch
from scenario import Registry, v

scenario = Registry()


@scenario
def chained_assign_and_aliases(start):

    def program(x, l):
        a = b = l
        a += [1]
        b = b + [2]
        c = d = x
        c += 1
        d = d * 2
        return (a, b, c, d, a is l, c is x)

    c = start(program)
    c(v(), [0])
    c(v(), [5, 5])


@scenario
def star_args_identity(start):

    def f(*a, **k):
        a[0].append(1)
        k["z"] = 2
        return (a, k)

    def program(x, l, d):
        a, k = f(l, l, **d)
        return (x + len(l), a[0] is a[1], k is d, "z" in d, k)

    c = start(program)
    c(v(), [], {})
    c(v(), [1], {"q": 1})


@scenario
def finally_return_and_loop_control(start):

    def program(x, k):
        for i in range(5):
            try:
                if i == k:
                    break
                if i == k - 1:
                    continue
                x = x + i
            finally:
                x = x * 2
        else:
            return (x, "else")
        return (x, "break")

    c = start(program)
    c(v(), 2)
    c(v(), 9)
    c(v(), 0)


@scenario
def exception_identity_and_notes(start):
    err = ValueError("one")

    def program(x, k):
        try:
            if k:
                raise err
        except ValueError as e:
            e.add_note("n" + str(k))
            return (x + 1, e is err, e.__notes__)
        return x

    c = start(program, err)
    c(v(), 1)
    c(v(), 0)
    c(v(), 2)


@scenario
def exceptions_raised_keep_state(start):

    class S:
        def __init__(s):
            s.n = 0

    s = S()
    l = []

    def program(x, k):
        s.n += 1
        l.append(s.n)
        x.add_(1)
        if k:
            raise RuntimeError(f"r{s.n}")
        s.n += 10
        return x

    c = start(program, s, l)
    c(v(), 0)
    c(v(), 1)
    c(v(), 0)
    c(v(), 1)


@scenario
def assertion_texts(start):

    def program(x, k):
        assert k > 0, f"k is {k} of {x.shape}"
        assert x.shape[0] == 6
        return x * k

    c = start(program)
    c(v(), 1)
    c(v(), 0)
    c(v(), -2)
    c(v()[:3], 1)


@scenario
def shape_dependent_python(start):

    def program(x):
        n, m = x.shape
        out = []
        for i in range(n):
            out.append(x[i] * (m - i))
        return (
            torch.stack(out),
            n * m,
            f"{n}x{m}",
            x.reshape(m, n),
            x.numel() / n,
            x.size(-1) ** 2,
            [0] * n,
            "ab" * m,
            n % 2 == 0,
            divmod(n * 7, m),
            max(n, m),
            x.shape[0:1] + (1,),
            tuple(x.shape) == (n, m),
            torch.Size([n]) == x.shape[:1],
        )

    c = start(program)
    c(torch.ones(2, 3))
    c(torch.ones(3, 2))
    c(torch.ones(4, 5))
    c(torch.ones(1, 4))
    c(torch.ones(2, 3))


@scenario
def indexes_of_all_kinds(start):

    def program(x, i, s):
        return (
            x[i],
            x[s],
            x[..., i],
            x[None],
            x[i, None, s] if x.dim() > 1 else 0,
            x[[0, -1]],
            x[torch.tensor([0, 1])],
            x[-1:],
            x[::2],
            x[i:],
            x[:i],
        )

    c = start(program)
    y = torch.arange(12.0).view(3, 4)
    for i, s in (
        (0, slice(None)),
        (-1, slice(0, 2)),
        (1, slice(None, None, 2)),
        (2, slice(5, 9)),
        (True, slice(-2, None)),
    ):
        c(y, i, s)


@scenario
def setitem_of_all_kinds(start):

    def program(x, i, s, w):
        x[i] = w
        x[s] = w
        x[..., 0] = 1
        x[x > 5] = 0
        x[[0]] += 1
        x[-1] *= w
        return x

    c = start(program)
    for i, s, w in (
        (0, slice(None), 2.0),
        (1, slice(0, 2), torch.tensor(3.0)),
        (-1, slice(1, None), torch.arange(4.0)),
        (2, slice(0, 0), 5),
    ):
        c(torch.arange(12.0).view(3, 4), i, s, w)


@scenario
def zero_size_and_scalars(start):

    def program(x):
        return (
            x.sum(),
            x.mean(),
            x.prod(),
            x + 1,
            x.reshape(-1),
            torch.cat([x.reshape(-1), torch.zeros(2)]),
            x.any(),
            x.max() if x.numel() else None,
            x.cumsum(0) if x.dim() else 0,
        )

    c = start(program)
    for s in ((0,), (0, 3), (3, 0), (), (1,), (2, 0, 2)):
        c(torch.ones(s))


@scenario
def where_minmax_nan(start):

    def program(x, y):
        return (
            torch.where(x > y, x, y),
            torch.maximum(x, y),
            torch.fmin(x, y),
            x.max(),
            x.argmax(),
            x.sort()[1],
            x.topk(2)[0],
            torch.isnan(x).sum(),
            x == x,
            x.clamp(0, 1),
            x.nan_to_num(),
            x.median(),
            torch.sign(x),
            x.unique() if False else 0,
        )

    n = float("nan")
    i = float("inf")
    c = start(program)
    c(torch.tensor([1.0, n, 3.0]), torch.tensor([n, 2.0, i]))
    c(torch.tensor([-0.0, 0.0, -i]), torch.tensor([0.0, -0.0, i]))
    c(torch.tensor([2.0, 2.0, 1.0]), torch.tensor([2.0, 1.0, 2.0]))


@scenario
def unhashable_and_bad_calls(start):

    def program(x, k):
        out = []
        for f in (
            lambda: {[]: 1},
            lambda: k(),
            lambda: k.zz,
            lambda: k[0],
            lambda: x + "a",
            lambda: int("q"),
            lambda: x.foo,
            lambda: len(5),
            lambda: [1][9],
            lambda: torch.zeros(2) + torch.zeros(3),
            lambda: x.view(4),
        ):
            try:
                out.append(f())
            except Exception as e:
                out.append((type(e).__name__, str(e)[:60]))
        return out

    c = start(program)
    c(v(), 5)
    c(v(), "str")
    c(v(), None)


@scenario
def numpy_scalar_and_zero_dim_arrays(start):

    def program(a, x):
        return (
            a + 1,
            x * float(a),
            np.asarray(a).dtype,
            a.item() if hasattr(a, "item") else a,
            x + torch.tensor(a),
            type(a + a).__name__,
        )

    c = start(program)
    for a in (np.float32(1.5), np.float64(1.5), np.int64(3), np.array(2.0), np.bool_(True), np.int8(-3), 2.5):
        c(a, v())


@scenario
def structured_and_object_arrays(start):

    def program(a, x):
        return (x + len(a), a[0], a.dtype)

    c = start(program)
    c(np.array([1, "a", None], dtype=object), v())
    c(np.array([(1, 2.0)], dtype=[("p", int), ("q", float)]), v())
    c(np.array(["ab", "c"]), v())
    c(np.array([1, 2], dtype="datetime64[D]"), v())


@scenario
def sparse_quant_nested_inputs(start):

    def program(t):
        return (t + t if not t.is_quantized else t.dequantize(), t.is_sparse, t.layout)

    c = start(program)
    c(v())
    c(torch.eye(3).to_sparse())
    c(torch.eye(3).to_sparse_csr())
    c(torch.quantize_per_tensor(v(), 0.1, 0, torch.qint8))
    c(v())
