"""Policies and value functions of reinforcement learning; probabilistic heads."""

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Beta, Categorical, Independent, MultivariateNormal, Normal

from .registry import vectors, zoo


def mlp(sizes, activation=nn.Tanh, output_activation=nn.Identity):
    layers = []
    for j in range(len(sizes) - 1):
        act = activation if j < len(sizes) - 2 else output_activation
        layers += [nn.Linear(sizes[j], sizes[j + 1]), act()]
    return nn.Sequential(*layers)


@zoo(vectors(4))
class Reinforce(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.affine2, self.dropout = nn.Linear(4, 8), nn.Linear(8, 2), nn.Dropout(p=0.6)

    def forward(self, x):
        x = F.relu(self.dropout(self.affine1(x)))
        return F.softmax(self.affine2(x), dim=1)


@zoo(vectors(4))
class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi, self.v = mlp([4, 8, 3]), mlp([4, 8, 1])

    def forward(self, obs):
        dist = Categorical(logits=self.pi(obs), validate_args=False)
        a = dist.sample()
        return a, torch.squeeze(self.v(obs), -1), dist.log_prob(a), dist.entropy()


@zoo(vectors(4))
class SquashedGaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.mu, self.log_std = mlp([4, 8, 8], nn.ReLU, nn.ReLU), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, obs, deterministic=False):
        h = self.net(obs)
        mu, std = self.mu(h), torch.exp(torch.clamp(self.log_std(h), -20, 2))
        pi = Normal(mu, std, validate_args=False)
        a = mu if deterministic else pi.rsample()
        logp = pi.log_prob(a).sum(axis=-1) - (2 * (0.693 - a - F.softplus(-2 * a))).sum(axis=1)
        return 1.5 * torch.tanh(a), logp


@zoo(vectors(4))
class DuelingDQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature, self.adv, self.val = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        x = F.relu(self.feature(x))
        a, v = self.adv(x), self.val(x)
        return v + a - a.mean(dim=1, keepdim=True)


