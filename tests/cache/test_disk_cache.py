"""The cache on disk: used by the next process; whatever is wrong with it costs time only, and is said once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch
from forked import Forked, Server

import magneto
from magneto import _C, _testing


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A directory of its own for a test; it is made by the first use."""
    with magneto.config.patch(disk_cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("?/*") if path.is_file())


def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.softmax(x * 2, -1), (x.sin() + 1).sum(0)


X = torch.linspace(-3, 3, 6 * 37).view(6, 37)


def run() -> dict[str, Any]:
    """Compiles `program` as a new process would, checks its results, and gives the counters."""
    magneto.reset()
    compiled = magneto.compile(program)
    with torch.no_grad():
        # torch.testing.assert_close imports far more than children need.
        assert all(torch.allclose(got, want) for got, want in zip(compiled(X), program(X), strict=True))
    stats = magneto.stats()
    assert stats["kernels"] >= 2
    return stats  # the captured code goes with `compiled`


def said(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(item.message) for item in caught]


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    global SERVER
    SERVER = Server(PATHS, ["test_disk_cache"])
    yield
    SERVER.close()


SERVER: Server
PATHS = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # this module, and what it imports


def child(code: str, **environment: str) -> Forked | subprocess.CompletedProcess[str]:
    """A process of its own, at its end but where it is forked: as its environment says no more than where the cache is."""
    prelude = """
        import json, os, signal, sys, torch, magneto
        from magneto import _C, _testing
        sys.path[:0] = os.environ["TESTS"].split(":")
        torch.set_num_threads(1)
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(code)
    environment = {"TESTS": ":".join(PATHS), **environment}
    if environment.keys() == {"TESTS", "MAGNETO_CACHE_DIR"}:
        place = environment["MAGNETO_CACHE_DIR"]
        return SERVER.run(
            f"import os, magneto\nos.environ.update({environment!r})\nmagneto.config.disk_cache_dir = {place!r}\n{code}"
        )
    env = {**os.environ, **environment}
    return fresh.python("-c", code, env=env, timeout=300, whole="PYTHONWARNINGS" in environment)


def finish(process: Forked | subprocess.CompletedProcess[str]) -> tuple[Any, str]:
    out, err = process.communicate(timeout=300) if isinstance(process, Forked) else (process.stdout, process.stderr)
    assert process.returncode == 0, out + err
    return json.loads(out.splitlines()[-1]), err


RUN = """
    from test_disk_cache import run
    stats = run()
    llvm = "libmagneto_codegen" in open("/proc/self/maps").read()
    print(json.dumps([stats, llvm]))
