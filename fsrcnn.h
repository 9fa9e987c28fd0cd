/* fsrcnn: a model compiled by tcc.
 *
 * fsrcnn_run computes the outputs from the inputs.  All arrays are the caller's,
 * contiguous and row-major; they do not overlap, and nothing is kept after a call.
 *
 * luma: input luma, f32[1, 1, 128, 128], 65536 bytes, read
 * image: output image, f32[1, 1, 256, 256], 262144 bytes, written
 *
 * It takes 4456448 bytes of static memory and 51648 bytes of weights, which are
 * in the C file.  One call at a time; no heap, no threads.
 * Returns 0.
 */
#ifndef TCC_MODEL_FSRCNN_H
#define TCC_MODEL_FSRCNN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

int fsrcnn_run(const float *luma, float *image);

#ifdef __cplusplus
}
#endif

#endif
