"""What `inspect` found, as JSON and as text.

Law: the JSON is the contract's, key by key; row words are readelf's: `sp+8`, `fp+16`, `c-16` (a slot from the
CFA), `r10+0` (another register by DWARF number), `(fp-8)` (the word stored there).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sfsample.core.arch import Arch, arch_of
from sfsample.core.rule import CFA, Rule
from sfsample.errors import FormatError
from sfsample.formats.sframe.section import SFrameFde, SFrameFre, SFrameTable
from sfsample.inspect.coverage import Coverage
from sfsample.inspect.verify import TableAnswer, Verdict
from sfsample.modules.module import Module

_SHOWN = 20  # dropped functions and disagreements, unless verbose

FunctionName = Callable[[int], str]  # vaddr -> text


class Inspection(NamedTuple):
    """One module: its tables, what is wrong with them, what they cover, and whether they agree.

    `verdict` is None unless it was asked for, `base` None outside a process; `layout` tells where the code
    sections of an object file were put.
    """

    module: Module
    findings: tuple[str, ...]
    coverage: Coverage
    verdict: Verdict | None
    base: int | None = None
    layout: tuple[tuple[str, int], ...] = ()


# -- words


def rule_text(rule: Rule, arch: Arch) -> str:
    """Return a rule in readelf's words."""
    if rule.expression:
        return "exp"
    if rule.base == CFA:
        return f"c{rule.offset:+d}" if rule.deref else f"=c{rule.offset:+d}"
    name = {arch.sp: "sp", arch.fp: "fp"}.get(rule.base, f"r{rule.base}")
    text = f"{name}{rule.offset:+d}"
    return f"({text})" if rule.deref else text


def _cfa(fre: SFrameFre, arch: Arch) -> str | None:
    return None if fre.cfa is None else rule_text(fre.cfa, arch)


def _ra(fre: SFrameFre, table: SFrameTable) -> str | None:
    if fre.cfa is None:
        return "undefined" if fre.problem is None else None
    if fre.ra is None:
        return None if table.abi.tracks_ra else "fixed"
    return rule_text(fre.ra, table.abi.arch)


def _fp(fre: SFrameFre, arch: Arch) -> str | None:
    return None if fre.fp is None else rule_text(fre.fp, arch)


# -- JSON


def inspection_json(found: Inspection, *, rows: bool) -> dict[str, Any]:
    """Return the object for one module."""
    module, coverage = found.module, found.coverage
    arch = arch_of(module.image.machine, module.image.byteorder)
    document: dict[str, Any] = {
        "file": module.path,
        "machine": arch.name if arch else str(module.image.machine),
        "build_id": module.build_id,
        "sframe": _tables_json(module, rows=rows) if module.sframe else None,
        "eh_frame": {"fdes": coverage.eh_frame_fdes} if module.eh_frame else None,
        "problems": list(found.findings),
        "coverage": {
            "text_bytes": coverage.text,
            "sframe": round(coverage.share(coverage.sframe), 6),
            "eh_frame": round(coverage.share(coverage.eh_frame), 6),
            "neither": round(coverage.share(coverage.neither), 6),
        },
        "dropped": [{"start": hex(start), "size": end - start} for start, end in coverage.dropped],
    }
    if found.layout:
        document["layout"] = [{"section": name, "start": hex(start)} for name, start in found.layout]
    if found.base is not None:
        document["base"] = hex(found.base)
    if found.verdict is not None:
        document["verify"] = _verdict_json(found.verdict, arch)
    return document


def _tables_json(module: Module, *, rows: bool) -> dict[str, Any]:
    """Several tables (a concatenating linker) are shown as one: the first header, all functions."""
    first = module.sframe[0]
    document: dict[str, Any] = {
        "version": first.version,
        "flags": [flag.name for flag in first.flags],
        "abi": first.abi.name,
        "fixed_fp": first.fixed_fp,
        "fixed_ra": first.fixed_ra,
        "num_fdes": sum(table.num_fdes for table in module.sframe),
        "num_fres": sum(table.num_fres for table in module.sframe),
        "size": sum(table.used for table in module.sframe),
        "tables": len(module.sframe),
    }
    if rows:
        both = [(fde, table) for table in module.sframe for fde in table.fdes()]
        both.sort(key=lambda pair: pair[0].start)
        document["functions"] = [_function_json(fde, table) for fde, table in both]
    return document


