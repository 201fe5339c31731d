"""Whole training steps, and steps of optimizers alone: the programs of the rows `steps`.

A trainer is a model (or plain weights) with its own optimizer; the compiled and the eager one begin alike, so what they
have after the same steps can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import steady_models
import torch

Compile = Callable[[Any], Any]
STEPS = 3  # that are compared

ADAMW = {"lr": 1e-3, "weight_decay": 0.01}


class Trainer:
    """`step()` is one training step; the others are what the steps so far have left."""

    def __init__(self, optimizer: torch.optim.AdamW, step: Callable[[], torch.Tensor]) -> None:
        self._optimizer, self._step = optimizer, step
        self._losses: list[torch.Tensor] = []

    def step(self) -> None:
        loss = self._step()
        if len(self._losses) < STEPS:
            self._losses.append(loss.detach().clone())

    def losses(self) -> list[torch.Tensor]:
        """Of the first steps."""
        return self._losses

    def averages(self) -> torch.Tensor:
        """What the optimizer keeps of all gradients, and of their squares."""
        kept = self._optimizer.state.values()
        return joined([state[name] for state in kept for name in ("exp_avg", "exp_avg_sq")])

    def weights(self) -> torch.Tensor:
        """All of them."""
        return joined([x for group in self._optimizer.param_groups for x in group["params"]])


def joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One after the other."""
    return torch.cat([x.detach().double().flatten() for x in tensors])


def whole(row: str, batch: int, dtype: torch.dtype, compile: Compile) -> Trainer:
    """Forward, backward, clipping of gradients, AdamW; the model is compiled, and what comes after its backward."""
    model = steady_models.build(row).to(dtype)
    named = {
        key: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for key, x in steady_models.inputs(row, batch).items()
    }
    weights = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(weights, **ADAMW)
    forward = compile(model)

    @compile
    def update() -> None:
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        results = [x for x in dict(forward(**named)).values() if isinstance(x, torch.Tensor) and x.requires_grad]
        loss = torch.stack([x.pow(2).mean() + x.sin().mean() for x in results]).sum()
        loss.backward()
        update()
        return loss

    return Trainer(optimizer, step)


def optimizer_of(weights: list[torch.Tensor], compile: Compile) -> Trainer:
    """AdamW alone, on gradients that are there."""
    for number, x in enumerate(weights):
        x.grad = torch.full_like(x, 1e-3 * (number % 7 - 3))
    optimizer = torch.optim.AdamW(weights, **ADAMW)
    update = compile(optimizer.step)

    def step() -> torch.Tensor:
        update()
        return torch.zeros(())

    return Trainer(optimizer, step)


def adamw_of_bert(dtype: torch.dtype, compile: Compile) -> Trainer:
    return optimizer_of(list(steady_models.build("BERT").to(dtype).parameters()), compile)


def adamw_of_1000(dtype: torch.dtype, compile: Compile) -> Trainer:
    torch.manual_seed(0)
    return optimizer_of([torch.randn(32, 32, dtype=dtype, requires_grad=True) for _ in range(1000)], compile)


#: name -> how a trainer is made, of dtype and what compiles.
ROWS: dict[str, Callable[[torch.dtype, Compile], Trainer]] = {
    **{
        f"{row}, batch {batch}": lambda dtype, compile, row=row, batch=batch: whole(row, batch, dtype, compile)
        for row in ("BERT", "Llama", "T5", "ViT", "ResNet-50")
        for batch in (1, 8)
    },
    "AdamW of BERT": adamw_of_bert,
    "AdamW of 1,000 weights": adamw_of_1000,
}


def trained(row: str, dtype: torch.dtype, compile: Compile = lambda function: function) -> Trainer:
    """A trainer after the steps that are compared."""
    trainer = ROWS[row](dtype, compile)
    for _ in range(STEPS):
        trainer.step()
    return trainer
