"""Keeps a mark for each backend: the last slices that were sent, and how many the backend took and refused.

A mark is a small file in the directory of the history, replaced as a whole.  For each file of the history the
mark has the number of the last slice that was taken or given up.  No number is used twice in a file, so
slices that are still to be sent have greater numbers.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256

from sfsample.core.filesystem import read_regular, whole_file
from sfsample.errors import BadInput, SfsampleError
from sfsample.history.paths import lock
from sfsample.report.formats.profile_json import read_json

_MAX_BYTES = 16 << 20


class Mark:
    """The fields of the file."""

    def __init__(self, directory: str, backend: str) -> None:
        name = sha256(json.dumps([backend, None]).encode()).hexdigest()[:16]
        self.path = os.path.join(directory, f".push-{name}.json")
        self.sent = 0
        self.until_s = 0.0  # end of the latest slice that the backend has taken
        self.dropped: Counter[str] = Counter()  # slices that were given up, by reason
        self.done: dict[str, int] = {}  # number of the last slice that was taken or given up, by file
        self.load()

    def load(self) -> None:
        """Read the file; if it is damaged or missing, all slices are sent again."""
        with suppress(OSError, BadInput):
            found = read_json(read_regular(self.path, _MAX_BYTES))
            sent, until_s = found.field("sent").count(), found.field("until").number()
            dropped, done = ({key: part.field(key).count() for key in part.members()}
                             for part in map(found.field, ("dropped", "done")))  # fmt: skip
            self.sent, self.until_s, self.dropped, self.done = sent, until_s, Counter(dropped), done

    def save(self) -> None:
        """Write the file.  Raises OSError."""
        document = {"sent": self.sent, "until": self.until_s, "dropped": self.dropped, "done": self.done}
        with whole_file(self.path, 0o600) as file:
            file.write(json.dumps(document).encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from pushing the same slices.  Raises SfsampleError if one does already."""
        fd = lock(*os.path.split(self.path))
        if fd is None:
            raise SfsampleError("another process pushes this history to this backend")
        try:
            self.load()
            yield
        finally:
            os.close(fd)
