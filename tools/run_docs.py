"""Runs the code blocks of the pages, and compares what they print with what the pages say: `run_docs.py [pages]`.

    python tools/run_docs.py                        # README.md and all of docs/
    python tools/run_docs.py --write docs/faq.md    # puts there what the blocks print now

Blocks are fenced. What each is follows from its language:

- `python`: run, in one namespace per page, from top to bottom. With `title="name.py"` it is a file of that name, in the
  page's own empty folder, for commands to use.
- `console`: lines that begin with `$ ` are commands, run in that folder; what stands below one is what it prints.
- `output`: what the `python` block above it prints. An exception that it ends with is a line, as of a traceback.
- Any other language is no program (a graph, a table, a part of a file), and is not run.

`...` in an output stands for any text. Addresses and times that a machine measures are written so. A block that can't
be run here says why in a comment in front of it: `<!-- not run: installs packages -->`.

Each page is a process of its own, forked from one that has torch and magneto loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import linecache
import multiprocessing
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w+-]*)(?P<info>[^\n`]*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_NOT_RUN = re.compile(r"^\s*<!-- not run: (.+) -->$")
_SECONDS = 120  # of one command
# What PyTorch's profiler writes where it has been forked, or is watched.
_NOISE = re.compile(r"^(USDT:|ERROR: External init callback).*\n", re.MULTILINE)

# What differs from run to run, as it is written into pages.
_VARYING = (
    (re.compile(r"0x[0-9a-f]{6,}"), "0x..."),
    (re.compile(r"\b\d+\.\d+ (ms|us|µs|s|MB)\b"), r"... \1"),
    (re.compile(r"(magneto_error|pid)_\d+(_\d+)?"), r"\1_..."),
    (re.compile(r"^[A-Z]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ", re.MULTILINE), "... "),
)


@dataclasses.dataclass
class Block:
    """A fenced block: lines `first` to `last` of the page are its content, counted from 0."""

    language: str
    title: str
    not_run: str
    first: int
    last: int  # excluded
    indent: int
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclasses.dataclass
class Result:
    """What came of a page."""

    page: str
    problems: list[str] = dataclasses.field(default_factory=list)
    differences: list[str] = dataclasses.field(default_factory=list)  # of outputs
    changes: list[tuple[int, int, list[str]]] = dataclasses.field(default_factory=list)  # first line, last, what it is
    run: int = 0  # blocks
    not_run: int = 0
    seconds: float = 0.0


def pages() -> list[Path]:
    """README.md and the pages of docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if not fence:
            at += 1
            continue
        indent = len(fence["indent"])
        end = next((i for i in range(at + 1, len(lines)) if lines[i].strip() == "```"), len(lines))
        title = _TITLE.search(fence["info"])
        reason = _NOT_RUN.match(lines[at - 1]) if at else None
        content = [line[indent:] for line in lines[at + 1 : end]]
        not_run = reason[1] if reason else ""
        found.append(Block(fence["language"], title[1] if title else "", not_run, at + 1, end, indent, content))
        at = end + 1
    return found


def indented_blocks(text: str) -> Iterator[int]:
    """Lines (from 1) at which code begins that is no fenced block: nobody could tell what it is."""
    inside, previous, listed = False, "", False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        if not inside:
            if re.match(r"\s*([-*+]|\d+\.) ", line):
                listed = True
            elif line.strip() and not line.startswith(" "):
                listed = False
            if line.startswith("    ") and not previous.strip() and not listed:
                yield number
        previous = line


def matches(expected: str, got: str) -> bool:
    """Whether an output is what the page says, where `...` is any text."""
    pattern = ".*".join(re.escape(part) for part in expected.rstrip().split("..."))
    return re.fullmatch(pattern, got.rstrip(), re.DOTALL) is not None


def written(text: str) -> list[str]:
    """An output as it is put into a page."""
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return [line.rstrip() for line in text.rstrip().splitlines()]


