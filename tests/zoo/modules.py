"""What nn.Module itself offers: containers, hooks, buffers, parametrisations, lazy layers, modes, dtypes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from .registry import images, vectors, zoo


@zoo(vectors(4))
class HookedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.seen = nn.Linear(4, 4), nn.Linear(4, 2), {}
        self.a.register_forward_hook(self.save("a"))
        self.b.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.b.register_forward_hook(lambda m, args, kwargs, out: out + 1, with_kwargs=True)

    def save(self, name):
        def hook(module, args, output):
            self.seen[name] = output.detach()

        return hook

    def forward(self, x):
        y = self.b(torch.relu(self.a(x)))
        return y, self.seen["a"].mean()


@zoo(images(3, 6))
class FeatureExtractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.keep = (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveMaxPool2d(1)),
            {"1", "3"},
        )

    def forward(self, x):
        out = []
        for name, child in self.body.named_children():
            x = child(x)
            if name in self.keep:
                out.append(x)
        return tuple(out)


@zoo(vectors(4))
class Parametrized(nn.Module):
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).transpose(-1, -2)

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        parametrize.register_parametrization(self.lin, "weight", self.Symmetric())

    def forward(self, x):
        return self.lin(x)


@zoo(vectors(4))
class OrthogonalLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley")

    def forward(self, x):
        return self.lin(x)


@zoo(vectors(4))
class OldWeightNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.utils.weight_norm(nn.Linear(4, 3), dim=0)

    def forward(self, x):
        return self.lin(x)


@zoo(vectors(4))
class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False)
        self.dec.weight = nn.Parameter(self.enc.weight.t())
        self.again = self.enc

    def forward(self, x):
        return self.dec(self.again(x)) + self.enc(x).sum()


@zoo(vectors(4))
class ParameterSums(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))

    def forward(self, x):
        l2 = sum(p.pow(2).sum() for n, p in self.named_parameters() if "bias" not in n)
        l1 = torch.stack([p.abs().sum() for p in self.net.parameters()]).sum()
        count = sum(p.numel() for p in self.parameters() if p.requires_grad)
        return self.net(x), l2 + l1 / count


@zoo(vectors(4))
class CountsCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.history = nn.Linear(4, 4), []
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.steps += 1
        self.last_shape = tuple(x.shape)
        y = self.lin(x)
        self.cached = y.detach()
        return y * self.steps


@zoo(images(4, 6), breaks=1)
class NormZoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(4, momentum=None), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, track_running_stats=True),
                                    nn.LocalResponseNorm(2), nn.SyncBatchNorm(4) if False else nn.BatchNorm2d(4, track_running_stats=False)])  # fmt: skip

    def forward(self, x):
        return [n(x) for n in self.norms]


@zoo(vectors(6))
class ActivationZoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.acts = nn.ModuleList([nn.ReLU6(), nn.ELU(), nn.SELU(), nn.CELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Softplus(),
                                   nn.Softshrink(), nn.Hardtanh(), nn.LogSigmoid(), nn.PReLU(), nn.RReLU(), nn.Threshold(0.1, 20),
                                   nn.Tanhshrink(), nn.GLU(), nn.Softsign(), nn.LeakyReLU(), nn.Hardswish()])  # fmt: skip

    def forward(self, x):
        return [a(x) for a in self.acts]


@zoo(images(4, 8))
class PoolZoo(nn.Module):
    def forward(self, x):
        y, idx = F.max_pool2d(x, 2, return_indices=True)
        return (F.max_unpool2d(y, idx, 2), F.lp_pool2d(x, 2, 2), F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_max_pool2d(x, 3),
                F.avg_pool2d(x, 3, 2, 1, True, False), F.unfold(x, 3, stride=2), F.fold(F.unfold(x, 2, stride=2), 8, 2, stride=2))  # fmt: skip


@zoo(lambda: (torch.randn(4, 3), torch.tensor([0, 2, 1, 0])))
class LossZoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.ce = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1, ignore_index=2)

    def forward(self, x, y):
        hot = F.one_hot(y, 3).float()
        return (self.ce(x, y), F.nll_loss(x.log_softmax(1), y), F.kl_div(x.log_softmax(1), hot.softmax(1), reduction="batchmean"),
                F.smooth_l1_loss(x, hot), F.huber_loss(x, hot), F.multi_margin_loss(x, y), F.soft_margin_loss(x, hot * 2 - 1),
                F.triplet_margin_loss(x, x.roll(1, 0), x.roll(2, 0)), F.cosine_embedding_loss(x, hot, y.float().sign()),
                F.poisson_nll_loss(x, hot), F.gaussian_nll_loss(x, hot, torch.ones_like(x)), F.l1_loss(x, hot, reduction="sum"))  # fmt: skip


@zoo(vectors(4))
class AutocastInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(x)
            with torch.autocast("cpu", enabled=False):
                z = self.b(y.float())
        return y, z, y.dtype == torch.bfloat16


@zoo(vectors(4))
class ComplexLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4, dtype=torch.cfloat))

    def forward(self, x):
        z = torch.complex(x, x.flip(-1)) @ self.weight.t()
        return z.abs(), z.angle(), torch.view_as_real(z.conj().resolve_conj()), z.real + z.imag


@zoo(lambda: (torch.randn(3, 0, 4), torch.tensor(2.5), torch.randn(1).half()))
class OddShapes(nn.Module):
    def forward(self, empty, scalar, half):
        return (
            empty.sum(1),
            torch.cat([empty, empty], 1),
            scalar.expand(3).clone(),
            (half * scalar).dtype == half.dtype,
            half.double() + 1,
        )


@zoo(vectors(4))
class OutArguments(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        torch.mul(x, 2, out=out)
        torch.add(out, 1, out=out)
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.long)
        torch.max(x, dim=1, out=(values, indices))
        return out, values, indices


@zoo(vectors(4))
class DtypeJuggler(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 2).double()

    def forward(self, x):
        y = self.lin(x.to(torch.float64)).to(x)
        return (
            y.type(torch.HalfTensor).float(),
            (x > 0) + 1,
            x.long() // 2,
            torch.result_type(x, 1) == x.dtype,
            x.new_ones(2, dtype=torch.int8),
        )


@zoo(vectors(4))
class GradModes(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    @torch.no_grad()
    def teacher(self, x):
        return self.a(x)

    def forward(self, x):
        t = self.teacher(x)
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            s = self.b(x)
        return F.mse_loss(s, t), t.requires_grad, torch.is_grad_enabled()


@zoo(vectors(4))
class ManualSeedInside(nn.Module):
    def forward(self, x):
        torch.manual_seed(7)
        return x + torch.rand_like(x), torch.randperm(5), F.dropout(x, 0.5)


@zoo(vectors(4))
class GeneratorArgument(nn.Module):
    def forward(self, x):
        g = torch.Generator()
        g.manual_seed(3)
        return x + torch.randn(x.shape, generator=g)


@zoo(vectors(4))
class DeviceContext(nn.Module):
    def forward(self, x):
        with torch.device("cpu"):
            y = torch.ones(4)
        return x + y.to(x.device)


@zoo(lambda: (torch.randn(2, 3), [torch.randn(2), {"k": (torch.ones(2), None)}], "mean"))
class NestedArguments(nn.Module):
    def forward(self, x, extras, mode, *rest, scale=2.0, **options):
        first, table = extras
        y = x * scale + (table["k"][0].sum() if table["k"][1] is None else 0)
        match mode:
            case "mean":
                y = y.mean()
            case _:
                y = y.sum()
        return {"y": y, "first": first.clone(), **options}


@zoo(vectors(4))
class CustomContainer(nn.Module):
    class Stack(nn.ModuleList):
        def forward(self, x):
            for m in self:
                x = m(x)
            return x

    def __init__(self):
        super().__init__()
        self.stack = self.Stack([nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)])
        self.stack.append(nn.Sigmoid())

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)

    def forward(self, x):
        return self.stack(x) + self.stack[0](x)[..., :1] + len(self.stack) + self.stack[1:3](x).sum()


@zoo(vectors(4))
class DynamicAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(3):
            setattr(self, f"fc{i}", nn.Linear(4, 4))
            self.register_buffer(f"scale{i}", torch.tensor(float(i + 1)))

    def __getattr__(self, name):
        if name.startswith("layer_"):
            return getattr(self, "fc" + name[6:])
        return super().__getattr__(name)

    def forward(self, x):
        for i in range(3):
            x = getattr(self, f"layer_{i}")(x) * getattr(self, f"scale{i}")
        return x if not hasattr(self, "extra") else self.extra(x)


@zoo(vectors(4))
class DataClassConfig(nn.Module):
    class Config(dict):
        __getattr__ = dict.get

    def __init__(self):
        super().__init__()
        self.cfg = self.Config(width=4, act="relu", residual=True)
        self.lin = nn.Linear(self.cfg.width, self.cfg.width)

    def forward(self, x):
        y = getattr(F, self.cfg.act)(self.lin(x))
        return x + y if self.cfg.residual and not self.cfg.missing else y


@zoo(vectors(4))
class PrintsShape(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.verbose = nn.Linear(4, 2), False

    def forward(self, x):
        if self.verbose:
            print(x.shape)
        assert x.dim() == 2, f"wrong shape {x.shape}"
        return self.lin(x)


@zoo(vectors(4))
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return (
            torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
            if self.training and x.requires_grad
            else self.block(x)
        )


@zoo(lambda: (torch.randn(4, 3), torch.randn(4, 3)))
class PowerIteration(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("u", F.normalize(torch.randn(3), dim=0))

    def forward(self, a, b):
        w = a.t() @ b
        for _ in range(2):
            v = F.normalize(w.t() @ self.u, dim=0)
            self.u = F.normalize(w @ v, dim=0)
        return torch.dot(self.u, w @ v)


@zoo(vectors(5))
class Quantiles(nn.Module):
    def forward(self, x):
        q = torch.tensor([0.1, 0.5, 0.9])
        return torch.quantile(x, q, dim=1), x.median(1).values, x.kthvalue(2, 1).values, torch.histc(x, 4, -2, 2)
