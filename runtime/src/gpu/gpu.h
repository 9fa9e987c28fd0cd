/* A model on a GPU: what is shared (tcc_gpu), what one run at a time has (tcc_gpu_instance). */
#ifndef TCC_GPU_H
#define TCC_GPU_H

#include "../collective.h"
#include "images.h"

/* ---- find.c, device.c: the device, the kernels and the weights on it --------------------------------------- */

struct tcc_gpu {
    const tcc_gpu_driver *driver;
    int ordinal, device;
    int devices, ranks; /* that the process sees; that share them by their numbers, or 0 */
    void *context; /* CUDA's primary context of the device */
    char name[128], arch[64];
    tcc_gpu_images images;
    const tcc_gpu_variant *variant;
    void **modules;   /* by image */
    void **functions; /* by kernel */
    char *weights;
    int processors;    /* where kernels stay: as many programs are enough */
    int32_t most_maps; /* of one kernel */
    int driver_version;
    bool pools;  /* memory is taken and given in the order of a stream */
    bool graphs; /* runs of equal sizes are recorded */
    bool reads;  /* a run learns registers from buffers */
    bool overlaps; /* collectives go on beside kernels */
    bool wait;   /* TCC_SYNC: after every kernel, so that failures have a name */
    bool refused; /* the driver is none for the variant's code */
};

/* The thread's device before tcc_gpu_enter. */
typedef struct tcc_gpu_scope {
    int ordinal;
} tcc_gpu_scope;

/* Makes the model's device the calling thread's, until tcc_gpu_leave puts the old one back. */
tcc_status tcc_gpu_enter(const tcc_gpu *gpu, tcc_gpu_scope *out_scope);
void tcc_gpu_leave(const tcc_gpu *gpu, const tcc_gpu_scope *scope);

/* Fills what `gpu` says of the device of its driver that the model is to use. */
tcc_status tcc_gpu_find_device(tcc_gpu *gpu);

/* ---- tensor_maps.c: arrays as the copy engine sees them ---------------------------------------------- */

/* Whether the driver can make the maps that the variant's kernels take; counts them. */
tcc_status tcc_gpu_check_maps(tcc_gpu *gpu);
/* Makes the map of the array at `data`. */
tcc_status tcc_gpu_encode_map(const tcc_gpu *gpu, const tcc_gpu_kernel *kernel,
                              const tcc_gpu_map *map, char *data, tcc_gpu_tensor_map *out);

/* ---- memory.c: memory of an instance on the device ------------------------------------------------- */

typedef struct tcc_gpu_array {
    char *data;
    size_t size;
} tcc_gpu_array;

/* Makes `array` hold at least `size` bytes; what it held may be lost.  `what` names it in errors. */
tcc_status tcc_gpu_reserve(const tcc_gpu *gpu, tcc_gpu_array *array, size_t size, const char *what);
/* The same for an instance's array: what graphs of callers use stays where it is until the end. */
tcc_status tcc_gpu_grow(tcc_gpu_instance *device, tcc_gpu_array *array, size_t size,
                        const char *what);
/* Fails where the run in progress goes into a graph of its caller; `what` it would do. */
tcc_status tcc_gpu_unless_recorded(const tcc_gpu_instance *device, const char *what);
void tcc_gpu_release_array(const tcc_gpu *gpu, tcc_gpu_array *array);

/* ---- instance.c -------------------------------------------------------------------------------------- */

enum {
    TCC_PHASE_RUN,     /* everything happens */
    TCC_PHASE_RESOLVE, /* addresses and sizes only */
    TCC_PHASE_ENQUEUE  /* everything but what resolving did */
};

/* Memory that was replaced, but that graphs of callers use. */
typedef struct tcc_gpu_kept {
    struct tcc_gpu_kept *next;
    tcc_gpu_array array;
} tcc_gpu_kept;

/* A recorded run, or one that was seen once (`executable` is NULL). */
typedef struct tcc_gpu_graph {
    int64_t *key; /* NULL: a free place */
    void *executable;
    uint64_t used; /* when, in runs */
} tcc_gpu_graph;

/* So many runs are kept, of so many kernels at most: making a graph takes time by its nodes. */
enum { TCC_GPU_GRAPHS = 8, TCC_GPU_MOST_KERNELS = 1 << 14 };

