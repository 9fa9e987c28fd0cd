/* The hash of weights. */
#ifndef TCC_SHA256_H
#define TCC_SHA256_H

#include <stddef.h>
#include <stdint.h>

__attribute__((cold)) void tcc_sha256(const uint8_t *bytes, size_t size, uint8_t out_digest[32]);

#endif
