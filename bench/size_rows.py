"""Rows of `make bench` about sizes that vary; bench/sizes.py measures them in the workers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from caches import caches

Worker = Callable[..., Any]
Section = tuple[list[str], list[list[str]], dict[str, Any], str]
CALLS = {"magneto": "aot_eager", "peer": "eager"}
CODE = {"magneto": "magneto", "peer": "inductor"}


def both(worker: Worker, benchmark: str, rounds: int, backends: dict[str, str], **options: Any) -> dict[str, list[Any]]:
    """`rounds` measurements of each framework, in turn, each with empty caches."""
    found: dict[str, list[Any]] = {name: [] for name in backends}
    for _ in range(rounds):
        for name, backend in backends.items():
            print(f"  {benchmark} {' '.join(map(str, options.values()))}: {name}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(worker(benchmark, name, caches(folder), backend=backend, **options))
    return found


def size_guards(worker: Worker, rounds: int) -> Section:
    raw = both(worker, "size_guards", rounds, CALLS)
    best = {name: {kind: min(run[kind] for run in runs) for kind in runs[0]} for name, runs in raw.items()}
    added = {name: (kinds["symbols"] - kinds["numbers"]) * 1e6 for name, kinds in best.items()}
    rows = [
        [name, *(f"{kinds[kind] * 1e6:.2f}" for kind in ("numbers", "symbols")), f"{added[name]:.2f}"]
        for name, kinds in best.items()
    ]
    verdict = f"20 symbols add {added['magneto']:.2f} us to the guards (aim: 1), the peer's {added['peer']:.2f} us"
    return ["guards of 20 tensors", "numbers us", "20 symbols us", "symbols add us"], rows, best, verdict


def decisions(worker: Worker, rounds: int) -> Section:
    runs = [worker("decisions", "magneto", count=100_000) for _ in range(rounds)]
    best = min(runs, key=lambda run: run["seconds"])
    rows = [[f"{best['count']:,}", f"{best['seconds']:.2f}", f"{best['decided']:,}", str(best["wrong"])]]
    verdict = f"100,000 random questions: {best['seconds']:.2f} s (aim: 1), {best['wrong']} of 2,000 unlike brute force"
    return ["questions", "s", "decided", "wrong"], rows, {"runs": runs}, verdict


def reshapes(worker: Worker, rounds: int) -> Section:
    counts = [1000, 5000]
    runs = [worker("reshapes", "magneto", backend="aot_eager", counts=counts) for _ in range(rounds)]
    best = {count: min(run[str(count)] for run in runs) for count in counts}
    rows = [[f"{count:,}", f"{seconds:.2f}", f"{seconds / count * 1e6:.0f}"] for count, seconds in best.items()]
    verdict = f"5,000 symbolic reshapes: {best[5000]:.2f} s (aim: 2)"
    return ["reshapes", "s", "us each"], rows, {"seconds": best}, verdict


def dynamic_compile(worker: Worker, rounds: int) -> Section:
    raw = both(worker, "dynamic_compile", rounds, CODE)
    best = {
        name: {model: {key: min(run[model][key] for run in runs) for key in runs[0][model]} for model in runs[0]}
        for name, runs in raw.items()
    }
    rows, ratios, calls, over = [], [], [], []
    for model in best["magneto"]:
        ours, peer = best["magneto"][model], best["peer"][model]
        ratios.append(ours["dynamic"] / ours["static"])
        calls.append(ours["dynamic call"] / ours["static call"])
        over.append(ours["dynamic call"] / peer["dynamic call"])
        rows.append(
            [model]
            + [f"{one[key]:.2f}" for one in (ours, peer) for key in ("static", "dynamic")]
            + [f"{ratios[-1]:.2f}x", f"{peer['dynamic'] / peer['static']:.2f}x"]
            + [f"{one[f'{key} call'] * 1e3:.2f}" for one in (ours, peer) for key in ("static", "dynamic")]
            + [f"{ours['eager call'] * 1e3:.2f}"]
        )
    headers = ["first call s", "static", "dynamic", "peer static", "peer dynamic", "dynamic/static", "peer's"]
    headers += ["call ms: static", "dynamic", "peer static", "peer dynamic", "eager"]
    verdict = (
        f"dynamic=True: first call {max(ratios):.2f}x of static at most (aim: 1.3); call "
        f"{max(calls):.2f}x of our static code at most (aim: 1.05), "
        f"{max(over):.2f}x of the peer's dynamic code at most (aim: 1.15)"
    )
    return headers, rows, best, verdict


def generation(worker: Worker, rounds: int) -> Section:
    rows, data, verdicts = [], {}, []
    for cache in ("DynamicCache", "StaticCache"):
        raw = both(worker, "generation", rounds, CODE, cache=cache, tokens=200)
        data[cache] = raw
        for name, runs in raw.items():
            best = min(runs, key=lambda run: run["call"])
            row = [cache, name, str(best["captures"]), f"{best['first']:.2f}"]
            rows.append([*row, f"{best['call']:.3f}", f"{best['eager']:.3f}", "yes" if best["same"] else "NO"])
            if name == "magneto":
                faster = best["eager"] / best["call"]
                verdicts.append(f"{cache} {best['captures']} compiles (aim: 3), {faster:.2f}x eager (aim: over 1)")
    headers = ["200 tokens", "framework", "compiles", "first s", "again s", "eager s", "eager's tokens"]
    return headers, rows, data, "; ".join(verdicts)


def lengths(worker: Worker, rounds: int) -> Section:
    raw = both(worker, "lengths", rounds, CODE)
    best = {name: min(runs, key=lambda run: run["again"]) for name, runs in raw.items()}
    rows = [
        [name, str(run["captures"]), f"{run['first']:.2f}", f"{run['again']:.3f}", f"{run['eager']:.3f}"]
        for name, run in best.items()
    ]
    ours = best["magneto"]
    verdict = f"50 lengths: {ours['captures']} compiles (aim: 2), {ours['eager'] / ours['again']:.2f}x eager"
    return ["50 lengths", "compiles", "first s", "again s", "eager s"], rows, raw, verdict


ROWS = {
    "size_guards": size_guards,
    "decisions": decisions,
    "reshapes": reshapes,
    "dynamic_compile": dynamic_compile,
    "generation": generation,
    "lengths": lengths,
}
