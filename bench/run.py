"""The figures of the project, side by side with torch.compile in one run: `make bench`.

Each measurement runs in its own process (bench/worker.py), the two frameworks in turn, so that a machine that is busy
for a while is so for both. Writes bench/results/<time>.md and .json, and latest.md.

    make bench ARGS="--only import,overhead --rounds 5"
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import breaks
import exit_rows
import size_rows
import training_rows
from caches import caches

FRAMEWORKS = ("magneto", "peer")
# Ours keeps weights in the layouts of the libraries by default, and notices when they change; the peer does so with its
# setting `freezing`, for weights that never change. Models are compared with both.
STEADY_FRAMEWORKS = {
    "patterns": FRAMEWORKS,
    "attention_patterns": FRAMEWORKS,
    "models": (*FRAMEWORKS, "frozen"),
    "training": FRAMEWORKS,
    "training_patterns": FRAMEWORKS,
    "steps": FRAMEWORKS,
}
MORE_ROWS = {**exit_rows.ROWS, **size_rows.ROWS, **training_rows.ROWS}
# Our backend that runs everything from C++, and the peer's that adds the least to a call.
CALL_BACKENDS = {"magneto": "aot_eager", "peer": "eager"}
# Generated code against generated code.
STEADY_BACKENDS = {"magneto": "magneto", "peer": "inductor", "frozen": "inductor"}
# Of the steady state: all, unless told.
CHOSEN_ROWS: list[str] = []
CHOSEN_THREADS = [1, 2]
CHOSEN_BATCHES: list[int] = []
# A folder in which the frameworks' caches stay: for the time of a call alone, without the minutes that the peer takes.
KEPT_CACHES: list[str] = []
# Of the breaks: the peer needs seconds for a model.
WITH_PEER = [True]
# A column each: framework, backend and lengths. The peer takes minutes for longer ones.
CHAINS = {
    "magneto, eager": ("magneto", "eager", [1000, 5000, 20000]),
    "magneto, aot_eager": ("magneto", "aot_eager", [1000, 5000, 20000]),
    "peer, eager": ("peer", "eager", [1000, 2000, 5000]),
}


def worker(benchmark: str, framework: str, environment: dict[str, str] | None = None, **options: Any) -> Any:
    """One measurement; fails loudly with what the worker wrote."""
    process = subprocess.run(
        [sys.executable, "-P", str(HERE / "worker.py"), benchmark, framework, json.dumps(options)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
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


def shown(value: float, unit: float, digits: int = 1) -> float:
    """A time as a table shows it: ratios are made of such numbers, so that they follow from the columns."""
    return round(value * unit, digits)


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
            steadies = [value for run in runs for value in run[model]["steady"]]
            added[framework][model] = shown(statistics.median(firsts) - statistics.median(steadies), 1e3) / 1e3
            counts[framework] = len(firsts)
    ratios = {model: added["peer"][model] / added["magneto"][model] for model in added["magneto"]}
    mean = geomean(ratios.values())
    rows = [
        [model, *(f"{added[framework][model] * 1e3:.1f}" for framework in FRAMEWORKS), f"{ratio:.1f}x"]
        for model, ratio in ratios.items()
    ]
    rows.append(["geometric mean", "", "", f"{mean:.1f}x"])
    data = {"seconds": added, "ratios": ratios, "geomean": mean, "counts": counts}
    verdict = f"first call minus a later one, backend eager: 1/{mean:.1f} of the peer's (aim: 1/20)"
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


def bench_long_graph(rounds: int) -> Section:
    lengths = [2500, 5000, 10000]
    options = {"backend": STEADY_BACKENDS["magneto"], "lengths": lengths}
    runs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(worker("long_graph", "magneto", {"MAGNETO_CACHE_DIR": folder}, **options))
    seconds = {length: min(run[str(length)] for run in runs) for length in lengths}
    rows = [[f"{length:,}", f"{value:.2f}", f"{value / length * 1e6:.0f}"] for length, value in seconds.items()]
    growth = seconds[10000] / 10000 / (seconds[2500] / 2500)
    verdict = f"10,000 operators, compiled: {seconds[10000]:.2f} s (aim: 10), {growth:.2f} of the cost of each at 2,500"
    return ["operators", "s", "us each"], rows, {"seconds": seconds, "growth": growth}, verdict


def bench_bandwidth(rounds: int) -> Section:
    rows, data, shares = [], {}, []
    for threads in CHOSEN_THREADS:
        runs = [worker("bandwidth", "magneto", {"OMP_NUM_THREADS": str(threads)}) for _ in range(rounds)]
        data[threads] = runs
        for name in runs[0]["programs"]:
            best = min((run["programs"][name] for run in runs), key=lambda row: row["call"])
            ours, copy, eager = (shown(best[key], 1e3, 2) for key in ("call", "copy", "eager"))
            share = best["passes"] * copy / 2 / ours
            shares.append(share)
            rows.append([name, str(threads), f"{best['passes']}", f"{ours:.2f}", f"{copy:.2f}", f"{eager:.2f}"])
            rows[-1] += [f"{share:.0%}", f"{eager / ours:.2f}x", f"{best['compile'] * 1e3:.0f}"]
    copies = {threads: max(run["copy"] for run in runs) for threads, runs in data.items()}
    text = ", ".join(f"{copy / 1e9:.1f} GB/s with {threads} thread(s)" for threads, copy in copies.items())
    verdict = f"bandwidth used, of a copy's ({text}; aim: 80%): least {min(shares):.0%}"
    headers = ["program, 64 MB", "threads", "times 64 MB", "ms", "copy ms", "eager ms", "of copy", "over eager"]
    return [*headers, "compile ms"], rows, {"runs": data}, verdict


def bench_layouts(rounds: int) -> Section:
    """One process: eager and ours take turns in it. A row is as fast as in its best round."""
    runs = [worker("layouts", "magneto") for _ in range(max(1, rounds // 3))]
    ratios: dict[str, float] = {}
    for run in runs:
        for name, row in run.items():
            ratios[name] = max(ratios.get(name, 0), row["eager"] / row["call"])
    slow = [name for name, ratio in ratios.items() if ratio < 0.97]
    rows = []
    for name in sorted(ratios, key=lambda name: ratios[name])[:40]:
        best = max((run[name] for run in runs), key=lambda row: row["eager"] / row["call"])
        rows.append([name, f"{best['eager'] * 1e6:.0f}", f"{best['call'] * 1e6:.0f}", f"{ratios[name]:.2f}x"])
    verdict = f"{len(ratios)} layouts, reductions and dtypes: {geomean(ratios.values()):.2f}x eager (geomean), "
    verdict += f"least {min(ratios.values()):.2f}x, {len(slow)} under 0.97x (aim: none). The slowest are shown."
    return ["program", "eager us", "magneto us", "over eager"], rows, {"runs": runs}, verdict


def kept_folder() -> contextlib.AbstractContextManager[str]:
    return contextlib.nullcontext(KEPT_CACHES[0]) if KEPT_CACHES else tempfile.TemporaryDirectory()


def measured(framework: str, threads: int, folder: str, **options: Any) -> Any:
    """A steady-state measurement with the framework's caches in `folder`."""
    environment = {"OMP_NUM_THREADS": str(threads), **caches(folder)}
    name = options["kind"]
    if name in ("training", "training_patterns", "steps"):
        del options["kind"]
    else:
        name = "steady"
    return worker(name, framework, environment, backend=STEADY_BACKENDS[framework], **options)


