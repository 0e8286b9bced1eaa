"""The pull door of `sfsample watch --listen`: profiles, metrics and health over HTTP."""
