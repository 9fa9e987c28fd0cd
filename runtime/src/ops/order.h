/* Declares the total order of all element types that sort, top-k and unique share. */
#ifndef TCC_OPS_ORDER_H
#define TCC_OPS_ORDER_H

#include "../runtime.h"

typedef struct tcc_keyed {
    uint64_t key;
    int64_t index;
} tcc_keyed;

/* Returns TCC_OK if elements of `dtype` can be ordered: bool, integers and floats of whole
 * bytes. */
tcc_status tcc_order_check(tcc_dtype dtype, const char *op);

/* Returns a number that orders elements by value: -0 equals +0, every NaN is equal and above
 * infinity. */
uint64_t tcc_order_key(tcc_dtype dtype, const void *element);

/* Loads the keys of `count` contiguous elements, each xor `flip`, with indices from `first` on. */
void tcc_order_load(tcc_dtype dtype, const void *elements, int64_t count, uint64_t flip,
                    int64_t first, tcc_keyed *items) __attribute__((noinline));

/* Loads a line with indices from 0 on; only a part of it if the run ends. */
void tcc_order_load_line(tcc_dtype dtype, const void *elements, int64_t count, uint64_t flip,
                         tcc_keyed *items, tcc_ending *ending);

/* Sorts by key; equal keys keep their order.  `room` holds `count` items.  If the run ends early,
 * each item is a copy of one of the original items. */
void tcc_order_sort(tcc_keyed *items, tcc_keyed *room, int64_t count, tcc_ending *ending);

/* Moves the `limit` items (1 to count) that would be first in sorted order to the front, in
 * unchanged order.  Returns the last of their keys; any key if the run ends early. */
uint64_t tcc_order_keep(tcc_keyed *items, int64_t count, int64_t limit, tcc_ending *ending);

static inline bool tcc_has_ended(const tcc_ending *ending) { return ending && tcc_is_cancelled(ending); }

/* Returns the place at which a loop over `count` places, now at place `at`, looks at the end of the run
 * again.  Returns `at` where the loop stops: at its end, and where the run ends. */
enum { TCC_UNSEEN = 1 << 14 };
int64_t tcc_next_look(tcc_ending *ending, int64_t at, int64_t count) __attribute__((noinline));
/* Returns true if a loop of longer iterations must stop at iteration `at`.  It checks one in `many`
 * iterations; `many` is a power of two. */
static inline bool tcc_ends_at(tcc_ending *ending, int64_t at, int64_t many) {
    return TCC_UNLIKELY((at & (many - 1)) == many - 1) && tcc_run_ends(ending);
}

/* An array seen as outer x axis x inner. */
typedef struct tcc_axis {
    int64_t outer, size, inner;
} tcc_axis;

tcc_status tcc_axis_split(const tcc_op_tensor *tensor, int64_t axis, tcc_axis *out_axis);

/* Fails with TCC_INTERNAL unless the call has these numbers of operands. */
tcc_status tcc_op_expect(const tcc_op_call *call, int32_t inputs, int32_t outputs, int32_t ints,
                         int32_t results, const char *op);

/* Fails with TCC_INTERNAL unless inputs, then outputs, have these element types, one letter each: h
 * handles, i i64, w i32, b u8, f f32, q bool, .  any. */
tcc_status tcc_op_expect_types(const tcc_op_call *call, const char *types, const char *op);

/* A part of an op: units begin to end - 1 of the work in `context`, with `room` bytes of memory for
 * its thread. */
typedef void (*tcc_op_part)(void *context, int64_t begin, int64_t end, void *room);

/* Does all `units`, each once, on the run's threads.  Units must be independent.  Fails only
 * without memory for `room`, and where the run ends.  It checks that between units.  A part whose
 * unit may take 10 ms checks it by itself. */
tcc_status tcc_op_parallel(const tcc_op_call *call, tcc_op_part part, void *context, int64_t units,
                           size_t room);

tcc_status tcc_op_cholesky(tcc_op_call *call);
tcc_status tcc_op_compress(tcc_op_call *call);
tcc_status tcc_op_compress_count(tcc_op_call *call);
tcc_status tcc_op_det(tcc_op_call *call);
tcc_status tcc_op_fill_halo(tcc_op_call *call);
tcc_status tcc_op_index_range(tcc_op_call *call);
tcc_status tcc_op_list_at(tcc_op_call *call);
tcc_status tcc_op_list_concat(tcc_op_call *call);
tcc_status tcc_op_list_concat_shape(tcc_op_call *call);
tcc_status tcc_op_list_erase(tcc_op_call *call);
tcc_status tcc_op_list_expect(tcc_op_call *call);
tcc_status tcc_op_list_insert(tcc_op_call *call);
tcc_status tcc_op_list_length(tcc_op_call *call);
tcc_status tcc_op_list_make(tcc_op_call *call);
tcc_status tcc_op_list_shape(tcc_op_call *call);
tcc_status tcc_op_list_split(tcc_op_call *call);
tcc_status tcc_op_lu(tcc_op_call *call);
tcc_status tcc_op_max_roi_pool(tcc_op_call *call);
tcc_status tcc_op_max_unpool(tcc_op_call *call);
tcc_status tcc_op_nms(tcc_op_call *call);
tcc_status tcc_op_nms_count(tcc_op_call *call);
tcc_status tcc_op_non_zero(tcc_op_call *call);
tcc_status tcc_op_non_zero_count(tcc_op_call *call);
tcc_status tcc_op_pivot_order(tcc_op_call *call);
tcc_status tcc_op_qr(tcc_op_call *call);
tcc_status tcc_op_roi_align(tcc_op_call *call);
tcc_status tcc_op_running(tcc_op_call *call);
tcc_status tcc_op_scatter_elements(tcc_op_call *call);
tcc_status tcc_op_scatter_nd(tcc_op_call *call);
tcc_status tcc_op_solve_triangular(tcc_op_call *call);
tcc_status tcc_op_sort(tcc_op_call *call);
tcc_status tcc_op_string_case(tcc_op_call *call);
tcc_status tcc_op_string_concat(tcc_op_call *call);
tcc_status tcc_op_string_decode(tcc_op_call *call);
tcc_status tcc_op_string_format(tcc_op_call *call);
tcc_status tcc_op_string_match(tcc_op_call *call);
tcc_status tcc_op_string_parse(tcc_op_call *call);
tcc_status tcc_op_string_rank(tcc_op_call *call);
tcc_status tcc_op_string_remove(tcc_op_call *call);
tcc_status tcc_op_string_remove_count(tcc_op_call *call);
tcc_status tcc_op_string_split(tcc_op_call *call);
tcc_status tcc_op_string_split_count(tcc_op_call *call);
tcc_status tcc_op_svd(tcc_op_call *call);
tcc_status tcc_op_tf_idf(tcc_op_call *call);
tcc_status tcc_op_thin(tcc_op_call *call);
tcc_status tcc_op_top_k(tcc_op_call *call);
tcc_status tcc_op_unique(tcc_op_call *call);
tcc_status tcc_op_unique_count(tcc_op_call *call);
tcc_status tcc_op_update_slice(tcc_op_call *call);

#endif
