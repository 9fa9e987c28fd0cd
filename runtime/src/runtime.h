/* Internal types shared by the runtime's files.  One paragraph per file of src/. */
#ifndef TCC_RUNTIME_H
#define TCC_RUNTIME_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tcc.h"
#include "tcc_pool.h"

#if defined(__GNUC__)
#define TCC_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define TCC_COLD __attribute__((cold, noinline))
#define TCC_RARE __attribute__((cold)) /* once a load: compiled for its size */
#define TCC_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#error "the runtime needs a compiler with GNU extensions (gcc, clang, zig cc)"
#endif

/* Headers from glibc 2.38 on have programs call functions of that version instead of these. */
int tcc_sscanf(const char *text, const char *format, ...) __asm__("__isoc99_sscanf")
    __attribute__((format(scanf, 2, 3)));
long tcc_strtol(const char *text, char **end, int base) __asm__("strtol");
long long tcc_strtoll(const char *text, char **end, int base) __asm__("strtoll");
unsigned long long tcc_strtoull(const char *text, char **end, int base) __asm__("strtoull");
#define sscanf tcc_sscanf
#define strtol tcc_strtol
#define strtoll tcc_strtoll
#define strtoull tcc_strtoull

#define TCC_RETURN_IF_ERROR(expression)                                                            \
    do {                                                                                           \
        tcc_status status_of_call = (expression);                                                  \
        if (TCC_UNLIKELY(status_of_call != TCC_OK)) return status_of_call;                         \
    } while (0)

#include "assets.h"
#include "ending.h"
#include "stamps.h"
#include "weights.h"
/* ---- status.c: the message of the calling thread ------------------------------------------- */

/* Sets the thread's message and returns `status`. */
tcc_status tcc_fail(tcc_status status, const char *format, ...) TCC_PRINTF(2, 3) TCC_COLD;
const char *tcc_last_error(void);

/* ---- alloc.c: where the runtime's own tables come from ---------------------------------------- */

/* As malloc and calloc; NULL with the thread's message set.  The test build can make the n-th
 * allocation fail. */
void *tcc_allocate(size_t bytes);
void *tcc_allocate_zero(size_t count, size_t bytes);
void tcc_free(void *memory);

/* ---- arena.c: large ranges from the system ----------------------------------------------------- */

typedef struct tcc_arena {
    void *base; /* 64-byte aligned; 2 MiB aligned, with huge pages asked for, from 1 MiB on */
    size_t size, room; /* bytes asked for, rounded; addresses that it can grow to where it lies */
    void *mapping;
    size_t mapped;
    size_t absent; /* bytes of `size` that may have no pages yet */
} tcc_arena;

/* Makes `arena` hold at least `size` zero or old bytes; what it held may be lost.  It has a
 * thirty-second more at most, or a page.  One that must be made anew gets addresses for four times
 * as much, and memory for them when it grows.  `tcc_populate` makes its first pages. */
tcc_status tcc_arena_reserve(tcc_arena *arena, size_t size);
size_t tcc_arena_rounded(size_t size); /* what it would hold, made for `size` bytes */
void tcc_arena_release(tcc_arena *arena);
/* Gives pages to memory for 20 ms, and to 256 MiB at most: their faults come now, not in the middle of a
 * run.  Returns how many bytes may have none. */
size_t tcc_populate(void *memory, size_t size);

#include "budget.h" /* of budget.c: how many bytes may be taken */

/* ---- pool/: memory for sizes that data decides; tcc_pool.h says what it promises ------------------- */

