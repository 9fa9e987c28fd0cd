/* Files that an artifact holds beside its model, such as a tokenizer. */
#include <string.h>

#include "runtime.h"
#include "sha256.h"

static const tcc_asset *find_asset(const tcc_artifact *artifact, const char *name) {
    for (int32_t i = 0; i < artifact->n_assets; i++)
        if (strcmp(artifact->assets[i].name, name) == 0) return &artifact->assets[i];
    return NULL;
}

/* The bytes may be anybody's, so neither the range nor the hash is taken on trust. */
static tcc_status check_asset(const tcc_artifact *artifact, const tcc_asset *asset) {
    uint64_t room = (uint64_t)(artifact->asset_bytes_end - artifact->asset_bytes);
    if (asset->range.offset > room || asset->range.bytes > room - asset->range.offset)
        return tcc_fail(TCC_CORRUPT, "the artifact is damaged: its asset '%.128s' ends behind the assets",
                        asset->name);
    uint8_t digest[TCC_SHA256_BYTES];
    tcc_sha256(artifact->asset_bytes + asset->range.offset, (size_t)asset->range.bytes, digest);
    if (memcmp(digest, asset->sha256, sizeof digest) == 0) return TCC_OK;
    return tcc_fail(TCC_CORRUPT,
                    "the artifact is damaged: its asset '%.128s' has another hash than the one in its table: "
                    "copy the file again, or compile the model again",
                    asset->name);
}

tcc_status tcc_model_asset(const char *name, const char **out_data, size_t *out_size) {
    const tcc_artifact *artifact = &tcc_artifact_info;
    if (!name || !out_data || !out_size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "no name of an asset, or no place for it");
    const tcc_asset *asset = find_asset(artifact, name);
    if (!asset)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "model '%.128s' has no asset '%.128s': \"assets\" in its manifest names what it has",
                        artifact->name, name);
    TCC_RETURN_IF_ERROR(check_asset(artifact, asset));
    *out_data = artifact->asset_bytes + asset->range.offset;
    *out_size = (size_t)asset->range.bytes;
    return TCC_OK;
}
