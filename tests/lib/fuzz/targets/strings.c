/* A fuzz target: the functions on strings, with texts and tables from the input, and their
 * invariants.
 *
 * The first byte chooses the function, the second the number of cuts, the third the delimiter's
 * length. The other bytes are texts that end with 0xFF. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "../../../../runtime/src/ops/order.h"

const tcc_artifact tcc_artifact_info = {.name = "strings"};

enum { MOST = 64 };

typedef struct texts {
    tcc_heap heap;
    uint64_t handles[MOST];
    tcc_string all[MOST];
    int64_t count;
} texts;

static void must(bool holds) {
    if (!holds) abort();
}

static void read_texts(texts *t, const char *data, int64_t size) {
    for (int64_t from = 0, at = 0; at < size && t->count < MOST; at++)
        if (data[at] == (char)0xFF || at + 1 == size) {
            t->all[t->count] = (tcc_string){data + from, at - from};
            must(tcc_heap_intern(&t->heap, data + from, at - from, &t->handles[t->count++]) == TCC_OK);
            from = at + 1;
        }
}

static tcc_op_tensor words(void *data, tcc_dtype dtype, int64_t *size) {
    return (tcc_op_tensor){data, dtype, 1, size, *size};
}

static const tcc_dtype handle = {1, 64, 1}, integer = {0, 64, 1}, byte = {1, 8, 1},
                       narrow = {0, 32, 1}, flag = {6, 8, 1};

static tcc_string text_of(const texts *t, uint64_t name) {
    tcc_string string;
    must(tcc_heap_string(&t->heap, name, &string) == TCC_OK);
    return string;
}

/* The pieces with the delimiter between them are the text. */
static void split(texts *t, int64_t cuts, int64_t width, const char *delimiter) {
    int64_t ints[17] = {cuts == 255 ? -1 : cuts}, room = 0, counts[MOST];
    width = width % 4;
    for (int64_t i = 0; i < width; i++) ints[1 + i] = (unsigned char)delimiter[i];
    tcc_op_tensor in = words(t->handles, handle, &t->count);
    tcc_op_call call = {.inputs = &in, .n_inputs = 1, .ints = ints, .n_ints = (int32_t)width + 1,
                        .results = &room, .n_results = 1, .heap = &t->heap};
    must(tcc_op_string_split_count(&call) == TCC_OK);
    uint64_t *pieces = malloc((size_t)(t->count * room) * 8 + 8);
    int64_t dims[2] = {t->count, room};
    tcc_op_tensor out[2] = {{pieces, handle, 2, dims, t->count * room},
                            words(counts, integer, &t->count)};
    call.n_results = 0;
    call.outputs = out;
    call.n_outputs = 2;
    must(tcc_op_string_split(&call) == TCC_OK);
    for (int64_t i = 0; i < t->count && width; i++) {
        const char *at = t->all[i].data, *end = at + t->all[i].size;
        must(cuts == 255 || counts[i] <= cuts + 1);
        for (int64_t piece = 0; piece < counts[i]; piece++) {
            tcc_string piece_text = text_of(t, pieces[i * room + piece]);
            if (piece) must(end - at >= width && memcmp(at, delimiter, (size_t)width) == 0);
            if (piece) at += width;
            must(end - at >= piece_text.size && memcmp(at, piece_text.data, (size_t)piece_text.size) == 0);
            at += piece_text.size;
        }
        must(at == end && counts[i] <= room);
    }
    free(pieces);
}

static void call_elementwise(texts *t, tcc_op op, tcc_op_tensor *in, int32_t n, tcc_op_tensor out) {
    tcc_op_call call = {.inputs = in, .n_inputs = n, .outputs = &out, .n_outputs = 1, .heap = &t->heap};
    tcc_status status = op(&call);
    must(status == TCC_OK || (status == TCC_INVALID_ARGUMENT && *tcc_last_error()));
}

static void change_case(texts *t) {
    uint64_t changed[MOST];
    int32_t table[3 * 4] = {'a', 'A', 0, 0, 0xDF, 'S', 'S', 0, 0x149, 0x2BC, 'N', 0x1F600};
    int64_t size = 12;
    tcc_op_tensor in[2] = {words(t->handles, handle, &t->count), words(table, narrow, &size)};
    call_elementwise(t, tcc_op_string_case, in, 2, words(changed, handle, &t->count));
    for (int64_t i = 0; i < t->count; i++) {
        tcc_string from = t->all[i], to = text_of(t, changed[i]);
        must(to.size <= 12 * from.size && !memchr(to.data, 'a', (size_t)to.size));
    }
}

