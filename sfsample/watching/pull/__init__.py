"""Serves profiles, metrics and health of `sfsample watch --listen` over HTTP: the pull door."""