class Page:
    """Runs one page's blocks. For a process of its own: changes its folder and its output."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.name = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
        self.blocks = blocks(page.read_text())
        self.folder = folder
        self.result = Result(self.name)
        self.main = types.ModuleType("__main__")
        # Relative: tables are as wide as the name that they show.
        self.source = Path(f"{page.stem.lower().replace('-', '_')}.py")
        self.source_lines: list[str] = []

    def run(self) -> Result:
        os.chdir(self.folder)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[attr-defined]  # in order with what else is written
        sys.modules["__main__"] = self.main
        sys.path.insert(0, str(self.folder))
        for index, block in enumerate(self.blocks):
            after = self.blocks[index + 1] if index + 1 < len(self.blocks) else None
            if block.language in ("python", "console") and block.not_run:
                self.result.not_run += 1
            elif block.language == "python" and block.title:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.text + "\n")
            elif block.language == "python":
                self.result.run += 1
                self._python(block, after if after and after.language == "output" else None)
            elif block.language == "console":
                self.result.run += 1
                self._console(block)
        return self.result

    def _python(self, block: Block, output: Block | None) -> None:
        begin = len(self.source_lines)
        self.source_lines += [*block.lines, ""]
        self.source.write_text("\n".join(self.source_lines))
        linecache.checkcache(str(self.source))
        raised = ""
        with captured() as text:
            try:
                code = compile("\n" * begin + block.text, str(self.source), "exec")
                exec(code, vars(self.main))
            except Exception as error:
                raised = "".join(traceback.format_exception_only(error))
                if output is None or type(error).__name__ not in output.text:
                    traceback.print_exc()
                    output = None
        got = self._cleaned(text() + (raised if output is not None else ""))
        if output is None:
            if raised or got.strip():
                what = "raises" if raised else "prints, and no ```output block follows"
                self._problem(block.first, f"{what}:\n{got}")
        elif not matches(output.text, got):
            self._differs(output, output.first, output.last, output.text, got)

    def _console(self, block: Block) -> None:
        starts = [i for i, line in enumerate(block.lines) if line.startswith("$ ")]
        if not starts or starts[0] != 0:
            self._problem(block.first, "a console block begins with `$ command`")
        for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
            body = start + 1
            command = block.lines[start][2:]
            while command.endswith("\\"):
                command = command[:-1] + block.lines[body].removeprefix("> ")
                body += 1
            expected = "\n".join(block.lines[body:end])
            done = subprocess.run(
                ["bash", "-c", command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_SECONDS,
                env=self._environment(),
            )
            got = self._cleaned(done.stdout)
            if not matches(expected, got):
                self._differs(block, block.first + body, block.first + end, expected, got)

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        names = ("HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "OMP_NUM_THREADS", "PYTHONPATH")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        cache = str(self.folder / ".cache")
        return {**kept, "PATH": path, "COLUMNS": "100", "TERM": "dumb", "MAGNETO_CACHE_DIR": cache}

    def _cleaned(self, text: str) -> str:
        text = _NOISE.sub("", text)
        packages = sysconfig.get_path("purelib")
        for folder in (str(self.folder), os.path.realpath(self.folder), packages, str(ROOT)):
            text = text.replace(folder + "/", "").replace(folder, ".")
        return "\n".join(line.rstrip() for line in text.splitlines())

    def _problem(self, line: int, text: str) -> None:
        self.result.problems.append(f"{self.name}:{line}: {text}")

    def _differs(self, block: Block, first: int, last: int, expected: str, got: str) -> None:
        indent = " " * block.indent
        self.result.changes.append((first, last, [indent + line if line else "" for line in written(got)]))
        text = f"{self.name}:{first + 1}: the page says\n{expected}\n--- and it prints\n{got}"
        self.result.differences.append(text)


@contextlib.contextmanager
def captured() -> Iterator[object]:
    """Standard output and error of this process in the block, in one text; gives a function that has it afterwards."""
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        result: list[str] = []
        try:
            yield lambda: result[0]
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, old in zip((1, 2), kept, strict=True):
                os.dup2(old, descriptor)
                os.close(old)
            file.seek(0)
            result.append(file.read().decode(errors="replace"))


def run_page(page: str) -> dict[str, Any]:
    """Runs a page in this process, in an empty folder; gives the fields of a Result, whose class the page hides."""
    begin = time.perf_counter()
    # No `magneto` in the folder's name: reports would take it for the package's.
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        os.environ.update({"MAGNETO_CACHE_DIR": f"{folder}/.cache", "COLUMNS": "100"})
        import magneto

        magneto.config.disk_cache_dir = f"{folder}/.cache"
        result = Page(Path(page), Path(folder)).run()
        os.chdir(ROOT)
    result.seconds = time.perf_counter() - begin
    return dataclasses.asdict(result)


def run(chosen: list[Path], jobs: int) -> list[Result]:
    """Runs pages, so many at a time."""
    import torch

    import magneto  # noqa: F401 (the pages' processes are forked, and have it)

    torch.set_num_threads(1)
    programs = {"python", "console"}
    found = [page for page in chosen if programs & {block.language for block in blocks(page.read_text())}]
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        results = [Result(**fields) for fields in pool.map(run_page, map(str, found), chunksize=1)]
    for page in chosen:
        name = str(page.relative_to(ROOT))
        lines = indented_blocks(page.read_text())
        stray = [f"{name}:{line}: an indented block: a fence says what it is" for line in lines]
        if stray:
            results.append(Result(name, stray))
    return results


def rewrite(result: Result) -> None:
    """Puts into a page what its blocks print."""
    page = ROOT / result.page
    lines = page.read_text().splitlines()
    for first, last, content in sorted(result.changes, reverse=True):
        lines[first:last] = content
    page.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="put what blocks print into the pages")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true", help="results as JSON")
    arguments = parser.parse_args()
    chosen = [page.resolve() for page in arguments.pages] or pages()
    results = run(chosen, arguments.jobs)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(result) for result in results]))
        return 0
    for result in results:
        if arguments.write and result.changes:
            rewrite(result)
            print(f"{result.page}: {len(result.changes)} outputs written")
            result.differences = []
        for problem in [*result.problems, *result.differences]:
            print(problem, file=sys.stderr)
    ran, left = sum(one.run for one in results), sum(one.not_run for one in results)
    slowest = max(results, key=lambda one: one.seconds)
    print(f"{ran} blocks run, {left} not; slowest: {slowest.page}, {slowest.seconds:.1f} s")
    return 1 if any(result.problems or result.differences for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