def _function_json(fde: SFrameFde, table: SFrameTable) -> dict[str, Any]:
    key = "B" if fde.pauth_b else "A"
    return {
        "start": hex(fde.start),
        "size": fde.size,
        "pc_type": "mask" if fde.masked else "inc",
        "rep_size": fde.rep_size if fde.masked else 0,
        "fde_type": "flex" if fde.fde_type else "default",
        "signal": fde.signal,
        "pauth_key": key if table.abi.name.startswith("AARCH64") else None,
        "rows": [_row_json(fre, table) for fre in _rows(fde, table)],
    }


def _row_json(fre: SFrameFre, table: SFrameTable) -> dict[str, Any]:
    arch = table.abi.arch
    return {"offset": fre.start, "cfa": _cfa(fre, arch), "fp": _fp(fre, arch), "ra": _ra(fre, table),
            "mangled_ra": fre.mangled_ra}  # fmt: skip


def _rows(fde: SFrameFde, table: SFrameTable) -> tuple[SFrameFre, ...]:
    try:
        return table.decode(fde)
    except FormatError:
        return ()  # it is among the findings


def _verdict_json(verdict: Verdict, arch: Arch | None) -> dict[str, Any]:
    return {
        "compared": verdict.compared,
        "sframe_only": verdict.sframe_only,
        "disagreements": [
            {"function": hex(d.function), "pc": hex(d.vaddr), "sframe": _said_json(d.sframe, arch),
             "eh_frame": _said_json(d.eh_frame, arch)}
            for d in verdict.disagreements
        ],
    }  # fmt: skip


def _said_json(said: TableAnswer, arch: Arch | None) -> dict[str, str | None]:
    if arch is None or said.ra is None:
        return {"cfa": None, "ra": "undefined", "fp": None}
    texts = {"cfa": said.cfa, "ra": said.ra, "fp": said.fp}
    return {key: None if rule is None else rule_text(rule, arch) for key, rule in texts.items()}


# -- text


def inspection_text(found: Inspection, name: FunctionName, *, rows: bool, verbose: bool) -> Iterator[str]:
    """Yield lines for one module."""
    module, coverage = found.module, found.coverage
    arch = arch_of(module.image.machine, module.image.byteorder)
    yield module.path
    yield f"  {arch.name if arch else module.image.machine}, build-id {module.build_id or 'none'}"
    if not module.sframe:
        yield "  SFrame: none"
    for table in module.sframe:
        yield from _header_text(table)
    yield f"  .eh_frame: {coverage.eh_frame_fdes} functions" if module.eh_frame else "  .eh_frame: none"
    yield f"  code: {coverage.text} bytes; {_shares(coverage)}"
    if len(found.layout) > 1:
        yield from (f"    {start:#x}  section {name}" for name, start in found.layout)
    yield from _dropped_text(coverage, name, verbose=verbose)
    yield from (f"  problem: {text}" for text in found.findings)
    if found.verdict is not None and arch is not None:
        yield from _verdict_text(found.verdict, name, arch, verbose=verbose)
    if rows:
        for table in module.sframe:
            yield from _functions_text(table, name)


def _header_text(table: SFrameTable) -> Iterator[str]:
    flags = " ".join(flag.name or "?" for flag in table.flags) or "none"
    ra = "RA in every row" if table.abi.tracks_ra else f"RA at c{table.fixed_ra:+d}"
    yield (
        f"  SFrame V{table.version} at {table.address:#x}: {table.used} bytes, {table.num_fdes} functions, "
        f"{table.num_fres} rows"
    )
    yield f"    {table.abi.name}, {ra}, flags: {flags}"


def _shares(coverage: Coverage) -> str:
    only_cfi = coverage.text - coverage.neither - coverage.sframe
    parts = ((coverage.sframe, "SFrame"), (only_cfi, ".eh_frame only"), (coverage.neither, "nothing"))
    return ", ".join(f"{100 * coverage.share(part):.1f} % {what}" for part, what in parts)


