// Ways out of functions that C++ and POSIX have, each between two `int3`s; tests/live/test_every_way_out.py
// single-steps them.  `steps SCENARIO`; without one, it names them.
#include <alloca.h>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <pthread.h>
#include <sched.h>
#include <stdexcept>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone))
#define USED(x) __asm__ volatile("" : : "r"(x) : "memory")

static volatile long sink;
FUNCTION long leaf(long a, long b) { return a * 3 + b; }

struct Guard {
    long value;
    FUNCTION explicit Guard(long n) : value(n) {}
    FUNCTION ~Guard() { sink = leaf(value, 1); }
};

// ---- exceptions: through clean-ups, a realigned frame, a frame that rethrows, one that throws another -------

FUNCTION long throws(long n)
{
    Guard guard(n);
    if (n < 100)
        throw std::runtime_error("as expected");
    return leaf(n, 2);
}
FUNCTION long realigned(long n)
{
    char aligned[64] __attribute__((aligned(64)));
    char *space = static_cast<char *>(alloca(static_cast<size_t>(n) * 8 + 16));
    USED(aligned);
    USED(space);
    Guard guard(3);
    return throws(n) + 1;
}
FUNCTION long rethrows(long n)
{
    try {
        return realigned(n);
    } catch (std::exception &caught) {
        sink = static_cast<long>(strlen(caught.what()));
        throw;
    }
}
FUNCTION long converts(long n)
{
    try {
        return rethrows(n);
    } catch (std::runtime_error &) {
        throw 42;
    }
}
static void exceptions()
{
    try {
        sink = converts(5);
    } catch (int number) {
        sink = number;
    }
    sink = leaf(1, 2);
}

// ---- a thread that ends in the middle -----------------------------------------------------------------------

FUNCTION void *leaves(void *result)
{
    Guard guard(1);
    pthread_exit(result);
}
static void thread_exit()
{
    pthread_t thread;
    pthread_create(&thread, nullptr, leaves, nullptr);
    pthread_join(thread, nullptr);
}

FUNCTION int cloned(void *n)
{
    sink = leaf(reinterpret_cast<long>(n), 1);
    return 0;
}
static char *own_stack; // far from other stacks, so that it is known by its mapping
static void prepare_clone()
{
    own_stack = static_cast<char *>(mmap(nullptr, 1 << 17, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(own_stack, 4096, PROT_NONE);
}
static void by_clone()
{
    clone(cloned, own_stack + (1 << 17), CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM,
          reinterpret_cast<void *>(5));
}

// ---- out of a signal handler, on its own stack and on an alternate one --------------------------------------

static char alternate[65536] __attribute__((aligned(4096)));
static sigjmp_buf place;
static ucontext_t context;
static volatile int times;

FUNCTION void jumps(int number)
{
    sink = leaf(number, 2);
    siglongjmp(place, 1);
}
FUNCTION void sets_context(int)
{
    times = times + 1;
    setcontext(&context);
}
static void install(void (*handler)(int), int flags)
{
    stack_t stack = {};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof alternate;
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(SIGILL, &action, nullptr);
}
FUNCTION void faults(long n)
{
    if (n) {
        faults(n - 1);
        sink = n;
    } else
        __asm__ volatile("ud2");
}
static void prepare_jump() { install(jumps, 0); }
static void prepare_jump_alternate() { install(jumps, SA_ONSTACK); }
static void prepare_context() { install(sets_context, SA_ONSTACK); }
static void handler_jumps()
{
    for (volatile int i = 0; i < 2; i = i + 1)
        if (sigsetjmp(place, 1) == 0)
            faults(i);
    sink = leaf(3, 3);
}
static void handler_sets_context()
{
    times = 0;
    getcontext(&context);
    if (times < 2)
        faults(3);
    sink = leaf(2, 2);
}

// ---- where no code is: the handler returns to the caller ----------------------------------------------------

FUNCTION void returns(int, siginfo_t *, void *where)
{
    greg_t *registers = static_cast<ucontext_t *>(where)->uc_mcontext.gregs;
    registers[REG_RIP] = *reinterpret_cast<greg_t *>(registers[REG_RSP]);
    registers[REG_RSP] += 8;
}
static void prepare_stray()
{
    struct sigaction action = {};
    action.sa_sigaction = returns;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
}
static long data[512] __attribute__((aligned(4096)));
FUNCTION long calls(long address)
{
    long (*volatile function)(long) = reinterpret_cast<long (*)(long)>(address);
    return function(1) + 1;
}
static void stray() { sink = calls(0x10) + calls(0x123456789000) + calls(reinterpret_cast<long>(data)); }

static const struct {
    const char *name;
    void (*run)();
    void (*prepare)();
} scenarios[] = {
    {"exceptions", exceptions, nullptr},
    {"thread-exit", thread_exit, nullptr},
    {"clone", by_clone, prepare_clone},
    {"handler-jumps", handler_jumps, prepare_jump},
    {"handler-jumps-alternate", handler_jumps, prepare_jump_alternate},
    {"handler-sets-context", handler_sets_context, prepare_context},
    {"stray", stray, prepare_stray},
};

int main(int argc, char **argv)
{
    for (auto &scenario : scenarios) {
        if (argc < 2)
            puts(scenario.name);
        else if (strcmp(argv[1], scenario.name) == 0) {
            if (scenario.prepare)
                scenario.prepare();
            __asm__ volatile("int3");
            scenario.run();
            __asm__ volatile("int3");
        }
    }
}
