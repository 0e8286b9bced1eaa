"""Of processes that come and go, those that cannot be sampled are left out; of given ones, none is."""

import pytest

from sfsample.errors import NoSuchProcess, NotPermitted, TargetError
from sfsample.recording.processes import Processes
from sfsample.recording.stats import Stats

REFUSALS = {2: NoSuchProcess(2, "process has ended: 2"), 3: NotPermitted(3, "not permitted to trace: 3")}


def opened(pids: list[int], stats: Stats, *, all_of: bool) -> list[object]:
    def open_process(pid: int) -> int:
        if pid in REFUSALS:
            raise REFUSALS[pid]
        return pid

    processes = Processes(())
    processes.open_named(pids, open_process, stats, all_of=all_of)  # type: ignore[arg-type]
    return [*processes.named]


def test_processes_that_cannot_be_sampled_are_left_out_and_counted() -> None:
    stats = Stats(19.0)
    assert opened([2, 1, 3, 4], stats, all_of=False) == [1, 4]
    assert dict(stats.problems) == {"process not recorded: not permitted to trace: 3": 1}


@pytest.mark.parametrize(("pids", "all_of"), [([1, 3], True), ([3, 2], False)])
def test_refusal_is_raised_where_all_are_wanted_or_none_is_left(pids: list[int], all_of: bool) -> None:
    with pytest.raises(TargetError) as refused:
        opened(pids, Stats(19.0), all_of=all_of)
    assert refused.value is REFUSALS[3]
