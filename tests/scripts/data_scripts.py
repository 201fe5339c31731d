"""Data on its way to the model: texts to numbers, transforms and collation, mixed batches, metrics with a state."""

from __future__ import annotations

import collections
import functools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scripts import Compiled, Scripts
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, TensorDataset, random_split

scripts = Scripts()

TEXTS = [
    "the cat sat on the mat.",
    "A dog; a cat, and a mat!",
    "Dogs don't sit on mats -- cats do.",
    "on the 3rd day, the 2 cats sat",
]


@scripts
def texts_to_batches(compiled: Compiled) -> Any:
    """Words are counted and numbered, texts cut and padded and masked, all of it in the compiled function."""
    counts = collections.Counter(word for text in TEXTS for word in re.findall(r"\w+|[^\w\s]", text.lower()))
    words = ["<pad>", "<unk>"] + [word for word, count in counts.most_common() if count > 1]
    vocabulary = {word: index for index, word in enumerate(words)}
    embedding = nn.Embedding(len(vocabulary), 6, padding_idx=0)

    def encode(texts: list[str], limit: int | None = None) -> tuple[Tensor, Tensor]:
        rows = []
        for text in texts:
            tokens = re.findall(r"\w+|[^\w\s]", text.lower())
            rows.append([vocabulary.get(token, vocabulary["<unk>"]) for token in tokens][:limit])
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        return ids, ids.ne(0)

    def represent(texts: list[str], limit: int | None = None) -> tuple[Tensor, Tensor]:
        ids, mask = encode(texts, limit)
        summed = (embedding(ids) * mask.unsqueeze(-1)).sum(1)
        return ids, (summed / mask.sum(1, keepdim=True)).detach()

    represent = compiled(represent)
    return represent(TEXTS[:2]), represent(TEXTS[2:]), represent(TEXTS, limit=4)