@zoo(vectors(4))
class NoisyNet(nn.Module):
    class NoisyLinear(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.i, self.o = i, o
            self.mu, self.sigma = nn.Parameter(torch.randn(o, i)), nn.Parameter(torch.full((o, i), 0.1))
            self.register_buffer("eps", torch.zeros(o, i))

        def reset_noise(self):
            f = lambda n: (lambda x: x.sign().mul_(x.abs().sqrt_()))(torch.randn(n))  # noqa: E731
            self.eps.copy_(f(self.o).ger(f(self.i)))

        def forward(self, x):
            return F.linear(x, self.mu + self.sigma * self.eps if self.training else self.mu)

    def __init__(self):
        super().__init__()
        self.a, self.b = self.NoisyLinear(4, 6), self.NoisyLinear(6, 2)

    def forward(self, x):
        self.a.reset_noise()
        self.b.reset_noise()
        return self.b(F.relu(self.a(x)))


@zoo(vectors(4))
class C51(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2 * 5)
        self.register_buffer("support", torch.linspace(-1.0, 1.0, 5))

    def forward(self, x):
        dist = F.softmax(self.net(x).view(-1, 2, 5), dim=-1).clamp(min=1e-3)
        q = (dist * self.support).sum(2)
        action = q.max(1)[1]
        best = dist[range(x.size(0)), action]
        tz = (0.5 + 0.9 * self.support.unsqueeze(0)).clamp(-1, 1).expand_as(best)
        b = (tz + 1) / 0.5
        lower, upper = b.floor().long(), b.ceil().long()
        offset = torch.linspace(0, (x.size(0) - 1) * 5, x.size(0)).long().unsqueeze(1).expand(x.size(0), 5)
        proj = torch.zeros(best.size())
        proj.view(-1).index_add_(0, (lower + offset).view(-1), (best * (upper.float() - b)).view(-1))
        proj.view(-1).index_add_(0, (upper + offset).view(-1), (best * (b - lower.float())).view(-1))
        return q, proj


@zoo(vectors(4))
class TwinCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp([6, 8, 1], nn.ReLU), mlp([6, 8, 1], nn.ReLU)
        self.target = mlp([6, 8, 1], nn.ReLU)

    def forward(self, s):
        a = s[:, :2] + (torch.randn_like(s[:, :2]) * 0.2).clamp(-0.5, 0.5)
        x = torch.cat([s, a.clamp(-1, 1)], 1)
        with torch.no_grad():
            for p, t in zip(self.q1.parameters(), self.target.parameters()):
                t.data.mul_(0.995)
                t.data.add_(0.005 * p.data)
        return torch.min(self.q1(x), self.q2(x)), self.target(x)


@dataclass
class Rollout:
    values: torch.Tensor
    advantages: torch.Tensor


@zoo(lambda: (torch.randn(5), torch.randn(6), torch.tensor([0.0, 0, 1, 0, 0])))
class GAE(nn.Module):
    def forward(self, rewards, values, dones, gamma=0.99, lam=0.95):
        advantages, last = torch.zeros_like(rewards), 0
        for t in reversed(range(len(rewards))):
            delta = rewards[t] + gamma * values[t + 1] * (1 - dones[t]) - values[t]
            advantages[t] = last = delta + gamma * lam * (1 - dones[t]) * last
        return Rollout(values=values[:-1], advantages=advantages)


@zoo(lambda: (torch.randn(4, 3), torch.randint(0, 3, (4,)), torch.randn(4), torch.randn(4)))
class PPOLoss(nn.Module):
    def forward(self, logits, actions, old, adv):
        logp = F.log_softmax(logits, -1).gather(1, actions[:, None]).squeeze(1)
        ratio = (logp - old).exp()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
        info = dict(kl=(old - logp).mean(), clipped=(ratio.gt(1.2) | ratio.lt(0.8)).float().mean())
        return loss, info


@zoo(vectors(4))
class EpsilonGreedy(nn.Module):
    """Python's own random numbers decide."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x, eps=0.0):
        if random.random() < eps:
            return torch.randint(0, 3, (x.size(0),))
        return self.net(x).max(1)[1]


@zoo(vectors(4))
class MixtureDensity(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi, self.sigma, self.mu = (
            nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)),
            nn.Linear(4, 3),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        pi, sigma, mu = self.pi(x), torch.exp(self.sigma(x)), self.mu(x)
        prob = torch.exp(-0.5 * ((x[:, :1].expand_as(mu) - mu) / sigma) ** 2) / sigma * 0.3989
        return -torch.log((prob * pi).sum(1)).mean()


@zoo(vectors(2))
class BetaPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 4)

    def forward(self, x):
        alpha, beta = (F.softplus(self.net(x)) + 1).chunk(2, -1)
        d = Independent(Beta(alpha, beta, validate_args=False), 1, validate_args=False)
        return d.mean, d.entropy(), d.log_prob(torch.full_like(alpha, 0.3))


@zoo(vectors(3))
class FullCovariance(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 6)

    def forward(self, x):
        L = torch.zeros(x.size(0), 3, 3)
        i, j = torch.tril_indices(3, 3)
        L[:, i, j] = self.net(x)
        L = torch.tril(L, -1) + torch.diag_embed(F.softplus(L.diagonal(dim1=-2, dim2=-1)))
        return MultivariateNormal(x, scale_tril=L, validate_args=False).log_prob(x * 0)


@zoo(vectors(6))
class ICM(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi, self.inverse, self.forward_model = nn.Linear(3, 4), nn.Linear(8, 2), nn.Linear(6, 4)

    def forward(self, x):
        s, s2 = map(self.phi, x.chunk(2, -1))
        a = F.one_hot(self.inverse(torch.cat((s, s2), -1)).argmax(-1), 2)
        return 0.5 * (self.forward_model(torch.cat((s.detach(), a.float()), -1)) - s2.detach()).norm(2, dim=-1).pow(2)


@zoo(vectors(4))
class GumbelSelector(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(4, 3))

    def forward(self, x):
        return x @ F.gumbel_softmax(self.logits, tau=0.7, hard=True, dim=0)


@zoo(vectors(4))
class RunningNormalizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))
        self.register_buffer("count", torch.tensor(1e-4))

    def forward(self, x):
        if self.training:
            mean, var, n = x.mean(0), x.var(0, unbiased=False), x.shape[0]
            delta, total = mean - self.mean, self.count + n
            m2 = self.var * self.count + var * n + delta**2 * self.count * n / total
            self.mean, self.var, self.count = self.mean + delta * n / total, m2 / total, total
        return ((x - self.mean) / torch.sqrt(self.var + 1e-8)).clamp(-5, 5)
