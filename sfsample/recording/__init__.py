"""From a live process to a profile: samplers, the recorder, and what it all cost."""
