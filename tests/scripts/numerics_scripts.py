"""Numerical programs: complex weights and Fourier transforms, sparse graphs, filters, processes, solvers."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from scripts import Compiled, Scripts
from torch import Tensor, nn

scripts = Scripts()


class SpectralConvolution(nn.Module):
    """Complex weights multiply the lowest frequencies, as in Fourier neural operators."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weights = nn.Parameter(torch.randn(channels, channels, modes, dtype=torch.cfloat) / channels)
        self.skip = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        kept = torch.zeros_like(spectrum)
        kept[:, :, : self.modes] = torch.einsum("bix,iox->box", spectrum[:, :, : self.modes], self.weights)
        return F.gelu(torch.fft.irfft(kept, n=x.size(-1)) + self.skip(x))


@scripts
def fourier_operator(compiled: Compiled) -> Any:
    """Complex parameters are trained, and the operator is used on a finer grid."""
    model = nn.Sequential(SpectralConvolution(3, 4), SpectralConvolution(3, 4))
    forward = compiled(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(2, 3, 16)
    losses = []
    for _ in range(3):
        loss = (forward(x) - x.cumsum(-1) / 8).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, model[0].weights.detach(), forward(torch.randn(1, 3, 32))


@scripts
def phase_retrieval(compiled: Compiled) -> Any:
    """Gerchberg and Saxton's iterations between an image and the magnitudes of its transform."""
    image = torch.zeros(8, 8)
    image[2:5, 3:7] = torch.rand(3, 4)
    magnitude = torch.fft.fft2(image).abs()

    def retrieve(magnitude: Tensor, support: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        spectrum = magnitude * torch.exp(2j * math.pi * torch.rand(magnitude.shape))
        error = torch.tensor(0.0)
        for _ in range(iterations):
            guess = torch.fft.ifft2(spectrum).real
            guess = torch.where(support & (guess > 0), guess, 0.0)
            spectrum = torch.fft.fft2(guess)
            error = (spectrum.abs() - magnitude).norm() / magnitude.norm()
            spectrum = torch.polar(magnitude, spectrum.angle())
        return guess, error

    return compiled(retrieve)(magnitude, image > 0, 5)


@scripts
def label_propagation(compiled: Compiled) -> Any:
    """A sparse adjacency is made, normalized and multiplied until labels have spread."""
    edges = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 5, 2, 3], [1, 0, 2, 1, 4, 3, 5, 4, 3, 2]])

    def propagate(edges: Tensor, labels: Tensor, known: Tensor, rounds: int) -> Tensor:
        count = labels.size(0)
        adjacency = torch.sparse_coo_tensor(edges, torch.ones(edges.size(1)), (count, count)).coalesce()
        degree = torch.sparse.sum(adjacency, dim=1).to_dense().clamp(min=1)
        values = adjacency.values() / degree[adjacency.indices()[0]]
        transition = torch.sparse_coo_tensor(adjacency.indices(), values, adjacency.shape)
        state = labels.clone()
        for _ in range(rounds):
            state = torch.sparse.mm(transition, state)
            state[known] = labels[known]
        return state.argmax(1), state

    known = torch.tensor([True, False, False, False, False, True])
    labels = F.one_hot(torch.tensor([0, 0, 0, 1, 1, 1]), 2).float() * known[:, None]
    return compiled(propagate)(edges, labels, known, 6)


@scripts
def sparse_layer_in_training(compiled: Compiled) -> Any:
    """A constant adjacency in rows, outside the function, multiplies trained features."""
    adjacency = torch.eye(5).roll(1, 0).add(torch.eye(5)).to_sparse_csr()
    weight = nn.Parameter(torch.randn(3, 2))

    def loss_of(x: Tensor) -> Tensor:
        return torch.sigmoid(adjacency @ (x @ weight)).square().sum()

    loss_of = compiled(loss_of)
    results = []
    for _ in range(2):
        loss = loss_of(torch.randn(5, 3))
        loss.backward()
        results.append(loss.item())
    return results, weight.grad


@scripts
def kalman_filter(compiled: Compiled) -> Any:
    """Prediction and update over a series in which observations are missing, and the likelihood's gradient."""
    log_noise = torch.zeros(2, requires_grad=True)

    def log_likelihood(observations: Tensor, seen: list[bool]) -> tuple[Tensor, Tensor]:
        move = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        observe = torch.tensor([[1.0, 0.0]])
        process, measured = log_noise.exp()
        mean, covariance = torch.zeros(2), torch.eye(2)
        total = observations.new_zeros(())
        for value, present in zip(observations, seen):
            mean = move @ mean
            covariance = move @ covariance @ move.mT + process * torch.eye(2)
            if not present:
                continue
            spread = observe @ covariance @ observe.mT + measured
            gain = torch.linalg.solve(spread, observe @ covariance).mT
            residual = value - observe @ mean
            mean = mean + gain @ residual
            covariance = (torch.eye(2) - gain @ observe) @ covariance
            total = total - 0.5 * (residual @ torch.linalg.inv(spread) @ residual + torch.logdet(spread))
        return total, mean

    log_likelihood = compiled(log_likelihood)
    total, mean = log_likelihood(torch.randn(6, 1).cumsum(0), [True, True, False, True, False, True])
    total.backward()
    return total.detach(), mean.detach(), log_noise.grad


