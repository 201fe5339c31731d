"""Arguments for the operators that have native rules, by schema name; `test_rules.py` runs them.

Elementwise operators need no rows: their arguments are made from their schemas.
"""

import itertools

import torch

CLASSES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
F, H, I, B = torch.float32, torch.bfloat16, torch.int64, torch.bool


def make(*size, dtype=F):
    """A contiguous tensor whose values are harmless for most operators."""
    count = 1
    for extent in size:
        count *= extent
    return (torch.arange(count) % 3 + 1).to(dtype).reshape(size)


def geometries(dtype=F):
    """Tensors of many layouts."""
    x = make(2, 3, 4, dtype=dtype)
    image = make(2, 3, 4, 5, dtype=dtype)
    return [
        x,
        x.transpose(0, 1),
        x.permute(2, 0, 1),
        x[:, :, ::2],
        x[:, 1],
        make(3, 1, dtype=dtype).expand(2, 3, 4),
        make(1, 1, 1, dtype=dtype).expand(2, 3, 4),
        make(4, dtype=dtype),
        make(2, 0, 3, dtype=dtype),
        make(2, 0, 3, dtype=dtype).permute(2, 0, 1),
        make(dtype=dtype),
        make(1, dtype=dtype),
        image,
        image.to(memory_format=torch.channels_last),
        make(2, 1, 4, 5, dtype=dtype).to(memory_format=torch.channels_last),
        make(2, 3, 1, 1, dtype=dtype).to(memory_format=torch.channels_last),
        image.transpose(1, 3),
        image[:, 1:, ::2],
        make(24, dtype=dtype).as_strided((2, 1, 4), (4, 7, 1)),
        make(24, dtype=dtype).as_strided((1, 3, 4), (1, 4, 1)),
        make(2, 3, 2, 4, 5, dtype=dtype).to(memory_format=torch.channels_last_3d),
    ]


def pairs():
    """Operands of many layouts and dtypes, some of which don't broadcast."""
    images = [g for g in geometries() if g.dim() == 4]
    volumes = [g for g in geometries() if g.dim() == 3]
    small = [make(), make(1), make(4), make(3, 1), make(5), make(2, 1, 1), make(3, 1, 1), make(3, 4, 5)]
    yield from itertools.product(images, images + small)
    yield from itertools.product(volumes, volumes + small)
    yield from itertools.product(small, volumes + images)
    yield make(2, 3), make(3, 2)


def promotions():
    """One pair for each two dtypes, in ranks that promotion tells apart."""
    for left, right in itertools.product(CLASSES, CLASSES):
        yield make(2, 3, dtype=left), make(3, dtype=right)
        if {left, right} != {torch.float16, torch.complex64}:  # complex32, which rules decline
            yield make(2, 3, dtype=left), make(dtype=right)
            yield make(dtype=left), make(2, 3, dtype=right)


def same_sizes():
    """Pairs that need no broadcasting (oneDNN's gelu_backward crashes on others)."""
    return [(a, b) for a, b in pairs() if a.shape == b.shape] + [(make(3, dtype=d), make(3, dtype=d)) for d in CLASSES]


NUMBERS = [2, 2.5, True, 1 + 2j]


def each(*rest, dtypes=(F,), **keywords):
    """A call for each layout and dtype with the same further arguments."""
    for dtype in dtypes:
        for tensor in geometries(dtype):
            yield (tensor, *rest), keywords


def all_dims(*rest, dtypes=CLASSES, **keywords):
    """A call for each layout and dimension, and for each dtype; out of range dimensions too."""
    for tensor in geometries():
        for dim in range(-tensor.dim(), tensor.dim() + 1):
            yield (tensor, dim, *rest), keywords
    for dtype in dtypes:
        yield (make(2, 3, dtype=dtype), 1, *rest), keywords


def calls(*arguments, **keywords):
    return [(each_arguments, keywords) for each_arguments in arguments]


def both(*lists):
    return [call for some in lists for call in some]


def dims_and_keepdim(*rest, dtypes=CLASSES, lists=True, **keywords):
    for keepdim in (False, True):
        yield from all_dims(keepdim, *rest, dtypes=dtypes, **keywords) if not lists else ()
        if lists:
            for tensor in geometries():
                for dims in [[], [0], [-1], [0, 1], [0, -1], [0, 0], [9]]:
                    yield (tensor, dims, keepdim, *rest), keywords
            for dtype in dtypes:
                yield (make(2, 3, dtype=dtype), [1], keepdim, *rest), keywords


def correction(*_):
    for tensor in geometries() + [make(2, 3, dtype=dtype) for dtype in CLASSES]:
        for dims in [None, [0], [0, -1], []]:
            for keepdim in (False, True):
                yield (tensor, dims), {"correction": 1, "keepdim": keepdim}


def options(*sizes_and_more, dtypes=CLASSES):
    for arguments in sizes_and_more:
        yield arguments, {}
        for dtype in dtypes:
            yield arguments, {"dtype": dtype}


def with_generator(cases):
    for arguments, keywords in cases:
        yield arguments, {**keywords, "generator": torch.Generator()}


def like(*rest, dtypes=CLASSES):
    formats = [None, torch.preserve_format, torch.contiguous_format, torch.channels_last, torch.channels_last_3d]
    for tensor in geometries():
        for memory_format in formats:
            yield (tensor, *rest), {"memory_format": memory_format}
    for dtype, to in itertools.product(CLASSES, dtypes):
        yield (make(2, 3, dtype=dtype), *rest), {"dtype": to}


INDEX = torch.tensor([0, 1, 0])
BAGS = [
    ((w, i, o, False, mode, False, None, last), {})
    for w in (make(3, 4), make(4, 3).t(), make(3, 4, dtype=H), make(3, 4, dtype=torch.float64))
    for i, o in ((INDEX, torch.tensor([0, 2])), (INDEX.int(), torch.tensor([0, 1, 3]).int()), (INDEX[:0], INDEX[:0]))
    for mode in (0, 1, 2)
    for last in (False, True)
]


def indexing():
    for base in [
        make(3, 4, 5),
        make(3, 4, 5).transpose(0, 1),
        make(3, 4, 5).permute(2, 0, 1),
        make(3, 1, 5),
        make(2, 3, 4, 5).to(memory_format=torch.channels_last),
        make(4),
        make(2, 3),
    ]:
        i, j = INDEX % 2, torch.tensor([[0], [1]])
        for indices in [
            [i],
            [None, i],
            [None, None, i],
            [i, i],
            [i, None, i],
            [j, i],
            [i, j.expand(2, 3).t()],
            [None, i, j],
            [i.int()],
            [torch.tensor(0)],
            [torch.tensor(0), None, i],
            [i, torch.tensor([0, 1])],
            [torch.zeros(0, dtype=I)],
            [i.float()],
            [j.expand(2, 3), None],
            [i[::2]],
            [torch.zeros(2, 3, 2, dtype=I).permute(2, 0, 1)],
        ]:
            if any(index is not None and base.size(dim) < 2 for dim, index in enumerate(indices[: base.dim()])):
                continue
            yield base, indices


