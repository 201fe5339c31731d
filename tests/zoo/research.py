"""Modules whose structure is a program: neural ODEs, searched and dynamic architectures, hypernetworks, mixtures."""

import copy
import math
from collections import OrderedDict, defaultdict

import torch
import torch.nn.functional as F
from torch import nn

from .registry import images, sequences, vectors, zoo


@zoo(vectors(3))
class NeuralODE(nn.Module):
    def __init__(self):
        super().__init__()
        self.func, self.nfe = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)), 0

    def ode(self, t, y):
        self.nfe += 1
        return self.func(y**3)

    def forward(self, y):
        ts, out = torch.linspace(0, 1, 4), [y]
        for t0, t1 in zip(ts[:-1], ts[1:]):
            h = t1 - t0
            k1 = self.ode(t0, y)
            k2 = self.ode(t0 + h / 2, y + h / 2 * k1)
            k3 = self.ode(t0 + h / 2, y + h / 2 * k2)
            k4 = self.ode(t1, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            out.append(y)
        return torch.stack(out)


@zoo(vectors(3), breaks=2)
class AdaptiveEuler(nn.Module):
    """The step follows from the error: control flow on data."""

    def forward(self, y):
        t, h = 0.0, 0.5
        while t < 1.0:
            full, half = y + h * torch.sin(y), y + h / 2 * torch.sin(y)
            half = half + h / 2 * torch.sin(half)
            if (full - half).abs().max() > 0.05:
                h = h / 2
                if h < 0.1:
                    break
                continue
            y, t = half, t + h
        return y


@zoo(vectors(4))
class DEQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(5):
                z = torch.tanh(self.w(z) * 0.3 + x)
        return torch.tanh(self.w(z) * 0.3 + x)


OPS = {
    "none": lambda c: Zero(),
    "skip": lambda c: nn.Identity(),
    "conv3": lambda c: nn.Sequential(
        nn.ReLU(), nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c, affine=False)
    ),
    "pool": lambda c: nn.AvgPool2d(3, 1, 1, count_include_pad=False),
}


class Zero(nn.Module):
    def forward(self, x):
        return x.mul(0.0)


@zoo(images(4, 6))
class DartsCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.ops = nn.ModuleList([nn.ModuleList([OPS[p](4) for p in OPS]) for _ in range(3)])
        self.alphas = nn.Parameter(1e-3 * torch.randn(3, len(OPS)))

    def forward(self, x):
        weights, states, offset = F.softmax(self.alphas, dim=-1), [x], 0
        for i in range(2):
            s = sum(
                sum(w * op(h) for w, op in zip(weights[offset + j], self.ops[offset + j])) for j, h in enumerate(states)
            )
            offset += len(states)
            states.append(s)
        return torch.cat(states[-2:], dim=1)


@zoo(images(4, 6))
class SampledPath(nn.Module):
    def __init__(self):
        super().__init__()
        self.choices = nn.ModuleDict({name: make(4) for name, make in OPS.items() if name != "none"})
        self.path = ["conv3", "pool", "skip"]

    def forward(self, x):
        for name in self.path:
            x = self.choices[name](x)
        return x


@zoo(images(3, 6))
class SlimmableConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 3, 3, 3)), nn.Parameter(torch.zeros(8))
        self.width_mult = 0.5

    def forward(self, x):
        out = []
        for width in (0.25, self.width_mult, 1.0):
            n = int(8 * width)
            out.append(F.conv2d(x, self.weight[:n], self.bias[:n], padding=1).mean())
        return torch.stack(out)


@zoo(vectors(4))
class HyperNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.z, self.net = nn.Parameter(torch.randn(3)), nn.Linear(3, 4 * 2 + 2)

    def forward(self, x):
        w = self.net(self.z)
        return F.linear(x, w[:8].view(2, 4), w[8:])


