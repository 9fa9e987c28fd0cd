/* Decodes the table of kernels and chooses the variant for a device. */
#include "images.h"

#include <stdlib.h>
#include <string.h>

#include "../program.h"

static tcc_status damaged(const char *defect) {
    return tcc_fail(TCC_CORRUPT, "the artifact is damaged: its table of GPU kernels has %s", defect);
}

/* ---- sections ------------------------------------------------------------------------------------ */

typedef struct source {
    tcc_reader reader;
    tcc_program memory; /* holds the reader's allocations */
    const char *blob;
    int64_t blob_bytes;
} source;

static tcc_status read_images(source *from, tcc_gpu_images *images) {
    tcc_gpu_image *list = NULL;
    tcc_reader *reader = &from->reader;
    TCC_RETURN_IF_ERROR(
        tcc_reader_allocate(reader, images->n_images, sizeof *list, (void **)&list));
    for (int64_t i = 0; i < images->n_images; i++) {
        int64_t offset, size;
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, from->blob_bytes, &offset));
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 1, from->blob_bytes - offset + 1, &size));
        list[i] = (tcc_gpu_image){from->blob + offset, size};
    }
    images->images = list;
    return TCC_OK;
}

/* Returns the bytes of an element of a tensor map; 0 for types that no kernel has. */
static int32_t map_element(int64_t dtype) {
    switch (dtype) {
    case TCC_MAP_U8: return 1;
    case TCC_MAP_F16:
    case TCC_MAP_BF16: return 2;
    case TCC_MAP_F32: return 4;
    default: return 0;
    }
}

/* Reads a tensor map.  It refuses the sizes that the driver would refuse, so that a damaged file
 * gets a clear message. */
static tcc_status read_map(source *from, int32_t n_pointers, int32_t platform, tcc_gpu_map *map) {
    tcc_reader *reader = &from->reader;
    enum { MOST_BOX = 256 };
    int64_t buffer, dtype, swizzle, rank, value;
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, n_pointers, &buffer));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_MAP_BF16 + 1, &dtype));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, 4, &swizzle));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 1, TCC_MAP_RANK + 1, &rank));
    map->element = map_element(dtype);
    if (!map->element) return damaged("a tensor map of an unknown type");
    if (platform != TCC_PLATFORM_CUDA) return damaged("a tensor map of another platform");
    for (int64_t i = rank; i-- > 0;) {
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 1, INT64_C(1) << 32, &value));
        map->sizes[i] = (uint64_t)value;
    }
    for (int64_t i = rank - 1; i-- > 0;) {
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 16, INT64_C(1) << 40, &value));
        if (value % 16) return damaged("a tensor map of uneven rows");
        map->strides[i] = (uint64_t)value;
    }
    for (int64_t i = rank; i-- > 0;) {
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 1, MOST_BOX + 1, &value));
        map->box[i] = (uint32_t)value;
    }
    /* a swizzled row of a box lies in one span, and copies are of 16 bytes */
    int64_t row = (int64_t)map->box[0] * map->element;
    if (row % 16 || (swizzle && row > 16 << swizzle)) return damaged("a box of uneven rows");
    map->buffer = (int32_t)buffer;
    map->dtype = (int32_t)dtype;
    map->swizzle = (int32_t)swizzle;
    map->rank = (int32_t)rank;
    return TCC_OK;
}

static tcc_status read_maps(source *from, int32_t platform, tcc_gpu_kernel *kernel) {
    tcc_gpu_map *maps = NULL;
    TCC_RETURN_IF_ERROR(
        tcc_reader_allocate(&from->reader, kernel->n_maps, sizeof *maps, (void **)&maps));
    for (int32_t i = 0; i < kernel->n_maps; i++)
        TCC_RETURN_IF_ERROR(read_map(from, kernel->n_pointers, platform, &maps[i]));
    kernel->maps = maps;
    return TCC_OK;
}

