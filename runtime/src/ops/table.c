/* Lists the functions that programs may call, by name. Each op's file describes its operands.
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
        {"cholesky", tcc_op_cholesky},
        {"compress", tcc_op_compress},
        {"compress_count", tcc_op_compress_count},
        {"det", tcc_op_det},
        {"fill_halo", tcc_op_fill_halo},
        {"index_range", tcc_op_index_range},
        {"list_at", tcc_op_list_at},
        {"list_concat", tcc_op_list_concat},
        {"list_concat_shape", tcc_op_list_concat_shape},
        {"list_erase", tcc_op_list_erase},
        {"list_expect", tcc_op_list_expect},
        {"list_insert", tcc_op_list_insert},
        {"list_length", tcc_op_list_length},
        {"list_make", tcc_op_list_make},
        {"list_shape", tcc_op_list_shape},
        {"list_split", tcc_op_list_split},
        {"lu", tcc_op_lu},
        {"max_roi_pool", tcc_op_max_roi_pool},
        {"max_unpool", tcc_op_max_unpool},
        {"non_max_suppression", tcc_op_nms},
        {"non_max_suppression_count", tcc_op_nms_count},
        {"non_zero", tcc_op_non_zero},
        {"non_zero_count", tcc_op_non_zero_count},
        {"pivot_order", tcc_op_pivot_order},
        {"qr", tcc_op_qr},
        {"roi_align", tcc_op_roi_align},
        {"running", tcc_op_running},
        {"scatter_elements", tcc_op_scatter_elements},
        {"scatter_nd", tcc_op_scatter_nd},
        {"solve_triangular", tcc_op_solve_triangular},
        {"sort", tcc_op_sort},
        {"string_case", tcc_op_string_case},
        {"string_concat", tcc_op_string_concat},
        {"string_decode", tcc_op_string_decode},
        {"string_format", tcc_op_string_format},
        {"string_match", tcc_op_string_match},
        {"string_parse", tcc_op_string_parse},
        {"string_rank", tcc_op_string_rank},
        {"string_remove", tcc_op_string_remove},
        {"string_remove_count", tcc_op_string_remove_count},
        {"string_split", tcc_op_string_split},
        {"string_split_count", tcc_op_string_split_count},
        {"svd", tcc_op_svd},
        {"tf_idf", tcc_op_tf_idf},
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
