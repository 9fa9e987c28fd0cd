/* Lets ranks of several hosts tell one another where they are, over TCP.  Rank 0 listens, the
 * others greet it with their blobs, and every rank gets all blobs.  Anyone may send a greeting: a
 * visitor costs memory for a greeting and a blob, which is allocated beforehand, and no rank waits
 * for it.
 *
 * Both sides prove that they know the job's secret without revealing it.  A rank greets with a
 * fresh number.  Rank 0 answers with another number and a hash of both numbers, the greeting and
 * the secret.  The rank sends a hash of its blob in the same way, and rank 0 a hash of its whole
 * answer.  A visitor without a valid proof is a stranger.  It learns nothing useful, its messages
 * are not believed, and the ranks try again until their deadline. */
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

tcc_comm_exchange tcc_comm_exchange_of(const tcc_comm_settings *settings, int64_t deadline,
                                       size_t bytes) {
    return (tcc_comm_exchange){
        .address = settings->address,
        .port_offset = settings->port_offset,
        .token = settings->token,
        .unguarded = settings->unguarded,
        .rank = settings->rank,
        .size = settings->size,
        .epoch = settings->epoch,
        .deadline = deadline,
        .bytes = bytes,
    };
}

/* Checks that there is a secret, or the explicit choice of none, which every process prints
 * once. */
static tcc_status check_secret(const tcc_comm_exchange *about) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (*about->token || !tcc_comm_address_port(about->address)) return TCC_OK;
    if (!about->unguarded)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "rank %d has no secret, and ranks that meet over a network ('%s') need "
                        "one: set TCC_TOKEN to the same random text on all ranks, as in `export "
                        "TCC_TOKEN=$(openssl rand -hex 16)` before srun, or to `none` where "
                        "whoever reaches the port is trusted",
                        about->rank, about->address);
    if (atomic_flag_test_and_set(&warned)) return TCC_OK;
    char text[400];
    int n = snprintf(text, sizeof text,
                     "tcc: rank %d of %d meets the others at '%s' without a secret "
                     "(TCC_TOKEN=none): whoever reaches that port can take part\n",
                     about->rank, about->size, about->address);
    (void)!write(STDERR_FILENO, text, (size_t)n);
    return TCC_OK;
}

tcc_status tcc_comm_exchange_blobs(const tcc_comm_exchange *about, const void *blob,
                                   void *out_all) {
    if (about->bytes > TCC_COMM_MOST_BLOB || about->size < 1 || about->rank >= about->size)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "an exchange of %zu bytes by rank %d of %d: at most %d", about->bytes,
                        about->rank, about->size, (int)TCC_COMM_MOST_BLOB);
    char *all = out_all;
    if (about->bytes) memcpy(all + (size_t)about->rank * about->bytes, blob, about->bytes);
    if (about->size == 1) return TCC_OK;
    TCC_RETURN_IF_ERROR(check_secret(about));
    return about->rank == 0 ? tcc_wire_gather(about, all) : tcc_wire_visit(about, blob, all);
}
