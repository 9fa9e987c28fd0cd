/* Converts numbers to text and back, independent of the process's locale.
 *
 * string_format: inputs (x: bool, integers, f32, f64), outputs (strings) string_parse: inputs
 * (strings), outputs (y: integers, f32, f64) */
#define _GNU_SOURCE
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "order.h"

enum { NUMBERS = 1 << 12 }; /* between two checks whether the run ends */

static tcc_status misfit(const char *op) {
    return tcc_fail(TCC_INTERNAL, "%s: operands do not fit", op);
}

/* The state of a thread that uses the locale of C until `leave`. */
typedef struct plain {
    locale_t c_locale, previous;
} plain;

static tcc_status enter(plain *out_plain) {
    out_plain->c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!out_plain->c_locale) return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (a locale)");
    out_plain->previous = uselocale(out_plain->c_locale);
    return TCC_OK;
}

static void leave(const plain *p) {
    uselocale(p->previous);
    freelocale(p->c_locale);
}

/* ---- format -------------------------------------------------------------------------------------- */

static int write_float(char text[40], double value, bool single) {
    if (isnan(value)) return snprintf(text, 40, "NaN");
    if (isinf(value)) return snprintf(text, 40, value > 0 ? "INF" : "-INF");
    int length = 0;
    for (int digits = 1; digits < 18; digits++) {
        length = snprintf(text, 40, "%.*g", digits, value);
        double back = strtod(text, NULL);
        if (single ? (float)back == (float)value : back == value) break;
    }
    return length;
}

static int write_number(char text[40], tcc_dtype dtype, const void *data, int64_t i) {
    if (dtype.code == 2)
        return dtype.bits == 32 ? write_float(text, ((const float *)data)[i], true)
                                : write_float(text, ((const double *)data)[i], false);
    uint64_t bits = 0;
    memcpy(&bits, (const char *)data + i * (dtype.bits / 8), dtype.bits / 8u);
    int shift = 64 - dtype.bits;
    if (dtype.code == 0)
        return snprintf(text, 40, "%lld", (long long)((int64_t)(bits << shift) >> shift));
    return snprintf(text, 40, "%llu", (unsigned long long)(dtype.code == 6 ? bits != 0 : bits));
}

static tcc_status format_all(const tcc_op_call *call) {
    const tcc_op_tensor *x = &call->inputs[0];
    uint64_t *handles = call->outputs[0].data;
    for (int64_t i = 0; i < x->count; i++) {
        char text[40];
        void *memory = NULL;
        if (tcc_ends_at(call->ending, i, NUMBERS)) return tcc_cancelled(call->ending);
        int length = write_number(text, x->dtype, x->data, i);
        TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, (size_t)length, &memory));
        memcpy(memory, text, (size_t)length);
        TCC_RETURN_IF_ERROR(tcc_heap_intern(call->heap, memory, length, &handles[i]));
    }
    return TCC_OK;
}

static bool is_number(tcc_dtype dtype) {
    bool is_byte_sized = dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64;
    return (is_byte_sized && (dtype.code <= 1 || dtype.code == 6)) ||
           (dtype.code == 2 && (dtype.bits == 32 || dtype.bits == 64));
}

tcc_status tcc_op_string_format(tcc_op_call *call) {
    plain p = {(locale_t)0, (locale_t)0};
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 1, 0, 0, "string_format"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, ".h", "string_format"));
    if (call->inputs[0].count != call->outputs[0].count || !is_number(call->inputs[0].dtype))
        return misfit("string_format");
    TCC_RETURN_IF_ERROR(enter(&p));
    tcc_status status = format_all(call);
    leave(&p);
    return status;
}

/* ---- parse --------------------------------------------------------------------------------------- */

static tcc_status no_number(const char *text, const char *why) {
    return tcc_fail(TCC_INVALID_ARGUMENT, "'%.40s' cannot be read as a number: %s", text, why);
}

static tcc_status read_float(const char *text, double *out_value) {
    char *end = NULL;
    if (!text[0] || strspn(text, "+-.0123456789eEinftyaINFTYA") != strlen(text))
        return no_number(text, "it has other characters");
    *out_value = strtod(text, &end);
    return *end ? no_number(text, "it has other characters") : TCC_OK;
}

static tcc_status read_integer(const char *text, tcc_dtype dtype, uint64_t *out_bits) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (!*digits || strspn(digits, "0123456789") != strlen(digits))
        return no_number(text, "it has other characters");
    char *end = NULL;
    errno = 0;
    bool fits;
    if (dtype.code == 0) {
        long long value = strtoll(text, &end, 10);
        int64_t top = (int64_t)(UINT64_MAX >> (65 - dtype.bits));
        fits = errno == 0 && value <= top && value >= -top - 1;
        *out_bits = (uint64_t)value;
    } else {
        unsigned long long value = strtoull(text, &end, 10);
        fits = errno == 0 && value <= UINT64_MAX >> (64 - dtype.bits) && (*text != '-' || value == 0);
        *out_bits = value;
    }
    return fits ? TCC_OK : no_number(text, "the type is too small");
}

static tcc_status parse_number(const tcc_op_tensor *y, int64_t i, const char *text) {
    if (y->dtype.code == 2) {
        double value = 0;
        TCC_RETURN_IF_ERROR(read_float(text, &value));
        if (y->dtype.bits == 32)
            ((float *)y->data)[i] = (float)value;
        else
            ((double *)y->data)[i] = value;
        return TCC_OK;
    }
    uint64_t bits = 0;
    TCC_RETURN_IF_ERROR(read_integer(text, y->dtype, &bits));
    memcpy((char *)y->data + i * (y->dtype.bits / 8), &bits, y->dtype.bits / 8u);
    return TCC_OK;
}

static tcc_status parse_all(const tcc_op_call *call) {
    const uint64_t *handles = call->inputs[0].data;
    for (int64_t i = 0; i < call->inputs[0].count; i++) {
        char text[128];
        tcc_string string;
        if (tcc_ends_at(call->ending, i, NUMBERS)) return tcc_cancelled(call->ending);
        TCC_RETURN_IF_ERROR(tcc_heap_string(call->heap, handles[i], &string));
        if (string.size >= (int64_t)sizeof text)
            return tcc_fail(TCC_INVALID_ARGUMENT, "a string of %lld bytes is no number",
                            (long long)string.size);
        memcpy(text, string.data, (size_t)string.size);
        text[string.size] = 0;
        if ((int64_t)strlen(text) != string.size) return no_number(text, "it has other characters");
        TCC_RETURN_IF_ERROR(parse_number(&call->outputs[0], i, text));
    }
    return TCC_OK;
}

tcc_status tcc_op_string_parse(tcc_op_call *call) {
    plain p = {(locale_t)0, (locale_t)0};
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 1, 0, 0, "string_parse"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "h.", "string_parse"));
    tcc_dtype dtype = call->outputs[0].dtype;
    if (call->inputs[0].count != call->outputs[0].count || !is_number(dtype) || dtype.code == 6)
        return misfit("string_parse");
    TCC_RETURN_IF_ERROR(enter(&p));
    tcc_status status = parse_all(call);
    leave(&p);
    return status;
}
