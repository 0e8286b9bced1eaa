"""`sfsample inspect`: shows the unwind tables of a file or a process, and the share of code they cover."""

from collections.abc import Iterator
from contextlib import closing

from sfsample.cli.file_options import InspectCommand
from sfsample.cli.output_file import Output
from sfsample.cli.terminal import say
from sfsample.core.filesystem import map_and_close, open_regular
from sfsample.core.printable import printable_lines
from sfsample.errors import FormatError, SfsampleError
from sfsample.formats.elf.image import ET_REL, PT_LOAD, ElfImage
from sfsample.formats.sframe import SECTION
from sfsample.inspect.coverage import check_tables, measure_coverage
from sfsample.inspect.text import Inspection, inspection_json, inspection_text, process_text
from sfsample.modules.location import Location
from sfsample.modules.module import Module
from sfsample.process.find_target import TargetFinder
from sfsample.process.process import LiveProcess
from sfsample.report.json_text import json_text
from sfsample.symbolize.symbolizer import Symbolizer


def run(command: InspectCommand) -> int:
    """Inspect, write; return the exit code."""
    output = Output(command.output.path)
    if command.elf is not None:
        output.write(_render_file(command.elf, command))
    else:
        results = [_render_process(pid, command) for pid in TargetFinder(command.target).pids()]
        output.write(("" if command.output.format == "json" else "\n").join(results))
    return 0


def _render_file(path: str, command: InspectCommand) -> str:
    inspection = _inspect(Module(_open(path), 0, path))
    if command.output.format == "json":
        document = inspection_json(inspection, rows=command.rows)
        return json_text({"schema": "sfsample.inspect/1", **document}, indent=1)
    return printable_lines(_text_lines(inspection, command))


def _open(path: str) -> ElfImage:
    try:
        image = ElfImage(map_and_close(open_regular(path)), path)
    except (OSError, ValueError, FormatError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else str(failure).removeprefix(f"{path}+0x0: ")
        pid = path if path.isdecimal() else "PID"
        remedy = f"give a 64-bit ELF file; for a process: sfsample inspect -p {pid}"
        raise SfsampleError(f"cannot inspect: {path}: {why}", remedy) from None
    if image.type == ET_REL:
        raise SfsampleError(f"cannot inspect: {path}: an object file: its code has no addresses yet",
                            "give the program or library that the linker makes of it")  # fmt: skip
    return image


def _inspect(module: Module, base: int | None = None) -> Inspection:
    check_tables(module)
    coverage = measure_coverage(module)
    dropped = [text.removeprefix(f"{module.path}: ") for text in module.problems]
    invalid = [f"{SECTION}: {text}" for table in module.tables.sframe for text in table.check()]
    return Inspection(module, tuple(dict.fromkeys([*dropped, *invalid])), coverage, base)


def _text_lines(inspection: Inspection, command: InspectCommand) -> Iterator[str]:
    symbolizer, module = Symbolizer(), inspection.module
    return inspection_text(inspection, lambda at: symbolizer.frames(Location(module, at, at))[0].text,
                           rows=command.rows, verbose=command.verbose)  # fmt: skip


def _render_process(pid: int, command: InspectCommand) -> str:
    with closing(LiveProcess(pid, attach=False)) as process:  # no thread is stopped
        modules = process.modules.open_all()
        inspections, refusals = [], []
        for module in modules:
            try:
                inspections.append(_inspect(module, _base(module)))
            except SfsampleError as refusal:
                refusals.append(str(refusal))
        problems = [*process.opener.problems, *process.modules.problems, *refusals]
    for problem in () if command.quiet else problems:
        say(problem)
    if command.output.format == "json":
        documents = [inspection_json(inspection, rows=command.rows) for inspection in inspections]
        return json_text({"schema": "sfsample.inspect-process/1", "pid": pid, "modules": documents,
                          "problems": problems}, indent=1)  # fmt: skip
    lines = list(process_text(pid, inspections))
    if command.rows or command.verbose:
        for inspection in inspections:
            lines += ["", *_text_lines(inspection, command)]
    return printable_lines(lines)


def _base(module: Module) -> int:
    """Return the address of the page where the first segment of the module begins."""
    first = min((s.vaddr for s in module.image.segments if s.type == PT_LOAD), default=0)
    return module.address(first) & -4096
