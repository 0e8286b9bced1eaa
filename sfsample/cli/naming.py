"""From the flags and the environment to how names are found.

Law: the only place that knows the variables: XDG_CACHE_HOME and HOME.
"""

import os
from argparse import Namespace

from sfsample.symbolize.naming import Naming


def naming(arguments: Namespace) -> Naming:
    """Return what the flags of a command ask for."""
    return Naming(
        raw=arguments.raw_names,
        simplify=arguments.simplify_names,
        merge_clones=arguments.merge_clones,
        debug_dirs=tuple(arguments.debug_dir or ()),
        cache_dir=os.path.join(cache_home(), "sfsample"),
    )


def cache_home() -> str:
    """Return the directory of caches (XDG Base Directory Specification); what is relative is ignored."""
    directory = os.environ.get("XDG_CACHE_HOME", "")
    return directory if os.path.isabs(directory) else os.path.join(os.path.expanduser("~"), ".cache")
