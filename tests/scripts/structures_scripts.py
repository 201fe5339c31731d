"""Data with a structure: graphs, experts, boxes, clusters, sparse and nested tensors, modules of other kinds."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from scripts import Compiled, Scripts
from torch import Tensor, nn

scripts = Scripts()


@scripts
def graph_convolution(compiled: Compiled) -> Any:
    """Messages along edges, for graphs of several sizes."""
    first = nn.Linear(4, 8)
    second = nn.Linear(8, 2)

    def classify(x: Tensor, edges: Tensor) -> Tensor:
        count = x.size(0)
        source, target = edges[0], edges[1]
        degree = torch.zeros(count).scatter_add_(0, target, torch.ones(edges.size(1)))
        scale = degree.clamp(min=1).pow(-0.5)
        weight = scale[source] * scale[target]
        for layer in (first, second):
            hidden = layer(x)
            x = torch.zeros(count, hidden.size(1)).index_add_(0, target, hidden[source] * weight[:, None])
            x = F.relu(x) if layer is first else x
        return F.log_softmax(x, -1)

    classify = compiled(classify)
    sizes = ((5, 9), (6, 12), (7, 9))
    return [classify(torch.randn(n, 4), torch.randint(0, n, (2, edges))).detach() for n, edges in sizes]


@scripts
def mixture_of_experts(compiled: Compiled) -> Any:
    """Each token goes to two experts; an expert may get none."""
    gate = nn.Linear(4, 3)
    experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def mix(x: Tensor) -> Tensor:
        weights, chosen = torch.topk(F.softmax(gate(x), -1), 2)
        weights = weights / weights.sum(-1, keepdim=True)
        output = torch.zeros_like(x)
        for index, expert in enumerate(experts):
            token, slot = torch.where(chosen == index)
            if token.numel():
                output.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        return output

    mix = compiled(mix)
    with torch.no_grad():
        return [mix(torch.randn(count, 4)) for count in (6, 7, 3)]


@scripts
def suppression_of_overlapping_boxes(compiled: Compiled) -> Any:
    """A loop over boxes of which fewer are left each time."""

    def keep_best(boxes: Tensor, scores: Tensor) -> Tensor:
        kept = []
        order = scores.argsort(descending=True)
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        while order.numel() > 0:
            best = order[0]
            kept.append(best)
            if order.numel() == 1:
                break
            rest = order[1:]
            left = torch.maximum(boxes[best, 0], boxes[rest, 0])
            right = torch.minimum(boxes[best, 2], boxes[rest, 2])
            top = torch.maximum(boxes[best, 1], boxes[rest, 1])
            bottom = torch.minimum(boxes[best, 3], boxes[rest, 3])
            common = (right - left).clamp(0) * (bottom - top).clamp(0)
            overlap = common / (areas[best] + areas[rest] - common)
            order = rest[overlap <= 0.5]
        return torch.stack(kept)

    boxes = torch.rand(10, 4)
    boxes[:, 2:] += boxes[:, :2]
    return compiled(keep_best)(boxes, torch.rand(10))


@scripts
def clustering(compiled: Compiled) -> Any:
    """k-means until the centres stay where they are."""

    def cluster(points: Tensor, count: int) -> tuple[Tensor, Tensor]:
        centres = points[:count].clone()
        for _ in range(10):
            nearest = torch.cdist(points, centres).argmin(1)
            moved = []
            for index in range(count):
                members = nearest == index
                moved.append(points[members].mean(0) if members.any() else centres[index])
            new = torch.stack(moved)
            if torch.allclose(new, centres):
                break
            centres = new
        return centres, nearest

    return compiled(cluster)(torch.randn(20, 2), 3)


@scripts
def principal_components(compiled: Compiled) -> Any:
    def reduce(x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        centred = x - x.mean(0)
        _, singular, V = torch.linalg.svd(centred, full_matrices=False)
        return (centred @ V[:count].T).abs(), singular[:count], torch.linalg.norm(centred, ord="fro")

    return compiled(reduce)(torch.randn(10, 4), 2)


@scripts
def ordinary_differential_equation(compiled: Compiled) -> Any:
    """Runge and Kutta's method around a network, for two batches and end times."""
    network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def integrate(y: Tensor, start: float, end: float, steps: int) -> Tensor:
        h = (end - start) / steps
        for _ in range(steps):
            k1 = network(y)
            k2 = network(y + h / 2 * k1)
            k3 = network(y + h / 2 * k2)
            k4 = network(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y

    integrate = compiled(integrate)
    with torch.no_grad():
        return integrate(torch.ones(1, 2), 0.0, 1.0, 5), integrate(torch.ones(3, 2), 0.0, 2.0, 5)


@scripts
def radiance_field(compiled: Compiled) -> Any:
    """Rays through a field: positions encoded with sines, colours added up along each ray."""

    def encode(x: Tensor, bands: int) -> Tensor:
        waves = [function(2.0**i * torch.pi * x) for i in range(bands) for function in (torch.sin, torch.cos)]
        return torch.cat([x] + waves, -1)

    network = nn.Sequential(nn.Linear(3 + 3 * 2 * 4, 16), nn.ReLU(), nn.Linear(16, 4))

    def render(origins: Tensor, directions: Tensor, near: float, far: float, samples: int) -> tuple[Tensor, Tensor]:
        depth = torch.linspace(near, far, samples).expand(origins.shape[0], samples)
        points = origins[:, None] + directions[:, None] * depth[..., None]
        raw = network(encode(points, 4))
        density = F.relu(raw[..., 3])
        colour = raw[..., :3].sigmoid()
        distance = torch.cat([depth[:, 1:] - depth[:, :-1], torch.full_like(depth[:, :1], 1e10)], -1)
        opacity = 1 - torch.exp(-density * distance)
        passed = torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-10], -1)
        weights = opacity * torch.cumprod(passed, -1)[:, :-1]
        return (weights[..., None] * colour).sum(1), (weights * depth).sum(1)

    render = compiled(render)
    results = []
    with torch.no_grad():
        for rays, samples in ((3, 8), (4, 8), (4, 16)):
            directions = F.normalize(torch.randn(rays, 3), dim=-1)
            results.append(render(torch.randn(rays, 3), directions, 2.0, 6.0, samples))
    return results


