"""Tells whether much of the CPU time has no sample, and why.

Either threads run so briefly that they have left their CPU when sfsample comes to stop them: there are few
samples.  Or they end before a sample is taken, or soon after: a sample by a stop stands only for the CPU time
until then.
"""

from math import sqrt

from sfsample.recording.processes import Processes
from sfsample.recording.stats import Stats

_DEVIATIONS = 3  # fewer than by chance: standard deviations of a count


class SparseSamples:
    """Compares the samples of cpu mode with the CPU time of the processes since `restart`.

    Less than `enough` of the samples that the CPU time is worth (0 to 1), and not by chance, are too few.
    """

    def __init__(self, processes: Processes, stats: Stats, enough: float) -> None:
        self._processes, self._stats, self._enough = processes, stats, enough
        self.restart()

    def restart(self) -> None:
        """Forget what was before."""
        self._cpu_ns = self._processes.cpu_ns()
        self._samples, self._sampled_ns = self._stats.samples, self._stats.cpu_sampled_ns
        self._left_out = self._ticks_left_out()

    def _ticks_left_out(self) -> int:
        return self._stats.late_ticks + self._stats.spared_ticks

    def too_few(self) -> bool:
        """Return whether there are too few samples."""
        return self._lack(self._stats.samples - self._samples)

    def stand_for_little(self) -> bool:
        """Return whether samples stand for too little of the CPU time."""
        return self._lack((self._stats.cpu_sampled_ns - self._sampled_ns) / 1e9 * self._stats.rate_hz)

    def _lack(self, samples: float) -> bool:
        due = max(0, self._processes.cpu_ns() - self._cpu_ns) / 1e9 * self._stats.rate_hz
        due -= min(due, self._ticks_left_out() - self._left_out)
        return samples < min(self._enough * due, due - _DEVIATIONS * sqrt(due))
