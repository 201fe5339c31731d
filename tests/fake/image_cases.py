"""Arguments for the rules of images, volumes, losses and distances, and of some reductions."""

import torch
from rule_cases import CLASSES, F, H, I, all_dims, both, classes, dims_and_keepdim, each, geometries, make, pairs

D = torch.float64
LAST, LAST3D = torch.channels_last, torch.channels_last_3d


def image_layouts(*size, dtypes=(F, D, H)):
    """Images of these sizes in many layouts."""
    for dtype in dtypes:
        image = make(*size, dtype=dtype)
        yield image
        yield image.to(memory_format=LAST)
        yield image.transpose(-1, -2).contiguous().transpose(-1, -2)
        yield make(*size[:-1], 2 * size[-1], dtype=dtype)[..., ::2]
        yield make(1, *size[1:], dtype=dtype).expand(size)


def volume_layouts(*size, dtypes=(F, D, H)):
    for dtype in dtypes:
        volume = make(*size, dtype=dtype)
        yield volume
        if len(size) == 5:
            yield volume.to(memory_format=LAST3D)
        yield volume.transpose(-1, -2).contiguous().transpose(-1, -2)


def samples(backward=False):
    for image in [*image_layouts(2, 3, 4, 5), make(2, 3, 0, 5), make(2, 3, 4, 5, dtype=I), make(3, 3, 4, 5)]:
        for kind, padding, align in ((0, 0, False), (1, 1, True), (2, 2, False)):
            for grid in (make(2, 6, 7, 2, dtype=image.dtype), make(2, 2, 6, 7, dtype=image.dtype).permute(0, 2, 3, 1)):
                if not backward:
                    yield (image, grid, kind, padding, align), {}
                    continue
                grad = make(image.shape[0], image.shape[1], 6, 7, dtype=image.dtype)
                for mask in ([True, True], [False, True]):
                    yield (grad, image, grid, kind, padding, align, mask), {}


def volume_samples(backward=False):
    for volume in [*volume_layouts(2, 3, 4, 5, 3), make(2, 3, 4, 5)]:
        grid = make(2, 6, 7, 2, 3, dtype=volume.dtype)
        for kind in (0, 1, 2):
            if backward:
                grad = make(2, 3, 6, 7, 2, dtype=volume.dtype)
                yield (grad, volume, grid, kind, 0, False, [True, True]), {}
            else:
                yield (volume, grid, kind, 0, True), {}


PATCHES = [
    ([2, 2], [1, 1], [0, 0], [1, 1]),
    ([3, 2], [1, 2], [1, 0], [2, 1]),
    ([2, 3], [2, 1], [1, 1], [1, 2]),
    ([9, 9], [1, 1], [0, 0], [1, 1]),
    ([2, 2], [1, 1], [0, 0], [0, 1]),
]


