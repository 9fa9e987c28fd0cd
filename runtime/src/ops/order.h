/* One total order for all element types: what sort, top-k and unique agree on. */
#ifndef TCC_OPS_ORDER_H
#define TCC_OPS_ORDER_H

#include "../runtime.h"

typedef struct tcc_keyed {
    uint64_t key;
    int64_t index;
} tcc_keyed;

/* TCC_OK if elements of `dtype` can be ordered: bool, integers and floats of whole bytes. */
tcc_status tcc_order_check(tcc_dtype dtype, const char *op);

/* A number that orders elements as their values do: -0 equals +0, every NaN is equal and above
 * infinity. */
uint64_t tcc_order_key(tcc_dtype dtype, const void *element);

/* Sorts by key, then by index; `room` holds `count` more. */
void tcc_order_sort(tcc_keyed *items, tcc_keyed *room, int64_t count);

/* An array seen as outer x axis x inner. */
typedef struct tcc_axis {
    int64_t outer, size, inner;
} tcc_axis;

tcc_status tcc_axis_split(const tcc_op_tensor *tensor, int64_t axis, tcc_axis *out_axis);

/* Fails with TCC_INTERNAL unless the call has these numbers of operands. */
tcc_status tcc_op_expect(const tcc_op_call *call, int32_t inputs, int32_t outputs, int32_t ints,
                         int32_t results, const char *op);

tcc_status tcc_op_compress(tcc_op_call *call);
tcc_status tcc_op_compress_count(tcc_op_call *call);
tcc_status tcc_op_det(tcc_op_call *call);
tcc_status tcc_op_fill_halo(tcc_op_call *call);
tcc_status tcc_op_max_roi_pool(tcc_op_call *call);
tcc_status tcc_op_max_unpool(tcc_op_call *call);
tcc_status tcc_op_nms(tcc_op_call *call);
tcc_status tcc_op_nms_count(tcc_op_call *call);
tcc_status tcc_op_non_zero(tcc_op_call *call);
tcc_status tcc_op_non_zero_count(tcc_op_call *call);
tcc_status tcc_op_roi_align(tcc_op_call *call);
tcc_status tcc_op_scatter_elements(tcc_op_call *call);
tcc_status tcc_op_scatter_nd(tcc_op_call *call);
tcc_status tcc_op_sort(tcc_op_call *call);
tcc_status tcc_op_top_k(tcc_op_call *call);
tcc_status tcc_op_unique(tcc_op_call *call);
tcc_status tcc_op_unique_count(tcc_op_call *call);
tcc_status tcc_op_update_slice(tcc_op_call *call);

#endif
