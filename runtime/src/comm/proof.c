/* Computes HMAC over SHA-256 (RFC 2104), and draws numbers that cannot be guessed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm.h"

void tcc_comm_proof_begin(tcc_comm_proof *proof, const void *key, size_t n) {
    uint8_t inner[TCC_SHA256_BLOCK] = {0}, outer[TCC_SHA256_BLOCK];
    tcc_hash_begin(&proof->inner);
    if (n > TCC_SHA256_BLOCK) {
        tcc_hash_add(&proof->inner, key, n);
        tcc_hash_end(&proof->inner, inner);
        tcc_hash_begin(&proof->inner);
    } else if (n) {
        memcpy(inner, key, n);
    }
    for (int i = 0; i < TCC_SHA256_BLOCK; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    tcc_hash_add(&proof->inner, inner, TCC_SHA256_BLOCK);
    tcc_hash_begin(&proof->outer);
    tcc_hash_add(&proof->outer, outer, TCC_SHA256_BLOCK);
}

void tcc_comm_proof_add(tcc_comm_proof *proof, const void *bytes, size_t n) {
    tcc_hash_add(&proof->inner, bytes, n);
}

void tcc_comm_proof_end(tcc_comm_proof *proof, uint8_t out[TCC_COMM_HASH]) {
    tcc_hash_end(&proof->inner, out);
    tcc_hash_add(&proof->outer, out, TCC_COMM_HASH);
    tcc_hash_end(&proof->outer, out);
}

bool tcc_comm_same_hash(const uint8_t a[TCC_COMM_HASH], const uint8_t b[TCC_COMM_HASH]) {
    uint8_t difference = 0; /* takes equally long wherever they differ */
    for (int i = 0; i < TCC_COMM_HASH; i++) difference |= a[i] ^ b[i];
    return difference == 0;
}

tcc_status tcc_comm_fresh(uint8_t out[TCC_COMM_HASH]) {
#ifdef SYS_getrandom
    if (syscall(SYS_getrandom, out, TCC_COMM_HASH, 1 /* GRND_NONBLOCK */) == TCC_COMM_HASH)
        return TCC_OK;
#endif
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC); /* for a sandbox that forbids the call */
    ssize_t got = file < 0 ? -1 : read(file, out, TCC_COMM_HASH);
    if (file >= 0) close(file);
    if (got == TCC_COMM_HASH) return TCC_OK;
    return tcc_fail(TCC_SYSTEM, "a number that nobody can guess (getrandom): %s", strerror(errno));
}
