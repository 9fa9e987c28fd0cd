/* Computes SHA-256 (FIPS 180-4). The code is small rather than fast. */
#include "sha256.h"

#include <pthread.h>
#include <string.h>

static uint32_t constants[64];

static uint32_t rotated(uint32_t word, int by) { return word >> by | word << (32 - by); }

/* Computes the constants: the first 32 fractional bits of the cube roots of the first 64 primes. */
__attribute__((cold)) static void make_constants(void) {
    for (uint32_t count = 0, prime = 2; count < 64; prime++) {
        uint32_t by = 2;
        while (prime % by) by++;
        if (by != prime) continue;
        uint64_t root = 0;
        for (uint64_t bit = UINT64_C(1) << 34; bit; bit >>= 1) {
            unsigned __int128 tried = root | bit;
            if (tried * tried * tried <= (unsigned __int128)prime << 96) root |= bit;
        }
        constants[count++] = (uint32_t)root;
    }
}

/* Adds a block to the state. The registers' names rotate instead of their values: in each step a is
 * at[0] and h is at[7]. */
static void mix(uint32_t state[8], const uint8_t block[64]) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint32_t words[64], room[72], *at = room + 64;
    pthread_once(&once, make_constants);
    memcpy(at, state, 32);
    for (int i = 0; i < 64; i++) {
        if (i < 16) {
            memcpy(&words[i], block + 4 * i, 4);
            words[i] = __builtin_bswap32(words[i]);
        } else {
            uint32_t a = words[i - 15], b = words[i - 2];
            words[i] = words[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + words[i - 7] +
                       (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
        }
        uint32_t add = at[7] + (rotated(at[4], 6) ^ rotated(at[4], 11) ^ rotated(at[4], 25)) +
                       ((at[4] & at[5]) ^ (~at[4] & at[6])) + constants[i] + words[i];
        at[3] += add;
        at[-1] = add + (rotated(at[0], 2) ^ rotated(at[0], 13) ^ rotated(at[0], 22)) +
                 ((at[0] & at[1]) ^ (at[0] & at[2]) ^ (at[1] & at[2]));
        at--;
    }
    for (int i = 0; i < 8; i++) state[i] += at[i];
}

void tcc_hash_add(tcc_hash *hash, const void *bytes, size_t n) {
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *next = bytes;
    if (hash->bytes == 0) memcpy(hash->state, first, sizeof first);
    while (n > 0) {
        size_t at = hash->bytes % TCC_SHA256_BLOCK, part = TCC_SHA256_BLOCK - at;
        if (part > n) part = n;
        memcpy(hash->block + at, next, part);
        hash->bytes += part;
        next += part;
        n -= part;
        if (hash->bytes % TCC_SHA256_BLOCK == 0) mix(hash->state, hash->block);
    }
}

void tcc_sha256(const void *bytes, size_t n, uint8_t out_digest[TCC_SHA256_BYTES]) {
    tcc_hash hash;
    tcc_hash_begin(&hash);
    tcc_hash_add(&hash, bytes, n);
    tcc_hash_end(&hash, out_digest);
}