@zoo(vectors(4))
class FastWeights(nn.Module):
    """A step of MAML by hand, gradients taken inside."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x):
        with torch.enable_grad():
            params = OrderedDict((n, p) for n, p in self.net.named_parameters())
            loss = F.linear(x, params["weight"], params["bias"]).pow(2).mean()
            grads = torch.autograd.grad(loss, list(params.values()))
        fast = [p - 0.1 * g for p, g in zip(params.values(), grads)]
        return F.linear(x, *fast).detach()


@zoo(sequences(4))
class SparseMoE(nn.Module):
    def __init__(self, n=4, k=2):
        super().__init__()
        self.k, self.gate = k, nn.Linear(4, n)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(n)])

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        scores, index = self.gate(flat).topk(self.k, dim=-1)
        weights = torch.zeros(flat.size(0), len(self.experts)).scatter(1, index, scores.softmax(-1))
        return sum(weights[:, i : i + 1] * e(flat) for i, e in enumerate(self.experts)).view_as(x)


@zoo(sequences(4), breaks=3)
class RoutedMoE(nn.Module):
    """Each expert gets as many tokens as chose it."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        flat = x.view(-1, 4)
        choice, out = self.gate(flat).argmax(-1), torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows = (choice == i).nonzero(as_tuple=True)[0]
            out[rows] = expert(flat[rows])
        return out.view_as(x)


@zoo(vectors(4), breaks=2)
class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.heads = (
            nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]),
            nn.ModuleList([nn.Linear(4, 2) for _ in range(3)]),
        )

    def forward(self, x):
        for layer, head in zip(self.layers, self.heads):
            x = torch.tanh(layer(x))
            y = head(x).softmax(-1)
            if y.max(-1).values.min() > 0.99:
                break
        return y


@zoo(vectors(4))
class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            keep = 1 - 0.2 * i
            if self.training:
                mask = (keep + torch.rand(x.shape[0], 1)).floor_()
                x = x + block(x) / keep * mask
            else:
                x = x + block(x)
        return x


@zoo(vectors(4))
class Highway(nn.Module):
    def __init__(self):
        super().__init__()
        self.nl, self.gate = (
            nn.ModuleList([nn.Linear(4, 4) for _ in range(2)]),
            nn.ModuleList([nn.Linear(4, 4) for _ in range(2)]),
        )
        self.f = F.relu

    def forward(self, x):
        for layer in range(len(self.nl)):
            g = torch.sigmoid(self.gate[layer](x))
            x = g * self.f(self.nl[layer](x)) + (1 - g) * x
        return x


@zoo(vectors(8))
class Maxout(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 12)

    def forward(self, x):
        shape = list(x.size())
        shape[-1] = 4
        shape.append(3)
        m, _ = self.lin(x).view(*shape).max(len(shape) - 1)
        return m


@zoo(vectors(3))
class SIREN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.ModuleList([nn.Linear(3, 8), nn.Linear(8, 8)])
        self.final = nn.Linear(8, 1)
        with torch.no_grad():
            self.final.weight.uniform_(-math.sqrt(6 / 8) / 30, math.sqrt(6 / 8) / 30)

    def forward(self, coords):
        x = coords.clone().detach().requires_grad_(True)
        for layer in self.net:
            x = torch.sin(30 * layer(x))
        return self.final(x).detach(), coords


@zoo(vectors(3))
class NeRF(nn.Module):
    def __init__(self):
        super().__init__()
        self.freq = 2.0 ** torch.arange(3)
        self.mlp, self.sigma, self.rgb = nn.Linear(21, 8), nn.Linear(8, 1), nn.Linear(8, 3)

    def embed(self, x):
        return torch.cat([x] + [fn(x * f) for f in self.freq for fn in (torch.sin, torch.cos)], -1)

    def forward(self, rays):
        z = torch.linspace(0.5, 2.0, 5)
        z = z.expand(rays.size(0), 5) + torch.rand(rays.size(0), 5) * 0.1
        pts = F.normalize(rays, dim=-1)[:, None, :] * z[..., None]
        h = F.relu(self.mlp(self.embed(pts)))
        dists = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], -1)
        alpha = 1 - torch.exp(-F.relu(self.sigma(h)[..., 0]) * dists)
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * trans
        return (weights[..., None] * torch.sigmoid(self.rgb(h))).sum(1), (weights * z).sum(1)


@zoo(vectors(3))
class GaussianProcessHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("train_x", torch.randn(5, 3))
        self.register_buffer("train_y", torch.randn(5, 1))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def kernel(self, a, b):
        return torch.exp(-torch.cdist(a, b).pow(2) / (2 * self.log_scale.exp() ** 2))

    def forward(self, x):
        k = self.kernel(self.train_x, self.train_x) + 0.1 * torch.eye(5)
        chol = torch.linalg.cholesky(k)
        ks = self.kernel(self.train_x, x)
        v = torch.linalg.solve_triangular(chol, ks, upper=False)
        return ks.t() @ torch.cholesky_solve(self.train_y, chol), 1 - (v**2).sum(0)


