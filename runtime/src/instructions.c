/* Decodes a program's instructions, and finds the prologue that sizes the arena. */
#include <string.h>

#include "collective.h"
#include "program.h"

static tcc_status damaged(const char *defect) {
    return tcc_fail(TCC_CORRUPT, "the artifact is damaged: an instruction %s", defect);
}

static const tcc_field FIELDS[TCC_CODE_COUNT][TCC_MOST_FIELDS + 1] = TCC_FIELDS;
static const uint8_t OPERANDS[TCC_INT_COUNT][2] = TCC_OPERANDS;

/* ---- numbers ------------------------------------------------------------------------------------ */

/* Fails unless a buffer in `place` may be used in the way that `kind` says. */
static tcc_status check_place(int32_t place, int32_t kind) {
    if (kind == TCC_KIND_WRITTEN && (place == TCC_PLACE_INPUT || place == TCC_PLACE_WEIGHT))
        return damaged("writes to what is read-only");
    if (kind == TCC_KIND_ALLOCATED && place != TCC_PLACE_DYNAMIC && place != TCC_PLACE_OUTPUT)
        return damaged("allocates a buffer that has a place");
    if (kind == TCC_KIND_AIMED && place != TCC_PLACE_ALIAS)
        return damaged("aims a buffer that is no alias");
    return TCC_OK;
}

static tcc_status read_number(tcc_reader *reader, int32_t kind, int64_t *out_number) {
    const tcc_program *program = reader->program;
    int64_t low = 0, high = program->n_buffers;
    switch (kind) {
    case TCC_KIND_NUMBER: return tcc_read_word(reader, out_number);
    case TCC_KIND_USED:
    case TCC_KIND_DEFINED: high = program->n_registers; break;
    case TCC_KIND_KERNEL: high = program->n_kernels; break;
    case TCC_KIND_TICKET: high = TCC_MAX_TICKETS; break;
    case TCC_KIND_GROUP: low = -1, high = program->n_groups; break;
    case TCC_KIND_PORT: high = program->n_inputs; break;
    case TCC_KIND_ELEMENT: high = INT64_C(1) << 40; break;
    case TCC_KIND_LEAST: low = -1, high = program->n_registers; break;
    case TCC_KIND_FLAG: high = 2; break;
    case TCC_KIND_OPERATION: high = TCC_INT_COUNT; break;
    case TCC_KIND_RELATION: high = TCC_REL_COUNT; break;
    case TCC_KIND_COLLECTIVE: high = TCC_COLLECTIVE_COUNT; break;
    case TCC_KIND_REDUCTION: high = TCC_REDUCTION_COUNT; break;
    default:
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, low, high, out_number));
        return check_place(program->buffers[*out_number].place, kind);
    }
    return tcc_read_in(reader, low, high, out_number);
}

static tcc_status read_integer_type(tcc_reader *reader, tcc_dtype *out_dtype) {
    TCC_RETURN_IF_ERROR(tcc_read_dtype(reader, out_dtype));
    uint8_t code = out_dtype->code, bits = out_dtype->bits;
    bool is_integer = (code == 0 || code == 1 || code == 6) && bits >= 8 && bits <= 64;
    return is_integer ? TCC_OK : damaged("reads a size that is no integer");
}

/* Reads a condition: a buffer, -1, or, where the instruction allows a register instead, the
 * complement of a register. */
static tcc_status read_condition(tcc_reader *reader, const tcc_field *next, int64_t *out_number) {
    int64_t low = next->kind == TCC_KIND_WHEN ? -reader->program->n_registers : -1;
    return tcc_read_in(reader, low, reader->program->n_buffers, out_number);
}

static tcc_status read_single(tcc_reader *reader, const tcc_field *field, tcc_code *code) {
    void *at = (char *)&code->as + field->at;
    int32_t kind = field->kind;
    if (kind == TCC_KIND_OPERAND) kind = OPERANDS[code->as.let.op][at == &code->as.let.b];
    switch (kind) {
    case TCC_KIND_STRING:
    case TCC_KIND_FUNCTION: return tcc_read_string(reader, at);
    case TCC_KIND_DTYPE: return tcc_read_dtype(reader, at);
    case TCC_KIND_INTEGER: return read_integer_type(reader, at);
    case TCC_KIND_CONDITION: return read_condition(reader, field + 1, at);
    case TCC_KIND_GROUP:
        *(int64_t *)at = -1;
        return reader->program->n_groups ? read_number(reader, kind, at) : TCC_OK;
    case TCC_KIND_AXIS:
        return tcc_read_in(reader, 0, reader->program->inputs[code->as.let.a].port.ndim, at);
    case TCC_KIND_WHEN: {
        int64_t *condition = &code->as.branch.condition;
        code->as.branch.when = *condition < 0 ? ~*condition : -1;
        if (*condition < 0) *condition = -1;
        return TCC_OK;
    }
    default: return read_number(reader, kind, at);
    }
}

