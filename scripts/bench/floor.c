/* floor: the shortest possible pause: the system calls that every sampler with ptrace needs, in C, timed.
 *
 *     floor PID SECONDS HZ BYTES
 *
 * The time is from the first call to the last, as in sfsample.  At every tick it seizes thread PID, interrupts it,
 * waits until it has stopped, reads its registers and up to BYTES of its stack in one call, and detaches.  A signal
 * that stopped the thread is delivered.  It prints, in nanoseconds:
 *
 *     {"count":990,"p50":...,"p90":...,"p99":...,"max":...}
 *
 * Build: cc -std=c11 -O2 -Wall -Wextra -Werror floor.c -o floor
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>

enum { RED_ZONE = 128, STOP_EVENT = 128 /* PTRACE_EVENT_STOP, absent from some headers */ };

static const uint64_t SECOND = 1000000000;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

static void sleep_until(uint64_t when)
{
    struct timespec time = {.tv_sec = (time_t)(when / SECOND), .tv_nsec = (long)(when % SECOND)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
        ;
}

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Returns the end of the mapping that holds an address, or 0. */
static uint64_t end_of_mapping(pid_t pid, uint64_t address)
{
    char path[64], line[4400];
    uint64_t start, end, found = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "r");
    if (!maps)
        fail(path);
    while (!found && fgets(line, sizeof line, maps))
        if (sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &end) == 2 && start <= address && address < end)
            found = end;
    fclose(maps);
    return found;
}

/* Returns the number of bytes to copy from an address on.  It reads the end of the stack at the first sample, and again
 * only when sp has left the mapping (on a signal stack). */
static size_t stack_bytes(pid_t pid, uint64_t from, size_t limit)
{
    static uint64_t end;
    if (end == 0 || from >= end)
        end = end_of_mapping(pid, from + RED_ZONE);
    if (end <= from)
        return 0;
    return end - from < limit ? (size_t)(end - from) : limit;
}

/* Takes one sample; returns the nanoseconds that the thread was held, or 0 if it has ended. */
static uint64_t sample(pid_t pid, unsigned char *buffer, size_t limit)
{
    struct user_regs_struct registers;
    int status;

    uint64_t start = now();
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) != 0) {
        if (errno == ESRCH)
            return 0;
        fail("seize");
    }
    if (ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) != 0 || waitpid(pid, &status, __WALL) != pid ||
        !WIFSTOPPED(status))
        return 0;
    if (ptrace(PTRACE_GETREGS, pid, NULL, &registers) != 0)
        return 0;
    uint64_t from = registers.rsp - RED_ZONE;
    struct iovec here = {buffer, stack_bytes(pid, from, limit)};
    struct iovec there = {(void *)(uintptr_t)from, here.iov_len};
    if (here.iov_len && process_vm_readv(pid, &here, 1, &there, 1, 0) < 0 && errno != EFAULT)
        fail("process_vm_readv");
    long signal_number = status >> 16 == STOP_EVENT ? 0 : WSTOPSIG(status);
    ptrace(PTRACE_DETACH, pid, NULL, signal_number);
    return now() - start;
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Nearest rank: the smallest time that at least that share of all times do not exceed. */
static uint64_t percentile(const uint64_t *sorted, size_t count, size_t percent)
{
    return count ? sorted[(count * percent + 99) / 100 - 1] : 0;
}

static double number(const char *text, double least)
{
    char *end;
    double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(value >= least && value <= 1e9)) {
        fprintf(stderr, "floor: not a valid number here: %s\n", text);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fputs("usage: floor PID SECONDS HZ BYTES\n", stderr);
        return 2;
    }
    pid_t pid = (pid_t)number(argv[1], 1);
    double seconds = number(argv[2], 0), rate = number(argv[3], 0.001);
    size_t limit = (size_t)number(argv[4], 0);
    uint64_t interval = (uint64_t)(1e9 / rate);
    if (interval == 0)
        interval = 1;
    size_t room = (size_t)(seconds * rate) + 1, count = 0;
    unsigned char *buffer = malloc(limit + 1);
    uint64_t *times = malloc(room * sizeof *times);
    if (!buffer || !times)
        fail("memory");
    memset(buffer, 0, limit + 1);               /* touch the pages before the clock runs */
    memset(times, 0, room * sizeof *times);

    sample(pid, buffer, limit);                 /* not counted: it reads the mappings */
    uint64_t tick = now(), end = tick + (uint64_t)(seconds * 1e9);
    while (count < room && tick < end) {
        uint64_t held = sample(pid, buffer, limit);
        if (held == 0)
            break;
        times[count++] = held;
        for (uint64_t late = now(); tick <= late;)      /* missed ticks are skipped */
            tick += interval;
        sleep_until(tick);
    }
    qsort(times, count, sizeof *times, ascending);
    printf("{\"count\":%zu,\"p50\":%" PRIu64 ",\"p90\":%" PRIu64 ",\"p99\":%" PRIu64 ",\"max\":%" PRIu64 "}\n", count,
           percentile(times, count, 50), percentile(times, count, 90), percentile(times, count, 99),
           count ? times[count - 1] : 0);
    if (count == 0)
        fputs("floor: no such thread\n", stderr);
    free(times);
    free(buffer);
    return count == 0;
}