"""


# -- it works ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 256, 1000])
def test_digest_is_blake2b(size: int) -> None:
    data = bytes(range(256)) * 4
    assert _testing.cache_digest(data[:size]) == hashlib.blake2b(data[:size], digest_size=32).hexdigest()
    for key in (b"k", data[:32], data[:64]):
        assert (
            _testing.cache_digest(data[:size], key) == hashlib.blake2b(data[:size], key=key, digest_size=32).hexdigest()
        )


def test_machine_is_the_same_on_all_cores() -> None:
    """The key holds no number of the core that asks."""
    allowed = os.sched_getaffinity(0)
    texts = set()
    for core in sorted(allowed)[:2]:
        process = child(f"os.sched_setaffinity(0, {{{core}}}); print(json.dumps(_testing.cache_machine()))")
        texts.add(finish(process)[0])
    assert len(texts) == 1


def test_second_process_loads_no_llvm(tmp_path: Path) -> None:
    place = {"MAGNETO_CACHE_DIR": str(tmp_path / "cache")}
    (first, llvm), _ = finish(child(RUN, **place))
    assert llvm and first["cache_misses"] >= 2 and first["cache_hits"] == 0
    (second, llvm), _ = finish(child(RUN, **place))
    assert not llvm and second["cache_misses"] == 0 and second["cache_hits"] == first["cache_misses"]


def test_second_process_lowers_nothing(tmp_path: Path) -> None:
    place = {"MAGNETO_CACHE_DIR": str(tmp_path / "cache")}
    (first, _), _ = finish(child(RUN, **place))
    (second, _), _ = finish(child(RUN, **place))
    assert first["cached_programs"] == 0 and second["cached_programs"] == second["graphs"] == 1
    assert second["kernels"] == first["kernels"]
    # Who looks at a stage has it made.
    (third, _), text = finish(child(RUN, TORCH_LOGS="ir_post_fusion", **place))
    assert third["cached_programs"] == 1 and 'origin "aten.' in text


def compiled_once_and_again(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> None:
    """Lowered the first time, found the second, and right both times."""
    for kept in (0, 1):
        magneto.reset()
        with torch.no_grad():
            actual, expected = magneto.compile(function)(*args), function(*args)
        assert actual.dtype == expected.dtype and actual.stride() == expected.stride()
        assert torch.allclose(actual, expected, equal_nan=True)
        assert magneto.stats()["cached_programs"] == kept, kept


def test_programs_are_told_apart(cache: Path) -> None:
    """By whatever lowering can see of them."""
    compiled_once_and_again(lambda x: x * 2, X)
    compiled_once_and_again(lambda x: x * 2.5, X)
    compiled_once_and_again(lambda x: x * 2, X.double())
    compiled_once_and_again(lambda x: x * 2, X[:3])
    compiled_once_and_again(lambda x: x * 2, X.t())
    compiled_once_and_again(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), X[:, :3])
    compiled_once_and_again(lambda x: x + torch.tensor([1.0, 2.0, 4.0]), X[:, :3])
    compiled_once_and_again(lambda x: x + torch.arange(37) / 2, X)
    compiled_once_and_again(lambda x: x + torch.arange(37).view(1, 37) * 2, X)
    compiled_once_and_again(lambda x: x.add_(1), X.clone())
    compiled_once_and_again(lambda x: torch.nn.functional.pad(x, (1, 2), value=float("-inf")), X)
    compiled_once_and_again(lambda x: x.sort(descending=True)[0] + 1, X)
    compiled_once_and_again(lambda x: torch.full((3,), float("nan"), dtype=torch.bfloat16) + 1, X)
    whole = X.to(torch.int64)
    compiled_once_and_again(lambda x: x * 1.5, whole)
    torch.set_default_dtype(torch.float64)
    try:
        compiled_once_and_again(lambda x: x * 1.5, whole)
    finally:
        torch.set_default_dtype(torch.float32)


def test_equal_programs_at_other_lines_are_one(cache: Path) -> None:
    first = lambda x: torch.softmax(x, -1)  # noqa: E731
    compiled_once_and_again(first, X)
    with torch.no_grad():
        magneto.compile(lambda y: torch.softmax(y, -1))(X)
    assert magneto.stats()["cached_programs"] == 2


def test_what_all_programs_depend_on() -> None:
    """Another build, PyTorch or machine is another key."""
    key = _testing.program_key()
    assert f"PyTorch {torch.__version__} " in key and key.endswith(_testing.cache_machine())
    notes = subprocess.run(["readelf", "-n", _C.__file__], capture_output=True, text=True, check=True).stdout
    assert "build " + notes.split("Build ID: ")[1].split()[0] in key


def test_another_build_finds_no_program(tmp_path: Path) -> None:
    """The same extension with another build id."""
    package = Path(magneto.__file__).parent
    other = tmp_path / "other" / "magneto"
    shutil.copytree(package, other, ignore=lambda folder, names: [n for n in names if n.endswith((".so", ".pyc"))])
    for library in package.glob("*.so"):
        (other / library.name).symlink_to(library)
    core = other / Path(_C.__file__).name
    content = Path(_C.__file__).read_bytes()
    number = bytes.fromhex(_testing.program_key().split("build ")[1].split(",")[0])
    assert content.count(number) == 1
    core.unlink()
    core.write_bytes(content.replace(number, bytes(reversed(number))))
    place = {"MAGNETO_CACHE_DIR": str(tmp_path / "cache")}
    elsewhere = {**place, "PYTHONPATH": str(other.parent)}
    path = "import magneto; assert magneto.__file__.startswith(os.environ['PYTHONPATH'])\n"
    (first, _), _ = finish(child(RUN, **place))
    (second, _), _ = finish(child(path + textwrap.dedent(RUN), **elsewhere))
    assert first["cached_programs"] == second["cached_programs"] == 0
    # Code of kernels depends on the code generator's build, which is the same.
    assert second["cache_hits"] == first["cache_misses"] - 1 and second["cache_misses"] == 1
    for environment in (place, elsewhere):
        (again, _), _ = finish(child(RUN, **environment))
        assert again["cached_programs"] == 1 and again["cache_misses"] == 0


@pytest.mark.parametrize(
    "change",
    [
        "torch.set_default_dtype(torch.float64)",
        "torch.set_num_threads(2)",
        "torch.set_flush_denormal(True)",
        "torch.set_float32_matmul_precision('medium')",
        "torch.backends.mkldnn.set_flags(False)",
    ],
)
def test_settings_of_the_process(tmp_path: Path, change: str) -> None:
    """Under another setting, nothing is found; back under the first, all is."""
    place = {"MAGNETO_CACHE_DIR": str(tmp_path / "cache")}
    for setting, kept in (("", 0), (change, 0), (change, 1), ("", 1)):
        (stats, _), _ = finish(child(setting + "\n" + textwrap.dedent(RUN), **place))
        assert stats["cached_programs"] == kept


def test_guards_are_made_anew(tmp_path: Path) -> None:
    """A program that is found belongs to the capture of this process: what that read is what counts."""
    code = """
        class Settings: scale = {scale}
        def function(x): return torch.relu(x * Settings.scale)
        compiled, x = magneto.compile(function), torch.randn(50)
        with torch.no_grad():
            assert torch.equal(compiled(x), function(x))
            Settings.scale = -1.25
            assert torch.equal(compiled(x), function(x))
            assert torch.equal(compiled(x[:20]), function(x[:20]))
        print(json.dumps([magneto.stats()["cached_programs"], magneto.stats()["recompiles"]]))
    """
    place = str(tmp_path / "cache")
    results = [
        finish(child(textwrap.dedent(code).format(scale=scale), MAGNETO_CACHE_DIR=place))[0] for scale in (2, 2, 3)
    ]
    assert results == [[0, 2], [3, 2], [2, 2]]


CUSTOM = """
    @torch.library.custom_op("cachetest::change", mutates_args={arguments})
    def change(x: torch.Tensor) -> torch.Tensor:
        {body}
    @change.register_fake
    def _(x): return torch.empty_like(x)
    def function(x):
        y = x + 1
        return torch.ops.cachetest.change(y), y
    x = torch.ones(3)
    with torch.no_grad():
        pairs = list(zip(magneto.compile(function)(x), function(x)))
    assert all(torch.equal(ours, eager) for ours, eager in pairs), pairs
    print(json.dumps(magneto.stats()["cached_programs"]))