tcc_status tcc_pool_create(const tcc_pool_config *config, tcc_pool **out_pool);
/* The config of a caller that may be of another version. */
tcc_status tcc_pool_read_config(const tcc_pool_config *given, tcc_pool_config *out_config);
/* Within another budget than the process's; the config is of this version. */
tcc_status tcc_pool_create_within(const tcc_pool_config *config, tcc_budget *parent, tcc_pool **out_pool);
void tcc_pool_destroy(tcc_pool *pool);
tcc_status tcc_pool_take(tcc_pool *pool, size_t bytes, void **out_memory);
tcc_status tcc_pool_give(tcc_pool *pool, void *memory);
tcc_status tcc_pool_resize(tcc_pool *pool, void **memory, size_t bytes, size_t keep);
/* Around a fork, in parent and child, for a pool that is shared. */
void tcc_pool_before_fork(tcc_pool *pool);
void tcc_pool_after_fork(tcc_pool *pool, bool child);
/* Takes back all blocks, of a pool that is not shared: the end of a run. */
void tcc_pool_reset(tcc_pool *pool);
void tcc_pool_trim(tcc_pool *pool);
void tcc_pool_statistics_of(tcc_pool *pool, tcc_pool_statistics *out);
/* The artifact's shared pool for results, made at the first call. */
tcc_status tcc_result_pool(tcc_pool **out_pool);
tcc_status tcc_pages_create(tcc_pool *pool, size_t bytes, uint32_t count, tcc_pages **out_pages);
void tcc_pages_destroy(tcc_pages *pages);
tcc_status tcc_pages_take(tcc_pages *pages, uint32_t *out_page);
tcc_status tcc_pages_give(tcc_pages *pages, uint32_t page);
void *tcc_pages_address(const tcc_pages *pages, uint32_t page);
uint32_t tcc_pages_free(const tcc_pages *pages);

/* ---- heap.c: strings and lists of one run ---------------------------------------------------------- */

/* Programs hold strings and lists as handles: words that name entries of the run's heap.  Equal
 * strings have equal handles; 0 is the empty string, and the empty list.  All of it, and what it
 * points to, lives until the run ends.  Used by the thread that runs alone. */

struct tcc_op_tensor;

/* The first `count` of entries that lists share: none of them ever changes. */
typedef struct tcc_entries {
    struct tcc_op_tensor *items; /* strings and lists as handles, whatever their dtype's bits */
    int64_t used, room;
} tcc_entries;

typedef struct tcc_list_value {
    tcc_entries *entries; /* NULL: none */
    int64_t count;
} tcc_list_value;

typedef struct tcc_heap {
    tcc_pool *pool;
    tcc_string *strings;
    int64_t n_strings, string_room;
    int64_t *slots; /* of strings by hash, -1 where free */
    int64_t n_slots;
    tcc_list_value *lists;
    int64_t n_lists, list_room;
    int64_t n_entries; /* of all lists */
    char *chunk;
    size_t chunk_left;
} tcc_heap;

/* An empty heap, in memory of the pool. */
tcc_status tcc_heap_begin(tcc_heap *heap, tcc_pool *pool);
/* `bytes` on a multiple of 64. */
tcc_status tcc_heap_take(tcc_heap *heap, size_t bytes, void **out_memory);
/* The handle of a string; its bytes must live as long as the heap. */
tcc_status tcc_heap_intern(tcc_heap *heap, const char *data, int64_t size, uint64_t *out_handle);
/* TCC_INTERNAL for what is no handle. */
tcc_status tcc_heap_string(const tcc_heap *heap, uint64_t handle, tcc_string *out_string);
tcc_status tcc_heap_list(const tcc_heap *heap, uint64_t handle, tcc_list_value *out_list);
/* The list of `list`'s first `count` entries and one more, which takes over the memory of `item`. */
tcc_status tcc_heap_append(tcc_heap *heap, tcc_list_value list, const struct tcc_op_tensor *item,
                           tcc_list_value *out_list);
tcc_status tcc_heap_name_list(tcc_heap *heap, tcc_list_value list, uint64_t *out_handle);
/* A copy that lives as long as the heap. */
tcc_status tcc_heap_copy(tcc_heap *heap, const struct tcc_op_tensor *tensor,
                         struct tcc_op_tensor *out_tensor);
static inline bool tcc_is_opaque(tcc_dtype dtype) { return dtype.code == TCC_OPAQUE; }
static inline bool tcc_is_string(tcc_dtype dtype) {
    return dtype.code == TCC_OPAQUE && dtype.bits == 128;
}
/* Bytes of `count` elements as the heap holds them; -1 if that overflows. */
int64_t tcc_stored_bytes(tcc_dtype dtype, int64_t count);

/* ---- groups.c: limits of control groups, versions 1 and 2 ------------------------------------------- */

/* CPUs that the quotas of the process's control groups keep busy, rounded up; 0 without a quota. */
TCC_RARE int64_t tcc_group_cpus(void);

/* ---- limits.c: what the process may use ------------------------------------------------------------- */