def bench_steady(kind: str) -> Callable[[int], Section]:
    """Cold: the first call in a process with empty caches; warm: in the next process. Both without an eager call."""

    def bench(rounds: int) -> Section:
        import training_steps
        from steady_models import BATCHES, MODELS

        def processes(framework: str, threads: int) -> int:
            """The first compiles with empty caches, others find them full. That is shown of the first number of
            threads, and not of the peer with frozen weights. Patterns, which are short, have them all: whether malloc
            keeps what eager frees differs from process to process, and a call of 0.4 ms takes 1.3 where it does not."""
            if KEPT_CACHES or (
                not kind.endswith("patterns") and (framework == "frozen" or threads != CHOSEN_THREADS[0])
            ):
                return 1
            return max(2, rounds)

        rows = [("", 0)] if kind.endswith("patterns") else [(row, batch) for row in MODELS for batch in BATCHES]
        if kind == "steps":
            rows = [(row, 0) for row in training_steps.ROWS]
        if CHOSEN_ROWS:
            chosen = [(row, batch) for row, batch in rows if row.partition(",")[0] in CHOSEN_ROWS]
            rows = chosen or [(",".join(CHOSEN_ROWS), 0)]
        if CHOSEN_BATCHES:
            endings = tuple(f"batch {batch}" for batch in CHOSEN_BATCHES)
            rows = [(row, batch) for row, batch in rows if batch in CHOSEN_BATCHES or row.endswith(endings)]
        found: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
        for row, batch in rows:
            for threads in CHOSEN_THREADS:
                for framework in STEADY_FRAMEWORKS[kind]:
                    print(f"  {kind}: {row} {batch or ''} {framework}, {threads} thread(s)", flush=True)
                    with kept_folder() as folder:
                        given = {"kind": kind, "row": row, "batch": batch, "budget": 1.0}
                        count = processes(framework, threads)
                        runs = [measured(framework, threads, folder, **given) for _ in range(count)]
                    for name in runs[0]:
                        of = [run[name] for run in runs]
                        best = min(of, key=lambda run: run["call"])
                        print(
                            f"    {best['call'] * 1e3:.2f} ms (eager {best['eager'] * 1e3:.2f}), "
                            f"compiled in {of[0]['compile']:.2f} s",
                            flush=True,
                        )
                        found.setdefault((name, threads), {})[framework] = {
                            "cold": of[0]["compile"],
                            "warm": min((run["compile"] for run in of[1:]), default=None),
                            "call": min(run["call"] for run in of),
                            "eager": min(run["eager"] for run in of),
                            "memory": of[0]["memory"],
                            "held": of[0]["held"],
                            "peak": min(run["peak"] for run in of),
                            "eager peak": min(run["eager peak"] for run in of),
                        }
        return steady_section(kind, found)

    return bench


