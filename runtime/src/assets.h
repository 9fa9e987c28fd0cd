/* assets.c: files that an artifact holds beside its model, such as a tokenizer. */
#ifndef TCC_ASSETS_H
#define TCC_ASSETS_H

#include "tcc.h"

/* An asset file: its name, and the range of the artifact's bytes that holds it. */
typedef struct tcc_asset {
    const char *name;
    uint64_t offset, bytes;
    uint8_t sha256[32];
} tcc_asset;

typedef struct tcc_assets {
    const tcc_asset *table;
    int32_t count;
    const char *bytes, *bytes_end;
} tcc_assets;

tcc_status tcc_model_asset(const char *name, const char **out_data, size_t *out_size);

#endif