/* Threads that `wanted` stands for: 1 to TCC_MAX_THREADS.  0 is the default: TCC_NUM_THREADS, else
 * the CPUs of the affinity mask, but no more than the control group's CPU quota keeps busy.  Fails
 * if TCC_NUM_THREADS is asked and no number. */
#define TCC_MAX_THREADS 256
tcc_status tcc_threads_resolve(int32_t wanted, int32_t *out_threads);
/* Nanoseconds that all idle workers spin: TCC_SPIN_MICROSECONDS, a minute at most, else 2 milliseconds,
 * also where it fails because that is no number. */
tcc_status tcc_spin_resolve(int64_t *out_nanoseconds);
/* Bytes that one instance may take for its arrays: TCC_MEMORY; 0 where that is not set.  Fails if it is
 * no size. */
TCC_RARE tcc_status tcc_memory_limit(size_t *out_bytes);

/* ---- notes.c: what the libraries of a process share ---------------------------------------------- */

/* The slot that the first object in load order with a note of this type names; NULL without one. */
void *tcc_note_slot(uint32_t type);
#define TCC_COMM_NOTE 1002 /* of a slot that holds the process's tcc_comm, which begins with a table */

/* ---- crew.c: launches on the process's workers --------------------------------------------------- */

typedef void (*tcc_kernel)(void *const *buffers, const int64_t *ints, int64_t begin, int64_t end,
                           void *scratch);

typedef struct tcc_job {
    tcc_kernel kernel;
    void *const *buffers;
    const int64_t *ints;
    int64_t units;
    char *scratch; /* thread t has scratch + t * scratch_stride */
    size_t scratch_stride;
    int32_t threads; /* at most this many, the caller included */
    const char *ahead; /* constants of the next launch, which idle threads may fetch; or NULL */
    int64_t ahead_bytes;
} tcc_job;

typedef struct tcc_workers tcc_workers;
typedef struct tcc_team tcc_team;

/* One run's hold on the workers. */
typedef struct tcc_crew {
    tcc_workers *workers; /* NULL: none in this process */
    tcc_team *team;       /* the run's own; NULL: none yet */
    int32_t asks;         /* the most threads that a launch asked for */
    int32_t share;        /* threads that it may have, next to other runs */
    int32_t calm;         /* launches since its share became larger than that */
    uint32_t forks;       /* of the process as the run began */
    int (*pause)(void *of); void *pause_of; /* of the run's own thread now and then while it waits; or NULL */
} tcc_crew;

/* Every run enters before its first launch and leaves after its last. */
void tcc_crew_enter(tcc_crew *crew);
void tcc_crew_leave(tcc_crew *crew);
/* Runs units 0 .. units-1, each once, after all earlier launches of the crew.  It may return while
 * workers still run some of them: what else looks at the data settles first, and `buffers` and `ints`
 * stay as they are until the launch after the next.  Runs at the same time share the CPUs in proportion
 * to what their launches ask for. */
void tcc_crew_launch(tcc_crew *crew, const tcc_job *job);
/* Waits until all launches are done. */
void tcc_crew_settle(tcc_crew *crew);

/* ---- program.c: the decoded host program --------------------------------------------------------- */

typedef struct tcc_buffer {
    int32_t place;
    int64_t a, b; /* port; or offset and size: bytes of weights, registers of the arena */
} tcc_buffer;

typedef struct tcc_code tcc_code;

typedef struct tcc_body {
    const tcc_code *code;
    int64_t count;
} tcc_body;

typedef struct tcc_tensor_ref {
    int64_t buffer;
    tcc_dtype dtype;
    int32_t ndim;
    const int64_t *dims; /* registers */
} tcc_tensor_ref;

/* What a list holds says the table of instructions. */
typedef struct tcc_operands {
    int64_t count;
    union {
        const int64_t *numbers;
        const tcc_tensor_ref *tensors;
    };
} tcc_operands;

#include "instructions.h"

struct tcc_op_call;
struct tcc_comm_call;
typedef tcc_status (*tcc_op)(struct tcc_op_call *call);

