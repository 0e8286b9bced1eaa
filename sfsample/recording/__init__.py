"""Records a profile of live processes: samplers, the recorder, the profile and its statistics."""
