/* Tensors of strings: handles, u64.
 *
 * string_decode:       inputs (bytes u8 [n], ends i64 [count]), outputs (y)
 * string_concat:       inputs (x, y), outputs (z), all of one size
 * string_split_count:  inputs (x), ints (most or -1, delimiter's bytes...), results (size)
 * string_split:        as string_split_count, outputs (pieces [..., size], counts i64)
 * string_case:         inputs (x, table i32 [n, 4]), outputs (y)
 * string_remove_count: inputs (x [n], keys [n], others [m]), results (size, at least 1)
 * string_remove:       as string_remove_count, outputs (y [size])
 * string_match:        inputs (x, classes u8 [256], moves i32 [s, c], accepts u8 [s]), outputs (bool)
 * string_rank:         inputs (x), outputs (ranks i64, ordered [count])
 *
 * A table of cases has rows (character, up to three characters in its place, 0 where there are fewer),
 * by rising characters. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "order.h"

static tcc_status misfit(const char *op) {
    return tcc_fail(TCC_INTERNAL, "%s: operands do not fit", op);
}

enum { STRINGS = 1 << 12 }; /* between two checks whether the run ends */

static tcc_status text_of(const tcc_op_call *call, int32_t input, int64_t i, tcc_string *out_text) {
    if (tcc_ends_at(call->ending, i, STRINGS)) return tcc_cancelled(call->ending);
    return tcc_heap_string(call->heap, ((const uint64_t *)call->inputs[input].data)[i], out_text);
}

tcc_status tcc_op_string_decode(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 0, 0, "string_decode"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "bih", "string_decode"));
    const char *bytes = call->inputs[0].data;
    const int64_t *ends = call->inputs[1].data;
    uint64_t *handles = call->outputs[0].data;
    int64_t start = 0;
    if (call->inputs[1].count != call->outputs[0].count) return misfit("string_decode");
    for (int64_t i = 0; i < call->outputs[0].count; i++) {
        if (ends[i] < start || ends[i] > call->inputs[0].count) return misfit("string_decode");
        if (tcc_ends_at(call->ending, i, STRINGS)) return tcc_cancelled(call->ending);
        TCC_RETURN_IF_ERROR(
            tcc_heap_intern(call->heap, bytes + start, ends[i] - start, &handles[i]));
        start = ends[i];
    }
    return TCC_OK;
}

tcc_status tcc_op_string_concat(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 0, 0, "string_concat"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "hhh", "string_concat"));
    uint64_t *handles = call->outputs[0].data;
    int64_t count = call->outputs[0].count;
    if (call->inputs[0].count != count || call->inputs[1].count != count)
        return misfit("string_concat");
    for (int64_t i = 0; i < count; i++) {
        tcc_string a, b;
        void *memory = NULL;
        TCC_RETURN_IF_ERROR(text_of(call, 0, i, &a));
        TCC_RETURN_IF_ERROR(text_of(call, 1, i, &b));
        if (a.size == 0 || b.size == 0) {
            tcc_string only = a.size ? a : b;
            TCC_RETURN_IF_ERROR(tcc_heap_intern(call->heap, only.data, only.size, &handles[i]));
            continue;
        }
        size_t size = (size_t)a.size + (size_t)b.size;
        TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, size, &memory));
        memcpy(memory, a.data, (size_t)a.size);
        memcpy((char *)memory + a.size, b.data, (size_t)b.size);
        TCC_RETURN_IF_ERROR(tcc_heap_intern(call->heap, memory, (int64_t)size, &handles[i]));
    }
    return TCC_OK;
}

/* ---- split --------------------------------------------------------------------------------------- */

typedef struct pieces {
    tcc_string text;
    const char *delimiter;
    int64_t width; /* bytes of the delimiter; 0: runs of white space */
    int64_t cuts;  /* cuts that are left; negative: any number */
    bool over;
} pieces;

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void drop(tcc_string *text, int64_t bytes) {
    text->data += bytes;
    text->size -= bytes;
}