struct tcc_code {
    int32_t kind;
    int32_t ahead;  /* of a launch: the largest weight of the launch after it; -1: none */
    int32_t number; /* of a launch, call, collective or wait: its place among them; of a plan: among plans */
    int32_t proof;  /* of a launch: where instances note what they proved of it; -1: runs prove nothing */
    union {
        tcc_kernel kernel; /* of a launch; NULL on a GPU */
        tcc_op op;         /* of a call */
        const tcc_code *plan; /* of a plan: the next in the program's list, or NULL */
        int64_t counts;    /* of a collective: the place of its counts among the program's */
    };
    tcc_fields as;
};

typedef struct tcc_port_info {
    tcc_port port;
    const int64_t *dims; /* registers */
    int32_t axis;        /* of an input: along it the array may have room behind its rows; or -1 */
} tcc_port_info;

typedef struct tcc_program {
    int64_t n_registers, n_buffers, n_kernels, scratch, arena;
    int32_t n_inputs, n_outputs;
    const tcc_port_info *inputs, *outputs;
    const tcc_buffer *buffers;
    const int64_t *arena_buffers; /* ids of the buffers placed in the arenas */
    int64_t n_arena_buffers;
    tcc_body prologue; /* the body's leading lets, checks and reads of inputs: it sizes the arena */
    tcc_body body;     /* the rest */
    int64_t max_buffers, max_ints, max_tensors, max_dims, max_results, max_rank; /* of any instruction */
    int64_t state_bytes;
    int64_t n_steps; /* launches, calls, collectives and waits */
    int64_t n_tickets, n_counts; /* of all collectives */
    int32_t ranks; /* that collectives of all ranks are for; 0: any number; -1: it needs no comm */
    const struct tcc_rank_group *groups; /* of collective.h */
    int64_t n_groups;
    int64_t sharers; /* the group that all collectives are of, whose ranks share memory; or -1 */
    int64_t known_arena; /* the arena's size where inputs do not change it; else 0 */
    const uint8_t *fixed; /* by register: the prologue sets it, nothing else does, and inputs do not */
    const int64_t *constants; /* change the value, which is here */
    const int64_t **needs; /* by kernel: a row of needs.c; NULL: nobody says what the kernels need */
    int64_t max_values, n_proofs; /* registers of the longest row; words of all proofs */
    const tcc_code *plans; /* list of those in the body */
    int64_t n_plans;
    void *memory; /* list of what decoding allocated */
} tcc_program;

/* Decodes and checks `bytes`; every index, size and depth in the result is in range.  Fails with
 * TCC_CORRUPT, never by a signal, whatever the bytes are.  `kernels` is NULL for a GPU's program. */
TCC_RARE tcc_status tcc_program_decode(const void *bytes, size_t size, const tcc_kernel *kernels,
                              int64_t n_kernels, int64_t weight_bytes, tcc_program *out_program);
void tcc_program_free(tcc_program *program);

/* ---- features.c: what the CPU must have ------------------------------------------------------------- */

/* x86-64: CPUID leaf, sub-leaf, register (0 eax .. 3 edx), bit, and the XCR0 bits the system must
 * have enabled.  aarch64: `leaf` is the auxiliary vector's key, `bit` the bit of its value. */
typedef struct tcc_feature {
    const char *name;
    uint32_t leaf, subleaf, reg, bit;
    uint64_t xcr0;
} tcc_feature;

TCC_RARE tcc_status tcc_features_check(const tcc_feature *features, int32_t count, const char *model);

/* ---- the link step's object: what one artifact consists of ------------------------------------------- */

#define TCC_ABI_VERSION 3

#define TCC_MAX_RANKS 64 /* that a model is divided for */
#define TCC_MAX_PLANS 64 /* for one number of ranks */

/* The model as one program, its code and its weights.  All variants have the same ports, but the states
 * of a model that is divided for several ranks have a size for each plan. */
typedef struct tcc_variant {
    const char *target; /* as a command line names it */
    int32_t ranks;      /* that it is divided for; 1: it is not */
    int32_t plan;       /* its place among the plans for so many ranks; less than TCC_MAX_PLANS */
    const uint8_t *program;
    const uint8_t *program_end;
    const uint8_t *needs, *needs_end; /* of the kernels, as needs.h has it; NULL: not known */
    const tcc_kernel *kernels; /* NULL: the images have them */
    int64_t n_kernels;
    const tcc_feature *features; /* of the CPU, which runs at least the program */
    int32_t n_features;
    const tcc_range *weights; /* of the weight section, by rank: all of one size */
    tcc_range images;  /* kernels for GPUs, there too, on a multiple of 64; empty: for the CPU */
} tcc_variant;