/* A parsed number that is printed and parsed again stays the same. */
static void numbers(texts *t, bool is_integer) {
    double values[MOST], again[MOST];
    uint64_t texts[MOST];
    tcc_dtype dtype = {is_integer ? 0 : 2, 64, 1};
    for (int64_t i = 0, count = 1; i < t->count; i++) {
        tcc_op_tensor in = words(&t->handles[i], handle, &count);
        tcc_op_call call = {.inputs = &in, .n_inputs = 1, .n_outputs = 1, .heap = &t->heap};
        tcc_op_tensor out = words(&values[i], dtype, &count);
        call.outputs = &out;
        if (tcc_op_string_parse(&call) != TCC_OK) continue;
        tcc_op_tensor number = words(&values[i], dtype, &count), text = words(&texts[i], handle, &count);
        call_elementwise(t, tcc_op_string_format, &number, 1, text);
        tcc_op_tensor back = words(&again[i], dtype, &count);
        call_elementwise(t, tcc_op_string_parse, &text, 1, back);
        must(memcmp(&values[i], &again[i], 8) == 0 || (!is_integer && values[i] != values[i]));
    }
}

static void rank(texts *t) {
    int64_t ranks[MOST];
    uint64_t ordered[MOST];
    tcc_op_tensor in = words(t->handles, handle, &t->count);
    tcc_op_tensor out[2] = {words(ranks, integer, &t->count), words(ordered, handle, &t->count)};
    tcc_op_call call = {.inputs = &in, .n_inputs = 1, .outputs = out, .n_outputs = 2, .heap = &t->heap};
    must(tcc_op_string_rank(&call) == TCC_OK);
    for (int64_t i = 0; i < t->count; i++) {
        must(ordered[ranks[i]] == t->handles[i]);
        if (i == 0) continue;
        tcc_string a = text_of(t, ordered[i - 1]), b = text_of(t, ordered[i]);
        int order = memcmp(a.data, b.data, (size_t)(a.size < b.size ? a.size : b.size));
        must(order < 0 || (order == 0 && a.size <= b.size));
    }
}

static void glue(texts *t) {
    uint64_t joined[MOST], remaining[MOST];
    int64_t none = 0, count = 0;
    tcc_op_tensor x = words(t->handles, handle, &t->count);
    tcc_op_tensor both[3] = {x, x, words(joined, handle, &none)};
    call_elementwise(t, tcc_op_string_concat, both, 2, words(joined, handle, &t->count));
    for (int64_t i = 0; i < t->count; i++)
        must(text_of(t, joined[i]).size == 2 * t->all[i].size);
    tcc_op_call call = {.inputs = both, .n_inputs = 3, .results = &count, .n_results = 1, .heap = &t->heap};
    must(tcc_op_string_remove_count(&call) == TCC_OK && count == (t->count ? t->count : 1));
    call_elementwise(t, tcc_op_string_remove, both, 3, words(remaining, handle, &count));
    must(memcmp(remaining, t->handles, (size_t)t->count * 8) == 0);
}

/* Runs an automaton with arbitrary moves. */
static void match(texts *t, const char *data, int64_t size) {
    uint8_t classes[256], accepts[4], matches[MOST];
    int32_t moves[4 * 8];
    int64_t dims[2] = {4, 8}, all = 256, states = 4;
    for (int64_t i = 0; i < 256; i++) classes[i] = size ? (uint8_t)data[i % size] & 15 : 0;
    for (int64_t i = 0; i < 32; i++) moves[i] = size ? (data[i % size] & 7) - 2 : 0;
    for (int i = 0; i < 4; i++) accepts[i] = (uint8_t)(i & 1);
    tcc_op_tensor in[4] = {words(t->handles, handle, &t->count), words(classes, byte, &all),
                           {moves, narrow, 2, dims, 32}, words(accepts, byte, &states)};
    tcc_op_tensor out = words(matches, flag, &t->count);
    tcc_op_call call = {.inputs = in, .n_inputs = 4, .outputs = &out, .n_outputs = 1, .heap = &t->heap};
    must(tcc_op_string_match(&call) == TCC_OK || *tcc_last_error());
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t length) {
    if (length < 8) return 0;
    char *data = malloc(length - 3); /* exact, so that a sanitizer sees reads beyond it */
    int64_t size = (int64_t)length - 3;
    memcpy(data, input + 3, (size_t)size);
    tcc_pool *pool = NULL;
    const tcc_pool_config config = {.struct_size = sizeof config, .flags = TCC_POOL_POISON};
    must(tcc_pool_create(&config, &pool) == TCC_OK);
    texts t = {.count = 0};
    must(tcc_heap_begin(&t.heap, pool) == TCC_OK);
    read_texts(&t, data, size);
    switch (input[0] % 7) {
    case 0: split(&t, input[1], input[2], data); break;
    case 1: change_case(&t); break;
    case 2: numbers(&t, true); break;
    case 3: numbers(&t, false); break;
    case 4: rank(&t); break;
    case 5: glue(&t); break;
    default: match(&t, data, size); break;
    }
    tcc_pool_destroy(pool);
    free(data);
    return 0;
}
