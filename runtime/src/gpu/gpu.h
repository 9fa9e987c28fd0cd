/* Declares a model on a GPU: the shared part (tcc_gpu), and the part of one run at a time
 * (tcc_gpu_instance). */
#ifndef TCC_GPU_H
#define TCC_GPU_H

#include "../collective.h"
#include "images.h"

/* ---- find.c, device.c: the device, the kernels and the weights on it --------------------------------------- */

struct tcc_gpu {
    const tcc_gpu_driver *driver;
    int ordinal, device;
    int devices, ranks; /* devices that the process sees; ranks that share them by their numbers, or
                           0 */
    void *context; /* CUDA's primary context of the device */
    char name[128], arch[64];
    tcc_gpu_images images;
    const tcc_gpu_variant *variant;
    void **modules;   /* by image */
    void **functions; /* by kernel */
    char *weights;
    int processors;    /* multiprocessors; kernels with `stays` need at most as many programs */
    int32_t max_maps;  /* tensor maps of the kernel that has the most */
    int driver_version;
    bool pools;  /* memory can be taken and given in stream order */
    bool graphs; /* runs of equal sizes are recorded as graphs */
    bool reads;  /* runs read registers from buffers */
    bool overlaps; /* collectives run beside kernels */
    bool wait;   /* TCC_SYNC: wait after every kernel, so that a failure names its kernel */
    bool refused; /* the driver cannot run the variant's code */
};

/* The thread's device before tcc_gpu_enter. */
typedef struct tcc_gpu_scope {
    int ordinal;
} tcc_gpu_scope;

/* Makes the model's device the calling thread's.  tcc_gpu_leave restores the old one. */
tcc_status tcc_gpu_enter(const tcc_gpu *gpu, tcc_gpu_scope *out_scope);
void tcc_gpu_leave(const tcc_gpu *gpu, const tcc_gpu_scope *scope);

/* Chooses the device of the driver that the model uses, and fills its fields of `gpu`. */
tcc_status tcc_gpu_find_device(tcc_gpu *gpu);

/* ---- tensor_maps.c: arrays as the copy engine sees them ---------------------------------------------- */

/* Counts the tensor maps that the variant's kernels take.  Fails where the driver cannot make
 * them. */
tcc_status tcc_gpu_check_maps(tcc_gpu *gpu);
/* Makes the tensor map of the array at `data`. */
tcc_status tcc_gpu_encode_map(const tcc_gpu *gpu, const tcc_gpu_kernel *kernel,
                              const tcc_gpu_map *map, char *data, tcc_gpu_tensor_map *out);

/* ---- memory.c: memory of an instance on the device ------------------------------------------------- */

typedef struct tcc_gpu_array {
    char *data;
    size_t size;
} tcc_gpu_array;

/* Makes `array` hold at least `size` bytes; its contents may be lost.  `purpose` names it in
 * errors. */
tcc_status tcc_gpu_reserve(const tcc_gpu *gpu, tcc_gpu_array *array, size_t size, const char *purpose);
/* Does the same for an instance's array.  Memory that callers' graphs use stays mapped until the
 * instance ends. */
tcc_status tcc_gpu_grow(tcc_gpu_instance *device, tcc_gpu_array *array, size_t size,
                        const char *purpose);
/* Fails where the caller records the run in progress in a graph; `action` names the action that is
 * impossible then. */
tcc_status tcc_gpu_unless_recorded(const tcc_gpu_instance *device, const char *action);
void tcc_gpu_release_array(const tcc_gpu *gpu, tcc_gpu_array *array);

/* ---- instance.c -------------------------------------------------------------------------------------- */

enum {
    TCC_PHASE_RUN,     /* everything */
    TCC_PHASE_RESOLVE, /* only addresses and sizes */
    TCC_PHASE_ENQUEUE  /* everything except the steps of TCC_PHASE_RESOLVE */
};

/* Replaced memory that callers' graphs still use. */
typedef struct tcc_gpu_replaced {
    struct tcc_gpu_replaced *next;
    tcc_gpu_array array;
} tcc_gpu_replaced;

/* A recorded run, or a run seen once (`executable` is NULL). */
typedef struct tcc_gpu_graph {
    int64_t *key; /* NULL: the entry is free */
    void *executable;
    uint64_t used; /* number of the run that used it last */
} tcc_gpu_graph;

/* GRAPHS: recorded runs that are kept.  MOST_KERNELS: kernels of a recorded run, because the time
 * to make a graph grows with its nodes. */
enum { TCC_GPU_GRAPHS = 8, TCC_GPU_MOST_KERNELS = 1 << 14 };

