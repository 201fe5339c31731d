"""What surrounds a training step: trainers with callbacks, searches for rates, checkpoints, profiles, own optimizers."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from scripts import Compiled, Scripts
from torch import Tensor, nn

scripts = Scripts()


def small_classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def batches(count: int, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, 4), torch.randint(0, 3, (size,))) for _ in range(count)]


@dataclasses.dataclass
class Arguments:
    learning_rate: float = 5e-3
    epochs: int = 2
    accumulation_steps: int = 2
    max_grad_norm: float = 1.0
    logging_steps: int = 1
    label_smoothing: float = 0.1


class Callback:
    def on_log(self, trainer: Trainer, logs: dict[str, float]) -> None: ...

    def on_epoch_end(self, trainer: Trainer) -> None: ...


class History(Callback):
    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, trainer: Trainer, logs: dict[str, float]) -> None:
        self.logs.append({**logs, "step": trainer.step})


class Warmup(Callback):
    def on_epoch_end(self, trainer: Trainer) -> None:
        for group in trainer.optimizer.param_groups:
            group["lr"] *= 0.5


class Trainer:
    """The shape of the trainers of libraries: a training step that a subclass may replace, and callbacks."""

    def __init__(self, model: nn.Module, arguments: Arguments, callbacks: Iterable[Callback]) -> None:
        self.model = model
        self.arguments = arguments
        self.callbacks = list(callbacks)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
        self.step = 0

    def call(self, event: str, *details: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *details)

    def compute_loss(self, inputs: dict[str, Tensor]) -> Tensor:
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        return F.cross_entropy(self.model(**inputs), labels, label_smoothing=self.arguments.label_smoothing)

    def training_step(self, inputs: dict[str, Tensor]) -> Tensor:
        self.model.train()
        loss = self.compute_loss(inputs)
        (loss / self.arguments.accumulation_steps).backward()
        return loss.detach()

    def train(self, data: list[tuple[Tensor, Tensor]]) -> float:
        total = torch.tensor(0.0)
        for _ in range(self.arguments.epochs):
            for index, (x, y) in enumerate(data):
                total += self.training_step({"input": x, "labels": y})
                if (index + 1) % self.arguments.accumulation_steps:
                    continue
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.arguments.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.step += 1
                if self.step % self.arguments.logging_steps == 0:
                    self.call("on_log", {"loss": round(total.item() / self.step, 2), "norm": norm.item()})
            self.call("on_epoch_end")
        return total.item()

    @torch.no_grad()
    def evaluate(self, data: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
        self.model.eval()
        right = sum((self.model(x).argmax(-1) == y).sum().item() for x, y in data)
        return {"accuracy": right / sum(len(y) for _, y in data)}


@scripts
def trainer_with_a_compiled_step(compiled: Compiled) -> Any:
    """The training step, which takes a dict and changes the modes of the model, is compiled as a method."""
    history = History()
    trainer = Trainer(small_classifier(), Arguments(), [history, Warmup()])
    trainer.training_step = compiled(trainer.training_step)
    trainer.evaluate = compiled(trainer.evaluate)
    data = batches(4)
    total = trainer.train(data)
    return total, history.logs, trainer.evaluate(data), trainer.optimizer.param_groups[0]["lr"]


@scripts
def trainer_compiled_as_a_whole(compiled: Compiled) -> Any:
    """The loop over epochs, with its callbacks and logs, is in the compiled function."""
    history = History()
    trainer = Trainer(small_classifier(), Arguments(accumulation_steps=1), [history, Warmup()])
    total = compiled(trainer.train)(batches(2))
    return total, history.logs, trainer.step, trainer.model[0].weight.detach()


@scripts
def learning_rate_finder(compiled: Compiled) -> Any:
    """The rate grows with each batch until the loss explodes; then model and optimizer are as they were."""
    model = small_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = compiled(step)
    rates: list[float] = []
    losses: list[float] = []
    smooth = 0.0
    for index, (x, y) in enumerate(batches(12)):
        rate = 1e-3 * (1e4 ** (index / 11))
        for group in optimizer.param_groups:
            group["lr"] = rate
        smooth = 0.8 * smooth + 0.2 * step(x, y).item()
        corrected = smooth / (1 - 0.8 ** (index + 1))
        if losses and corrected > 4 * min(losses):
            break
        rates.append(rate)
        losses.append(corrected)
    model.load_state_dict(before[0])
    optimizer.load_state_dict(before[1])
    x, y = batches(1)[0]
    return rates, losses, step(x, y).detach(), optimizer.param_groups[0]["lr"]


class Lion(torch.optim.Optimizer):
    """Steps of the sign of an average, with the state that an own optimizer keeps for each parameter."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in filter(lambda p: p.grad is not None, group["params"]):
                gradient, state = parameter.grad, self.state[parameter]
                if len(state) == 0:
                    state["average"] = torch.zeros_like(parameter)
                    state["steps"] = 0
                state["steps"] += 1
                average = state["average"]
                beta1, beta2 = group["betas"]
                parameter.data.mul_(1 - group["lr"] * group["weight_decay"])
                update = average.clone().mul_(beta1).add(gradient, alpha=1 - beta1).sign_()
                parameter.add_(update, alpha=-group["lr"])
                average.mul_(beta2).add_(gradient, alpha=1 - beta2)
        return loss