/* ---- lists -------------------------------------------------------------------------------------- */

static tcc_status read_numbers(tcc_reader *reader, int32_t kind, tcc_operands *list) {
    int64_t *numbers = NULL;
    TCC_RETURN_IF_ERROR(
        tcc_reader_allocate(reader, list->count, sizeof *numbers, (void **)&numbers));
    for (int64_t i = 0; i < list->count; i++)
        TCC_RETURN_IF_ERROR(read_number(reader, kind, &numbers[i]));
    list->numbers = numbers;
    return TCC_OK;
}

static tcc_status read_tensors(tcc_reader *reader, int32_t kind, tcc_operands *list) {
    tcc_tensor_ref *tensors = NULL;
    TCC_RETURN_IF_ERROR(
        tcc_reader_allocate(reader, list->count, sizeof *tensors, (void **)&tensors));
    for (int64_t i = 0; i < list->count; i++) {
        int64_t rank;
        TCC_RETURN_IF_ERROR(read_number(reader, kind, &tensors[i].buffer));
        TCC_RETURN_IF_ERROR(tcc_read_dtype(reader, &tensors[i].dtype));
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_MAX_RANK + 1, &rank));
        TCC_RETURN_IF_ERROR(
            tcc_read_indices(reader, rank, reader->program->n_registers, &tensors[i].dims));
        tensors[i].ndim = (int32_t)rank;
    }
    list->tensors = tensors;
    return TCC_OK;
}

static tcc_status read_length(tcc_reader *reader, int32_t form, tcc_operands *list) {
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, form == TCC_HAS_TENSORS ? 3 : 1, &list->count));
    return list->count > 1 << 20 ? damaged("has too many operands") : TCC_OK;
}

/* ---- instructions ------------------------------------------------------------------------------- */

static tcc_status read_fields(tcc_reader *reader, int32_t depth, tcc_code *code) {
    const tcc_field *fields = FIELDS[code->kind];
    for (const tcc_field *field = fields; field->kind; field++) {
        void *at = (char *)&code->as + field->at;
        if (field->form != TCC_HAS_ONE)
            TCC_RETURN_IF_ERROR(read_length(reader, field->form, at));
        else if (field->kind != TCC_KIND_BODY)
            TCC_RETURN_IF_ERROR(read_single(reader, field, code));
    }
    for (const tcc_field *field = fields; field->kind; field++) {
        void *at = (char *)&code->as + field->at;
        if (field->kind == TCC_KIND_BODY)
            TCC_RETURN_IF_ERROR(tcc_read_body(reader, depth + 1, at));
        else if (field->form == TCC_HAS_MANY)
            TCC_RETURN_IF_ERROR(read_numbers(reader, field->kind, at));
        else if (field->form == TCC_HAS_TENSORS)
            TCC_RETURN_IF_ERROR(read_tensors(reader, field->kind, at));
    }
    return TCC_OK;
}

static void raise_to(int64_t *maximum, int64_t value) {
    if (value > *maximum) *maximum = value;
}

static void prepare_launch(const tcc_reader *reader, tcc_code *code) {
    tcc_program *program = reader->program;
    code->kernel = reader->kernels ? reader->kernels[code->as.launch.kernel] : NULL;
    code->number = (int32_t)program->n_steps++;
    code->proof = -1; /* -1, unless its kernel's needs are known */
    raise_to(&program->max_buffers, code->as.launch.buffers.count);
    raise_to(&program->max_ints, code->as.launch.ints.count);
}

static int64_t count_dims(const tcc_operands *list) {
    int64_t count = 0;
    for (int64_t i = 0; i < list->count; i++) count += list->tensors[i].ndim;
    return count;
}

static tcc_status prepare_call(const tcc_reader *reader, tcc_code *code) {
    tcc_program *program = reader->program;
    const tcc_operands *inputs = &code->as.call.inputs, *outputs = &code->as.call.outputs;
    code->op = tcc_op_find(code->as.call.op);
    if (!code->op)
        return tcc_fail(TCC_UNSUPPORTED, "the program calls '%.64s', which this runtime lacks",
                        code->as.call.op);
    code->number = (int32_t)program->n_steps++;
    raise_to(&program->max_tensors, inputs->count + outputs->count);
    raise_to(&program->max_dims, count_dims(inputs) + count_dims(outputs));
    raise_to(&program->max_results, code->as.call.results.count);
    return TCC_OK;
}

