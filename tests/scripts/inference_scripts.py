"""Models in use: windows, ensembles, features by hooks, other heads, retrieval, calibration."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from scripts import Compiled, Scripts
from torch import Tensor, nn
from torch.nn.utils import prune

scripts = Scripts()


@scripts
def sliding_windows(compiled: Compiled) -> Any:
    """A large image in overlapping windows, blended with a bell of weights, for two image sizes."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()

    def starts(size: int, window: int, stride: int) -> list[int]:
        points = list(range(0, max(size - window, 0) + 1, stride))
        if points[-1] + window < size:
            points.append(size - window)
        return points

    @torch.inference_mode()
    def segment(image: Tensor, window: int = 8, stride: int = 6) -> Tensor:
        height, width = image.shape[-2:]
        axis = torch.exp(-((torch.arange(window) - (window - 1) / 2) ** 2) / (2 * (window / 4) ** 2))
        bell = axis[:, None] * axis[None, :]
        output = torch.zeros(image.shape[0], 2, height, width)
        weight = torch.zeros(1, 1, height, width)
        for top, left in itertools.product(starts(height, window, stride), starts(width, window, stride)):
            place = (..., slice(top, top + window), slice(left, left + window))
            output[place] += model(image[place]) * bell
            weight[place] += bell
        return (output / weight).argmax(1)

    segment = compiled(segment)
    return segment(torch.randn(1, 1, 16, 14)), segment(torch.randn(2, 1, 8, 20))


@scripts
def ensemble_by_vmap(compiled: Compiled) -> Any:
    """The weights of several models are stacked; one call runs all of them."""
    models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")

    def predict(x: Tensor) -> tuple[Tensor, Tensor]:
        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return torch.func.functional_call(skeleton, (parameters, buffers), (x,))

        answers = torch.func.vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)
        return answers.mean(0), answers.var(0)

    predict = compiled(predict)
    with torch.no_grad():
        return [predict(torch.randn(count, 4)) for count in (5, 5, 7)]


@scripts
def dropout_at_inference(compiled: Compiled) -> Any:
    """Only the dropouts of a model train; the spread of many answers is its uncertainty."""
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)).eval()
    for module in model.modules():
        if module.__class__.__name__.startswith("Dropout"):
            module.train()

    @torch.no_grad()
    def predict(x: Tensor, draws: int) -> tuple[Tensor, Tensor]:
        answers = torch.stack([model(x).softmax(-1) for _ in range(draws)])
        mean = answers.mean(0)
        entropy = -(mean * mean.clamp_min(1e-9).log()).sum(-1)
        return mean, entropy

    predict = compiled(predict)
    return predict(torch.randn(2, 4), 5), predict(torch.randn(2, 4), 5)


