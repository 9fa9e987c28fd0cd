/* Decodes a program's header, ports and buffers. Every value is checked where it is read. */
#include "program.h"

#include <string.h>

#include "collective.h"

/* ---- sections ---------------------------------------------------------------------------------- */

static tcc_status read_ports(tcc_reader *reader, int64_t count, bool output,
                             const tcc_port_info **out_ports) {
    tcc_port_info *ports = NULL;
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, count, sizeof *ports, (void **)&ports));
    for (int64_t i = 0; i < count; i++) {
        tcc_port *port = &ports[i].port;
        int64_t rank, state, *shape = NULL;
        TCC_RETURN_IF_ERROR(tcc_read_string(reader, &port->name));
        TCC_RETURN_IF_ERROR(tcc_read_dtype(reader, &port->dtype));
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_MAX_RANK + 1, &rank));
        TCC_RETURN_IF_ERROR(
            tcc_read_indices(reader, rank, reader->program->n_registers, &ports[i].dims));
        TCC_RETURN_IF_ERROR(tcc_read_string(reader, &port->text));
        TCC_RETURN_IF_ERROR(
            tcc_read_in(reader, -1, output ? reader->program->n_inputs : 0, &state));
        TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, rank, sizeof *shape, (void **)&shape));
        /* unknown, until decoding finds a constant size */
        for (int64_t dim = 0; dim < rank; dim++) shape[dim] = -1;
        port->shape = shape;
        port->ndim = (int32_t)rank;
        port->state = (int32_t)state;
        ports[i].axis = -1; /* until an instruction reads its capacity */
        bool is_list = tcc_is_opaque(port->dtype) && !tcc_is_string(port->dtype);
        if ((is_list && rank) || (tcc_is_opaque(port->dtype) && state >= 0))
            return tcc_damaged("a list of some rank, or strings that are updated in place");
        if (rank > reader->program->max_rank) reader->program->max_rank = rank;
    }
    *out_ports = ports;
    return TCC_OK;
}

static tcc_status check_buffer(tcc_reader *reader, tcc_buffer *buffer, bool *output_seen) {
    tcc_program *program = reader->program;
    switch (buffer->place) {
    case TCC_PLACE_INPUT:
        if (buffer->a < 0 || buffer->a >= program->n_inputs)
            return tcc_damaged("a buffer of no input");
        return TCC_OK;
    case TCC_PLACE_OUTPUT:
        if (buffer->a < 0 || buffer->a >= program->n_outputs || output_seen[buffer->a])
            return tcc_damaged("a buffer of no output, or two of one");
        output_seen[buffer->a] = true;
        return TCC_OK;
    case TCC_PLACE_WEIGHT:
        if (buffer->a < 0 || buffer->b < 0 || buffer->a > reader->weight_bytes ||
            buffer->b > reader->weight_bytes - buffer->a)
            return tcc_damaged("a weight outside the weights");
        return TCC_OK;
    case TCC_PLACE_ARENA:
    case TCC_PLACE_SYMMETRIC:
        if (buffer->a < 0 || buffer->a >= program->n_registers || buffer->b < 0 ||
            buffer->b >= program->n_registers)
            return tcc_damaged("an arena range without registers");
        program->n_arena_buffers++;
        /* such a buffer needs a comm */
        if (buffer->place == TCC_PLACE_SYMMETRIC) program->ranks = 0;
        return TCC_OK;
    case TCC_PLACE_STATE: {
        int64_t size = buffer->a;
        if (size < 0 || size > (INT64_C(1) << 40) || program->state_bytes > (INT64_C(1) << 40))
            return tcc_damaged("a state of no sensible size");
        buffer->a = program->state_bytes; /* holds an offset from here on */
        buffer->b = size;
        program->state_bytes += (size + 63) / 64 * 64;
        return TCC_OK;
    }
    default:
        return TCC_OK;
    }
}

static tcc_status read_buffers(tcc_reader *reader) {
    tcc_program *program = reader->program;
    tcc_buffer *buffers = NULL;
    bool *output_seen = NULL;
    int64_t *arena_buffers = NULL;
    TCC_RETURN_IF_ERROR(
        tcc_reader_allocate(reader, program->n_buffers, sizeof *buffers, (void **)&buffers));
    TCC_RETURN_IF_ERROR(
        tcc_reader_allocate(reader, program->n_outputs, sizeof(bool), (void **)&output_seen));
    for (int64_t i = 0; i < program->n_buffers; i++) {
        int64_t place;
        const char *label;
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_PLACE_COUNT, &place));
        TCC_RETURN_IF_ERROR(tcc_read_word(reader, &buffers[i].a));
        TCC_RETURN_IF_ERROR(tcc_read_word(reader, &buffers[i].b));
        TCC_RETURN_IF_ERROR(tcc_read_string(reader, &label));
        buffers[i].place = (int32_t)place;
        TCC_RETURN_IF_ERROR(check_buffer(reader, &buffers[i], output_seen));
    }
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, program->n_arena_buffers,
                                            sizeof *arena_buffers, (void **)&arena_buffers));
    for (int64_t i = 0, n = 0; i < program->n_buffers; i++)
        if (buffers[i].place == TCC_PLACE_ARENA || buffers[i].place == TCC_PLACE_SYMMETRIC)
            arena_buffers[n++] = i;
    for (int32_t i = 0; i < program->n_outputs; i++)
        if (!output_seen[i] && program->outputs[i].port.state < 0)
            return tcc_damaged("an output that nothing writes");
    program->buffers = buffers;
    program->arena_buffers = arena_buffers;
    return TCC_OK;
}

