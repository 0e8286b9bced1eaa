"""Holders are blamed only if the owner is the same before and after the look at its stack."""

from types import SimpleNamespace

from sfsample.core.snapshot import Capture
from sfsample.core.stack import Stack, StopReason
from sfsample.core.wait_kind import WaitKind
from sfsample.modules.location import UNSEEN, Location
from sfsample.process.facts.descriptors import NearEnd
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.recording.blame import Blame
from sfsample.recording.due_threads import SampledThread
from sfsample.recording.sample import BEGINNING
from sfsample.recording.wait_finder import FoundWait
from sfsample.waiting.waits import Wait
from tests.recording import fake_process

WHOLE = Stack((), StopReason.OUTERMOST)


class Counted:
    """A recorder that keeps the texts of the stack that it counts."""

    def __init__(self) -> None:
        self.now = BEGINNING
        self.stacks: dict[int, list[str]] = {}
        self.stats = SimpleNamespace(holders_changed=0)

    def count_wait(self, thread, _capture):
        self.stacks[thread.tid] = [place.wait.text if place.wait else place.kernel
                                   for place in thread.last_stack[1]]  # fmt: skip

    def flush(self, _thread):
        pass

    def count_idle(self, _threads):
        pass

    def is_brief(self, _thread):
        return False


def thread(tid, function, waits_for=None):
    made = SampledThread(SimpleNamespace(tid=tid, files=None), BEGINNING, 0)
    made.name, made.places = f"t{tid}", (Location(None, 0, 0, kernel=function),)
    made.last_stack = WHOLE, made.places
    if waits_for is not None:
        wait = Wait(WaitKind.MUTEX, "mutex 0x1", tid=waits_for, address=waits_for)
        made.wait = FoundWait(made.places[0], wait)
    return made


class FakeProcess:
    """A process with these threads; `owners`: the next answers about the owner of each lock."""

    def __init__(self, pid, *threads, owners=None, unseen=(), running=()):
        self.process, self.name = SimpleNamespace(pid=pid), f"p{pid}"
        self.threads = {each.tid: each for each in threads}
        self._answers = {tid: list(each) for tid, each in (owners or {}).items()}
        self._unseen, self._running = unseen, running
        self.waits = self
        self.peers = SimpleNamespace(unsearched=dict, has_news=lambda _: False)

    def holder(self, _waiter, found):
        tid = found.wait.tid
        known = self._answers.get(tid)
        actor = known.pop(0) if known else tid
        return (self.process.pid, actor) if isinstance(actor, int) else actor

    def look(self, holder):
        if holder.tid in self._running:
            holder.wait = None
        if holder.tid in self._unseen:
            holder.last_stack = None


def counted(*threads, others=(), **how):
    """Return the recorder after a tick of process 0; see `FakeProcess`."""
    recorder, by_pid = Counted(), {each.process.pid: each for each in others}
    own = by_pid[0] = FakeProcess(0, *threads, **how)
    blame = Blame(recorder, own, by_pid.get)
    assert [blame.postpone(each, Capture.READ) for each in threads] == [
        each.wait is not None for each in threads
    ]
    blame.count()
    return recorder


def test_mutex_that_was_between_two_owners_is_asked_for_its_owner_again():
    waiting = thread(1, "a", 2)
    waiting.wait = waiting.wait._replace(wait=waiting.wait.wait._replace(tid=None))
    assert counted(waiting, thread(2, "b"), owners={None: [2, 2]}).stacks[1] == ["b", "[held by]t2", "a"]


def test_waiter_that_has_got_the_lock_meanwhile_holds_up_only_the_others():
    recorder = counted(thread(1, "a", 1), thread(2, "b", 1), running={1})
    assert recorder.stacks == {1: ["a"], 2: ["a", "[held by]t1", "b"]}


def test_a_chain_has_the_stack_of_each_holder():
    recorder = counted(thread(1, "a", 2), thread(2, "b", 3), thread(3, "c"))
    assert recorder.stacks[1] == ["c", "[held by]t3", "b", "[held by]t2", "a"]
    assert recorder.stacks[2] == ["c", "[held by]t3", "b"]
    assert recorder.stats.holders_changed == 0