def folded():
    for kernel, dilation, padding, stride in PATCHES[:3]:
        output = [6, 7]
        sides = [(output[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)]
        rows, columns = 3 * kernel[0] * kernel[1], sides[0] * sides[1]
        for dtype in (F, D, H, torch.complex64, I):
            for x in (make(2, rows, columns, dtype=dtype), make(rows, columns, dtype=dtype)):
                yield (x, output, kernel, dilation, padding, stride), {}
        yield (make(2, columns, rows).transpose(1, 2), output, kernel, dilation, padding, stride), {}
        yield (make(2, rows, columns + 1), output, kernel, dilation, padding, stride), {}


def unpooled():
    for x in image_layouts(2, 3, 4, 5):
        places = (torch.arange(120).reshape(2, 3, 4, 5) % 20) * 4
        yield (x, places, [8, 10]), {}
    yield (make(3, 4, 5), torch.arange(60).reshape(3, 4, 5) % 20, [8, 10]), {}
    yield (make(3, 4, 5), torch.arange(60).reshape(3, 4, 5) % 20, [8]), {}


TARGETS = torch.tensor([0, 1, 2, 3])
MAP = torch.arange(2 * 4 * 5).reshape(2, 4, 5) % 3
POINTS = [
    (make(4, 3), make(5, 3)),
    (make(2, 4, 3), make(5, 3)),
    (make(2, 1, 4, 3), make(3, 5, 3)),
    (make(30, 3), make(40, 3)),
    (make(3, 30, 3), make(3, 40, 3)),
    (make(3, 4).t(), make(5, 3)),
    (make(4, 3), make(5, 4)),
    (make(0, 3), make(5, 3)),
    (make(4, 0), make(5, 0)),
    (make(4, 3, dtype=D), make(5, 3, dtype=D)),
    (make(4, 3), make(5, 3, dtype=D)),
    (make(4, 3, dtype=H), make(5, 3, dtype=H)),
    (make(4), make(4)),
]

CASES = {
    "aten::grid_sampler_2d": list(samples()),
    "aten::grid_sampler_2d_backward": list(samples(backward=True)),
    "aten::grid_sampler_3d": list(volume_samples()),
    "aten::grid_sampler_3d_backward": list(volume_samples(backward=True)),
    "aten::im2col": [
        ((x, *patches), {})
        for x in [
            *image_layouts(2, 3, 6, 7),
            make(3, 6, 7),
            make(6, 7),
            make(0, 3, 6, 7),
            *(make(2, 3, 6, 7, dtype=d) for d in CLASSES),
        ]
        for patches in PATCHES
    ],
    "aten::col2im": list(folded()),
    "aten::pixel_shuffle": [
        ((x, factor), {})
        for x in [
            *image_layouts(2, 12, 4, 5),
            make(12, 4, 5),
            make(2, 2, 12, 4, 5),
            *(make(2, 12, 4, 5, dtype=d) for d in CLASSES),
        ]
        for factor in (1, 2, 5, 0)
    ],
    "aten::pixel_unshuffle": [
        ((x, factor), {})
        for x in [
            *image_layouts(2, 3, 4, 6),
            make(3, 4, 6),
            make(2, 2, 3, 4, 6),
            make(2, 1, 4, 4).to(memory_format=LAST),
        ]
        for factor in (1, 2, 5)
    ],
    "aten::channel_shuffle": [((x, n), {}) for x in [*image_layouts(2, 6, 4, 5), make(2, 6, 4)] for n in (1, 2, 3, 4)],
    "aten::max_pool3d_with_indices": [
        ((x, *rest), {})
        for x in [*volume_layouts(2, 3, 6, 7, 8), *volume_layouts(3, 6, 7, 8), make(2, 3, 6, 7)]
        for rest in (([2, 2, 2],), ([3], [2], [1], [1], True), ([2, 3, 2], [1, 2, 1], [1, 1, 0], [1, 2, 1]), ([9],))
    ],
    "aten::_adaptive_avg_pool3d": [
        ((x, size), {})
        for x in [*volume_layouts(2, 3, 6, 7, 8), *volume_layouts(3, 6, 7, 8)]
        for size in ([1, 2, 3], [7, 7, 7], [0, 1, 1])
    ],
    "aten::max_unpool2d": list(unpooled()),
    "aten::binary_cross_entropy": [
        ((x.abs() / 9, y / 9, w, r), {})
        for x in geometries()
        for y in (x.detach().clone(), x.expand_as(x).contiguous())
        for w in (None, y)
        for r in (0, 1, 2)
    ]
    + [((make(2, 3, dtype=d) / 9, make(2, 3, dtype=d) / 9), {}) for d in CLASSES],
    "aten::soft_margin_loss": [((a, b, r), {}) for a, b in [*pairs()][:120] for r in (0, 1)],
    "aten::huber_loss": [((a, b, r), {}) for a, b in [*pairs()][:120] for r in (0, 1)]
    + [((make(2), make(2), 1, delta), {}) for delta in (0.0, -1.0)],
    "aten::multi_margin_loss": [
        ((make(4, 5, dtype=d), TARGETS, p, 1, w, r), {})
        for d in (F, D, H)
        for p in (1, 2, 3)
        for w in (None, make(5, dtype=d))
        for r in (0, 1, 2)
    ]
    + [((make(4, 5), TARGETS[:3]), {}), ((make(5), TARGETS[1]), {}), ((make(4, 5), TARGETS.int()), {})],
    "aten::multilabel_margin_loss_forward": [
        ((make(4, 5, dtype=d), make(4, 5, dtype=I), r), {}) for d in (F, D, H) for r in (0, 1, 2)
    ]
    + [((make(4, 5), make(4, 4, dtype=I), 1), {}), ((make(5), make(5, dtype=I), 1), {})],
    "aten::nll_loss2d_forward": [
        ((x, MAP, w, r, -100), {})
        for x in image_layouts(2, 3, 4, 5)
        for w in (None, make(3, dtype=x.dtype), make(4, dtype=x.dtype))
        for r in (0, 1, 2)
    ]
    + [((make(2, 3, 4, 4), MAP, None, 1, -100), {}), ((make(2, 3, 4, 5), MAP.int(), None, 1, -100), {})],
    "aten::_cdist_forward": [
        ((a, b, p, mode), {})
        for a, b in POINTS
        for p in (0.0, 1.0, 2.0, 2.5, float("inf"), -1.0)
        for mode in (None, 1, 2)
    ],
    "aten::_pdist_forward": [
        ((x, p), {})
        for x in (make(5, 3), make(5, 3, dtype=D), make(5, 3, dtype=H), make(3, 5).t(), make(1, 3), make(5, 0), make(5))
        for p in (0.0, 2.0, 3.0, -1.0)
    ],
    "aten::nanmedian": both(each(), classes()),
    "aten::nanmedian.dim": both(dims_and_keepdim(lists=False)),
    "aten::kthvalue": [
        ((t, k, d, keep), {}) for t in geometries() for k in (1, 2, 9) for d in (0, -1, 7) for keep in (False, True)
    ]
    + list(classes(1)),
    "aten::nansum": both(dims_and_keepdim(), [((make(2, 3, dtype=d),), {"dtype": D}) for d in CLASSES], each()),
    "aten::count_nonzero.dim_IntList": [((t, dims), {}) for t in geometries() for dims in ([0], [-1], [0, 1], [], [9])]
    + list(classes([0])),
    **{f"aten::{name}": both(all_dims(), classes(0)) for name in ("logcumsumexp", "_logcumsumexp")},
    "aten::trace": both(each(), classes(), [((make(3, 4).t(),), {}), ((make(0, 4),), {})]),
    "aten::vdot": [
        ((make(n, dtype=d), make(m, dtype=e)), {}) for d in CLASSES for e in (d, F) for n, m in ((3, 3), (3, 4), (0, 0))
    ]
    + [((make(2, 3), make(3)), {})],
    "aten::addbmm": [
        ((s, a, b), {"beta": beta})
        for d in (F, D, H, I, torch.complex64, torch.bool)
        for a, b in (
            (make(2, 3, 4, dtype=d), make(2, 4, 5, dtype=d)),
            (make(2, 4, 3, dtype=d).transpose(1, 2), make(2, 4, 5, dtype=d)),
            (make(2, 3, 4, dtype=d), make(2, 3, 5, dtype=d)),
        )
        for s in (make(3, 5, dtype=d), make(5, dtype=d), make(5, 3, dtype=d).t(), make(4, dtype=d), make(3, 5, dtype=F))
        for beta in (0, 1)
    ],
    "aten::addr": [
        ((s, a, b), {})
        for d in (F, D, H, I, torch.bool)
        for a, b in (
            (make(3, dtype=d), make(4, dtype=d)),
            (make(6, dtype=d)[::2], make(4, dtype=d)),
            (make(0), make(4)),
        )
        for s in (make(3, 4, dtype=d), make(4, 3, dtype=d).t(), make(4, dtype=d), make(3, 4, dtype=F), make(3, 3))
    ],
    "aten::normal.Tensor_float": [((x, s), {}) for x in [*geometries(), make(3, dtype=I)] for s in (1.0, 0.0, -1.0)],
    "aten::normal.float_Tensor": [((0.0, x), {}) for x in [*geometries(), make(3, dtype=H)]],
    "aten::normal.Tensor_Tensor": [((a, b), {}) for a, b in [*pairs()][:160]],
    "aten::poisson": both(each(), classes()),
    "aten::_standard_gamma": both(each(), classes()),
    **{
        f"aten::{name}": [
            ((x, x.clone(), 0.1, 0.3, training), {})
            for x in [*geometries(), *geometries(D)]
            for training in (True, False)
        ]
        + [((make(2, 3), make(3), 0.1, 0.3, True), {})]
        for name in ("rrelu_with_noise", "rrelu_with_noise_")
    },
}
