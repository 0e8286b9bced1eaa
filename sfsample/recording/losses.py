"""Says what a recording has lost: one list of kinds, in the same words wherever they are shown."""

from typing import NamedTuple


class Loss(NamedTuple):
    """One kind of loss.  `reason` names it in the metrics of `watch --listen`, `text` in a sentence."""

    reason: str
    number: int
    text: str


def losses(
    *, ticks: int, late_ticks: int, spared_ticks: int, failed_captures: int, samples: int, whole_stacks: int
) -> list[Loss]:
    """Return every kind of loss, also those whose number is 0."""
    truncated = max(0, samples - whole_stacks)
    return [
        Loss("truncated stack", truncated, f"{truncated} of {samples} samples have a truncated stack"),
        Loss("missed tick", late_ticks, f"{late_ticks} of {ticks} ticks missed"),
        Loss("skipped tick", spared_ticks,
             f"{spared_ticks} of {ticks} ticks skipped to stay below --max-overhead"),
        Loss("failed capture", failed_captures, f"{failed_captures} captures failed"),
    ]  # fmt: skip


def coverage_of(sampled_ns: int, charged_ns: int) -> float | None:
    """Return the share of the CPU time that samples stand for, 0 to 1; None: no CPU time was used."""
    return min(1.0, max(0, sampled_ns) / charged_ns) if charged_ns > 0 else None
