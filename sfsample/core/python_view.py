"""Defines which frames of a Python thread a user can choose to see."""

from enum import StrEnum


class PythonView(StrEnum):
    """The frames of a Python thread that sfsample shows."""

    AUTO = "auto"  # Python frames, and native frames without the interpreter's own
    ALL = "all"  # Python frames and all native frames
    ONLY = "only"  # Python frames
    OFF = "off"  # native frames