static bool next_word(pieces *p, tcc_string *out_piece) {
    int64_t length = 0;
    while (p->text.size && is_space(p->text.data[0])) drop(&p->text, 1);
    if (p->text.size == 0) return false;
    if (p->cuts == 0) {
        for (length = p->text.size; is_space(p->text.data[length - 1]);) length--;
        *out_piece = (tcc_string){p->text.data, length};
        p->text.size = 0;
        return true;
    }
    while (length < p->text.size && !is_space(p->text.data[length])) length++;
    *out_piece = (tcc_string){p->text.data, length};
    drop(&p->text, length);
    if (p->cuts > 0) p->cuts--;
    return true;
}

/* Returns where the delimiter begins in the remaining text, or the text's size. Takes linear
 * time. */
static int64_t find_delimiter(const pieces *p) {
    const char *delimiter =
        memmem(p->text.data, (size_t)p->text.size, p->delimiter, (size_t)p->width);
    return delimiter ? delimiter - p->text.data : p->text.size;
}

static bool next_piece(pieces *p, tcc_string *out_piece) {
    if (p->width == 0) return next_word(p, out_piece);
    if (p->over) return false;
    int64_t at = p->cuts == 0 ? p->text.size : find_delimiter(p);
    *out_piece = (tcc_string){p->text.data, at};
    p->over = at == p->text.size;
    if (!p->over) drop(&p->text, at + p->width);
    if (p->cuts > 0) p->cuts--;
    return true;
}

static tcc_status begin_split(const tcc_op_call *call, pieces *out_pieces) {
    if (call->n_inputs != 1 || call->n_ints < 1) return misfit("string_split");
    void *memory = NULL;
    int64_t width = call->n_ints - 1;
    TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, (size_t)width, &memory));
    for (int64_t i = 0; i < width; i++) ((char *)memory)[i] = (char)call->ints[1 + i];
    *out_pieces = (pieces){.delimiter = memory, .width = width, .cuts = call->ints[0]};
    return TCC_OK;
}

tcc_status tcc_op_string_split_count(tcc_op_call *call) {
    pieces first;
    tcc_string piece;
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "h", "string_split"));
    if (call->n_results != 1) return misfit("string_split");
    TCC_RETURN_IF_ERROR(begin_split(call, &first));
    call->results[0] = 0;
    for (int64_t i = 0; i < call->inputs[0].count; i++) {
        pieces p = first;
        int64_t count = 0;
        TCC_RETURN_IF_ERROR(text_of(call, 0, i, &p.text));
        while (next_piece(&p, &piece)) count++;
        if (count > call->results[0]) call->results[0] = count;
    }
    return TCC_OK;
}

tcc_status tcc_op_string_split(tcc_op_call *call) {
    pieces first;
    tcc_string piece;
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "hhi", "string_split"));
    TCC_RETURN_IF_ERROR(begin_split(call, &first));
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    if (y->ndim != x->ndim + 1 || call->outputs[1].count != x->count ||
        (x->ndim && memcmp(x->dims, y->dims, (size_t)x->ndim * sizeof *x->dims)))
        return misfit("string_split");
    int64_t room = y->dims[x->ndim], *counts = call->outputs[1].data;
    for (int64_t i = 0; i < x->count; i++) {
        pieces p = first;
        uint64_t *row = (uint64_t *)y->data + i * room;
        TCC_RETURN_IF_ERROR(text_of(call, 0, i, &p.text));
        for (counts[i] = 0; next_piece(&p, &piece); counts[i]++) {
            if (counts[i] == room) return misfit("string_split");
            TCC_RETURN_IF_ERROR(
                tcc_heap_intern(call->heap, piece.data, piece.size, &row[counts[i]]));
        }
        for (int64_t column = counts[i]; column < room; column++) row[column] = 0;
    }
    return TCC_OK;
}

/* ---- case ---------------------------------------------------------------------------------------- */

