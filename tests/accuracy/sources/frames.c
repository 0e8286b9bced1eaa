/* Frames of unusual shape: alloca, arrays of variable length, realigned stacks (DRAP), arguments on the stack,
   large frames, calls that never return, tail calls, setjmp. */
#include <alloca.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#define KEEP __attribute__((noinline, noclone))
static volatile unsigned long sink;
static unsigned long seed = 1;
static jmp_buf back;

KEEP static unsigned next(void) { return (unsigned)((seed = seed * 6364136223846793005UL + 1) >> 33); }
KEEP static unsigned leaf(const char *p, int n) { unsigned r = 0; while (n--) r = r * 31 + p[n]; return r; }

KEEP static unsigned dynamic(int n) { char b[n]; memset(b, n, n); return leaf(b, n) + 1; }
KEEP static unsigned twice(int n) {
    unsigned r = 0;
    for (int i = 0; i < 4; i++) { char b[n + i]; memset(b, i, n + i); r += dynamic(n) + leaf(b, n); }
    char *c = alloca(n);
    memset(c, 1, n);
    return r + leaf(c, n);
}
KEEP static unsigned aligned(int n) {
    __attribute__((aligned(64))) char b[256];
    memset(b, n, 256);
    return leaf(b, 256) + dynamic(n) + 1;
}
KEEP static unsigned aligned_dynamic(int n) {
    __attribute__((aligned(64))) char b[256];
    char c[n];
    memset(b, 1, 256); memset(c, 2, n);
    return leaf(b, 256) + leaf(c, n) + aligned(n) + 1;
}
KEEP static unsigned aligned_many(long a, long b, long c, long d, long e, long f, long g, int n) {
    __attribute__((aligned(128))) char v[512];
    memset(v, n, 512);
    return leaf(v, 512) + aligned_dynamic(n) + (unsigned)(a + b + c + d + e + f + g);
}
KEEP static unsigned large(int n) { char b[60000]; memset(b, n, sizeof b); return leaf(b, 200) + aligned(n); }
KEEP static unsigned deep(int k, int n) { char b[n]; memset(b, k, n); return k ? deep(k - 1, n) + b[0] : large(n); }
KEEP static unsigned last(int n) { return leaf("abcdefghijklmnopqrstuvwxyz", 26) + n; }
KEEP static unsigned tail(int n) { return n & 1 ? last(n) : aligned(n); }
KEEP static void jumps(int k) { char b[64]; memset(b, k, 64); sink += leaf(b, 64); if (!k) longjmp(back, 1); jumps(k - 1); }
KEEP static unsigned caught(int n) { if (!setjmp(back)) jumps(n); return 1; }
KEEP static unsigned works(int n) {
    switch (next() % 7) {
    case 0: return dynamic(n);
    case 1: return twice(n);
    case 2: return aligned_many(1, 2, 3, 4, 5, 6, 7, n);
    case 3: return large(n);
    case 4: return deep(1 + n % 40, n);
    case 5: return caught(n % 30);
    default: return tail(n);
    }
}
int main(void) { for (;;) sink += works(16 + next() % 300); }
