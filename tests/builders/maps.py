"""Parses a text of /proc/PID/maps, which may have equal lines."""

from sfsample.modules.mapping import Mapping, MapsParser


def parse_maps(text: str) -> tuple[Mapping, ...]:
    lines = text.encode("utf-8", "surrogateescape").split(b"\n")
    return tuple(mapping for line in lines for mapping in MapsParser().parse(line))
