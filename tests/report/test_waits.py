"""Classes of waits in reports and formats."""

from sfsample.report.formats import FORMATS, parse
from sfsample.report.report import OUTERMOST, Report, ReportBuilder, ReportThread
from sfsample.report.waits import by_wait, wait_of
from sfsample.symbolize.named_frame import NamedFrame

LOCK = NamedFrame("[mutex a]", "[mutex a]", "lock", kind="w", found="wait")
SLEEP = NamedFrame("[sleep]", "[sleep]", "sleep", kind="w", found="wait")
MAIN = NamedFrame("main", "main")


def report() -> Report:
    builder, thread = ReportBuilder(), ReportThread("app", "app", 1, 1)
    for frames in ([MAIN], [LOCK, MAIN], [SLEEP, MAIN, LOCK, MAIN]):
        builder.add(thread, frames, OUTERMOST, (1,))
    return builder.finish()


def classes(of: Report) -> list[str | None]:
    return [wait_of(of, stack) for stack in of.stacks]


def test_the_class_of_a_stack_is_that_of_the_waiter() -> None:
    assert classes(report()) == [None, "lock", "lock"]


def test_by_wait_makes_the_class_the_first_frame() -> None:
    folded = FORMATS["folded"].write(by_wait(report())).decode().splitlines()
    assert folded == [
        "app;[lock];main;[mutex a] 1", "app;[lock];main;[mutex a];main;[sleep] 1", "app;[no wait];main 1"
    ]  # fmt: skip


def test_formats_keep_the_classes() -> None:
    for name in ("json", "pprof"):
        assert classes(parse(FORMATS[name].write(report()))) == [None, "lock", "lock"]
