"""A profile of a stripped program is symbolized later, by build-id, with debug files of another machine."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sfsample.cli import main
from sfsample.errors import SfsampleError
from sfsample.formats.elf.image import ElfImage
from sfsample.symbolize.options import SymbolOptions
from sfsample.symbolize.symbolizer import OfflineSymbolizer
from tests.builders.symbol_tables import SymbolTable

WHOLE = Path(__file__).parents[1] / "fixtures" / "v3" / "target"
GONE = "/opt/gone/program"

pytestmark = pytest.mark.skipif(shutil.which("objcopy") is None, reason="objcopy is not installed")


@pytest.fixture(scope="module")
def image():
    return ElfImage(WHOLE.read_bytes(), "whole")


@pytest.fixture(scope="module")
def main_at(image):
    table = SymbolTable(*image.symbols(), image.byteorder, image.code_sections)
    return next(found for start, end in image.executable for vaddr in range(start, end)
                if (found := table.find(vaddr)) and found.name == "main")  # fmt: skip


@pytest.fixture
def debug_dir(tmp_path, image):
    """Return a directory with only the debug file, by build-id."""
    where = tmp_path / "symbols" / ".build-id" / image.build_id[:2] / f"{image.build_id[2:]}.debug"
    where.parent.mkdir(parents=True)
    subprocess.run(["objcopy", "--only-keep-debug", WHOLE, where], check=True)
    return tmp_path / "symbols"


def profile(path, build_id, *frames):
    """Write a profile whose frames, innermost first, are (offset, found, function)."""
    rows = [
        {"text": function or f"[program+{offset:#x}]", "function": function, "module": 0,
         "offset": hex(offset), "inlined": False, "found": found} for offset, found, function in frames
    ]  # fmt: skip
    document = {
        "schema": "sfsample.profile/1",
        "weights": ["samples"],
        "threads": [{"process": "program", "name": "program", "pid": 1, "tid": 1}],
        "modules": [{"path": GONE, "build_id": build_id}],
        "frames": rows,
        "stacks": [{"thread": 0, "frames": [*range(len(rows))], "stop_reason": "outermost", "samples": 3}],
    }
    path.write_text(json.dumps(document))


def convert(capsys, *words):
    code = main(["convert", *map(str, words)])
    output = capsys.readouterr()
    assert not output.err
    return code, output.out


def test_a_debug_file_is_found_by_build_id(tmp_path, image, main_at, debug_dir, capsys):
    end = main_at.start + main_at.size  # where a call that never returns would return to
    profile(tmp_path / "p.json", image.build_id, (main_at.start, "context", None), (end, "eh_frame", None),
            (main_at.start, "signal_frame", "kept"))  # fmt: skip
    assert convert(capsys, tmp_path / "p.json") == (
        0, f"program;kept;[program+{end:#x}];[program+{main_at.start:#x}] 3\n")  # fmt: skip
    assert convert(capsys, tmp_path / "p.json", "--symbolize", "--debug-dir", debug_dir) == (
        0, "program;kept;main;main 3\n")  # fmt: skip


def test_the_program_itself_is_used(tmp_path, image, main_at, capsys):
    shutil.copy(WHOLE, tmp_path / "program")
    profile(tmp_path / "p.json", image.build_id, (main_at.start, "context", None))
    assert (
        convert(capsys, tmp_path / "p.json", "--symbolize", "--debug-dir", tmp_path)[1] == "program;main 3\n"
    )


def test_a_file_with_another_build_id_is_refused(tmp_path, image, main_at, debug_dir, capsys):
    wrong = "ab" * 20
    other = debug_dir / ".build-id" / "ab" / f"{wrong[2:]}.debug"
    other.parent.mkdir()
    shutil.copy(WHOLE, other)
    profile(tmp_path / "p.json", wrong, (main_at.start, "context", None))
    assert "[program+" in convert(capsys, tmp_path / "p.json", "--symbolize", "--debug-dir", debug_dir)[1]


@pytest.mark.parametrize("build_id", ["", "../../etc", "ab\0", "x" * 5000])
def test_a_hostile_build_id_finds_nothing(build_id, tmp_path):
    symbolizer = OfflineSymbolizer(SymbolOptions(debug_dirs=(str(tmp_path),)))
    assert symbolizer.frames("/etc/passwd", build_id, 0x1000, exact=True) == ()
    assert symbolizer.frames("\0", build_id, 0x1000, exact=True) == ()


def test_symbol_flags_need_symbolize(tmp_path, capsys):
    assert main(["convert", "x.json", "--inlines"]) == 2
    assert "--inlines needs --symbolize" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "said"), [(SfsampleError("debuginfod: refused"), "refused"),
                                              (b"<html>", "not an ELF file")])  # fmt: skip
def test_a_failure_of_a_server_costs_names_and_is_said(answer, said):
    def fetch(_build_id):
        if isinstance(answer, Exception):
            raise answer
        return answer

    texts = []
    symbolizer = OfflineSymbolizer(SymbolOptions(fetch=fetch, progress=texts.append))
    assert symbolizer.frames("/nowhere/program", "ab" * 20, 0x1000, exact=True) == ()
    assert symbolizer.frames("/nowhere/program", "ab" * 20, 0x2000, exact=True) == ()
    [text] = texts
    assert text.startswith("/nowhere/program: ")
    assert said in text
