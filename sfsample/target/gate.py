"""A gate between pauses, for whoever wants to stop this whole process (Ctrl-Z).

Law: it is closed while a thread of a target is held, so that to stop us is never to stop the target.
"""

import _thread

PAUSE = _thread.allocate_lock()