@scripts
def gaussian_process(compiled: Compiled) -> Any:
    """Hyperparameters by the marginal likelihood, then mean and variance at new points."""
    x = torch.linspace(0, 3, 8)[:, None]
    y = torch.sin(2 * x[:, 0])
    raw = nn.ParameterDict({"scale": torch.tensor(0.0), "length": torch.tensor(0.0), "noise": torch.tensor(-2.0)})
    optimizer = torch.optim.Adam(raw.parameters(), lr=0.1)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return raw["scale"].exp() * torch.exp(-0.5 * torch.cdist(a, b).square() / raw["length"].exp() ** 2)

    @compiled
    def negative_likelihood() -> Tensor:
        lower = torch.linalg.cholesky(kernel(x, x) + raw["noise"].exp() * torch.eye(len(x)))
        weights = torch.cholesky_solve(y[:, None], lower)
        return 0.5 * (y @ weights).squeeze() + lower.diagonal().log().sum() + 0.5 * len(x) * math.log(2 * math.pi)

    @compiled
    @torch.no_grad()
    def predict(new: Tensor) -> tuple[Tensor, Tensor]:
        lower = torch.linalg.cholesky(kernel(x, x) + raw["noise"].exp() * torch.eye(len(x)))
        between = kernel(x, new)
        half = torch.linalg.solve_triangular(lower, between, upper=False)
        mean = between.mT @ torch.cholesky_solve(y[:, None], lower)
        return mean.squeeze(-1), kernel(new, new).diagonal() - half.square().sum(0)

    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = negative_likelihood()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, predict(torch.tensor([[0.5], [4.0]]))


@scripts
def conjugate_gradients(compiled: Compiled) -> Any:
    """A linear system by products only; the loop ends when the residual is small."""

    def solve(matrix: Tensor, b: Tensor, tolerance: float = 1e-4) -> tuple[Tensor, int]:
        x = torch.zeros_like(b)
        residual = b - matrix @ x
        direction = residual.clone()
        squared = residual.dot(residual)
        for iteration in range(2 * len(b)):
            product = matrix @ direction
            step = squared / direction.dot(product)
            x += step * direction
            residual -= step * product
            new = residual.dot(residual)
            if new.sqrt() < tolerance:
                break
            direction = residual + new / squared * direction
            squared = new
        return x, iteration

    solve = compiled(solve)
    results = []
    for size in (4, 6):
        root = torch.randn(size, size)
        results.append(solve(root @ root.T / size + 2 * torch.eye(size), torch.ones(size)))
    return results


@scripts
def heat_equation_with_a_learned_source(compiled: Compiled) -> Any:
    """A physics-informed loss: derivatives of the network with respect to its inputs, twice."""
    network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)

    def derivative(y: Tensor, x: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

    def step(points: Tensor) -> tuple[Tensor, Tensor]:
        t = points[:, :1].clone().requires_grad_()
        x = points[:, 1:].clone().requires_grad_()
        u = network(torch.cat([t, x], 1))
        residual = derivative(u, t) - 0.1 * derivative(derivative(u, x), x)
        start = network(torch.cat([torch.zeros_like(x), x], 1)) - torch.sin(math.pi * x)
        loss = residual.square().mean() + start.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), residual.detach()

    step = compiled(step)
    return [step(torch.rand(5, 2)) for _ in range(3)]


@scripts
def markov_chain(compiled: Compiled) -> Any:
    """Hamiltonian Monte Carlo: leapfrog steps with gradients, proposals accepted by chance."""

    def log_density(q: Tensor) -> Tensor:
        return -0.5 * (q[0] ** 2 + 4 * (q[1] - q[0] ** 2) ** 2)

    def slope(q: Tensor) -> Tensor:
        q = q.detach().requires_grad_(True)
        return torch.autograd.grad(log_density(q), q)[0]

    def sample(q: Tensor, count: int, step: float = 0.1, leaps: int = 4) -> tuple[Tensor, float]:
        chain, accepted = [], 0
        for _ in range(count):
            p = torch.randn_like(q)
            new_q, new_p = q.clone(), p + 0.5 * step * slope(q)
            for leap in range(leaps):
                new_q = new_q + step * new_p
                new_p = new_p + (step if leap < leaps - 1 else 0.5 * step) * slope(new_q)
            change = log_density(new_q) - 0.5 * new_p.dot(new_p) - log_density(q) + 0.5 * p.dot(p)
            if torch.rand(()).log() < change:
                q = new_q
                accepted += 1
            chain.append(q)
        return torch.stack(chain), accepted / count

    return compiled(sample)(torch.zeros(2), 5)


@scripts
def histogram_matching(compiled: Compiled) -> Any:
    """Sorted values, quantiles, search and counts: an image gets another one's distribution."""

    def match(source: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, inverse, counts = torch.unique(source, return_inverse=True, return_counts=True)
        quantiles = counts.cumsum(0) / source.numel()
        wanted = torch.quantile(reference.flatten(), quantiles)
        matched = wanted[inverse].view_as(source)
        edges = torch.linspace(0, 1, 5)
        bins = torch.bucketize(matched, edges)
        return matched, torch.bincount(bins.flatten(), minlength=6), torch.histc(matched, 4, 0, 1)

    match = compiled(match)
    return [match((torch.rand(size, 6) * 5).round() / 5, torch.rand(7, 7)) for size in (4, 6)]
