/* Decodes a program's instructions, and finds the prologue that sizes the arena. */
#include <string.h>

#include "program.h"

static tcc_status damaged(const char *what) {
    return tcc_fail(TCC_CORRUPT, "the artifact is damaged: an instruction %s", what);
}

static tcc_status read_register(tcc_reader *reader, int64_t *out_register) {
    return tcc_read_in(reader, 0, reader->program->n_registers, out_register);
}

static tcc_status read_buffer(tcc_reader *reader, int32_t *out_buffer) {
    int64_t buffer;
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, reader->program->n_buffers, &buffer));
    *out_buffer = (int32_t)buffer;
    return TCC_OK;
}

/* A buffer that the program itself writes: not the caller's input, not a weight. */
static tcc_status read_target(tcc_reader *reader, int32_t *out_buffer) {
    TCC_RETURN_IF_ERROR(read_buffer(reader, out_buffer));
    int32_t place = reader->program->buffers[*out_buffer].place;
    if (place == TCC_PLACE_INPUT || place == TCC_PLACE_WEIGHT)
        return damaged("writes to what is read-only");
    return TCC_OK;
}

static void raise_to(int64_t *most, int64_t value) {
    if (value > *most) *most = value;
}

static tcc_status read_let(tcc_reader *reader, tcc_code *code) {
    int64_t op, a, b;
    TCC_RETURN_IF_ERROR(read_register(reader, &code->as.let.target));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_INT_COUNT, &op));
    if (op == TCC_INT_CONST) {
        TCC_RETURN_IF_ERROR(tcc_read_word(reader, &a));
        TCC_RETURN_IF_ERROR(tcc_read_word(reader, &b));
    } else if (op == TCC_INT_DIM) {
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, reader->program->n_inputs, &a));
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, reader->program->inputs[a].port.ndim, &b));
    } else {
        TCC_RETURN_IF_ERROR(read_register(reader, &a));
        TCC_RETURN_IF_ERROR(read_register(reader, &b));
    }
    code->as.let.op = (int32_t)op;
    code->as.let.a = a;
    code->as.let.b = b;
    return TCC_OK;
}

static tcc_status read_read(tcc_reader *reader, tcc_code *code) {
    TCC_RETURN_IF_ERROR(read_register(reader, &code->as.read.target));
    TCC_RETURN_IF_ERROR(read_buffer(reader, &code->as.read.buffer));
    TCC_RETURN_IF_ERROR(tcc_read_dtype(reader, &code->as.read.dtype));
    tcc_dtype dtype = code->as.read.dtype;
    if ((dtype.code != 0 && dtype.code != 1 && dtype.code != 6) ||
        (dtype.bits != 8 && dtype.bits != 16 && dtype.bits != 32 && dtype.bits != 64))
        return damaged("reads a size that is no integer");
    return tcc_read_in(reader, 0, INT64_C(1) << 40, &code->as.read.element);
}

static tcc_status read_check(tcc_reader *reader, tcc_code *code) {
    int64_t relation;
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_REL_COUNT, &relation));
    code->as.check.relation = (int32_t)relation;
    TCC_RETURN_IF_ERROR(read_register(reader, &code->as.check.a));
    TCC_RETURN_IF_ERROR(read_register(reader, &code->as.check.b));
    return tcc_read_string(reader, &code->as.check.message);
}

static tcc_status read_allocate(tcc_reader *reader, tcc_code *code) {
    int64_t keep;
    TCC_RETURN_IF_ERROR(read_buffer(reader, &code->as.allocate.buffer));
    int32_t place = reader->program->buffers[code->as.allocate.buffer].place;
    if (place != TCC_PLACE_DYNAMIC && place != TCC_PLACE_OUTPUT)
        return damaged("allocates a buffer that has a place");
    TCC_RETURN_IF_ERROR(read_register(reader, &code->as.allocate.size));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, 2, &keep));
    code->as.allocate.keep = keep;
    return TCC_OK;
}

static tcc_status read_view(tcc_reader *reader, tcc_code *code) {
    TCC_RETURN_IF_ERROR(read_buffer(reader, &code->as.view.buffer));
    if (reader->program->buffers[code->as.view.buffer].place != TCC_PLACE_ALIAS)
        return damaged("aims a buffer that is no alias");
    TCC_RETURN_IF_ERROR(read_buffer(reader, &code->as.view.base));
    return read_register(reader, &code->as.view.offset);
}

