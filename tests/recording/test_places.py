"""`Places` of deep stacks are hashed quickly and compared exactly."""

from sfsample.modules.location import Location
from sfsample.recording.sample import Places


def test_different_deep_stacks_are_different_keys():
    places = [Location(None, n, n) for n in range(3000)]
    first, same, other = (
        Places(places),
        Places(list(places)),
        Places([*places[:1234], places[0], *places[1235:]]),
    )

    assert (hash(first), first) == (hash(same), same)
    assert first != other
    assert len({first: 1, same: 2, other: 3}) == 2
    assert hash(Places(places[:50])) == hash(tuple(places[:50]))
