"""NumPy inside compiled functions: arrays as arguments, made from tensors and made into them, scalars, random numbers."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from programs import Programs, vector

programs = Programs()


def array(scale: float = 1.0) -> np.ndarray:
    return np.arange(1.0, 7.0) * scale


def arrays(*values: Any) -> Any:
    return tuple((lambda value=value: (vector(), copy.copy(value))) for value in values)


@programs(*[lambda: (vector(),)] * 2)
def tensor_to_array_and_back(x):
    y = x.sin()
    a = y.numpy() * 2
    return torch.from_numpy(a) + x, a


@programs(*[lambda: (vector(),)] * 2, breaks=True)
def array_shares_memory_with_the_tensor(x):
    y = x * 2
    a = y.numpy()
    a[0] = 100
    y[1] = 50
    z = y + 1
    a += 1
    return y, a, z, y + 0


@programs(*[lambda: (vector(), array())] * 2, breaks=True)
def argument_shares_memory_with_a_tensor(x, a):
    t = torch.from_numpy(a)
    t.add_(1)
    a[0] = -1
    u = torch.as_tensor(a)
    return t * 2, u.sum(), x


@programs(*arrays(array(), array(2), array()))
def array_argument(x, a):
    return x + torch.from_numpy(a), a + 1


@programs(*arrays(array(), array(2), np.ones((2, 3)), array().astype("f4")), breaks=True)
def attributes_of_an_array(x, a):
    return x * a.ndim, a.shape, a.dtype.name, a.size, a.T.shape, a.itemsize, len(a)


@programs(*arrays(array(), array(2), array()[::-1]), breaks=True)
def items_of_an_array(x, a):
    return x * a[0], a[1:3], a[-1], a[a > 3]


@programs(*arrays(array(), array()[::-1]), breaks=True)
def iteration_over_an_array(x, a):
    for value in a:
        x = x + value
    for i, value in enumerate(a[:2]):
        x = x * (i + value)
    return x, [v for v in a[:3]], list(a), sum(a), max(a), sorted(a)


@programs(*arrays(array(), array(-1)), breaks=True)
def branch_on_an_array(x, a):
    if a.any() and (a > 0).all():
        return x + 1
    if a[0] < 0:
        return x - 1
    return x


@programs(*arrays(array(), array(2)), breaks=True)
def array_is_changed(x, a):
    a[0] = 7
    a[1:3] += 1
    a *= 2
    a.sort()
    np.add(a, 1, out=a)
    return x + a.sum(), a


@programs(*arrays(array(), array(2)), breaks=True)
def functions_of_arrays(x, a):
    b = np.sqrt(a) + np.exp(-a)
    c = np.concatenate([a, b]).reshape(2, -1)
    return x * float(np.mean(c)), c.sum(axis=0), np.where(a > 2, a, 0), np.linspace(0, 1, 3), np.zeros(2)


@programs(*arrays(np.float64(2), np.float64(3), np.float32(2), np.int64(2), np.bool_(True)), breaks=True)
def scalar_argument(x, s):
    return x * s, s + 1, float(s), int(s), s == 2, type(s).__name__


@programs(*arrays(np.float64(2), np.float64(3), 2.0), breaks=True)
def scalar_on_the_left(x, s):
    return s * x, s + x.sum(), s**2


@programs(*arrays(np.int64(1), np.int64(2)), breaks=True)
def scalar_as_index(x, i):
    return x[i], x[: i + 1], [10, 20, 30][i], list(range(i)), x.reshape(6 // int(i), -1)


@programs(*arrays(np.float64(2), np.float64(3)), breaks=True)
def scalar_in_python_arithmetic(x, s):
    y = math.sqrt(s) + round(s) + abs(-s)
    return x * y, isinstance(s, float), s is s, f"{s:.2f}", {s: 1}[s], hash(s) == hash(float(s))


@programs(*[lambda: (vector(),)] * 2)
def constants_of_numpy(x):
    return x * np.pi + np.e, np.inf, np.newaxis


@programs(*[lambda: (vector(),)] * 2, breaks=True)
def dtypes_of_numpy(x):
    return x, np.dtype("f4").name, np.float32(1.5) * 2, np.finfo(np.float32).eps, np.float64 is float


@programs(*[lambda: (vector(),)] * 3, breaks=True)
def random_numbers_of_numpy(x):
    rng = np.random.default_rng(5)
    a = rng.normal(size=3)
    np.random.seed(3)
    return x * np.random.rand(), a, rng.integers(10), np.random.randint(100)


@programs.made(*[lambda: (vector(),)] * 3, breaks=True)
def generator_from_outside():
    rng = np.random.default_rng(7)

    def program(x):
        return x + rng.random(), rng.choice([1, 2, 3])

    return program


@programs.made(*[lambda: (vector(),)] * 3, breaks=True)
def array_of_the_closure_changes():
    state = np.zeros(3)

    def program(x):
        y = x + state.sum()
        state[0] += 1
        return y * 2, state.copy()

    program.watched = (state,)
    return program


class Normaliser:
    mean = np.array([0.5, 1.5])

    def __init__(self):
        self.scale = np.float32(2)
        self.weights = np.linspace(0, 1, 6, dtype="f4")
        self.count = 0

    def __call__(self, x):
        self.count += 1
        return (x - self.mean.mean()) / self.scale * torch.tensor(self.weights)


@programs.made(*[lambda: (vector(),)] * 3, breaks=True)
def object_with_arrays():
    normalise = Normaliser()

    def program(x):
        if normalise.count:
            normalise.weights = normalise.weights * 2
        return normalise(x)

    program.watched = (normalise,)
    return program


@programs(*[lambda: (vector(),)] * 2, breaks=True)
def tensors_from_arrays_and_scalars(x):
    return (
        x + torch.tensor(np.arange(6)),
        torch.as_tensor(np.float32(2)) * x,
        torch.full((2,), np.float64(1.5)),
        torch.tensor([np.float64(1), 2.0]),
        torch.ones(np.int64(3)),
    )


@programs(*[lambda: (vector(),)] * 2, breaks=True)
def functions_of_numpy_on_tensors(x):
    y = x * 2
    return np.asarray(y), np.sin(y), np.array(x), y.__array__()


@programs(*arrays(array(), array(2)), breaks=True)
def array_and_tensor_operands(x, a):
    return torch.add(x, torch.from_numpy(a)), x.numpy() + a, a.tolist() == x.tolist()


@programs(*arrays(array(), np.ones(3)), breaks=True)
def array_of_a_wrong_shape(x, a):
    y = x + 1
    try:
        return y.numpy() + a
    except ValueError as error:
        return y, "broadcast" in str(error)


@programs(*[lambda: (vector(), {"a": array(), "b": [array(2)]})] * 2, breaks=True)
def arrays_in_containers(x, batch):
    total = x
    for key, value in batch.items():
        total = total + torch.from_numpy(value if key == "a" else value[0])
    batch["c"] = total.numpy()
    return total, batch["b"][0] is batch["b"][0]


@programs(lambda: (vector().requires_grad_(),), lambda: (vector(),), breaks=True)
def numpy_of_a_tensor_that_needs_gradients(x):
    y = x * 2
    try:
        return y.numpy().copy()
    except RuntimeError as error:
        return y.detach().numpy(), str(error)


@programs(*[lambda: (np.ones((2, 3)), vector())] * 2, breaks=True)
def vectorised_python_function(a, x):
    double = np.vectorize(lambda v: v * 2)
    return double(a), np.apply_along_axis(lambda row: row - row.mean(), 1, a), x + 1


@programs(*arrays(array(), array(3) ** 2))
def linear_algebra_and_transforms(x, a):
    square = a[:4].reshape(2, 2) + np.eye(2) * 9
    values, vectors = np.linalg.eigh(square @ square.T)
    return (
        np.linalg.norm(a),
        np.linalg.inv(square) @ square + np.linalg.pinv(square),
        np.linalg.solve(square, a[:2]) * np.linalg.det(square),
        values * np.abs(vectors),
        np.linalg.svd(square, compute_uv=False),
        np.linalg.qr(square).R,
        np.abs(np.fft.fft(a)),
        np.fft.irfft(np.fft.rfft(a)) + np.fft.fftfreq(6),
        x + 1,
    )


@programs(*arrays(array(), array(3) ** 2))
def grids_and_statistics(x, a):
    rows, columns = np.meshgrid(a[:3], np.arange(2))
    return (
        rows + columns,
        np.percentile(a, 30) + np.quantile(a, 0.5),
        np.convolve(a, a[:2]),
        np.gradient(a),
        np.append(a, a[:1]),
        np.nansum(a),
        np.zeros_like(a, dtype=np.dtype("float32")) + np.dtype("int64").itemsize,
        x + 1,
    )


@programs(*[lambda: (vector(), array())] * 2, breaks=True)
def array_is_kept_alive_by_the_tensor(x, a):
    def local():
        return torch.from_numpy(np.full(6, 3.0))

    t = local()
    return t + x, t


@programs(*arrays(np.arange(12.0).reshape(3, 4), np.arange(6).reshape(2, 3)))
def methods_of_ufuncs(x, a):
    rows = np.add.reduce(a, axis=0), np.multiply.reduce(a, axis=1, keepdims=True), np.add.reduce(a[0])
    return rows, np.maximum.accumulate(a, axis=1), np.subtract.outer(a[0], a[1]), x + 1


@programs(*arrays(np.arange(12.0).reshape(3, 4) / 7, np.array([[1.0, np.nan], [3.0, 4.0]])))
def functions_that_leave_nan_out(x, a):
    return np.nanmean(a), np.nanstd(a, axis=0), np.nanmax(a, axis=1), np.nanmedian(a), np.nanquantile(a, 0.5), x * 2


@programs(*arrays(array(), array(2)))
def windows_and_histograms(x, a):
    counts, edges = np.histogram(a, bins=4)
    window = np.hanning(6) * np.hamming(6) * np.bartlett(6) * np.blackman(6)
    return a * window, counts, edges, np.polyfit(np.arange(6.0), a, 2), np.diagflat(a[:2]), x + 1


@programs(*arrays(np.eye(3) * 2 + 1, np.arange(9.0).reshape(3, 3)))
def ranks_and_other_transforms(x, a):
    return (
        np.linalg.matrix_rank(a),
        np.linalg.cond(a + np.eye(3)),
        np.fft.rfftn(a),
        np.fft.hfft(a[0]),
        np.trunc(a),
        x - 1,
    )


@programs(*[lambda size=size: (torch.ones(size, 2),) for size in (3, 4, 5, 5)])
def numbers_of_shapes(x):
    lengths = [x.size(0), 2]
    flat = x.view(int(np.prod(x.shape))) * np.prod(x.shape[1:])
    return flat, np.prod(lengths) * x, np.mean((1, 2)) + x, np.max([1, 2.5]), np.sum(lengths, axis=None), np.zeros(2)


@programs(*[lambda start=start: (torch.ones(8, 8), start) for start in (4, 1, 6, 3)])
def window_of_an_array_is_written(x, start):
    mask = np.ones((8, 8), np.float32)
    mask[max(0, start - 2) : start + 2, start : start + 1] = 0
    return x * torch.from_numpy(mask), mask


def window(start: int) -> Any:
    return slice(start, start + 2), slice(start + 1, None)


@programs(*[lambda start=start: (np.ones((8, 8)), torch.ones(8, 8), window(start)) for start in (4, 1, 6)])
def window_that_is_given_is_written(a, x, key):
    a[key] = 0
    a[key] += 2
    x[key] = 3
    return a[key].sum(), x[key].shape
