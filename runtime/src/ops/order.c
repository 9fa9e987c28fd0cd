/* Computes keys that order elements of any type, and sorts by them. */
#include "order.h"

#include <string.h>

tcc_status tcc_op_expect(const tcc_op_call *call, int32_t inputs, int32_t outputs, int32_t ints,
                         int32_t results, const char *op) {
    if (call->n_inputs == inputs && call->n_outputs == outputs && call->n_ints == ints &&
        call->n_results == results)
        return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "%s: called with other operands than it has", op);
}

static bool has_type(tcc_dtype dtype, char type) {
    switch (type) {
    case 'h': return dtype.code == 1 && dtype.bits == 64;
    case 'i': return dtype.code == 0 && dtype.bits == 64;
    case 'w': return dtype.code == 0 && dtype.bits == 32;
    case 'b': return dtype.code == 1 && dtype.bits == 8;
    case 'f': return dtype.code == 2 && dtype.bits == 32;
    case 'q': return dtype.code == 6 && dtype.bits == 8;
    default: return true;
    }
}

tcc_status tcc_op_expect_types(const tcc_op_call *call, const char *types, const char *op) {
    int32_t count = call->n_inputs + call->n_outputs, i = 0;
    for (; i < count && types[i]; i++) {
        int32_t output = i - call->n_inputs;
        const tcc_op_tensor *tensor = output < 0 ? &call->inputs[i] : &call->outputs[output];
        if (!has_type(tensor->dtype, types[i])) break;
    }
    if (i == count && !types[i]) return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "%s: called with operands of other types than it has", op);
}

tcc_status tcc_order_check(tcc_dtype dtype, const char *op) {
    bool is_byte_sized = dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64;
    bool is_known = dtype.code <= 1 || dtype.code == 6 || (dtype.code == 2 && dtype.bits >= 16) ||
                 (dtype.code == 4 && dtype.bits == 16);
    if (is_byte_sized && is_known) return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "%s: no order for element type code %d of %d bits", op, dtype.code,
                    dtype.bits);
}

/* Returns the mantissa bits of a float type. */
static int32_t mantissa_of(tcc_dtype dtype) {
    if (dtype.code == 4) return 7;
    return dtype.bits == 16 ? 10 : dtype.bits == 32 ? 23 : 52;
}

uint64_t tcc_order_key(tcc_dtype dtype, const void *element) {
    uint64_t bits = 0, sign = UINT64_C(1) << (dtype.bits - 1);
    memcpy(&bits, element, dtype.bits / 8u);
    if (dtype.code == 6) return bits != 0;
    if (dtype.code == 1) return bits;
    if (dtype.code == 0) return bits ^ sign;
    uint64_t magnitude = bits & (sign - 1);
    uint64_t infinity = (sign - 1) & ~((UINT64_C(1) << mantissa_of(dtype)) - 1);
    if (magnitude > infinity) return UINT64_MAX;
    return bits & sign ? sign - magnitude : sign + magnitude;
}

/* Loads keys of `TYPE` elements; `KEY` computes the key from an element's bits. */
#define LOAD_KEYS(TYPE, KEY)                                                                       \
    do {                                                                                           \
        const TYPE *from = elements;                                                               \
        for (int64_t i = 0; i < count; i++) {                                                      \
            TYPE bits = from[i];                                                                   \
            items[i] = (tcc_keyed){(KEY) ^ flip, first + i};                                       \
        }                                                                                          \
    } while (0)

static uint64_t key_of_float(uint32_t bits) {
    uint32_t magnitude = bits & INT32_MAX;
    uint64_t sign = UINT64_C(1) << 31;
    if (magnitude > 0x7F800000) return UINT64_MAX;
    return bits >> 31 ? sign - magnitude : sign + magnitude;
}

void tcc_order_load(tcc_dtype dtype, const void *elements, int64_t count, uint64_t flip,
                    int64_t first, tcc_keyed *items) {
    size_t element = dtype.bits / 8u;
    if (dtype.code == 2 && dtype.bits == 32)
        LOAD_KEYS(uint32_t, key_of_float(bits));
    else if (dtype.code == 0 && dtype.bits == 32)
        LOAD_KEYS(uint32_t, bits ^ UINT64_C(0x80000000));
    else if (dtype.code == 0 && dtype.bits == 64)
        LOAD_KEYS(uint64_t, bits ^ UINT64_C(1) << 63);
    else
        for (int64_t i = 0; i < count; i++) {
            uint64_t key = tcc_order_key(dtype, (const char *)elements + (size_t)i * element);
            items[i] = (tcc_keyed){key ^ flip, first + i};
        }
}

void tcc_order_load_line(tcc_dtype dtype, const void *elements, int64_t count, uint64_t flip,
                         tcc_keyed *items, tcc_ending *ending) {
    for (int64_t i = 0, look; (look = tcc_next_look(ending, i, count)) > i; i = look)
        tcc_order_load(dtype, (const char *)elements + i * (dtype.bits / 8), look - i, flip, i, items + i);
}

