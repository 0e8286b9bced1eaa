"""Defines the choices of the user for threads that run Python."""

from enum import StrEnum


class PythonView(StrEnum):
    """The frames that are shown of a thread that runs Python."""

    AUTO = "auto"  # Python frames, and native ones around them
    ALL = "all"  # the interpreter's own frames too
    ONLY = "only"  # Python frames
    OFF = "off"  # native frames
