"""Writes an inspection as text.

Rules are in the notation of inspect/row_text.py.
"""

from collections.abc import Callable, Iterator

from sfsample.core.arch import Arch, arch_of
from sfsample.formats.sframe import SFrameTable
from sfsample.inspect.coverage import Coverage
from sfsample.inspect.inspection import Inspection
from sfsample.inspect.row_text import caller_rules_texts, ra_text, rows_of, rule_text
from sfsample.inspect.verify import CallerRules, Verification

_MAX_LINES = 20  # dropped functions, or disagreements, unless verbose

FunctionName = Callable[[int], str]  # vaddr -> text


def inspection_text(
    inspection: Inspection, name: FunctionName, *, rows: bool, verbose: bool
) -> Iterator[str]:
    """Yield lines for one module, without newlines.  `rows`: with every row of every function."""
    module, coverage = inspection.module, inspection.coverage
    arch = arch_of(module.image.machine, module.image.byteorder)
    yield module.path
    yield f"  {arch.name if arch else module.image.machine}, build-id {module.build_id or 'none'}"
    if not module.sframe:
        yield "  SFrame: none"
    for table in module.sframe:
        yield from _header_text(table)
    yield f"  .eh_frame: {coverage.eh_frame_fdes} functions" if module.eh_frame else "  .eh_frame: none"
    yield f"  code: {coverage.text_bytes} bytes; {_shares(coverage)}"
    if len(inspection.layout) > 1:
        yield from (f"    {start:#x}  section {name}" for name, start in inspection.layout)
    yield from _dropped_text(coverage, name, verbose=verbose)
    yield from (f"  problem: {text}" for text in inspection.findings)
    if inspection.verification is not None and arch is not None:
        yield from _verification_text(inspection.verification, name, arch, verbose=verbose)
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
    only_cfi = coverage.text_bytes - coverage.uncovered_bytes - coverage.sframe_bytes
    parts = (
        (coverage.sframe_bytes, "SFrame"),
        (only_cfi, ".eh_frame only"),
        (coverage.uncovered_bytes, "nothing"),
    )
    return ", ".join(f"{100 * coverage.share(part):.1f} % {covered_by}" for part, covered_by in parts)


def _dropped_text(coverage: Coverage, name: FunctionName, *, verbose: bool) -> Iterator[str]:
    dropped = coverage.dropped
    if not dropped:
        return
    yield f"  in .eh_frame but not in SFrame: {len(dropped)} functions"
    for start, end in dropped if verbose else dropped[:_MAX_LINES]:
        yield f"    {start:#x}  {end - start} bytes  {name(start)}"
    if len(dropped) > _MAX_LINES and not verbose:
        yield f"    and {len(dropped) - _MAX_LINES} more (-v shows all)"


def _verification_text(
    verification: Verification, name: FunctionName, arch: Arch, *, verbose: bool
) -> Iterator[str]:
    found = verification.disagreements
    yield (
        f"  verified: {verification.compared} intervals compared with .eh_frame, {len(found)} disagree"
        + (f"; {verification.sframe_only} only in SFrame" if verification.sframe_only else "")
    )
    for function, vaddr, sframe, eh_frame in found if verbose else found[:_MAX_LINES]:
        yield f"    {vaddr:#x}  {name(function)}+{vaddr - function:#x}"
        yield f"      SFrame     {_rules_text(sframe, arch)}"
        yield f"      .eh_frame  {_rules_text(eh_frame, arch)}"
    if len(found) > _MAX_LINES and not verbose:
        yield f"    and {len(found) - _MAX_LINES} more (-v shows all)"


def _rules_text(rules: CallerRules, arch: Arch) -> str:
    texts = caller_rules_texts(rules, arch)
    signal = ", signal frame" if rules.signal else ""
    return f"CFA {texts['cfa'] or '-'}, RA {texts['ra']}, FP {texts['fp'] or 'unchanged'}{signal}"


def _functions_text(table: SFrameTable, name: FunctionName) -> Iterator[str]:
    arch = table.abi.arch
    for fde in sorted(table.fdes(), key=lambda fde: fde.start):
        marks = [f"repeats every {fde.rep_size}" if fde.masked else "", "flexible" if fde.fde_type else "",
                 "signal trampoline" if fde.signal else "", "key B" if fde.pauth_b else ""]  # fmt: skip
        yield f"  {fde.start:#x}  {fde.size} bytes  {', '.join([name(fde.start), *filter(None, marks)])}"
        for fre in rows_of(fde, table):
            cfa, fp = rule_text(fre.cfa, arch) or "-", rule_text(fre.fp, arch) or "u"
            ra = f"{ra_text(fre, table) or 'u'}{' signed' if fre.mangled_ra else ''}"
            text = fre.problem or f"CFA {cfa:10} FP {fp:8} RA {ra}"
            yield f"    +{fre.start:<6} {text}"


def process_text(pid: int, inspections: list[Inspection]) -> Iterator[str]:
    """Yield a table of the modules of a process, with the steppers that the sampler will use in each."""
    row = "{:>7} {:>8} {:>10} {:>8} {:>9}  {:24} {}".format
    yield f"process {pid}: {len(inspections)} modules"
    yield row("SFrame", "covers", ".eh_frame", "nothing", "size/CFI", "unwinds with", "module")
    for inspection in inspections:
        coverage, module = inspection.coverage, inspection.module
        version = f"V{module.sframe[0].version}" if module.sframe else "-"
        parts = (coverage.sframe_bytes, coverage.eh_frame_bytes, coverage.uncovered_bytes)
        shares = [f"{100 * coverage.share(part):.1f}%" for part in parts]
        sizes = coverage.sframe_table_bytes, coverage.cfi_table_bytes
        ratio = f"{sizes[0] / sizes[1]:.2f}" if all(sizes) else "-"
        yield row(version, *shares, ratio, _steppers(inspection), module.path)


def _steppers(inspection: Inspection) -> str:
    """Return the names of the steppers that the sampler will use in a module."""
    coverage, module = inspection.coverage, inspection.module
    only_cfi = coverage.text_bytes - coverage.uncovered_bytes - coverage.sframe_bytes
    bytes_of = {
        "sframe": coverage.sframe_bytes,
        "eh_frame": only_cfi if module.eh_frame else 0,
        "frame_pointer": coverage.uncovered_bytes,
    }
    return ", ".join(stepper for stepper, size in bytes_of.items() if size > 0) or "nothing"
