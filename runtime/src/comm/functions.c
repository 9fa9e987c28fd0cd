/* Fills tables of functions from a loaded library. */
#include <dlfcn.h>
#include <string.h>

#include "comm.h"

const char *tcc_comm_fill(void *library, const tcc_comm_function *rows, size_t n, void *table) {
    for (size_t i = 0; i < n; i++) {
        void *function = dlsym(library, rows[i].name);
        if (!function) return rows[i].name;
        memcpy((char *)table + rows[i].place, &function, sizeof function);
    }
    return NULL;
}