"""


def test_a_custom_operator_that_changed(tmp_path: Path) -> None:
    place = str(tmp_path / "cache")
    pure = CUSTOM.format(arguments="()", body="return x * 2")
    writing = CUSTOM.format(arguments="('x',)", body="x.add_(5); return x * 2")
    for code in (pure, writing, pure):
        finish(child(code, MAGNETO_CACHE_DIR=place))


def test_files_are_the_owners_only(cache: Path) -> None:
    run()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert entries(cache)
    for path in entries(cache):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_code_for_other_features_is_another_entry(cache: Path) -> None:
    text = """kernel "k" {
      b0 in f32[77]
      b1 out f32[77]
      parallel i0 < 77
      row {
        %0:f32 = load b0[i0]
        store b1[i0], %0
      }
    }"""
    _testing.kernel_compile(text)
    _testing.kernel_compile(text, "avx2")
    assert len(entries(cache)) == 2


def test_off_writes_nothing(cache: Path) -> None:
    with magneto.config.patch(disk_cache=False):
        stats = run()
    assert not cache.exists() and stats["cache_hits"] == stats["cache_misses"] == 0


def test_settings_are_checked() -> None:
    with pytest.raises(magneto.exc.InvalidValue, match="disk_cache_dir takes str"):
        magneto.config.disk_cache_dir = 3
    with pytest.raises(magneto.exc.InvalidValue, match="at least 1"):
        magneto.config.disk_cache_mb = 0


def test_xdg_cache_home_is_the_default(tmp_path: Path) -> None:
    finish(child(RUN, MAGNETO_CACHE_DIR="", XDG_CACHE_HOME=str(tmp_path / "base")))
    assert entries(tmp_path / "base" / "magneto")
    finish(child(RUN, MAGNETO_CACHE_DIR="", XDG_CACHE_HOME="relative", HOME=str(tmp_path / "home")))
    assert entries(tmp_path / "home" / ".cache" / "magneto")
    assert not Path("relative").exists()


# -- damage ------------------------------------------------------------------------------------------------------------

# What an entry consists of, and where: magic, key, checksum, length, then parts behind their lengths.
PLACES = {"magic": 0, "version": 7, "key": 8, "checksum": 40, "length": 72, "first length": 80, "object": 88}


def damaged(cache: Path, change: Callable[[Path], None]) -> None:
    """Any change of the entries is noticed, said once, and mended."""
    first = run()
    before = {path: path.read_bytes() for path in entries(cache)}
    assert len(before) == first["cache_misses"]
    for path in before:
        change(path)
    stats, messages = said(run)
    assert stats["cache_hits"] == 0 and stats["cache_misses"] == len(before)
    assert stats["cache_damaged"] == len(before)
    assert len([text for text in messages if "damaged" in text]) == 1, messages
    assert {path: path.read_bytes() for path in entries(cache)} == before
    stats, messages = said(run)
    assert stats["cache_hits"] == len(before) and not messages


@pytest.mark.parametrize("where", [*PLACES, "middle", "end"])
def test_flipped_bits(cache: Path, where: str) -> None:
    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        at = {**PLACES, "middle": len(content) // 2, "end": len(content) - 1}[where]
        content[at] ^= 0x10
        path.write_bytes(content)

    damaged(cache, flip)


@pytest.mark.parametrize("length", [0, 1, 79, 80, 81, 500, -1])
def test_truncated(cache: Path, length: int) -> None:
    damaged(cache, lambda path: os.truncate(path, length if length >= 0 else path.stat().st_size - 1))


def test_something_behind_the_end(cache: Path) -> None:
    damaged(cache, lambda path: path.open("ab").write(b"\0" * 16) and None)


def test_an_entry_under_another_name(cache: Path) -> None:
    """Whole, but not what was asked for."""
    run()
    content = entries(cache)[0].read_bytes()
    stranger = cache.parent / "stranger"
    stranger.write_bytes(content)
    for path in entries(cache)[1:]:
        path.write_bytes(content)
    stats, _ = said(run)
    assert stats["cache_damaged"] == stats["cache_misses"] == len(entries(cache)) - 1


@pytest.mark.parametrize("what", ["pipe", "link", "link to nothing", "folder", "full folder", "writable by others"])
def test_things_that_are_no_entries(cache: Path, what: str) -> None:
    """Never used, and made good: the next process finds an entry there."""
    first = run()
    other = cache.parent / "elsewhere"
    for path in entries(cache):
        if what == "writable by others":
            path.chmod(0o666)
            continue
        content = path.read_bytes()
        path.unlink()
        if what == "pipe":
            os.mkfifo(path, 0o600)
        elif what == "link":
            other.write_bytes(content)
            path.symlink_to(other)
        elif what == "link to nothing":
            path.symlink_to(other)
        else:
            path.mkdir()
            if what == "full folder":
                (path / "deep" / "deeper").mkdir(parents=True)
                (path / "deep" / "file").write_bytes(content)
                (path / "deep" / "link").symlink_to(cache.parent)
    stats, messages = said(run)
    assert stats["cache_hits"] == 0 and stats["cache_misses"] == first["cache_misses"]
    assert messages
    assert all(path.is_file() and not path.is_symlink() for path in cache.glob("?/*"))
    stats, messages = said(run)
    assert stats["cache_hits"] == first["cache_misses"] and stats["cache_misses"] == 0 and not messages


# The folders of the parts.


@pytest.mark.parametrize("what", ["link", "link to nothing", "file", "pipe"])
def test_parts_that_are_no_folders(cache: Path, what: str) -> None:
    """No link is followed, not even one of ours to where our own entries are; what lies there is replaced."""
    first = run()
    elsewhere = cache.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    for part in sorted(cache.glob("?")):
        target = elsewhere / part.name
        part.rename(target)
        if what == "link":
            part.symlink_to(target)
        elif what == "link to nothing":
            part.symlink_to(cache.parent / "nowhere")
        elif what == "file":
            part.write_bytes(b"")
        else:
            os.mkfifo(part, 0o600)
    before = {path: path.read_bytes() for path in entries(elsewhere)}
    stats, messages = said(run)
    assert stats["cache_hits"] == 0 and stats["cache_misses"] == first["cache_misses"]
    assert any("damaged" in text for text in messages)
    assert {path: path.read_bytes() for path in entries(elsewhere)} == before
    assert not any(part.is_symlink() for part in cache.glob("?"))
    stats, messages = said(run)
    assert stats["cache_hits"] == first["cache_misses"] and not messages


@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_what_lies_in_the_place_of_the_locks(cache: Path, what: str) -> None:
    """No link is followed; what lies there is replaced."""
    elsewhere = cache.parent / "elsewhere"
    elsewhere.write_bytes(b"")
    cache.mkdir(mode=0o700)
    locks = cache / "locks"
    if what == "link":
        locks.symlink_to(elsewhere)
    elif what == "pipe":
        os.mkfifo(locks, 0o600)
    else:
        locks.mkdir()
    _, messages = said(run)
    assert entries(cache) and not messages
    assert locks.is_file() and not locks.is_symlink()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_part_that_others_can_write(cache: Path, mode: int) -> None:
    """Others could have put entries there, or could take ours away and put back old ones."""
    run()
    before = {path: path.stat().st_mtime_ns for path in entries(cache)}
    for part in cache.iterdir():
        part.chmod(mode)
    refused("can be written by other users")
    assert {path: path.stat().st_mtime_ns for path in entries(cache)} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_part_of_another_user(cache: Path) -> None:
    run()
    for part in cache.iterdir():
        os.chown(part, 54321, 54321)
    refused("belongs to another user")


# -- with a key --------------------------------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "key"
    file.write_text("a key that nobody knows\n")
    file.chmod(0o600)
    with magneto.config.patch(disk_cache_key_file=str(file)):
        yield file


def test_entries_of_one_key_are_found_with_it_only(cache: Path, key: Path) -> None:
    first = run()["cache_misses"]
    assert run()["cache_hits"] == first
    key.write_text("another key, just as good")
    with magneto.config.patch(disk_cache_key_file=str(key)):  # read anew
        stats, messages = said(run)
    assert stats["cache_hits"] == 0 and stats["cache_misses"] == first and not messages
    with magneto.config.patch(disk_cache_key_file=""):
        stats, messages = said(run)
        assert stats["cache_hits"] == 0 and stats["cache_misses"] == first and not messages
        assert run()["cache_hits"] == first
    assert len(entries(cache)) == 3 * first  # side by side


def test_a_key_in_the_environment(tmp_path: Path) -> None:
    place = {"MAGNETO_CACHE_DIR": str(tmp_path / "cache"), "MAGNETO_CACHE_KEY": "a key that nobody knows"}
    (first, _), _ = finish(child(RUN, **place))
    (second, _), _ = finish(child(RUN, **place))
    assert second["cache_hits"] == first["cache_misses"] > 0
    file = tmp_path / "key"
    file.write_text(place.pop("MAGNETO_CACHE_KEY") + "\n")
    file.chmod(0o600)
    (third, _), _ = finish(child(RUN, MAGNETO_CACHE_KEY_FILE=str(file), **place))
    assert third["cache_hits"] == first["cache_misses"]
    (other, _), _ = finish(child(RUN, **place))
    assert other["cache_hits"] == 0


def forged(path: Path, content: bytes, source: bytes) -> None:
    """Writes an entry as somebody does who knows all but the key: the checksum is right for a cache without one."""
    key = source[8:40]
    checksum = hashlib.blake2b(key + content, digest_size=32).digest()
    path.write_bytes(source[:40] + checksum + len(content).to_bytes(8, "little") + content)


@pytest.mark.parametrize("what", ["changed", "the checksum of a cache without a key", "under another name"])
def test_what_does_not_verify_is_a_miss(cache: Path, key: Path, what: str) -> None:
    first = run()["cache_misses"]
    originals = [path.read_bytes() for path in entries(cache)]
    for number, path in enumerate(entries(cache)):
        source = originals[number]
        if what == "changed":
            path.write_bytes(source[:-1] + bytes([source[-1] ^ 1]))
        elif what == "under another name":
            path.write_bytes(originals[number - 1])
        else:
            forged(path, source[80:], source)
    stats, messages = said(run)
    assert stats["cache_hits"] == 0 and stats["cache_misses"] == stats["cache_damaged"] == first
    assert len(messages) == 1 and "damaged" in messages[0]
    assert run()["cache_hits"] == first


def test_without_a_key_the_same_user_can_write_entries(cache: Path) -> None:
    """As docs/cache.md says: the checksum is no protection against who can write there."""
    first = run()["cache_misses"]
    for path in entries(cache):
        source = path.read_bytes()
        forged(path, source[80:], source)
    assert run()["cache_hits"] == first


@pytest.mark.parametrize("what", ["missing", "folder", "short", "readable by others", "writable by the group"])
def test_a_key_that_is_none(cache: Path, key: Path, what: str) -> None:
    """Then the cache is not used: never as if no key had been asked for."""
    if what in ("missing", "folder"):
        key.unlink()
    if what == "folder":
        key.mkdir()
    if what == "short":
        key.write_text("fifteen bytes..\n")
    key.exists() and key.chmod({"readable by others": 0o604, "writable by the group": 0o620}.get(what, 0o700))
    with magneto.config.patch(disk_cache_key_file=str(key)):
        refused(str(key))
    assert not cache.exists()


def test_a_report_does_not_tell_the_key() -> None:
    code = """
        from magneto import _messages
        print(json.dumps(_messages._environment()))
    """
    text, _ = finish(child(code, MAGNETO_CACHE_KEY="a key that nobody knows"))
    assert "MAGNETO_CACHE_KEY" in text and "nobody" not in text


# -- no place ----------------------------------------------------------------------------------------------------------


def refused(reason: str) -> None:
    """Everything works without a cache; the reason is said once a process."""
    stats, messages = said(run)
    assert stats["cache_hits"] == stats["cache_misses"] == 0
    assert len(messages) == 1 and reason in messages[0], messages
    _, messages = said(run)
    assert not messages


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_that_others_can_write(cache: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)
    refused("can be written by other users")
    assert not any(cache.iterdir())


def test_a_directory_of_another_user(cache: Path) -> None:
    if os.geteuid() == 0:
        cache.mkdir(mode=0o700)
        os.chown(cache, 54321, 54321)
        place = str(cache)
    else:
        place = "/usr"
    with magneto.config.patch(disk_cache_dir=place):
        refused("belongs to another user")


@pytest.mark.parametrize("place", ["/dev/null", "/dev/null/below", "/proc/nowhere/cache"])
def test_a_place_that_is_none(place: str) -> None:
    with magneto.config.patch(disk_cache_dir=place):
        refused(place)


def test_a_home_that_can_not_be_written() -> None:
    (stats, _), err = finish(child(RUN, MAGNETO_CACHE_DIR="", XDG_CACHE_HOME="", HOME="/proc/nowhere"))
    assert err.count("RuntimeWarning") == 1 and "/proc/nowhere/.cache/magneto can't be made" in err
    assert stats["cache_misses"] == 0


def test_where_warnings_are_errors() -> None:
    (stats, _), err = finish(child(RUN, MAGNETO_CACHE_DIR="/dev/null/below", PYTHONWARNINGS="error::RuntimeWarning"))
    assert "can't be opened" in err and stats["kernels"] >= 2 and not stats["fallbacks"]


# As a user who may not write there: root can write anywhere, so it becomes another user first.
UNPRIVILEGED = """
    with magneto.config.patch(disk_cache=False):
        magneto.compile(lambda x: x * 2 + 1)(torch.ones(2))  # imports what a compile needs
    from test_disk_cache import run, said
    if os.geteuid() == 0:
        os.seteuid(54321)
