/* Finds files that an artifact holds beside its model, such as a tokenizer. */
#include <string.h>

#include "runtime.h"
#include "sha256.h"

static const tcc_asset *find_asset(const tcc_assets *assets, const char *name) {
    for (int32_t i = 0; assets && i < assets->count; i++)
        if (strcmp(assets->table[i].name, name) == 0) return &assets->table[i];
    return NULL;
}

/* Checks the range and the hash of an asset. The artifact's bytes are not trusted. */
static tcc_status check_asset(const tcc_assets *assets, const tcc_asset *asset) {
    uint64_t room = (uint64_t)(assets->bytes_end - assets->bytes);
    if (asset->offset > room || asset->bytes > room - asset->offset)
        return tcc_fail(TCC_CORRUPT, "the artifact is damaged: its asset '%.128s' ends behind the assets",
                        asset->name);
    uint8_t digest[TCC_SHA256_BYTES];
    tcc_sha256(assets->bytes + asset->offset, (size_t)asset->bytes, digest);
    if (memcmp(digest, asset->sha256, sizeof digest) == 0) return TCC_OK;
    return tcc_fail(TCC_CORRUPT,
                    "the artifact is damaged: its asset '%.128s' has another hash than the one in its table: "
                    "copy the file again, or compile the model again",
                    asset->name);
}

tcc_status tcc_model_asset(const char *name, const char **out_data, size_t *out_size) {
    const tcc_assets *assets = tcc_artifact_info.assets;
    if (!name || !out_data || !out_size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "no name of an asset, or no place for it");
    const tcc_asset *asset = find_asset(assets, name);
    if (!asset)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "model '%.128s' has no asset '%.128s': \"assets\" in its manifest names what it has",
                        tcc_artifact_info.name, name);
    TCC_RETURN_IF_ERROR(check_asset(assets, asset));
    *out_data = assets->bytes + asset->offset;
    *out_size = (size_t)asset->bytes;
    return TCC_OK;
}
