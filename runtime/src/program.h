/* The byte form of host programs; backends/artifact/encode_program.py writes it.  All numbers are little-endian int64:
 *
 *   magic, version, words, string bytes, CRC-32 of all that follows, then
 *   registers, scratch, arena register, inputs, outputs, buffers, kernels   (counts)
 *   ports     name, dtype, rank, dim registers..., text, state               inputs, then outputs
 *   buffers   place, a, b, label
 *   kernels   name
 *   groups    count, then name, lists, ranks a list, ranks...               in TCC_PROGRAM_GROUPS alone
 *   body      count, instructions...
 *   strings   UTF-8, each ended by NUL; a string above is (offset, length); padded to 8 bytes
 *
 * dtype is code << 8 | bits.  Places, instructions and their operands: instructions.h, which is
 * written from compiler/ir/program/table.py; an instruction is its code, its single operands, the
 * counts of its lists, the items of its lists, and its bodies. */
#ifndef TCC_PROGRAM_H
#define TCC_PROGRAM_H

#include "runtime.h"

#define TCC_PROGRAM_MAGIC INT64_C(0x0147525043435474) /* "tTCCPRG\1" */
/* The version of a program with groups of ranks is TCC_PROGRAM_GROUPS, of any other program that
 * needs a comm TCC_PROGRAM_COLLECTIVES, and of all others TCC_PROGRAM_VERSION. */
enum { TCC_PROGRAM_VERSION = 9, TCC_PROGRAM_COLLECTIVES = 10, TCC_PROGRAM_GROUPS = 11 };
enum { TCC_PROGRAM_HEADER = 5, TCC_MAX_DEPTH = 64, TCC_MAX_RANK = 64 };
#define TCC_MAX_TICKETS (1 << 16)

typedef struct tcc_reader {
    const char *words;
    int64_t position, count;
    const char *strings;
    int64_t string_bytes;
    tcc_program *program;
    const tcc_kernel *kernels;
    int64_t weight_bytes;
} tcc_reader;

/* ---- reader.c ----------------------------------------------------------------------------------- */

/* Fails for a damaged program; `defect` says what is wrong with it. */
TCC_RARE tcc_status tcc_damaged(const char *defect);
TCC_RARE tcc_status tcc_read_word(tcc_reader *reader, int64_t *out_value);
/* Reads a word and fails unless low <= word < high. */
TCC_RARE tcc_status tcc_read_in(tcc_reader *reader, int64_t low, int64_t high, int64_t *out_value);
/* Reads a count of items that take at least `min_words` words each. */
TCC_RARE tcc_status tcc_read_count(tcc_reader *reader, int64_t min_words, int64_t *out_value);
TCC_RARE tcc_status tcc_read_string(tcc_reader *reader, const char **out_text);
TCC_RARE tcc_status tcc_read_dtype(tcc_reader *reader, tcc_dtype *out_dtype);
/* Reads `count` words and fails unless 0 <= word < high for each. */
TCC_RARE tcc_status tcc_read_indices(tcc_reader *reader, int64_t count, int64_t high,
                            const int64_t **out_values);
uint32_t tcc_crc32(const uint8_t *bytes, size_t size);
/* Allocates zeroed memory that tcc_program_free gives back. */
TCC_RARE tcc_status tcc_reader_allocate(tcc_reader *reader, int64_t count, size_t size, void **out_memory);
TCC_RARE tcc_status tcc_program_allocate(tcc_program *program, int64_t count, size_t size, void **out_memory);

/* ---- instructions.c ----------------------------------------------------------------------------- */

TCC_RARE tcc_status tcc_read_body(tcc_reader *reader, int32_t depth, tcc_body *out_body);

/* Returns an instruction's body number `index`; NULL behind the last body. */
TCC_RARE const tcc_body *tcc_nested_body(const tcc_code *code, int64_t index);
/* Returns the id of the buffer number `index` that an instruction writes to; -1 behind the last.
 * The result for a launch is always -1, because only its kernel knows. */
TCC_RARE int64_t tcc_written_buffer(const tcc_code *code, int64_t index);

/* Splits off the prologue, and proves that only the prologue writes the arena's registers. */
TCC_RARE tcc_status tcc_program_plan(tcc_reader *reader, tcc_body body);

#endif
