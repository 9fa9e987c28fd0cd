/* The runtime's own tables: malloc with a message, and a switch for tests of failure. */
#include <stdlib.h>

#include "runtime.h"

#ifdef TCC_TEST_FAIL_ALLOCATION
/* Tests set this to n: the n-th allocation from then on fails, and all allocations after it
 * succeed. */
__attribute__((visibility("default"))) int64_t tcc_test_fail_after = -1;

static bool must_fail(void) {
    return tcc_test_fail_after > 0 && --tcc_test_fail_after == 0;
}
#else
static bool must_fail(void) { return false; }
#endif

void *tcc_allocate_zero(size_t count, size_t bytes) {
    /* calloc(0) may give NULL, which would look like a failure */
    void *memory = must_fail() ? NULL : calloc(count ? count : 1, bytes ? bytes : 1);
    if (!memory) tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (%zu x %zu bytes)", count, bytes);
    return memory;
}

void *tcc_allocate(size_t bytes) {
    void *memory = must_fail() ? NULL : malloc(bytes ? bytes : 1);
    if (!memory) tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (%zu bytes)", bytes);
    return memory;
}

void tcc_free(void *memory) { free(memory); }
