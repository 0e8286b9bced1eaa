"""`sfsample inspect` prints the keys of the contract and the words of readelf; its errors say what to do."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures"
KEYS = {"schema", "file", "machine", "build_id", "sframe", "eh_frame", "problems", "coverage"}
SFRAME_KEYS = {"version", "flags", "abi", "fixed_fp", "fixed_ra", "num_fdes", "num_fres", "size"}
FUNCTION_KEYS = {"start", "size", "pc_type", "rep_size", "fde_type", "signal", "pauth_key", "rows"}


def inspect(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "sfsample", "inspect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_json_has_the_keys_of_the_contract(generation):
    done = inspect(FIXTURES / f"v{generation}/target", "--json", "--rows")
    document = json.loads(done.stdout)

    assert (done.returncode, done.stderr) == (0, "")
    assert document.keys() >= KEYS
    assert document["schema"] == "sfsample.inspect/1"
    sframe = document["sframe"]
    assert sframe.keys() >= {*SFRAME_KEYS, "functions"}
    assert (sframe["version"], sframe["abi"], sframe["fixed_ra"]) == (generation, "AMD64_LE", -8)
    assert len(sframe["functions"]) == sframe["num_fdes"]
    assert sum(len(function["rows"]) for function in sframe["functions"]) == sframe["num_fres"]
    starts = [int(function["start"], 16) for function in sframe["functions"]]
    assert starts == sorted(starts)
    for function in sframe["functions"]:
        assert set(function) == FUNCTION_KEYS
        for row in function["rows"]:
            assert set(row) == {"offset", "cfa", "fp", "ra", "mangled_ra"}
    coverage = document["coverage"]
    assert set(coverage) == {"text_bytes", "sframe", "eh_frame", "neither"}
    assert 0.9 < coverage["sframe"] <= coverage["eh_frame"] <= 1
    assert coverage["neither"] == pytest.approx(1 - coverage["eh_frame"], abs=1e-5)


def test_json_has_rows_only_with_the_flag():
    document = json.loads(inspect(FIXTURES / "v3/target", "--json").stdout)

    assert "functions" not in document["sframe"]


def test_json_names_flexible_rules_as_readelf_does():
    document = json.loads(inspect(FIXTURES / "v3/flex.so", "--json", "--rows").stdout)
    words = {
        row[key] for f in document["sframe"]["functions"] for row in f["rows"] for key in ("cfa", "fp", "ra")
    }

    assert {"sp+8", "r10+0", "(fp-8)", "(fp+0)", "c-24", "r0+0", "fixed", "undefined", None} <= words
    assert sum(f["signal"] for f in document["sframe"]["functions"]) == 1
    assert sum(f["fde_type"] == "flex" for f in document["sframe"]["functions"]) == 5


def test_file_without_sframe_has_eh_frame_only():
    document = json.loads(inspect("/bin/sh", "--json").stdout)

    assert document["sframe"] is None
    assert document["eh_frame"]["fdes"] > 0
    assert document["coverage"]["sframe"] == 0


def test_text_shows_tables_and_rows():
    lines = inspect(FIXTURES / "v1/target", "--rows").stdout.splitlines()

    assert lines[0].endswith("v1/target")
    assert any(line.startswith("  SFrame V1 at ") for line in lines)
    assert any("in .eh_frame but not in SFrame: 3 functions" in line for line in lines)
    assert any(line.endswith("  drap_caller") for line in lines), (
        "gas 2.40 drops a realigned function silently"
    )
    assert any(line.split() == ["+0", "CFA", "sp+8", "FP", "u", "RA", "fixed"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        ([], 2, "no process given"),
        (["/bin/sh", "-p", "1"], 2, "more than one way"),
        (["/nonexistent"], 1, "cannot inspect: /nonexistent: No such file or directory"),
        (["/etc/passwd"], 1, "cannot inspect: /etc/passwd"),
        (["/dev/null"], 1, "cannot inspect: /dev/null"),
        (["/"], 1, "cannot inspect: /: Is a directory"),
        (["-p", "999999999"], 3, "no such process"),
    ],
)
def test_mistake_prints_one_line_and_help(arguments, code, what):
    done = inspect(*arguments)

    assert done.returncode == code
    first, *help_lines = done.stderr.splitlines()
    assert first.startswith("sfsample: ")
    assert what in first
    assert all(line.startswith("  ") for line in help_lines)
    assert done.stdout == ""


@pytest.mark.live
@pytest.mark.any_load
def test_process_has_every_module():
    command = [FIXTURES / "v3/target", "library", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as target:
        try:
            assert target.stdout is not None
            assert target.stdout.readline().startswith(b"ready")
            document = json.loads(inspect("-p", target.pid, "--json").stdout)
            text = inspect("-p", target.pid).stdout
        finally:
            target.kill()

    assert document["schema"] == "sfsample.inspect-process/1"
    assert document["pid"] == target.pid
    files = {Path(module["file"]).name: module for module in document["modules"]}
    assert {"target", "libcallee.so", "[vdso]"} <= set(files)
    for module in document["modules"]:
        assert module.keys() >= (KEYS - {"schema"}) | {"base"}
        assert int(module["base"], 16) % 4096 == 0
    assert files["target"]["sframe"]["version"] == 3
    assert re.search(r"(?m)^ +V3 +\d+\.\d% +\d+\.\d% +\d+\.\d%  /.*/target$", text)


def test_object_file_is_refused(tmp_path):
    """The tables of an object file have no addresses before it is linked."""
    program = (FIXTURES / "v3/target").read_bytes()
    path = tmp_path / "x.o"
    path.write_bytes(program[:16] + (1).to_bytes(2, "little") + program[18:])  # e_type: ET_REL
    done = inspect(path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        f"sfsample: cannot inspect: {path}: an object file: its code has no addresses yet",
        "  give the program or library that the linker makes of it",
    ]
