"""Rows of `make bench` about guards and side exits; bench/exits.py measures them in the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Worker = Callable[..., Any]
Section = tuple[list[str], list[list[str]], dict[str, Any], str]
BACKENDS = {"magneto": "aot_eager", "peer": "eager"}


def both(worker: Worker, benchmark: str, rounds: int, backends: bool = True) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in BACKENDS}
    for _ in range(rounds):
        for name, backend in BACKENDS.items():
            print(f"  {benchmark}: {name}", flush=True)
            found[name].append(worker(benchmark, name, **({"backend": backend} if backends else {})))
    return found


def us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}"


def another_entry(worker: Worker, rounds: int) -> Section:
    raw = both(worker, "another_entry", rounds)
    rows, verdicts, data = [], [], {}
    for program in raw["magneto"][0]:
        cells = [program]
        for name, runs in raw.items():
            hit = min(run[program]["hit"] for run in runs)
            added = min(run[program]["added"] for run in runs)
            data[f"{program}, {name}"] = {"hit": hit, "another": added}
            cells += [us(hit), us(added)]
            if name == "magneto":
                verdicts.append(f"{program} {us(added)} us more")
        rows.append(cells)
    headers = ["program"]
    for name in raw:
        headers += [f"{name}: first entry us", "another adds"]
    return headers, rows, data, "a failing guard, another entry (aim: 2 us more): " + ", ".join(verdicts)


def loop(worker: Worker, rounds: int) -> Section:
    raw = both(worker, "loop", rounds)
    rows, verdicts = [], []
    for program in raw["magneto"][0]:
        turn = {name: min(run[program]["call"] for run in runs) for name, runs in raw.items()}
        eager = min(run[program]["eager"] for runs in raw.values() for run in runs)
        segments = [str(runs[0][program]["segments"]) for runs in raw.values()]
        rows.append([program, us(eager), us(turn["magneto"]), us(turn["peer"]), *segments])
        verdicts.append(f"{program}: eager {us(turn['magneto'] - eager)} us more, peer {us(turn['peer'] - eager)}")
    headers = ["side exit", "eager us a turn", "magneto us a turn", "peer us a turn", "captures", "peer: captures"]
    verdict = "1,000 turns with a side exit (aim: each segment once, 5 us a turn, faster than the peer): "
    return headers, rows, raw, verdict + "; ".join(verdicts)


def depth(worker: Worker, rounds: int) -> Section:
    raw = both(worker, "depth", rounds, backends=False)
    best = {name: {int(d): min(run[d] for run in runs) for d in runs[0]} for name, runs in raw.items()}
    rows = [[str(d), *(f"{best[name][d] * 1e3:.2f}" for name in best)] for d in best["magneto"]]

    def growth(times: dict[int, float]) -> float:
        """Time of the last four levels over that of four in the middle: 1 where it grows linearly."""
        return (times[12] - times[8]) / (times[8] - times[4])

    verdict = "breaks 1 to 12 calls deep, time per level at 8-12 over 4-8 (linear: 1): " + ", ".join(
        f"{name} {growth(times):.2f}" for name, times in best.items()
    )
    return ["depth", "magneto ms", "peer ms"], rows, best, verdict


def module_guards(worker: Worker, rounds: int) -> Section:
    raw = both(worker, "module_guards", rounds)
    best = {name: {key: min(run[key] for run in runs) for key in ("hot", "cold")} for name, runs in raw.items()}
    rows = [[name, us(times["hot"]), us(times["cold"])] for name, times in best.items()]
    verdict = (
        f"guards of 48 layers, {raw['magneto'][0]['parameters']} parameters: {us(best['magneto']['hot'])} us hot "
        f"(aim 20), {us(best['magneto']['cold'])} us cache-cold (aim 100); peer {us(best['peer']['hot'])} and "
        f"{us(best['peer']['cold'])}"
    )
    return ["framework", "hot us", "cache-cold us"], rows, best, verdict


ROWS: dict[str, Callable[[Worker, int], Section]] = {
    "another_entry": another_entry,
    "loop": loop,
    "depth": depth,
    "module_guards": module_guards,
}
