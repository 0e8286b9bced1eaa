"""Writes times in the local zone, in the form that `--at` reads; `--utc` makes UTC the local zone.

At the end of summer time, local clocks show the same hour twice.  sfsample prints times of the second hour
with their UTC offset, so `--at` finds the right time (tests/core/test_local_time.py).
"""

import os
import time
from typing import TYPE_CHECKING

from sfsample.core.foreign import total, utc

if TYPE_CHECKING:
    from datetime import datetime


def use_utc() -> None:
    """Make UTC the local zone of this process."""
    os.environ["TZ"] = "UTC"
    time.tzset()


def read_local(text: str) -> float:
    """Return the seconds since the epoch of a time in ISO 8601.  Raises ValueError or OverflowError."""
    from datetime import datetime  # a module that most commands do not need

    return datetime.fromisoformat(text).timestamp()


def local(time_s: float) -> str:
    """Return a time since the epoch as "2026-11-24 09:00:00", without its zone."""
    if (moment := _moment(time_s)) is None:
        return utc(time_s)  # seconds: the time is beyond the calendar
    text = moment.isoformat(" ")[:19]
    return text if read_local(text) == int(time_s) else moment.isoformat(" ")


def zone(*times_s: float) -> str:
    """Return the zone of local times: "EST", "UTC+05:30", or "EDT, EST" if the times have two zones."""
    moments = [moment for moment in map(_moment, times_s) if moment is not None]
    return ", ".join(dict.fromkeys(map(_zone_name, moments))) or "UTC"


def local_span(begin_s: float, end_s: float) -> str:
    """Return a begin, an end and their zone: "2026-11-24 09:00:00 to 09:01:00 EST"."""
    begin, end = local(begin_s), local(end_s)
    same_day = begin[:11] == end[:11]
    return f"{begin} to {end[11 * same_day :]} {zone(begin_s, end_s)}"


@total
def _moment(time_s: float) -> "datetime":
    from datetime import datetime

    return datetime.fromtimestamp(int(time_s)).astimezone()


def _zone_name(moment: "datetime") -> str:
    """Return the letters of a zone ("EST"); if the zone has only digits ("-03"), return its UTC offset."""
    name = moment.strftime("%Z")
    return name if name.isalpha() else f"UTC{moment.isoformat()[19:]}"


def zone_id() -> str:
    """Return the local zone's name in the zone database ("America/New_York"), or a text that is no name."""
    path = os.environ.get("TZ", "").lstrip(":") or os.path.realpath("/etc/localtime")
    return path.rpartition("zoneinfo/")[2]
