"""Paths, commands, flags and Python names in the documents exist.

A name counts when it stands in code: in backticks, in an indented or fenced block, or as a link's target.
A path is relative to the repository, or to `sfsample/`.  A flag belongs to the command or script before it;
alone in backticks a long flag may belong to any.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import sfsample
from sfsample.cli.commands import ENTRIES
from sfsample.cli.parse import describe

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOTS = (ROOT, ROOT / "sfsample")

# In backticks and with a slash or a suffix, but no file of this repository.
OTHERS = re.compile(r"[/~$.%].*|DIR/.*|sfsample\.\w+/\d")  # paths of the target; a form; a schema
OTHER_FLAGS = {"--cap-add", "--pid", "--security-opt"}  # of programs of which the flag stands alone
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")
SCRIPT = re.compile(r"\bscripts/[\w./-]*\w")
COMMAND = re.compile(r"(?:^|[\s(/$])sfsample +((?:[^\s#|>;)&](?:[^#|>;)&]*[^\s#|>;)&])?))")
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w:+-]*")
FENCE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", flags=re.MULTILINE)


def split(text: str) -> tuple[list[str], list[str], str]:
    """Return the lines of code blocks, what is in backticks, and the text without code blocks."""
    blocks = [block.splitlines() for block in FENCE.findall(text)]
    lines = [line for opening, *block, _ in blocks if opening != "```python" for line in block]
    prose = FENCE.sub("", text)
    lines += re.findall(r"^ {4}(.*)$", prose, flags=re.MULTILINE)
    prose = re.sub(r"^ {4}.*$", "", prose, flags=re.MULTILINE)
    return lines, [" ".join(span.split()) for span in SPAN.findall(prose)], prose


def missing(text: str, where: Path = ROOT) -> Iterator[str]:
    """Yield a sentence for each name in a document that does not exist; links are relative to `where`."""
    lines, spans, prose = split(text)
    yield from missing_links(prose, text, where)
    for span in spans:
        yield from missing_paths(span)
        yield from missing_names(span)
        if span.startswith("--"):  # short ones may be a compiler's
            yield from (f"no flag {flag}" for flag in FLAG.findall(span) if flag not in every_flag())
    for code in [*lines, *spans]:
        yield from missing_scripts(code)
        yield from missing_commands(code)
    for line in lines:
        words = [word for word in line.split() if re.fullmatch(r"[\w/]+\.(py|md)", word)]
        yield from (found for word in words for found in missing_paths(word))


def missing_links(prose: str, text: str, where: Path) -> Iterator[str]:
    for target in LINK.findall(prose):
        path, _, fragment = target.partition("#")
        if "://" in path:
            continue
        page = where / path if path else None
        if page is not None and not page.exists():
            yield f"no file {path}"
        elif fragment and fragment not in anchors(page.read_text(encoding="utf-8") if page else text):
            yield f"no heading #{fragment}"


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to headings."""
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(text)}


def missing_paths(span: str) -> Iterator[str]:
    """Judge a span that is a path: one with a slash, or with a suffix of files in this repository."""
    path = span.partition(" ")[0] if span.startswith("tests/") else span
    is_path = "/" in path or re.search(r"\.(py|md|js|c|svg|toml)$", path)
    if not is_path or not PATH.fullmatch(path) or OTHERS.fullmatch(path):
        return
    if "/" in path.rstrip("/"):
        found = any(any(root.glob(path.rstrip("/"))) for root in ROOTS)
    else:
        found = any((root / path).is_dir() for root in ROOTS) or path in file_names()
    if not found:
        yield f"no file {path}"


@cache
def file_names() -> frozenset[str]:
    inside = [path for top in ("docs", "scripts", "sfsample", "tests") for path in (ROOT / top).rglob("*")]
    return frozenset(path.name for path in [*ROOT.iterdir(), *inside])


def missing_names(span: str) -> Iterator[str]:
    """Judge a span that is a Python name: `sfsample.NAME`, `Class.member` or `ClassName`."""
    if match := re.fullmatch(r"sfsample\.(\w+)", span):
        if not hasattr(sfsample, match[1]):
            yield f"no name {span}"
    elif match := re.fullmatch(r"([A-Z][a-z]\w+)\.(\w+)", span):
        if match[2] not in classes().get(match[1], ()):
            yield f"no name {span}"
    elif re.fullmatch(r"(?:[A-Z][a-z]+){2,}", span) and span not in classes():
        yield f"no class {span}"


