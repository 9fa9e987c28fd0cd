/* Declares stamps: the times of threads in steps, in a ring that the caller owns (stamps.c). */
#ifndef TCC_STAMPS_H
#define TCC_STAMPS_H

#include "tcc.h"

/* The ring that runs of an instance write stamps to. `stamps` is NULL where they write none. */
typedef struct tcc_ring {
    tcc_stamp_record *stamps;
    uint64_t room, *count;
} tcc_ring;

tcc_status tcc_instance_set_stamps(tcc_instance *instance, tcc_stamp_record *stamps, uint64_t room,
                                   uint64_t *count);
/* Writes a stamp of the calling thread from `begin` (tcc_now) to now. Does nothing where the
 * instance has no ring. */
void tcc_stamp(const tcc_instance *instance, int32_t step, int64_t execution, int64_t begin);

#endif