/* Returns the first character and its bytes; -1 and one byte where the text is no UTF-8. */
static int32_t read_character(tcc_string text, int64_t *out_bytes) {
    const unsigned char *s = (const unsigned char *)text.data;
    *out_bytes = 1;
    if (s[0] < 0x80) return s[0];
    int64_t more = s[0] >= 0xF0 ? 3 : s[0] >= 0xE0 ? 2 : 1;
    static const int32_t min_codes[] = {0, 0x80, 0x800, 0x10000};
    if (s[0] < 0xC2 || s[0] > 0xF4 || text.size <= more) return -1;
    int32_t code = s[0] & (0x3F >> more);
    for (int64_t i = 1; i <= more; i++) {
        if ((s[i] & 0xC0) != 0x80) return -1;
        code = code << 6 | (s[i] & 0x3F);
    }
    if (code < min_codes[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return -1;
    *out_bytes = more + 1;
    return code;
}

static int64_t write_character(int32_t code, char *target) {
    unsigned char *t = (unsigned char *)target;
    if (code < 0x80) {
        t[0] = (unsigned char)code;
        return 1;
    }
    int64_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    for (int64_t i = more; i > 0; i--, code >>= 6) t[i] = (unsigned char)(0x80 | (code & 0x3F));
    t[0] = (unsigned char)(lead[more] | code);
    return more + 1;
}

static const int32_t *find_case(const tcc_op_tensor *table, int32_t code) {
    const int32_t *rows = table->data;
    int64_t low = 0, high = table->count / 4;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (rows[4 * middle] < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < table->count / 4 && rows[4 * low] == code ? rows + 4 * low : NULL;
}

static tcc_status change_case(const tcc_op_call *call, tcc_string text, uint64_t *out_handle) {
    void *memory = NULL;
    if (text.size > INT64_MAX / 16) return misfit("string_case");
    TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, (size_t)text.size * 12, &memory));
    char *target = memory;
    while (text.size) {
        int64_t bytes;
        int32_t code = read_character(text, &bytes);
        const int32_t *row = code < 0 ? NULL : find_case(&call->inputs[1], code);
        if (row) {
            for (int i = 1; i < 4 && (i == 1 || row[i]); i++)
                target += write_character(row[i] & 0x1FFFFF, target);
        } else {
            memcpy(target, text.data, (size_t)bytes);
            target += bytes;
        }
        drop(&text, bytes);
    }
    return tcc_heap_intern(call->heap, memory, target - (char *)memory, out_handle);
}

tcc_status tcc_op_string_case(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 0, 0, "string_case"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "hwh", "string_case"));
    uint64_t *handles = call->outputs[0].data;
    if (call->inputs[0].count != call->outputs[0].count) return misfit("string_case");
    for (int64_t i = 0; i < call->outputs[0].count; i++) {
        tcc_string text;
        TCC_RETURN_IF_ERROR(text_of(call, 0, i, &text));
        TCC_RETURN_IF_ERROR(change_case(call, text, &handles[i]));
    }
    return TCC_OK;
}

/* ---- remove -------------------------------------------------------------------------------------- */

static int compare_handles(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Counts the strings that stay, and writes them if `target` is not NULL. */
static tcc_status remove_some(const tcc_op_call *call, uint64_t *target, int64_t room,
                              int64_t *out_count) {
    const tcc_op_tensor *x = &call->inputs[0], *removed = &call->inputs[2];
    const uint64_t *handles = x->data, *keys = call->inputs[1].data;
    void *sorted = NULL;
    size_t width = sizeof(uint64_t);
    if (call->inputs[1].count != x->count) return misfit("string_remove");
    TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, (size_t)removed->count * width, &sorted));
    if (removed->count) memcpy(sorted, removed->data, (size_t)removed->count * width);
    qsort(sorted, (size_t)removed->count, width, compare_handles);
    *out_count = 0;
    for (int64_t i = 0; i < x->count; i++) {
        if (bsearch(&keys[i], sorted, (size_t)removed->count, width, compare_handles)) continue;
        if (target && *out_count == room) return misfit("string_remove");
        if (target) target[*out_count] = handles[i];
        ++*out_count;
    }
    return TCC_OK;
}

