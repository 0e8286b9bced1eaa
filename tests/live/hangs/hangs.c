/* Hangs, one per scenario: `hangs SCENARIO FD [ARGUMENT]` writes "ready PID" to FD when all is set up, then
   hangs.  Functions are named after what they do; OWN keeps a function out of line. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <resolv.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OWN __attribute__((noinline, noclone))

static int out;
static const char *argument;
static pthread_barrier_t start;
static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER;

static void ready(void) { dprintf(out, "ready %d\n", getpid()); }

static void name(const char *text) { prctl(PR_SET_NAME, text); }

static pthread_t thread(void *(*body)(void *), void *given) {
    pthread_t made;
    if (pthread_create(&made, NULL, body, given)) abort();
    return made;
}

static void join_all(pthread_t *threads, int count) {
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

/* two mutexes in opposite order */

OWN static void transfer(pthread_mutex_t *from, pthread_mutex_t *to) {
    pthread_mutex_lock(from);
    pthread_barrier_wait(&start);
    pthread_mutex_lock(to);
    asm volatile("");
}

OWN static void transfer_in_time(pthread_mutex_t *from, pthread_mutex_t *to) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 1000;
    pthread_mutex_lock(from);
    pthread_barrier_wait(&start);
    pthread_mutex_timedlock(to, &end);
    asm volatile("");
}

static void *patient(void *given) { name("patient"); transfer_in_time(&second, &first); return given; }
static void *debit(void *given) { name("debit"); transfer(&first, &second); return given; }
static void *credit(void *given) { name("credit"); transfer(&second, &first); return given; }

static void abba(void *(*other)(void *)) {
    pthread_barrier_init(&start, NULL, 2);
    pthread_t threads[] = {thread(debit, NULL), thread(other, NULL)};
    ready();
    join_all(threads, 2);
}

/* one thread takes a mutex twice */

OWN static void relock(void) {
    pthread_mutex_lock(&first);
    ready();
    pthread_mutex_lock(&first);
    asm volatile("");
}

/* many idle workers, and a thread that holds the lock and sleeps */

static sem_t jobs;

OWN static void next_job(void) { sem_wait(&jobs); asm volatile(""); }

static void *worker(void *given) {
    char text[16];
    snprintf(text, sizeof text, "worker-%ld", (long)given);
    name(text);
    pthread_barrier_wait(&start);
    for (;;) next_job();
    return given;
}

OWN static void slow_write(void) { for (;;) sleep(1000); }

static void *culprit(void *given) {
    name("flusher");
    pthread_mutex_lock(&first);
    pthread_barrier_wait(&start);
    slow_write();
    return given;
}

OWN static void append_log(void) { pthread_mutex_lock(&first); asm volatile(""); }

static void *victim(void *given) {
    char text[16];
    snprintf(text, sizeof text, "request-%ld", (long)given);
    name(text);
    pthread_barrier_wait(&start);
    append_log();
    return given;
}

static void workers(void) {
    int idle = atoi(argument), stuck = 3;
    sem_init(&jobs, 0, 0);
    pthread_barrier_init(&start, NULL, idle + stuck + 2);
    for (long i = 0; i < idle; i++) thread(worker, (void *)i);
    pthread_t last = thread(culprit, NULL);
    for (long i = 0; i < stuck; i++) thread(victim, (void *)i);
    pthread_barrier_wait(&start);
    ready();
    pthread_join(last, NULL);
}

/* a mutex whose owner has ended */

static void *quitter(void *given) { pthread_mutex_lock(&first); return given; }

static void orphan(void) {
    pthread_join(thread(quitter, NULL), NULL);
    ready();
    append_log();
}

/* mutexes of other kinds, and a barrier at which one thread is missing */

static pthread_mutex_t inheriting, robust;

