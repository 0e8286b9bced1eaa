"""Says which of some files are Python, and which tests mirror them; `scripts/check FILE...` asks.

    python scripts/lib/affected.py python|tests FILE...      prints paths, relative to the tree, a line each

* `sfsample/a/b.py` has `tests/a/test_b.py` and `tests/a/test_b_*.py`; without these the tests of its package,
  `tests/test_a.py`; without these all tests in `tests/a`, but not those in directories below it.
* A script has a test in tests/scripts, a document those in tests/docs.
* A test has itself, a helper of tests has none.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"


def is_python(path: Path) -> bool:
    """Whether a file is Python, by its suffix or its first line."""
    if path.suffix:
        return path.suffix == ".py"
    with path.open("rb") as file:
        first = file.readline()
    return first.startswith(b"#!") and b"python" in first


def tests_of(path: Path) -> list[Path]:
    """Return the tests that mirror a file, which may be none."""
    path = path.relative_to(ROOT)
    top = path.parts[0]
    if top == "tests":
        return [ROOT / path] if path.match("test_*.py") else []
    if top == "scripts":
        return tests_named(TESTS / "scripts", path.stem.replace("-", "_"))
    if path.suffix == ".md":
        return tests_in(TESTS / "docs")
    return tests_of_module(path) if top == "sfsample" else []


def tests_of_module(path: Path) -> list[Path]:
    """Return the tests of a module of the package: its own, else those of the nearest directory of tests."""
    names = path.with_suffix("").parts[1:]
    if names[-1] == "__init__":
        names = names[:-1]
    for end in range(len(names), 0, -1):
        directory = TESTS.joinpath(*names[: end - 1])
        if own := tests_named(directory, names[end - 1]):
            return own
    for end in range(len(names), -1, -1):
        if nearest := tests_in(TESTS.joinpath(*names[:end])):
            return nearest
    return []


def tests_named(directory: Path, name: str) -> list[Path]:
    """Return the tests of a subject, which may be split over several files."""
    return sorted({*directory.glob(f"test_{name}.py"), *directory.glob(f"test_{name}_*.py")})


def tests_in(directory: Path) -> list[Path]:
    """Return the tests of a directory, without those below it."""
    return sorted(directory.glob("test_*.py"))


def main() -> None:
    """Print what was asked for."""
    what, *names = sys.argv[1:]
    paths = [Path(name).resolve() for name in names]
    if what == "python":
        found = [path for path in paths if is_python(path)]
    else:
        found = [test for path in paths for test in tests_of(path)]
    for path in dict.fromkeys(found):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
