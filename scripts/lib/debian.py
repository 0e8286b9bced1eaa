"""Fetches packages of any Debian release and architecture, and unpacks them under a directory.

It installs nothing.  Of this machine's package database it uses only the address of apt's mirror.  A
directory that was filled is complete or absent, also when several processes fill it (`filling`).
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_MAX_ATTEMPTS = 3
_RETRY_DELAY_S = 20  # an archive that is being updated is complete again after that
_failures: dict[str, str] = {}  # by release and architecture
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Failed(SystemExit):
    """A command that failed; uncaught, it ends the script with its text, which names the command."""


def fail(message: str) -> None:
    """End the script with a message."""
    raise Failed(f"{Path(sys.argv[0]).name}: {message}")


def run(*command: str | Path, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Return the output of a command; its errors go to standard error."""
    result = _run(command, cwd, environment, stderr=None)
    if result.returncode != 0:
        fail(f"exit status {result.returncode} from: {' '.join(map(str, command))[:500]}")
    return result.stdout


def _run(
    command: Sequence[str | Path], cwd: Path | None, environment: dict[str, str] | None, *, stderr: int | None
) -> subprocess.CompletedProcess[str]:
    environment = {**(environment or os.environ), "LC_ALL": "C"}
    return subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False
    )


def filling(root: Path) -> Iterator[Path]:
    """Yield `root`, empty, for the caller to fill, unless it is filled.  A second process waits."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_name(f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "complete").exists():
            print(f"preparing {root.name}", file=sys.stderr, flush=True)
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            yield root
            (root / "complete").touch()


def mirror() -> str:
    """Return the URI that apt uses for Debian's main archive."""
    fields = "$(REPO_URI) $(CODENAME) $(COMPONENT)"
    for line in run("apt-get", "indextargets", "--format", fields, "Created-By: Packages").splitlines():
        uri, codename, component = line.split()
        if component == "main" and re.fullmatch(r"\w+", codename) and "security" not in uri:
            return uri
    fail("apt knows no Debian mirror on this machine")
    raise AssertionError


def unpack_packages(root: Path, release: str, *packages: str, architecture: str = "") -> Path:
    """Unpack packages with all dependencies; return the directory of their files."""
    install = ("install", "--download-only", "--no-install-recommends", *packages)
    _apt_get(root, "deb", release, *install, architecture=architecture)
    found = sorted((root / "apt/cache/archives").glob("*.deb"))
    # base-files has the symbolic links /bin, /lib, /sbin
    for package in sorted(found, key=lambda path: not path.name.startswith("base-files_")):
        run("dpkg-deb", "--extract", package, root / "files")
    shutil.rmtree(root / "apt")
    return root / "files"


def unpack_sources(root: Path, release: str, *packages: str) -> None:
    """Unpack the upstream sources of packages under `root`; Debian's archives stay packed."""
    _apt_get(root, "deb-src", release, "source", "--download-only", *packages)
    shutil.rmtree(root / "apt")
    for archive in (path for path in root.glob("*.orig.tar.*") if path.suffix != ".asc"):
        run("tar", "--extract", "--file", archive, cwd=root)


def _apt_get(root: Path, kind: str, release: str, *arguments: str, architecture: str = "") -> None:
    """Run apt-get with its own lists, state and cache; retry while the archive is being updated.

    Raises Failed, with one sentence; at once, if this archive has failed before.
    """
    what = f"{release} {architecture}".strip()
    for attempt in range(0 if what in _failures else _MAX_ATTEMPTS):
        time.sleep(_RETRY_DELAY_S if attempt else 0)
        shutil.rmtree(root / "apt", ignore_errors=True)
        why = _try_apt_get(root, kind, release, *arguments, architecture=architecture)
        if not why:
            _failures.pop(what, None)
            return
        tried = f"tried {attempt + 1} times"
        _failures[what] = f"cannot download packages of Debian {what} ({tried}): {why}"
    raise Failed(_failures[what])


def _try_apt_get(root: Path, kind: str, release: str, *arguments: str, architecture: str) -> str:
    """Return what failed, in one line; empty: nothing."""
    apt = root / "apt"
    for directory in ("lists/partial", "cache/archives/partial"):
        (apt / directory).mkdir(parents=True)
    (apt / "nothing-installed").touch()
    (apt / "sources").write_text(f"{kind} [signed-by={KEYRING}] {mirror()} {release} main\n")
    settings = {
        "Dir::Etc::SourceList": apt / "sources",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State::Lists": apt / "lists",
        "Dir::State::Status": apt / "nothing-installed",
        "Dir::State::Extended_States": apt / "extended",
        "Dir::Cache": apt / "cache",
        "Dir::Log": apt,
        "Debug::NoLocking": "true",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
    }
    if architecture:
        settings |= {"APT::Architecture": architecture, "APT::Architectures": architecture}
    command = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in settings.items())]
    for words in (("update",), arguments):
        result = _run((*command, *words), root, None, stderr=subprocess.PIPE)
        if result.returncode != 0:
            errors = [line for line in result.stderr.splitlines() if line.startswith("E:")]
            return (errors or [f"apt-get {words[0]}: exit status {result.returncode}"])[0]
    return ""


def wrap(files: Path, out: Path, names: dict[str, str | Path]) -> Path:
    """Write programs under plain names to `out`, each a wrapper that uses the loader of its own release."""
    loader = next(path for path in files.rglob("ld-linux-x86-64.so.2") if not path.is_symlink())
    libraries = ":".join(str(files / top / "x86_64-linux-gnu") for top in ("lib", "usr/lib"))
    out.mkdir(parents=True, exist_ok=True)
    for name, real in names.items():
        wrapper = out / name
        program = files / "usr/bin" / real
        wrapper.write_text(f'#!/bin/sh\nexec {loader} --library-path {libraries} {program} "$@"\n')
        wrapper.chmod(0o755)
    return out
