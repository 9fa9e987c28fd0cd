/* Declares the backend `mpi`: an MPI library of the machine.  One paragraph per file. */
#ifndef TCC_COMM_MPI_H
#define TCC_COMM_MPI_H

#include "comm.h"

/* ---- mpi_library.c: the library and its binary interface ------------------------------------- */

/* A handle of MPI (communicator, type, request, ...): a pointer or an int, depending on the
 * library.  Both are passed as arguments in a register, and a result is stored into the low bytes
 * of a zero word.  So one declaration serves all libraries on little-endian 64-bit machines, the
 * only ones that this runtime supports. */
typedef uintptr_t tcc_mpi_handle;

/* Functions and constants of MPI.  Counts are bytes. */
typedef struct tcc_mpi {
    const char *name; /* the library's file name */
    tcc_mpi_handle world, byte, errors_return;
    void *ignore;   /* stands for a status that is not wanted */
    void *in_place; /* stands for send data that lies in the receive buffer */
    int multiple;   /* the highest level of thread support */
    int ended;      /* the error code for a peer whose process has ended, or 0 */
    int (*Initialized)(int *out_flag);
    int (*Finalized)(int *out_flag);
    int (*Init_thread)(int *argc, char ***argv, int required, int *out_provided);
    int (*Finalize)(void);
    int (*Error_string)(int code, char *text, int *out_length);
    int (*Comm_rank)(tcc_mpi_handle comm, int *out_rank);
    int (*Comm_size)(tcc_mpi_handle comm, int *out_size);
    int (*Comm_dup)(tcc_mpi_handle comm, tcc_mpi_handle *out_comm);
    int (*Comm_free)(tcc_mpi_handle *comm);
    int (*Comm_set_errhandler)(tcc_mpi_handle comm, tcc_mpi_handle handler);
    int (*Comm_group)(tcc_mpi_handle comm, tcc_mpi_handle *out_group);
    int (*Group_incl)(tcc_mpi_handle group, int n, const int *ranks, tcc_mpi_handle *out_group);
    int (*Group_free)(tcc_mpi_handle *group);
    int (*Comm_create_group)(tcc_mpi_handle comm, tcc_mpi_handle group, int tag,
                             tcc_mpi_handle *out_comm);
    int (*Iallgatherv)(const void *send, int count, tcc_mpi_handle type, void *receive,
                       const int *counts, const int *places, tcc_mpi_handle receive_type,
                       tcc_mpi_handle comm, tcc_mpi_handle *out_request);
    int (*Ialltoallv)(const void *send, const int *send_counts, const int *send_places,
                      tcc_mpi_handle type, void *receive, const int *counts, const int *places,
                      tcc_mpi_handle receive_type, tcc_mpi_handle comm,
                      tcc_mpi_handle *out_request);
    int (*Ibcast)(void *data, int count, tcc_mpi_handle type, int root, tcc_mpi_handle comm,
                  tcc_mpi_handle *out_request);
    int (*Isend)(const void *data, int count, tcc_mpi_handle type, int to, int tag,
                 tcc_mpi_handle comm, tcc_mpi_handle *out_request);
    int (*Irecv)(void *data, int count, tcc_mpi_handle type, int from, int tag, tcc_mpi_handle comm,
                 tcc_mpi_handle *out_request);
    int (*Test)(tcc_mpi_handle *request, int *out_done, void *status);
} tcc_mpi;

/* Returns the process's MPI library: the one already loaded, else the file TCC_MPI_LIBRARY, else
 * the first that is found.  Returns NULL with the thread's message set if there is none. */
const tcc_mpi *tcc_mpi_library(void);
/* Initialises MPI unless the program has done so.  It is then finalised when the process exits,
 * unless a comm failed, because finalising waits for all ranks. */
tcc_status tcc_mpi_start(const tcc_mpi *mpi);
void tcc_mpi_stay(void); /* MPI is not finalised at exit */
tcc_status tcc_mpi_fail(const tcc_mpi *mpi, const char *call, int code);

#endif
