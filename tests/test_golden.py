"""sfsample prints for the core files of the fixtures exactly what is in tests/golden.

`pytest tests/test_golden.py --update-golden` writes an intended change, which is then reviewed as a diff.
"""

import json
import lzma
import re
from pathlib import Path

import pytest

from sfsample.cli import main

TESTS = Path(__file__).parent
CORES = TESTS / "fixtures/cores"
GOLDEN = TESTS / "golden"
PROGRAMS = {
    "x86_64": TESTS / "fixtures/v3/crash",
    "aarch64": TESTS / "fixtures/aarch64/v3/crash",
    "s390x": TESTS / "fixtures/s390x/v3/crash",
    "aarch64_be": TESTS / "fixtures/aarch64_be/v3/crash",
}
CORE_NAMES = [path.stem for path in sorted(CORES.glob("*.xz"))]


def assert_golden(name: str, text: str, config: pytest.Config) -> None:
    """Compare a text with its golden file, or write that."""
    path = GOLDEN / name
    text = text.replace(str(TESTS), "TESTS")
    if config.option.update_golden:
        path.write_text(text)
    assert text == path.read_text(), f"{name}: see the module's docstring"


def printed(capsys, *words: str) -> str:
    """Return what a successful command prints."""
    assert main(list(words)) == 0
    return capsys.readouterr().out


def without_time_and_host(text: str) -> str:
    document = json.loads(text)
    document |= {"time": None, "host": None}
    return json.dumps(document, indent=1) + "\n"


@pytest.mark.parametrize("name", CORE_NAMES)
def test_core(name, tmp_path, capsys, pytestconfig):
    core = tmp_path / "core"
    core.write_bytes(lzma.decompress((CORES / f"{name}.xz").read_bytes()))
    words = ("dump", "--core", str(core), "--exe", str(PROGRAMS[name.partition("-")[0]]))
    text = re.sub(re.escape(str(tmp_path)), "TMP", printed(capsys, *words))
    assert_golden(f"core-{name}.txt", text, pytestconfig)
    document = without_time_and_host(printed(capsys, *words, "--json"))
    assert_golden(f"core-{name}.json", document.replace(str(tmp_path), "TMP"), pytestconfig)
