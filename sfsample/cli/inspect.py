"""`sfsample inspect`: which unwind tables a file or a process has, what they cover, and whether they agree.

Law: a file that cannot be read is one error; a module of a process that cannot be read is one line, and the
others are shown.
"""

import os
from argparse import Namespace
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap

from sfsample.cli.console import Output, targets
from sfsample.cli.terminal import printable, say
from sfsample.errors import FormatError, SfsampleError
from sfsample.formats.elf.image import PT_LOAD, ElfImage
from sfsample.formats.elf.object_file import LinkedObject, lay_out
from sfsample.formats.sframe.section import SECTION
from sfsample.inspect.coverage import measure_coverage
from sfsample.inspect.inspection import Inspection
from sfsample.inspect.json import inspection_json
from sfsample.inspect.text import FunctionName, inspection_text, process_text
from sfsample.inspect.verify import verify
from sfsample.modules.module import Module
from sfsample.process.process import LiveProcess
from sfsample.report.json_text import json_text
from sfsample.symbolize.symbolizer import Symbolizer


def run(arguments: Namespace) -> int:
    """Inspect, write; return the exit code."""
    output = Output(arguments.output)
    try:
        text = _file(arguments) if arguments.elf else _processes(arguments)
        output.write(text)
    finally:
        output.discard()
    return 0


def _file(arguments: Namespace) -> str:
    path = arguments.elf
    file = _open(path)
    found = _inspect(Module(file.image, 0, path), arguments)
    found = found._replace(layout=file.layout, findings=(*_unlinked(file), *found.findings))
    if arguments.json:
        document = inspection_json(found, rows=arguments.rows)
        return json_text({"schema": "sfsample.inspect/1", **document}, indent=1)
    lines = inspection_text(found, _names(found.module), rows=arguments.rows, verbose=arguments.verbose)
    return "".join(f"{printable(line)}\n" for line in lines)


def _unlinked(file: LinkedObject) -> Iterator[str]:
    if file.image.relocatable:
        yield "not linked: its code sections are shown one after another, from 0"
    if file.left_out:
        yield f"relocations of the tables that are not understood: {file.left_out} times"


def _open(path: str) -> LinkedObject:
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise SfsampleError(f"cannot inspect: {path}: is empty", "give an ELF file")
            image = ElfImage(mmap(file.fileno(), 0, access=ACCESS_READ), path)
            return lay_out(image) if image.relocatable else LinkedObject(image, (), 0)
    except FormatError as damage:
        raise SfsampleError(f"cannot inspect: {damage}", "give an ELF file (64-bit), or -p PID") from None
    except (OSError, ValueError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise SfsampleError(f"cannot inspect: {path}: {why}", "give an ELF file, or -p PID") from None


def _inspect(module: Module, arguments: Namespace, base: int | None = None) -> Inspection:
    coverage = measure_coverage(module)
    verification = verify(module) if arguments.verify else None
    return Inspection(module, _findings(module), coverage, verification, base)


def _findings(module: Module) -> tuple[str, ...]:
    """Return what was lost while reading, and what is wrong or repaired in the SFrame tables."""
    lost = [text.removeprefix(f"{module.path}: ") for text in module.problems]
    checked = [f"{SECTION}: {text}" for table in module.sframe for text in table.check()]
    return tuple(dict.fromkeys([*lost, *checked]))


def _names(module: Module) -> FunctionName:
    symbolizer = Symbolizer()

    def name(vaddr: int) -> str:
        return symbolizer.name(module, vaddr, vaddr)

    return name


def _processes(arguments: Namespace) -> str:
    documents, texts = [], []
    for pid in targets(arguments):
        found, problems = _modules(pid, arguments)
        modules = [inspection_json(one, rows=arguments.rows) for one in found] if arguments.json else []
        documents.append({"schema": "sfsample.inspect-process/1", "pid": pid, "modules": modules,
                          "problems": problems})  # fmt: skip
        if not arguments.json:
            texts.append(_process(pid, found, arguments))
        if not arguments.quiet:
            say(*(f"sfsample: {text}" for text in problems))
    if arguments.json:
        return "".join(json_text(document, indent=1) for document in documents)
    return "\n".join(texts)


def _process(pid: int, found: list[Inspection], arguments: Namespace) -> str:
    lines = list(process_text(pid, found))
    if arguments.rows or arguments.verify or arguments.verbose:
        for one in found:
            detail = inspection_text(one, _names(one.module), rows=arguments.rows, verbose=arguments.verbose)
            lines += ["", *detail]
    return "".join(f"{printable(line)}\n" for line in lines)


def _modules(pid: int, arguments: Namespace) -> tuple[list[Inspection], list[str]]:
    """Open every module that has code; no thread is stopped."""
    target = LiveProcess(pid, attach=False)
    try:
        modules = target.modules.open_all()
        found = [_inspect(module, arguments, _base(module)) for module in modules]
        return found, [*target.opener.problems, *target.modules.problems]
    finally:
        target.close()


def _base(module: Module) -> int:
    first = min((s.vaddr for s in module.image.segments if s.type == PT_LOAD), default=0)
    return module.address(first) & -4096
