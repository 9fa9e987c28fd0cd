/* SHA-256 (FIPS 180-4), written to be small: only who asks for it pays. */
#include "sha256.h"

#include <string.h>

static uint32_t turned(uint32_t word, int by) { return word >> by | word << (32 - by); }

/* The first 32 bits behind the point of the cube root of each of the first 64 primes. */
static void make_constants(uint32_t constants[64]) {
    for (uint32_t made = 0, prime = 2; made < 64; prime++) {
        uint32_t by = 2;
        while (prime % by) by++;
        if (by != prime) continue;
        uint64_t root = 0;
        for (uint64_t bit = UINT64_C(1) << 34; bit; bit >>= 1) {
            unsigned __int128 tried = root | bit;
            if (tried * tried * tried <= (unsigned __int128)prime << 96) root |= bit;
        }
        constants[made++] = (uint32_t)root;
    }
}

/* The registers stand still and their names move: a is at[0] of the step, h at[7]. */
static void mix(uint32_t state[8], const uint32_t constants[64], const uint8_t block[64]) {
    uint32_t words[64], room[72], *at = room + 64;
    memcpy(at, state, 32);
    for (int i = 0; i < 64; i++) {
        if (i < 16) {
            memcpy(&words[i], block + 4 * i, 4);
            words[i] = __builtin_bswap32(words[i]);
        } else {
            uint32_t a = words[i - 15], b = words[i - 2];
            words[i] = words[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + words[i - 7] +
                       (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
        }
        uint32_t add = at[7] + (turned(at[4], 6) ^ turned(at[4], 11) ^ turned(at[4], 25)) +
                       ((at[4] & at[5]) ^ (~at[4] & at[6])) + constants[i] + words[i];
        at[3] += add;
        at[-1] = add + (turned(at[0], 2) ^ turned(at[0], 13) ^ turned(at[0], 22)) +
                 ((at[0] & at[1]) ^ (at[0] & at[2]) ^ (at[1] & at[2]));
        at--;
    }
    for (int i = 0; i < 8; i++) state[i] += at[i];
}

void tcc_sha256(const uint8_t *bytes, size_t size, uint8_t out_digest[32]) {
    uint32_t constants[64], state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t last[128] = {0};
    size_t whole = size / 64 * 64, left = size - whole, end = left < 56 ? 64 : 128;
    make_constants(constants);
    for (size_t i = 0; i < whole; i += 64) mix(state, constants, bytes + i);
    if (left) memcpy(last, bytes + whole, left);
    last[left] = 0x80;
    uint64_t bits = __builtin_bswap64((uint64_t)size * 8);
    memcpy(last + end - 8, &bits, 8);
    for (size_t i = 0; i < end; i += 64) mix(state, constants, last + i);
    for (int i = 0; i < 8; i++) state[i] = __builtin_bswap32(state[i]);
    memcpy(out_digest, state, 32);
}