@zoo(lambda: (torch.rand(2, 4).softmax(-1), torch.rand(2, 4).softmax(-1), torch.rand(4, 4)))
class Sinkhorn(nn.Module):
    def forward(self, mu, nu, C):
        u, v = torch.zeros_like(mu), torch.zeros_like(nu)
        M = lambda: (-C + u.unsqueeze(-1) + v.unsqueeze(-2)) / 0.1  # noqa: E731
        for _ in range(4):
            u = 0.1 * (torch.log(mu + 1e-8) - torch.logsumexp(M(), dim=-1)) + u
            v = 0.1 * (torch.log(nu + 1e-8) - torch.logsumexp(M().transpose(-2, -1), dim=-1)) + v
        return torch.exp(M()), torch.sum(torch.exp(M()) * C, dim=(-2, -1))


@zoo(lambda: (torch.randint(0, 9, (4, 3)), torch.randn(4, 2)))
class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0, 3, 6]))
        self.emb, self.linear, self.mlp = nn.Embedding(18, 4), nn.Embedding(18, 1), nn.Linear(14, 1)

    def forward(self, fields, dense):
        e = self.emb(fields + self.offsets.unsqueeze(0))
        fm = 0.5 * (torch.sum(e, dim=1) ** 2 - torch.sum(e**2, dim=1)).sum(1, keepdim=True)
        return torch.sigmoid(fm + self.linear(fields).sum(1) + self.mlp(torch.cat([e.flatten(1), dense], 1)))


@zoo(vectors(4))
class MultiTaskHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.heads = nn.Linear(4, 6), nn.ModuleDict({"cls": nn.Linear(6, 3), "reg": nn.Linear(6, 1)})
        self.log_vars = nn.ParameterDict({k: nn.Parameter(torch.zeros(())) for k in self.heads})

    def forward(self, x):
        h, losses = F.relu(self.shared(x)), defaultdict(float)
        outputs = {name: head(h) for name, head in self.heads.items()}
        for name, out in outputs.items():
            losses[name] += torch.exp(-self.log_vars[name]) * out.pow(2).mean() + self.log_vars[name]
        return outputs, dict(losses), sum(losses.values())


@zoo(vectors(4))
class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        base = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.models = nn.ModuleList(copy.deepcopy(base) for _ in range(3))

    def forward(self, x):
        preds = torch.stack([m(x) for m in self.models])
        return preds.mean(0), preds.var(0), torch.mode(preds.argmax(-1), 0).values


@zoo(vectors(4))
class MCDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.AlphaDropout(0.1), nn.Linear(8, 2))

    def forward(self, x):
        return torch.stack([self.net(x) for _ in range(3)]).std(0)


@zoo(vectors(4))
class LoRA(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.enabled = nn.Linear(4, 4), True
        self.base.weight.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(4, 2))

    def forward(self, x):
        result = self.base(x)
        if self.enabled:
            result += F.dropout(x, 0.1, self.training) @ self.lora_A.transpose(0, 1) @ self.lora_B.transpose(0, 1)
        return result


@zoo(vectors(4))
class FakeQuantLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self.register_buffer("range", torch.zeros(2))

    def forward(self, x):
        if self.training:
            self.range[0] = torch.minimum(self.range[0], x.min())
            self.range[1] = torch.maximum(self.range[1], x.max())
        scale = (self.range[1] - self.range[0]).clamp(min=1e-4) / 255
        q = (x / scale).round().clamp(-128, 127) * scale
        return self.lin(x + (q - x).detach())


@zoo(vectors(4))
class BinaryNet(nn.Module):
    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sign()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * (x.abs() <= 1)

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.Sign.apply(self.fc(self.Sign.apply(x)))


@zoo(vectors(4))
class GradientReversal(nn.Module):
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, alpha):
            ctx.alpha = alpha
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return grad.neg() * ctx.alpha, None

    def __init__(self):
        super().__init__()
        self.features, self.domain = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        f = self.features(x)
        return f, self.domain(self.Reverse.apply(f, 0.5))