static tcc_status read_launch(tcc_reader *reader, tcc_code *code) {
    tcc_program *program = reader->program;
    int64_t kernel, n_buffers, n_ints;
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, program->n_kernels, &kernel));
    TCC_RETURN_IF_ERROR(read_register(reader, &code->as.launch.grid));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 1, INT64_MAX, &code->as.launch.least));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 1, &n_buffers));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 1, &n_ints));
    TCC_RETURN_IF_ERROR(
        tcc_read_indices(reader, n_buffers, program->n_buffers, &code->as.launch.buffers));
    TCC_RETURN_IF_ERROR(
        tcc_read_indices(reader, n_ints, program->n_registers, &code->as.launch.ints));
    if (n_buffers > 1 << 20 || n_ints > 1 << 20) return damaged("has too many operands");
    code->as.launch.kernel = reader->kernels ? reader->kernels[kernel] : NULL;
    code->as.launch.index = (int32_t)kernel;
    code->number = program->n_steps++;
    code->as.launch.n_buffers = (int32_t)n_buffers;
    code->as.launch.n_ints = (int32_t)n_ints;
    raise_to(&program->max_buffers, n_buffers);
    raise_to(&program->max_ints, n_ints);
    return TCC_OK;
}

static tcc_status read_call(tcc_reader *reader, tcc_code *code) {
    tcc_program *program = reader->program;
    const char *name;
    int64_t n_inputs, n_outputs, n_ints, n_results, n_dims = 0;
    TCC_RETURN_IF_ERROR(tcc_read_string(reader, &name));
    code->as.call.name = name;
    code->as.call.op = tcc_op_find(name);
    if (!code->as.call.op)
        return tcc_fail(TCC_UNSUPPORTED, "the program calls '%.64s', which this runtime lacks", name);
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 3, &n_inputs));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 3, &n_outputs));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 1, &n_ints));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 1, &n_results));
    if (n_inputs + n_outputs > 1 << 16 || n_ints > 1 << 16 || n_results > 1 << 16)
        return damaged("has too many operands");
    tcc_tensor_ref *tensors = NULL;
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, n_inputs + n_outputs, sizeof *tensors,
                                            (void **)&tensors));
    for (int64_t i = 0; i < n_inputs + n_outputs; i++) {
        int64_t rank;
        TCC_RETURN_IF_ERROR(i < n_inputs ? read_buffer(reader, &tensors[i].buffer)
                                         : read_target(reader, &tensors[i].buffer));
        TCC_RETURN_IF_ERROR(tcc_read_dtype(reader, &tensors[i].dtype));
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_MAX_RANK + 1, &rank));
        TCC_RETURN_IF_ERROR(tcc_read_indices(reader, rank, program->n_registers, &tensors[i].dims));
        tensors[i].ndim = (int32_t)rank;
        n_dims += rank;
    }
    int64_t *ints = NULL;
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, n_ints, sizeof *ints, (void **)&ints));
    for (int64_t i = 0; i < n_ints; i++) TCC_RETURN_IF_ERROR(tcc_read_word(reader, &ints[i]));
    TCC_RETURN_IF_ERROR(
        tcc_read_indices(reader, n_results, program->n_registers, &code->as.call.results));
    code->number = program->n_steps++;
    code->as.call.tensors = tensors;
    code->as.call.ints = ints;
    code->as.call.n_inputs = (int32_t)n_inputs;
    code->as.call.n_outputs = (int32_t)n_outputs;
    code->as.call.n_ints = (int32_t)n_ints;
    code->as.call.n_results = (int32_t)n_results;
    raise_to(&program->max_tensors, n_inputs + n_outputs);
    raise_to(&program->max_dims, n_dims);
    raise_to(&program->max_results, n_results);
    return TCC_OK;
}

static tcc_status read_copy(tcc_reader *reader, tcc_code *code) {
    TCC_RETURN_IF_ERROR(read_target(reader, &code->as.copy.target));
    TCC_RETURN_IF_ERROR(read_buffer(reader, &code->as.copy.source));
    return read_register(reader, &code->as.copy.size);
}

