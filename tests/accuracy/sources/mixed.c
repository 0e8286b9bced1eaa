/* What ordinary C spends its time in: callbacks out of libc, string functions, malloc, printf, recursion,
   calls through pointers, and a signal handler that runs over all of it. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define KEEP __attribute__((noinline, noclone))

static volatile unsigned long sink;
static unsigned long seed = 1;

KEEP static unsigned next(void) { return (unsigned)((seed = seed * 6364136223846793005UL + 1) >> 33); }

KEEP static int compare(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return x < y ? -1 : x > y;
}

KEEP static unsigned sorts(void) {
    unsigned v[400];
    for (int i = 0; i < 400; i++) v[i] = next();
    qsort(v, 400, sizeof v[0], compare);
    return v[200];
}

KEEP static unsigned prints(void) {
    char text[200];
    int n = snprintf(text, sizeof text, "%s %d %g %#lx %*.3f", "text", next(), next() / 3.0, seed, 12, 1.5);
    return (unsigned)(strlen(text) + n);
}

KEEP static unsigned copies(void) {
    char *a = malloc(1 + next() % 5000), *b = calloc(1, 5001), *c;
    memset(b, 'x', 4000 + next() % 1000);
    c = strdup(b);
    unsigned r = strcmp(b, c) + (strchr(c, 'y') != 0) + (unsigned)(size_t)memchr(b, 0, 5001);
    free(a); free(b); free(c);
    return r;
}

KEEP static double computes(double x) {
    for (int i = 0; i < 40; i++) x = sin(x) + pow(fabs(x) + 1.1, 0.7) + exp(-x);
    return x;
}

KEEP static unsigned recurses(int depth) {
    return depth ? recurses(depth - 1) * 3 + (next() & 7) : sorts();
}

struct tree { struct tree *left, *right; unsigned key; };
KEEP static struct tree *insert(struct tree *t, unsigned key) {
    if (!t) { t = calloc(1, sizeof *t); t->key = key; return t; }
    if (key < t->key) t->left = insert(t->left, key); else t->right = insert(t->right, key);
    return t;
}
KEEP static void drop(struct tree *t) { if (t) { drop(t->left); drop(t->right); free(t); } }
KEEP static unsigned grows(void) {
    struct tree *t = 0;
    for (int i = 0; i < 300; i++) t = insert(t, next());
    unsigned key = t->key;
    drop(t);
    return key;
}

KEEP static unsigned asks_the_time(void) {
    struct timespec now = {0, 0};
    for (int i = 0; i < 50; i++) clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned)now.tv_nsec;
}

KEEP static unsigned by_floats(void) { return (unsigned)computes(next()); }
KEEP static unsigned by_recursion(void) { return recurses(1 + next() % 60); }

/* Only what a handler may call: it interrupts malloc. */
KEEP static unsigned handled(int n) {
    volatile unsigned char bytes[256];
    if (n) return handled(n - 1) + 1;
    for (int i = 0; i < 50000; i++) bytes[i & 255] += (unsigned char)i;
    return bytes[7];
}
KEEP static void on_signal(int number) { sink += handled(number & 7); }
KEEP static unsigned raises(void) { raise(next() & 1 ? SIGUSR1 : SIGUSR2); return 1; }

static unsigned (*const table[])(void) = {sorts, prints, copies, by_floats, by_recursion, grows, asks_the_time, raises};

KEEP static void works(void) { sink += table[next() % 8](); }

int main(void) {
    static char other_stack[1 << 16];
    stack_t other = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct itimerval every = {{0, 2000}, {0, 2000}};
    sigaction(SIGUSR1, &action, 0);
    action.sa_flags |= SA_ONSTACK;
    sigaltstack(&other, 0);
    sigaction(SIGUSR2, &action, 0);
    sigaction(SIGVTALRM, &action, 0); /* of two pending signals the lower number comes first: SIGSTOP */
    setitimer(ITIMER_VIRTUAL, &every, 0);
    for (;;) works();
}