typedef struct tcc_artifact {
    uint32_t abi;
    const char *name;
    const char *manifest;
    const char *manifest_end;
    const tcc_variant *variants; /* the first that can run here is taken */
    int32_t n_variants;
    uint64_t section_bytes; /* all variants' weights and images */
    uint8_t section_sha256[32];
    uint8_t sha256[32]; /* of all programs, code and weights */
    const char *section;   /* the weight section, where a program's file holds it; else NULL */
    const char *side_name; /* of the side file, in an object that a program or library links; else NULL */
    const tcc_assets *assets; /* files beside the model; NULL: none */
} tcc_artifact;

extern const tcc_artifact tcc_artifact_info;

/* ---- gpu/: the same programs on a GPU; gpu/gpu.h has the parts ------------------------------------------ */

typedef struct tcc_gpu tcc_gpu;
typedef struct tcc_gpu_instance tcc_gpu_instance;

/* Finds the variant that suits a GPU of this machine best, and that GPU.  TCC_UNSUPPORTED, with all
 * reasons, where no GPU can run any.  Variants are for `ranks` and `plan`, as tcc_ranks_serve has it.
 * `section` is the whole weight section, mapped until tcc_gpu_open has returned. */
TCC_RARE tcc_status tcc_gpu_find(const tcc_artifact *artifact, int32_t ranks, int32_t plan,
                        const char *section, const tcc_variant **out_variant, tcc_gpu **out_gpu);
/* Brings kernels and weights of the variant that was found to its GPU. */
TCC_RARE tcc_status tcc_gpu_open(tcc_gpu *gpu, const tcc_program *program, const char *weights, size_t bytes,
                        const char *model);
void tcc_gpu_close(tcc_gpu *gpu);
/* Can the model take an array that lies there?  `tcc_gpu_expected` says what it can take. */
bool tcc_gpu_accepts(const tcc_gpu *gpu, tcc_device device);
const char *tcc_gpu_expected(const tcc_gpu *gpu, char text[64]);
bool tcc_gpu_is_host(tcc_device device);
/* Memory of the device, for whoever wants results there. */
tcc_status tcc_gpu_take(tcc_gpu *gpu, size_t bytes, void **out_memory);
void tcc_gpu_give(tcc_gpu *gpu, void *memory);
tcc_status tcc_gpu_instance_create(tcc_instance *instance);
void tcc_gpu_instance_destroy(tcc_instance *instance);
void tcc_gpu_statistics(const tcc_instance *instance, tcc_statistics *out);

/* ---- model.c, instance.c, interpret.c ------------------------------------------------------------------ */

struct tcc_model {
    const tcc_variant *variant;
    int32_t ranks, rank, plan; /* that it is loaded for; zeros: the artifact has one plan for all */
    tcc_program program;
    tcc_weights weights; /* of a model on a GPU: until they are there */
    tcc_gpu *gpu; /* NULL: the CPU */
    int32_t threads; /* wanted; 0 is the default */
};

typedef struct tcc_span {
    char *data; /* NULL: not allocated, not aimed yet */
    int64_t size;
} tcc_span;

struct tcc_instance {
    const tcc_model *model;
    tcc_instance *next; /* in the model's list of idle instances */
    uint32_t flags;
    int32_t threads;        /* what the last run used; 0 before the first */
    int32_t threads_wanted; /* what `threads` stands for */
    int32_t threads_own;    /* overrides the model's number; -1: does not */
    tcc_arena arena, scratch, state;
    tcc_arena symmetric; /* counts bytes of the comm too, where that has such memory */
    size_t scratch_stride;
    tcc_budget budget; /* of the four and the pool */
    tcc_pool *pool;
    int64_t *registers;
    tcc_span *spans;         /* by buffer id */
    void **launch_buffers;   /* twice the room for the largest launch: two may be in flight */
    int64_t *launch_ints;
    int64_t *need_values, *proofs; /* units, ints and bytes of buffers with which a launch was right */
    struct tcc_op_tensor *tensors;
    int64_t *dims, *results, *shape; /* the last of the output being allocated */
    tcc_span *bound; /* by input port: the caller's array, or a row-major copy */
    bool *output_done;
    tcc_heap heap;        /* of the run in progress */
    tcc_span *handles;    /* by output port: strings or a list as the program wrote them */
    struct tcc_placer **placers; /* of place.h, by number of a plan instruction */
    struct tcc_flight *flights;  /* by ticket: collectives under way */
    int64_t *counts;             /* of blocks, until a wait; then room for other ranks' */
    tcc_comm **groups; /* by number of a group: the comm of this rank's list; they are their comm's */
    tcc_time *times; /* by step's number; NULL: nobody asked */
    tcc_ending ending;
    int64_t *chunks; /* by step's number: units of a launch that take some milliseconds; 0: not known */
    tcc_comm *comm;  /* kept; NULL: the process's */
    bool plain;      /* launches go to the workers, untimed */
    const struct tcc_executor *executor; /* NULL: the CPU */
    tcc_gpu_instance *device;            /* what the executor needs */
    void *views; /* of Python's arrays; NULL before the first call */
    bool seeded; uint64_t seed; tcc_ring ring; /* of its runs */
};

