/* Finds an MPI library with one of three interfaces: the standard binary interface of MPI 5, Open
 * MPI's or MPICH's own. Values come from the interface's text (MPI 5.0, appendix A) and from the
 * headers of MPICH 4 and Open MPI 4, whose interfaces are stable within these library versions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "mpi.h"

typedef enum interface { STANDARD, OPEN_MPI, MPICH } interface;

typedef struct file_row {
    const char *name;
    interface kind;
} file_row;

static const file_row files[] = {
    {"libmpi_abi.so.1", STANDARD},
    {"libmpi_abi.so.0", STANDARD},
    {"libmpi.so.40", OPEN_MPI},
    {"libmpi.so.12", MPICH},
};
enum { FILES = sizeof files / sizeof *files };

#define ROW(name) {"MPI_" #name, offsetof(tcc_mpi, name)}
static const tcc_comm_function functions[] = {
    ROW(Initialized),  ROW(Finalized),
    ROW(Init_thread),  ROW(Finalize),
    ROW(Error_string), ROW(Comm_rank),
    ROW(Comm_size),    ROW(Comm_dup),
    ROW(Comm_free),    ROW(Comm_set_errhandler),
    ROW(Comm_group),   ROW(Group_incl),
    ROW(Group_free),   ROW(Comm_create_group),
    ROW(Iallgatherv),  ROW(Ialltoallv),
    ROW(Ibcast),       ROW(Isend),
    ROW(Irecv),        ROW(Test),
};

static tcc_mpi the_library;
static bool is_filled;
static char reason[512];

static bool fill_functions(void *library, tcc_mpi *out) {
    size_t n = sizeof functions / sizeof *functions;
    const char *lacks = tcc_comm_fill(library, functions, n, out);
    if (lacks) snprintf(reason, sizeof reason, "%s has no %s", out->name, lacks);
    return !lacks;
}

static bool fill_constants(void *library, interface kind, tcc_mpi *out) {
    switch (kind) {
    case STANDARD:
        out->world = 0x101;
        out->byte = 0x247;
        out->errors_return = 0x143;
        out->multiple = 4096;
        return true;
    case MPICH:
        out->world = 0x44000000;
        out->byte = 0x4c00010d;
        out->errors_return = 0x54000001;
        out->ignore = (void *)1;
        out->in_place = (void *)-1;
        out->multiple = 3;
        return true;
    case OPEN_MPI:
        out->world = (tcc_mpi_handle)dlsym(library, "ompi_mpi_comm_world");
        out->byte = (tcc_mpi_handle)dlsym(library, "ompi_mpi_byte");
        out->errors_return = (tcc_mpi_handle)dlsym(library, "ompi_mpi_errors_return");
        out->multiple = 3;
        out->ended = 75; /* MPI_ERR_PROC_FAILED of Open MPI 5, under mpirun --with-ft ulfm */
    }
    return out->world && out->byte && out->errors_return;
}

/* Returns the library's interface. Programs load Open MPI's library under other names, too, so its
 * functions decide. */
static interface interface_of(void *library, const char *name) {
    if (dlsym(library, "ompi_mpi_comm_world")) return OPEN_MPI;
    return strstr(name, "libmpi_abi") ? STANDARD : MPICH;
}

static bool take(void *library, const char *name) {
    the_library = (tcc_mpi){.name = name, .in_place = (void *)1};
    is_filled = fill_functions(library, &the_library) &&
            fill_constants(library, interface_of(library, name), &the_library);
    return is_filled;
}

static void find(void) {
    const char *path = secure_getenv("TCC_MPI_LIBRARY");
    /* Open MPI's launcher needs Open MPI's library */
    bool open_mpi = secure_getenv("OMPI_COMM_WORLD_SIZE") != NULL;
    snprintf(reason, sizeof reason,
             "no MPI library is found (libmpi_abi.so.1, libmpi.so.40, "
             "libmpi.so.12): set TCC_MPI_LIBRARY to one");
    for (int i = 0; i < FILES; i++) {
        void *loaded = dlopen(files[i].name, RTLD_NOW | RTLD_NOLOAD);
        if (loaded && take(loaded, files[i].name)) return;
    }
    if (path && *path) {
        void *loaded = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (!loaded) snprintf(reason, sizeof reason, "TCC_MPI_LIBRARY: %s", dlerror());
        if (loaded) take(loaded, path);
        return;
    }
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < FILES; i++) {
            if ((files[i].kind == OPEN_MPI) != (open_mpi == (turn == 0))) continue;
            void *loaded = dlopen(files[i].name, RTLD_NOW | RTLD_GLOBAL);
            if (loaded && take(loaded, files[i].name)) return;
        }
}

const tcc_mpi *tcc_mpi_library(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    if (is_filled) return &the_library;
    tcc_fail(TCC_UNSUPPORTED, "%s", reason);
    return NULL;
}

/* ---- starting and ending --------------------------------------------------------------------- */

static _Atomic bool stays;

static void finalise(void) {
    int ended = 1;
    if (!atomic_load(&stays) && !the_library.Finalized(&ended) && !ended)
        (void)the_library.Finalize();
}

void tcc_mpi_stay(void) { atomic_store(&stays, true); }

tcc_status tcc_mpi_start(const tcc_mpi *mpi) {
    int started = 0, ended = 0, provided;
    int code = mpi->Initialized(&started);
    if (!code) code = mpi->Finalized(&ended);
    if (code) return tcc_mpi_fail(mpi, "MPI_Initialized", code);
    if (ended)
        return tcc_fail(TCC_SYSTEM, "this process has finalised MPI (%s) already", mpi->name);
    if (started) return TCC_OK;
    code = mpi->Init_thread(NULL, NULL, mpi->multiple, &provided);
    if (code) return tcc_mpi_fail(mpi, "MPI_Init_thread", code);
    atexit(finalise);
    return TCC_OK;
}

tcc_status tcc_mpi_fail(const tcc_mpi *mpi, const char *call, int code) {
    char text[8192] = "";
    int length = 0;
    if (mpi->Error_string(code, text, &length)) snprintf(text, sizeof text, "error %d", code);
    tcc_status status = mpi->ended && code == mpi->ended ? TCC_PEER_DEAD : TCC_SYSTEM;
    return tcc_fail(status, "%s of %s: %.400s", call, mpi->name, text);
}
