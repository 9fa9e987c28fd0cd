/* Reads a file of records (size, bytes of a table of GPU kernels), decodes each for three kernels,
 * and reads everything that a good table promises.  Prints "<decoded> <of>".  Built with
 * sanitizers.  With a second argument each record is tried while the first, second, ... allocation
 * fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/images.h"

extern int64_t tcc_test_fail_after;
static volatile int64_t checksum;

tcc_op tcc_op_find(const char *name) { return (void)name, NULL; }

static void touch(const tcc_gpu_images *images) {
    static const char *const archs[] = {"sm_90", "sm_75", "sm_", "gfx942:xnack-", "", "sm_99999999999"};
    long rank = 0;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        for (int portable = 0; portable < 2; portable++)
            checksum += tcc_gpu_images_choose(images, archs[i], portable, &rank) != NULL && rank;
    for (int64_t i = 0; i < images->n_images; i++)
        checksum += images->images[i].bytes[0] + images->images[i].bytes[images->images[i].size - 1];
    for (int64_t v = 0; v < images->n_variants; v++) {
        checksum += (int64_t)(strlen(images->variants[v].arch) + strlen(images->variants[v].needs));
        for (int64_t k = 0; k < images->n_kernels; k++) {
            const tcc_gpu_kernel *kernel = &images->variants[v].kernels[k];
            checksum += (int64_t)strlen(kernel->symbol) + images->images[kernel->image].size;
            for (int32_t p = 0; p < kernel->n_params; p++) checksum += kernel->params[p];
            for (int32_t m = 0; m < kernel->n_maps; m++) {
                const tcc_gpu_map *map = &kernel->maps[m];
                if (map->buffer >= kernel->n_pointers || map->rank > TCC_MAP_RANK) abort();
                for (int32_t i = 0; i < map->rank; i++) {
                    if (!map->sizes[i] || !map->box[i]) abort();
                    if (i && (!map->strides[i - 1] || map->strides[i - 1] % 16)) abort();
                }
            }
            if (images->variants[v].form == TCC_FORM_PTX)
                checksum += (int64_t)strlen(images->images[kernel->image].bytes);
        }
    }
}

static tcc_status decode(const char *bytes, size_t size, int *decoded) {
    tcc_gpu_images images;
    tcc_status status = tcc_gpu_images_decode(bytes, size, 3, &images);
    if (status != TCC_OK) return *tcc_last_error() ? status : (abort(), status);
    ++*decoded;
    touch(&images);
    tcc_gpu_images_free(&images);
    return TCC_OK;
}

int main(int argc, char **argv) {
    int decoded = 0, of = 0;
    int64_t size;
    FILE *file = fopen(argv[1], "rb");
    while (file && fread(&size, 8, 1, file) == 1) {
        char *bytes = malloc(size ? (size_t)size : 1); /* exact, so that a sanitizer sees reads
                                                          beyond it */
        if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size) return 1;
        tcc_status status = TCC_OUT_OF_MEMORY;
        for (int n = 1; argc > 2 && status == TCC_OUT_OF_MEMORY; n++, of++) {
            tcc_test_fail_after = n;
            status = decode(bytes, (size_t)size, &decoded);
        }
        tcc_test_fail_after = -1;
        if (argc <= 2) decode(bytes, (size_t)size, &decoded);
        of++;
        free(bytes);
    }
    if (file) fclose(file);
    printf("%d %d\n", decoded, of);
    return 0;
}