/* The most bytes that the host reads from the device at once: sizes lie side by side. */
enum { TCC_GPU_READ = 64 };

struct tcc_gpu_instance {
    const tcc_gpu *gpu;
    void *stream;  /* this instance's; ordered after the process's default stream */
    void *capture; /* only for recording */
    void *event;   /* the end of the last run */
    bool pending;  /* that run may not be over */
    bool recorded; /* the caller records the run in progress: nothing may wait or take memory */
    bool replayed; /* graphs of callers use this instance's memory */
    tcc_gpu_kept *kept;
    int32_t phase;
    bool host_arrays; /* the run has arrays in the host's memory */
    tcc_device results; /* where outputs that the caller did not give are wanted */
    void *queue;      /* the stream of the run in progress */
    tcc_gpu_array arena, state;
    tcc_gpu_array *inputs, *outputs; /* for arrays of the caller that cannot be used in place */
    tcc_span *given_inputs;          /* those arrays; data is NULL where one is used in place */
    tcc_span *given_outputs;
    bool *host_outputs;              /* the array is in the host's memory */
    size_t *capacities; /* by buffer: of dynamic ones */
    void *word;         /* pinned, of TCC_GPU_READ bytes: what the host reads */
    const char *read_from; /* what it holds, if nothing was started since; else NULL */
    int64_t read_bytes;
    uint64_t *values;   /* of a launch's parameters */
    void **params;
    tcc_gpu_tensor_map *maps; /* those of a launch, in memory of `map_room` */
    void *map_room;
    int64_t *key;
    tcc_gpu_graph graphs[TCC_GPU_GRAPHS];
    uint64_t runs;
    int64_t kernels; /* of the run, as resolving found */
    tcc_comm_device *joined; /* to the comm of the last run that had one */
    tcc_comm_device **parties;  /* by number of a group: joined to that of its comm */
    int64_t n_parties;
    const tcc_rank_group *party_groups;
    const tcc_comm_table *talk; /* their functions */
    void *beside; /* the stream of collectives that go on beside kernels; NULL: the run's */
    void *begun;  /* events: what a collective there waits for, and by ticket its end */
    void **ended;
};

/* ---- execute.c: instructions on the device --------------------------------------------------------- */

extern const tcc_executor tcc_gpu_executor;

/* Gives back what the run's Allocate instructions took. */
void tcc_gpu_free_dynamic(tcc_instance *instance);
/* Waits until the run's work so far is done. */
tcc_status tcc_gpu_wait(const tcc_gpu_instance *device);

/* ---- collective.c: collectives in the order of the run's stream, or beside its kernels ---------------- */

/* Joins the device to the comm of a run that has one; fails where the ranks do not meet. */
tcc_status tcc_gpu_join(tcc_run *run);
/* No longer joined, and without the graphs of that comm's operations. */
void tcc_gpu_part(tcc_gpu_instance *device);
/* The driver's stream_wait for the run's stream, which the comm watches; its error. */
tcc_status tcc_gpu_wait_watched(const tcc_gpu_instance *device, int *out_error);
tcc_status tcc_gpu_start(tcc_run *run, const tcc_comm_call *call, const tcc_code *code);
tcc_status tcc_gpu_await(tcc_run *run, int64_t ticket);

/* ---- transfer.c: the caller's arrays ----------------------------------------------------------------- */

/* Brings inputs that cannot be used where they are to the device; aims all input buffers. */
tcc_status tcc_gpu_upload(tcc_run *run);
/* Aims output `index`, which the run allocates now. */
tcc_status tcc_gpu_place_output(tcc_run *run, int32_t index, int64_t size, tcc_span *span);
/* Brings results to where the caller wants them. */
tcc_status tcc_gpu_download(tcc_run *run);

/* ---- graph.c: whole runs recorded -------------------------------------------------------------------- */

/* Words of a key: what the work of a run depends on. */
int64_t tcc_gpu_key_words(const tcc_program *program);
/* Runs the body, recorded from the second run with equal sizes and addresses on. */
tcc_status tcc_gpu_run_graph(tcc_run *run);
void tcc_gpu_drop_graph(const tcc_gpu_instance *device, tcc_gpu_graph *graph);
void tcc_gpu_drop_graphs(tcc_gpu_instance *device); /* none of them is running */

#endif