"""


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A cache that another user could reach; pytest's own folders are the user's only."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        cache = Path(folder) / "cache"
        with magneto.config.patch(disk_cache_dir=str(cache)):
            yield cache


def owned(*paths: Path) -> None:
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, 54321, 54321)


def test_read_only_cache_is_read(reachable: Path) -> None:
    """What is there is used, what is missing is compiled; that it can't be kept is said once."""
    cache = reachable
    count = run()["cache_misses"]
    gone = entries(cache)[0]
    gone.unlink()
    owned(cache, *cache.glob("*"), *entries(cache))
    for path in [*cache.glob("*"), cache]:
        path.chmod(0o500)
    try:
        code = """
            (stats, messages), (_, later) = said(run), said(run)
            print(json.dumps([stats, messages, later]))
        """
        process = child(textwrap.dedent(UNPRIVILEGED) + textwrap.dedent(code), MAGNETO_CACHE_DIR=str(cache))
        (stats, messages, later), _ = finish(process)
    finally:
        for path in [cache, *cache.glob("*")]:
            path.chmod(0o700)
    assert (stats["cache_hits"], stats["cache_misses"]) == (count - 1, 1)
    assert len(messages) == 1 and "can't be written (Permission denied)" in messages[0] and not later


def test_no_permission_and_no_home(reachable: Path) -> None:
    cache = reachable
    cache.mkdir()
    owned(cache)
    cache.chmod(0)
    code = """
        (stats, messages), (_, later) = said(run), said(run)
        magneto.config.disk_cache_dir = ""
        os.environ["HOME"], os.environ["XDG_CACHE_HOME"] = "", ""
        _, homeless = said(run)
        print(json.dumps([stats, messages, later, homeless]))
    """
    process = child(textwrap.dedent(UNPRIVILEGED) + textwrap.dedent(code), MAGNETO_CACHE_DIR=str(cache))
    (stats, messages, later, homeless), _ = finish(process)
    cache.chmod(0o700)
    assert len(messages) == 1 and "can't be opened (Permission denied)" in messages[0] and not later
    assert stats["cache_hits"] == stats["cache_misses"] == 0
    if os.geteuid() == 0:
        assert len(homeless) == 1 and "no home directory" in homeless[0]


