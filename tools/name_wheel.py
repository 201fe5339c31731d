"""Says in a wheel's name and requirements which PyTorch it was built for: `name_wheel.py <wheel> <release> <folder>`.

magneto-0.1.0-cp311-... becomes <folder>/magneto-0.1.0+torch2.13.0-cp311-..., and requires torch==2.13.0 instead of a
range: so wheels for several releases can lie in one folder, and pip takes no PyTorch that the wheel would refuse.
`name_wheel.py releases` picks from the versions on standard input those that wheels are made for.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def renamed(metadata: str, version: str, release: str) -> str:
    """A wheel's METADATA with another version, for one release of PyTorch alone (`+cpu` counts as it)."""
    metadata, versions = re.subn(r"^Version: .*$", f"Version: {version}", metadata, count=1, flags=re.M)
    metadata, requirements = re.subn(
        r"^Requires-Dist: torch\b.*$", f"Requires-Dist: torch=={release}", metadata, flags=re.M
    )
    if (versions, requirements) != (1, 1):
        raise SystemExit("error: a wheel with one version and one requirement of PyTorch was expected")
    return metadata


def name_wheel(wheel: Path, release: str, folder: Path) -> Path:
    name, version, tags = wheel.name.split("-", 2)
    full = f"{version}+torch{release}"
    target = folder / f"{name}-{full}-{tags}"
    old, new = f"{name}-{version}.dist-info/", f"{name}-{full}.dist-info/"
    record = []
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        entries = sorted(source.infolist(), key=lambda entry: entry.filename == f"{old}RECORD")  # RECORD last
        for entry in entries:
            content = source.read(entry)
            entry.filename = entry.filename.replace(old, new)
            if entry.filename == f"{new}METADATA":
                content = renamed(content.decode(), full, release).encode()
            elif entry.filename == f"{new}RECORD":
                content = "".join([*record, f"{entry.filename},,\n"]).encode()
            made.writestr(entry, content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{entry.filename},sha256={digest},{len(content)}\n")
    return target


def newest_patches(versions: list[str], oldest: tuple[int, int], beyond: tuple[int, int]) -> list[str]:
    """The newest patch release of each minor release in a range, oldest first."""
    newest: dict[tuple[int, int], int] = {}
    for version in versions:
        if found := re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\+.*)?", version.strip()):
            major, minor, patch = map(int, found.groups())
            if oldest <= (major, minor) < beyond:
                newest[major, minor] = max(patch, newest.get((major, minor), 0))
    return [f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(newest.items())]


def supported() -> tuple[tuple[int, int], tuple[int, int]]:
    """The range of PyTorch's releases in pyproject.toml: the first, and the first beyond."""
    found = re.search(r'"torch>=(\d+)\.(\d+),<(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    if not found:
        raise SystemExit("error: pyproject.toml states no range of PyTorch's releases")
    first, second, third, fourth = map(int, found.groups())
    return (first, second), (third, fourth)


if __name__ == "__main__":
    if sys.argv[1:] == ["releases"]:
        print("\n".join(newest_patches(sys.stdin.read().split(","), *supported())))
    else:
        print(name_wheel(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
