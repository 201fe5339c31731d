"""The figures of the project, side by side with torch.compile in one run: `make bench`.

Each measurement runs in its own process (bench/worker.py), the two frameworks in turn, so that a machine that is busy
for a while is so for both. Writes bench/results/<time>.md and .json, and latest.md.

    make bench ARGS="--only import,overhead --rounds 5"
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FRAMEWORKS = ("magneto", "peer")
# Our backend that runs everything from C++, and the peer's that adds the least to a call.
CALL_BACKENDS = {"magneto": "aot_eager", "peer": "eager"}
# Generated code against generated code.
STEADY_BACKENDS = {"magneto": "magneto", "peer": "inductor"}
# A column each: framework, backend and lengths. The peer takes minutes for longer ones.
CHAINS = {
    "magneto, eager": ("magneto", "eager", [1000, 5000, 20000]),
    "magneto, aot_eager": ("magneto", "aot_eager", [1000, 5000, 20000]),
    "peer, eager": ("peer", "eager", [1000, 2000, 5000]),
}


def worker(benchmark: str, framework: str, **options: Any) -> Any:
    """One measurement; fails loudly with what the worker wrote."""
    process = subprocess.run(
        [sys.executable, "-P", str(HERE / "worker.py"), benchmark, framework, json.dumps(options)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if process.returncode:
        raise RuntimeError(f"{benchmark} with {framework} failed:\n{process.stdout}{process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def interleaved(benchmark: str, rounds: int, options: Callable[[str], dict[str, Any]]) -> dict[str, list[Any]]:
    """`rounds` measurements of each framework, in turn."""
    results: dict[str, list[Any]] = {framework: [] for framework in FRAMEWORKS}
    for number in range(rounds):
        for framework in FRAMEWORKS:
            print(f"  {benchmark}: round {number + 1} of {rounds}, {framework}", flush=True)
            results[framework].append(worker(benchmark, framework, **options(framework)))
    return results


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


Section = tuple[list[str], list[list[str]], dict[str, Any], str]
"""Headers, rows, what goes into the JSON, and one line that states the figure against its aim."""


def bench_import(rounds: int) -> Section:
    rounds = max(5, rounds)
    raw = interleaved("import", rounds, lambda framework: {})
    medians = {name: statistics.median(run["seconds"] for run in runs) for name, runs in raw.items()}
    rows = [[name, str(rounds), f"{medians[name] * 1e3:.1f}"] for name in FRAMEWORKS]
    verdict = f"import after torch: {medians['magneto'] * 1e3:.1f} ms, peer {medians['peer'] * 1e3:.0f} ms (aim: 30 ms)"
    return ["framework", "imports", "median ms"], rows, {"seconds": medians}, verdict


def bench_first_call(rounds: int) -> Section:
    raw = interleaved("first_call", rounds, lambda framework: {"repeats": 1})
    added: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for framework, runs in raw.items():
        added[framework] = {}
        for model in runs[0]:
            firsts = [value for run in runs for value in run[model]["first"]]
            eagers = [value for run in runs for value in run[model]["eager"]]
            added[framework][model] = max(1e-6, statistics.median(firsts) - statistics.median(eagers))
            counts[framework] = len(firsts)
    ratios = {model: added["peer"][model] / added["magneto"][model] for model in added["magneto"]}
    mean = geomean(ratios.values())
    rows = [
        [model, *(f"{added[framework][model] * 1e3:.1f}" for framework in FRAMEWORKS), f"{ratio:.1f}x"]
        for model, ratio in ratios.items()
    ]
    rows.append(["geometric mean", "", "", f"{mean:.1f}x"])
    data = {"seconds": added, "ratios": ratios, "geomean": mean, "counts": counts}
    verdict = f"first call minus an eager call, backend eager: 1/{mean:.1f} of the peer's (aim: 1/20)"
    return ["model (4 layers)", "magneto ms", "peer ms", "ratio"], rows, data, verdict


def bench_overhead(rounds: int) -> Section:
    aims = {"x + 1": 1.0, "40 tensor arguments": 5.0, "100 layers": 30.0}
    own_runs = [worker("operators", "none")]
    raw = interleaved("overhead", rounds, lambda framework: {"backend": CALL_BACKENDS[framework]})
    own_runs.append(worker("operators", "none"))
    rows, data, verdicts = [], {}, []
    for program, aim in aims.items():
        own = min(run[program] for run in own_runs)
        calls = {name: statistics.median(run[program]["call"] for run in runs) for name, runs in raw.items()}
        eager = statistics.median(run[program]["eager"] for runs in raw.values() for run in runs)
        micro = {name: (value - own) * 1e6 for name, value in calls.items()}
        rows.append(
            [program, f"{own * 1e6:.2f}", f"{eager * 1e6:.2f}"]
            + [f"{calls[name] * 1e6:.2f}" for name in FRAMEWORKS]
            + [f"{micro[name]:.2f}" for name in FRAMEWORKS]
            + [f"{aim:g}"]
        )
        data[program] = {"own": own, "eager": eager, "call": calls, "rounds": rounds}
        verdicts.append(f"{program} {micro['magneto']:.1f} us (aim {aim:g}; peer {micro['peer']:.1f})")
    headers = ["program", "operators us", "eager us", "magneto us", "peer us", "magneto adds", "peer adds", "aim"]
    return headers, rows, data, "cost added per call: " + "; ".join(verdicts)


def bench_chained(rounds: int) -> Section:
    runs: dict[str, list[dict[str, float]]] = {column: [] for column in CHAINS}
    for number in range(rounds):
        for column, (framework, backend, lengths) in CHAINS.items():
            print(f"  chained: round {number + 1} of {rounds}, {column}", flush=True)
            runs[column].append(worker("chained", framework, backend=backend, lengths=lengths))
    medians = {
        column: {int(length): statistics.median(run[length] for run in of_column) for length in of_column[0]}
        for column, of_column in runs.items()
    }
    rows = []
    for length in sorted({length for column in medians.values() for length in column}):
        row = [f"{length:,}"]
        for column in CHAINS:
            seconds = medians[column].get(length)
            row += [f"{seconds:.3f}", f"{seconds / length * 1e6:.1f}"] if seconds is not None else ["", ""]
        rows.append(row)
    growth = {
        column: (values[20000] / 20000) / (values[1000] / 1000) for column, values in medians.items() if 20000 in values
    }
    verdict = "5,000 chained adds (aim: 0.3 s): " + "; ".join(
        f"{column} {values[5000]:.3f} s" for column, values in medians.items()
    )
    verdict += ". Cost per add at 20,000 against 1,000 (linear: 1): " + "; ".join(
        f"{column} {value:.2f}" for column, value in growth.items()
    )
    headers = ["adds"]
    for column in CHAINS:
        headers += [f"{column}: s", "us per add"]
    return headers, rows, {"seconds": medians, "growth": growth, "rounds": rounds}, verdict


def bench_steady(kind: str) -> Callable[[int], Section]:
    def bench(rounds: int) -> Section:
        raw = interleaved("steady", rounds, lambda framework: {"backend": STEADY_BACKENDS[framework], "kind": kind})
        rows, data, over_eager, over_peer = [], {}, [], []
        for program in raw["magneto"][0]:
            times = {name: statistics.median(run[program]["call"] for run in runs) for name, runs in raw.items()}
            firsts = {name: statistics.median(run[program]["first"] for run in runs) for name, runs in raw.items()}
            eager = statistics.median(run[program]["eager"] for runs in raw.values() for run in runs)
            over_eager.append(eager / times["magneto"])
            over_peer.append(times["peer"] / times["magneto"])
            rows.append(
                [program, f"{eager * 1e6:.1f}"]
                + [f"{times[name] * 1e6:.1f}" for name in FRAMEWORKS]
                + [f"{over_eager[-1]:.2f}x", f"{over_peer[-1]:.2f}x"]
                + [f"{firsts[name] * 1e3:.0f}" for name in FRAMEWORKS]
            )
            data[program] = {"eager": eager, "call": times, "first": firsts}
        headers = [
            kind,
            "eager us",
            "magneto us",
            "peer us",
            "over eager",
            "over peer",
            "magneto first ms",
            "peer first ms",
        ]
        verdict = (
            f"steady state, {kind}: {geomean(over_eager):.2f}x eager, {geomean(over_peer):.2f}x the peer (geomeans)"
        )
        return headers, rows, data, verdict

    return bench


BENCHMARKS: dict[str, Callable[[int], Section]] = {
    "import": bench_import,
    "overhead": bench_overhead,
    "chained": bench_chained,
    "first_call": bench_first_call,
    "patterns": bench_steady("patterns"),
    "models": bench_steady("models"),
}


def markdown(headers: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(headers)} |", "|" + "---|" * len(headers)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"comma-separated: {', '.join(BENCHMARKS)}")
    parser.add_argument("--rounds", type=int, default=3, help="processes per framework (default 3)")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else list(BENCHMARKS)
    if unknown := set(chosen) - set(BENCHMARKS):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; valid: {', '.join(BENCHMARKS)}")

    import torch

    import magneto

    now = datetime.datetime.now().astimezone()
    machine = {
        "time": now.isoformat(timespec="seconds"),
        "magneto": magneto.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    text = [
        "# Magneto beside torch.compile",
        "",
        f"{machine['time']}; Magneto {machine['magneto']}, PyTorch {machine['torch']}, CPython {machine['python']}, "
        f"{machine['cores']} cores, load {machine['load']:.1f} at the start, one thread each. Medians.",
    ]
    results: dict[str, Any] = {"machine": machine}
    for name in chosen:
        print(f"{name}:", flush=True)
        headers, rows, data, verdict = BENCHMARKS[name](arguments.rounds)
        results[name] = data
        text += ["", f"## {name}", "", verdict, "", *markdown(headers, rows)]
        print("\n".join(["", *markdown(headers, rows), "", verdict, ""]), flush=True)

    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    stem = folder / now.strftime("%Y-%m-%d-%H%M%S")
    stem.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")
    for path in (stem.with_suffix(".md"), folder / "latest.md"):
        path.write_text("\n".join(text) + "\n")
    print(f"written: {stem.relative_to(HERE.parent)}.md and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
