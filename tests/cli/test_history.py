"""`sfsample history`: what each action prints, and how mistakes are answered."""

import json
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from sfsample.cli import main
from sfsample.history.facts import Slice
from sfsample.history.paths import file_names
from sfsample.history.store import History
from sfsample.report.formats import parse
from sfsample.symbolize.named_frame import NamedFrame
from tests.builders.histories import report, sums

NOW_S = time.time() // 86400 * 86400 - 43200  # noon of yesterday: the last three hours are of one day, in UTC
FAST = ("main;fast", 900, 9 * 10**9, 10**9)


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch):
    """Stop the clock, and use UTC: these tests may run long after they were collected, and anywhere."""
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def directory(tmp_path):
    """Return a history of the last three hours: redis became slower an hour ago; nginx has one slice."""
    history = History(str(tmp_path / "history"))
    for at in range(180, 0, -20):
        slow = 900 if at <= 60 else 10
        closed = report(FAST, ("main;slow", slow, slow * 10**7, slow * 10**6))
        begin_s = NOW_S - 60 * at
        target = {"build_id": "ffeeddcc" if at <= 60 else "aabbccdd"}
        closed = closed._replace(labels={"env": "prod"}, target=target)
        history.add(Slice(begin_s, begin_s + 60, "redis", closed))
    history.add(Slice(NOW_S - 300, NOW_S - 240, "nginx", report(FAST)._replace(labels={"env": "test"})))
    history.add_gap("redis", NOW_S - 3000, NOW_S - 2900, "watcher was down")
    history.close()
    return history.directory