def _dropped_text(coverage: Coverage, name: FunctionName, *, verbose: bool) -> Iterator[str]:
    dropped = coverage.dropped
    if not dropped:
        return
    yield f"  in .eh_frame but not in SFrame: {len(dropped)} functions"
    for start, end in dropped if verbose else dropped[:_SHOWN]:
        yield f"    {start:#x}  {end - start} bytes  {name(start)}"
    if len(dropped) > _SHOWN and not verbose:
        yield f"    and {len(dropped) - _SHOWN} more (-v shows all)"


def _verdict_text(verdict: Verdict, name: FunctionName, arch: Arch, *, verbose: bool) -> Iterator[str]:
    wrong = verdict.disagreements
    yield (
        f"  verified: {verdict.compared} intervals compared with .eh_frame, {len(wrong)} disagree"
        + (f"; {verdict.sframe_only} only in SFrame" if verdict.sframe_only else "")
    )
    for one in wrong if verbose else wrong[:_SHOWN]:
        yield f"    {one.vaddr:#x}  {name(one.function)}+{one.vaddr - one.function:#x}"
        yield f"      SFrame     {_said_text(one.sframe, arch)}"
        yield f"      .eh_frame  {_said_text(one.eh_frame, arch)}"
    if len(wrong) > _SHOWN and not verbose:
        yield f"    and {len(wrong) - _SHOWN} more (-v shows all)"


def _said_text(said: TableAnswer, arch: Arch) -> str:
    texts = _said_json(said, arch)
    signal = ", signal frame" if said.signal else ""
    return f"CFA {texts['cfa'] or '-'}, RA {texts['ra']}, FP {texts['fp'] or 'unchanged'}{signal}"


def _functions_text(table: SFrameTable, name: FunctionName) -> Iterator[str]:
    arch = table.abi.arch
    for fde in sorted(table.fdes(), key=lambda fde: fde.start):
        marks = [f"repeats every {fde.rep_size}" if fde.masked else "", "flexible" if fde.fde_type else "",
                 "signal trampoline" if fde.signal else "", "key B" if fde.pauth_b else ""]  # fmt: skip
        yield f"  {fde.start:#x}  {fde.size} bytes  {', '.join([name(fde.start), *filter(None, marks)])}"
        for fre in _rows(fde, table):
            ra = _ra(fre, table)
            mark = " signed" if fre.mangled_ra else ""
            text = (
                fre.problem
                or f"CFA {_cfa(fre, arch) or '-':10} FP {_fp(fre, arch) or 'u':8} RA {ra or 'u'}{mark}"
            )
            yield f"    +{fre.start:<6} {text}"


def process_text(pid: int, found: list[Inspection]) -> Iterator[str]:
    """Yield a table of a process's modules and what the sampler will do in each."""
    row = "{:>7} {:>8} {:>10} {:>8} {:>9}  {:24} {}".format
    yield f"process {pid}: {len(found)} modules"
    yield row("SFrame", "covers", ".eh_frame", "nothing", "size/CFI", "unwinds with", "module")
    for one in found:
        coverage, module = one.coverage, one.module
        version = f"V{module.sframe[0].version}" if module.sframe else "-"
        parts = (coverage.sframe, coverage.eh_frame, coverage.neither)
        shares = [f"{100 * coverage.share(part):.1f}%" for part in parts]
        sizes = coverage.sframe_size, coverage.cfi_size
        yield row(
            version, *shares, f"{sizes[0] / sizes[1]:.2f}" if all(sizes) else "-", _plan(one), module.path
        )


def _plan(found: Inspection) -> str:
    """Say which steppers the sampler will use in a module."""
    coverage, module = found.coverage, found.module
    steps = []
    if coverage.sframe:
        steps.append("sframe")
    if module.eh_frame and coverage.text > coverage.neither + coverage.sframe:
        steps.append("eh_frame")
    if coverage.neither:
        steps.append("frame_pointer")
    return ", ".join(steps) or "nothing"
