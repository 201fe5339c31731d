"""Losses and metrics that people write by themselves."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from scripts import Compiled, Scripts
from torch import Tensor

scripts = Scripts()


@scripts
def connectionist_temporal_classification(compiled: Compiled) -> Any:
    def loss_of(x: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), targets, input_lengths, target_lengths)

    x = torch.randn(6, 2, 5)
    targets = torch.randint(1, 5, (2, 3))
    return compiled(loss_of)(x, targets, torch.tensor([6, 5]), torch.tensor([3, 2]))


@scripts
def contrastive_pairs(compiled: Compiled) -> Any:
    """The symmetric loss of image and text pairs, for three batch sizes."""

    def loss_of(images: Tensor, texts: Tensor, temperature: Tensor) -> Tensor:
        images = F.normalize(images, dim=-1)
        texts = F.normalize(texts, dim=-1)
        logits = images @ texts.t() * temperature.exp()
        labels = torch.arange(len(images))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2

    loss_of = compiled(loss_of)
    return [loss_of(torch.randn(n, 8), torch.randn(n, 8), torch.tensor(0.7)) for n in (4, 6, 5)]


@scripts
def focal_and_dice(compiled: Compiled) -> Any:
    """A loss of segmentation, with its gradient."""

    def loss_of(logits: Tensor, target: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
        p = logits.sigmoid()
        entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        right = p * target + (1 - p) * (1 - target)
        focal = (alpha * target + (1 - alpha) * (1 - target)) * entropy * (1 - right) ** gamma
        common = (p * target).flatten(1).sum(1)
        dice = 1 - (2 * common + 1) / (p.flatten(1).sum(1) + target.flatten(1).sum(1) + 1)
        return focal.mean() + dice.mean()

    logits = torch.randn(2, 1, 4, 4, requires_grad=True)
    loss = compiled(loss_of)(logits, (torch.rand(2, 1, 4, 4) > 0.5).float())
    loss.backward()
    return loss.detach(), logits.grad


@scripts
def confusion_matrix_and_f1(compiled: Compiled) -> Any:
    """Counts of a classifier's answers as a dict of tensors and numbers."""

    def metrics(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
        predicted = probabilities.argmax(1)
        confusion = torch.bincount(labels * 3 + predicted, minlength=9).view(3, 3)
        right = confusion.diag().float()
        precision = right / confusion.sum(0).clamp(min=1)
        recall = right / confusion.sum(1).clamp(min=1)
        f1 = (2 * precision * recall / (precision + recall).clamp(min=1e-9)).mean()
        return {"f1": f1, "confusion": confusion, "accuracy": (predicted == labels).float().mean().item()}

    return compiled(metrics)(torch.randn(20, 3), torch.randint(0, 3, (20,)))


@scripts
def optimal_transport(compiled: Compiled) -> Any:
    """Sinkhorn's iteration, which ends when a tensor says so."""

    def plan_of(cost: Tensor, epsilon: float = 0.1, iterations: int = 50) -> tuple[Tensor, int]:
        kernel = (-cost / epsilon).exp()
        u = torch.ones(cost.shape[0]) / cost.shape[0]
        v = torch.ones(cost.shape[1]) / cost.shape[1]
        rows, columns = u.clone(), v.clone()
        for iteration in range(iterations):
            previous = u
            u = rows / (kernel @ v)
            v = columns / (kernel.T @ u)
            if (u - previous).abs().max() < 1e-4:
                break
        return u[:, None] * kernel * v, iteration

    return compiled(plan_of)(torch.rand(4, 5))