def put(inplace_values=True):
    for base, indices in indexing():
        for values in [make(), make(1), make(3), make(7), make(dtype=H)]:
            yield (base, indices, values), {}
    yield (make(2, 3), [make(2, 3) > 1], make()), {}


def gathers():
    for base in [make(3, 4), make(4, 3).t(), make(3, 4, 5)]:
        index = torch.zeros((2,) * base.dim(), dtype=I)
        for dim in (0, 1, -1, 7):
            yield base, dim, index
        yield base, 0, index.int()
        yield base, 0, index.float()
        yield base, 0, index[0]
        yield base, 0, torch.zeros((9,) * base.dim(), dtype=I)
        yield base, 0, torch.zeros((0,) * base.dim(), dtype=I)
        yield base, 1, index.transpose(0, 1)
    yield make(), 0, torch.tensor(0)


def scatters(*rest, source):
    for base, dim, index in gathers():
        if source:
            yield (base, dim, index, torch.ones(index.shape), *rest), {}
            yield (base, dim, index, torch.ones(index.shape, dtype=H), *rest), {}
            yield (base, dim, index, torch.ones((1,) * index.dim()), *rest), {}
        else:
            yield (base, dim, index, 2, *rest), {}


def images(
    *rest, dtypes=(F, H, torch.float64), sizes=((2, 3, 8, 8), (3, 8, 8), (2, 4, 6, 9), (1, 1, 8, 8)), **keywords
):
    for dtype in dtypes:
        for size in sizes:
            yield (make(*size, dtype=dtype), *rest), keywords
            yield (make(*size, dtype=dtype).transpose(-1, -2), *rest), keywords
            if len(size) == 4:
                yield (make(*size, dtype=dtype).to(memory_format=torch.channels_last), *rest), keywords


