/* Who executes code for GPUs instead of C functions; a part of fake_driver.c.
 *
 * An emulator numbers modules, kernels and launches; 0 says that it does not take one.  A launch keeps
 * what its parameters are when it is asked for, and happens when its stream comes to it, each time
 * that a graph is replayed. */
typedef struct emulator_calls {
    long (*load)(const void *image);
    long (*find)(long module, const char *name);
    long (*launch)(long kernel, unsigned blocks, unsigned threads, unsigned shared, void **params);
    int (*perform)(long launch); /* an error of the driver */
} emulator_calls;
static emulator_calls emulator;

EXPORT void fake_emulator(emulator_calls calls) { emulator = calls; }

/* Addresses, as kernels have them, and sizes of up to `room` live allocations; how many there are. */
EXPORT int fake_allocations(uint64_t (*out)[2], int room) {
    int count = 0;
    for (allocation *a = allocations; a; a = a->next, count++)
        if (count < room) out[count][0] = (uint64_t)(uintptr_t)a->memory, out[count][1] = a->bytes;
    return count;
}
