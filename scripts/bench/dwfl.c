/* eu-stack's library as a loop: frames per second of the same stopped thread, all caches warm.
 *
 *     dwfl PID SECONDS
 *
 * Law: stops the thread once, walks until the time is over, lets it go; prints frames of a walk, and walks and
 * frames per second of processor time.  Source: elfutils/libdwfl.h.
 */
#include <elfutils/libdwfl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

static long frames;

static int on_frame(Dwfl_Frame *frame, void *unused)
{
    Dwarf_Addr pc;
    (void)unused;
    if (!dwfl_frame_pc(frame, &pc, NULL))
        return DWARF_CB_ABORT;
    frames++;
    return DWARF_CB_OK;
}

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    static const Dwfl_Callbacks callbacks = {
        .find_elf = dwfl_linux_proc_find_elf,
        .find_debuginfo = dwfl_standard_find_debuginfo,
    };
    if (argc != 3)
        return 2;
    pid_t pid = atoi(argv[1]);
    double seconds = atof(argv[2]);
    if (ptrace(PTRACE_ATTACH, pid, NULL, NULL) || waitpid(pid, NULL, __WALL) != pid) {
        perror("ptrace");
        return 1;
    }
    Dwfl *dwfl = dwfl_begin(&callbacks);
    if (dwfl_linux_proc_report(dwfl, pid) || dwfl_report_end(dwfl, NULL, NULL) ||
        dwfl_linux_proc_attach(dwfl, pid, true)) {
        fprintf(stderr, "dwfl: %s\n", dwfl_errmsg(-1));
        return 1;
    }
    dwfl_getthread_frames(dwfl, pid, on_frame, NULL); /* the first walk reads files */
    long one = frames, walks = 0;
    frames = 0;
    double start = cpu(), spent;
    do {
        dwfl_getthread_frames(dwfl, pid, on_frame, NULL);
        walks++;
    } while ((spent = cpu() - start) < seconds);
    printf("%ld %.0f %.0f\n", one, walks / spent, frames / spent);
    dwfl_end(dwfl);
    ptrace(PTRACE_DETACH, pid, NULL, NULL);
    return 0;
}
