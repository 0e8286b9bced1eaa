"""A diagnosis as text and as JSON.

Law: one line per gate, with what was seen; then what to do about those that are closed, or may be.
"""

from collections.abc import Iterator
from typing import Any

from sfsample.process.permission.diagnosis import Diagnosis
from sfsample.process.permission.gates import Gate

_SHOWN = {"pass": "pass", "fail": "FAIL", "unknown": "?"}


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return one element of `processes`."""
    return {
        "pid": diagnosis.pid,
        "name": diagnosis.name,
        "may_attach": diagnosis.may_attach,
        "gates": [
            {"name": gate.name, "status": gate.status, "found": gate.found,
             "remedy": gate.remedy._asdict() if gate.remedy else None}
            for gate in diagnosis.gates
        ],
    }  # fmt: skip


def diagnosis_text(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield lines, without newlines."""
    if diagnosis.pid is None:
        yield "sfsample, whatever the process (-p PID looks at the rest):"
    else:
        yield f"process {diagnosis.pid} {diagnosis.name}: {_summary(diagnosis)}"
    for gate in diagnosis.gates:
        yield f"  {_SHOWN[gate.status]:<6}{gate.name:<21}{gate.found}"
    yield from _ways(diagnosis.gates)


def _summary(diagnosis: Diagnosis) -> str:
    if diagnosis.may_attach is None:
        return "not tried"
    return "sfsample may attach" if diagnosis.may_attach else "sfsample may not attach"


def _ways(gates: tuple[Gate, ...]) -> Iterator[str]:
    """Say what to do, once where several gates want the same."""
    wanted = [gate for gate in gates if gate.status != "pass" and gate.remedy is not None]
    for remedy in dict.fromkeys(gate.remedy for gate in wanted):
        yield ""
        yield f"to open {', '.join(gate.name for gate in wanted if gate.remedy == remedy)}:"
        ways = remedy._asdict() if remedy else {}
        yield from (f"  {place + ':':<12}{way}" for place, way in ways.items() if way)