/* Bytes that the host reads from the device at once at most.  Sizes that are needed together lie
 * side by side. */
enum { TCC_GPU_READ = 64 };

struct tcc_gpu_instance {
    const tcc_gpu *gpu;
    void *stream;  /* this instance's own; ordered after the process's default stream */
    void *capture; /* only for capturing */
    void *event;   /* marks the end of the last run */
    bool pending;  /* the last run may still be in progress */
    bool recorded; /* the caller captures the run in progress: it may neither wait nor take
                      memory */
    bool replayed; /* the caller's graphs use this instance's memory */
    tcc_gpu_replaced *replaced;
    int32_t phase;
    bool host_arrays; /* the run has arrays in host memory */
    tcc_device results; /* device for outputs that the caller left to the allocator */
    void *queue;      /* the current run's stream */
    tcc_gpu_array arena, state;
    tcc_gpu_array *inputs, *outputs; /* copies on the device of caller's arrays that cannot be used
                                        in place */
    tcc_span *caller_inputs;         /* those host arrays; data is NULL where the array is used in
                                        place */
    tcc_span *caller_outputs;
    bool *host_outputs;              /* the caller's array is in host memory */
    size_t *capacities; /* bytes of dynamic buffers, by buffer */
    void *word;         /* pinned memory of TCC_GPU_READ bytes that the host reads into */
    const char *read_from; /* device address of its contents, if no work was started since; else
                              NULL */
    int64_t read_bytes;
    uint64_t *values;   /* values of a launch's parameters */
    void **params;
    tcc_gpu_tensor_map *maps; /* tensor maps of a launch, in memory of `map_room` */
    void *map_room;
    int64_t *key;
    tcc_gpu_graph graphs[TCC_GPU_GRAPHS];
    uint64_t runs;
    int64_t kernels; /* kernels of the run, as the resolving walk counted */
    tcc_comm_device *joined; /* joined to the comm of the last run that had one */
    tcc_comm_device **parties;  /* by group: joined to the group's comm */
    int64_t n_parties;
    const tcc_rank_group *party_groups;
    const tcc_comm_table *talk; /* the comm's functions */
    void *beside; /* the second stream, for collectives beside kernels; NULL: they use the run's */
    void *begun;  /* events: the work that a collective waits for, and by ticket its end */
    void **ended;
};

/* ---- execute.c: instructions on the device --------------------------------------------------------- */

extern const tcc_executor tcc_gpu_executor;

/* Frees the memory of the run's Allocate instructions. */
void tcc_gpu_free_dynamic(tcc_instance *instance);
/* Waits until all work of the run so far is done. */
tcc_status tcc_gpu_wait(const tcc_gpu_instance *device);

/* ---- collective.c: collectives in the order of the run's stream, or beside its kernels ---------------- */

/* Joins the device to the comm of a run that has one.  Fails where the ranks do not meet. */
tcc_status tcc_gpu_join(tcc_run *run);
/* Leaves the comm, and drops the graphs with its operations. */
void tcc_gpu_part(tcc_gpu_instance *device);
/* Waits for the run's stream while the comm watches.  Stores the driver's error. */
tcc_status tcc_gpu_wait_watched(const tcc_gpu_instance *device, int *out_error);
tcc_status tcc_gpu_start(tcc_run *run, const tcc_comm_call *call, const tcc_code *code);
tcc_status tcc_gpu_await(tcc_run *run, int64_t ticket);

/* ---- transfer.c: the caller's arrays ----------------------------------------------------------------- */

/* Copies inputs to the device that cannot be used in place, and sets the addresses of all input
 * buffers. */
tcc_status tcc_gpu_upload(tcc_run *run);
/* Sets the address of output `index`, which the run allocates now. */
tcc_status tcc_gpu_place_output(tcc_run *run, int32_t index, int64_t size, tcc_span *span);
/* Copies results to where the caller wants them. */
tcc_status tcc_gpu_download(tcc_run *run);

/* ---- graph.c: whole runs recorded -------------------------------------------------------------------- */

/* Returns the number of words of a key.  The key holds everything that the work of a run depends
 * on. */
int64_t tcc_gpu_key_words(const tcc_program *program);
/* Runs the body.  From the second run with equal sizes and addresses on it is recorded as a
 * graph. */
tcc_status tcc_gpu_run_graph(tcc_run *run);
void tcc_gpu_drop_graph(const tcc_gpu_instance *device, tcc_gpu_graph *graph);
void tcc_gpu_drop_graphs(tcc_gpu_instance *device); /* no graph may be running */

#endif