/* The run in progress, as the interpreter sees it. */
typedef struct tcc_run {
    tcc_instance *instance;
    const tcc_tensor *inputs;
    tcc_tensor *outputs; /* NULL: all from the allocator */
    const tcc_allocator *allocator;
    tcc_crew crew;
    bool odd; int64_t executions; /* which half of the launch tables is next; steps begun, if watched */
    tcc_comm *comm;    /* of a model with collectives */
    struct tcc_comm_memory *symmetric; /* of the comm: the run keeps it; NULL: none */
    int32_t in_flight; /* collectives under way */
    bool cut; int64_t since; /* launches that end with it are under way; work since it looked up */
    bool seeded, fresh; uint64_t seed; /* which no other run has, if `fresh` */
} tcc_run;

/* What instructions do where buffers are not in this process's memory.  The interpreter has checked
 * sizes and offsets; all work is done in the order of the calls. */
typedef struct tcc_executor {
    tcc_status (*launch)(tcc_run *run, const tcc_code *code, int64_t units);
    /* `arguments` has the operands' addresses there; inputs and outputs are one table. */
    tcc_status (*call)(tcc_run *run, tcc_op op, const struct tcc_op_call *arguments);
    tcc_status (*copy)(tcc_run *run, char *target, const char *source, int64_t size);
    tcc_status (*output)(tcc_run *run, int32_t index, int64_t size, tcc_span *span);
    /* Makes the dynamic buffer hold `size` bytes, the first `keep` of them as they were. */
    tcc_status (*resize)(tcc_run *run, int64_t buffer, int64_t size, int64_t keep);
    /* Reads a buffer after all earlier work is done. */
    tcc_status (*fetch)(tcc_run *run, int64_t buffer, int64_t offset, int64_t size, void *out_bytes);
    tcc_status (*settle)(tcc_run *run); /* waits for all earlier work */
    tcc_status (*start)(tcc_run *run, const struct tcc_comm_call *call, const tcc_code *code);
    tcc_status (*wait)(tcc_run *run, int64_t ticket); /* later work is behind the collective */
} tcc_executor;

/* A run on a GPU, from the caller's arrays to the results. */
tcc_status tcc_gpu_run(tcc_run *run, void *stream);

/* Words in one half of a launch table for launches of at most so many operands, behind the head. */
static inline int64_t tcc_launch_room(int64_t operands) {
    return operands / 8 * 8 + TCC_LAUNCH_HEAD + 16; /* no line in common */
}
tcc_status tcc_instance_create(tcc_model *model, uint32_t flags, tcc_instance **out_instance);
tcc_status tcc_instance_create_on(tcc_model *model, uint32_t flags, tcc_comm *comm, tcc_instance **out_instance);
void tcc_instance_destroy(tcc_instance *instance);
tcc_status tcc_instance_set_memory_limit(tcc_instance *instance, uint64_t bytes);
tcc_status tcc_instance_set_pool(tcc_instance *instance, const tcc_pool_config *config);
tcc_status tcc_instance_run(tcc_instance *instance, const tcc_tensor *inputs, int32_t n_inputs,
                            tcc_tensor *outputs, int32_t n_outputs, const tcc_allocator *allocator,
                            void *stream);