static void merge_sort(tcc_keyed *items, tcc_keyed *room, int64_t count) {
    enum { RUN = 16 };
    for (int64_t start = 0; start < count; start += RUN) {
        int64_t end = start + RUN < count ? start + RUN : count;
        for (int64_t i = start + 1; i < end; i++) {
            tcc_keyed item = items[i];
            int64_t at = i;
            for (; at > start && item.key < items[at - 1].key; at--) items[at] = items[at - 1];
            items[at] = item;
        }
    }
    tcc_keyed *from = items, *to = room;
    for (int64_t run = RUN; run < count; run *= 2) {
        for (int64_t start = 0; start < count; start += 2 * run) {
            int64_t middle = start + run < count ? start + run : count;
            int64_t end = start + 2 * run < count ? start + 2 * run : count;
            int64_t left = start, right = middle;
            for (int64_t i = start; i < end; i++)
                to[i] = left < middle && (right >= end || from[left].key <= from[right].key)
                            ? from[left++]
                            : from[right++];
        }
        tcc_keyed *swap = from;
        from = to;
        to = swap;
    }
    if (from != items) memcpy(items, from, (size_t)count * sizeof *items);
}

enum { SPREAD = 1 << 8 }; /* places that a loop writes to alternately, such as the parts of a radix
                             sort */

int64_t tcc_next_look(tcc_ending *ending, int64_t at, int64_t count) {
    if (count <= TCC_UNSEEN || at == count) return count;
    /* a first write may touch a huge page that does not exist yet, which takes up to 7 ms */
    int64_t step = at < 4 * SPREAD ? 4 : TCC_UNSEEN;
    if (tcc_run_ends(ending)) return at;
    return count - at < step ? count : at + step;
}

enum { DIGIT = 8, VALUES = 1 << DIGIT, RADIX_FROM = 64 };

static uint64_t digit_of(uint64_t key, int shift) { return key >> shift & (VALUES - 1); }

/* Returns the bits in which keys differ; only some of them if the run ends. */
static uint64_t differing_bits(const tcc_keyed *items, int64_t count, tcc_ending *ending) {
    uint64_t differ = 0;
    for (int64_t i = 0, look; (look = tcc_next_look(ending, i, count)) > i;)
        for (; i < look; i++) differ |= items[i].key ^ items[0].key;
    return differ;
}

/* Copies items; only some of them if the run ends. */
static void copy_items(tcc_keyed *to, const tcc_keyed *from, int64_t count, tcc_ending *ending) {
    for (int64_t i = 0, look; (look = tcc_next_look(ending, i, count)) > i; i = look)
        memcpy(to + i, from + i, (size_t)(look - i) * sizeof *to);
}

/* Sorts by one digit of the keys after another, the lowest first. A digit that is equal in all keys
 * costs nothing. */
static void radix_sort(tcc_keyed *items, tcc_keyed *room, int64_t count, tcc_ending *ending) {
    uint64_t differ = differing_bits(items, count, ending);
    tcc_keyed *from = items, *to = room;
    for (int shift = 0; shift < 64; shift += DIGIT) {
        int64_t next[VALUES] = {0}, place = 0, look, i = 0;
        if (digit_of(differ, shift) == 0) continue;
        do {
            look = tcc_next_look(ending, i, count);
            if (look == i) return;
            do next[digit_of(from[i].key, shift)]++;
            while (++i < look);
        } while (i < count);
        i = 0;
        for (int value = 0; value < VALUES; value++) {
            int64_t many = next[value];
            next[value] = place;
            place += many;
        }
        do {
            look = tcc_next_look(ending, i, count);
            if (look == i) return;
            do to[next[digit_of(from[i].key, shift)]++] = from[i];
            while (++i < look);
        } while (i < count);
        tcc_keyed *swap = from;
        from = to;
        to = swap;
    }
    if (from != items) copy_items(items, from, count, ending);
}

void tcc_order_sort(tcc_keyed *items, tcc_keyed *room, int64_t count, tcc_ending *ending) {
    if (count < RADIX_FROM)
        merge_sort(items, room, count);
    else
        radix_sort(items, room, count, ending);
}

uint64_t tcc_order_keep(tcc_keyed *items, int64_t count, int64_t limit, tcc_ending *ending) {
    uint64_t differ = differing_bits(items, count, ending);
    uint64_t bound = items[0].key, prefix_mask = 0; /* known digits of the last kept key, and their
                                                       mask */
    int64_t equal = limit;                    /* kept items that have those digits */
    for (int shift = 64 - DIGIT; shift >= 0; shift -= DIGIT) {
        int64_t many[VALUES] = {0}, value = 0;
        uint64_t mask = (uint64_t)(VALUES - 1) << shift;
        if (digit_of(differ, shift)) {
            int64_t look, i = 0;
            do {
                look = tcc_next_look(ending, i, count);
                if (look == i) return bound;
                do
                    if (((items[i].key ^ bound) & prefix_mask) == 0) many[digit_of(items[i].key, shift)]++;
                while (++i < look);
            } while (i < count);
            for (; many[value] < equal; value++) equal -= many[value];
            bound = (bound & ~mask) | (uint64_t)value << shift;
        }
        prefix_mask |= mask;
    }
    for (int64_t i = 0, at = 0; at < limit && !tcc_ends_at(ending, i, TCC_UNSEEN); i++) {
        bool last = items[i].key == bound;
        if (items[i].key > bound || (last && equal == 0)) continue;
        equal -= last;
        items[at++] = items[i];
    }
    return bound;
}

tcc_status tcc_axis_split(const tcc_op_tensor *tensor, int64_t axis, tcc_axis *out_axis) {
    if (axis < 0 || axis >= tensor->ndim)
        return tcc_fail(TCC_INTERNAL, "axis %lld of an array of rank %d", (long long)axis,
                        tensor->ndim);
    *out_axis = (tcc_axis){1, tensor->dims[axis], 1};
    for (int64_t i = 0; i < axis; i++) out_axis->outer *= tensor->dims[i];
    for (int64_t i = axis + 1; i < tensor->ndim; i++) out_axis->inner *= tensor->dims[i];
    return TCC_OK;
}