def convolutions():
    last = torch.channels_last
    for groups, stride, padding, dilation in [
        (1, 1, 0, 1),
        (1, 2, 1, 1),
        (1, 1, 2, 2),
        (2, 1, 1, 1),
        (4, 1, 1, 1),
        (1, 4, 0, 1),
    ]:
        for kernel in (1, 3):
            for dtype in (F, H, torch.float64):
                image, weight = make(2, 4, 9, 8, dtype=dtype), make(8, 4 // groups, kernel, kernel, dtype=dtype)
                parameters = ([stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups)
                for x, w in [
                    (image, weight),
                    (image.to(memory_format=last), weight),
                    (image, weight.to(memory_format=last)),
                    (image.to(memory_format=last), weight.to(memory_format=last)),
                    (image.transpose(2, 3), weight),
                ]:
                    yield (x, w, None, *parameters), {}
                    yield (x, w, make(8, dtype=dtype), *parameters), {}
                line, weight = make(2, 4, 9, dtype=dtype), make(8, 4 // groups, kernel, dtype=dtype)
                yield (line, weight, None, [stride], [padding], [dilation], False, [0], groups), {}
                yield (
                    (
                        line.transpose(0, 1).contiguous().transpose(0, 1),
                        weight,
                        make(8, dtype=dtype),
                        [stride],
                        [padding],
                        [dilation],
                        False,
                        [0],
                        groups,
                    ),
                    {},
                )
    plain = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    yield (make(2, 1, 9, 8), make(8, 1, 3, 3), None, *plain), {}
    yield (make(2, 1, 9, 8).to(memory_format=last), make(8, 1, 3, 3), None, *plain), {}
    yield (make(2, 4, 9, 8), make(8, 3, 3, 3), None, *plain), {}
    yield (make(2, 4, 9, 8), make(8, 4, 3, 3), make(7), *plain), {}
    yield (make(2, 4, 2, 2), make(8, 4, 3, 3), None, *plain), {}
    yield (make(4, 9, 8), make(8, 4, 3, 3), None, *plain), {}
    yield (make(2, 4, 9, 8), make(8, 4, 3, 3, dtype=H), None, *plain), {}
    yield (make(2, 4, 9, 8), make(8, 4, 3, 3), None, [1, 1], [-1, 0], [1, 1], False, [0, 0], 1), {}
    yield (make(2, 4, 9, 8), make(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1), {}
    yield (make(2, 4, 9, 8), make(4, 3, 3, 3), make(6), [2, 2], [1, 1], [1, 1], True, [0, 0], 2), {}
    yield (make(2, 4, 5, 9, 8), make(8, 4, 3, 3, 3), None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1), {}


def losses():
    for t in (make(4, 5), make(5, 4).t(), make(4, 5, dtype=torch.float64)):
        if t.dtype == F:
            yield from ((t, 0, (4, 5)), (t, 1, ()), (t, 2, ()))


def pictures():
    x = make(2, 3, 6, 8)
    return x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)


def layer_norm_gradients():
    for dtype in (F, H, torch.float64):
        for x in (make(4, 3, dtype=dtype), make(3, 4, dtype=dtype).t(), make(2, 4, 3, dtype=dtype)):
            weight = make(3, dtype=dtype)
            mean, rstd = torch.native_layer_norm(x, [3], weight, weight, 1e-5)[1:]
            for mask in ([True, True, True], [True, False, True], [False, True, False]):
                yield (make(*x.shape, dtype=dtype), x, [3], mean, rstd, weight, weight, mask), {}
            yield (make(*x.shape, dtype=dtype), x, [3], mean, rstd, None, None, [True, False, False]), {}


def channel_inputs():
    """An image and a gradient, which lies otherwise in the last ones."""
    for dtype in (F, H):
        x = make(2, 4, 3, 5, dtype=dtype)
        last = x.contiguous(memory_format=torch.channels_last)
        yield from ((x, x), (last, last), (x, last), (last, x))


def batch_norm_gradients():
    weight, zeros, ones = make(4), torch.zeros(4), torch.ones(4)
    for x, grad in channel_inputs():
        for train, mask in ((True, [True, True, True]), (True, [True, False, True]), (False, [True, True, True])):
            yield (grad, x, weight, zeros, ones, zeros, ones, train, 1e-5, mask), {}
        yield (grad, x, None, zeros, ones, zeros, ones, True, 1e-5, [True, False, False]), {}


def group_norm_gradients():
    for x, grad in channel_inputs():
        weight = make(4, dtype=x.dtype)
        mean, rstd = torch.native_group_norm(x, weight, weight, 2, 4, 15, 2, 1e-5)[1:]
        if grad.stride() != x.stride():
            continue  # the kernel refuses it
        for mask in ([True, True, True], [True, False, True]):  # of others eager's kernel crashes with channels last
            yield (grad, x, mean, rstd, weight, 2, 4, 15, 2, mask), {}


def norm_inputs(*rest, dtypes=(F, H, torch.float64, I)):
    for dtype, size in itertools.product(dtypes, [(2, 4, 6, 5), (2, 4, 6), (2, 4)]):
        x = make(*size, dtype=dtype)
        for parameter in {dtype, F}:
            yield x, make(4, dtype=parameter)
            if len(size) == 4 and dtype != I:
                yield x.to(memory_format=torch.channels_last), make(4, dtype=parameter)
                yield x.transpose(2, 3), make(4, dtype=parameter)


def batch_norms(*rest):
    for x, p in norm_inputs():
        yield (x, p, p, p, p, *rest), {}
        yield (x, None, None, p, p, *rest), {}
        if x.is_floating_point() and p.numel() == 4:
            yield (x, p, None, p, p, *rest), {}


def layer_norms():
    for x in geometries():
        if x.dim() > 0:
            shape = [x.size(-1)]
            yield (x, shape, make(*shape), make(*shape), 1e-5), {}
            yield (x, shape, None, None, 1e-5), {}
    for dtype, parameter in itertools.product([F, H, torch.float64, torch.float16, I], repeat=2):
        yield (make(2, 3, 4, dtype=dtype), [3, 4], make(3, 4, dtype=parameter), None, 1e-5), {}
    yield (make(2, 3, 4), [5], make(5), make(5), 1e-5), {}
    yield (make(2, 3, 4), [4], make(5), None, 1e-5), {}


def group_norms():
    for x, p in norm_inputs():
        if x.dim() > 2:
            rest = x[0, 0].numel()
            yield (x, p, p, 2, 4, rest, 2, 1e-5), {}
            yield (x, None, None, 2, 4, rest, 3, 1e-5), {}


def attention():
    for dtype in (F, H, torch.float64, torch.float16):
        q = make(2, 5, 4, 8, dtype=dtype).transpose(1, 2)
        k = make(2, 4, 6, 8, dtype=dtype)
        yield (q, k, k), {}
        yield (k, q, q, 0.0, True), {}
        yield (q, k, k), {"attn_mask": make(5, 6, dtype=dtype)}
        yield (q, k, k), {"attn_mask": make(2, 1, 5, 6, dtype=dtype), "scale": 0.5}
    yield (make(2, 4, 5, 8), make(2, 4, 5, 7), make(2, 4, 5, 8)), {}
    yield (make(4, 5, 8), make(4, 5, 8), make(4, 5, 8)), {}
    yield (make(2, 4, 5, 8), make(2, 4, 5, 8), make(2, 4, 5, 8), 0.5), {}


def encoder_layers():
    size = 8
    norms = [make(size) for _ in range(4)]
    feed = [make(16, size), make(16), make(size, 16), make(size)]
    for source in (make(3, 5, size), make(5, 3, size).transpose(0, 1)):
        for norm_first in (False, True):
            yield (
                (source, size, 2, make(3 * size, size), make(3 * size), make(size, size), make(size))
                + (False, norm_first, 1e-5, *norms, *feed),
                {},
            )


def matrices(dtypes=CLASSES):
    for dtype in dtypes:
        yield make(3, 4, dtype=dtype), make(4, 5, dtype=dtype)
    yield make(3, 4), make(5, 4).t()
    yield make(3, 0), make(0, 5)
    yield make(0, 4), make(4, 5)
    yield make(3, 4), make(3, 4)
    yield make(3, 4), make(4, 5, dtype=H)
    yield make(3, 4), make(4)
    yield make(3), make(4, 5)


def batches(dtypes=CLASSES):
    for dtype in dtypes:
        yield make(2, 3, 4, dtype=dtype), make(2, 4, 5, dtype=dtype)
    yield make(2, 3, 4).transpose(0, 1).contiguous().transpose(0, 1), make(2, 5, 4).transpose(1, 2)
    yield make(1, 3, 4).expand(2, 3, 4), make(2, 4, 5)
    yield make(0, 3, 4), make(0, 4, 5)
    yield make(2, 3, 4), make(3, 4, 5)
    yield make(2, 3, 4), make(2, 3, 4)
    yield make(2, 3, 4), make(4, 5)
    yield make(2, 3, 4), make(2, 4, 5, dtype=H)


def added(products, selfs, **keywords):
    for left, right in products:
        for add in selfs:
            yield (add.to(left.dtype), left, right), keywords
    yield (make(5, dtype=H), make(3, 4), make(4, 5)), keywords


def grouped():
    offsets = torch.tensor([2, 5], dtype=torch.int32)
    for dtype in (F, H):
        flat, stacked = make(5, 8, dtype=dtype), make(2, 8, 16, dtype=dtype)
        yield (flat, stacked, offsets), {}
        yield (flat, make(2, 16, 8, dtype=dtype).transpose(1, 2), offsets), {}
        yield (flat, make(2, 8, 24, dtype=dtype)[:, :, :16], offsets), {}
        yield (make(2, 3, 8, dtype=dtype), stacked), {}
    yield (make(5, 8), make(2, 8, 12), torch.tensor([2, 5], dtype=torch.int32)), {}
    yield (make(5, 8), make(2, 8, 16), torch.tensor([2, 5])), {}


def cats():
    last = torch.channels_last
    x, image = make(2, 3, 4), make(2, 3, 4, 5)
    lists = [
        [x, x],
        [x],
        [x, x.transpose(0, 1).contiguous().transpose(0, 1)],
        [x, make(0)],
        [x, make(2, 3, 4, dtype=H)],
        [x.long(), x],
        [image.to(memory_format=last)] * 2,
        [image, image.to(memory_format=last)],
        [x, make(3, 3)],
        [x, make(5, 3, 4)],
        [x, make(2, 5, 4)],
        [make(), make()],
        [make(4), make(3)],
        [x.permute(2, 0, 1)] * 2,
        [image.to(memory_format=last)[:, :2]] * 3,
        [make(0, 3), make(2, 3)],
        [x > 1, x > 1],
        [make(3, dtype=torch.complex64), make(3)],
    ]
    for tensors in lists:
        for dim in (0, 1, -1, 6):
            yield (tensors, dim), {}
    yield ([], 0), {}


def classes(*rest, **keywords):
    for dtype in CLASSES:
        yield (make(2, 3, dtype=dtype), *rest), keywords


def views(*argument_lists, **keywords):
    for tensor in geometries():
        for arguments in argument_lists:
            yield (tensor, *arguments), keywords


CASES = {
    # tensors without memory
    "aten::_efficientzerotensor": [(([2, 3],), {}), (([],), {}), (([0],), {}), (([4],), {"dtype": torch.int64})],
    # views
    **{f"aten::{name}": list(views([])) for name in ["alias", "detach", "t", "squeeze"]},
    "aten::view": list(
        views(
            [[-1]],
            [[2, 12]],
            [[2, -1]],
            [[6, 4]],
            [[1, 2, 3, 4]],
            [[0, -1]],
            [[-1, -1]],
            [[2, 3, 4, 5]],
            [[]],
            [[7, -1]],
            [[2, 3, 20]],
        )
    ),
    "aten::_unsafe_view": list(views([[-1]], [[2, 12]], [[6, 4]], [[5]])),
    "aten::_reshape_alias": [((make(2, 3, 4), [6, 4], [4, 1]), {}), ((make(2, 3, 4)[:, 1:], [2, 8], [12, 1]), {})],
    "aten::expand": list(
        views(
            [[2, 3, 4]],
            [[5, 2, 3, 4]],
            [[-1, -1, -1]],
            [[2, 3, 4, 5]],
            [[4]],
            [[2, -1, -1, -1]],
            [[-1, 2]],
            [[]],
            [[5, -1]],
            [[3, 3]],
        )
    ),
    "aten::permute": list(
        views([[0, 1, 2]], [[2, 0, 1]], [[-1, 0, 1]], [[0, 2, 3, 1]], [[0, 0, 1]], [[0]], [[]], [[0, 1, 7]])
    ),
    "aten::transpose.int": list(views([0, 1], [-1, 0], [1, 1], [2, 3], [0, 9])),
    "aten::squeeze.dim": list(all_dims()),
    "aten::squeeze.dims": list(views([[0]], [[0, 1]], [[-1, 2]], [[0, 0]], [[]], [[8]])),
    "aten::unsqueeze": list(views([0], [1], [-1], [3], [-4], [6])),
    "aten::select.int": list(views([0, 0], [1, -1], [2, 1], [-1, 0], [0, 7], [0, -8], [5, 0])),
    "aten::slice.Tensor": list(
        views([], [0, 1], [1, 0, 2], [-1, 1, 9, 2], [0, -1], [0, 2, 1], [0, None, -1], [1, 9, 10], [7], [0, 0, 1, 0])
    ),
    "aten::as_strided": list(
        views(
            [[2, 2], [1, 2]], [[2], [3], 1], [[3, 3], [0, 0]], [[99], [1]], [[2], [1, 1]], [[2], [-1]], [[2], [1], -1]
        )
    ),
    "aten::diagonal": list(views([], [1], [-1], [0, 1, 2], [0, -1, 0], [9], [-9], [0, 1, 1], [0, 0, 7])),
    "aten::unfold": list(views([0, 1, 1], [1, 2, 1], [-1, 2, 2], [0, 9, 1], [0, 1, 0], [7, 1, 1], [1, 0, 1])),
    "aten::split.Tensor": list(views([1], [2, 1], [2, -1], [0, 0], [0, 1], [-1], [9], [1, 8])),
    "aten::unsafe_split.Tensor": list(views([1], [2, 1])),
    "aten::split_with_sizes": list(views([[1, 1]], [[1, 2], 1], [[2, 2], -1], [[0, 2]], [[3, -1], 1], [[5]])),
    "aten::unsafe_split_with_sizes": list(views([[1, 1]], [[1, 2], 1])),
    "aten::unbind.int": list(all_dims()),
    "aten::view_as_real": list(each(dtypes=[torch.complex64, torch.complex128, F])),
    "aten::view_as_complex": [
        ((t,), {})
        for t in [
            make(3, 2),
            make(2, 3, 2).transpose(0, 1),
            make(2, 3),
            make(),
            make(3, 2, dtype=I),
            make(2, 3).t(),
            make(5, 3)[:, :2],
            make(3, 2, dtype=torch.float64),
            make(3, 3, 2)[1:],
        ]
    ],
    "aten::view.dtype": both(*([*each(to, dtypes=[F, torch.int32])] for to in [torch.int32, F, I, torch.int16])),
    "aten::transpose_": list(views([0, 1], [-1, 0], [0, 9])),
    "aten::t_": list(views([])),
    "aten::squeeze_": list(views([])),
    "aten::squeeze_.dim": list(views([0], [1], [9])),
    "aten::squeeze_.dims": list(views([[0, 1]])),
    "aten::unsqueeze_": list(views([0], [-1], [7])),
    "aten::as_strided_": list(views([[2, 2], [1, 2]], [[99], [1]])),
    # products
    "aten::mm": [(pair, {}) for pair in matrices()],
    "aten::bmm": [(pair, {}) for pair in batches()],
    "aten::addmm": list(added(matrices(), [make(5), make(3, 5), make(1, 5), make(), make(4)])),
    "aten::addmm_": list(added(matrices(), [make(3, 5), make(5)])),
    "aten::_addmm_activation": list(added(matrices([F, H]), [make(5)]))
    + list(added(matrices([F]), [make(5)], use_gelu=True)),
    "aten::baddbmm": list(added(batches(), [make(2, 3, 5), make(5), make(2, 1, 5), make(4)])),
    "aten::baddbmm_": list(added(batches(), [make(2, 3, 5), make(5)])),
    "aten::addmv": [((make(3, dtype=d), make(3, 4, dtype=d), make(4, dtype=d)), {}) for d in CLASSES]
    + [((make(), make(3, 4), make(4)), {}), ((make(2), make(3, 4), make(4)), {}), ((make(3), make(3, 4), make(3)), {})],
    "aten::mv": [((make(3, 4, dtype=d), make(4, dtype=d)), {}) for d in CLASSES]
    + [
        ((make(4, 3).t(), make(4)), {}),
        ((make(3, 4), make(3)), {}),
        ((make(3), make(3)), {}),
        ((make(3, 4), make(4, dtype=H)), {}),
    ],
    "aten::dot": [((make(4, dtype=d), make(4, dtype=d)), {}) for d in CLASSES]
    + [
        ((make(3), make(4)), {}),
        ((make(3, 1), make(3)), {}),
        ((make(3), make(3, dtype=H)), {}),
        ((make(0), make(0)), {}),
    ],
    "aten::_grouped_mm": list(grouped()),
    "aten::_int_mm": [(pair, {}) for pair in matrices([torch.int8])],
    # factories
    "aten::empty.memory_format": list(options([[2, 3]], [[]], [[0, 2]], [[-1]]))
    + [(([2, 3, 4, 5],), {"memory_format": torch.channels_last}), (([2, 3],), {"memory_format": torch.channels_last})],
    "aten::empty_strided": list(
        options([[2, 3], [1, 2]], [[], []], [[2], [0]], [[2], [1, 1]], [[-1], [1]], [[2], [-1]])
    ),
    **{f"aten::{name}": list(options([[2, 3]], [[]], [[0, 2]], [[-1]])) for name in ["zeros", "ones", "rand", "randn"]},
    "aten::full": list(options([[2, 3], 1], [[2], 1.5], [[], True], [[2], 1j], dtypes=[F, I, torch.complex64])),
    "aten::scalar_tensor": list(options([1], [1.5], [True])),
    "aten::arange": list(options([5], [5.5], [0], [-1], dtypes=[F, I, H, torch.int32])),
    "aten::arange.start": list(options([1, 5], [1.5, 5], [5, 1], dtypes=[F, I, H])),
    "aten::arange.start_step": list(options([1, 5, 2], [5, 1, -2], [1, 5, 0], [0, 7, 3], dtypes=[F, I, H]))
    # PyTorch 2.11 divides by the step as an integer: the process dies in eager.
    + list(options([0, 1, 0.1], dtypes=[F, H] if torch.__version__ < "2.12" else [F, I, H])),
    "aten::linspace": list(options([0, 1, 5], [0.5, 1, 0], [0, 1, -1], dtypes=[F, I, H])),
    "aten::eye": list(options([3], [0], [-1], dtypes=[F, I])),
    "aten::eye.m": list(options([3, 4], [0, 2], [1, -1], dtypes=[F, I])),
    "aten::randint": list(options([5, [2, 3]], [0, [2]], dtypes=[F, I])),
    "aten::randint.low": list(options([1, 5, [2, 3]], [5, 5, [2]], dtypes=[F, I])),
    "aten::randperm": list(options([5], [-1], dtypes=[I, torch.int32])),
    **{
        f"aten::{name}.generator": list(with_generator(options([[2, 3]], [[]], [[0, 2]], [[-1]])))
        for name in ["rand", "randn"]
    },
    "aten::randint.generator": list(with_generator(options([5, [2, 3]], [0, [2]], dtypes=[F, I]))),
    "aten::randint.low_generator": list(with_generator(options([1, 5, [2, 3]], [5, 5, [2]], dtypes=[F, I]))),
    "aten::randperm.generator": list(with_generator(options([5], [-1], dtypes=[I, torch.int32]))),
    **{
        f"aten::{name}": list(like())
        for name in ["empty_like", "zeros_like", "ones_like", "rand_like", "randn_like", "_to_copy"]
    },
    "aten::full_like": list(like(2)),
    "aten::randint_like": list(like(2)) + list(like(0)),
    "aten::randint_like.low_dtype": list(like(0, 2)) + list(like(2, 2)),
    "aten::normal.float_float": [
        ((0.0, 1.0, size), k) for size in ([2, 3], [], [0, 2], [-1]) for k in ({}, {"dtype": H})
    ],
    "aten::clone": [(t, {"memory_format": k["memory_format"]}) for t, k in like() if "memory_format" in k],
    **{
        f"aten::{name}": [
            ((make(2, 3, dtype=d), size), k) for d in CLASSES for size in ([4, 5], [], [-1]) for k in ({}, {"dtype": H})
        ]
        for name in ["new_empty", "new_zeros", "new_ones"]
    },
    "aten::new_full": [((make(2, 3, dtype=d), [4], 2), k) for d in CLASSES for k in ({}, {"dtype": H})],
    "aten::new_empty_strided": [((make(2, 3, dtype=d), [4, 2], [1, 4]), {}) for d in CLASSES],
    **{f"aten::{name}": list(each()) + list(classes(1)) for name in ["tril", "triu", "tril_", "triu_"]},
    # norms
    "aten::native_layer_norm": list(layer_norms()),
    "aten::native_group_norm": list(group_norms()),
    "aten::native_batch_norm": both(batch_norms(False, 0.1, 1e-5), batch_norms(True, 0.1, 1e-5)),
    "aten::_native_batch_norm_legit": both(batch_norms(False, 0.1, 1e-5), batch_norms(True, 0.1, 1e-5)),
    "aten::_native_batch_norm_legit.no_stats": [((x, p, p, True, 0.1, 1e-5), {}) for x, p in norm_inputs()],
    "aten::_native_batch_norm_legit_no_training": list(batch_norms(0.1, 1e-5)),
    "aten::_batch_norm_with_update": list(batch_norms(0.1, 1e-5)),
    "aten::_batch_norm_no_update": list(batch_norms(0.1, 1e-5)),
    "aten::_softmax": list(all_dims(False)),
    "aten::_log_softmax": list(all_dims(False)),
    "aten::_softmax_backward_data": [((t, t, d, F), {}) for t in geometries() for d in (0, -1)],
    "aten::_log_softmax_backward_data": [((t, t, d, F), {}) for t in geometries() for d in (0, -1)],
    "aten::native_layer_norm_backward": list(layer_norm_gradients()),
    "aten::native_batch_norm_backward": list(batch_norm_gradients()),
    "aten::native_group_norm_backward": list(group_norm_gradients()),
    "aten::glu_backward": [((make(4, 3, dtype=d), make(4, 6, dtype=d), -1), {}) for d in (F, H)],
    "aten::log_sigmoid_backward": [((t, t, t), {}) for t in geometries()],
    "aten::smooth_l1_loss_backward": [((make(*s), t, t, r, 1.0), {}) for t, r, s in losses()],
    "aten::huber_loss_backward": [((make(*s), t, t, r, 1.0), {}) for t, r, s in losses()],
    "aten::binary_cross_entropy_backward": [((make(*s), t, t, None, r), {}) for t, r, s in losses()],
    "aten::_adaptive_avg_pool3d_backward": [((make(2, 3, 2, 2, 2), make(2, 3, 4, 4, 4)), {})],
    "aten::replication_pad3d_backward": [((make(2, 3, 6, 6, 6), make(2, 3, 4, 4, 4), [1] * 6), {})],
    "aten::max_pool3d_with_indices_backward": [
        (
            (make(2, 3, 2, 2, 2), make(2, 3, 4, 4, 4), [2] * 3, [2] * 3, [0] * 3, [1] * 3, False)
            + (torch.zeros(2, 3, 2, 2, 2, dtype=I),),
            {},
        )
    ],
    "aten::nll_loss2d_backward": [
        ((make(), make(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=I), None, 1, -100, make()), {}),
    ],
    "aten::_adaptive_avg_pool2d_backward": [
        (
            (
                make(2, 3, 2, 2),
                x,
            ),
            {},
        )
        for x in pictures()
    ],
    "aten::reflection_pad2d_backward": [((make(2, 3, 8, 10), x, [1, 1, 1, 1]), {}) for x in pictures()],
    "aten::replication_pad2d_backward": [((make(2, 3, 8, 10), x, [1, 1, 1, 1]), {}) for x in pictures()],
    "aten::_safe_softmax": list(all_dims()) + [((make(2, 3, dtype=H), 1, F), {})],
    "aten::_weight_norm_interface": [
        ((make(4, 3, 5, dtype=d), make(4, 1, 1, dtype=d), 0), {}) for d in (F, H, torch.float64, torch.float16)
    ]
    + [((make(4, 3, 5).transpose(0, 2), make(1, 1, 4), 2), {})],
    "aten::index_reduce": [
        ((t, 0, torch.tensor([0, 1]), make(2, 3, dtype=t.dtype), how), {})
        for t in (make(2, 3), make(3, 2).t(), make(2, 3, dtype=I), make(2, 3, dtype=H))
        for how in ("prod", "mean", "amax")
    ],
    "aten::fake_quantize_per_tensor_affine_cachemask": [
        ((t, 0.1, zero, 0, 255), {}) for t in [*geometries(), make(2, 3, dtype=H)] for zero in (3, 300)
    ],
    # linear algebra
    "aten::diag_embed": [
        ((t, *more), {}) for t in geometries() for more in ((), (1,), (-2, 0, 1), (0, -1, 0), (0, 1, 1))
    ],
    "aten::linalg_solve_triangular": [
        ((make(*a, dtype=d), make(*b, dtype=d)), {"upper": True, "left": left})
        for a, b, left in [
            ((3, 3), (3, 2), True),
            ((2, 3, 3), (3, 2), True),
            ((3, 3), (2, 5, 3), False),
            ((3, 3), (2, 3), True),
        ]
        for d in (F, torch.float64, torch.complex64, H)
    ],
    "aten::linalg_matrix_exp": [
        ((make(*size, dtype=d),), {})
        for size in [(3, 3), (2, 1, 1), (5, 2, 4, 4), (2, 3)]
        for d in (F, torch.complex64, I)
    ],
    "aten::linalg_householder_product": [
        ((make(*a, dtype=d), make(*b, dtype=d)), {})
        for a, b in [((4, 3), (3,)), ((2, 4, 3), (2, 2)), ((3, 4), (3,)), ((2, 4, 3), (3, 3))]
        for d in (F, torch.complex64, H)
    ],
    "aten::cholesky_inverse": [
        ((make(*size, dtype=d), upper), {})
        for size in [(3, 3), (2, 3, 3), (2, 0, 3, 3), (0, 0), (2, 3)]
        for upper in (False, True)
        for d in (F, torch.complex64, H)
    ],
    "aten::linalg_lu_factor_ex": [
        ((make(*size, dtype=d),), {}) for size in [(3, 3), (2, 4, 3), (0, 3, 3), (3,)] for d in (F, torch.complex64)
    ],
    "aten::_linalg_slogdet": [
        ((make(*size, dtype=d),), {}) for size in [(3, 3), (2, 4, 4), (0, 3, 3), (2, 3)] for d in (F, torch.complex64)
    ],
    # reductions
    "aten::sum": both(each(), classes(), classes(dtype=H)),
    "aten::prod": both(each(), classes(), classes(dtype=F)),
    "aten::mean": both(each(), classes(), classes(dtype=F)),
    **{f"aten::{name}": both(each(), classes()) for name in ["max", "min", "median", "any", "all"]},
    "aten::sum.dim_IntList": both(dims_and_keepdim(), dims_and_keepdim(dtype=torch.float64)),
    "aten::mean.dim": both(dims_and_keepdim(), classes([1], dtype=F), [((make(2, 3), None), {})]),
    "aten::prod.dim_int": both(dims_and_keepdim(lists=False)),
    **{f"aten::{name}": both(dims_and_keepdim()) for name in ["amax", "amin", "logsumexp"]},
    "aten::aminmax": both(each(), ((t, {"dim": 0, "keepdim": True}) for t, _ in each())),
    **{
        f"aten::{name}": both(dims_and_keepdim(lists=False), each(), [((make(2, 3), None, True), {})])
        for name in ["argmax", "argmin"]
    },
    **{
        f"aten::{name}": both(dims_and_keepdim(lists=False))
        for name in ["max.dim", "min.dim", "median.dim", "mode", "any.dim", "all.dim"]
    },
    "aten::any.dims": both(dims_and_keepdim(), [((make(2, 3), None), {})]),
    "aten::all.dims": both(dims_and_keepdim(), [((make(2, 3), None), {})]),
    **{
        f"aten::{name}": list(correction())
        for name in ["var.correction", "std.correction", "var_mean.correction", "std_mean.correction"]
    },
    "aten::linalg_vector_norm": both(
        each(),
        classes(2),
        [((make(2, 3), p, [0], True), {"dtype": d}) for p in (1, 2.5, float("inf")) for d in (None, torch.float64)],
    ),
    "aten::norm.ScalarOpt_dim": [
        ((t, p, d, k), {}) for t in geometries() for p in (None, 2) for d in ([0], [0, -1], []) for k in (False, True)
    ],
    **{f"aten::{name}": both(all_dims(), classes(0, dtype=F)) for name in ["cumsum", "cumprod", "cumsum_"]},
    **{f"aten::{name}": list(all_dims()) for name in ["cummax", "cummin", "sort"]},
    "aten::sort.stable": [((t,), {"stable": True, "dim": d}) for t in geometries() for d in (0, -1)]
    + list(classes(stable=False)),
    "aten::topk": [((t, k, d), {}) for t in geometries() for k in (0, 1, 2, 99) for d in (0, -1)] + list(classes(1)),
    "aten::mse_loss": [((a, b, r), {}) for a, b in [*pairs()][:120] for r in (0, 1)],
    "aten::smooth_l1_loss": [((a, b, r), {}) for a, b in [*pairs()][:120] for r in (0, 1)],
    "aten::nll_loss_forward": [
        ((make(4, 5, dtype=d), torch.tensor([0, 1, 2, 3]), w, r, -100), {})
        for d in (F, H)
        for r in (0, 1, 2)
        for w in (None, make(5, dtype=d))
    ]
    + [((make(4, 5), torch.tensor([0, 1]), None, 1, -100), {})],
    "aten::nll_loss_backward": [
        ((make(*([4] if r == 0 else [])), make(4, 5), torch.tensor([0, 1, 2, 3]), None, r, -100, make()), {})
        for r in (0, 1, 2)
    ],
    # indexing
    "aten::index.Tensor": [((b, i), {}) for b, i in indexing()],
    "aten::_unsafe_index.Tensor": [((b, i), {}) for b, i in indexing()][:20],
    "aten::index_put": list(put()),
    "aten::index_put_": list(put()),
    "aten::_index_put_impl_": list(put()),
    "aten::index_select": both(
        *(
            [((t, d, i), {}) for t in geometries() if t.numel() for d in (0, -1, 9)]
            for i in [
                torch.tensor([0]),
                torch.tensor(0),
                torch.tensor([0], dtype=torch.int32),
                torch.tensor([[0]]),
                torch.tensor([0.0]),
            ]
        )
    ),
    "aten::embedding": [
        ((w, i), {})
        for w in (make(3, 4), make(4, 3).t(), make(3, 4, dtype=H), make(3))
        for i in (INDEX, INDEX.int(), INDEX[:0], torch.tensor(1), INDEX.expand(2, 3).t(), INDEX.float())
    ],
    "aten::_embedding_bag": BAGS,
    "aten::_embedding_bag_forward_only": BAGS,
    "aten::embedding_dense_backward": [
        ((make(3, 4), INDEX, 5, -1, False), {}),
        ((make(2, 3, 4), INDEX.expand(2, 3), 5, 0, False), {}),
    ],
    "aten::one_hot": [((t % 3, n), {}) for t in geometries(I) for n in (3, 5)] + [((make(3), 3), {})],
    "aten::max_pool1d": [
        ((t, 3, stride, padding, dilation, ceil), {})
        for t in (make(2, 3, 11), make(3, 11), make(2, 3, 11, dtype=H), make(2, 11, 3).transpose(1, 2), make(2, 0, 11))
        for stride, padding, dilation, ceil in (([], 0, 1, False), (2, 1, 1, True), (1, 0, 2, False), (9, 1, 1, True))
    ]
    + [((make(2, 3, 11), 3, 1, 2), {}), ((make(2, 3, 2), 3), {}), ((make(11), 3), {})],
    "aten::cross_entropy_loss": [
        ((x, target, weight, reduction, ignored, smoothing), {})
        for x, target in ((make(4, 3), make(4, dtype=I) - 1), (make(2, 3, 5), make(2, 5, dtype=I) - 1))
        for weight in (make(3), None)
        for reduction in (0, 1, 2)
        for ignored, smoothing in ((-100, 0.0), (-100, 0.1), (2, 0.1))
    ]
    + [((make(4, 3), make(4, 3), make(3), 1, -100, 0.1), {})],
    "aten::ctc_loss.Tensor": [
        ((x, targets, torch.tensor([5, 4]), torch.tensor([3, 2]), 0, reduction, zero), {})
        for x in (make(5, 2, 7), make(5, 2, 7).double(), make(2, 5, 7).transpose(0, 1))
        for targets in (torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([1, 2, 3, 4, 5]))
        for reduction in (0, 1, 2)
        for zero in (False, True)
    ],
    "aten::_ctc_loss_backward.Tensor": [
        ((make(2), x, t, n, m, *torch.ops.aten._ctc_loss.Tensor(x, t, n, m), 0, zero), {})
        for x in (make(5, 2, 7), make(2, 5, 7).transpose(0, 1))
        for t in (torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([1, 2, 3, 4, 5]))
        for n, m in ((torch.tensor([5, 4]), torch.tensor([3, 2])),)
        for zero in (False, True)
    ],
    "magneto::prod_backward": [((make(), x, x.prod(), None), {}) for x in geometries()]
    + [
        ((torch.ones_like(x.prod(dim, keepdim=True)), x, x.prod(dim, keepdim=True), dim), {})
        for x in geometries()
        for dim in range(x.dim())
    ],
    "magneto::cumprod_backward": [
        ((make(*x.shape), x, dim, x.cumprod(dim)), {}) for x in geometries() if x.dim() for dim in (0, -1)
    ],
    "magneto::manual_seed": [((3,), {}), ((-3,), {})],
    "magneto::seed_generator": [((torch.Generator(), seed), {}) for seed in (3, -3)],
    "magneto::generator_state": [((torch.Generator(),), {}), ((None,), {})],
    "magneto::set_generator_state": [((torch.Generator(), torch.Generator().get_state()), {})],
    "magneto::assume": [((torch.tensor(True), "so"), {})],
    # Where another element begins, the rule can't say.
    "magneto::select": [
        ((t, dim, torch.tensor(0)), {}) for t in geometries() for dim in range(t.dim()) if t.shape[dim]
    ],
    "aten::_jagged_to_padded_dense_forward": [
        ((make(6, 3), [torch.tensor([0, 2, 6])], [4], 0.5), {}),
        ((make(6, dtype=I), [torch.tensor([0, 2, 6])], [5]), {}),
        ((make(6, 3, 2, dtype=B), [torch.tensor([0, 6])], [7]), {}),
    ],
    "aten::_padded_dense_to_jagged_forward": [
        ((make(2, 4, 3), [torch.tensor([0, 2, 6])], 6), {}),
        ((make(1, 7, 3, 2, dtype=H), [torch.tensor([0, 6])], 6), {}),
    ],
    "aten::take": [
        ((t, i), {})
        for t in geometries()
        for i in (torch.tensor([0, 0]), torch.tensor([[0]]), torch.tensor([0], dtype=torch.int32))
    ],
    # Enough elements for each mask: how many it takes is data.
    "aten::masked_scatter_": [((t, t > 1, make(240)), {}) for t in geometries()]
    + [((make(2, 3), mask > 1, make(240)), {}) for mask in (make(3), make(1, 3), make(4, 2, 3), make(2), make())]
    + [((make(2, 3), make(2, 3) > 1, make(240, dtype=torch.float64)), {})],
    "aten::masked_scatter": [((t, t > 1, make(240)), {}) for t in geometries()]
    + [((make(2, 3), make(3) > 1, make(6)), {}), ((make(2, 3), make(3) > 1, make(6, dtype=H)), {})],
    "aten::gather": [(call, {}) for call in gathers()]
    + [((make(3, 4, dtype=d), 0, torch.zeros(2, 2, dtype=I)), {}) for d in CLASSES],
    "aten::scatter.src": list(scatters(source=True)),
    "aten::scatter_.src": list(scatters(source=True)),
    "aten::scatter.value": list(scatters(source=False)),
    "aten::scatter_.value": list(scatters(source=False)),
    "aten::scatter.reduce": [(a, {"reduce": "add"}) for a, _ in scatters(source=True)],
    "aten::scatter_.reduce": [(a, {"reduce": "multiply"}) for a, _ in scatters(source=True)],
    "aten::scatter.value_reduce": [(a, {"reduce": "add"}) for a, _ in scatters(source=False)],
    "aten::scatter_.value_reduce": [(a, {"reduce": "bad"}) for a, _ in scatters(source=False)]
    + [(a, {"reduce": "add"}) for a, _ in scatters(source=False)],
    "aten::scatter_add": list(scatters(source=True)),
    "aten::scatter_add_": list(scatters(source=True)),
    "aten::scatter_reduce.two": list(scatters("sum", source=True)) + list(scatters("amax", source=True)),
    "aten::scatter_reduce_.two": list(scatters("mean", source=True)),
    **{
        f"aten::{name}": [
            ((t, d, torch.tensor([0]), t.narrow(d, 0, 1).contiguous()), {})
            for t in geometries()
            if t.numel() and t.dim()
            for d in (0, -1)
        ]
        + [
            ((make(3, 4), 0, torch.tensor([0, 1]), make(2, 3)), {}),
            ((make(3, 4), 0, torch.tensor([0, 1]), make(2, 4, dtype=H)), {}),
        ]
        for name in ["index_add", "index_add_", "index_copy", "index_copy_"]
    },
    "aten::cat": list(cats()),
    "aten::stack": list(cats()),
    "aten::repeat": list(
        views([[1]], [[2, 1, 1]], [[2, 3, 1, 1]], [[0, 1, 1, 1]], [[-1, 1, 1, 1]], [[]], [[2, 1, 1, 2, 1]])
    ),
    "aten::flip": list(views([[0]], [[0, 1]], [[-1]], [[0, 0]], [[]], [[8]])),
    "aten::roll": list(views([[1], [0]], [[1, 1], [0, 1]], [[2]], [[-1], [-1]], [[1], [0, 1]], [[1], [9]])),
    "aten::constant_pad_nd": list(
        views(
            [[1, 1]],
            [[1, 2, 0, 1]],
            [[-1, 0]],
            [[-1, -1, 0, 0]],
            [[0, 0]],
            [[-9, 0]],
            [[1]],
            [[1, 1, 1, 1, 1, 1, 1, 1]],
        )
    ),
    "aten::reflection_pad1d": list(views([[1, 1]], [[0, 2]], [[9, 9]])) + [((make(2, 3, 9), [1, 2]), {})],
    "aten::replication_pad1d": list(views([[1, 1]], [[0, 2]])) + [((make(2, 3, 9), [1, 2]), {})],
    "aten::reflection_pad2d": list(images([1, 1, 2, 0])) + list(images([9, 9, 9, 9])),
    "aten::replication_pad2d": list(images([1, 1, 2, 0])),
    "aten::bucketize.Tensor": [((t, make(3).cumsum(0)), {"out_int32": k}) for t in geometries() for k in (False, True)],
    "aten::searchsorted.Tensor": [
        ((make(3).cumsum(0), t), {"out_int32": k}) for t in geometries() for k in (False, True)
    ],
    "aten::multinomial": [
        ((t, n, r), {})
        for t in (make(4), make(2, 4), make(2, 4, dtype=H), make(2, 2, 2), make(4, dtype=I))
        for n in (0, 1, 3, 9)
        for r in (True, False)
    ],
    "aten::histc": [((t, 5, 0, 4), {}) for t in geometries()],
    # convolutions and images
    "aten::convolution": list(convolutions()),
    "aten::convolution_backward": [  # only large ones are the rule's
        (
            (make(2, 8, 96, 96), make(2, 16, 96, 96), make(8, 16, 3, 3), [8])
            + ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask),
            {},
        )
        for mask in ([True, True, True], [True, True, False], [False, True, True])
    ],
    "aten::max_pool2d_with_indices": both(
        images([2, 2]), images([3, 3], [2, 2], [1, 1]), images([9, 9]), images([2, 2], [1, 1], [0, 0], [2, 2], True)
    ),
    "aten::max_pool2d_with_indices_backward": [
        (
            (
                make(2, 3, 4, 4),
                make(2, 3, 8, 8),
                [2, 2],
                [2, 2],
                [0, 0],
                [1, 1],
                False,
                torch.zeros(2, 3, 4, 4, dtype=I),
            ),
            {},
        )
    ],
    "aten::avg_pool2d": both(images([2, 2]), images([3, 3], [2, 2], [1, 1]), images([9, 9])),
    "aten::avg_pool2d_backward": [
        ((make(2, 3, 4, 4), make(2, 3, 8, 8), [2, 2], [2, 2], [0, 0], False, True, None), {})
    ],
    "aten::adaptive_max_pool2d": list(images([2, 3])),
    "aten::_adaptive_avg_pool2d": both(images([2, 3]), images([1, 1])),
    "aten::upsample_nearest1d": [((make(2, 3, 4, dtype=d), [7]), {}) for d in (F, H)]
    + [((make(2, 3), [7]), {}), ((make(2, 4, 3).transpose(1, 2), [7]), {})],
    "aten::upsample_linear1d": [((make(2, 3, 4, dtype=d), [7], False), {}) for d in (F, H)]
    + [((make(2, 3), [7], False), {})],
    "aten::upsample_nearest2d": list(images([7, 9])),
    "aten::upsample_bilinear2d": list(images([7, 9], False)),
    "aten::upsample_bicubic2d": list(images([7, 9], True)),
    "aten::_scaled_dot_product_flash_attention_for_cpu": list(attention()),
    "aten::_transformer_encoder_layer_fwd": list(encoder_layers()),
    # elementwise operators with arguments of their own
    "aten::native_dropout": both(each(0.5, True), each(0.5, False), each(0.5, None)),
    "aten::bernoulli": [((t / 4,), {}) for t in geometries()],
    "aten::bernoulli.p": list(each(0.5)),
    **{
        f"aten::{name}": list(each()) + list(classes())
        for name in ["bernoulli_.float", "uniform_", "normal_", "exponential_", "zero_"]
    },
    "aten::fill_.Scalar": both(each(2), classes(2), classes(2.5)),
    "aten::fill_.Tensor": both(each(make()), classes(make()), each(make(2))),
    "aten::glu": list(all_dims())
    + [((make(2, 4, 6).transpose(0, 1), d), {}) for d in (0, 1, 2)]
    + [((make(2, 4, 6, 8).to(memory_format=torch.channels_last), d), {}) for d in range(4)],
    "aten::log_sigmoid_forward": both(each(), classes()),
    "aten::isin.Tensor_Tensor": [((t, make(3)), {}) for t in geometries()],
    "aten::complex": [((a, b), {}) for a, b in [*pairs()]]
    + [((make(2, dtype=a), make(2, dtype=b)), {}) for a in CLASSES for b in CLASSES],
    "aten::polar": [((a, b), {}) for a, b in [*pairs()]]
    + [((make(2, dtype=a), make(2, dtype=b)), {}) for a in CLASSES for b in CLASSES],
    **{
        f"aten::{name}": [((t, m, v), {}) for t, m in [(t, m > 1) for t, m in pairs()] for v in values]
        + [((make(2, 3, dtype=d), make(3) > 1, v), {}) for d in CLASSES for v in values]
        + [((make(2, 3), make(3), values[0]), {})]
        for name, values in {
            "masked_fill.Scalar": NUMBERS[:3],
            "masked_fill_.Scalar": NUMBERS[:3],
            "masked_fill.Tensor": [make(), make(2)],
            "masked_fill_.Tensor": [make()],
        }.items()
    },
    **{
        f"aten::{name}": [
            ((t, *limits), {})
            for t in geometries() + [make(2, 3, dtype=d) for d in CLASSES]
            for limits in ([1, 2], [1.5, None], [None, 2], [None, None], [0.5, 2])
        ]
        for name in ["clamp", "clamp_"]
    },
    **{
        f"aten::{name}": [
            ((t, *limits), {})
            for t in geometries() + [make(2, 3, dtype=d) for d in CLASSES]
            for limits in (
                [make(), make()],
                [make(4), None],
                [None, make(3, 4)],
                [None, None],
                [make(dtype=I), make(4, dtype=torch.float64)],
            )
        ]
        for name in ["clamp.Tensor", "clamp_.Tensor"]
    },
    "aten::where.self": [((a > 1, a, b), {}) for a, b in pairs()]
    + [((b > 1, a, a), {}) for a, b in pairs()]
    + [((make(2, 3) > 1, a, b), {}) for a, b in promotions()]
    + [((make(2, 3), make(3), make(3)), {})],
    "aten::copy_": [((a, b), {}) for a, b in both(pairs(), promotions())],
    **{
        f"aten::{name}": [((a, b, w), {}) for a, b in [*pairs()] for w in (a, b)]
        + [((make(3, dtype=d), make(3, dtype=d), make(3, dtype=e)), {}) for d in CLASSES for e in CLASSES]
        for name in ["lerp.Tensor", "lerp_.Tensor"]
    },
    **{
        f"aten::{name}": [((a, b, 0.5), {}) for a, b in both(pairs(), promotions())]
        for name in ["lerp.Scalar", "lerp_.Scalar"]
    },
    **{
        f"aten::{name}": [
            ((t, e), {})
            for t in geometries() + [make(2, 3, dtype=d) for d in CLASSES]
            for e in [0, 1, 2, -1, 2.5, True, 1j]
        ]
        for name in ["pow.Tensor_Scalar", "pow_.Scalar"]
    },
    "aten::_prelu_kernel": [((a, b), {}) for a, b in pairs()],
    **{
        f"aten::{name}": [((a, b, *rest), {}) for a, b in same_sizes()]
        for name, rest in {
            "gelu_backward": [],
            "silu_backward": [],
            "sigmoid_backward": [],
            "tanh_backward": [],
            "leaky_relu_backward": [0.1, False],
            "threshold_backward": [0.5],
            "hardtanh_backward": [-1, 1],
            "softplus_backward": [1, 20],
            "hardsigmoid_backward": [],
            "hardswish_backward": [],
        }.items()
    },
}