@pytest.mark.parametrize("bytes_left", [0, 60, 1000])
def test_full_disk(tmp_path: Path, bytes_left: int) -> None:
    """A limit on the size of files stands for a full disk: writing fails in the middle of an entry."""
    cache = tmp_path / "cache"
    code = f"""
        import resource
        from test_disk_cache import run, said
        resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_left}, resource.RLIM_INFINITY))
        (stats, messages), (_, later) = said(run), said(run)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(json.dumps([stats, messages, later]))
    """
    (stats, messages, later), _ = finish(child(code, MAGNETO_CACHE_DIR=str(cache)))
    assert len(messages) == 1 and "can't be written (File too large)" in messages[0] and not later
    assert entries(cache) == []
    (stats, _), _ = finish(child(RUN, MAGNETO_CACHE_DIR=str(cache)))
    assert stats["cache_damaged"] == 0 and len(entries(cache)) == stats["cache_misses"] > 0


# -- many processes ----------------------------------------------------------------------------------------------------

# Many small kernels, each another; `count` of them from `first` on.
MANY = """
    def text(n):
        return f'''kernel "k" {{
          b0 in f32[{n}]
          b1 out f32[{n}]
          parallel i0 < {n}
          row {{
            %0:f32 = load b0[i0]
            %1:f32 = constant {n}
            %2:f32 = mul %0, %1
            store b1[i0], %2
          }}
        }}'''

    def use(n):
        x, y = torch.ones(n), torch.empty(n)
        _testing.kernel_run(_testing.kernel_compile(text(n)), (x, y))
        assert torch.equal(y, x * n), n
"""