OWN static void take(pthread_mutex_t *mutex) { pthread_mutex_lock(mutex); asm volatile(""); }
static void *inheritor(void *given) { name("inheritor"); take(&inheriting); return given; }
static void *survivor(void *given) { name("survivor"); take(&robust); return given; }
static void *early(void *given) { name("early"); pthread_barrier_wait(&start); return given; }

static void kinds(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&inheriting, &kind);
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &kind);
    pthread_barrier_init(&start, NULL, 2);
    pthread_mutex_lock(&inheriting);
    pthread_mutex_lock(&robust);
    thread(inheritor, NULL);
    thread(survivor, NULL);
    thread(early, NULL);
    ready();
    slow_write();
}

/* rwlock: a reader, and a waiting writer that goes before other readers; or a writer that holds it */

static pthread_rwlock_t table;

OWN static void scan_table(void) { pthread_rwlock_rdlock(&table); slow_write(); }
OWN static void change_table(void) { pthread_rwlock_wrlock(&table); slow_write(); }
static void *scanner(void *given) { name("scanner"); scan_table(); return given; }
static void *changer(void *given) { name("changer"); change_table(); return given; }

static int asleep(void) { /* counts the sleeping threads; the caller itself runs */
    char path[300], line[512];
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file == NULL) continue;
        if (fgets(line, sizeof line, file) && strrchr(line, ')')[2] == 'S') count++;
        fclose(file);
    }
    closedir(tasks);
    return count;
}

static void starve(int writer_first) {
    pthread_rwlockattr_t kind;
    pthread_rwlockattr_init(&kind);
    pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&table, &kind);
    pthread_t threads[3];
    threads[0] = thread(writer_first ? changer : scanner, NULL);
    while (asleep() < 1) usleep(1000);
    threads[1] = thread(writer_first ? scanner : changer, NULL);
    while (asleep() < 2) usleep(1000);
    threads[2] = thread(scanner, NULL);
    ready();
    join_all(threads, 3);
}

/* between processes */

OWN static void send_all(int fd) {
    static char block[1 << 16];
    for (;;) if (write(fd, block, sizeof block) < 0) _exit(1);
}

static void turns_taken(void) { /* one byte goes back and forth: each process mostly waits for the other */
    int there[2], back[2];
    char byte = 'x';
    if (pipe(there) || pipe(back)) abort();
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, 9);
        while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1) continue;
    }
    dprintf(out, "child %d\n", child);
    ready();
    while (write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1) continue;
}

static void pipes(void) { /* both processes write, none reads */
    int there[2], back[2];
    if (pipe(there) || pipe(back)) abort();
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, 9);
        name("responder");
        close(there[1]);
        close(back[0]);
        send_all(back[1]);
    }
    close(there[0]);
    close(back[1]);
    dprintf(out, "child %d\n", child);
    ready();
    send_all(there[1]);
}

OWN static void take_file(int posix) {
    int fd = open(argument, O_RDWR | O_CREAT, 0666);
    struct flock whole = {.l_type = F_WRLCK};
    if (posix ? fcntl(fd, F_SETLKW, &whole) : flock(fd, LOCK_EX)) abort();
}

static void file_lock(int posix) {
    int locked[2];
    if (pipe(locked)) abort();
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, 9);
        name("lockkeeper");
        take_file(posix);
        if (write(locked[1], "x", 1) != 1) abort();
        for (;;) pause();
    }
    char byte;
    if (read(locked[0], &byte, 1) != 1) abort();
    dprintf(out, "child %d\n", child);
    ready();
    take_file(posix);
}

OWN static void reap_child(void) { wait(NULL); }

static void child(void) {
    pid_t made = fork();
    if (made == 0) {
        prctl(PR_SET_PDEATHSIG, 9);
        name("compiler");
        for (;;) pause();
    }
    dprintf(out, "child %d\n", made);
    ready();
    reap_child();
}

