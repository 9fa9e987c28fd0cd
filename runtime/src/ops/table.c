/* The functions that programs may call, by name; each file states operands.
 *
 * Where data decides a size, `<op>_count` with the same inputs and ints computes it, so that the
 * program can allocate the exact outputs before it calls `<op>`. */
#include <string.h>

#include "order.h"

tcc_op tcc_op_find(const char *name) {
    static const struct {
        const char *name;
        tcc_op op;
    } table[] = {
        {"compress", tcc_op_compress},
        {"compress_count", tcc_op_compress_count},
        {"det", tcc_op_det},
        {"fill_halo", tcc_op_fill_halo},
        {"index_range", tcc_op_index_range},
        {"max_roi_pool", tcc_op_max_roi_pool},
        {"max_unpool", tcc_op_max_unpool},
        {"non_max_suppression", tcc_op_nms},
        {"non_max_suppression_count", tcc_op_nms_count},
        {"non_zero", tcc_op_non_zero},
        {"non_zero_count", tcc_op_non_zero_count},
        {"roi_align", tcc_op_roi_align},
        {"running", tcc_op_running},
        {"scatter_elements", tcc_op_scatter_elements},
        {"scatter_nd", tcc_op_scatter_nd},
        {"sort", tcc_op_sort},
        {"thin", tcc_op_thin},
        {"top_k", tcc_op_top_k},
        {"unique", tcc_op_unique},
        {"unique_count", tcc_op_unique_count},
        {"update_slice", tcc_op_update_slice},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(name, table[i].name) == 0) return table[i].op;
    return NULL;
}
