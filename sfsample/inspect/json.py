"""Writes an inspection as JSON.

The keys are a contract with scripts: they may be added, never changed.  Rules are in the notation of
inspect/row_text.py.
"""

from typing import Any

from sfsample.core.arch import Arch, arch_of
from sfsample.formats.sframe.section import SFrameFde, SFrameFre, SFrameTable
from sfsample.inspect.inspection import Inspection
from sfsample.inspect.row_text import caller_rules_texts, ra_text, rows_of, rule_text
from sfsample.inspect.verify import Verification
from sfsample.modules.module import Module


def inspection_json(inspection: Inspection, *, rows: bool) -> dict[str, Any]:
    """Return the object for one module.  `rows`: with every row of every function."""
    module, coverage = inspection.module, inspection.coverage
    arch = arch_of(module.image.machine, module.image.byteorder)
    document: dict[str, Any] = {
        "file": module.path,
        "machine": arch.name if arch else str(module.image.machine),
        "build_id": module.build_id,
        "sframe": _tables_json(module, rows=rows) if module.sframe else None,
        "eh_frame": {"fdes": coverage.eh_frame_fdes} if module.eh_frame else None,
        "problems": list(inspection.findings),
        "coverage": {
            "text_bytes": coverage.text_bytes,
            "sframe": round(coverage.share(coverage.sframe_bytes), 6),
            "eh_frame": round(coverage.share(coverage.eh_frame_bytes), 6),
            "neither": round(coverage.share(coverage.uncovered_bytes), 6),
        },
        "dropped": [{"start": hex(start), "size": end - start} for start, end in coverage.dropped],
    }
    if inspection.layout:
        document["layout"] = [{"section": name, "start": hex(start)} for name, start in inspection.layout]
    if inspection.base is not None:
        document["base"] = hex(inspection.base)
    if inspection.verification is not None:
        document["verify"] = _verification_json(inspection.verification, arch)
    return document


def _tables_json(module: Module, *, rows: bool) -> dict[str, Any]:
    """Return the tables as one (some linkers concatenate them): the first header, all functions."""
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
        pairs = [(fde, table) for table in module.sframe for fde in table.fdes()]
        pairs.sort(key=lambda pair: pair[0].start)
        document["functions"] = [_function_json(fde, table) for fde, table in pairs]
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
        "rows": [_row_json(fre, table) for fre in rows_of(fde, table)],
    }


def _row_json(fre: SFrameFre, table: SFrameTable) -> dict[str, Any]:
    arch = table.abi.arch
    return {
        "offset": fre.start,
        "cfa": rule_text(fre.cfa, arch),
        "fp": rule_text(fre.fp, arch),
        "ra": ra_text(fre, table),
        "mangled_ra": fre.mangled_ra,
    }


def _verification_json(verification: Verification, arch: Arch | None) -> dict[str, Any]:
    return {
        "compared": verification.compared,
        "sframe_only": verification.sframe_only,
        "disagreements": [
            {"function": hex(d.function), "pc": hex(d.vaddr), "sframe": caller_rules_texts(d.sframe, arch),
             "eh_frame": caller_rules_texts(d.eh_frame, arch)}
            for d in verification.disagreements
        ],
    }  # fmt: skip
