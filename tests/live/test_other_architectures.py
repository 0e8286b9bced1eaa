"""Live tests pass on other architectures, in guests under qemu (scripts/test-arch).

CHOSEN is the part that runs in both guests: kinds of stacks, modules in odd places, signals, ends, dumps.
Emulation is slow; `scripts/test-arch arm64` runs all of tests/live.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIVE = Path(__file__).parent
ROOT = LIVE.parents[1]
QEMU = {"arm64": "qemu-system-aarch64", "s390x": "qemu-system-s390x"}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

CHOSEN = {
    "awkward_modules": [
        "stacks_in_a_container_are_true[library-target-build-id-root]",
        "program_with_segments_2_mib_apart[signal]",
        "program_and_library_from_memfd[library-target-static]",
    ],
    "chains": [
        "running_thread_has_the_stated_stack[leaf-v3-target]",
        "running_thread_has_the_stated_stack[plt-v3-target]",
        "running_thread_has_the_stated_stack[qsort-v3-target]",
        "running_thread_has_the_stated_stack[nested-signal-v3-target]",
        "running_thread_has_the_stated_stack[signal-v3-target-static]",
        "running_thread_has_the_stated_stack[signal-main-v3-target]",
        "running_thread_has_the_stated_stack[nullcall-v3-target]",
        "sleeping_thread_has_the_stated_stack[sleep-v3-target]",
        "sleeping_thread_has_the_stated_stack[epoll-v3-target]",
    ],
    "changing_modules": ["code_that_was_copied_to_anonymous_memory[flags0]"],
    "cli_doctor": ["doctor_without_a_target_judges_five_gates"],
    "cli_dump": ["sleeping_thread_has_its_system_call"],
    "cli_errors": ["name_without_match_is_an_error"],
    "cli_record": ["quiet_prints_no_summary"],
    "endings": ["recording_ends_when_the_target_is_killed", "first_thread_ends_and_others_are_sampled"],
    "hangs": ["mutex_locked_twice_is_a_deadlock"],
    "interference": ["target_that_another_tracer_holds_is_read_by_a_dump"],
    "kernel_workers": ["workers_are_sampled_and_not_lost[cpu]"],
    "library": ["dump"],
    "modules": ["deleted_program_has_true_stacks[deep-v3-target]"],
    "names": ["kernel_functions_of_a_sleeping_thread"],
    "pause_ends": ["exec_of_another_thread_does_not_wait_for_sfsample"],
    "peers": ["process_at_the_other_end_of_a_polled_pipe_is_named"],
    "resources": ["refused_recording_closes_its_files"],
    "sleeping_threads": ["system_calls_that_fail_after_a_stop"],
    "search": ["job_stopped_thread_is_traced"],
    "signals": [
        "job_stopped_target_stays_stopped[threads]",
        "signal_during_a_stop_is_delivered",
    ],
    "subprocesses": ["without_the_flag_children_are_not_sampled"],
    "thread_facts": ["idle_time_of_a_sleeping_thread"],
}
# only in one guest: s390x has one generation of SFrame, and no generated code
MORE = {
    "arm64": {
        "chains": [
            "running_thread_has_the_stated_stack[nested-signal-v1-target]",
            "running_thread_has_the_stated_stack[nested-signal-v2-target]",
        ],
        "user_stepper": ["example_steps_through_generated_code"],
        "go": [
            f"{name}[{version}]"
            for name in ("stacks_are_whole_and_every_edge_is_a_call", "goroutines_are_those_of_the_traceback")
            for version in ("1.19", "1.27")
        ],
        "go_library": ["stacks_of_threads_from_c_are_whole", "goroutines_of_the_library_are_shown"],
        "go_waits": [f"waits_are_those_of_the_program[{version}]" for version in ("1.19", "1.27")],
    },
    "s390x": {},
}


def chosen_tests(guest: str) -> list[str]:
    chosen = [*CHOSEN.items(), *MORE[guest].items()]
    return [f"tests/live/test_{file}.py::test_{name}" for file, names in chosen for name in names]


def test_chosen_tests_exist():
    tests = dict.fromkeys(test for guest in QEMU for test in chosen_tests(guest))
    words = (
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        *tests,
    )
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.live
@pytest.mark.extended
@pytest.mark.parametrize("guest", QEMU)
def test_live(guest, capsys):
    missing = [name for name in (QEMU[guest], "cpio", "apt-get") if shutil.which(name) is None]
    missing += [] if KEYRING.exists() else ["debian-archive-keyring"]
    if missing:
        pytest.skip(f"no {guest} guest: {', '.join(missing)} not installed")
    tests = chosen_tests(guest)
    options = ("-q", "--color=no", "-p", "no:cacheprovider", "--tb=short", "--durations=10")
    words = (sys.executable, ROOT / "scripts/test-arch", guest, *options, *tests)
    found = subprocess.run(words, capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stdout + found.stderr
    summary = re.findall(r"^(?:SKIPPED .*|\d+ passed.*)$", found.stdout, re.MULTILINE)
    with capsys.disabled():
        sys.stdout.write("\n  ".join([f"\n{guest}:", *summary, ""]))  # shown although the test passes
    assert int(summary[-1].split()[0]) >= len(tests)