static tcc_status read_branch(tcc_reader *reader, int32_t depth, tcc_code *code) {
    int64_t asked; /* a buffer, or the complement of a register */
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, -reader->program->n_registers,
                                    reader->program->n_buffers, &asked));
    code->as.branch.condition = asked < 0 ? -1 : (int32_t)asked;
    code->as.branch.when = asked < 0 ? ~asked : -1;
    TCC_RETURN_IF_ERROR(tcc_read_body(reader, depth + 1, &code->as.branch.then));
    return tcc_read_body(reader, depth + 1, &code->as.branch.otherwise);
}

static tcc_status read_loop(tcc_reader *reader, int32_t depth, tcc_code *code) {
    int64_t condition;
    TCC_RETURN_IF_ERROR(read_register(reader, &code->as.loop.trips));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, -1, reader->program->n_buffers, &condition));
    code->as.loop.condition = (int32_t)condition;
    TCC_RETURN_IF_ERROR(read_register(reader, &code->as.loop.counter));
    return tcc_read_body(reader, depth + 1, &code->as.loop.body);
}

static tcc_status read_instruction(tcc_reader *reader, int32_t depth, tcc_code *code) {
    int64_t kind;
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_CODE_COUNT, &kind));
    code->kind = (int32_t)kind;
    switch (kind) {
    case TCC_CODE_LET: return read_let(reader, code);
    case TCC_CODE_READ: return read_read(reader, code);
    case TCC_CODE_CHECK: return read_check(reader, code);
    case TCC_CODE_ALLOCATE: return read_allocate(reader, code);
    case TCC_CODE_VIEW: return read_view(reader, code);
    case TCC_CODE_LAUNCH: return read_launch(reader, code);
    case TCC_CODE_CALL: return read_call(reader, code);
    case TCC_CODE_COPY: return read_copy(reader, code);
    case TCC_CODE_BRANCH: return read_branch(reader, depth, code);
    default: return read_loop(reader, depth, code);
    }
}

/* The largest weight that a launch reads; -1: none. */
static int32_t largest_weight(const tcc_program *program, const tcc_code *code) {
    int32_t found = -1;
    for (int32_t i = 0; i < code->as.launch.n_buffers; i++) {
        int64_t id = code->as.launch.buffers[i];
        if (program->buffers[id].place != TCC_PLACE_WEIGHT) continue;
        if (found < 0 || program->buffers[id].b > program->buffers[found].b) found = (int32_t)id;
    }
    return found;
}

/* Tells each launch what the next one of its body reads. */
static void look_ahead(const tcc_program *program, tcc_code *code, int64_t count) {
    int32_t ahead = -1;
    for (int64_t i = count - 1; i >= 0; i--) {
        if (code[i].kind != TCC_CODE_LAUNCH) continue;
        code[i].as.launch.ahead = ahead;
        ahead = largest_weight(program, &code[i]);
    }
}

tcc_status tcc_read_body(tcc_reader *reader, int32_t depth, tcc_body *out_body) {
    if (depth > TCC_MAX_DEPTH) return damaged("is nested too deep");
    int64_t count;
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 4, &count));
    tcc_code *code = NULL;
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, count, sizeof *code, (void **)&code));
    for (int64_t i = 0; i < count; i++)
        TCC_RETURN_IF_ERROR(read_instruction(reader, depth, &code[i]));
    look_ahead(reader->program, code, count);
    *out_body = (tcc_body){code, count};
    return TCC_OK;
}

/* ---- the prologue --------------------------------------------------------------------------------- */

enum { WRITTEN = 1, SIZES_ARENA = 2 };

/* Marks the registers that `body` writes, once each in `writes`, and fails at one the arena needs. */
static tcc_status refuse_arena_writes(const tcc_body *body, const uint8_t *marks) {
    for (int64_t i = 0; i < body->count; i++) {
        const tcc_code *code = &body->code[i];
        int64_t target = -1;
        switch (code->kind) {
        case TCC_CODE_LET: target = code->as.let.target; break;
        case TCC_CODE_READ: target = code->as.read.target; break;
        case TCC_CODE_CALL:
            for (int32_t r = 0; r < code->as.call.n_results; r++)
                if (marks[code->as.call.results[r]] & SIZES_ARENA) target = code->as.call.results[r];
            break;
        case TCC_CODE_BRANCH:
            TCC_RETURN_IF_ERROR(refuse_arena_writes(&code->as.branch.then, marks));
            TCC_RETURN_IF_ERROR(refuse_arena_writes(&code->as.branch.otherwise, marks));
            break;
        case TCC_CODE_LOOP:
            target = code->as.loop.counter;
            TCC_RETURN_IF_ERROR(refuse_arena_writes(&code->as.loop.body, marks));
            break;
        default: break;
        }
        if (target >= 0 && (marks[target] & SIZES_ARENA))
            return damaged("changes the size of the arena while it is in use");
    }
    return TCC_OK;
}