def geomean_text(values: list[float | None]) -> str:
    """Of the rows in which a first call took longer than a later one, to the digit that the tables show."""
    known = [value for value in values if value is not None]
    missing = f" without {len(values) - len(known)} rows" if len(known) < len(values) else ""
    return (f"1/{geomean(known):.0f}" if known else "unknown") + missing


def steady_section(kind: str, found: dict[tuple[str, int], dict[str, dict[str, Any]]]) -> Section:
    """Each ratio is made of the numbers beside it, as they are shown."""
    rows, data = [], {}
    peers = [framework for framework in STEADY_FRAMEWORKS[kind] if framework != "magneto"]
    over: dict[str, list[float]] = {framework: [] for framework in ("eager", *peers)}
    compiles: dict[str, list[float | None]] = {"cold": [], "warm": []}
    worst: dict[str, float] = {"cold": 0, "warm": 0}
    for (name, threads), of in found.items():
        # A framework's call relative to eager's in its own process, where the two took turns.
        times = {
            framework: [shown(of[framework][key], 1e6) for key in ("eager", "call")]
            for framework in ("magneto", *peers)
        }
        gains = {framework: eager / call for framework, (eager, call) in times.items()}
        over["eager"].append(gains["magneto"])
        for framework in peers:
            over[framework].append(gains["magneto"] / gains[framework])
        row = [name, str(threads), *(f"{value:.1f}" for pair in times.values() for value in pair)]
        row += [f"{gain:.2f}x" for gain in gains.values()] + [f"{over[framework][-1]:.2f}x" for framework in peers]
        for key in ("cold", "warm"):
            if any(of[framework][key] is None for framework in FRAMEWORKS):
                row += ["-"] * 3
                continue
            ours, theirs = (shown(of[framework][key], 1e3) for framework in FRAMEWORKS)
            compiles[key].append(theirs / ours if ours > 0 else None)
            worst[key] = max(worst[key], of["magneto"][key])
            row += [f"{ours:.1f}", f"{theirs:.1f}", f"1/{theirs / ours:.0f}" if ours > 0 else "-"]
        row += [f"{(of[framework]['memory'] - of[framework]['held']) / 2**20:.0f}" for framework in FRAMEWORKS]
        row += [f"{of['magneto']['held'] / 2**20:.0f}"]
        peaks = (of["magneto"]["peak"], of["peer"]["peak"], of["magneto"]["eager peak"])
        rows.append(row + [f"{value / 2**20:.0f}" for value in peaks])
        data[f"{name}, {threads} threads"] = of
    means = {key: geomean(values) for key, values in over.items()}
    headers = [kind, "threads"]
    for framework in ("magneto", *peers):
        headers += [f"eager us beside {framework}", f"{framework} us"]
    headers += [f"{framework} over eager" for framework in ("magneto", *peers)]
    headers += [f"over {framework}" for framework in peers]
    headers += ["cold ms", "peer cold ms", "cold of peer's", "warm ms", "peer warm ms", "warm of peer's"]
    headers += ["MB", "peer MB", "held MB", "call MB", "peer call MB", "eager call MB"]
    verdict = f"steady state, {kind}: {means['eager']:.2f}x eager (least {min(over['eager']):.2f}), " + ", ".join(
        f"{means[framework]:.2f}x {framework} (least {min(over[framework]):.2f})" for framework in peers
    )
    for key in ("cold", "warm"):
        verdict += f"; {key} compile {geomean_text(compiles[key])} of the peer's (most {worst[key]:.2f} s)"
    return headers, rows, {"rows": data, "means": means}, verdict + ". Geomeans; results of each row were checked."


