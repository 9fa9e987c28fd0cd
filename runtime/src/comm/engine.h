/* Declares comms over an engine that moves bytes (tcc_comm_plugin.h).  One paragraph per file. */
#ifndef TCC_COMM_ENGINE_H
#define TCC_COMM_ENGINE_H

#include "comm.h"
#include "tcc_comm_plugin.h"

/* ---- engine.c: a backend's functions over an engine ------------------------------------------ */

/* The host of an engine, and what the host's functions need to know. */
typedef struct tcc_engine_host {
    tcc_comm_engine_host seen; /* the part that the engine sees; first */
    tcc_comm_settings settings;
    int64_t deadline; /* for opening */
} tcc_engine_host;

/* Opens the comm's state over the engine, which must stay unchanged as long as the process
 * lives. */
tcc_status tcc_engine_open(tcc_comm *comm, const tcc_comm_engine *engine);

/* Implement the functions of tcc_comm_backend. */
tcc_status tcc_engine_group(tcc_comm *parent, const int32_t *members, const char *name,
                            tcc_comm *child);
tcc_status tcc_engine_begin(tcc_comm *comm, const tcc_comm_work *work);
tcc_status tcc_engine_advance(tcc_comm *comm, bool wait, bool *out_done);
tcc_status tcc_engine_transfer(tcc_comm *comm, const tcc_comm_work *works, int32_t n);
tcc_status tcc_engine_error(tcc_comm *comm);
void tcc_engine_revoke(tcc_comm *comm, tcc_status status, const char *reason);
void tcc_engine_close(tcc_comm *comm);

#define TCC_ENGINE_FUNCTIONS                                                                       \
    .group = tcc_engine_group, .begin = tcc_engine_begin, .advance = tcc_engine_advance,           \
    .transfer = tcc_engine_transfer, .error = tcc_engine_error, .revoke = tcc_engine_revoke,       \
    .close = tcc_engine_close

#endif
