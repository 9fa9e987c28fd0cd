/* SHA-256 (FIPS 180-4), HMAC over it (RFC 2104), and numbers that nobody can guess. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm.h"

enum { BLOCK = sizeof((tcc_comm_hash *)0)->block, ROUNDS = 64 };

/* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
static const uint32_t constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void take_block(uint32_t state[8], const uint8_t *block) {
    uint32_t w[ROUNDS], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < ROUNDS; i++)
        w[i] = w[i - 16] + w[i - 7] +
               (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, state, sizeof s);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t first = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + choice +
                         constants[i] + w[i];
        uint32_t second = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + majority;
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

void tcc_comm_hash_begin(tcc_comm_hash *hash) {
    *hash = (tcc_comm_hash){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                      0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void tcc_comm_hash_add(tcc_comm_hash *hash, const void *bytes, size_t n) {
    const uint8_t *next = bytes;
    while (n > 0) {
        size_t at = hash->bytes % BLOCK, part = BLOCK - at < n ? BLOCK - at : n;
        memcpy(hash->block + at, next, part);
        hash->bytes += part;
        next += part;
        n -= part;
        if (at + part == BLOCK) take_block(hash->state, hash->block);
    }
}

void tcc_comm_hash_end(tcc_comm_hash *hash, uint8_t out[TCC_COMM_HASH]) {
    uint64_t bits = hash->bytes * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    tcc_comm_hash_add(hash, "\x80", 1);
    while (hash->bytes % BLOCK != BLOCK - sizeof length) tcc_comm_hash_add(hash, "", 1);
    tcc_comm_hash_add(hash, length, sizeof length);
    for (int i = 0; i < TCC_COMM_HASH; i++)
        out[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void tcc_comm_proof_begin(tcc_comm_proof *proof, const void *key, size_t n) {
    uint8_t inner[BLOCK] = {0}, outer[BLOCK];
    tcc_comm_hash_begin(&proof->inner);
    if (n > BLOCK) {
        tcc_comm_hash_add(&proof->inner, key, n);
        tcc_comm_hash_end(&proof->inner, inner);
        tcc_comm_hash_begin(&proof->inner);
    } else if (n) {
        memcpy(inner, key, n);
    }
    for (int i = 0; i < BLOCK; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    tcc_comm_hash_add(&proof->inner, inner, BLOCK);
    tcc_comm_hash_begin(&proof->outer);
    tcc_comm_hash_add(&proof->outer, outer, BLOCK);
}

void tcc_comm_proof_add(tcc_comm_proof *proof, const void *bytes, size_t n) {
    tcc_comm_hash_add(&proof->inner, bytes, n);
}

void tcc_comm_proof_end(tcc_comm_proof *proof, uint8_t out[TCC_COMM_HASH]) {
    tcc_comm_hash_end(&proof->inner, out);
    tcc_comm_hash_add(&proof->outer, out, TCC_COMM_HASH);
    tcc_comm_hash_end(&proof->outer, out);
}

bool tcc_comm_same_hash(const uint8_t a[TCC_COMM_HASH], const uint8_t b[TCC_COMM_HASH]) {
    uint8_t difference = 0; /* in the same time wherever they differ */
    for (int i = 0; i < TCC_COMM_HASH; i++) difference |= a[i] ^ b[i];
    return difference == 0;
}

tcc_status tcc_comm_fresh(uint8_t out[TCC_COMM_HASH]) {
#ifdef SYS_getrandom
    if (syscall(SYS_getrandom, out, TCC_COMM_HASH, 1 /* GRND_NONBLOCK */) == TCC_COMM_HASH)
        return TCC_OK;
#endif
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC); /* where a sandbox forbids the call */
    ssize_t got = file < 0 ? -1 : read(file, out, TCC_COMM_HASH);
    if (file >= 0) close(file);
    if (got == TCC_COMM_HASH) return TCC_OK;
    return tcc_fail(TCC_SYSTEM, "a number that nobody can guess (getrandom): %s", strerror(errno));
}
