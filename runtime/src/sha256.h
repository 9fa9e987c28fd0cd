/* Declares the hash of weights and of the proofs that ranks exchange (sha256.c). */
#ifndef TCC_SHA256_H
#define TCC_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { TCC_SHA256_BYTES = 32, TCC_SHA256_BLOCK = 64 };

__attribute__((cold)) void tcc_sha256(const void *bytes, size_t n,
                                      uint8_t out_digest[TCC_SHA256_BYTES]);

/* A hash in progress: it hashes all bytes added between begin and end. */
typedef struct tcc_hash {
    uint32_t state[8]; /* undefined before the first bytes */
    uint64_t bytes;
    uint8_t block[TCC_SHA256_BLOCK];
} tcc_hash;

static inline void tcc_hash_begin(tcc_hash *hash) { hash->bytes = 0; }
__attribute__((cold)) void tcc_hash_add(tcc_hash *hash, const void *bytes, size_t n);
static inline void tcc_hash_end(tcc_hash *hash, uint8_t out_digest[TCC_SHA256_BYTES]) {
    uint64_t bits = __builtin_bswap64(hash->bytes * 8);
    tcc_hash_add(hash, "\x80", 1);
    while (hash->bytes % TCC_SHA256_BLOCK != TCC_SHA256_BLOCK - sizeof bits)
        tcc_hash_add(hash, "", 1);
    tcc_hash_add(hash, &bits, sizeof bits);
    for (int i = 0; i < 8; i++) hash->state[i] = __builtin_bswap32(hash->state[i]);
    memcpy(out_digest, hash->state, TCC_SHA256_BYTES);
}

#endif
