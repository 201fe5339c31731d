"""GANs, autoencoders, flows, diffusion, energy models."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .registry import images, vectors, zoo


@zoo(vectors(6))
class DCGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
            nn.ConvTranspose2d(8, 4, 4, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(True),
            nn.ConvTranspose2d(4, 3, 4, 2, 1, bias=False), nn.Tanh())  # fmt: skip
        self.main.apply(self.weights_init)

    @staticmethod
    def weights_init(m):
        classname = m.__class__.__name__
        if classname.find("Conv") != -1:
            nn.init.normal_(m.weight.data, 0.0, 0.02)

    def forward(self, z):
        return self.main(z.view(z.size(0), -1, 1, 1))


@zoo(images(3, 16))
class DCDiscriminator(nn.Module):
    def __init__(self, ndf=4):
        super().__init__()
        layers, width = [], 3
        for i in range(3):
            layers += [nn.Conv2d(width, ndf * 2**i, 4, 2, 1, bias=False)]
            if i:
                layers.append(nn.BatchNorm2d(ndf * 2**i))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            width = ndf * 2**i
        self.main = nn.Sequential(*layers, nn.Conv2d(width, 1, 2, 1, 0), nn.Sigmoid())

    def forward(self, x):
        return self.main(x).view(-1, 1).squeeze(1)


@zoo(images(3, 8))
class SpectralDiscriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.utils.spectral_norm(nn.Conv2d(3, 4, 3, padding=1))
        self.b = nn.utils.parametrizations.spectral_norm(nn.Linear(4 * 64, 1))

    def forward(self, x):
        return self.b(F.leaky_relu(self.a(x), 0.1).flatten(1))


@zoo(lambda: (torch.randn(3, 5), torch.tensor([0, 2, 1])))
class ConditionalGenerator(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.label_emb = nn.Embedding(classes, 4)

        def block(i, o, normalize=True):
            layers = [nn.Linear(i, o)]
            if normalize:
                layers.append(nn.BatchNorm1d(o, 0.8))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(*block(9, 8, False), *block(8, 16), nn.Linear(16, 12), nn.Tanh())

    def forward(self, noise, labels):
        img = self.model(torch.cat((self.label_emb(labels), noise), -1))
        return img.view(img.shape[0], *(3, 2, 2))


@zoo(vectors(12))
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(12, 8), nn.Linear(8, 2), nn.Linear(8, 2)
        self.fc3, self.fc4 = nn.Linear(2, 8), nn.Linear(8, 12)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 12))
        z = self.reparameterize(mu, logvar)
        recon = torch.sigmoid(self.fc4(F.relu(self.fc3(z))))
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return {"recon": recon, "mu": mu, "logvar": logvar, "kld": kld}


@zoo(images(4, 4))
class VectorQuantizer(nn.Module):
    def __init__(self, n=7, d=4, beta=0.25):
        super().__init__()
        self.n, self.beta = n, beta
        self.embedding = nn.Embedding(n, d)

    def forward(self, z):
        z = z.permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, z.shape[-1])
        d = (flat**2).sum(1, keepdim=True) + (self.embedding.weight**2).sum(1) - 2 * flat @ self.embedding.weight.t()
        index = d.argmin(1).unsqueeze(1)
        onehot = torch.zeros(index.shape[0], self.n).to(z)
        onehot.scatter_(1, index, 1)
        q = torch.matmul(onehot, self.embedding.weight).view(z.shape)
        loss = ((q.detach() - z) ** 2).mean() + self.beta * ((q - z.detach()) ** 2).mean()
        q = z + (q - z).detach()
        e_mean = onehot.mean(0)
        perplexity = torch.exp(-torch.sum(e_mean * torch.log(e_mean + 1e-10)))
        return loss, q.permute(0, 3, 1, 2), perplexity, index


@zoo(vectors(4))
class EmaCodebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(5, 4))
        self.register_buffer("size", torch.zeros(5))

    def forward(self, x):
        index = torch.cdist(x, self.codes).argmin(-1)
        if self.training:
            hot = F.one_hot(index, 5).type_as(x)
            self.size.mul_(0.9).add_(hot.sum(0), alpha=0.1)
            self.codes.data.lerp_(hot.t() @ x / (hot.sum(0).unsqueeze(1) + 1e-5), 0.1)
        return F.embedding(index, self.codes)


@zoo(vectors(6))
class AffineCoupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3), nn.Tanh())
        self.t = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x, reverse=False):
        a, b = x.chunk(2, dim=1)
        s, t = self.s(a), self.t(a)
        b = (b - t) * torch.exp(-s) if reverse else b * torch.exp(s) + t
        return torch.cat([a, b], 1), (s.sum(-1) if not reverse else -s.sum(-1))


@zoo(vectors(6))
class RealNVP(nn.Module):
    def __init__(self):
        super().__init__()
        masks = torch.tensor([[0.0, 1.0] * 3, [1.0, 0.0] * 3] * 2)
        self.mask = nn.Parameter(masks, requires_grad=False)
        self.t = nn.ModuleList([nn.Linear(6, 6) for _ in range(len(masks))])
        self.s = nn.ModuleList([nn.Linear(6, 6) for _ in range(len(masks))])

    def forward(self, x):
        log_det, z = x.new_zeros(x.shape[0]), x
        for i in reversed(range(len(self.t))):
            z_ = self.mask[i] * z
            s = torch.tanh(self.s[i](z_)) * (1 - self.mask[i])
            t = self.t[i](z_) * (1 - self.mask[i])
            z = (1 - self.mask[i]) * (z - t) * torch.exp(-s) + z_
            log_det -= s.sum(dim=1)
        prior = torch.distributions.Normal(torch.zeros(6), torch.ones(6), validate_args=False)
        return z, prior.log_prob(z).sum(-1) + log_det


@zoo(images(4, 4))
class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(1, 4, 1, 1))
        self.scale = nn.Parameter(torch.ones(1, 4, 1, 1))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))
        self.ready = True

    def forward(self, x):
        if not self.ready:
            flat = x.transpose(0, 1).reshape(4, -1)
            self.loc.data.copy_(-flat.mean(1).view(1, 4, 1, 1))
        h, w = x.shape[2:]
        return self.scale * (x + self.loc), h * w * torch.log(self.scale.abs()).sum()


@zoo(images(4, 4))
class InvertibleConv(nn.Module):
    def __init__(self):
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(4, 4))
        self.weight = nn.Parameter(q)

    def forward(self, x):
        _, logdet = torch.slogdet(self.weight)
        return F.conv2d(x, self.weight.view(4, 4, 1, 1)), logdet * x.shape[2] * x.shape[3]


@zoo(vectors(5))
class MaskedAutoregressive(nn.Module):
    class MaskedLinear(nn.Linear):
        def __init__(self, i, o, mask):
            super().__init__(i, o)
            self.register_buffer("mask", mask)

        def forward(self, x):
            return F.linear(x, self.weight * self.mask, self.bias)

    def __init__(self):
        super().__init__()
        order, hidden = torch.arange(5), torch.arange(8) % 4
        self.net = nn.Sequential(self.MaskedLinear(5, 8, (hidden[:, None] >= order[None]).float()), nn.ReLU(),
                                 self.MaskedLinear(8, 10, (order.repeat(2)[:, None] > hidden[None]).float()))  # fmt: skip

    def forward(self, x):
        m, loga = self.net(x).chunk(2, 1)
        return (x - m) * torch.exp(-loga), -loga.sum(1, keepdim=True)


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        half = self.dim // 2
        freqs = torch.exp(torch.arange(half, device=t.device) * -(math.log(10000) / (half - 1)))
        args = t[:, None].float() * freqs[None, :]
        return torch.cat((args.sin(), args.cos()), dim=-1)


class ResBlock(nn.Module):
    def __init__(self, i, o, t, up=False):
        super().__init__()
        self.time_mlp = nn.Linear(t, o)
        self.conv1 = nn.Conv2d(2 * i if up else i, o, 3, padding=1)
        self.transform = nn.ConvTranspose2d(o, o, 4, 2, 1) if up else nn.Conv2d(o, o, 4, 2, 1)
        self.bnorm1, self.bnorm2 = nn.BatchNorm2d(o), nn.GroupNorm(2, o)

    def forward(self, x, t):
        h = self.bnorm1(F.relu(self.conv1(x)))
        h = h + F.silu(self.time_mlp(t))[(...,) + (None,) * 2]
        return self.transform(self.bnorm2(h))


@zoo(lambda: (torch.randn(2, 3, 8, 8), torch.tensor([3, 17])))
class DiffusionUNet(nn.Module):
    def __init__(self):
        super().__init__()
        down, up = (4, 8, 16), (16, 8, 4)
        self.time_mlp = nn.Sequential(TimeEmbedding(8), nn.Linear(8, 8), nn.ReLU())
        self.conv0 = nn.Conv2d(3, down[0], 3, padding=1)
        self.downs = nn.ModuleList([ResBlock(down[i], down[i + 1], 8) for i in range(len(down) - 1)])
        self.ups = nn.ModuleList([ResBlock(up[i], up[i + 1], 8, up=True) for i in range(len(up) - 1)])
        self.output = nn.Conv2d(up[-1], 3, 1)

    def forward(self, x, timestep):
        t = self.time_mlp(timestep)
        x, residuals = self.conv0(x), []
        for down in self.downs:
            x = down(x, t)
            residuals.append(x)
        for up in self.ups:
            x = up(torch.cat((x, residuals.pop()), dim=1), t)
        return self.output(x)


@zoo(images(3, 4))
class DDPMLoss(nn.Module):
    def __init__(self, steps=10):
        super().__init__()
        self.steps, self.eps = steps, nn.Conv2d(3, 3, 3, padding=1)
        betas = torch.linspace(1e-4, 0.02, steps)
        self.register_buffer("alphas_bar", torch.cumprod(1 - betas, 0))

    def forward(self, x):
        t = torch.randint(0, self.steps, (x.shape[0],), device=x.device)
        noise = torch.randn_like(x)
        ab = self.alphas_bar.gather(0, t).reshape(-1, *((1,) * (x.dim() - 1)))
        return F.mse_loss(self.eps(ab.sqrt() * x + (1 - ab).sqrt() * noise), noise)


@zoo(images(3, 4))
class DDIMSampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Conv2d(3, 3, 3, padding=1)
        self.register_buffer("ab", torch.linspace(0.99, 0.1, 5))

    @torch.no_grad()
    def forward(self, x):
        for i in range(4, 0, -1):
            a, prev = self.ab[i], self.ab[i - 1]
            eps = self.net(x)
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
            x = prev.sqrt() * x0 + (1 - prev).sqrt() * eps
        return x


@zoo(images(1, 8))
class PixelCNN(nn.Module):
    class Masked(nn.Conv2d):
        def __init__(self, kind, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.register_buffer("mask", self.weight.data.clone())
            _, _, kh, kw = self.weight.size()
            self.mask.fill_(1)
            self.mask[:, :, kh // 2, kw // 2 + (kind == "B") :] = 0
            self.mask[:, :, kh // 2 + 1 :] = 0

        def forward(self, x):
            self.weight.data *= self.mask
            return super().forward(x)

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([self.Masked("A", 1, 4, 5, 1, 2), self.Masked("B", 4, 4, 3, 1, 1)])
        self.out = nn.Conv2d(4, 8, 1)

    def forward(self, x):
        for layer in self.layers:
            x = F.elu(layer(x))
        return self.out(x)


@zoo(images(3, 8))
class StyleBlock(nn.Module):
    """Modulated convolution of StyleGAN2, with noise."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 4, 3, 3, 3))
        self.style, self.noise_weight = nn.Linear(6, 3), nn.Parameter(torch.zeros(1))
        self.register_buffer("w", torch.randn(2, 6))

    def forward(self, x):
        b, c, h, w = x.shape
        weight = self.weight * (self.style(self.w).view(b, 1, c, 1, 1) + 1)
        demod = torch.rsqrt(weight.pow(2).sum([2, 3, 4], keepdim=True) + 1e-8)
        weight = (weight * demod).view(b * 4, c, 3, 3)
        out = F.conv2d(x.reshape(1, b * c, h, w), weight, padding=1, groups=b).view(b, 4, h, w)
        return F.leaky_relu(out + self.noise_weight * torch.randn(b, 1, h, w), 0.2) * math.sqrt(2)


