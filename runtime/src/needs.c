/* Checks launches against the memory, numbers and units that their kernels need. */
#include "needs.h"

#include "program.h"


/* ---- the table ------------------------------------------------------------------------------------------ */

/* Decodes the table's integers; the lowest bit of each holds its sign. */
TCC_RARE static void read_numbers(const uint8_t *table, const uint8_t *end, int64_t *out_numbers) {
    uint64_t number = 0;
    for (int shift = 0; table < end; table++) {
        if (shift < 64) number |= (uint64_t)(*table & 127) << shift;
        shift += 7;
        if (*table & 128) continue;
        *out_numbers++ = (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
        number = 0;
        shift = 0;
    }
}

/* The numbers of one kernel's row, as kernel_needs.py lists them. */
enum { WRITES = 1, REGISTER = 2 };

typedef struct need {
    int64_t sizes, steps, buffers;
    const int64_t *facts, *lets, *required;
} need;

static need need_of(const int64_t *at) {
    const int64_t *lets = at + 3 + 3 * at[0];
    return (need){at[0], at[1], at[2], at + 3, lets, lets + 3 * at[1]};
}

TCC_RARE static void find_rows(const int64_t *at, tcc_program *program) {
    for (int64_t k = 0; k < program->n_kernels; k++) {
        need row = need_of(at);
        program->needs[k] = at;
        if (row.sizes + row.steps > program->max_values) program->max_values = row.sizes + row.steps;
        at = row.required + 1 + row.buffers;
    }
}

/* ---- a launch ------------------------------------------------------------------------------------------- */

static int64_t value_of(int64_t required, const int64_t *values) {
    return required & REGISTER ? values[required / 4] : required / 4;
}

bool tcc_needs_prove(const tcc_program *program, const tcc_code *launch,
                          const int64_t *registers, const tcc_span *spans, int64_t *values,
                          int64_t *proof) {
    const int64_t units = registers[launch->as.launch.grid];
    const need row = need_of(program->needs[launch->as.launch.kernel]);
    for (int64_t i = 0; i < row.sizes; i++) {
        const int64_t *fact = row.facts + 3 * i, value = registers[launch->as.launch.ints.numbers[i]];
        if (value < fact[0] || value > fact[1]) return false;
        if (fact[2] > 1 && value % fact[2]) return false;
        values[i] = value;
    }
    for (int64_t i = 0; i < row.steps; i++) {
        const int64_t *let = row.lets + 3 * i;
        bool constant = let[0] == TCC_INT_CONST;
        int64_t a = constant ? let[1] : values[let[1]], b = constant ? 0 : values[let[2]];
        if (!tcc_compute(let[0], a, b, &values[row.sizes + i])) return false;
    }
    proof[0] = 0; /* 0 units: not proved yet */
    if (units > value_of(row.required[0], values)) return false;
    for (int64_t i = 0; i < row.sizes; i++) proof[1 + i] = values[i];
    for (int64_t i = 0; i < row.buffers; i++) {
        int64_t size = spans[launch->as.launch.buffers.numbers[i]].size;
        if (size < value_of(row.required[i + 1], values)) return false;
        proof[1 + row.sizes + i] = size;
    }
    proof[0] = units;
    return true;
}

/* ---- before the first run ------------------------------------------------------------------------------- */

/* The facts that hold before the first run. */
typedef struct load_facts {
    tcc_program *program;
    tcc_span *spans; /* buffers' sizes; -1 where a run decides the size */
    int64_t *values, *proof;
    int32_t proofs; /* words of proofs so far */
    bool *written; /* by buffer: an instruction writes to it, or to a view of it */
    bool news;     /* the last walk found another written buffer */
} load_facts;

TCC_RARE static void mark(load_facts *load_facts, int64_t buffer) {
    load_facts->news |= !load_facts->written[buffer];
    load_facts->written[buffer] = true;
}

/* Checks a launch whose numbers inputs cannot change. For any other launch it reserves room for a
 * proof. */
TCC_RARE static bool settle(load_facts *load_facts, tcc_code *launch) {
    const tcc_program *program = load_facts->program;
    const need row = need_of(program->needs[launch->as.launch.kernel]);
    const tcc_operands *ints = &launch->as.launch.ints, *buffers = &launch->as.launch.buffers;
    bool constant = program->fixed[launch->as.launch.grid];
    if (buffers->count != row.buffers || ints->count != row.sizes) return false;
    for (int64_t i = 0; i < ints->count; i++) constant &= program->fixed[ints->numbers[i]];
    for (int64_t i = 0; i < buffers->count; i++) {
        constant &= load_facts->spans[buffers->numbers[i]].size >= 0;
        if (row.required[i + 1] & WRITES) mark(load_facts, buffers->numbers[i]);
    }
    launch->proof = constant ? -1 : load_facts->proofs;
    load_facts->proofs += constant ? 0 : 1 + row.sizes + row.buffers;
    return !constant || program->constants[launch->as.launch.grid] <= 0 ||
           tcc_needs_prove(program, launch, program->constants, load_facts->spans, load_facts->values,
                           load_facts->proof);
}

/* Walks a body and its nested bodies. It writes to the program's code, which is still being
 * decoded. It goes from the end to the start, because views come before the instructions that use
 * them. */
TCC_RARE static bool walk(load_facts *load_facts, const tcc_body *body) {
    const tcc_body *inner;
    for (int64_t i = body->count - 1, id; i >= 0; i--) {
        tcc_code *code = (tcc_code *)&body->code[i];
        if (code->kind == TCC_CODE_LAUNCH && !settle(load_facts, code)) return false;
        if (code->kind == TCC_CODE_VIEW && load_facts->written[code->as.view.buffer])
            mark(load_facts, code->as.view.base);
        for (int64_t n = 0; (id = tcc_written_buffer(code, n)) >= 0; n++) mark(load_facts, id);
        for (int64_t n = 0; (inner = tcc_nested_body(code, n)); n++)
            if (!walk(load_facts, inner)) return false;
    }
    return true;
}

TCC_RARE static bool is_right(load_facts *load_facts) {
    const tcc_program *program = load_facts->program;
    for (int64_t i = 0; i < program->n_buffers; i++) {
        const tcc_buffer *buffer = &program->buffers[i];
        load_facts->spans[i].size = -1;
        if (buffer->place == TCC_PLACE_WEIGHT || buffer->place == TCC_PLACE_STATE)
            load_facts->spans[i].size = buffer->b;
        if ((buffer->place == TCC_PLACE_ARENA || buffer->place == TCC_PLACE_SYMMETRIC) &&
            program->fixed[buffer->b])
            load_facts->spans[i].size = program->constants[buffer->b];
    }
    int turns = TCC_MAX_DEPTH; /* bounds the depth of views of views */
    do {
        load_facts->news = false;
        load_facts->proofs = 0;
        if (!turns-- || !walk(load_facts, &program->body)) return false;
    } while (load_facts->news);
    for (int64_t i = 0; i < program->n_buffers; i++)
        if (load_facts->written[i] && (program->buffers[i].place == TCC_PLACE_INPUT ||
                                       program->buffers[i].place == TCC_PLACE_WEIGHT))
            return false;
    return true;
}

tcc_status tcc_needs_read(const uint8_t *table, const uint8_t *end, tcc_program *program) {
    size_t count = 1, buffers = (size_t)program->n_buffers, kernels = (size_t)program->n_kernels;
    for (const uint8_t *at = table; at < end; at++) count += !(*at & 128);
    int64_t *numbers = NULL;
    TCC_RETURN_IF_ERROR(tcc_program_allocate(program, (int64_t)(count + kernels), 8, (void **)&numbers));
    read_numbers(table, end, numbers);
    program->needs = (const int64_t **)(void *)(numbers + count);
    find_rows(numbers + 1, program);
    load_facts load_facts = {.program = program};
    int64_t words = program->max_values + 1 + program->max_buffers + program->max_ints;
    load_facts.spans = tcc_allocate_zero(1, buffers * (sizeof *load_facts.spans + 1) + (size_t)words * 8);
    if (!load_facts.spans) return TCC_OUT_OF_MEMORY;
    load_facts.values = (int64_t *)(void *)(load_facts.spans + buffers);
    load_facts.proof = load_facts.values + program->max_values;
    load_facts.written = (bool *)(load_facts.values + words);
    bool right = program->scratch >= numbers[0] && is_right(&load_facts);
    program->n_proofs = load_facts.proofs;
    tcc_free(load_facts.spans);
    return right ? TCC_OK
                 : tcc_fail(TCC_CORRUPT, "the artifact is damaged: its program gives a kernel less "
                                         "memory than that needs, or writes to what is read-only");
}
