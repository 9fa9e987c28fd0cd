/* The interface of an emulator that executes GPU code instead of C functions; a part of
 * fake_driver.c.
 *
 * An emulator numbers modules, kernels and launches; 0 means that it does not take the image or
 * kernel. A launch stores its parameters at the call. It runs when its stream comes to it, and
 * again each time that a graph is replayed. */
typedef struct emulator_calls {
    long (*load)(const void *image);
    long (*find)(long module, const char *name);
    long (*launch)(long kernel, unsigned blocks, unsigned threads, unsigned shared, void **params);
    int (*perform)(long launch); /* returns an error of the driver */
} emulator_calls;
static emulator_calls emulator;

EXPORT void fake_emulator(emulator_calls calls) { emulator = calls; }

/* Writes addresses, as kernels have them, and sizes of up to `room` live allocations; returns the
 * number of live allocations. */
EXPORT int fake_allocations(uint64_t (*out)[2], int room) {
    int count = 0;
    for (allocation *a = allocations; a; a = a->next, count++)
        if (count < room) out[count][0] = (uint64_t)(uintptr_t)a->memory, out[count][1] = a->bytes;
    return count;
}
