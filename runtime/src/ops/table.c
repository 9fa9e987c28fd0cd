/* The functions that programs may call, by name. */
#include <string.h>

#include "order.h"

tcc_op tcc_op_find(const char *name) {
    static const struct {
        const char *name;
        tcc_op op;
    } table[] = {
        {"compress", tcc_op_compress},
        {"compress_count", tcc_op_compress_count},
        {"max_unpool", tcc_op_max_unpool},
        {"non_max_suppression", tcc_op_nms},
        {"non_zero", tcc_op_nonzero},
        {"non_zero_count", tcc_op_nonzero_count},
        {"scatter_elements", tcc_op_scatter_elements},
        {"scatter_nd", tcc_op_scatter_nd},
        {"sort", tcc_op_sort},
        {"top_k", tcc_op_topk},
        {"unique", tcc_op_unique},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(name, table[i].name) == 0) return table[i].op;
    return NULL;
}
