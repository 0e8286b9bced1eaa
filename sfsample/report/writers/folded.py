"""`-f folded`: one line for each distinct stack, root first: `process;frame;...;frame count`.

The lines are sorted; the text is UTF-8 and holds nothing else.  Stacks with the same text are one line.
"""

from collections import Counter
from collections.abc import Iterator

from sfsample.report.report import Report, truncation_mark


def write(report: Report, *, threads: bool) -> bytes:
    """Return the file.  `threads`: the first frame is `name/TID`."""
    return "".join(line + "\n" for line in folded_lines(report, threads=threads)).encode()


def folded_lines(report: Report, *, threads: bool = False) -> Iterator[str]:
    """Yield the lines, without newlines."""
    texts = [frame.text for frame in report.frames]
    merged: Counter[str] = Counter()
    for stack in report.stacks:
        head = [report.root_label(stack, threads=threads)]
        mark = truncation_mark(stack)
        if mark:
            head.append(mark)
        merged[";".join([*head, *(texts[at] for at in reversed(stack.frames))])] += stack.weights[0]
    for text in sorted(merged):
        yield f"{text} {merged[text]}"
