"""torch.distributions with validation: one graph, eager's values and random state, eager's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D
from compare import assert_same

import magneto

Make = Callable[[torch.Tensor], Any]
EYE = torch.eye(4)

ONE_GRAPH: dict[str, Make] = {
    "Normal": lambda x: D.Normal(x, x + 1),
    "Bernoulli": lambda x: D.Bernoulli(probs=x * 0.5 + 0.1),
    "Bernoulli of logits": lambda x: D.Bernoulli(logits=x),
    "Categorical": lambda x: D.Categorical(probs=x),
    "Categorical of logits": lambda x: D.Categorical(logits=x),
    "Uniform": lambda x: D.Uniform(x, x + 1),
    "Beta": lambda x: D.Beta(x + 1, x + 2),
    "Gamma": lambda x: D.Gamma(x + 1, x + 2),
    "Dirichlet": lambda x: D.Dirichlet(x + 1),
    "Exponential": lambda x: D.Exponential(x + 1),
    "Laplace": lambda x: D.Laplace(x, x + 1),
    "Poisson": lambda x: D.Poisson(x + 1),
    "MultivariateNormal": lambda x: D.MultivariateNormal(x, torch.eye(4)),
    "MultivariateNormal of a root": lambda x: D.MultivariateNormal(x, scale_tril=torch.eye(4)),
    "Independent": lambda x: D.Independent(D.Normal(x, x + 1), 1),
    "StudentT": lambda x: D.StudentT(x + 3),
    "LogNormal": lambda x: D.LogNormal(x, x + 1),
    "Geometric": lambda x: D.Geometric(x * 0.5 + 0.1),
    "Cauchy": lambda x: D.Cauchy(x, x + 1),
    "HalfNormal": lambda x: D.HalfNormal(x + 1),
    "Gumbel": lambda x: D.Gumbel(x, x + 1),
    "Mixture": lambda x: D.MixtureSameFamily(D.Categorical(x), D.Normal(x, x + 1)),
    "Transformed": lambda x: D.TransformedDistribution(D.Normal(x, x + 1), [D.transforms.TanhTransform()]),
    "Weibull": lambda x: D.Weibull(x + 1, x + 1),
    "Chi2": lambda x: D.Chi2(x + 1),
    "Pareto": lambda x: D.Pareto(x + 1, x + 2),
    "Kumaraswamy": lambda x: D.Kumaraswamy(x + 1, x + 2),
    "FisherSnedecor": lambda x: D.FisherSnedecor(x + 1, x + 5),
    "InverseGamma": lambda x: D.InverseGamma(x + 1, x + 1),
    "ContinuousBernoulli": lambda x: D.ContinuousBernoulli(probs=x * 0.5 + 0.1),
    "RelaxedBernoulli": lambda x: D.RelaxedBernoulli(torch.tensor(0.5), probs=x * 0.5 + 0.1),
    "Binomial": lambda x: D.Binomial(5, x * 0.5 + 0.1),
    "NegativeBinomial": lambda x: D.NegativeBinomial(5.0, x * 0.5 + 0.1),
    "Binomial of counts": lambda x: D.Binomial(torch.tensor([1.0, 2.0, 30.0, 400.0]), x),
    "MultivariateNormal of a covariance": lambda x: D.MultivariateNormal(x, EYE * x.sum()),
    "MultivariateNormal of a precision": lambda x: D.MultivariateNormal(x, precision_matrix=EYE + x.sum()),
    "LowRankMultivariateNormal": lambda x: D.LowRankMultivariateNormal(x, EYE[:, :2], x + 1),
}
PAIRS: dict[str, tuple[Make, Make]] = {
    "Normal": (lambda x: D.Normal(x, x + 1), lambda x: D.Normal(x + 1, x + 2)),
    "Bernoulli": (lambda x: D.Bernoulli(x * 0.5), lambda x: D.Bernoulli(x * 0.4 + 0.1)),
    "Categorical": (lambda x: D.Categorical(logits=x), lambda x: D.Categorical(logits=x * 2)),
    "Gamma": (lambda x: D.Gamma(x + 1, x + 1), lambda x: D.Gamma(x + 2, x + 2)),
    "Beta": (lambda x: D.Beta(x + 1, x + 1), lambda x: D.Beta(x + 2, x + 2)),
    "Dirichlet": (lambda x: D.Dirichlet(x + 1), lambda x: D.Dirichlet(x + 2)),
    "MultivariateNormal": (
        lambda x: D.MultivariateNormal(x, torch.eye(4)),
        lambda x: D.MultivariateNormal(x + 1, torch.eye(4) * 2),
    ),
    "Independent": (
        lambda x: D.Independent(D.Normal(x, x + 1), 1),
        lambda x: D.Independent(D.Normal(x, x + 2), 1),
    ),
}


# PyTorch 2.11 and 2.12 keep a weak reference in each transform, which is a side exit.
OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def check(program: Callable[..., Any], backend: str, exact: bool) -> None:
    compiled = magneto.compile(program, backend=backend)
    for seed in range(3):
        x = torch.rand(4, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        want = program(x), torch.rand(2)
        torch.manual_seed(seed)
        got = compiled(x), torch.rand(2)
        assert_same(got, want, exact=exact)
    stats = magneto.stats()
    if OLDER and any("weakref.ReferenceType" in reason for reason in stats["break_reasons"]):
        return
    assert stats["breaks"] == 0, stats["break_reasons"]
    assert not stats["undone"]
    assert stats["frames"] == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", ONE_GRAPH)
def test_samples(name: str, backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        distribution = ONE_GRAPH[name](x)
        sample = distribution.sample()
        again = distribution.rsample((2,)) if distribution.has_rsample else sample
        return sample, again, distribution.log_prob(sample), distribution.batch_shape

    check(program, backend, exact=backend != "magneto")


@pytest.mark.parametrize("name", PAIRS)
def test_divergences(name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        left, right = PAIRS[name]
        return D.kl_divergence(left(x), right(x))

    check(program, "aot_eager", exact=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
def test_invalid_values_raise(backend: str) -> None:
    def parameters(x: torch.Tensor) -> Any:
        return D.Normal(x, x).rsample()

    def samples(x: torch.Tensor) -> Any:
        return D.Bernoulli(torch.full((4,), 0.5)).log_prob(x)

    for program in (parameters, samples):
        compiled = magneto.compile(program, backend=backend)
        compiled(torch.ones(4))
        for bad in (torch.tensor([1.0, -1.0, 1.0, 1.0]), torch.full((4,), float("nan"))):
            with pytest.raises(ValueError) as want:
                program(bad)
            with pytest.raises(ValueError) as got:
                compiled(bad)
            assert str(got.value) == str(want.value)
        compiled(torch.ones(4))


SPREADS: dict[str, Make] = {
    "StudentT": lambda x: D.StudentT(x * 4),  # degrees of freedom on both sides of 1 and 2
    "StudentT, scaled": lambda x: D.StudentT(x[:, None] * 4, x, x.T + 0.1),
    "VonMises": lambda x: D.VonMises(x, x + 1),
    "Binomial": lambda x: D.Binomial(5, x * 0.5),
}


@pytest.mark.filterwarnings("ignore:The use of `x.T` on tensors")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", SPREADS)
def test_means_and_variances(name: str, backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        distribution = SPREADS[name](x)
        return distribution.mean, distribution.variance

    check(program, backend, exact=backend != "magneto")
    odd = torch.tensor([0.25, 0.5, float("inf"), 1.0])  # 1, 2, infinitely many
    if name == "StudentT":
        assert_same(magneto.compile(program, backend=backend)(odd), program(odd))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
def test_gradients_of_a_variance(backend: str) -> None:
    def gradient(function: Callable[..., Any]) -> Any:
        x = torch.tensor([0.5, 1.0, 1.5, 2.0, 3.0], requires_grad=True)
        variance = function(x)
        variance[x > 2].sum().backward()
        return variance, x.grad

    def program(x: torch.Tensor) -> Any:
        return D.StudentT(x).variance

    assert_same(gradient(magneto.compile(program, backend=backend)), gradient(program))


# Wishart's __init__ warns of some data: an exit of its own.
LOOPS: dict[str, tuple[Make, int]] = {
    "VonMises": (lambda x: D.VonMises(x, x + 1).sample((3,)), 1),
    "Wishart": (lambda x: D.Wishart(x.sum() + 4, EYE).sample(), 2),
    "Wishart of a batch": (lambda x: D.Wishart(x + 4, EYE).rsample((2,)), 2),
}


@pytest.mark.filterwarnings("ignore:Singular sample detected")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_until_samples_fit_are_one_exit(name: str, backend: str) -> None:
    """They branch on data. What is in front and behind is captured."""

    def program(x: torch.Tensor) -> Any:
        return LOOPS[name][0](x.exp().log()) + 1

    compiled = magneto.compile(program, backend=backend)
    for seed in range(3):
        x = torch.rand(4, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        want = program(x), torch.rand(2)
        torch.manual_seed(seed)
        assert_same((compiled(x), torch.rand(2)), want, exact=backend != "magneto")
    stats = magneto.stats()
    if OLDER and any("weakref.ReferenceType" in reason for reason in stats["break_reasons"]):
        return
    assert stats["breaks"] == LOOPS[name][1], stats["break_reasons"]
    assert stats["graphs"] >= 2 and not stats["undone"] and not stats["fallbacks"]


def test_divergences_of_many_pairs() -> None:
    """Each pair's function is looked up in a dict whose keys are pairs of classes, and kept there the first time."""

    def program(x: torch.Tensor, name: str) -> Any:
        left, right = PAIRS[name]
        return D.kl_divergence(left(x), right(x))

    D.kl._KL_MEMOIZE.clear()
    for name in PAIRS:
        magneto.reset()
        compiled = magneto.compile(program, backend="aot_eager")
        for _ in range(3):
            x = torch.rand(4)
            assert_same(compiled(x, name), program(x, name))
        stats = magneto.stats()
        assert stats["frames"] <= 2 and not stats["fallbacks"], name  # kept there while the first one ran


