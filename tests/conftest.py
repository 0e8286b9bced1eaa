"""What every test may take for granted.

Law: nothing that a test could say itself.
"""

import signal

# a shell that starts us in the background has us ignore Ctrl-C, and programs that we start inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