static tcc_status prepare_plan(const tcc_reader *reader, tcc_code *code) {
    tcc_program *program = reader->program;
    int64_t count = code->as.plan.sizes.count;
    if (code->as.plan.offsets.count != count || code->as.plan.lives.count != 3 * count)
        return damaged("plans an arena with lists of different lengths");
    code->number = (int32_t)program->n_plans++;
    code->plan = program->plans;
    program->plans = code;
    return TCC_OK;
}

static tcc_status prepare_collective(const tcc_reader *reader, tcc_code *code) {
    tcc_program *program = reader->program;
    int64_t ranks = code->as.collective.ranks, root = code->as.collective.root;
    int64_t kind = code->as.collective.kind, counts = code->as.collective.counts.count;
    bool any = kind == TCC_COLLECTIVE_ALL_REDUCE || kind == TCC_COLLECTIVE_BROADCAST;
    if (ranks < !any || ranks > INT32_MAX || root < 0 || root > INT32_MAX)
        return damaged("is for no possible number of ranks");
    int64_t sent = kind == TCC_COLLECTIVE_ALL_TO_ALL ? ranks : 1;
    bool even = any || kind == TCC_COLLECTIVE_REDUCE_SCATTER;
    if (counts != 1 && (even || counts != sent + ranks))
        return damaged("has counts of other blocks than there are");
    code->counts = program->n_counts;
    program->n_counts += counts;
    int64_t group = code->as.collective.group;
    if (group < 0 ? ranks && program->ranks > 0 && ranks != program->ranks
                  : ranks != program->groups[group].length)
        return damaged("is for another number of ranks than one before it, or than its group");
    if (group >= 0) ranks = 0; /* the group's lists fix the number of ranks, and not the program */
    if (ranks || program->ranks < 0) program->ranks = (int32_t)ranks;
    code->number = (int32_t)program->n_steps++;
    program->sharers = !program->n_tickets || program->sharers == group ? group : -1;
    raise_to(&program->n_tickets, code->as.collective.ticket + 1);
    return TCC_OK;
}

static void prepare_wait(const tcc_reader *reader, tcc_code *code) {
    code->number = (int32_t)reader->program->n_steps++;
    raise_to(&reader->program->n_tickets, code->as.wait.ticket + 1);
}

/* Checks a let.  A program that asks for its rank needs a comm, of any size.  An input has room
 * along one axis only. */
static tcc_status prepare_let(const tcc_reader *reader, const tcc_code *code) {
    bool asks = code->as.let.op == TCC_INT_RANK;
    if (asks && reader->program->ranks < 0) reader->program->ranks = 0;
    if (code->as.let.op != TCC_INT_CAPACITY) return TCC_OK;
    tcc_port_info *info = (tcc_port_info *)&reader->program->inputs[code->as.let.a];
    if (info->axis >= 0 && info->axis != code->as.let.b)
        return damaged("gives an input room along two axes");
    info->axis = (int32_t)code->as.let.b;
    return TCC_OK;
}

static tcc_status read_instruction(tcc_reader *reader, int32_t depth, tcc_code *code) {
    int64_t kind;
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_CODE_COUNT, &kind));
    code->kind = (int32_t)kind;
    TCC_RETURN_IF_ERROR(read_fields(reader, depth, code));
    if (kind == TCC_CODE_LET) return prepare_let(reader, code);
    if (kind == TCC_CODE_LAUNCH) prepare_launch(reader, code);
    if (kind == TCC_CODE_WAIT) prepare_wait(reader, code);
    if (kind == TCC_CODE_COLLECTIVE) return prepare_collective(reader, code);
    if (kind == TCC_CODE_PLAN) return prepare_plan(reader, code);
    return kind == TCC_CODE_CALL ? prepare_call(reader, code) : TCC_OK;
}

/* Returns the register that an instruction writes as its result number `index`; -1 behind the last.
 * Nested bodies do not count. */
static int64_t defined(const tcc_code *code, int64_t index) {
    for (const tcc_field *field = FIELDS[code->kind]; field->kind; field++) {
        const void *at = (const char *)&code->as + field->at;
        if (field->kind != TCC_KIND_DEFINED) continue;
        int64_t count = field->form == TCC_HAS_ONE ? 1 : ((const tcc_operands *)at)->count;
        const int64_t *numbers = field->form == TCC_HAS_ONE ? at : ((const tcc_operands *)at)->numbers;
        if (index < count) return numbers[index];
        index -= count;
    }
    return -1;
}

const tcc_body *tcc_nested_body(const tcc_code *code, int64_t index) {
    for (const tcc_field *field = FIELDS[code->kind]; field->kind; field++)
        if (field->kind == TCC_KIND_BODY && index-- == 0)
            return (const tcc_body *)(const void *)((const char *)&code->as + field->at);
    return NULL;
}

