"""Encodes a report as an OTLP profiles request, for `--push otlp=URL` only, because the format may change.

The tables of OTLP have the fields of pprof in the same order, but without ids: a row refers to another row by
its index.  So a field number is one less than in pprof, and row 0 of a table is empty.  OTLP also has a table
of stacks.  An OTLP profile has one weight, so each weight of the report is a profile.  Field numbers of
opentelemetry-proto 1.10 ("Development"):

    ExportProfilesServiceRequest  resource_profiles 1, dictionary 2
    ProfilesDictionary   mapping_table 1, location_table 2, function_table 3, link_table 4, string_table 5,
                         attribute_table 6, stack_table 7
    ResourceProfiles     resource 1 (attributes 1), scope_profiles 2 (scope 1 (name 1), profiles 2)
    Profile              sample_type 1, samples 2, time_unix_nano 3, duration_nano 4, period_type 5, period 6,
                         profile_id 7
    Sample               stack_index 1, attribute_indices 2, values 4
    KeyValue             key 1, value 2 (string_value 1)
    KeyValueAndUnit      key_strindex 1, value 2
    Mapping              memory_limit 2, filename_strindex 4
    Link                 trace_id 1, span_id 2

Invariant: opentelemetry-proto reads from a request the same stacks and weights that the report has
(tests/report/test_otlp.py).
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256

from sfsample.formats.protobuf import fixed64, integer, message, packed
from sfsample.report.formats.pprof import VALUE_TYPES, Encoder
from sfsample.report.report import SAMPLES, Numbers, Report
from sfsample.report.waits import wait_of

_EMPTY_LINK = (message(1, bytes(16)), message(2, bytes(8)))


def export_request(report: Report, attributes: Mapping[str, str], identity: str) -> bytes:
    """Return the request; `identity`: a text that stays the same if this report is sent again."""
    return b"".join(_OtlpEncoder(report).request(attributes, identity))


class _OtlpEncoder(Encoder):
    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self._waits = Numbers({"": 0})  # class of a wait -> index in the table of attributes

    def request(self, attributes: Mapping[str, str], identity: str) -> Iterator[bytes]:
        stacks = [self._stack(stack) for stack in self._report.stacks]
        resource = []
        for key, text in attributes.items():
            value = message(1, text.encode("utf-8", "replace"))
            resource.append(message(1, message(1, key.encode("utf-8", "replace")), message(2, value)))
        profiles = [message(2, *self._profile(at, identity)) for at in range(len(self._report.weights))]
        scope = message(1, message(1, b"sfsample"))
        yield message(1, message(1, *resource), message(2, scope, *profiles))  # resource_profiles
        yield message(2, *self._dictionary(stacks))

    def _profile(self, at: int, identity: str) -> Iterator[bytes]:
        """Yield the fields of the profile of one weight; leave out stacks with weight 0."""
        report, weight = self._report, self._report.weights[at]
        kind = self._value_type(*VALUE_TYPES[weight])
        yield message(1, *kind)
        for number, stack in enumerate(report.stacks, 1):
            if stack.weights[at]:
                wait = wait_of(report, stack)
                attributes = [packed(2, (self._waits[wait],))] if wait else []
                yield message(2, integer(1, number), *attributes, packed(4, stack.weights[at : at + 1]))
        yield fixed64(3, report.started_ns or 0)
        yield integer(4, report.duration_ns or 0)
        yield message(5, *kind)
        yield integer(6, 1 if weight == SAMPLES or not report.rate_hz else round(1e9 / report.rate_hz))
        yield message(7, sha256(f"{identity} {weight}".encode()).digest()[:16])

    def _dictionary(self, stacks: list[bytes]) -> Iterator[bytes]:
        yield from (message(field) for field in (1, 2, 3, 6, 7))
        for wait in [*self._waits][1:]:  # the table of attributes
            yield message(6, integer(1, self._strings["wait"]), message(2, message(1, wait.encode())))
        yield message(4, *_EMPTY_LINK)
        for key in self._locations:  # locations first, because they add functions and mappings
            yield message(2, *self._location(key, 1))
        for names in self._functions:
            yield message(3, *self._function(names, 1))
        for path, build_id in self._mappings:
            yield message(1, integer(2, self._limit(path, build_id)), integer(4, self._strings[path]))
        yield from (message(7, stack) for stack in stacks)
        for text in self._strings:  # strings last, because all tables above add strings
            yield message(5, text.encode("utf-8", "replace"))
