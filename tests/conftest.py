"""What every test may take for granted.

Law: nothing that a test could say itself.
"""

import signal
from importlib.util import find_spec

# a shell that starts us in the background has us ignore Ctrl-C, nohup(1) a terminal that goes away, and
# programs that we start inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

if find_spec("hypothesis"):  # a guest of another architecture has none, and runs no test that wants it
    from hypothesis import HealthCheck, settings

    settings.register_profile("no time limits", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("no time limits")
