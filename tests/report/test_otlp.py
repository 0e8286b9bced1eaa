"""What the writer of OTLP profiles makes, as Google's protobuf and OpenTelemetry's own classes read it."""

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from sfsample.report.formats.otlp import export_request
from sfsample.report.report import OUTERMOST, WEIGHTS, ReportBuilder, ReportThread
from sfsample.symbolize.named_frame import NamedFrame


def decoded(report=None, rate_hz=19.0):
    builder = ReportBuilder(WEIGHTS)
    rows = [
        NamedFrame("inner_[i]", "inner", "_Z5inner", "/bin/a", "aa", 16, "a.c", 3, inlined=True),
        NamedFrame("outer", "outer", None, "/bin/a", "aa", 16, "a.c", 9),
        NamedFrame("main", "main", None, "/lib/b", None, 1 << 63),
        NamedFrame("[vdso]"),
    ]
    builder.add(ReportThread("", ""), rows, OUTERMOST, (7, 70, 0))
    builder.add(ReportThread("", ""), rows[2:], "no_row", (1, (1 << 63) - 1, 5))
    made = builder.finish()._replace(
        started_ns=1_790_000_000 * 10**9, duration_ns=60 * 10**9, rate_hz=rate_hz
    )
    return ExportProfilesServiceRequest.FromString(export_request(made, {"service.name": "bänk"}, "id"))


def test_stacks_weights_and_places_are_those_of_the_report():
    request = decoded()
    tables = request.dictionary
    text = tables.string_table
    [scope] = request.resource_profiles[0].scope_profiles
    found = {}
    for profile in scope.profiles:
        kind = text[profile.sample_type.type_strindex], text[profile.sample_type.unit_strindex]
        assert profile.period_type == profile.sample_type
        assert (profile.time_unix_nano, profile.duration_nano) == (1_790_000_000 * 10**9, 60 * 10**9)
        found[kind] = profile.period, [
            (
                [
                    [(text[tables.function_table[line.function_index].name_strindex], line.line)
                     for line in tables.location_table[at].lines]
                    for at in tables.stack_table[sample.stack_index].location_indices
                ],
                [*sample.values],
            )
            for sample in profile.samples
        ]  # fmt: skip
    whole = [[("inner", 3), ("outer", 9)], [("main", 0)], [("[vdso]", 0)]]
    cut = [[("main", 0)], [("[vdso]", 0)], [("[truncated: no_row]", 0)]]
    assert found == {
        ("samples", "count"): (1, [(whole, [7]), (cut, [1])]),
        ("wall", "nanoseconds"): (52631579, [(whole, [70]), (cut, [(1 << 63) - 1])]),
        ("cpu", "nanoseconds"): (52631579, [(cut, [5])]),
    }
    assert len({profile.profile_id for profile in scope.profiles}) == 3
    assert {len(profile.profile_id) for profile in scope.profiles} == {16}


def test_each_table_begins_with_an_empty_element():
    tables = decoded().dictionary
    for name in ("mapping", "location", "function", "attribute", "stack", "string"):
        first = getattr(tables, f"{name}_table")[0]
        assert first == type(first)(), name
    assert (tables.link_table[0].trace_id, tables.link_table[0].span_id) == (bytes(16), bytes(8))


def test_modules_and_functions_keep_what_is_known_of_them():
    tables = decoded().dictionary
    text = tables.string_table
    modules = {text[row.filename_strindex]: row for row in tables.mapping_table}
    assert modules["/bin/a"].memory_limit == 17
    assert "/lib/b" in modules
    functions = {text[row.name_strindex]: row for row in tables.function_table}
    assert text[functions["inner"].system_name_strindex] == "_Z5inner"
    assert text[functions["inner"].filename_strindex] == "a.c"
    assert {row.address for row in tables.location_table} == {0, 16, 1 << 63}


def test_resource_has_the_labels_as_they_are():
    [resource] = decoded().resource_profiles
    assert [(row.key, row.value.string_value) for row in resource.resource.attributes] == [
        ("service.name", "bänk")
    ]


def test_report_without_a_rate_has_a_period():
    assert {
        profile.period for profile in decoded(rate_hz=None).resource_profiles[0].scope_profiles[0].profiles
    } == {1}


def test_class_of_the_wait_is_an_attribute_of_the_sample():
    builder, wait = ReportBuilder(WEIGHTS), NamedFrame("[mutex a]", "[mutex a]", "lock", kind="w")
    builder.add(ReportThread("", ""), [wait], OUTERMOST, (7, 70, 0))
    builder.add(ReportThread("", ""), [NamedFrame("main")], OUTERMOST, (1, 10, 0))
    request = ExportProfilesServiceRequest.FromString(export_request(builder.finish(), {}, "id"))
    tables = request.dictionary
    waiting, running = request.resource_profiles[0].scope_profiles[0].profiles[0].samples
    [attribute] = [tables.attribute_table[at] for at in waiting.attribute_indices]
    assert tables.string_table[attribute.key_strindex] == "wait"
    assert attribute.value.string_value == "lock"
    assert not running.attribute_indices