tcc_status tcc_interpret(tcc_run *run, tcc_body body);
tcc_status tcc_interpret_all(tcc_run *run); /* the body; what of it may end with the run is done */
/* Empties the heap, binds the arrays and runs the prologue: all sizes are known then. */
tcc_status tcc_instance_prepare(tcc_run *run);
/* Bytes of the arena for these sizes. */
tcc_status tcc_instance_arena_size(const tcc_instance *instance, int64_t *out_size);
/* Aims the buffers of weights and state, once. */
void tcc_instance_aim_constants(tcc_instance *instance, const char *weights, char *state);
/* Bytes of the symmetric arena: where the last of its buffers ends. */
tcc_status tcc_instance_symmetric_size(const tcc_instance *instance, int64_t *out_size);
/* Aims the buffers of both arenas. */
tcc_status tcc_instance_aim_arena(tcc_instance *instance, tcc_span arena, tcc_span symmetric);

/* arrays.c: the caller's arrays. */
/* Copies a strided array to row-major order; elements have `element` bytes. */
void tcc_gather(char *target, const char *source, const tcc_tensor *tensor, int64_t element);
/* Bytes of a row-major array, or -1 if a size is negative or the product overflows. */
int64_t tcc_byte_count(const int64_t *shape, int32_t ndim, tcc_dtype dtype);
bool tcc_is_row_major(const tcc_tensor *tensor);
int64_t tcc_capacity(const tcc_tensor *tensor, int32_t axis); /* -1: it has none */
tcc_status tcc_ask_allocator(tcc_run *run, int32_t index, const tcc_tensor *wanted, char **out_data);

/* ports.c: the caller's arrays against the ports. */
tcc_status tcc_ports_bind_inputs(tcc_run *run);
tcc_status tcc_ports_check_inputs(const tcc_run *run); /* after the prologue */
tcc_status tcc_ports_bind_outputs(tcc_run *run);
tcc_status tcc_ports_allocate_output(tcc_run *run, int32_t index, int64_t size, tcc_device device,
                                     tcc_span *span);
bool tcc_ports_feeds_state(const tcc_program *program, int32_t input); /* it is updated in place */
tcc_status tcc_ports_check_outputs_written(const tcc_run *run);
/* values.c: strings and lists of callers, and handles of an input whose descriptor fits its port. */
tcc_status tcc_values_bind(tcc_run *run, int32_t index, tcc_span *out_span);
/* Writes all outputs of strings and lists to memory of the allocator. */
tcc_status tcc_values_give(tcc_run *run);
const char *tcc_dtype_name(tcc_dtype dtype, char text[16]);

/* variants.c: what of an artifact runs here. */
/* Fills the variant, program, weights and any GPU of `model`, whose rank and plan are chosen.  On failure
 * nothing is held. */
TCC_RARE tcc_status tcc_variant_open(const tcc_artifact *artifact, tcc_model *model);
tcc_status tcc_model_get(tcc_model **out_model);
tcc_status tcc_model_get_on(tcc_comm *comm, tcc_model **out_model);
void tcc_model_release(tcc_model *model);
tcc_status tcc_model_call(tcc_model *model, const tcc_tensor *inputs, int32_t n_inputs,
                          tcc_tensor *outputs, int32_t n_outputs, const tcc_allocator *allocator,
                          void *stream);
void tcc_model_trim(tcc_model *model);
const tcc_api *tcc_runtime_api(void);

/* ---- ops/: C functions that CallOp reaches ------------------------------------------------------------- */

typedef struct tcc_op_tensor {
    void *data;
    tcc_dtype dtype;
    int32_t ndim;
    const int64_t *dims;
    int64_t count; /* product of dims */
} tcc_op_tensor;

typedef struct tcc_op_call {
    const tcc_op_tensor *inputs, *outputs;
    int32_t n_inputs, n_outputs;
    const int64_t *ints;
    int32_t n_ints;
    int64_t *results; /* n_results values that the function must set */
    int32_t n_results;
    tcc_pool *pool; /* for temporaries */
    tcc_crew *crew; /* what it may launch on, all earlier launches done; NULL: the calling thread */
    int32_t threads;
    tcc_heap *heap; /* of strings and lists, and for temporaries that live until the run ends */
    tcc_ending *ending; /* of the run; NULL: it does not end before its time */
} tcc_op_call;

/* The function called `name`, or NULL. */
tcc_op tcc_op_find(const char *name);

#endif
