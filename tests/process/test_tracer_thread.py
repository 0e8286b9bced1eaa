"""The work on the tracing thread knows when to stop."""

from sfsample.process.tracer_thread import TracerThread


def test_should_stop_need_be_true_only_once():
    answers = iter([False, True])
    given = TracerThread(lambda stop: [stop() for _ in range(4)], lambda: next(answers, False)).run()
    assert given == [False, True, True, True]
