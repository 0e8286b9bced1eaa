"""Defines the choices of the user for threads that run Python."""

from enum import StrEnum


class PythonView(StrEnum):
    """The frames of a Python thread that are shown."""

    AUTO = "auto"  # Python frames, and native frames without the interpreter's own
    ALL = "all"  # Python frames and all native frames
    ONLY = "only"  # Python frames
    OFF = "off"  # native frames
