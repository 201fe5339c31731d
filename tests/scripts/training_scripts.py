"""Training loops: steps with optimizers, schedules, averages and scalers, compiled as a whole or in parts."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from scripts import BFLOAT16, Compiled, Scripts
from small_gpt import GPT
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

scripts = Scripts()


@scripts(closeness=BFLOAT16)
def small_gpt_training(compiled: Compiled) -> Any:
    """A compiled GPT trained under autocast, with clipping and a schedule."""
    model = compiled(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    losses = []
    for _ in range(4):
        ids = torch.randint(0, 50, (2, 16))
        with torch.autocast("cpu", torch.bfloat16):
            logits, loss = model(ids, ids.roll(-1, 1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, logits.detach(), scheduler.get_last_lr(), len(model.state_dict())


@scripts
def optimizer_step(compiled: Compiled) -> Any:
    """Only the optimizer's bound method is compiled."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    step = compiled(optimizer.step)
    for index in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 4) * index).pow(2).sum().backward()
        step()
    return model.weight.detach()


@scripts
def whole_step_of_a_classifier(compiled: Compiled) -> Any:
    """Forward, backward and SGD with momentum in one function, around a batch norm."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def train(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    train = compiled(train)
    losses = [train(torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,))) for _ in range(3)]
    return losses, model[1].running_mean, model[1].num_batches_tracked


@scripts
def exponential_average_of_weights(compiled: Compiled) -> Any:
    """The update of an averaged copy, with another decay each time."""
    model = nn.Linear(3, 3)
    average = copy.deepcopy(model)

    @torch.no_grad()
    def update(decay: float) -> None:
        for kept, new in zip(average.parameters(), model.parameters()):
            kept.mul_(decay).add_(new, alpha=1 - decay)

    update = compiled(update)
    for decay in (0.9, 0.99, 0.5):
        model.weight.data.add_(1)
        update(decay)
    return average.weight.detach()


@scripts
def stochastic_weight_averaging(compiled: Compiled) -> Any:
    """`AveragedModel.update_parameters`, compiled as a bound method."""
    model = nn.Linear(2, 2)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    update = compiled(averaged.update_parameters)
    for _ in range(3):
        model.weight.data += 1
        update(model)
    return averaged.module.weight.detach(), averaged.n_averaged


@scripts(closeness=BFLOAT16)
def accumulation_with_a_scaler(compiled: Compiled) -> Any:
    """Three small batches a step, under autocast with a gradient scaler."""
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
    forward = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=128.0)
    losses = []
    for _ in range(2):
        for index in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = forward(torch.ones(2, 4) * index).pow(2).mean() / 3
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, scaler.get_scale(), model[0].weight.detach()


class Numbers(Dataset):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3,), float(index)), index % 2


@scripts
def last_batch_is_smaller(compiled: Compiled) -> Any:
    """A loader whose last batch has one item only."""
    model = nn.Linear(3, 2)
    forward = compiled(model)
    losses = []
    for x, y in DataLoader(Numbers(), batch_size=3, shuffle=False):
        losses.append(F.cross_entropy(forward(x), y).item())
    return losses


@scripts
def activation_checkpointing(compiled: Compiled) -> Any:
    """The backward pass computes the layers, and their dropout, once more."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))

    def loss_of(x: Tensor) -> Tensor:
        return checkpoint(model, x, use_reentrant=False).sum()

    x = torch.randn(3, 4, requires_grad=True)
    loss = compiled(loss_of)(x)
    loss.backward()
    return loss.detach(), x.grad


@scripts
def two_players(compiled: Compiled) -> Any:
    """A step of a GAN: two models, two optimizers, one function."""
    generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
    criterion = nn.BCEWithLogitsLoss()

    def step(real: Tensor) -> tuple[float, float]:
        count = real.size(0)
        fake = generator(torch.randn(count, 2))
        critic_loss = criterion(critic(real), torch.ones(count, 1))
        critic_loss = critic_loss + criterion(critic(fake.detach()), torch.zeros(count, 1))
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        generator_loss = criterion(critic(fake), torch.ones(count, 1))
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        return critic_loss.item(), generator_loss.item()

    step = compiled(step)
    return [step(torch.randn(6, 2)) for _ in range(3)]


class LoRA(nn.Module):
    """A frozen layer with a trained correction of low rank."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank) + 0.1)
        self.merged = False
        for parameter in base.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.merged:
            return self.base(x)
        return self.base(x) + (x @ self.A.t()) @ self.B.t()

    def merge(self) -> None:
        self.base.weight.data += self.B @ self.A
        self.merged = True


@scripts
def low_rank_adapters(compiled: Compiled) -> Any:
    """Adapters are trained, then merged into the frozen weights."""
    model = nn.Sequential(LoRA(nn.Linear(4, 4), 2), nn.ReLU(), LoRA(nn.Linear(4, 2), 2))
    forward = compiled(model)
    x = torch.randn(3, 4)
    before = forward(x)
    before.sum().backward()
    for layer in model:
        if isinstance(layer, LoRA):
            layer.merge()
    return before.detach(), forward(x).detach(), model[0].A.grad, [p.grad is None for p in model.parameters()]


class MaybeSkipped(nn.Module):
    def __init__(self, probability: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand(1).item() < self.probability:
            return x
        return x + self.layer(x) / (1 if self.training else 1 / (1 - self.probability))


@scripts
def stochastic_depth(compiled: Compiled) -> Any:
    """Layers are left out by chance, which is read as a number."""
    model = nn.Sequential(*[MaybeSkipped(0.3) for _ in range(4)])
    forward = compiled(model)
    trained = [forward(torch.ones(1, 4)).detach() for _ in range(4)]
    model.eval()
    return trained, forward(torch.ones(1, 4)).detach()


@scripts
def spectral_normalisation(compiled: Compiled) -> Any:
    """A parametrization whose power iteration writes buffers in each call."""
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4))
    model.train()
    forward = compiled(model)
    x = torch.randn(2, 5)
    return [forward(x).detach() for _ in range(3)], model.parametrizations.weight[0]._u
