"""Reinforcement learning: policies, replay buffers, target networks."""

from __future__ import annotations

import collections
import copy
import random
from typing import Any

import torch
import torch.nn.functional as F
from scripts import Compiled, Scripts
from torch import Tensor, nn

scripts = Scripts()


@scripts
def proximal_policy_optimization(compiled: Compiled) -> Any:
    """The clipped loss of a policy and its value function, for batches of two sizes."""
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    value = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], 3e-4)

    def loss_of(seen: Tensor, actions: Tensor, advantages: Tensor, returns: Tensor, old: Tensor) -> Tensor:
        distribution = torch.distributions.Categorical(logits=policy(seen))
        ratio = (distribution.log_prob(actions) - old).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        value_loss = F.mse_loss(value(seen).squeeze(-1), returns)
        return -gain + 0.5 * value_loss - 0.01 * distribution.entropy().mean()

    loss_of = compiled(loss_of)
    losses = []
    for count in (8, 8, 16):
        seen = torch.randn(count, 4)
        actions = torch.randint(0, 2, (count,))
        loss = loss_of(seen, actions, torch.randn(count), torch.randn(count), torch.randn(count) * 0.1 - 0.7)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


Transition = collections.namedtuple("Transition", "state action reward following")


@scripts
def deep_q_learning(compiled: Compiled) -> Any:
    """A step samples a buffer of named tuples, some of which have no next state, and moves the target network."""
    buffer: collections.deque[Transition] = collections.deque(maxlen=20)
    network = nn.Linear(3, 2)
    target = copy.deepcopy(network)
    optimizer = torch.optim.RMSprop(network.parameters(), 1e-2)
    for _ in range(10):
        action = torch.tensor([random.randrange(2)])
        following = None if random.random() < 0.3 else torch.randn(3)
        buffer.append(Transition(torch.randn(3), action, torch.randn(1), following))

    def step() -> float:
        batch = Transition(*zip(*random.sample(buffer, 6)))
        going_on = torch.tensor([state is not None for state in batch.following])
        following = torch.stack([state for state in batch.following if state is not None])
        chosen = network(torch.stack(batch.state)).gather(1, torch.stack(batch.action))
        values = torch.zeros(6)
        with torch.no_grad():
            values[going_on] = target(following).max(1).values
        loss = F.smooth_l1_loss(chosen, (values * 0.9 + torch.cat(batch.reward)).unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(network.parameters(), 100)
        optimizer.step()
        for new, kept in zip(network.parameters(), target.parameters()):
            kept.data.copy_(0.01 * new.data + 0.99 * kept.data)
        return loss.item()

    step = compiled(step)
    return [step() for _ in range(4)], target.weight.detach()
