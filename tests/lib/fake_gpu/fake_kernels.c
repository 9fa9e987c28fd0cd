/* The kernels of the fake driver: params in the layout of the real drivers, blocks of 8 elements. */
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define KERNEL(name, count)                                                                        \
    EXPORT int name##_params = count;                                                              \
    EXPORT void name(void **p, unsigned grid, unsigned threads)
#define F(i) (*(float **)p[i])
#define N(i) (*(int64_t *)p[i])
#define EACH(n) for (int64_t u = 0; u < (int64_t)grid * 8 && u < (n); u++)

/* x, y, n, 0, 0: y = max(x, 0) */
KERNEL(relu, 5) { (void)threads; EACH(N(2)) F(1)[u] = F(0)[u] > 0 ? F(0)[u] : 0; }
/* a, b, c, n, 0, 0 */
KERNEL(add, 6) { (void)threads; EACH(N(3)) F(2)[u] = F(0)[u] + F(1)[u]; }
/* x, total, y, 0, 0: total += x[0]; y[0] = total */
KERNEL(accumulate, 5) {
    (void)threads;
    if (grid) { *F(1) += *F(0); *F(2) = *F(1); }
}
/* x, flag, 0, 0: flag = x[0] > 0 */
KERNEL(positive, 4) { (void)threads; if (grid) *(*(uint8_t **)p[1]) = F(0)[0] > 0; }
/* y, value, n, 0, 0 */
KERNEL(fill, 5) { (void)threads; EACH(N(2)) F(0)[u] = (float)N(1); }
/* x, y, map of x, its sizes and strides, 0, 0: y = x, found by the map */
EXPORT unsigned mapped_maps = 4;
KERNEL(mapped, 9) { (void)threads; for (unsigned u = 0; u < grid; u++) F(1)[u] = F(2)[u]; }
/* x, count, 0, 0: count = int(x[0]) */
KERNEL(count, 4) { (void)threads; if (grid) *(*(int64_t **)p[1]) = (int64_t)F(0)[0]; }