class FeatureExtractor:
    """Keeps what layers give, by forward hooks that it can take off again."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        self.features: dict[str, Tensor] = OrderedDict()
        modules = dict(model.named_modules())
        self.handles = [modules[name].register_forward_hook(self.keep(name)) for name in names]

    def keep(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self.features[name] = output.detach()

        return hook

    def remove(self) -> None:
        while self.handles:
            self.handles.pop().remove()


@scripts
def features_by_hooks(compiled: Compiled) -> Any:
    """Hooks are put on a model that was already called, and taken off again."""
    model = nn.Sequential(
        OrderedDict(body=nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten())
    )
    forward = compiled(model)
    images = torch.randn(2, 3, 6, 6)
    before = forward(images)
    extractor = FeatureExtractor(model, ["body.0", "pool"])
    during = forward(images)
    features = dict(extractor.features)
    extractor.remove()
    extractor.features.clear()
    after = forward(images)
    return before.detach(), during.detach(), after.detach(), features, len(extractor.features)


@scripts
def class_activation_map(compiled: Compiled) -> Any:
    """Grad-CAM: a hook keeps an activation and a hook on it its gradient."""
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    head = nn.Linear(4, 3)
    kept: dict[str, Tensor] = {}

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        kept["activation"] = output
        output.register_hook(lambda gradient: kept.__setitem__("gradient", gradient))

    body.register_forward_hook(keep)

    def explain(image: Tensor) -> tuple[Tensor, int]:
        scores = head(body(image).mean((2, 3)))
        label = int(scores.argmax())
        body.zero_grad()
        scores[0, label].backward()
        weights = kept["gradient"].mean((2, 3), keepdim=True)
        heat = F.relu((weights * kept["activation"]).sum(1, keepdim=True))
        heat = F.interpolate(heat, size=image.shape[-2:], mode="bilinear", align_corners=False)
        return (heat / heat.max().clamp_min(1e-6)).detach(), label

    explain = compiled(explain)
    return explain(torch.randn(1, 1, 7, 7)), explain(torch.randn(1, 1, 7, 7))


@scripts
def surgery_between_calls(compiled: Compiled) -> Any:
    """The head is replaced, a layer put in, another one made an identity, and an activation swapped everywhere."""
    model = nn.Sequential(OrderedDict(first=nn.Linear(4, 8), act=nn.ReLU(), norm=nn.LayerNorm(8), head=nn.Linear(8, 3)))
    forward = compiled(model)
    x = torch.randn(2, 4)
    seen = [forward(x)]
    model.head = nn.Linear(model.head.in_features, 5)
    seen.append(forward(x))
    model.norm = nn.Identity()
    seen.append(forward(x))
    model.add_module("extra", nn.Linear(5, 2, bias=False))
    seen.append(forward(x))
    for name, module in model.named_children():
        if isinstance(module, nn.ReLU):
            setattr(model, name, nn.GELU())
    seen.append(forward(x))
    del model.extra
    model.head.bias = None
    seen.append(forward(x))
    model.half().float()
    seen.append(forward(x))
    return [y.detach() for y in seen]


@scripts
def pruned_weights(compiled: Compiled) -> Any:
    """Masks of torch.nn.utils.prune come, grow and become permanent between the calls."""
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    forward = compiled(model)
    x = torch.randn(3, 6)
    seen = [forward(x).detach()]
    prune.l1_unstructured(model[0], "weight", amount=0.3)
    seen.append(forward(x).detach())
    prune.ln_structured(model[0], "weight", amount=0.5, n=2, dim=0)
    seen.append(forward(x).detach())
    prune.remove(model[0], "weight")
    seen.append(forward(x).detach())
    return seen, int((model[0].weight == 0).sum())


class TiedAutoencoder(nn.Module):
    """The decoder uses the encoder's weight, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6) * 0.3)
        self.encoder_bias = nn.Parameter(torch.zeros(3))
        self.decoder = nn.Linear(3, 6)
        self.decoder.weight = nn.Parameter(self.weight.data.t())  # the same memory in another parameter

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = torch.tanh(F.linear(x, self.weight, self.encoder_bias))
        return self.decoder(code), F.linear(code, self.weight.t(), self.decoder.bias)


@scripts
def tied_weights(compiled: Compiled) -> Any:
    """Two parameters with one memory, changed through one of them."""
    model = TiedAutoencoder()
    forward = compiled(model)
    x = torch.randn(4, 6)
    seen = []
    for _ in range(3):
        one, other = forward(x)
        loss = F.mse_loss(one, x) + F.mse_loss(other, x)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            model.weight -= 0.1 * model.weight.grad
        seen.append((loss.detach(), model.decoder.weight.grad.clone()))
    return seen, model.decoder.weight.data_ptr() == model.weight.data_ptr()


class Index:
    """Vectors that are added in parts and searched in chunks."""

    def __init__(self, width: int) -> None:
        self.vectors = torch.empty(0, width)
        self.names: list[str] = []

    def add(self, vectors: Tensor, names: list[str]) -> None:
        self.vectors = torch.cat([self.vectors, F.normalize(vectors, dim=-1)])
        self.names.extend(names)

    def search(self, queries: Tensor, k: int, chunk: int = 4) -> tuple[Tensor, list[list[str]]]:
        best_scores = torch.full((len(queries), 0), 0.0)
        best_ids = torch.empty(len(queries), 0, dtype=torch.long)
        for start in range(0, len(self.vectors), chunk):
            scores = F.normalize(queries, dim=-1) @ self.vectors[start : start + chunk].T
            ids = torch.arange(start, start + scores.shape[1]).expand_as(scores)
            best_scores = torch.cat([best_scores, scores], 1)
            best_ids = torch.cat([best_ids, ids], 1)
            best_scores, order = best_scores.topk(min(k, best_scores.shape[1]), dim=1)
            best_ids = best_ids.gather(1, order)
        return best_scores, [[self.names[i] for i in row] for row in best_ids.tolist()]