int64_t tcc_written_buffer(const tcc_code *code, int64_t index) {
    for (const tcc_field *field = FIELDS[code->kind]; field->kind; field++) {
        const void *at = (const char *)&code->as + field->at;
        if (field->kind != TCC_KIND_WRITTEN) continue;
        if (field->form == TCC_HAS_ONE && index-- == 0) return *(const int64_t *)at;
        if (field->form == TCC_HAS_ONE) continue;
        const tcc_operands *list = at;
        if (index < list->count) return list->tensors[index].buffer;
        index -= list->count;
    }
    return -1;
}

/* Returns the largest weight that a launch reads; -1 for none. */
static int32_t largest_weight(const tcc_program *program, const tcc_code *code) {
    int32_t largest = -1;
    for (int64_t i = 0; i < code->as.launch.buffers.count; i++) {
        int64_t id = code->as.launch.buffers.numbers[i];
        if (program->buffers[id].place != TCC_PLACE_WEIGHT) continue;
        if (largest < 0 || program->buffers[id].b > program->buffers[largest].b) largest = (int32_t)id;
    }
    return largest;
}

/* Tells each launch which weight the next launch of its body reads. */
static void look_ahead(const tcc_program *program, tcc_code *code, int64_t count) {
    int32_t ahead = -1;
    for (int64_t i = count - 1; i >= 0; i--) {
        if (code[i].kind != TCC_CODE_LAUNCH) continue;
        code[i].ahead = ahead;
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
#define NO_CONSTANT INT64_MIN

/* Fails where `body` writes a register that sizes the arena. */
static tcc_status refuse_arena_writes(const tcc_body *body, const uint8_t *marks) {
    const tcc_body *inner;
    for (int64_t i = 0, target; i < body->count; i++) {
        const tcc_code *code = &body->code[i];
        for (int64_t n = 0; (target = defined(code, n)) >= 0; n++)
            if (marks[target] & SIZES_ARENA)
                return damaged("changes the size of the arena while it is in use");
        for (int64_t n = 0; (inner = tcc_nested_body(code, n)); n++)
            TCC_RETURN_IF_ERROR(refuse_arena_writes(inner, marks));
    }
    return TCC_OK;
}

static bool is_prologue(const tcc_program *program, const tcc_code *code) {
    return code->kind == TCC_CODE_LET || code->kind == TCC_CODE_CHECK ||
           code->kind == TCC_CODE_PLAN ||
           (code->kind == TCC_CODE_READ &&
            program->buffers[code->as.read.buffer].place == TCC_PLACE_INPUT);
}

/* Copies sizes that are constants into the ports' descriptions. */
static void fill_static_shapes(const tcc_port_info *ports, int32_t count, const uint8_t *writes,
                               const int64_t *constants) {
    for (int32_t i = 0; i < count; i++)
        for (int32_t dim = 0; dim < ports[i].port.ndim; dim++) {
            int64_t source = ports[i].dims[dim];
            if (writes[source] == 1 && constants[source] >= 0)
                ((int64_t *)ports[i].port.shape)[dim] = constants[source];
        }
}

/* Counts how often each register is written anywhere, up to 2, and stores the constant that it
 * gets. */
static void count_writes(const tcc_body *body, uint8_t *writes, int64_t *constants) {
    const tcc_body *inner;
    for (int64_t i = 0, target; i < body->count; i++) {
        const tcc_code *code = &body->code[i];
        bool constant = code->kind == TCC_CODE_LET && code->as.let.op == TCC_INT_CONST;
        for (int64_t n = 0; (target = defined(code, n)) >= 0; n++) {
            constants[target] = constant ? code->as.let.a : NO_CONSTANT;
            if (writes[target] < 2) writes[target]++;
        }
        for (int64_t n = 0; (inner = tcc_nested_body(code, n)); n++) count_writes(inner, writes, constants);
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
    for (int64_t target; split < body.count && is_prologue(program, &body.code[split]); split++)
        for (int64_t n = 0; (target = defined(&body.code[split], n)) >= 0; n++)
            marks[target] |= WRITTEN;
    for (int64_t i = 0; i < program->n_registers; i++)
        if (marks[i] == SIZES_ARENA) return damaged("uses the arena before its size is known");
    program->prologue = (tcc_body){body.code, split};
    program->body = (tcc_body){body.code + split, body.count - split};
    count_writes(&body, writes, constants);
    fill_static_shapes(program->inputs, program->n_inputs, writes, constants);
    fill_static_shapes(program->outputs, program->n_outputs, writes, constants);
    for (int64_t i = 0; i < program->n_registers; i++)
        writes[i] = writes[i] == 1 && marks[i] & WRITTEN && constants[i] != NO_CONSTANT;
    program->fixed = writes;
    program->constants = constants;
    if (writes[program->arena] && constants[program->arena] > 0)
        program->fixed_arena = constants[program->arena];
    return refuse_arena_writes(&program->body, marks);
}
