"""`sfsample doctor`: may sfsample attach, and if not, which gate is closed and what opens it.

Law: exit code 0 when it may, 4 when some process may not be attached to, or a gate to it is closed and the
attempt would disturb it; nothing is stopped.
"""

from argparse import Namespace

from sfsample.cli.console import Output, targets
from sfsample.cli.doctor_text import diagnosis_json, diagnosis_text
from sfsample.cli.terminal import printable
from sfsample.errors import NotPermitted
from sfsample.process.permission.diagnosis import NOT_NEEDED, Diagnosis, diagnose


def run(arguments: Namespace) -> int:
    """Look at the gates, write; return the exit code."""
    output = Output(arguments.output)
    try:
        pids = targets(arguments) if arguments.pid or arguments.name else [None]
        diagnoses = [diagnose(pid) for pid in pids]
        output.write(_json(diagnoses) if arguments.json else _text(diagnoses))
    finally:
        output.discard()
    return NotPermitted.exit_code if any(_closed(diagnosis) for diagnosis in diagnoses) else 0


def _closed(diagnosis: Diagnosis) -> bool:
    if diagnosis.may_attach is None:  # not tried
        return any(gate.status == "fail" for gate in diagnosis.gates if gate.name not in NOT_NEEDED)
    return not diagnosis.may_attach


def _json(diagnoses: list[Diagnosis]) -> str:
    from sfsample.report.json_text import json_text

    processes = [diagnosis_json(diagnosis) for diagnosis in diagnoses]
    return json_text({"schema": "sfsample.doctor/1", "processes": processes}, indent=1)


def _text(diagnoses: list[Diagnosis]) -> str:
    return "\n".join("".join(f"{printable(line)}\n" for line in diagnosis_text(d)) for d in diagnoses)
