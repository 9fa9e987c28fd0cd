/* The byte form of a GPU model's kernels; backends/artifact/gpu_binaries.py writes it.  It lies behind the weights.
 * All numbers are little-endian int64:
 *
 *   magic, version, words, string bytes, CRC-32 of words and strings behind the header, blob bytes
 *   platform, flags, kernels, images, variants
 *   images    offset, size                                  bytes of the blob
 *   variants  architecture, form, the driver that it needs, then for each kernel in order:
 *             symbol, image, shared bytes, threads of a block, whether programs stay, count,
 *             parameter kinds..., for each that is a tensor map: place of its buffer among the
 *             launch's, CUDA's number of the element type, of the swizzle, rank, sizes...,
 *             strides in bytes but the last..., box...; outermost first
 *   strings   UTF-8, each ended by NUL; a string above is (offset, length); padded to 64 bytes
 *   blob      the images, each on a multiple of 64 bytes from the table's beginning */
#ifndef TCC_GPU_IMAGES_H
#define TCC_GPU_IMAGES_H

#include "driver.h"

#define TCC_IMAGES_MAGIC INT64_C(0x01474D4943435474) /* "tTCCIMG\1" */
enum { TCC_IMAGES_VERSION = 3, TCC_IMAGES_HEADER = 6 };

/* The forms of code: machine code of CUDA, assembly of CUDA, machine code of HIP. */
enum { TCC_FORM_CUBIN, TCC_FORM_PTX, TCC_FORM_HSACO, TCC_FORM_COUNT };
enum {
    TCC_PARAM_POINTER,
    TCC_PARAM_INT64,
    TCC_PARAM_NULL,
    TCC_PARAM_TENSOR_MAP,
    TCC_PARAM_COUNT
};
/* Tensor maps: the most axes, and the driver's numbers of the types of elements. */
enum { TCC_MAP_RANK = 5, TCC_MAP_U8 = 0, TCC_MAP_F16 = 6, TCC_MAP_F32 = 7, TCC_MAP_BF16 = 9 };
enum { TCC_IMAGES_HOST_CALLS = 1 }; /* flag: the program may call functions on the host */

typedef struct tcc_gpu_image {
    const char *bytes; /* in the table's own memory, because decoding copies no image */
    int64_t size;
} tcc_gpu_image;

/* A tensor inside an array of a launch, with axes in the driver's order, innermost first. */
typedef struct tcc_gpu_map {
    int32_t buffer, dtype, swizzle, rank;
    int32_t element; /* bytes of an element of type `dtype` */
    uint64_t sizes[TCC_MAP_RANK];       /* in elements */
    uint64_t strides[TCC_MAP_RANK - 1]; /* in bytes, from the second axis on */
    uint32_t box[TCC_MAP_RANK];
} tcc_gpu_map;

typedef struct tcc_gpu_kernel {
    const char *symbol;
    int64_t image;
    uint32_t shared, threads;
    bool stays; /* each program takes many tiles, so no more programs are started than the device
                   can hold */
    int32_t n_params, n_pointers, n_ints, n_maps;
    const int64_t *params;
    const tcc_gpu_map *maps; /* in the order of the parameters */
} tcc_gpu_kernel;

typedef struct tcc_gpu_variant {
    const char *arch;  /* such as sm_90, sm_90a, gfx942 */
    const char *needs; /* the oldest driver that can run it, for messages */
    int32_t form;
    const tcc_gpu_kernel *kernels;
} tcc_gpu_variant;

typedef struct tcc_gpu_images {
    int32_t platform;
    int64_t flags, n_kernels, n_images, n_variants;
    const tcc_gpu_image *images;
    const tcc_gpu_variant *variants;
    void *memory;
} tcc_gpu_images;

/* Decodes and checks `bytes`.  Every index, size and offset in the result is in range. */
tcc_status tcc_gpu_images_decode(const void *bytes, size_t size, int64_t n_kernels,
                                 tcc_gpu_images *out_images);
void tcc_gpu_images_free(tcc_gpu_images *images);

/* Returns the variant that suits a device of architecture `arch` best: its own machine code, else
 * the newest older machine code of its generation, else the newest assembly; NULL for none.  With
 * `portable` only assembly counts.  `out_rank` compares the choices of several tables: larger is
 * better, 0 means none. */
const tcc_gpu_variant *tcc_gpu_images_choose(const tcc_gpu_images *images, const char *arch,
                                             bool portable, long *out_rank);

#endif