static bool is_prologue(const tcc_program *program, const tcc_code *code) {
    return code->kind == TCC_CODE_LET || code->kind == TCC_CODE_CHECK ||
           (code->kind == TCC_CODE_READ &&
            program->buffers[code->as.read.buffer].place == TCC_PLACE_INPUT);
}

/* Sizes that are constants become part of the port's description. */
static void fill_static_shapes(const tcc_port_info *ports, int32_t count, const uint8_t *writes,
                               const int64_t *constants) {
    for (int32_t i = 0; i < count; i++)
        for (int32_t dim = 0; dim < ports[i].port.ndim; dim++) {
            int64_t source = ports[i].dims[dim];
            if (writes[source] == 1 && constants[source] >= 0)
                ((int64_t *)ports[i].port.shape)[dim] = constants[source];
        }
}

/* How often each register is written anywhere, up to 2, and by what constant. */
static void count_writes(const tcc_body *body, uint8_t *writes, int64_t *constants) {
    for (int64_t i = 0; i < body->count; i++) {
        const tcc_code *code = &body->code[i];
        int64_t target = -1;
        if (code->kind == TCC_CODE_LET) {
            target = code->as.let.target;
            constants[target] = code->as.let.op == TCC_INT_CONST ? code->as.let.a : -1;
        } else if (code->kind == TCC_CODE_READ) {
            target = code->as.read.target;
            constants[target] = -1;
        } else if (code->kind == TCC_CODE_LOOP) {
            target = code->as.loop.counter;
            constants[target] = -1;
            count_writes(&code->as.loop.body, writes, constants);
        } else if (code->kind == TCC_CODE_BRANCH) {
            count_writes(&code->as.branch.then, writes, constants);
            count_writes(&code->as.branch.otherwise, writes, constants);
        } else if (code->kind == TCC_CODE_CALL) {
            for (int32_t r = 0; r < code->as.call.n_results; r++)
                writes[code->as.call.results[r]] = 2;
        }
        if (target >= 0 && writes[target] < 2) writes[target]++;
    }
}

tcc_status tcc_program_plan(tcc_reader *reader, tcc_body body) {
    tcc_program *program = reader->program;
    uint8_t *marks = NULL, *writes = NULL;
    int64_t *constants = NULL, split = 0;
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, program->n_registers, 1, (void **)&marks));
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, program->n_registers, 1, (void **)&writes));
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, program->n_registers, sizeof *constants,
                                            (void **)&constants));
    marks[program->arena] = SIZES_ARENA;
    for (int64_t i = 0; i < program->n_arena_buffers; i++) {
        const tcc_buffer *buffer = &program->buffers[program->arena_buffers[i]];
        marks[buffer->a] = marks[buffer->b] = SIZES_ARENA;
    }
    for (; split < body.count && is_prologue(program, &body.code[split]); split++) {
        const tcc_code *code = &body.code[split];
        if (code->kind == TCC_CODE_LET) marks[code->as.let.target] |= WRITTEN;
        if (code->kind == TCC_CODE_READ) marks[code->as.read.target] |= WRITTEN;
    }
    for (int64_t i = 0; i < program->n_registers; i++)
        if (marks[i] == SIZES_ARENA) return damaged("uses the arena before its size is known");
    program->prologue = (tcc_body){body.code, split};
    program->body = (tcc_body){body.code + split, body.count - split};
    count_writes(&body, writes, constants);
    fill_static_shapes(program->inputs, program->n_inputs, writes, constants);
    fill_static_shapes(program->outputs, program->n_outputs, writes, constants);
    if (writes[program->arena] == 1 && constants[program->arena] > 0)
        program->known_arena = constants[program->arena];
    return refuse_arena_writes(&program->body, marks);
}
