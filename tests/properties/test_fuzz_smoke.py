"""The fuzz targets accept some hundred mutations of real sections, the same each time, without atheris."""

from random import Random

import pytest

from tests.properties.fuzz_targets import TARGETS, seeds

EXECUTIONS = {"elf": 150, "core": 200}


def mutated(data: bytes, other: bytes, random: Random) -> bytes:
    """Return `data` with 1 to 4 bytes changed, cut off, or grown together with `other`."""
    kind = random.randrange(4)
    if kind == 0:
        return data[: random.randrange(len(data) + 1)]
    if kind == 1:
        return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(min(len(data), random.choice([40, 400, 1 << 30])))
        changed[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
    return bytes(changed)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_accepted(name):
    found = list(seeds(name))

    assert len(found) >= 5
    for data in found:
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_mutations(name):
    random = Random(name)  # noqa: S311 - the same inputs each time
    found = list(seeds(name))
    for _ in range(EXECUTIONS.get(name, 400)):
        TARGETS[name](mutated(random.choice(found), random.choice(found), random))


@pytest.mark.parametrize("name", TARGETS)
def test_very_short_inputs_are_accepted(name):
    for data in (b"", b"\0", bytes(7), b"\xff" * 30, bytes(100)):
        TARGETS[name](data)