def test_an_owner_that_has_changed_is_not_blamed():
    for answers, changed in (([2, 3], 1), ([3, 2], 1), ([None, None], 0)):
        recorder = counted(thread(1, "a", 2), thread(2, "b"), thread(3, "c"), owners={2: answers})
        assert (recorder.stacks[1], recorder.stats.holders_changed) == (["a"], changed)
    recorder = counted(thread(1, "a", 2), thread(2, "b"), thread(3, "c"), owners={2: [3, 3]})
    assert recorder.stacks[1] == ["c", "[held by]t3", "a"], "it was handed over before the tick"


def test_a_cycle_and_a_long_chain_end():
    recorder = counted(thread(1, "a", 2), thread(2, "b", 1))
    assert recorder.stacks[1] == ["[held by]t1 (a cycle)", "b", "[held by]t2", "a"]
    recorder = counted(*(thread(tid, "f", tid + 1) for tid in range(1, 12)), thread(12, "f"))
    assert sum(text.startswith("[held by]") for text in recorder.stacks[1]) == 8


def test_a_holder_whose_stack_is_unknown_is_named():
    recorder = counted(thread(1, "a", 2), thread(2, "b"), unseen={2})
    assert recorder.stacks[1] == [UNSEEN, "[held by]t2", "a"]


def test_holders_in_other_processes_have_the_name_of_their_process():
    other = FakeProcess(7, thread(4, "c", 1), owners={1: [(0, 3)] * 2})
    recorder = counted(thread(1, "a", 9), thread(3, "d"), others=[other], owners={9: [(7, 0)] * 2})
    assert recorder.stacks[1] == ["d", "[held by]t3", "c", "[held by]p7/t4", "a"]


def test_a_process_of_several_threads_is_named_without_a_thread():
    other = FakeProcess(7, thread(4, "c"), thread(5, "e"))
    recorder = counted(thread(1, "a", 9), others=[other], owners={9: [(7, 0)] * 2})
    assert recorder.stacks[1] == ["[one of several threads]", "[held by]p7", "a"]
    recorder = counted(thread(1, "a", 9), others=[other], owners={9: [(7, 0), None]})
    assert (recorder.stacks[1], recorder.stats.holders_changed) == (["a"], 1), "it has changed meanwhile"


def test_a_process_that_cannot_be_opened_has_not_changed():
    recorder = counted(thread(1, "a", 9), owners={9: [(7, 0)] * 2})
    assert (recorder.stacks[1], recorder.stats.holders_changed) == (["a"], 0)


def test_holders_that_the_last_tick_did_not_find_are_searched_again():
    waiting, other = thread(1, "a", 9), FakeProcess(7)
    own = FakeProcess(0, waiting, owners={9: [(7, 0), None, None, None]})
    blame = Blame(Counted(), own, {7: other}.get)
    blame.postpone(waiting, Capture.READ)
    blame.count()
    assert blame.may_differ(), "process 7 had no threads yet: it was recorded for the first time"
    blame.postpone(waiting)
    blame.count()
    assert not blame.may_differ()
    waiting.wait = waiting.wait._replace(ends={"pipe:[5]": NearEnd(5)})
    own.peers.has_news = lambda ends: ends == {"pipe:[5]": NearEnd(5)}
    blame.postpone(waiting)
    blame.count()
    assert blame.may_differ(), "another process has searched for the other end, or a search is permitted"
    own.peers.unsearched = lambda _: {}
    blame.postpone(waiting)
    blame.count()
    assert not blame.may_differ(), "a search has found that no process has the other end"


def test_a_thread_that_has_run_since_a_late_capture_is_not_counted_for_that_wait():
    recorder, waiting = Counted(), thread(1, "a", 2)
    blame = Blame(recorder, FakeProcess(0, waiting, thread(2, "b")), {}.get)
    assert blame.postpone(waiting, Capture.STOPPED)
    waiting.wait = None
    assert not blame.postpone(waiting, Capture.STOPPED)
    blame.count()
    assert recorder.stacks == {}, "the sampler counts it"


def test_a_holder_that_could_not_be_captured_is_looked_at_again_after_it_has_run(clock):
    """A thread that runs in a process that may not be stopped holds up a hundred others."""
    process = fake_process.FakeProcess(clock, (fake_process.PID, "S"), (101, "R"))
    [sampler] = fake_process.sampler_of(process, mode="wall")._samplers
    process.answers[101] = NotCaptured(Reason.NOT_STOPPABLE, "it runs")
    running = SampledThread(process.thread(101), BEGINNING, 0)
    for times_run, captures in ((7, 1), (7, 1), (8, 2), (8, 2)):
        process.fixed_times_run[101] = times_run
        sampler.look(running)
        assert len(process.captured) == captures