@scripts
def pair_encoding(compiled: Compiled) -> Any:
    """Merges of byte pairs are learned from counts, and an embedding bag sums what they give."""
    text = " ".join(TEXTS).encode()
    ids = list(text)
    merges: dict[tuple[int, int], int] = {}
    for new in range(256, 264):
        pairs = collections.Counter(zip(ids, ids[1:]))
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges[best] = new
        merged: list[int] = []
        for symbol in ids:
            if merged and (merged[-1], symbol) == best:
                merged[-1] = new
            else:
                merged.append(symbol)
        ids = merged
    bag = nn.EmbeddingBag(264, 5, mode="sum")

    def embed(text: str) -> Tensor:
        symbols = list(text.encode())
        while len(symbols) > 1:
            pair = min(zip(symbols, symbols[1:]), key=lambda pair: merges.get(pair, 1 << 30))
            if pair not in merges:
                break
            index = next(i for i, p in enumerate(zip(symbols, symbols[1:])) if p == pair)
            symbols[index : index + 2] = [merges[pair]]
        return bag(torch.tensor(symbols), torch.tensor([0, len(symbols) // 2])).detach()

    embed = compiled(embed)
    return [embed(text) for text in ("the cat", "on the mat", "xyz")]


@scripts
def mixup_and_cutmix(compiled: Compiled) -> Any:
    """Batches are mixed by chance in one of two ways, with numpy's beta numbers."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def corners(height: int, width: int, share: float) -> tuple[int, int, int, int]:
        cut = (1.0 - share) ** 0.5
        y, x = random.randrange(height), random.randrange(width)
        half_y, half_x = int(height * cut) // 2, int(width * cut) // 2
        return max(y - half_y, 0), min(y + half_y, height), max(x - half_x, 0), min(x + half_x, width)

    def step(images: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        order = torch.randperm(images.size(0))
        share = float(np.random.beta(1.0, 1.0))
        if random.random() < 0.5:
            images = share * images + (1 - share) * images[order]
        else:
            top, bottom, left, right = corners(images.size(2), images.size(3), share)
            images = images.clone()
            images[:, :, top:bottom, left:right] = images[order, :, top:bottom, left:right]
            share = 1 - (bottom - top) * (right - left) / (images.size(2) * images.size(3))
        logits = model(images)
        loss = share * F.cross_entropy(logits, labels) + (1 - share) * F.cross_entropy(logits, labels[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), share

    step = compiled(step)
    return [step(torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,))) for _ in range(5)]


class Compose:
    def __init__(self, *transforms: Callable[[Tensor], Tensor]) -> None:
        self.transforms = transforms

    def __call__(self, x: Tensor) -> Tensor:
        return functools.reduce(lambda value, transform: transform(value), self.transforms, x)


class RandomCrop:
    def __init__(self, size: int, padding: int) -> None:
        self.size = size
        self.padding = padding

    def __call__(self, image: Tensor) -> Tensor:
        image = F.pad(image, (self.padding,) * 4, mode="reflect")
        top = int(torch.randint(0, image.shape[-2] - self.size + 1, (1,)))
        left = int(torch.randint(0, image.shape[-1] - self.size + 1, (1,)))
        return image[..., top : top + self.size, left : left + self.size]


class RandomFlip:
    def __call__(self, image: Tensor) -> Tensor:
        return image.flip(-1) if torch.rand(()) < 0.5 else image


class Normalize:
    def __init__(self, mean: list[float], std: list[float]) -> None:
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: Tensor) -> Tensor:
        return image.sub(self.mean).div_(self.std)


class Images(Dataset):
    def __init__(self, transform: Callable[[Tensor], Tensor]) -> None:
        self.data = (torch.arange(6 * 2 * 8 * 8) % 251).to(torch.uint8).view(6, 2, 8, 8)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.transform(self.data[index].float() / 255), "label": index % 3, "name": f"{index:02d}"}


@scripts
def compiled_transforms_in_a_loader(compiled: Compiled) -> Any:
    """Random transforms as callable objects are compiled and run in a shuffling loader."""
    transform = compiled(Compose(RandomCrop(8, 2), RandomFlip(), Normalize([0.5, 0.4], [0.2, 0.3])))
    train, rest = random_split(Images(transform), [4, 2])
    results = []
    for batch in DataLoader(train, batch_size=2, shuffle=True):
        results.append((batch["image"], batch["label"], batch["name"]))
    return results, [rest[index]["name"] for index in range(2)]


class Stream(IterableDataset):
    def __init__(self, transform: Callable[[Tensor], Tensor]) -> None:
        self.transform = transform

    def __iter__(self) -> Iterator[Tensor]:
        for length in (3, 5, 2, 6, 4):
            yield self.transform(torch.arange(float(length)))


class ByLength(Sampler[list[int]]):
    """Batches of indices with similar lengths, each batch below a number of tokens."""

    def __init__(self, lengths: list[int], tokens: int) -> None:
        self.lengths = lengths
        self.tokens = tokens

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in sorted(range(len(self.lengths)), key=self.lengths.__getitem__):
            if batch and self.lengths[index] * (len(batch) + 1) > self.tokens:
                yield batch
                batch = []
            batch.append(index)
        yield batch


@scripts
def batches_of_similar_lengths(compiled: Compiled) -> Any:
    """A stream and a sampler of one's own with a collation that pads, around a compiled attention pooling."""
    score = nn.Linear(1, 1)

    def collate(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(row) for row in rows])
        return nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths

    @compiled
    def pool(x: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        weights = score(x.unsqueeze(-1)).squeeze(-1).masked_fill(~mask, float("-inf")).softmax(-1)
        return (weights * x).sum(-1)

    stream = Stream(compiled(lambda row: row.sqrt() + 1))
    results = [pool(*batch) for batch in DataLoader(stream, batch_size=2, collate_fn=collate)]
    rows = list(stream)
    sampler = ByLength([len(row) for row in rows], 9)
    results += [pool(*batch) for batch in DataLoader(rows, batch_sampler=sampler, collate_fn=collate)]
    return [result.detach() for result in results]


class Metric(nn.Module):
    """The shape of metric libraries: states with defaults, update, compute, reset."""

    def __init__(self) -> None:
        super().__init__()
        self.defaults: dict[str, Any] = {}
        self.updates = 0

    def add_state(self, name: str, default: Any) -> None:
        self.defaults[name] = default
        if isinstance(default, Tensor):
            self.register_buffer(name, default.clone(), persistent=False)
        else:
            setattr(self, name, list(default))

    def reset(self) -> None:
        self.updates = 0
        for name, default in self.defaults.items():
            setattr(self, name, default.clone() if isinstance(default, Tensor) else list(default))

    def forward(self, *args: Tensor) -> Tensor:
        self.updates += 1
        self.update(*args)
        return self.compute()


class AreaUnderCurve(Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("scores", [])
        self.add_state("labels", [])
        self.add_state("total", torch.tensor(0))

    def update(self, scores: Tensor, labels: Tensor) -> None:
        self.scores.append(scores.detach())
        self.labels.append(labels)
        self.total += labels.numel()

    def compute(self) -> Tensor:
        scores, labels = torch.cat(self.scores), torch.cat(self.labels).float()
        labels = labels[scores.argsort(descending=True)]
        hits = torch.cat([torch.zeros(1), labels.cumsum(0)]) / labels.sum()
        alarms = torch.cat([torch.zeros(1), (1 - labels).cumsum(0)]) / (1 - labels).sum()
        return torch.trapezoid(hits, alarms)


@scripts
def metric_with_a_state(compiled: Compiled) -> Any:
    """A metric keeps lists of tensors and a counter, is computed after each batch, and starts again."""
    metric = AreaUnderCurve()
    forward = compiled(metric)
    results = []
    for epoch in range(2):
        for count in (8, 8, 5):
            labels = torch.arange(count) % 2
            results.append((forward(torch.rand(count) + 0.3 * labels, labels), metric.updates, metric.total.item()))
        metric.reset()
    return results, metric.updates, len(metric.scores)


@scripts
def cross_validation(compiled: Compiled) -> Any:
    """Folds of a data set; each has a model of its own, trained by one compiled function."""
    x = torch.randn(12, 3)
    data = TensorDataset(x, (x.sum(1, keepdim=True) > 0).float())

    @compiled
    def fit_batch(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    results = []
    for held_out in torch.randperm(len(data)).chunk(3):
        chosen = sorted(set(range(len(data))) - set(held_out.tolist()))
        model = nn.Linear(3, 1)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.5)
        for indices in BatchSampler(chosen, batch_size=3, drop_last=True):
            results.append(fit_batch(model, optimizer, *data[indices]))
        with torch.no_grad():
            inputs, wanted = data[held_out]
            results.append(((model(inputs) > 0).float() == wanted).float().mean())
    return results
