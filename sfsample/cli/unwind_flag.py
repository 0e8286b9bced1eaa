"""Turns the flag --unwind into steppers."""

from argparse import Namespace
from collections.abc import Sequence

from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import ALWAYS, CHOICES


def chosen_steppers(arguments: Namespace) -> Sequence[Stepper]:
    """Return the steppers that are always on, then those that --unwind names, in its order."""
    return (*ALWAYS, *(stepper for name in arguments.unwind for stepper in CHOICES[name]))