static void vfork_beside_a_zombie(void) {
    pid_t zombie = fork();
    if (zombie == 0) _exit(0);
    siginfo_t end;
    waitid(P_PID, zombie, &end, WEXITED | WNOWAIT);
    dprintf(out, "child %d\n", zombie);
    ready();
    if (vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, 9);
        for (;;) pause();
    }
}

/* pipes whose other end nobody else opens */

OWN static void open_queue(const char *path, int flags) { if (open(path, flags) < 0) exit(1); }

OWN static void read_own_pipe(void) {
    int ends[2];
    char letter;
    if (pipe(ends)) exit(1);
    ready();
    if (read(ends[0], &letter, 1) < 0) exit(1);
}

/* the network */

OWN static void call_backend(int port) { /* the listener accepts nothing, and its queue is full */
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0;; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (i == 1) ready();
        if (connect(fd, (struct sockaddr *)&to, sizeof to)) abort();
    }
}

OWN static void look_up_host(int port) { /* the server receives queries and never answers */
    unsigned char answer[512];
    struct __res_state state = {0};
    if (res_ninit(&state)) abort();
    state.nscount = 1;
    state.nsaddr_list[0].sin_family = AF_INET;
    state.nsaddr_list[0].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    state.nsaddr_list[0].sin_port = htons(port);
    state.retrans = 1000;
    ready();
    res_nquery(&state, "db.example.com", 1, 1, answer, sizeof answer);
}

/* threads that hand locks over all the time */

static void nap(void) { nanosleep(&(struct timespec){0, 100000}, NULL); }
OWN static void in_turn(pthread_mutex_t *mutex) { pthread_mutex_lock(mutex); nap(); pthread_mutex_unlock(mutex); }
static void *runner(void *given) { name("runner"); for (;;) { in_turn(&first); in_turn(&second); } return given; }

static void relay(void) {
    for (int i = 0; i < 5; i++) thread(runner, NULL);
    ready();
    runner(NULL);
}

/* a thread that spins */

static volatile unsigned long turns;

OWN static void step(void) { for (int i = 0; i < 1000; i++) turns++; }
OWN static void spin_on_flag(void) { while (turns < ~0ul) step(); }
static void *spinner(void *given) { name("poller"); spin_on_flag(); return given; }

int main(int argc, char **argv) {
    const char *scenario = argv[1];
    out = atoi(argv[2]);
    argument = argc > 3 ? argv[3] : "0";
    prctl(PR_SET_PDEATHSIG, 9);
    if (!strcmp(scenario, "abba")) abba(credit);
    else if (!strcmp(scenario, "timed")) abba(patient);
    else if (!strcmp(scenario, "relock")) relock();
    else if (!strcmp(scenario, "orphan")) orphan();
    else if (!strcmp(scenario, "relay")) relay();
    else if (!strcmp(scenario, "kinds")) kinds();
    else if (!strcmp(scenario, "workers")) workers();
    else if (!strcmp(scenario, "starve")) starve(0);
    else if (!strcmp(scenario, "writer")) starve(1);
    else if (!strcmp(scenario, "pipes")) pipes();
    else if (!strcmp(scenario, "turns")) turns_taken();
    else if (!strcmp(scenario, "flock")) file_lock(0);
    else if (!strcmp(scenario, "fcntl")) file_lock(1);
    else if (!strcmp(scenario, "child")) child();
    else if (!strcmp(scenario, "vfork")) vfork_beside_a_zombie();
    else if (!strcmp(scenario, "fifo")) { ready(); open_queue(argument, atoi(argv[4])); }
    else if (!strcmp(scenario, "own")) read_own_pipe();
    else if (!strcmp(scenario, "connect")) call_backend(atoi(argument));
    else if (!strcmp(scenario, "dns")) look_up_host(atoi(argument));
    else if (!strcmp(scenario, "spin")) { pthread_t made = thread(spinner, NULL); ready(); pthread_join(made, NULL); }
    else if (!strcmp(scenario, "sleep")) { ready(); sleep(1000); }
    return 1;
}
