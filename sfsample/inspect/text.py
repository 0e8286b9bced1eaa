"""Writes an inspection of a module, as text and as JSON.

The keys of the JSON are a contract with scripts: keys may be added, but never changed.  Rules have the
notation of `readelf --sframe`:

* `sp+8`, `fp+16`, `r10+0`: a register plus an offset; r10 has the DWARF number 10;
* `(fp-8)`: the word at the address fp-8;
* `c-16`: the word at the address CFA-16; `=c-16`: the address CFA-16 itself;
* `exp`: a DWARF expression.
"""

from collections.abc import Callable, Iterator
from sys import maxsize
from typing import Any, NamedTuple

from sfsample.core.arch import Arch, arch_of
from sfsample.core.rule import CFA, Rule
from sfsample.errors import FormatError
from sfsample.formats.sframe import SFrameFde, SFrameFre, SFrameTable
from sfsample.inspect.coverage import Coverage
from sfsample.modules.module import Module

_MAX_LINES = 20  # lines of dropped functions, unless verbose

FunctionName = Callable[[int], str]  # vaddr -> text


class Inspection(NamedTuple):
    """The result of inspecting one module."""

    module: Module
    findings: tuple[str, ...]  # texts about damage in the tables
    coverage: Coverage
    base: int | None = None  # load bias; None: the module is in no process


def inspection_text(
    inspection: Inspection, name: FunctionName, *, rows: bool, verbose: bool
) -> Iterator[str]:
    """Yield lines for one module, without newlines; with `rows`, also every row of every function."""
    module, coverage = inspection.module, inspection.coverage
    arch = arch_of(module.image.machine, module.image.byteorder)
    yield module.path
    yield f"  {arch.name if arch else module.image.machine}, build-id {module.build_id or 'none'}"
    if not module.tables.sframe:
        yield "  SFrame: none"
    for table in module.tables.sframe:
        yield from _header_text(table)
    eh_frame = f"{coverage.eh_frame_fdes} functions" if module.tables.eh_frame else "none"
    yield f"  .eh_frame: {eh_frame}"
    if module.tables.go is not None:
        version = module.tables.go.version or "version unknown"
        yield f"  .gopclntab: {module.tables.go.header.functions} functions, {version}"
    yield f"  code: {coverage.text_bytes} bytes; {_shares(coverage)}"
    yield from _dropped_text(coverage, name, maxsize if verbose else _MAX_LINES)
    yield from (f"  problem: {text}" for text in inspection.findings)
    if rows:
        for table in module.tables.sframe:
            yield from _functions_text(table, name)


def _header_text(table: SFrameTable) -> Iterator[str]:
    flags = " ".join(flag.name or "?" for flag in table.flags) or "none"
    ra = "RA in every row" if table.abi.tracks_ra else f"RA at c{table.fixed_ra:+d}"
    yield (f"  SFrame V{table.version} at {table.address:#x}: {table.used} bytes, "
           f"{table.num_fdes} functions, {table.num_fres} rows")  # fmt: skip
    yield f"    {table.abi.name}, {ra}, flags: {flags}"


def _shares(coverage: Coverage) -> str:
    only_cfi = coverage.text_bytes - coverage.uncovered_bytes - coverage.sframe_bytes
    parts = {"SFrame": coverage.sframe_bytes, ".eh_frame only": only_cfi, "nothing": coverage.uncovered_bytes}
    return ", ".join(f"{100 * coverage.share(part):.1f} % {covered_by}" for covered_by, part in parts.items())


def _dropped_text(coverage: Coverage, name: FunctionName, most: int) -> Iterator[str]:
    dropped = coverage.dropped
    if not dropped:
        return
    yield f"  in .eh_frame but not in SFrame: {len(dropped)} functions"
    for start, end in dropped[:most]:
        yield f"    {start:#x}  {end - start} bytes  {name(start)}"
    if len(dropped) > most:
        yield f"    and {len(dropped) - most} more (-v shows all)"


def _functions_text(table: SFrameTable, name: FunctionName) -> Iterator[str]:
    arch = table.abi.arch
    for fde in sorted(table.fdes(), key=lambda fde: fde.start):
        marks = [f"repeats every {fde.rep_size}" if fde.masked else "", "flexible" if fde.fde_type else "",
                 "signal trampoline" if fde.signal else "", "key B" if fde.pauth_b else ""]  # fmt: skip
        yield f"  {fde.start:#x}  {fde.size} bytes  {', '.join([name(fde.start), *filter(None, marks)])}"
        for fre in _rows_of(fde, table):
            cfa, fp = _rule_text(fre.cfa, arch) or "-", _rule_text(fre.fp, arch) or "u"
            ra = f"{_ra_text(fre, table) or 'u'}{' signed' if fre.mangled_ra else ''}"
            text = fre.problem or f"CFA {cfa:10} FP {fp:8} RA {ra}"
            yield f"    +{fre.start:<6} {text}"