@scripts
def own_optimizer(compiled: Compiled) -> Any:
    """A step with an optimizer of one's own, two groups and a closure."""
    model = small_classifier()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 3e-3, "weight_decay": 0.0}]
    optimizer = Lion(groups, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    step = compiled(step)
    losses = [step(x, y).item() for x, y in batches(4)]
    return losses, model[0].weight.detach(), [state["steps"] for state in optimizer.state.values()]


@scripts
def sharpness_aware_steps(compiled: Compiled) -> Any:
    """Two backward passes a step: up to the worst weights nearby, down from there."""
    model = small_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: Tensor, y: Tensor, rho: float = 0.05) -> tuple[Tensor, Tensor]:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        climbed = {}
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            for parameter in model.parameters():
                climbed[parameter] = parameter.grad * (rho / (norm + 1e-12))
                parameter.add_(climbed[parameter])
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter, change in climbed.items():
                parameter.sub_(change)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), norm

    step = compiled(step)
    return [step(x, y) for x, y in batches(3)], model[2].bias.detach()


@scripts
def gradual_unfreezing(compiled: Compiled) -> Any:
    """Layers are frozen at first and set free from the last to the first; the optimizer is made anew each time."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    forward = compiled(model)
    model.requires_grad_(False)
    seen = []
    for layer in reversed([layer for layer in model if isinstance(layer, nn.Linear)]):
        layer.requires_grad_(True)
        model[1].train(layer is model[0])
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for x, y in batches(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(x), y)
            loss.backward()
            optimizer.step()
        seen.append((loss.item(), [p.grad is not None for p in model.parameters()]))
    return seen, model[0].weight.detach(), model[1].running_mean


@scripts
def checkpoint_in_the_middle(compiled: Compiled) -> Any:
    """Model, optimizer, schedule and generator are saved, training goes on, and once more from what was loaded."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=4)

    def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> Callable[..., float]:
        def step(x: Tensor, y: Tensor) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss.item()

        return compiled(step)

    data = batches(6)
    parts = make()
    step = stepper(*parts)
    losses = [step(x, y) for x, y in data[:3]]
    file = io.BytesIO()
    names = ("model", "optimizer", "scheduler")
    torch.save({name: part.state_dict() for name, part in zip(names, parts)} | {"rng": torch.get_rng_state()}, file)
    first = [step(x, y) for x, y in data[3:]]
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = make()
    for name, part in zip(names, resumed):
        part.load_state_dict(saved[name])
    torch.set_rng_state(saved["rng"])
    step = stepper(*resumed)
    second = [step(x, y) for x, y in data[3:]]
    assert all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(first, second, strict=True)), (first, second)
    return losses, first, resumed[2].get_last_lr()


