/* N threads, all different: some compute, some sleep in a system call, wait on a condition, or fight for a lock. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t signalled = PTHREAD_COND_INITIALIZER;
static volatile unsigned long shared;
static int pipes[2];

KEEP static unsigned long spins(int n) { unsigned long r = n; for (int i = 0; i < 2000; i++) r = r * 31 + i; return r; }
KEEP static void locked(int n) { pthread_mutex_lock(&lock); shared += spins(n); pthread_cond_signal(&signalled); pthread_mutex_unlock(&lock); }
KEEP static void waits(void) { pthread_mutex_lock(&lock); pthread_cond_wait(&signalled, &lock); pthread_mutex_unlock(&lock); }
KEEP static void sleeps(int n) { usleep(1000 * (n % 7 + 1)); }
KEEP static void reads(void) { char c; if (read(pipes[0], &c, 1) == 1) shared += c; }
KEEP static void writes(void) { if (write(pipes[1], "x", 1) != 1) _exit(1); sleeps(3); }
KEEP static void nested(int depth, int n) {
    volatile char pad[48]; pad[0] = (char)n;
    if (depth) { nested(depth - 1, n); shared += pad[0]; return; }
    switch (n % 6) {
    case 0: sleeps(n); break;
    case 1: locked(n); sleeps(n); break;
    case 2: waits(); break;
    case 3: reads(); break;
    case 4: writes(); break;
    default: shared += spins(n); sleeps(n);
    }
}
static void *thread(void *number) { for (;;) nested((int)(long)number % 20, (int)(long)number); return 0; }
int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 200;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    if (pipe(pipes)) return 1;
    for (long i = 1; i < count; i++) { pthread_t t; if (pthread_create(&t, &small, thread, (void *)i)) return 1; }
    for (;;) { locked(0); writes(); }
}