@zoo(images(3, 8))
class CycleGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.ReflectionPad2d(3), nn.Conv2d(3, 4, 7), nn.InstanceNorm2d(4), nn.ReLU(inplace=True)
        )
        self.res = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(4, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Dropout(0.5)
        )
        self.tail = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        h = self.model(x)
        for _ in range(2):
            h = h + self.res(h)
        return torch.tanh(self.tail(h))


@zoo(images(3, 8))
class MinibatchStd(nn.Module):
    def forward(self, x):
        std = x.std(0, unbiased=False).mean()
        return torch.cat([x, std.expand(x.size(0), 1, *x.shape[2:])], 1)


@zoo(lambda: (torch.randn(3, 4), torch.randn(3, 4)))
class GradientPenalty(nn.Module):
    """WGAN-GP: the gradient is taken inside."""

    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, real, fake):
        with torch.enable_grad():
            alpha = torch.rand(real.size(0), 1)
            mix = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
            out = self.critic(mix)
            grad = torch.autograd.grad(out, mix, torch.ones_like(out), create_graph=True)[0]
        return ((grad.norm(2, dim=1) - 1) ** 2).mean()


@zoo(vectors(3))
class LangevinEnergy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, x):
        for _ in range(2):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (g,) = torch.autograd.grad(self.net(x).sum(), [x])
            x = x - 0.1 * g + 0.01 * torch.randn_like(x)
        return x.detach()


@zoo(vectors(4))
class RBM(nn.Module):
    def __init__(self):
        super().__init__()
        self.W, self.bv, self.bh = (
            nn.Parameter(torch.randn(3, 4) * 0.1),
            nn.Parameter(torch.zeros(4)),
            nn.Parameter(torch.zeros(3)),
        )

    def forward(self, v):
        for _ in range(2):
            p = torch.sigmoid(F.linear(v, self.W, self.bh))
            h = torch.bernoulli(p)
            v = F.relu(torch.sign(torch.sigmoid(F.linear(h, self.W.t(), self.bv)) - torch.rand(v.size())))
        return v, p
