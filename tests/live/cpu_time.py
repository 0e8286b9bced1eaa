"""A program that measures the CPU time of its functions, and the shares of these in a profile."""

import time
from collections import Counter

import sfsample

SOURCE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
enum { LARGE, SMALL, REST, PARTS };
static const char *names[PARTS] = {"large", "small", "rest"};
static long spent[PARTS];
static long cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static volatile long work;
__attribute__((noinline)) static void large(void) { for (long i = 0; i < 600000; i++) work += i; }
__attribute__((noinline)) static void small(void) { for (long i = 0; i < 200000; i++) work += i; }
__attribute__((noinline)) static void rest(void)
{
    struct timespec t = {0, 500000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, 0);
    work++;
}
static void *parts(void *unused)
{
    void (*part[PARTS])(void) = {large, small, rest};
    for (;;)
        for (int i = 0; i < PARTS; i++) {
            long before = cpu();
            part[i]();
            spent[i] += cpu() - before;
        }
    return unused;
}
static void *busy(void *unused) { for (;;) work++; return unused; }
int main(int argc, char **argv)
{
    pthread_t thread;
    FILE *out = fdopen(atoi(argv[2]), "w");
    int sleeps = argc > 3;
    for (int i = 0; i < atoi(argv[1]); i++) pthread_create(&thread, 0, sleeps ? parts : busy, 0);
    fprintf(out, "ready %d\n", getpid()); fflush(out);
    for (char byte; read(0, &byte, 1) == 1;) {
        for (int i = 0; i < PARTS; i++) fprintf(out, "%s %ld\n", names[i], spent[i]);
        fflush(out);
    }
}
"""


def shares(counts):
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}


def measured_by(target):
    target.send()
    return Counter({name: target.reader.number(name) for name in ("large", "small", "rest")})


def samples_of(profile):
    """Count samples by the innermost of the three functions; between them, the program reads its clock."""
    counts: Counter[str] = Counter()
    for line in sfsample.folded(profile).splitlines():
        stack, _, count = line.rpartition(" ")
        part = [name for name in stack.split(";") if name in ("large", "small", "rest")]
        counts[part[-1] if part else "clock"] += int(count)
    del counts["clock"]
    return counts


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process; that of its ended threads too."""
    return time.clock_gettime_ns(~pid << 3 | 2)