def process_text(pid: int, inspections: list[Inspection]) -> Iterator[str]:
    """Yield a table of the modules of a process, with the shares of code that their tables cover."""
    row = "{:>7} {:>8} {:>10} {:>8}  {}".format
    yield f"process {pid}: {len(inspections)} modules"
    yield row("SFrame", "covers", ".eh_frame", "nothing", "module")
    for inspection in inspections:
        coverage, module = inspection.coverage, inspection.module
        version = f"V{module.tables.sframe[0].version}" if module.tables.sframe else "-"
        parts = (coverage.sframe_bytes, coverage.eh_frame_bytes, coverage.uncovered_bytes)
        shares = [f"{100 * coverage.share(part):.1f}%" for part in parts]
        yield row(version, *shares, module.path)


# -- JSON


def inspection_json(inspection: Inspection, *, rows: bool) -> dict[str, Any]:
    """Return the JSON object for one module; with `rows`, also every row of every function."""
    module, coverage, go = inspection.module, inspection.coverage, inspection.module.tables.go
    arch = arch_of(module.image.machine, module.image.byteorder)
    document: dict[str, Any] = {
        "file": module.path,
        "machine": arch.name if arch else str(module.image.machine),
        "build_id": module.build_id,
        "sframe": _tables_json(module, rows=rows) if module.tables.sframe else None,
        "eh_frame": {"fdes": coverage.eh_frame_fdes} if module.tables.eh_frame else None,
        "gopclntab": go and {"functions": go.header.functions, "version": go.version},
        "problems": list(inspection.findings),
        "coverage": {
            "text_bytes": coverage.text_bytes,
            "sframe": round(coverage.share(coverage.sframe_bytes), 6),
            "eh_frame": round(coverage.share(coverage.eh_frame_bytes), 6),
            "neither": round(coverage.share(coverage.uncovered_bytes), 6),
        },
        "dropped": [{"start": hex(start), "size": end - start} for start, end in coverage.dropped],
    }
    if inspection.base is not None:
        document["base"] = hex(inspection.base)
    return document


def _tables_json(module: Module, *, rows: bool) -> dict[str, Any]:
    """Return one JSON object for all SFrame tables of a file, with the header fields of the first table."""
    first = module.tables.sframe[0]
    document: dict[str, Any] = {
        "version": first.version,
        "flags": [flag.name for flag in first.flags],
        "abi": first.abi.name,
        "fixed_fp": first.fixed_fp,
        "fixed_ra": first.fixed_ra,
        "num_fdes": sum(table.num_fdes for table in module.tables.sframe),
        "num_fres": sum(table.num_fres for table in module.tables.sframe),
        "size": sum(table.used for table in module.tables.sframe),
        "tables": len(module.tables.sframe),
    }
    if rows:
        pairs = [(fde, table) for table in module.tables.sframe for fde in table.fdes()]
        pairs.sort(key=lambda pair: pair[0].start)
        document["functions"] = [_function_json(fde, table) for fde, table in pairs]
    return document


def _function_json(fde: SFrameFde, table: SFrameTable) -> dict[str, Any]:
    arch, key = table.abi.arch, "B" if fde.pauth_b else "A"
    return {
        "start": hex(fde.start),
        "size": fde.size,
        "pc_type": "mask" if fde.masked else "inc",
        "rep_size": fde.rep_size if fde.masked else 0,
        "fde_type": "flex" if fde.fde_type else "default",
        "signal": fde.signal,
        "pauth_key": key if table.abi.name.startswith("AARCH64") else None,
        "rows": [
            {"offset": fre.start, "cfa": _rule_text(fre.cfa, arch), "fp": _rule_text(fre.fp, arch),
             "ra": _ra_text(fre, table), "mangled_ra": fre.mangled_ra}
            for fre in _rows_of(fde, table)
        ],
    }  # fmt: skip


# -- rules and rows


def _rule_text(rule: Rule | None, arch: Arch) -> str | None:
    """Return a rule as text; None: no rule, so the register is unchanged."""
    if rule is None:
        return None
    if rule.expression:
        return "exp"
    if rule.base == CFA:
        return f"c{rule.offset:+d}" if rule.deref else f"=c{rule.offset:+d}"
    name = {arch.sp: "sp", arch.fp: "fp"}.get(rule.base, f"r{rule.base}")
    text = f"{name}{rule.offset:+d}"
    return f"({text})" if rule.deref else text


def _ra_text(fre: SFrameFre, table: SFrameTable) -> str | None:
    """Return the RA rule of a row as text; None: the RA is unchanged, or the row is damaged.

    "undefined": the frame is outermost.  "fixed": the header says where the RA is.
    """
    if fre.cfa is None:
        return "undefined" if fre.problem is None else None
    if fre.ra is None:
        return None if table.abi.tracks_ra else "fixed"
    return _rule_text(fre.ra, table.abi.arch)


def _rows_of(fde: SFrameFde, table: SFrameTable) -> tuple[SFrameFre, ...]:
    """Return the rows of a function; (): the rows are damaged, which the findings say."""
    try:
        return table.decode(fde)
    except FormatError:
        return ()
