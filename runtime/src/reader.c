/* Reads a program's words, checks each where it is read, and keeps the memory that decoding
 * allocates. */
#include "program.h"

#include <string.h>

tcc_status tcc_damaged(const char *defect) {
    return tcc_fail(TCC_CORRUPT, "the artifact is damaged: its program has %s", defect);
}

/* ---- words ---------------------------------------------------------------------------------- */

tcc_status tcc_read_word(tcc_reader *reader, int64_t *out_value) {
    *out_value = 0;
    if (reader->position >= reader->count) return tcc_damaged("fewer words than it needs");
    memcpy(out_value, reader->words + reader->position * 8, 8);
    reader->position++;
    return TCC_OK;
}

tcc_status tcc_read_in(tcc_reader *reader, int64_t low, int64_t high, int64_t *out_value) {
    TCC_RETURN_IF_ERROR(tcc_read_word(reader, out_value));
    if (*out_value < low || *out_value >= high) return tcc_damaged("a number out of range");
    return TCC_OK;
}

tcc_status tcc_read_count(tcc_reader *reader, int64_t min_words, int64_t *out_value) {
    TCC_RETURN_IF_ERROR(tcc_read_word(reader, out_value));
    if (*out_value < 0 || *out_value > (reader->count - reader->position) / min_words)
        return tcc_damaged("a count larger than itself");
    return TCC_OK;
}

/* Returns true if all of the text is UTF-8 with the shortest form of each code point. */
static bool is_text(const uint8_t *text, int64_t length) {
    static const uint32_t min_codes[4] = {0, 0x80, 0x800, 0x10000};
    for (int64_t i = 0; i < length; i++) {
        int more = text[i] < 0x80 ? 0 : text[i] < 0xE0 ? 1 : text[i] < 0xF0 ? 2 : 3;
        uint32_t point = more ? text[i] & (0x3Fu >> more) : text[i];
        if ((more && text[i] < 0xC0) || text[i] > 0xF7) return false;
        for (int remaining = more; remaining; remaining--) { /* the final 0 byte is no continuation byte */
            if ((text[++i] & 0xC0) != 0x80) return false;
            point = point << 6 | (text[i] & 0x3Fu);
        }
        if (point < min_codes[more] || point > 0x10FFFF || point >> 11 == 0x1B) return false;
    }
    return true;
}

tcc_status tcc_read_string(tcc_reader *reader, const char **out_text) {
    int64_t offset, length;
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, reader->string_bytes, &offset));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, reader->string_bytes - offset, &length));
    *out_text = reader->strings + offset;
    if ((*out_text)[length]) return tcc_damaged("a string without an end");
    return is_text((const uint8_t *)*out_text, length) ? TCC_OK : tcc_damaged("a text that is none");
}

tcc_status tcc_read_dtype(tcc_reader *reader, tcc_dtype *out_dtype) {
    /* by DLPack's code: the sum of the widths in compiler/ir/types.py */
    static const uint8_t widths[] = {126, 126, 112, 192, 16, 0, 8, 0, 0, 0, 8, 8, 8, 8, 8, 0, 0, 4};
    int64_t value;
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 1, 1 << 16, &value));
    *out_dtype = (tcc_dtype){(uint8_t)(value >> 8), (uint8_t)(value & 0xFF), 1};
    unsigned code = out_dtype->code, bits = out_dtype->bits;
    if (code >= sizeof widths || bits & (bits - 1) || !(widths[code] & bits))
        return tcc_damaged("an unknown element type");
    return TCC_OK;
}

tcc_status tcc_read_indices(tcc_reader *reader, int64_t count, int64_t high,
                            const int64_t **out_values) {
    int64_t *values = NULL;
    TCC_RETURN_IF_ERROR(tcc_reader_allocate(reader, count, sizeof *values, (void **)&values));
    for (int64_t i = 0; i < count; i++) TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, high, &values[i]));
    *out_values = values;
    return TCC_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The header in front of each allocation, which makes a list of them. */
typedef union header {
    void *next;
    char room[16];
} header;

tcc_status tcc_program_allocate(tcc_program *program, int64_t count, size_t size, void **out_memory) {
    header *memory = tcc_allocate_zero(1, (size_t)count * size + sizeof *memory);
    if (!memory) return TCC_OUT_OF_MEMORY;
    memory->next = program->memory;
    program->memory = memory;
    *out_memory = memory + 1;
    return TCC_OK;
}

tcc_status tcc_reader_allocate(tcc_reader *reader, int64_t count, size_t size, void **out_memory) {
    return tcc_program_allocate(reader->program, count, size, out_memory);
}

void tcc_program_free(tcc_program *program) {
    while (program->memory) {
        header *memory = program->memory;
        program->memory = memory->next;
        tcc_free(memory);
    }
}

/* ---- checksum ----------------------------------------------------------------------------------- */

uint32_t tcc_crc32(const uint8_t *bytes, size_t size) {
    uint32_t table[16], crc = 0xFFFFFFFFu;
    for (uint32_t i = 0; i < 16; i++) {
        table[i] = i;
        for (int bit = 0; bit < 4; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320u : 0);
    }
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}