BENCHMARKS: dict[str, Callable[[int], Section]] = {
    "import": bench_import,
    "overhead": bench_overhead,
    "chained": bench_chained,
    "first_call": bench_first_call,
    "patterns": bench_steady("patterns"),
    "attention_patterns": bench_steady("attention_patterns"),
    "models": bench_steady("models"),
    "training": bench_steady("training"),
    "training_patterns": bench_steady("training_patterns"),
    "steps": bench_steady("steps"),
    "long_graph": bench_long_graph,
    "bandwidth": bench_bandwidth,
    "layouts": bench_layouts,
    **{name: lambda rounds, row=row: row(worker, rounds) for name, row in MORE_ROWS.items()},
    **{f"breaks_{kind}": lambda _, kind=kind: breaks.compare(kind, WITH_PEER[0]) for kind in breaks.KINDS},
}


def markdown(headers: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(headers)} |", "|" + "---|" * len(headers)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"comma-separated: {', '.join(BENCHMARKS)}")
    parser.add_argument("--rows", help="of patterns, models and steps, comma-separated")
    parser.add_argument("--batches", help="of models and their steps (default 1,8)")
    parser.add_argument("--threads", help="of patterns, models and steps (default 1,2)")
    parser.add_argument("--caches", help="a folder for the frameworks' caches, kept: cold and warm mean nothing then")
    parser.add_argument("--no-peer", action="store_true", help="of the breaks: ours alone")
    parser.add_argument("--rounds", type=int, default=3, help="processes per framework (default 3)")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else list(BENCHMARKS)
    if unknown := set(chosen) - set(BENCHMARKS):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; valid: {', '.join(BENCHMARKS)}")

    CHOSEN_ROWS.extend(arguments.rows.split(",") if arguments.rows else [])
    KEPT_CACHES.extend([arguments.caches] if arguments.caches else [])
    WITH_PEER[0] = not arguments.no_peer
    if arguments.batches:
        CHOSEN_BATCHES.extend(map(int, arguments.batches.split(",")))
    if arguments.threads:
        CHOSEN_THREADS[:] = map(int, arguments.threads.split(","))

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
        f"{machine['cores']} cores, load {machine['load']:.1f} at the start, one thread unless said.",
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
