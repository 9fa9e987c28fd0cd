/* Copies memory, also past the caches. Data that is larger than the caches would only displace
 * other data, and an ordinary store reads its cache line first. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "comm.h"

int64_t tcc_comm_last_cache(void) {
    static _Atomic int64_t limit = -1;
    int64_t bytes = atomic_load_explicit(&limit, memory_order_relaxed);
    if (bytes >= 0) return bytes;
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (bytes < 0) bytes = 0;
    atomic_store_explicit(&limit, bytes, memory_order_relaxed);
    return bytes;
}

#if defined(__x86_64__)
void tcc_comm_copy_past(void *to, const void *from, size_t bytes) {
    enum { LINE = 64, PART = sizeof(__m128i) };
    size_t head = -(uintptr_t)to % LINE, lines;
    if (head > bytes) head = bytes;
    memcpy(to, from, head);
    char *out = (char *)to + head;
    const char *in = (const char *)from + head;
    for (lines = (bytes - head) / LINE; lines; lines--, out += LINE, in += LINE)
        for (size_t i = 0; i < LINE; i += PART)
            _mm_stream_si128((void *)(out + i), _mm_loadu_si128((const void *)(in + i)));
    memcpy(out, in, (bytes - head) % LINE);
}

void tcc_comm_copied(void) { _mm_sfence(); }
#else
void tcc_comm_copy_past(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

void tcc_comm_copied(void) {}
#endif
