// Starts argv[1] threads: one in ten works a hundred times a second, the others once.  With a second argument each
// thread ends after a hundred times, and another takes its place.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static int churn;
static volatile unsigned long turns;
static void work(void) { for (int i = 0; i < 10000; i++) turns++; }
static void *life(void *number) {
    struct timespec nap = {(long)number % 10 != 0, (long)number % 10 ? 0 : 10000000};
    for (long left = churn ? 100 : -1; left; left--) { work(); nanosleep(&nap, NULL); }
    return NULL;
}
int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    churn = argc > 2;
    pthread_t *all = calloc(threads, sizeof *all);
    for (long i = 0; i < threads; i++)
        if (pthread_create(&all[i], NULL, life, (void *)i)) return 1;
    puts("ready"); fflush(stdout);
    for (long i = 0;; i = (i + 1) % threads) {
        pthread_join(all[i], NULL);
        if (pthread_create(&all[i], NULL, life, (void *)i)) return 1;
    }
}
