"""Writes the metrics of `watch` to a file; the textfile collector of node_exporter reads it at any time."""

from sfsample.cli.pull.door import Door
from sfsample.cli.trouble import Trouble
from sfsample.core.filesystem import whole_file


class MetricsFile:
    """The file at a path; None: there is none.  A failure is said once."""

    def __init__(self, path: str | None, door: Door) -> None:
        self._path, self._door = path, door
        self._trouble = Trouble("the file stays as it is")

    def write(self) -> None:
        """Replace the file."""
        if self._path is None:
            return
        try:
            with whole_file(self._path, 0o644) as file:
                file.write(self._door.metrics(for_file=True).encode())
            self._trouble.over()
        except OSError as failure:
            self._trouble.met(f"cannot write: {self._path}: {failure.strerror}")