@scripts
def sparse_product(compiled: Compiled) -> Any:
    def multiply(x: Tensor) -> tuple[Tensor, Tensor]:
        sparse = x.to_sparse()
        return torch.sparse.mm(sparse, x).relu(), sparse.coalesce().values()

    return compiled(multiply)(torch.eye(4) * 2)


@scripts
def nested_tensor(compiled: Compiled) -> Any:
    def pad(a: Tensor, b: Tensor) -> Tensor:
        nested = torch.nested.nested_tensor([a, b])
        return (nested * 2).to_padded_tensor(0.0)

    return compiled(pad)(torch.ones(2, 3), torch.ones(4, 3))


@scripts
def copy_of_a_compiled_module(compiled: Compiled) -> Any:
    """A deep copy has weights of its own."""
    forward = compiled(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    x = torch.randn(2, 3)
    before = forward(x)
    copied = copy.deepcopy(forward)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    return before.detach(), copied(x).detach(), forward(x).detach()


@scripts
def scripted_and_traced_parts(compiled: Compiled) -> Any:
    """TorchScript inside: one module scripted before, one function traced in the call."""
    scripted = torch.jit.script(nn.Linear(3, 3))
    with torch.no_grad():
        for parameter in scripted.parameters():
            parameter.fill_(0.1)

    def mixed(x: Tensor) -> Tensor:
        return scripted(x) + torch.jit.trace(lambda y: y * 2, x)(x)

    return compiled(mixed)(torch.ones(2, 3)).detach()


@scripts
def dynamically_quantized_layers(compiled: Compiled) -> Any:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return compiled(quantized)(torch.randn(3, 8))
