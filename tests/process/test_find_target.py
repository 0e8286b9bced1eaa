"""A wrong container, pod, control group or user is refused with those that exist; tests give the groups."""

import pytest

from sfsample.cli.parse import parse
from sfsample.errors import NoSuchProcess, SfsampleError, UsageError
from sfsample.process import find_target
from sfsample.process.find_target import TargetFinder

ID, OTHER, UID = "4f1d" * 16, "4f" + "ab" * 31, "12345678-9abc-def0-1234-56789abcdef0"
GROUPS = {
    "container": {ID: [10, 11], OTHER: [12]},
    "pod": {UID: [10]},
    "cgroup": {"/": [1, 10], "/system.slice/nginx.service": [10]},
}


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_target.search, "groups_by_cgroup", lambda kind: GROUPS[kind])
    monkeypatch.setattr(find_target.search, "groups_by_user", lambda: {0: [1], 33: [10]})
    monkeypatch.setattr(find_target.search, "programs", sorted)
    monkeypatch.setattr(find_target, "process_name", lambda pid: f"program-{pid}")


def found(*words: str) -> tuple[list[int], str]:
    named = TargetFinder(parse(["record", *words]).target)
    return named.pids(), named.service


def refusal(kind: type[SfsampleError], *words: str) -> list[str]:
    with pytest.raises(kind) as refused:
        found(*words)
    return [str(refused.value), *refused.value.help]


def test_a_group_is_found_and_gives_the_name() -> None:
    assert found("--container", "4F1D") == ([10, 11], "4f1d4f1d4f1d")
    assert found("--pod", UID.replace("-", "_")) == ([10], UID)
    assert found("--cgroup", "/sys/fs/cgroup/system.slice/nginx.service/")[0] == [10]
    assert found("--cgroup", "/") == ([1, 10], "/")
    assert found("--user", "33") == ([10], "33")
    assert found("--user", "root") == ([1], "root")
    assert found("-p", "7,8,7") == ([7, 8], "")


def test_ambiguous_container_lists_the_candidates() -> None:
    assert found("--container", ID[:3])[0] == [10, 11]
    GROUPS["container"]["4f1" + "0" * 61] = [13]
    try:
        first, *more = refusal(UsageError, "--container", "4f1")
    finally:
        del GROUPS["container"]["4f1" + "0" * 61]
    assert first == "2 containers match: 4f1"
    assert more == ["give a longer part of the id:", "4f1000000000  program-13", "4f1d4f1d4f1d  program-10"]


def test_wrong_values_name_what_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *more = refusal(NoSuchProcess, "--container", "beef")
    assert first == "no such process: no process is in a container beef"
    assert more == ["the containers with processes:", "4f1d4f1d4f1d  program-10", "4fababababab  program-12"]
    assert f"{UID}  program-10" in refusal(NoSuchProcess, "--pod", "beef")
    assert "4f1d4f1d4f1d  program-10" in refusal(NoSuchProcess, "--container", "nginx")
    assert "nginx.service" in refusal(NoSuchProcess, "--cgroup", "/system.slice/ngnix.service")[-1]
    assert refusal(NoSuchProcess, "--user", "4242")[1].startswith("users with processes: root")
    assert refusal(UsageError, "--user", "rot")[1].startswith("users with processes: root")
    monkeypatch.setitem(GROUPS, "container", {})
    assert "inside a container, sfsample sees only the" in refusal(NoSuchProcess, "--container", "beef")[1]


@pytest.mark.parametrize(
    ("words", "text"),
    [(["--container", " "], "not a name"), (["--busiest", "0"], "not a number"),
     (["--user", ""], "not a name"), (["--user", "x", "-p", "1"], "more than one way")],
)  # fmt: skip
def test_wrong_spelling_is_a_usage_error(words: list[str], text: str) -> None:
    for command in ("record", "top", "dump", "watch --output-dir x"):
        with pytest.raises(UsageError) as refused:
            parse([*command.split(), *words])
        assert text in str(refused.value)