MATRICES = {
    "skew": torch.tensor([[1.0, 0.5], [0.0, 1.0]]),
    "indefinite": torch.tensor([[1.0, 2.0], [2.0, 1.0]]),
    "unknown": torch.full((2, 2), float("nan")),
    "oblong": torch.ones(2, 3),
    "one of two": torch.stack([torch.eye(2), -torch.eye(2)]),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
def test_matrices_that_are_none(backend: str) -> None:
    constraints = [
        D.constraints.symmetric,
        D.constraints.positive_definite,
        D.constraints.positive_semidefinite,
        D.constraints.square,
    ]

    def checking(index: int) -> Make:
        return lambda x: constraints[index].check(x)

    def normal(x: torch.Tensor) -> Any:
        return D.MultivariateNormal(torch.zeros(2), x).mean

    checks = [checking(index) for index in range(len(constraints))]
    compiled = magneto.compile(normal, backend=backend)
    for name, matrix in {"definite": torch.eye(2), "empty": torch.ones(0, 2, 2), **MATRICES}.items():
        for program in checks:
            try:
                want = program(matrix)
            except RuntimeError as error:
                with pytest.raises(type(error)):
                    magneto.compile(program, backend=backend)(matrix)
            else:
                assert_same(magneto.compile(program, backend=backend)(matrix), want)
        if name in MATRICES:
            with pytest.raises(ValueError) as expected:
                normal(matrix)
            with pytest.raises(ValueError) as raised:
                compiled(matrix)
            assert str(raised.value) == str(expected.value)
    assert magneto.stats()["breaks"] <= 2, magneto.stats()["break_reasons"]  # what always raises is no graph