@pytest.fixture
def run(directory, capsys):
    """Return a function that runs an action, now, and returns exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["history", *words, "--history", directory])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def test_file_is_no_history(tmp_path, capsys):
    path = tmp_path / "file"
    path.touch()
    assert main(["history", "list", "--history", str(path)]) == 1
    assert f"no history: {path}: it is no directory" in capsys.readouterr().err


def test_list_has_the_keys_of_the_contract(run):
    code, out, err = run("list", "--json")
    document = json.loads(out)
    assert (code, err, document["schema"]) == (0, "", "sfsample.history/1")
    assert len(document["slices"]) == 10
    first = document["slices"][0]
    assert {"id", "begin", "end", "service", "labels", "samples", "cpu_s", "coverage", "tier", "pinned"} <= {
        *first
    }
    assert (first["service"], first["labels"], first["tier"], first["pinned"]) == (
        "redis",
        {"env": "prod"},
        "1m",
        False,
    )
    assert (first["samples"], first["coverage"]) == (910, 0.5)
    assert {"begin", "end", "why"} <= {*document["gaps"][0]}


def test_list_is_a_table_in_the_order_of_time(run):
    code, out, _ = run("list", "--since", "1.1h")
    lines = out.splitlines()
    assert code == 0
    zone = time.strftime("%Z", time.localtime(NOW_S))
    assert lines[0].split() == f"begin ({zone}) length service samples CPU time covered".split()
    assert lines[1].split()[2:4] == ["1", "min"]
    assert not any("env=prod" in line for line in lines)
    verbose = run("list", "--since", "1.1h", "-v")[1].splitlines()
    assert verbose.count("    env=prod") + verbose.count("    env=test") == len(verbose) - len(lines)
    assert "gap: watcher was down" in lines[2]
    assert lines[1:] == sorted(lines[1:])
    assert sum("nginx" in line for line in lines) == 1


def test_show_has_functions_with_shares_of_cpu_time(run):
    code, out, _ = run("show", "--service", "redis", "--at", "-1.01h")
    assert code == 0
    assert out.startswith("redis: 3 slices, ")
    assert "build-id ffeeddcc" in out
    assert "UTC: watcher was down" in out
    assert "   47.37 %  slow\n" in out
    assert "  100.00 %  main\n" in out


def test_show_draws_a_page_with_a_time_line(run, tmp_path):
    page = tmp_path / "x.html"
    assert run("show", "--service", "redis", "--since", "1.1h", "-o", str(page), "-q")[:2] == (0, "")
    data = json.loads(page.read_text().partition('id="profile">')[2].partition("</script>")[0])
    assert [len(data["slices"]["letters"]), data["slices"]["gaps"][0][2]] == [3, "watcher was down"]
    assert run("show", "--service", "redis", "-f", "pprof")[0] == 2


def test_show_writes_the_profile_as_json(run):
    words = ("--service", "redis", "--since", "1.1h")
    code, out, _ = run("show", *words, "--json")
    assert code == 0
    assert json.loads(out) == json.loads(run("export", *words, "-f", "json")[1])


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize("utc", [(), ("--utc",)])
def test_copied_times_select_what_they_were_copied_from(run, monkeypatch, zone, utc):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    lines = run("list", "--service", "redis", "--since", "1.1h", *utc)[1].splitlines()
    assert ("(UTC)" in lines[0]) == bool(utc)
    again = run("list", "--service", "redis", "--at", lines[1][:19], "--for", "1m", *utc)[1].splitlines()
    assert again[1] == lines[1]
    shown = run("show", "--service", "redis", "--at", lines[1][:19], "--for", "1m", *utc)[1]
    assert f"1 slice, {lines[1][:19]} to " in shown
    monkeypatch.undo()
    time.tzset()


def test_export_writes_any_format(run, directory, tmp_path):
    code, out, err = run("export", "--service", "nginx")
    assert (code, out, err) == (0, "app;main;fast 900\n", "")
    for name in ("a.json", "a.pprof", "a.html", "a.svg", "a.speedscope.json", "a.firefox.json", "a.folded"):
        assert run("export", "--service", "redis", "-o", str(tmp_path / name))[0] == 0
    again = parse((tmp_path / "a.json").read_bytes())
    assert sums(again).total() == sums(History(directory).report(selection("redis"))).total()


def test_lines_are_those_of_python_that_were_executed(run, directory, tmp_path, capsys):
    kept = History(directory)
    inner, outer = (NamedFrame(f"{name} (a.py:1)", function=name, file="/srv/a.py", line=line, kind="p")
                    for name, line in (("work", 3), ("main", 7)))  # fmt: skip
    closed = report(FAST)
    frames = (inner, outer, *closed.frames)
    stack = closed.stacks[0]._replace(frames=(0, 1, 2))
    kept.add(Slice(NOW_S - 300, NOW_S - 240, "snake", closed._replace(frames=frames, stacks=(stack,))))
    kept.close()
    native = frames[2].text
    assert run("export", "--service", "snake")[1].startswith(f"app;{native};main (a.py:1);work (a.py:1) ")
    by_line = f"app;{native};main (a.py:7);work (a.py:3) "
    assert run("export", "--service", "snake", "--lines")[1].startswith(by_line)
    page, profile = str(tmp_path / "a.html"), str(tmp_path / "a.json")
    for path in (page, profile):
        assert run("export", "--service", "snake", "--lines", "-o", path)[0] == 0
    assert "work (a.py:3)" in Path(page).read_text(encoding="utf-8")
    assert run("export", "--service", "snake", "-o", profile)[0] == 0
    assert main(["convert", profile, "--lines", "-f", "folded"]) == 0
    assert capsys.readouterr().out.startswith(by_line)


def selection(service: str):
    from sfsample.history.facts import Selection

    return Selection(service)


def test_diff_without_ordinary_times_has_no_verdict_and_says_where_slices_are_missing(run):
    words = ("diff", "--service", "redis", "--at", "-3.01h", "--for", "1h")
    code, out, err = run(*words, "--with", "now", "--fail-on", "50")
    assert code == 1
    assert "unknown" in next(line for line in out.splitlines() if line.endswith("slow"))
    assert "no slices" in err
    assert "no verdict: the history has no pairs of other times" in err
    assert "--fail-on: too few comparable times to judge whether a function grew" in err
    document = json.loads(run(*words, "--with", "ffee" + "ddcc", "--json")[1])
    assert document["schema"] == "sfsample.diff/1"
    assert [side["samples"] for side in document["inputs"]] == [3 * 910, 3 * 1800]
    assert document["ordinary"]["pairs"] < document["ordinary"]["needed"]
    assert any(text.startswith("no slices") for text in document["warnings"])


@pytest.fixture
def run_deployed(tmp_path, capsys):
    """Return the same function for a history of two hours, with another build for the last ten minutes."""
    from sfsample.history.facts import Slice

    chance = random.Random(1)  # noqa: S311 - the same every time
    history = History(str(tmp_path / "deployed"))
    for at in range(120, 0, -1):
        is_new = at <= 10
        counts = {name: round(chance.gauss(mean, mean / 20))
                  for name, mean in (("fast", 600), ("slow", 400 if is_new else 200))}  # fmt: skip
        rows = [(f"main;{name}", n, 10**9, n * 10**7) for name, n in counts.items()]
        begin_s = NOW_S - 60 * at
        target = {"build_id": "ffeeddcc" if is_new else "aabbccdd"}
        history.add(Slice(begin_s, begin_s + 60, "redis", report(*rows)._replace(target=target)))
    history.close()

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["history", "diff", *words, "--history", history.directory])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def verdicts(out: str) -> dict[str, str]:
    return {change["name"]: change["verdict"] for change in json.loads(out)["self"]}


def test_diff_of_a_deploy_finds_what_grew_beyond_ordinary_times(run_deployed):
    code, out, err = run_deployed("--deploy", "--for", "10m", "--fail-on", "50")
    assert code == 6
    assert "build-id aabbccdd -> ffeeddcc" in err
    assert "ordinary: 10 pairs of other times as long and as far apart" in out
    assert "grew by more than 50 %: slow" in err
    _, out, _ = run_deployed("--deploy", "ffeedd", "--for", "10m", "--json")
    assert verdicts(out) == {"fast": "noise", "slow": "grew"}
    document = json.loads(out)
    assert document["ordinary"] == {
        "pairs": 10, "needed": 3, "of": "other times as long and as far apart"}  # fmt: skip
    assert 1 < document["self"][0]["ordinary"] < 1.1
    assert 1.7 < document["self"][0]["low"] < 2 < document["self"][0]["high"] < 2.3


def test_diff_of_a_deploy_takes_as_much_as_there_is_of_both_builds(run_deployed):
    _, out, _ = run_deployed("--deploy", "--json")
    assert [side["name"] for side in json.loads(out)["inputs"]] == ["redis (60 slices)", "redis (10 slices)"]
    assert verdicts(out) == {"fast": "noise", "slow": "grew"}


def test_diff_of_unchanged_times_finds_nothing(run_deployed):
    code, out, _ = run_deployed("--at", "-40m", "--for", "10m", "--with", "-25m", "--fail-on", "1", "--json")
    assert code == 0
    assert {*verdicts(out).values()} == {"noise"}


def test_diff_writes_a_page_with_what_was_ordinary(run_deployed, tmp_path):
    assert run_deployed("--deploy", "--for", "10m", "-o", str(tmp_path / "d.html"))[0] == 0
    assert b"ordinary: 10 pairs of other times" in (tmp_path / "d.html").read_bytes()


def test_diff_of_a_deploy_that_there_was_not_says_which_builds_there_are(run_deployed):
    code, _, err = run_deployed("--deploy", "aabbcc")
    assert code == 1
    assert err.splitlines()[0] == "sfsample: no change of the build-id to aabbcc: redis"
    assert "its builds: aabbccdd, ffeeddcc" in err


def test_diff_says_that_slices_are_merged_and_that_they_differ(run_deployed, tmp_path, capsys):
    from sfsample.history.facts import Slice

    history, begin_s = History(str(tmp_path / "old")), NOW_S // 86400 * 86400 - 5 * 86400
    for at in range(60):
        of = report(FAST, rate_hz=19.0 if at < 30 else 99.0)
        history.add(Slice(begin_s + 60 * at, begin_s + 60 * at + 60, "redis", of))
    history.tidy(NOW_S)
    history.close()
    at = [time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(begin_s + 1800 * half)) for half in (0, 1)]
    words = ["history", "diff", "--history", history.directory, "--for", "30m"]
    assert main([*words, "--at", at[0], "--with", at[1]]) == 0
    out = capsys.readouterr()
    assert "before: redis (3 slices, merged to 10m)" in out.out
    assert "the slices differ in rate: 19 Hz, 99 Hz" in out.err


def test_empty_selection_says_what_there_is(run):
    code, out, err = run("show", "--service", "redsi")
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "sfsample: no slice is selected: --service redsi"
    assert "there is nginx: 1 slice, " in err
    assert "there is redis: 9 slices, " in err


@pytest.fixture
def owned(directory):
    """Return what adds a slice of a service now, with one function of its name."""

    def add(service: str, before_s: float = 0.0) -> None:
        history = History(directory)
        end_s = NOW_S - before_s
        history.add(Slice(end_s - 60, end_s, service, report((f"main;{service}", 5, 5, 5))))
        history.close()

    return add


def test_owner_may_be_left_out_if_there_is_only_one(run, owned):
    owned("container/shop")
    for words in (["show"], ["list"], ["export", "--since", "1h"], ["show", "--at", "now"]):
        code, out, _ = run(*words, "--service", "shop")
        assert (code, "shop" in out) == (0, True)
    words = ["diff", "--at", "-5min", "--for", "5min", "--with", "now"]
    assert run(*words, "--service", "shop")[0] == run(*words, "--service", "container/shop")[0]


def test_claim_of_another_owner_does_not_take_a_name_away(run, owned):
    owned("user-1000/redis")
    assert "main;user" not in run("export", "--service", "redis")[1], "a whole name is one service"
    assert run("export", "--service", "user-1000/redis")[1] == "app;main;user-1000/redis 5\n"
    owned("user-1000/shop")
    owned("shop.service/shop")
    code, out, err = run("export", "--service", "shop")
    assert (code, out) == (1, "")
    assert err == ("sfsample: several services have this name: shop.service/shop, user-1000/shop\n"
                   "  use --service OWNER/NAME\n")  # fmt: skip


def test_history_of_before_is_found_where_it_is(run, owned):
    """It has names without owners."""
    owned("shop", before_s=7200)
    owned("container/shop")
    assert run("export", "--service", "shop", "--at", "-2.1h")[1] == "app;main;shop 5\n"
    assert run("export", "--service", "shop", "--since", "1h")[1] == "app;main;container/shop 5\n"


def test_several_services_are_an_error_that_lists_them(run):
    code, _, err = run("export")
    assert code == 1
    assert err == "sfsample: several services are selected: nginx, redis\n  use --service NAME\n"
    assert run("export", "--label", "env=test")[:2] == (0, "app;main;fast 900\n")


def test_prune_without_a_selection_applies_retention(run):
    code, _, err = run("prune")
    assert code == 0
    assert "there is redis: 9 slices" in err


def test_check_finds_damage(run, directory):
    assert run("check")[:2] == (0, f"{directory}: 10 slices: every slice can be read\n")
    [name] = file_names(directory)
    with closing(sqlite3.connect(name.path, isolation_level=None)) as database:
        database.execute("UPDATE slice SET samples = samples + 1 WHERE id = 1")
    code, out, err = run("check")
    assert code == 1
    assert "911" in out
    assert ": 1 problem\n" in out
    assert err == ""
    assert "skipped: " in run("show", "--service", "redis")[2]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["show", "--for", "1h"], "--for needs --at"),
        (["show", "--at", "-1h", "--since", "1h"], "--at and --since"),
        (["diff", "--at", "-1h"], "needs --at WHEN and --with WHEN"),
        (["diff", "--with", "now"], "needs --at WHEN and --with WHEN"),
        (["show", "--with", "now"], "unrecognized arguments: --with now"),
        (["show", "--deploy"], "unrecognized arguments: --deploy"),
        (["diff", "--deploy", "--at", "-1h"], "replaces --at and --with"),
        (["diff", "--deploy", "x"], "not 6 to 64 digits of a build-id"),
        (["prune", "--service", "redis"], "unrecognized arguments: --service redis"),
        (["export", "-f", "text"], "not one of folded, json, speedscope"),
        (["list", "--at", "x"], "not a time"),
        (["look"], "history needs an action"),
        ([], "history needs an action"),
    ],
)
def test_mistakes_are_usage_errors(run, words, what):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert what in err.splitlines()[0]


def test_missing_history_is_an_error_and_is_not_made(tmp_path, capsys):
    assert main(["history", "list", "--history", str(tmp_path / "none")]) == 1
    assert "no history" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def damage(directory, numbers):
    [name] = file_names(directory)
    with closing(sqlite3.connect(name.path, isolation_level=None)) as database:
        database.execute(f"UPDATE stacks SET rows = zeroblob(9) WHERE id IN ({numbers})")  # noqa: S608


def test_time_without_slices_is_said_in_text_and_json(run):
    _, out, _ = run("show", "--service", "redis", "--at", "-190m", "--for", "1h")
    assert "\nslices cover only 3 min of 1 h\n" in out
    _, out, err = run("export", "--service", "redis", "--at", "-190m", "--for", "1h", "-f", "json")
    assert json.loads(out)["stats"]["missing"] == ["slices cover only 3 min of 1 h"]
    assert err == "sfsample: warning: slices cover only 3 min of 1 h\n"
    _, out, _ = run("show", "--service", "redis", "--at", "-60m", "--for", "1m")
    assert "there are slices" not in out


def test_slices_that_cannot_be_read_are_said_and_others_are_there(run, directory):
    damage(directory, "SELECT id FROM slice WHERE service = 'redis' ORDER BY id LIMIT 2")
    code, out, err = run("show", "--service", "redis")
    assert code == 0
    assert "lost: slices with 1,820 of 10,860 samples could not be read\n" in out
    assert "2 of 9 slices of redis: damaged" in err
    code, _, err = run("export", "--service", "redis")
    assert (code, "1,820 of 10,860 samples could not be read" in err) == (0, True)


def test_export_of_nothing_is_an_error_and_no_file(run, directory, tmp_path):
    damage(directory, "SELECT id FROM slice")
    for words in (["export", "-o", str(tmp_path / "x.html")], ["export"], ["show"]):
        code, out, err = run(*words, "--service", "redis")
        assert (code, out) == (1, "")
        assert "sfsample: no slice can be read: 9 slices of redis\n" in err
    assert not (tmp_path / "x.html").exists()


def test_diff_says_what_it_has_not_and_that_times_are_the_same(run):
    words = ["--service", "redis", "--at", "-190m", "--for", "1h"]
    _, _, err = run("diff", *words, "--with", "-130m")
    assert "warning: before: slices cover only 3 min of 1 h\n" in err
    assert "warning: after: slices cover only 3 min of 1 h\n" in err
    assert "slices in common" not in err
    assert "warning: some slices belong to both times\n" in run("diff", *words, "--with", "-185m")[2]


def test_since_now_is_no_date_of_the_future(run):
    code, _, err = run("list", "--since", "now")
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(NOW_S))
    assert (code, err.splitlines()[0]) == (1, f"sfsample: no slice is selected: {now} UTC to now")


def test_prune_says_what_it_has_done(run, directory):
    first, limits, *_ = run("prune")[2].splitlines()
    assert first == "sfsample: 0 slices deleted, 0 merged into others, 10 kept"
    assert limits == "  limits: 90d and 10G; the last day always stays"
    kept = History(directory)
    for day in (100, 5):
        for minute in range(5):
            begin_s = (NOW_S - day * 86400) // 3600 * 3600 + 60 * minute
            kept.add(Slice(begin_s, begin_s + 60, "redis", report(FAST)))
    kept.close()
    first = run("prune")[2].splitlines()[0]
    assert first == "sfsample: 5 slices deleted, 4 merged into others, 11 kept"


def test_empty_selection_lists_the_service_that_is_wanted_or_some(run, directory):
    from sfsample.history.facts import Slice

    history = History(directory)
    for at in range(12):
        history.add(Slice(NOW_S - 60, NOW_S, f"s{at:02}", report(FAST)))
    history.close()
    _, _, err = run("show", "--service", "redis", "--at", "-9h")
    assert [line.split()[2] for line in err.splitlines()[1:]] == ["redis:"]
    lines = run("show", "--service", "rediss")[2].splitlines()[1:]
    assert len(lines) == 11
    assert lines[-1] == "  and 4 more services: sfsample history list shows them"