static tcc_status read_kernel(source *from, const tcc_gpu_images *images, int32_t form,
                              tcc_gpu_kernel *kernel) {
    tcc_reader *reader = &from->reader;
    int64_t shared, threads, stays, count;
    TCC_RETURN_IF_ERROR(tcc_read_string(reader, &kernel->symbol));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, images->n_images, &kernel->image));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, 1 << 24, &shared));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 1, 1025, &threads));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, 2, &stays));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 1, &count));
    TCC_RETURN_IF_ERROR(tcc_read_indices(reader, count, TCC_PARAM_COUNT, &kernel->params));
    if (count > 1 << 12) return damaged("a kernel of too many parameters");
    for (int64_t i = 0; i < count; i++) {
        kernel->n_pointers += kernel->params[i] == TCC_PARAM_POINTER;
        kernel->n_ints += kernel->params[i] == TCC_PARAM_INT64;
        kernel->n_maps += kernel->params[i] == TCC_PARAM_TENSOR_MAP;
    }
    TCC_RETURN_IF_ERROR(read_maps(from, images->platform, kernel));
    if (stays && images->platform != TCC_PLATFORM_CUDA) return damaged("a program that stays");
    kernel->stays = stays;
    kernel->n_params = (int32_t)count;
    kernel->shared = (uint32_t)shared;
    kernel->threads = (uint32_t)threads;
    const tcc_gpu_image *image = &images->images[kernel->image];
    /* the driver takes assembly as a string */
    if (form == TCC_FORM_PTX && image->bytes[image->size - 1]) return damaged("text without an end");
    return TCC_OK;
}

static tcc_status read_variants(source *from, tcc_gpu_images *images) {
    tcc_reader *reader = &from->reader;
    tcc_gpu_variant *list = NULL;
    TCC_RETURN_IF_ERROR(
        tcc_reader_allocate(reader, images->n_variants, sizeof *list, (void **)&list));
    for (int64_t i = 0; i < images->n_variants; i++) {
        tcc_gpu_kernel *kernels = NULL;
        int64_t form;
        TCC_RETURN_IF_ERROR(tcc_read_string(reader, &list[i].arch));
        TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_FORM_COUNT, &form));
        TCC_RETURN_IF_ERROR(tcc_read_string(reader, &list[i].needs));
        if ((form == TCC_FORM_HSACO) != (images->platform == TCC_PLATFORM_HIP))
            return damaged("code of another platform");
        if (images->n_kernels > (reader->count - reader->position) / 7)
            return damaged("fewer kernels than the program");
        TCC_RETURN_IF_ERROR(
            tcc_reader_allocate(reader, images->n_kernels, sizeof *kernels, (void **)&kernels));
        for (int64_t k = 0; k < images->n_kernels; k++)
            TCC_RETURN_IF_ERROR(read_kernel(from, images, (int32_t)form, &kernels[k]));
        list[i].form = (int32_t)form;
        list[i].kernels = kernels;
    }
    images->variants = list;
    return TCC_OK;
}

static tcc_status read_table(source *from, int64_t n_kernels, tcc_gpu_images *images) {
    tcc_reader *reader = &from->reader;
    int64_t platform;
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, TCC_PLATFORM_COUNT, &platform));
    TCC_RETURN_IF_ERROR(tcc_read_in(reader, 0, 2 * TCC_IMAGES_HOST_CALLS, &images->flags));
    TCC_RETURN_IF_ERROR(tcc_read_word(reader, &images->n_kernels));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 2, &images->n_images));
    TCC_RETURN_IF_ERROR(tcc_read_count(reader, 5, &images->n_variants));
    if (images->n_kernels != n_kernels) return damaged("another number of kernels than the program");
    images->platform = (int32_t)platform;
    TCC_RETURN_IF_ERROR(read_images(from, images));
    TCC_RETURN_IF_ERROR(read_variants(from, images));
    return reader->position == reader->count ? TCC_OK : damaged("words behind its end");
}