@scripts
def best_weights_come_back(compiled: Compiled) -> Any:
    """Early stopping: a plateau halves the rate, the best weights are kept and loaded at the end."""
    model = small_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

    @compiled
    def epoch(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return F.cross_entropy(model(x), y).detach()

    best, kept, patience = math.inf, model.state_dict(), 3
    losses = []
    x, y = batches(1)[0]
    for _ in range(8):
        loss = epoch(x, y).item()
        plateau.step(loss)
        losses.append(loss)
        if loss < best - 1e-3:
            best, kept, patience = loss, copy.deepcopy(model.state_dict()), 3
        else:
            patience -= 1
        if patience == 0:
            break
    model.load_state_dict(kept)
    return losses, plateau.get_last_lr(), epoch(x, y)


@scripts
def profiled_step(compiled: Compiled) -> Any:
    """torch.profiler with a schedule around the steps, and a named range in the compiled function."""
    model = small_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.profiler.record_function("forward"):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = compiled(step)
    ready = []
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2)
    losses = []
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda profiler: ready.append(profiler.step_num),
    ) as profiler:
        for x, y in batches(4):
            losses.append(step(x, y))
            profiler.step()
    return losses, ready, len(profiler.key_averages()) > 0


class AverageMeter:
    def __init__(self, name: str, form: str = ":.2f") -> None:
        self.name = name
        self.form = form
        self.value = self.sum = self.count = 0.0

    def update(self, value: float, count: int = 1) -> None:
        self.value = value
        self.sum += value * count
        self.count += count

    def __str__(self) -> str:
        pattern = "{name} {value" + self.form + "} ({average" + self.form + "})"
        return pattern.format(name=self.name, value=self.value, average=self.sum / self.count)


@scripts
def metrics_as_text_in_the_step(compiled: Compiled) -> Any:
    """Meters are updated and written out in the compiled step, with numbers that are read from tensors."""
    model = small_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_meter = AverageMeter("loss")
    right_meter = AverageMeter("right", ":6.1%")
    lines = []

    def step(index: int, x: Tensor, y: Tensor) -> str:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_meter.update(loss.item(), len(x))
        right_meter.update((logits.argmax(1) == y).float().mean().item(), len(x))
        lines.append(f"[{index:>3}/{4:d}] {loss_meter}  {right_meter!s:<24}|lr={optimizer.param_groups[0]['lr']:.0e}")
        return " ".join(f"{name}:{tuple(p.shape)!r}" for name, p in model.named_parameters())

    step = compiled(step)
    names = [step(index, x, y) for index, (x, y) in enumerate(batches(4))]
    return names, lines


@scripts
def second_order_optimizer(compiled: Compiled) -> Any:
    """LBFGS evaluates a compiled closure as often as its line search wants."""
    x = torch.linspace(-1, 1, 20)
    weights = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=8, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        fitted = sum(weight * x**power for power, weight in enumerate(weights))
        loss = (fitted - torch.exp(x)).pow(2).sum()
        loss.backward()
        return loss

    closure = compiled(closure)
    losses = [optimizer.step(closure).item() for _ in range(2)]
    return [round(loss, 3) for loss in losses]


@scripts
def distillation(compiled: Compiled) -> Any:
    """A student learns from the softened answers of a teacher whose features are projected."""
    teacher = nn.ModuleDict({"body": nn.Linear(4, 32), "head": nn.Linear(32, 3)}).eval().requires_grad_(False)
    student = nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 3)})
    projection = nn.Linear(8, 32, bias=False)
    optimizer = torch.optim.Adam([*student.parameters(), *projection.parameters()], lr=1e-2)

    def run(model: nn.ModuleDict, x: Tensor) -> tuple[Tensor, Tensor]:
        features = F.gelu(model["body"](x))
        return features, model["head"](features)

    def step(x: Tensor, y: Tensor, temperature: float, alpha: float) -> dict[str, Tensor]:
        with torch.no_grad():
            wanted_features, wanted = run(teacher, x)
        features, logits = run(student, x)
        soft = F.kl_div(
            F.log_softmax(logits / temperature, -1),
            F.log_softmax(wanted / temperature, -1),
            reduction="batchmean",
            log_target=True,
        )
        parts = {
            "soft": alpha * temperature**2 * soft,
            "hard": (1 - alpha) * F.cross_entropy(logits, y),
            "features": 1 - F.cosine_similarity(projection(features), wanted_features).mean(),
        }
        loss = sum(parts.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {name: part.detach() for name, part in parts.items()}

    step = compiled(step)
    return [step(x, y, temperature, 0.7) for (x, y), temperature in zip(batches(4), (4.0, 4.0, 3.0, 2.0))]
