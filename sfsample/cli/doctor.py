"""`sfsample doctor`: shows whether sfsample may attach, the closed gates (permissions), and remedies."""

import sys
from collections.abc import Iterator
from typing import Any

from sfsample.cli import with_own_path
from sfsample.cli.file_options import DoctorCommand
from sfsample.cli.output_file import Output
from sfsample.core.printable import printable_lines
from sfsample.errors import NotPermitted
from sfsample.process.find_target import TargetFinder
from sfsample.process.permission.check import Diagnosis, diagnose
from sfsample.report.json_text import json_text

_STATUS_TEXTS = {"pass": "pass", "fail": "FAIL", "unknown": "?"}


def run(command: DoctorCommand) -> int:
    """Check the gates and write the result; return the exit code."""
    output = Output(command.output.path)
    target = command.target
    pids = TargetFinder(target).pids() if target.pid or target.name else [None]
    diagnoses = [diagnose(pid) for pid in pids]
    if command.output.format == "json":
        processes = [_diagnosis_json(diagnosis) for diagnosis in diagnoses]
        output.write(json_text({"schema": "sfsample.doctor/1", "processes": processes}, indent=1))
    else:
        texts = (printable_lines(_diagnosis_text(diagnosis)) for diagnosis in diagnoses)
        output.write("\n".join(texts))
    return NotPermitted.exit_code if any(diagnosis.is_closed for diagnosis in diagnoses) else 0


def _diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "pid": diagnosis.pid, "name": diagnosis.name, "may_attach": diagnosis.may_attach,
        "gates": [{"name": gate.name, "status": gate.status, "found": gate.found,
                   "remedy": gate.remedy._asdict() if gate.remedy else None} for gate in diagnosis.gates],
    }  # fmt: skip


def _diagnosis_text(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield lines without newlines: the gates, then each remedy, with the gates that it opens."""
    if diagnosis.pid is None:
        yield "gates for all processes (-p PID adds the gates of the process PID):"
    else:
        may = "may" if diagnosis.may_attach else "may not"
        yield f"process {diagnosis.pid} {diagnosis.name}: sfsample {may} attach"
    for gate in diagnosis.gates:
        yield f"  {_STATUS_TEXTS[gate.status]:<6}{gate.name:<21}{gate.found}"
    closed = [gate for gate in diagnosis.gates if gate.status != "pass" and gate.remedy is not None]
    for remedy in dict.fromkeys(gate.remedy for gate in closed):
        yield ""
        yield f"to open {', '.join(gate.name for gate in closed if gate.remedy == remedy)}:"
        places = remedy._asdict() if remedy else {}
        for place, text in places.items():
            if text:
                yield f"  {place + ':':<12}{with_own_path(text, sys.argv[1:])}"