@cache
def classes() -> dict[str, set[str]]:
    """Return the names of the members of each class: methods, fields, attributes of self."""
    members: dict[str, set[str]] = {}
    for path in (ROOT / "sfsample").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                inside = members.setdefault(node.name, set())
                inside |= {part.name for part in ast.walk(node) if isinstance(part, ast.FunctionDef)}
                inside |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)
                           and isinstance(part.value, ast.Name) and part.value.id == "self"}  # fmt: skip
                inside |= {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)
                           and isinstance(part.target, ast.Name)}  # fmt: skip
    return members


def missing_scripts(code: str) -> Iterator[str]:
    """Judge the scripts of a command line, and the flags behind each that are its own."""
    for match in SCRIPT.finditer(code):
        script = ROOT / match[0]
        if not script.exists():
            yield f"no file {match[0]}"
        elif script.is_file():
            own = re.sub(r"'[^']*'", "", code[match.end() :])  # a quoted command has flags of its own
            own = re.split(r"[#|>;&]| {3,}", own)[0]
            source = script.read_text(encoding="utf-8")
            passed_on = match[0] in ("scripts/check", "scripts/test")  # to pytest
            for flag in FLAG.findall(own):
                if f'"{flag}"' not in source and flag not in source.split() and not passed_on:
                    yield f"{match[0]} has no flag {flag}"


def missing_commands(code: str) -> Iterator[str]:
    for (line,) in (match.groups() for match in COMMAND.finditer(code)):
        words = line.split(" -- ")[0].split()
        command = "record" if words[0].startswith(("-", "[")) or words[0][0].isdigit() else words[0]
        if re.fullmatch(r"[A-Z]+", command):  # a form: sfsample COMMAND
            continue
        if " ".join(words[:2]) in ENTRIES:  # an action of history
            command = " ".join(words[:2])
        if command not in ENTRIES:
            yield f"no command sfsample {command}"
            continue
        for flag in FLAG.findall(" ".join(words)):
            if flag not in flags(command):
                yield f"sfsample {command} has no flag {flag}"


@cache
def flags(command: str) -> frozenset[str]:
    known = describe(command)
    return frozenset(name for flag in known for name in flag.names) | {"--version"}


@cache
def every_flag() -> frozenset[str]:
    ours = frozenset().union(*map(flags, ENTRIES))
    scripts = [path for path in (ROOT / "scripts").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    sources = [path.read_text(encoding="utf-8") for path in scripts]
    theirs = {flag for source in sources for flag in re.findall('"(--[a-z-]+)"', source)}
    return ours | theirs | OTHER_FLAGS


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_every_name_in_the_document_exists(page: Path):
    assert list(missing(page.read_text(encoding="utf-8"), page.parent)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a page](docs/nowhere.md)", "no file docs/nowhere.md"),
        ("[a heading](README.md#no-such-heading)", "no heading #no-such-heading"),
        ("`sfsample/process/nothing.py`", "no file sfsample/process/nothing.py"),
        ("`process/nothing.py`", "no file process/nothing.py"),
        ("`nowhere/`", "no file nowhere/"),
        ("`nothing.py`", "no file nothing.py"),
        ("    unwind    unwind/nothing.py", "no file unwind/nothing.py"),
        ("`tests/*/test_nothing.py`", "no file tests/*/test_nothing.py"),
        ("`scripts/bench/nothing --seconds 1`", "no file scripts/bench/nothing"),
        ("    scripts/bench/pause --minutes 1", "scripts/bench/pause has no flag --minutes"),
        ("`sfsample explain -p 1`", "no command sfsample explain"),
        ("    $ sfsample dump --explain -p 1", "sfsample dump has no flag --explain"),
        ("    sfsample -p 1 --json  # record has none", "sfsample record has no flag --json"),
        ("`--explain`", "no flag --explain"),
        ("`sfsample.nothing`", "no name sfsample.nothing"),
        ("`Stepper.nothing`", "no name Stepper.nothing"),
        ("`NoSuchClass`", "no class NoSuchClass"),
    ],
)
def test_wrong_name_is_found(text: str, problem: str):
    assert list(missing(text)) == [problem]


def test_picture_of_the_layers_is_current():
    done = subprocess.run([sys.executable, "scripts/draw-layers", "--check"], cwd=ROOT, check=False,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
