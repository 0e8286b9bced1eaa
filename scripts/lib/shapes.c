/* Shapes that are rare in real programs: frames of all word widths, functions of all row widths, and CFAs in other
   registers on x86-64.  It is compiled for every machine and never run. */
int sink(void *, int);
void stop(void) __attribute__((noreturn));
int leaf(int a) { return a + 1; }
int calls(int a) { return sink(&a, a) + 1; }
int dynamic(int n) { char b[n]; return sink(b, n) + 1; }
int dynamic_twice(int n) { int r; { char b[n]; r = sink(b, n); }
    char *c = __builtin_alloca(n); return r + sink(c, r); }
int word_1(int n) { char b[100]; return sink(b, n) + 1; }
int word_2(int n) { char b[30000]; return sink(b, n) + 1; }
int word_4(int n) { char b[3000000]; return sink(b, n) + 1; }
int aligned(int n) { __attribute__((aligned(64))) char b[256]; return sink(b, n) + 1; }
int aligned_dynamic(int n) {
    __attribute__((aligned(64))) char b[256]; char c[n]; return sink(b, n) + sink(c, n) + 1;
}
int aligned_arguments(long a, long b, long c, long d, long e, long f, long g, int n) {
    __attribute__((aligned(64))) char v[256]; return sink(v, n) + sink(v, g) + a;
}
int rows_2(int n) { char b[10]; asm volatile(".zero 4096"); return sink(b, n) + 1; }
int rows_4(int n) { char b[10]; asm volatile(".zero 262144"); return sink(b, n) + 1; }
int shrink_wrapped(int n) { if (n < 0) return 1; char b[64]; return sink(b, n) + sink(b, n + 1); }
int never(int n) { if (n) return 0; stop(); }
int variable(int n, ...) {
    __builtin_va_list v; __builtin_va_start(v, n); int r = 0;
    while (n--) r += __builtin_va_arg(v, int) + (int)__builtin_va_arg(v, double);
    __builtin_va_end(v); return sink(&r, r);
}
double many(double a, double b, double c, double d, double e, double f, double g, double h, double i,
    long *p) {
    double s = a; for (int k = 0; k < 9; k++) { s += b * c + d * e + f * g + h * i + p[k]; sink(p, k); }
    return s + a + b + c + d + e + f + g + h + i;
}
long pressure(long *p, long *q) {  /* a leaf that wants every register */
    long a = p[0], b = p[1], c = p[2], d = p[3], e = p[4], f = p[5], g = p[6], h = p[7], i = p[8], j = p[9],
         k = p[10], l = p[11], m = p[12], n;
    for (n = 0; n < a; n++) {
        b += c ^ q[n]; c += d ^ e; d += e * f; e ^= g + b; f += h; g ^= i; h += j * k; i ^= l; j += m; k ^= b;
        l += c; m ^= d; q[n] = b + m;
    }
    return a + b + c + d + e + f + g + h + i + j + k + l + m;
}
int frame_address(int n) { return sink(__builtin_frame_address(0), n) + 1; }