def many(code: str, cache: Path) -> Forked | subprocess.Popen[str]:
    return child(textwrap.dedent(MANY) + textwrap.dedent(code), MAGNETO_CACHE_DIR=str(cache))


CHECK = """
    for n in range(1, 1000):
        if magneto.stats()["cache_misses"] > 3: break
        use(n)
    print(json.dumps(magneto.stats()))
"""


def test_killed_while_it_writes(tmp_path: Path) -> None:
    """kill -9 at any time: what others find is whole."""
    cache = tmp_path / "cache"
    for number in range(5):
        process = many("print('ready', flush=True)\nfor n in range(1, 100000): use(n)", cache)
        assert process.stdout and process.stdout.readline() == "ready\n"
        time.sleep(0.05 + 0.07 * number)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    count = len([path for path in entries(cache) if not path.name.startswith("new-")])
    stats, _ = finish(many(CHECK, cache))
    assert stats["cache_damaged"] == 0 and stats["cache_hits"] == count > 5


def test_killed_while_it_keeps_programs(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    code = """
        print("ready", flush=True)
        for n in range(2, {most}):
            x = torch.arange(float(n))
            with torch.no_grad():
                assert torch.equal(magneto.compile(lambda x: (x + n).flip(0) * 2)(x), (x + n).flip(0) * 2)
        print(json.dumps([magneto.stats()["cached_programs"], magneto.stats()["cache_damaged"]]))
    """
    code = textwrap.dedent(code)
    for number in range(4):
        process = child(code.format(most=100000), MAGNETO_CACHE_DIR=str(cache))
        assert process.stdout and process.stdout.readline() == "ready\n"
        time.sleep(0.2 + 0.07 * number)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    (kept, damaged), _ = finish(child(code.format(most=60), MAGNETO_CACHE_DIR=str(cache)))
    assert kept > 0 and damaged == 0


def test_ten_processes_at_once(tmp_path: Path) -> None:
    """Each entry is made by one of them: the others make others, or wait for it."""
    cache = tmp_path / "cache"
    code = """
        for n in range(1, 25): use(n)
        print(json.dumps([magneto.stats(), _testing.kernel_stats()[1]]))
    """
    results = [finish(process)[0] for process in [many(textwrap.dedent(code), cache) for _ in range(10)]]
    for stats, made in results:
        assert stats["cache_damaged"] == 0 and stats["cache_hits"] + made == 24
    assert sum(made for _, made in results) == len(entries(cache)) == 24
    (stats, made), _ = finish(many(textwrap.dedent(code), cache))
    assert (stats["cache_hits"], made, stats["cache_waits"]) == (24, 0, 0)


def test_ranks_share_one_compile(tmp_path: Path) -> None:
    """Processes that compile the same program at the same time make each kernel once, and it is right in each."""
    code = """
        import sys
        from test_disk_cache import run
        run_alone = magneto.compile(lambda x: x + 1)(torch.ones(3))  # imports are done, the code generator is loaded
        print("ready", flush=True)
        sys.stdin.readline()
        before = _testing.kernel_stats()[1]
        run()
        print(json.dumps(_testing.kernel_stats()[1] - before))
    """
    code = "from magneto import _testing\n" + textwrap.dedent(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MAGNETO_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = ":".join([*PATHS, os.environ.get("PYTHONPATH", "")])
    prelude = "import json, torch, magneto\ntorch.set_num_threads(1)\n"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", prelude + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    for rank in ranks:
        assert rank.stdout and rank.stdout.readline() == "ready\n"
    made = [int(rank.communicate("go\n", timeout=120)[0]) for rank in ranks]
    assert sum(made) == run()["kernels"]


def test_a_dead_process_holds_nothing(cache: Path) -> None:
    """What was claimed is anybody's as soon as who claimed it is gone; a stopped process is not waited for for ever."""
    run()
    (locks,) = cache.glob("locks")
    for path in entries(cache):
        path.unlink()
    # All bytes of the file: every entry.
    code = f"""
import fcntl, time
file = open({str(locks)!r}, "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout and holder.stdout.readline() == "held\n"
    thread = threading.Timer(0.5, holder.kill)
    thread.start()
    start = time.perf_counter()
    stats = run()
    assert 0.4 < time.perf_counter() - start < 10
    assert stats["cache_waits"] > 0 and entries(cache)
    holder.wait()


def test_ten_processes_that_fill_it(tmp_path: Path) -> None:
    """They remove each other's entries while these are read."""
    cache = tmp_path / "cache"
    code = """
        magneto.config.disk_cache_mb = 1
        for round in range(3):
            for n in range(1, 300, 7): use(n)
        print(json.dumps(magneto.stats()))
    """
    for process in [many(code, cache) for _ in range(10)]:
        assert finish(process)[0]["cache_damaged"] == 0


# -- size --------------------------------------------------------------------------------------------------------------


def test_the_oldest_go(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    fill = """
        magneto.config.disk_cache_mb = 1
        for n in range(1, 301): use(n)
        print(json.dumps(magneto.stats()))
    """
    stats, _ = finish(many(fill, cache))
    assert stats["cache_removed"] > 0
    kept = entries(cache)
    assert sum((path.stat().st_size + 4095) // 4096 * 4096 for path in kept) <= 1 << 20
    # Half of what is left was used long ago: it goes before the other half.
    old, new = kept[::2], kept[1::2]
    for path in old:
        os.utime(path, (1e9, 1e9))
    more = "magneto.config.disk_cache_mb = 1\nfor n in range(1001, 1060): use(n)\nprint(json.dumps(magneto.stats()))"
    finish(many(more, cache))
    remaining = set(entries(cache))
    assert len(remaining.intersection(old)) < len(remaining.intersection(new))


def test_use_makes_an_entry_young(cache: Path) -> None:
    run()
    path = entries(cache)[0]
    os.utime(path, (1e9, 1e9))
    run()
    assert path.stat().st_mtime > time.time() - 100


def test_what_dead_processes_left_goes(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    finish(many("for n in range(1, 40): use(n)\nprint(1)", cache))
    part = entries(cache)[0].parent
    young, old = part / "new-1-2-abc", part / "new-1-3-abc"
    for path in (young, old):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    finish(many("for n in range(40, 150): use(n)\nprint(1)", cache))
    assert young.exists() and not old.exists()