static tcc_status read_group(tcc_reader *reader, tcc_rank_group *group) {
    int32_t *ranks = NULL;
    TCC_RETURN_IF_ERROR(tcc_read_string(reader, &group->name));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 1, INT32_MAX, &group->lists));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 1, INT32_MAX, &group->length));
    int64_t count = group->lists * group->length, rank;
    if (count > reader->count - reader->position) return tcc_damaged("more ranks than words");
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, count, sizeof *ranks, (void **)&ranks));
    for (int64_t i = 0; i < count; i++) {
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, INT32_MAX, &rank));
        ranks[i] = (int32_t)rank;
    }
    group->ranks = ranks;
    return TCC_OK;
}

static tcc_status read_groups(tcc_reader *reader) {
    tcc_program *program = reader->program;
    tcc_rank_group *groups = NULL;
    int64_t count;
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 5, &count));
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, count, sizeof *groups, (void **)&groups));
    for (int64_t i = 0; i < count; i++) TCC_RETURN_IF_ERROR(read_group(reader, &groups[i]));
    program->groups = groups;
    program->n_groups = count;
    return TCC_OK;
}

static tcc_status read_sections(tcc_reader *reader, int64_t n_kernels, bool grouped) {
    tcc_program *program = reader->program;
    int64_t n_inputs, n_outputs;
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, reader->count, &program->n_registers));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, INT64_C(1) << 40, &program->scratch));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, program->n_registers, &program->arena));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 7, &n_inputs));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 7, &n_outputs));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 5, &program->n_buffers));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 2, &program->n_kernels));
    if (n_inputs > 1 << 20 || n_outputs > 1 << 20 || program->n_buffers > 1 << 24)
        return tcc_damaged("too many parts");
    if (program->n_kernels != n_kernels)
        return tcc_damaged("another number of kernels than the file");
    program->n_inputs = (int32_t)n_inputs;
    program->n_outputs = (int32_t)n_outputs;
    TCC_RETURN_IF_ERROR(read_ports(reader, n_inputs, false, &program->inputs));
    TCC_RETURN_IF_ERROR(read_ports(reader, n_outputs, true, &program->outputs));
    TCC_RETURN_IF_ERROR(read_buffers(reader));
    for (int64_t i = 0; i < n_kernels; i++) {
        const char *name;
        TCC_RETURN_IF_ERROR(tcc_read_string(reader, &name));
    }
    if (grouped) TCC_RETURN_IF_ERROR(read_groups(reader));
    tcc_body body;
    TCC_RETURN_IF_ERROR(tcc_read_body(reader, 0, &body));
    if (reader->position != reader->count) return tcc_damaged("words behind its end");
    return tcc_program_plan(reader, body);
}

tcc_status tcc_program_decode(const void *bytes, size_t size, const tcc_kernel *kernels,
                              int64_t n_kernels, int64_t weight_bytes, tcc_program *out_program) {
    memset(out_program, 0, sizeof *out_program);
    out_program->ranks = -1;
    out_program->sharers = -1;
    int64_t header[TCC_PROGRAM_HEADER];
    if (size < sizeof header) return tcc_damaged("no header");
    memcpy(header, bytes, sizeof header);
    if (header[0] != TCC_PROGRAM_MAGIC) return tcc_damaged("no magic number");
    bool grouped = header[1] == TCC_PROGRAM_GROUPS;
    if (!grouped && header[1] != TCC_PROGRAM_VERSION && header[1] != TCC_PROGRAM_COLLECTIVES)
        return tcc_fail(TCC_UNSUPPORTED,
                        "the program has version %lld, this runtime knows versions %d, %d and %d: "
                        "compile the model again",
                        (long long)header[1], TCC_PROGRAM_VERSION, TCC_PROGRAM_COLLECTIVES,
                        TCC_PROGRAM_GROUPS);
    int64_t room = (int64_t)size / 8;
    if (size % 8 || header[2] < TCC_PROGRAM_HEADER || header[2] > room || header[3] < 0 ||
        header[3] != (room - header[2]) * 8)
        return tcc_damaged("another size than it says");
    if (header[4] != tcc_crc32((const uint8_t *)bytes + sizeof header, size - sizeof header))
        return tcc_damaged("a wrong checksum");
    tcc_reader reader = {.words = bytes,
                         .position = TCC_PROGRAM_HEADER,
                         .count = header[2],
                         .strings = (const char *)bytes + header[2] * 8,
                         .string_bytes = header[3],
                         .program = out_program,
                         .kernels = kernels,
                         .weight_bytes = weight_bytes};
    tcc_status status = read_sections(&reader, n_kernels, grouped);
    if (status != TCC_OK) tcc_program_free(out_program);
    return status;
}