tcc_status tcc_gpu_images_decode(const void *bytes, size_t size, int64_t n_kernels,
                                 tcc_gpu_images *out_images) {
    memset(out_images, 0, sizeof *out_images);
    int64_t header[TCC_IMAGES_HEADER], room = (int64_t)(size / 8);
    if (size < sizeof header) return damaged("no header");
    memcpy(header, bytes, sizeof header);
    if (header[0] != TCC_IMAGES_MAGIC) return damaged("no magic number");
    if (header[1] != TCC_IMAGES_VERSION)
        return tcc_fail(TCC_UNSUPPORTED,
                        "the table of GPU kernels has version %lld, this runtime knows version %d: "
                        "compile the model again",
                        (long long)header[1], TCC_IMAGES_VERSION);
    if (header[2] < TCC_IMAGES_HEADER || header[2] > room || header[3] < 0 ||
        header[3] > (int64_t)size - header[2] * 8)
        return damaged("another size than it says");
    int64_t front = header[2] * 8 + header[3], begin = (front + 63) / 64 * 64;
    if (begin > (int64_t)size || header[5] < 0 || header[5] != (int64_t)size - begin)
        return damaged("another size than it says");
    if (header[4] != tcc_crc32((const uint8_t *)bytes + sizeof header,
                               (size_t)front - sizeof header))
        return damaged("a wrong checksum");
    /* copies the table's front, because names and parameters outlive the file's mapping */
    source from = {.blob = (const char *)bytes + begin, .blob_bytes = header[5]};
    from.reader = (tcc_reader){.position = TCC_IMAGES_HEADER,
                               .count = header[2],
                               .string_bytes = header[3],
                               .program = &from.memory};
    char *copy = NULL;
    tcc_status status = tcc_reader_allocate(&from.reader, front, 1, (void **)&copy);
    if (status == TCC_OK) {
        memcpy(copy, bytes, (size_t)front);
        from.reader.words = copy;
        from.reader.strings = copy + header[2] * 8;
        status = read_table(&from, n_kernels, out_images);
    }
    out_images->memory = from.memory.memory;
    if (status != TCC_OK) tcc_gpu_images_free(out_images);
    return status;
}

void tcc_gpu_images_free(tcc_gpu_images *images) {
    tcc_program memory = {.memory = images->memory};
    tcc_program_free(&memory);
    memset(images, 0, sizeof *images);
}

/* ---- the choice ------------------------------------------------------------------------------------ */

/* Parses "sm_90a" as 90 and 'a'.  A suffix ties code to exactly that architecture.  Returns 0 for
 * other names. */
static long cuda_number(const char *arch, char *out_suffix) {
    if (strncmp(arch, "sm_", 3) || arch[3] < '1' || arch[3] > '9') return 0;
    char *end = NULL;
    long number = strtol(arch + 3, &end, 10);
    *out_suffix = *end;
    return number > 0 && number < 10000 && (!*end || !end[1]) ? number : 0;
}

/* Returns how well code for `arch` suits a CUDA device; 0: not at all. */
static long cuda_rank(const tcc_gpu_variant *variant, const char *device) {
    char suffix = 0, none = 0;
    long code = cuda_number(variant->arch, &suffix), device_code = cuda_number(device, &none);
    if (!code || code > device_code || (suffix && code != device_code)) return 0;
    if (variant->form == TCC_FORM_PTX) return code * 2 + (suffix != 0);
    bool same = code / 10 == device_code / 10;
    return same ? 100000 + code * 2 + (suffix != 0) : 0;
}

static long hip_rank(const tcc_gpu_variant *variant, const char *device) {
    size_t length = strcspn(device, ":"); /* after the colon come switches such as xnack */
    return strlen(variant->arch) == length && !strncmp(variant->arch, device, length);
}

const tcc_gpu_variant *tcc_gpu_images_choose(const tcc_gpu_images *images, const char *arch,
                                             bool portable, long *out_rank) {
    const tcc_gpu_variant *best = NULL;
    long best_rank = 0;
    for (int64_t i = 0; i < images->n_variants; i++) {
        const tcc_gpu_variant *variant = &images->variants[i];
        if (portable && variant->form != TCC_FORM_PTX) continue;
        long rank = images->platform == TCC_PLATFORM_HIP ? hip_rank(variant, arch)
                                                         : cuda_rank(variant, arch);
        if (rank > best_rank) {
            best_rank = rank;
            best = variant;
        }
    }
    *out_rank = best_rank;
    return best;
}
