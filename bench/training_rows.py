"""Rows of `make bench` about training besides the steady state of its steps; bench/training.py measures them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from caches import caches

Worker = Callable[..., Any]
Section = tuple[list[str], list[list[str]], dict[str, Any], str]
CODE = {"magneto": "magneto", "peer": "inductor"}
COMPILED = ("BERT", "Llama", "ResNet-50")
MEASURED = ("BERT", "Llama", "T5", "ViT", "ResNet-50", "Mamba")
# malloc gives back what is free, so that the process is as large as what it holds.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}


def training_compile(worker: Worker, rounds: int) -> Section:
    """Cold and warm compile of a step, batch 1; the joint graph's share of a capture; the partition's time."""
    rows, data = [], {}
    for row in COMPILED:
        cells = [row]
        for name, backend in CODE.items():
            with tempfile.TemporaryDirectory() as folder:
                options = {"backend": backend, "row": row, "batch": 1, "budget": 0.2}
                print(f"  training_compile: {row}, {name}", flush=True)
                runs = [worker("training", name, caches(folder), **options) for _ in range(max(2, rounds))]
            cold, *warm = [run[f"{row}, batch 1"]["compile"] for run in runs]
            data[f"{row}, {name}"] = {"cold": cold, "warm": min(warm)}
            cells += [f"{cold * 1e3:.0f}", f"{min(warm) * 1e3:.0f}"]
        rows.append(cells)
    stages = [worker("joint_stages", "magneto", lengths=[2500, 5000, 10000]) for _ in range(rounds)]
    joint = min(run["joint"] for run in stages)
    partition = {length: min(run["partition"][length] for run in stages) for length in stages[0]["partition"]}
    data["stages"] = {"joint": joint, "partition": partition, "runs": stages}
    ratios = [data[f"{row}, peer"]["cold"] / data[f"{row}, magneto"]["cold"] for row in COMPILED]
    verdict = f"cold: least 1/{min(ratios):.0f} of the peer's (aim: 1/50, none over 0.9 s); a joint graph adds "
    verdict += f"{joint * 1e3:.1f} ms to BERT's capture (aim: 10); partition "
    verdict += ", ".join(f"{seconds * 1e3:.0f} ms of {int(length):,}" for length, seconds in partition.items())
    headers = ["forward + backward, batch 1", *(f"{name} {key} ms" for name in CODE for key in ("cold", "warm"))]
    return headers, rows, data, verdict + " operators (aim: 100 of 10,000)"


def training_overhead(worker: Worker, rounds: int) -> Section:
    aims = {"forward": 1.5, "forward + backward": 3}
    raw: dict[str, list[Any]] = {name: [] for name in CODE}
    for _ in range(rounds):
        for name, backend in CODE.items():
            raw[name].append(worker("training_overhead", name, backend=backend))
    rows, verdicts = [], []
    for part, aim in aims.items():
        cells, added = [part], {}
        for name, runs in raw.items():
            best = min((run[part] for run in runs), key=lambda run: run["call"] - run["eager"])
            added[name] = (best["call"] - best["eager"]) * 1e6
            cells += [f"{best['eager'] * 1e6:.2f}", f"{best['call'] * 1e6:.2f}", f"{added[name]:.2f}"]
        rows.append([*cells, f"{aim:g}"])
        verdicts.append(f"{part} {added['magneto']:.2f} us (aim {aim:g}; peer {added['peer']:.1f})")
    headers = ["x * 2 of four numbers"]
    for name in CODE:
        headers += [f"eager us beside {name}", f"{name} us", f"{name} adds"]
    return [*headers, "aim"], rows, {"runs": raw}, "added to eager's call: " + "; ".join(verdicts)


def training_memory(worker: Worker, rounds: int) -> Section:
    """Of a step, in MB. With a budget of 0.5: what is kept between forward and backward beside what is planned."""
    rows, data = [], {}
    worst, off = 0.0, 0.0
    for row in MEASURED:
        cells = [row]
        for name, share in (("magneto", 1), ("peer", 1), ("magneto", 0.5)):
            options = {"backend": CODE[name], "row": row, "batch": 8, "share": share}
            print(f"  training_memory: {row}, {name}, {share}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                runs = [worker("training_memory", name, {**MALLOC, **caches(folder)}, **options) for _ in range(rounds)]
            best = {key: min(run[key] for run in runs) for key in runs[0]}
            data[f"{row}, {name}, {share}"] = best
            megabytes = {key: value / 2**20 for key, value in best.items()}
            if (name, share) == ("magneto", 1):
                cells += [f"{megabytes['eager peak']:.1f}", f"{megabytes['eager kept']:.1f}"]
                worst = max(worst, best["peak"] / best["eager peak"])
            cells += [f"{megabytes['peak']:.1f}", f"{megabytes['kept']:.1f}"]
            if name == "magneto":
                cells.append(f"{megabytes['planned']:.1f}")
                off = max(off, abs(best["kept"] / best["planned"] - 1)) if share == 0.5 else off
        rows.append(cells)
    headers = ["step, batch 8, MB", "eager peak", "eager kept", "magneto peak", "kept", "planned", "peer peak", "kept"]
    headers += ["magneto peak, budget 0.5", "kept", "planned"]
    verdict = f"a step's peak: at most {worst:.2f} of eager's (aim: 1); at budget 0.5 what is kept is within {off:.0%} "
    return headers, rows, data, verdict + "of the plan (aim: 5%)"


ROWS: dict[str, Callable[[Worker, int], Section]] = {
    "training_compile": training_compile,
    "training_overhead": training_overhead,
    "training_memory": training_memory,
}
