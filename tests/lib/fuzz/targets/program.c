/* A fuzz target: host programs in an artifact's encoding, decoded and run.
 *
 * The encoded bytes of a program are mostly zeros under a checksum. The fuzzer's input is denser:
 * the number of words (2 bytes), the words behind the header (2 bytes each; the smallest value
 * stands for 8 more bytes), and the strings. This file computes the header and the checksum. */
#define _GNU_SOURCE
#include <string.h>

#include "../../../runtime/driver.h"
#include "program.h"

const tcc_artifact tcc_artifact_info = {.name = "program"};

extern int64_t tcc_test_trips;

enum { MOST_WORDS = 1 << 12, KERNELS = 7, HEADER = TCC_PROGRAM_HEADER };

static int64_t unpack(const uint8_t *data, size_t size, size_t *at) {
    int16_t word = 0;
    int64_t wide = 0;
    if (*at + 2 > size) return 0;
    memcpy(&word, data + *at, 2);
    *at += 2;
    if (word != INT16_MIN) return word;
    if (*at + 8 > size) return 0;
    memcpy(&wide, data + *at, 8);
    *at += 8;
    return wide;
}

/* Returns the program's bytes in an exact allocation, so that a sanitizer sees reads beyond it;
 * NULL if there are too many words. */
static char *seal(const uint8_t *data, size_t size, size_t *out_size) {
    int64_t words[HEADER + MOST_WORDS];
    size_t at = 0;
    int64_t count = unpack(data, size, &at);
    if (count < 0 || count > MOST_WORDS) return NULL;
    for (int64_t i = 0; i < count; i++) words[HEADER + i] = unpack(data, size, &at);
    size_t head = (size_t)(HEADER + count) * 8, text = (size - at) / 8 * 8;
    char *bytes = malloc(head + text);
    memcpy(bytes + HEADER * 8, words + HEADER, (size_t)count * 8);
    if (text) memcpy(bytes + head, data + at, text);
    int64_t header[HEADER] = {TCC_PROGRAM_MAGIC, TCC_PROGRAM_VERSION, HEADER + count, (int64_t)text};
    header[4] = tcc_crc32((const uint8_t *)bytes + HEADER * 8, head + text - HEADER * 8);
    memcpy(bytes, header, sizeof header);
    *out_size = head + text;
    return bytes;
}

static tcc_status run(const tcc_model *model) {
    tcc_instance *instance = NULL;
    TCC_RETURN_IF_ERROR(tcc_instance_create((tcc_model *)model, TCC_POISON, &instance));
    tcc_tensor *inputs = make_inputs(model);
    void *blocks = NULL;
    tcc_allocator allocator = {&blocks, allocate};
    tcc_test_trips = 1000;
    tcc_status status =
        tcc_instance_run(instance, inputs, model->program.n_inputs, NULL, 0, &allocator, NULL);
    free_all(blocks);
    free_inputs(model, inputs);
    tcc_instance_destroy(instance);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tcc_model model;
    size_t bytes = 0;
    char *program = seal(data, size, &bytes);
    if (!program) return 0;
    setenv("TCC_MEMORY", "1M", 1);
    setenv("TCC_NUM_THREADS", "1", 1);
    tcc_status status = decode(program, (int64_t)bytes, KERNELS, &model);
    if (status == TCC_OK) {
        status = run(&model);
        tcc_program_free(&model.program);
    }
    if (status != TCC_OK && !*tcc_last_error()) abort();
    free(program);
    return 0;
}
