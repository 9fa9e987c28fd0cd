/* Declares NCCL and RCCL, which move data between GPUs.  One paragraph per file. */
#ifndef TCC_COMM_NCCL_H
#define TCC_COMM_NCCL_H

#include "comm.h"

/* ---- nccl_library.c: the library and its binary interface ------------------------------------ */

/* The values of ncclResult_t that matter here. */
enum {
    TCC_NCCL_SUCCESS = 0,
    TCC_NCCL_DEVICE_FAILED = 1,
    TCC_NCCL_INVALID_ARGUMENT = 4,
    TCC_NCCL_INVALID_USAGE = 5,
    TCC_NCCL_REMOTE = 6,
    TCC_NCCL_IN_PROGRESS = 7
};

/* ncclUniqueId: identifies a meeting of ranks.  It is passed by value. */
typedef struct tcc_nccl_id {
    char bytes[128];
} tcc_nccl_id;

/* ncclConfig_t of version 2.14, which all later versions take by its size and version. */
typedef struct tcc_nccl_config {
    size_t size;
    uint32_t magic, version;
    int32_t blocking;
} tcc_nccl_config;

/* Functions are named as in the library, without its prefix; they return an ncclResult_t.  Streams
 * are the driver's, communicators are the library's. */
typedef struct tcc_nccl {
    const char *name, *file;
    int version; /* 10,000 times the major number and 100 times the minor one, added */
    int (*GetVersion)(int *out_version);
    int (*GetUniqueId)(tcc_nccl_id *out_id);
    int (*CommInitRankConfig)(void **out_comm, int size, tcc_nccl_id id, int rank,
                              tcc_nccl_config *config);
    int (*CommDestroy)(void *comm);
    int (*CommAbort)(void *comm);
    int (*CommGetAsyncError)(void *comm, int *out_result);
    const char *(*GetErrorString)(int result);
    const char *(*GetLastError)(void *comm);
    int (*AllReduce)(const void *send, void *receive, size_t count, int type, int reduction,
                     void *comm, void *stream);
    int (*ReduceScatter)(const void *send, void *receive, size_t count, int type, int reduction,
                         void *comm, void *stream);
    int (*AllGather)(const void *send, void *receive, size_t count, int type, void *comm,
                     void *stream);
    int (*Broadcast)(const void *send, void *receive, size_t count, int type, int root, void *comm,
                     void *stream);
    int (*Send)(const void *send, size_t count, int type, int peer, void *comm, void *stream);
    int (*Recv)(void *receive, size_t count, int type, int peer, void *comm, void *stream);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
} tcc_nccl;

/* Returns the library for GPUs of DLPack's `device_type`: the file that TCC_NCCL_LIBRARY or
 * TCC_RCCL_LIBRARY names, else a loaded library, else one that the system finds.  It looks once.
 * Returns NULL with the thread's message set where there is none or it is too old. */
const tcc_nccl *tcc_nccl_library(int32_t device_type);

/* ---- nccl.c: operations by the library's functions ------------------------------------------- */

/* An operation to put into a stream. */
typedef struct tcc_nccl_work {
    tcc_comm_work work;
    void *stream;
} tcc_nccl_work;

/* Fails where the library cannot carry out the operation as tcc_comm.h promises. */
tcc_status tcc_nccl_check(const tcc_nccl *nccl, const tcc_comm_work *work);
/* Issues the operations of rank `rank` of `size`; several form one group.  Returns the library's
 * first result other than success or in progress, with the function's name in `out_call`; otherwise
 * success or in progress. */
int tcc_nccl_issue(const tcc_nccl *nccl, void *comm, int32_t rank, int32_t size,
                   const tcc_nccl_work *works, int32_t n, const char **out_call);

#endif
