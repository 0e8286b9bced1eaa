"""Sends the slices of a history to Pyroscope, Parca, or any backend that takes OTLP profiles."""
