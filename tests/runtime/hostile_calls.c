/* Calls every function that programs may call, with operands of any number, type, shape and
 * content.  Each call must end with a status, and touch nothing outside its operands.
 *
 *     hostile_calls SEED CALLS NAME... CALLS calls of each function
 *
 * As in a run, an operand has exactly the bytes that its type and sizes say.  Prints for each
 * function how many calls succeeded, and how many were refused for other reasons than their number
 * of operands. */
#include <string.h>
#include <unistd.h>

#include "ops/order.h"

const tcc_artifact tcc_artifact_info = {.name = "hostile_calls"};

enum { INPUTS = 6, OUTPUTS = 4, INTS = 9, RESULTS = 5, AXES = 4, FORMS = 64 };

static uint64_t state;
static uint64_t draw(uint64_t below) { /* SplitMix64 */
    uint64_t z = (state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (z ^ z >> 31) % below;
}

static const tcc_dtype types[] = {{2, 32, 1}, {0, 64, 1}, {1, 64, 1}, {1, 8, 1},  {0, 32, 1},
                                  {2, 64, 1}, {6, 8, 1},  {2, 16, 1}, {4, 16, 1}, {0, 8, 1},
                                  {1, 16, 1}, {3, 64, 1}, {0, 4, 1},  {3, 128, 1}};
enum { TYPES = sizeof types / sizeof *types };

typedef struct form {
    int32_t inputs, outputs, ints, results;
} form;

typedef struct operands {
    tcc_op_tensor tensors[INPUTS + OUTPUTS];
    int64_t dims[INPUTS + OUTPUTS][AXES], ints[INTS], results[RESULTS];
} operands;

static int64_t some_number(void) {
    static const int64_t odd[] = {INT64_MIN, INT64_MAX, INT64_C(1) << 40, -1, 1000};
    return draw(12) ? (int64_t)draw(5) - 1 : odd[draw(sizeof odd / sizeof *odd)];
}

static void fill(tcc_op_tensor *tensor, size_t bytes) {
    static const float floats[] = {0, 1, -1, 0.5f, 2, 3, 1e30f, -0.0f};
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)tensor->data)[i] = (uint8_t)draw(4);
    for (int64_t i = 0; i < tensor->count; i++) {
        if (tensor->dtype.code == 2 && tensor->dtype.bits == 32)
            ((float *)tensor->data)[i] = floats[draw(8)];
        else if (tensor->dtype.code == 2 && tensor->dtype.bits == 64)
            ((double *)tensor->data)[i] = floats[draw(8)];
        else if (tensor->dtype.bits == 64)
            ((int64_t *)tensor->data)[i] = some_number();
        else if (tensor->dtype.code == 6)
            ((uint8_t *)tensor->data)[i] = (uint8_t)draw(2);
    }
}

/* Makes an operand that is often like the one before it, because most functions need that. */
static void make_tensor(operands *all, int32_t at) {
    tcc_op_tensor *tensor = &all->tensors[at];
    const tcc_op_tensor *like = at && draw(3) ? &all->tensors[draw((uint64_t)at)] : NULL;
    tensor->dtype = like && draw(4) ? like->dtype : types[draw(draw(2) ? 4 : TYPES)];
    tensor->ndim = like ? like->ndim : (int32_t)draw(AXES + 1);
    tensor->dims = all->dims[at];
    tensor->count = 1;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        all->dims[at][i] = like && draw(8) ? like->dims[i] : (int64_t)draw(5);
        tensor->count *= all->dims[at][i];
    }
    size_t bytes = ((size_t)tensor->count * tensor->dtype.bits + 7) / 8;
    tensor->data = malloc(bytes ? bytes : 1);
    fill(tensor, bytes);
}

static tcc_op_call make_call(operands *all, const form *form, tcc_heap *heap) {
    for (int32_t i = 0; i < form->inputs + form->outputs; i++) make_tensor(all, i);
    for (int32_t i = 0; i < form->ints; i++) all->ints[i] = some_number();
    return (tcc_op_call){.inputs = all->tensors, .outputs = all->tensors + form->inputs,
                         .n_inputs = form->inputs, .n_outputs = form->outputs,
                         .ints = all->ints, .n_ints = form->ints,
                         .results = all->results, .n_results = form->results,
                         .pool = heap->pool, .threads = 1, .heap = heap};
}

static tcc_status call_once(tcc_op op, const form *form, tcc_pool *pool) {
    tcc_heap heap;
    operands all;
    uint64_t names[2];
    if (tcc_heap_begin(&heap, pool) != TCC_OK) abort();
    if (tcc_heap_intern(&heap, "12", 2, &names[0]) || tcc_heap_intern(&heap, "a,b", 3, &names[1])) abort();
    tcc_op_call call = make_call(&all, form, &heap);
    (void)tcc_fail(TCC_OK, "%s", "");
    tcc_status status = op(&call);
    if (status != TCC_OK && !*tcc_last_error()) abort();
    for (int32_t i = 0; i < form->inputs + form->outputs; i++) free(all.tensors[i].data);
    tcc_pool_reset(pool);
    return status;
}

static const form *some_form(void) {
    static form any;
    any = (form){(int32_t)draw(4), (int32_t)draw(3), (int32_t)draw(4), (int32_t)draw(5)};
    return &any;
}

/* Finds the numbers of operands with which the function does not complain about their number. */
static int32_t find_forms(tcc_op op, tcc_pool *pool, form forms[FORMS]) {
    int32_t n_forms = 0;
    for (int32_t i = 0; i < (INPUTS + 1) * (OUTPUTS + 1) * (INTS + 1) * (RESULTS + 1) && n_forms < FORMS; i++) {
        const form tried = {i % (INPUTS + 1), i / (INPUTS + 1) % (OUTPUTS + 1),
                            i / (INPUTS + 1) / (OUTPUTS + 1) % (INTS + 1),
                            i / (INPUTS + 1) / (OUTPUTS + 1) / (INTS + 1)};
        tcc_status status = call_once(op, &tried, pool);
        if (status == TCC_OK || !strstr(tcc_last_error(), "called with other operands"))
            forms[n_forms++] = tried;
    }
    return n_forms;
}

int main(int argc, char **argv) {
    tcc_pool *pool = NULL;
    const tcc_pool_config config = {.struct_size = sizeof config, .flags = TCC_POOL_POISON};
    if (argc < 4 || tcc_pool_create(&config, &pool) != TCC_OK) return 2;
    for (int i = 3; i < argc; i++) {
        form forms[FORMS];
        long calls = strtol(argv[2], NULL, 10), well = 0;
        tcc_op op = tcc_op_find(argv[i]);
        if (!op) return 3;
        state = strtoull(argv[1], NULL, 10) * 1000 + (uint64_t)i;
        fprintf(stderr, "%s\n", argv[i]);
        alarm(60); /* a hang ends by this signal */
        int32_t n = find_forms(op, pool, forms);
        for (long k = 0; k < calls && n; k++)
            well += call_once(op, n < FORMS ? &forms[draw((uint64_t)n)] : some_form(), pool) == TCC_OK;
        printf("%s %d %ld %ld\n", argv[i], n, well, calls - well);
    }
    tcc_pool_destroy(pool);
    return 0;
}
