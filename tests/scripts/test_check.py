"""scripts/check FILE... knows which files are Python, and which tests mirror a file."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPPERS = "tests/unwind/steppers"


def affected(what: str, *paths: str) -> list[str]:
    command = [sys.executable, "scripts/lib/affected.py", what, *paths]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("sfsample/unwind/unwinder.py", ["tests/unwind/test_unwinder.py"]),
        (
            "sfsample/unwind/steppers/code_analysis/__init__.py",
            ["tests/unwind/steppers/test_code_analysis.py"],
        ),
        ("scripts/check-words", ["tests/scripts/test_check_words.py"]),
        ("tests/test_golden.py", ["tests/test_golden.py"]),
        ("tests/live/targets.py", []),
        ("pyproject.toml", []),
    ],
)
def test_file_has_the_tests_that_mirror_it(path, tests):
    assert (ROOT / path).is_file()
    assert affected("tests", path) == tests


def test_module_whose_subject_is_split_has_all_its_tests():
    expected = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/modules/test_module_map*.py"))
    assert affected("tests", "sfsample/modules/module_map.py") == expected
    assert len(expected) > 1


@pytest.mark.parametrize("module", ["sfsample/inspect/text.py", "sfsample/inspect/__init__.py"])
def test_module_without_a_test_has_those_of_its_directory(module):
    expected = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/inspect/test_*.py"))
    assert affected("tests", module) == expected != []


def test_only_python_is_given_to_ruff():
    paths = ["sfsample/api.py", "scripts/check", "scripts/check-words", "README.md"]
    assert affected("python", *paths) == ["sfsample/api.py", "scripts/check-words"]


def test_each_test_is_named_once():
    paths = ["sfsample/unwind/unwinder.py", "tests/unwind/test_unwinder.py"]
    assert affected("tests", *paths) == ["tests/unwind/test_unwinder.py"]