tcc_status tcc_op_string_remove_count(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 3, 0, 0, 1, "string_remove"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "hhh", "string_remove"));
    TCC_RETURN_IF_ERROR(remove_some(call, NULL, 0, &call->results[0]));
    if (call->results[0] == 0) call->results[0] = 1;
    return TCC_OK;
}

tcc_status tcc_op_string_remove(tcc_op_call *call) {
    int64_t count = 0;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 3, 1, 0, 0, "string_remove"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "hhhh", "string_remove"));
    const tcc_op_tensor *y = &call->outputs[0];
    TCC_RETURN_IF_ERROR(remove_some(call, y->data, y->count, &count));
    if (count == 0 && y->count == 1) *(uint64_t *)y->data = 0;
    return count == y->count || (count == 0 && y->count == 1) ? TCC_OK : misfit("string_remove");
}

/* ---- match --------------------------------------------------------------------------------------- */

tcc_status tcc_op_string_match(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 4, 1, 0, 0, "string_match"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "hbwbq", "string_match"));
    const tcc_op_tensor *moves = &call->inputs[2];
    const uint8_t *classes = call->inputs[1].data, *accepts = call->inputs[3].data;
    const int32_t *table = moves->data;
    uint8_t *matches = call->outputs[0].data;
    if (call->inputs[1].count != 256 || moves->ndim != 2 || call->inputs[3].count != moves->dims[0] ||
        moves->dims[0] < 1 || call->inputs[0].count != call->outputs[0].count)
        return misfit("string_match");
    for (int64_t i = 0; i < call->inputs[0].count; i++) {
        tcc_string text;
        int64_t state = 0, groups = moves->dims[1];
        TCC_RETURN_IF_ERROR(text_of(call, 0, i, &text));
        for (int64_t at = 0; at < text.size && state >= 0; at++) {
            int64_t group = classes[(unsigned char)text.data[at]];
            if (group >= groups) return misfit("string_match");
            state = table[state * groups + group];
            if (state >= moves->dims[0]) return misfit("string_match");
        }
        matches[i] = state >= 0 && accepts[state];
    }
    return TCC_OK;
}

/* ---- rank ---------------------------------------------------------------------------------------- */

typedef struct ranked {
    tcc_string text;
    uint64_t handle;
    int64_t index;
} ranked;

static int compare_texts(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    size_t shorter = (size_t)(x->text.size < y->text.size ? x->text.size : y->text.size);
    int order = shorter ? memcmp(x->text.data, y->text.data, shorter) : 0;
    if (order == 0) order = x->text.size < y->text.size ? -1 : x->text.size > y->text.size;
    return order ? order : x->index < y->index ? -1 : x->index > y->index;
}

tcc_status tcc_op_string_rank(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 2, 0, 0, "string_rank"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "hih", "string_rank"));
    int64_t count = call->inputs[0].count, *ranks = call->outputs[0].data;
    uint64_t *ordered = call->outputs[1].data;
    void *memory = NULL;
    if (call->outputs[0].count != count || call->outputs[1].count != count)
        return misfit("string_rank");
    TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, (size_t)count * sizeof(ranked), &memory));
    ranked *items = memory;
    for (int64_t i = 0; i < count; i++) {
        items[i] = (ranked){.handle = ((const uint64_t *)call->inputs[0].data)[i], .index = i};
        TCC_RETURN_IF_ERROR(text_of(call, 0, i, &items[i].text));
    }
    qsort(items, (size_t)count, sizeof *items, compare_texts);
    for (int64_t place = 0, first = 0; place < count; place++) {
        if (items[place].handle != items[first].handle) first = place;
        ordered[place] = items[place].handle;
        ranks[items[place].index] = first;
    }
    return TCC_OK;
}