@scripts
def retrieval(compiled: Compiled) -> Any:
    """The nearest vectors of a growing index, with recall and the mean reciprocal rank of a ranking."""
    index = Index(8)
    search = compiled(index.search)
    found = []
    for count in (5, 3, 6):
        index.add(torch.randn(count, 8), [f"{count}-{i}" for i in range(count)])
        found.append(search(torch.randn(2, 8), k=3))

    def ranking(scores: Tensor, relevant: Tensor, k: int) -> dict[str, float]:
        order = scores.sort(dim=1, descending=True, stable=True).indices
        hits = relevant.gather(1, order)
        first = hits.float().argmax(1) + 1
        gains = hits / torch.log2(torch.arange(hits.shape[1]) + 2.0)
        ideal = hits.float().sort(dim=1, descending=True).values / torch.log2(torch.arange(hits.shape[1]) + 2.0)
        return {
            f"recall@{k}": (hits[:, :k].sum(1) / relevant.sum(1)).mean().item(),
            "mrr": (1.0 / first).mean().item(),
            f"ndcg@{k}": (gains[:, :k].sum(1) / ideal[:, :k].sum(1)).mean().item(),
        }

    relevant = torch.zeros(4, 9, dtype=torch.bool)
    relevant[torch.arange(4), torch.tensor([0, 3, 8, 2])] = True
    relevant[:, 5] = True
    return found, compiled(ranking)(torch.randn(4, 9), relevant, 3)


@scripts
def calibration(compiled: Compiled) -> Any:
    """The expected error of confidences in bins, before and after a temperature is fitted."""
    logits = torch.randn(60, 4) * 3
    labels = torch.where(torch.rand(60) < 0.6, logits.argmax(1), torch.randint(0, 4, (60,)))

    def expected_error(logits: Tensor, bins: int = 5) -> Tensor:
        confidence, predicted = logits.softmax(1).max(1)
        right = predicted.eq(labels)
        error = torch.zeros(1)
        edges = torch.linspace(0, 1, bins + 1)
        for low, high in zip(edges[:-1], edges[1:]):
            inside = confidence.gt(low.item()) & confidence.le(high.item())
            share = inside.float().mean()
            if share.item() > 0:
                error += (confidence[inside].mean() - right[inside].float().mean()).abs() * share
        return error

    expected_error = compiled(expected_error)
    temperature = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([temperature], lr=0.2)

    @compiled
    def fit() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(logits / temperature, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [fit() for _ in range(5)]
    return losses, expected_error(logits), expected_error(logits / temperature.detach())


@scripts
def adversarial_attack(compiled: Compiled) -> Any:
    """Projected gradient steps on an image, within a ball around it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).eval()

    def attack(images: Tensor, labels: Tensor, epsilon: float, steps: int) -> Tensor:
        changed = (images + torch.empty_like(images).uniform_(-epsilon, epsilon)).clamp(0, 1)
        for _ in range(steps):
            changed.requires_grad_(True)
            loss = F.cross_entropy(model(changed), labels)
            (gradient,) = torch.autograd.grad(loss, [changed])
            with torch.no_grad():
                changed = changed + 0.3 * epsilon * gradient.sign()
                changed = torch.min(torch.max(changed, images - epsilon), images + epsilon).clamp(0, 1)
        return changed.detach()

    attack = compiled(attack)
    images = torch.rand(3, 1, 4, 4)
    labels = torch.tensor([0, 1, 2])
    return attack(images, labels, 0.1, 3), attack(images, labels, 0.2, 3)


@scripts
def test_time_augmentation(compiled: Compiled) -> Any:
    """Answers for flipped and turned images, turned back and averaged; the geometric mean as well."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Sigmoid()).eval()
    ways = [(turns, flip) for turns in range(4) for flip in (False, True)]

    @torch.no_grad()
    def predict(images: Tensor) -> tuple[Tensor, Tensor]:
        answers = []
        for turns, flip in ways:
            x = torch.rot90(images, turns, (2, 3))
            x = model(x.flip(-1) if flip else x)
            x = x.flip(-1) if flip else x
            answers.append(torch.rot90(x, -turns, (2, 3)))
        stacked = torch.stack(answers)
        return stacked.mean(0), stacked.log().mean(0).exp()

    predict = compiled(predict)
    return predict(torch.rand(2, 1, 6, 6)), predict(torch.rand(2, 1, 5, 7))
