/* Unwinds with eu-stack's library the copies of stacks that sfsample has unwound.
 *
 *     dwfl PID FILE
 *
 * It stops no thread: the modules are those of process PID, registers and stacks come from FILE.  For each line of two
 * numbers it unwinds the copies from the first up to the second, and prints the number of frames, the CPU time in
 * nanoseconds, and how many of the stacks have the pcs in FILE.
 *
 * FILE: words of 8 bytes.  The number of registers; then for each copy the registers in DWARF's order, the pc, the
 * address of the stack, the number of its words and the words, the number of frames and their pcs.
 * Source: elfutils/libdwfl.h.
 */
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

struct copy {
    const Dwarf_Word *registers, *stack, *pcs;
    Dwarf_Word pc, base, words, frames;
};

static struct copy *copies, *now;
static long count, registers, frames, same, wrong;
static pid_t pid;

static int on_frame(Dwfl_Frame *frame, void *unused)
{
    Dwarf_Addr pc;
    (void)unused;
    if (!dwfl_frame_pc(frame, &pc, NULL))
        return DWARF_CB_ABORT;
    wrong |= (Dwarf_Word)same >= now->frames || now->pcs[same] != pc;
    same++;
    return DWARF_CB_OK;
}

static bool get_thread(Dwfl *dwfl, pid_t tid, void *unused, void **argument)
{
    (void)dwfl, (void)tid, (void)unused;
    *argument = now;
    return true;
}

static pid_t next_thread(Dwfl *dwfl, void *unused, void **argument)
{
    (void)dwfl, (void)unused, (void)argument;
    return 0;
}

static bool memory_read(Dwfl *dwfl, Dwarf_Addr address, Dwarf_Word *result, void *unused)
{
    Dwarf_Addr at = address - now->base;
    (void)dwfl, (void)unused;
    if (address < now->base || at / 8 >= now->words)
        return false;
    *result = *(const Dwarf_Word *)((const char *)now->stack + at);
    return true;
}

static bool set_registers(Dwfl_Thread *thread, void *unused)
{
    (void)unused;
    dwfl_thread_state_register_pc(thread, now->pc);
    return dwfl_thread_state_registers(thread, 0, registers, now->registers);
}

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void load(const char *path)
{
    struct stat info;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &info))
        exit(1);
    const Dwarf_Word *at = mmap(NULL, info.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    const Dwarf_Word *end = at + info.st_size / 8;
    registers = *at++;
    while (at < end) {
        copies = realloc(copies, ++count * sizeof *copies);
        struct copy *copy = &copies[count - 1];
        copy->registers = at;
        at += registers;
        copy->pc = *at++;
        copy->base = *at++;
        copy->words = *at++;
        copy->stack = at;
        at += copy->words;
        copy->frames = *at++;
        copy->pcs = at;
        at += copy->frames;
    }
}

int main(int argc, char **argv)
{
    static const Dwfl_Callbacks callbacks = {
        .find_elf = dwfl_linux_proc_find_elf,
        .find_debuginfo = dwfl_standard_find_debuginfo,
    };
    static const Dwfl_Thread_Callbacks thread = {
        .next_thread = next_thread,
        .get_thread = get_thread,
        .memory_read = memory_read,
        .set_initial_registers = set_registers,
    };
    if (argc != 3)
        return 2;
    pid = atoi(argv[1]);
    load(argv[2]);
    Dwfl *dwfl = dwfl_begin(&callbacks);
    if (dwfl_linux_proc_report(dwfl, pid) || dwfl_report_end(dwfl, NULL, NULL) ||
        !dwfl_attach_state(dwfl, NULL, pid, &thread, NULL)) {
        fprintf(stderr, "dwfl: %s\n", dwfl_errmsg(-1));
        return 1;
    }
    long first, last;
    while (scanf("%ld %ld", &first, &last) == 2) {
        long stacks = 0;
        double start = cpu();
        for (frames = 0; first < last && first < count; first++) {
            now = &copies[first];
            same = wrong = 0;
            dwfl_getthread_frames(dwfl, pid, on_frame, NULL);
            frames += same;
            stacks += !wrong && (Dwarf_Word)same == now->frames;
        }
        printf("%ld %.0f %ld\n", frames, cpu() - start, stacks);
        fflush(stdout);
    }
    dwfl_end(dwfl);
    return 0;
}
