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
#define TCC_RARE __attribute__((cold)) /* runs once per load: the compiler optimises it for size */
#define TCC_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#error "the runtime needs a compiler with GNU extensions (gcc, clang, zig cc)"
#endif

/* glibc 2.38 headers would make programs call that version's functions instead of these. */
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

/* Allocate as malloc and calloc do.  They return NULL, with the thread's message set, where there
 * is no memory.  The test build can make the n-th allocation fail. */
void *tcc_allocate(size_t bytes);
void *tcc_allocate_zero(size_t count, size_t bytes);
void tcc_free(void *memory);

/* ---- arena.c: large ranges from the system ----------------------------------------------------- */

typedef struct tcc_arena {
    void *base; /* 64-byte aligned; 2 MiB aligned, with huge pages asked for, from 1 MiB on */
    size_t size, room; /* bytes asked for, rounded up; bytes that it can grow to without moving */
    void *mapping;
    size_t mapped;
    size_t absent; /* bytes of `size` that may have no pages yet */
} tcc_arena;

/* Makes `arena` hold at least `size` bytes, each zero or an old value; the old contents may be
 * lost.  The arena gets at most a thirty-second more than `size`, or a page more.  A new mapping
 * reserves addresses for four times its size, and gets memory for them when it grows.
 * `tcc_populate` makes the first pages. */
tcc_status tcc_arena_reserve(tcc_arena *arena, size_t size);
size_t tcc_arena_rounded(size_t size); /* the size of an arena that is made for `size` bytes */
void tcc_arena_release(tcc_arena *arena);
/* Gives pages to memory, for at most 20 ms and 256 MiB, so that the page faults do not come in the
 * middle of a run.  Returns how many bytes may have no pages. */
size_t tcc_populate(void *memory, size_t size);

#include "budget.h" /* budget.c: how many bytes may be taken */

/* ---- pool/: memory for sizes that data decides; tcc_pool.h says what it promises ------------------- */

tcc_status tcc_pool_create(const tcc_pool_config *config, tcc_pool **out_pool);
/* Reads a caller's config, which may have another version. */
tcc_status tcc_pool_read_config(const tcc_pool_config *config, tcc_pool_config *out_config);
/* Creates a pool within `parent` instead of the process's budget.  The config has this version. */
tcc_status tcc_pool_create_within(const tcc_pool_config *config, tcc_budget *parent, tcc_pool **out_pool);
void tcc_pool_destroy(tcc_pool *pool);
tcc_status tcc_pool_take(tcc_pool *pool, size_t bytes, void **out_memory);
tcc_status tcc_pool_give(tcc_pool *pool, void *memory);
tcc_status tcc_pool_resize(tcc_pool *pool, void **memory, size_t bytes, size_t keep);
/* Lock a shared pool before a fork, and unlock it after the fork in parent and child. */
void tcc_pool_before_fork(tcc_pool *pool);
void tcc_pool_after_fork(tcc_pool *pool, bool child);
/* Takes back all blocks of a pool that is not shared, at the end of a run. */
void tcc_pool_reset(tcc_pool *pool);
void tcc_pool_trim(tcc_pool *pool);
void tcc_pool_statistics_of(tcc_pool *pool, tcc_pool_statistics *out);
/* Returns the artifact's shared pool for results; the first call makes it. */
tcc_status tcc_result_pool(tcc_pool **out_pool);
tcc_status tcc_pages_create(tcc_pool *pool, size_t bytes, uint32_t count, tcc_pages **out_pages);
void tcc_pages_destroy(tcc_pages *pages);
tcc_status tcc_pages_take(tcc_pages *pages, uint32_t *out_page);
tcc_status tcc_pages_give(tcc_pages *pages, uint32_t page);
void *tcc_pages_address(const tcc_pages *pages, uint32_t page);
uint32_t tcc_pages_free(const tcc_pages *pages);

/* ---- heap.c: strings and lists of one run ---------------------------------------------------------- */

/* Declares the heap of a run.  Programs hold strings and lists as handles: words that name entries
 * of the heap.  Equal strings have equal handles; handle 0 is the empty string and the empty list.
 * The heap, and everything that it points to, lives until the run ends.  Only the running thread
 * uses it. */

struct tcc_op_tensor;

/* The first `count` entries of a table that several lists share.  An entry never changes. */
typedef struct tcc_entries {
    struct tcc_op_tensor *items; /* strings and lists as handles, whatever bits their dtype has */
    int64_t used, room;
} tcc_entries;

typedef struct tcc_list_value {
    tcc_entries *entries; /* NULL: no entries */
    int64_t count;
} tcc_list_value;

typedef struct tcc_heap {
    tcc_pool *pool;
    tcc_string *strings;
    int64_t n_strings, string_room;
    int64_t *slots; /* strings by hash, -1 where free */
    int64_t n_slots;
    tcc_list_value *lists;
    int64_t n_lists, list_room;
    int64_t n_entries; /* entries of all lists */
    char *chunk;
    size_t chunk_remaining;
} tcc_heap;

/* Makes an empty heap in memory of the pool. */
tcc_status tcc_heap_begin(tcc_heap *heap, tcc_pool *pool);
/* Takes `bytes` bytes, aligned to 64. */
tcc_status tcc_heap_take(tcc_heap *heap, size_t bytes, void **out_memory);
/* Finds or makes the handle of a string.  The string's bytes must live as long as the heap. */
tcc_status tcc_heap_intern(tcc_heap *heap, const char *data, int64_t size, uint64_t *out_handle);
/* Finds the string of a handle.  Fails with TCC_INTERNAL where the word is no handle. */
tcc_status tcc_heap_string(const tcc_heap *heap, uint64_t handle, tcc_string *out_string);
tcc_status tcc_heap_list(const tcc_heap *heap, uint64_t handle, tcc_list_value *out_list);
/* Makes a list of `list`'s first `count` entries and of `item`, whose memory it takes over. */
tcc_status tcc_heap_append(tcc_heap *heap, tcc_list_value list, const struct tcc_op_tensor *item,
                           tcc_list_value *out_list);
tcc_status tcc_heap_name_list(tcc_heap *heap, tcc_list_value list, uint64_t *out_handle);
/* Copies a tensor into memory that lives as long as the heap. */
tcc_status tcc_heap_copy(tcc_heap *heap, const struct tcc_op_tensor *tensor,
                         struct tcc_op_tensor *out_tensor);
static inline bool tcc_is_opaque(tcc_dtype dtype) { return dtype.code == TCC_OPAQUE; }
static inline bool tcc_is_string(tcc_dtype dtype) {
    return dtype.code == TCC_OPAQUE && dtype.bits == 128;
}
/* Returns the bytes of `count` elements as the heap holds them; -1 if the number overflows. */
int64_t tcc_stored_bytes(tcc_dtype dtype, int64_t count);

/* ---- groups.c: limits of control groups, versions 1 and 2 ------------------------------------------- */

/* Returns the CPUs that the quotas of control groups keep busy, rounded up; 0 without a quota. */
TCC_RARE int64_t tcc_group_cpus(void);

/* ---- limits.c: what the process may use ------------------------------------------------------------- */

/* Resolves a wish for threads to 1 to TCC_MAX_THREADS threads.  `request` 0 is the default:
 * TCC_NUM_THREADS, else the CPUs of the affinity mask, limited by the control group's CPU quota.
 * Fails if TCC_NUM_THREADS is needed and is no number. */
#define TCC_MAX_THREADS 256
tcc_status tcc_threads_resolve(int32_t request, int32_t *out_threads);
/* Computes the nanoseconds that all idle workers spin: TCC_SPIN_MICROSECONDS, at most a minute,
 * else 2 milliseconds, also where it fails because the variable is no number. */
tcc_status tcc_spin_resolve(int64_t *out_nanoseconds);
/* Computes the bytes that one instance may take for its arrays: TCC_MEMORY, or 0 where it is not
 * set.  Fails if TCC_MEMORY is no size. */
TCC_RARE tcc_status tcc_memory_limit(size_t *out_bytes);

/* ---- notes.c: what the libraries of a process share ---------------------------------------------- */

/* Returns the slot that the first object's note of this type names; NULL without a note. */
void *tcc_note_slot(uint32_t type);
#define TCC_COMM_NOTE 1002 /* note type of the process's comm, which begins with a table */

/* ---- crew.c: launches on the process's workers --------------------------------------------------- */

typedef void (*tcc_kernel)(void *const *buffers, const int64_t *ints, int64_t begin, int64_t end,
                           void *scratch);

typedef struct tcc_job {
    tcc_kernel kernel;
    void *const *buffers;
    const int64_t *ints;
    int64_t units;
    char *scratch; /* thread t uses scratch + t * scratch_stride */
    size_t scratch_stride;
    int32_t threads; /* threads that may take part, the caller included */
    const char *ahead; /* constants of the next launch, which idle threads may prefetch; or NULL */
    int64_t ahead_bytes;
} tcc_job;

typedef struct tcc_workers tcc_workers;
typedef struct tcc_team tcc_team;

/* The workers that one run holds. */
typedef struct tcc_crew {
    tcc_workers *workers; /* NULL: this process has no workers */
    tcc_team *team;       /* the run's team; NULL: none yet */
    int32_t asks;         /* the most threads that a launch has asked for */
    int32_t share;        /* threads that the run may use beside other runs */
    int32_t calm;         /* launches since the run could have had more than `share` */
    uint32_t forks;       /* the process's count of forks when the run began */
    int (*pause)(void *of); void *pause_of; /* the run's own thread calls it while waiting */
} tcc_crew;

/* Every run calls enter before its first launch and leave after its last. */
void tcc_crew_enter(tcc_crew *crew);
void tcc_crew_leave(tcc_crew *crew);
/* Runs units 0 .. units-1, each once, after all earlier launches of the crew.  It may return while
 * workers still run units: a caller must settle before anything but a launch reads the data, and
 * must leave `buffers` and `ints` unchanged until the launch after the next.  Concurrent runs share
 * the CPUs in proportion to the threads that their launches ask for. */
void tcc_crew_launch(tcc_crew *crew, const tcc_job *job);
/* Waits until all launches are done. */
void tcc_crew_settle(tcc_crew *crew);

/* ---- program.c: the decoded host program --------------------------------------------------------- */

typedef struct tcc_buffer {
    int32_t place;
    int64_t a, b; /* port; or offset and size: bytes of weights, registers for the arena */
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

/* The numbers of a list operand.  The table of instructions says what they stand for. */
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
    int32_t ahead;  /* launches: the largest weight of the next launch; -1: none */
    int32_t number; /* launches, calls, collectives, waits; of plans: among plans */
    int32_t proof;  /* launches: where instances note their proof; -1: none */
    union {
        tcc_kernel kernel; /* launches; NULL on a GPU */
        tcc_op op;         /* calls */
        const tcc_code *plan; /* plans: the next plan in the program's list, or NULL */
        int64_t counts;    /* collectives: the place of its counts among the program's */
    };
    tcc_fields as;
};

typedef struct tcc_port_info {
    tcc_port port;
    const int64_t *dims; /* registers */
    int32_t axis;        /* inputs: axis with room behind its rows; or -1 */
} tcc_port_info;

typedef struct tcc_program {
    int64_t n_registers, n_buffers, n_kernels, scratch, arena;
    int32_t n_inputs, n_outputs;
    const tcc_port_info *inputs, *outputs;
    const tcc_buffer *buffers;
    const int64_t *arena_buffers; /* ids of the buffers placed in the arenas */
    int64_t n_arena_buffers;
    tcc_body prologue; /* the body's leading lets, checks and reads of inputs: it sizes the arena */
    tcc_body body;     /* all other instructions */
    /* the largest counts of any instruction */
    int64_t max_buffers, max_ints, max_tensors, max_dims, max_results, max_rank;
    int64_t state_bytes;
    int64_t n_steps; /* launches, calls, collectives and waits */
    int64_t n_tickets, n_counts; /* counts of all collectives together */
    int32_t ranks; /* that collectives are for; 0: any; -1: needs no comm */
    const struct tcc_rank_group *groups; /* see collective.h */
    int64_t n_groups;
    int64_t sharers; /* the group of all collectives, whose ranks share memory; or -1 */
    int64_t fixed_arena; /* the arena's size where inputs do not change it; else 0 */
    const uint8_t *fixed; /* by register: only the prologue sets it, without inputs */
    const int64_t *constants; /* the values of fixed registers */
    const int64_t **needs; /* by kernel: a row of needs.c; NULL: unknown */
    int64_t max_values, n_proofs; /* registers of the longest row; words of all proofs */
    const tcc_code *plans; /* list of the body's plan instructions */
    int64_t n_plans;
    void *memory; /* list of the blocks that decoding allocated */
} tcc_program;

/* Decodes and checks `size` bytes.  Every index, size and depth in the result is in range.  Bad
 * bytes cause TCC_CORRUPT, never a signal.  `kernels` is NULL for a GPU's program. */
TCC_RARE tcc_status tcc_program_decode(const void *bytes, size_t size, const tcc_kernel *kernels,
                              int64_t n_kernels, int64_t weight_bytes, tcc_program *out_program);
void tcc_program_free(tcc_program *program);

/* ---- features.c: what the CPU must have ------------------------------------------------------------- */

/* A CPU feature.  On x86-64 it has a CPUID leaf, sub-leaf, register (0 eax .. 3 edx), bit, and the
 * XCR0 bits that the system must have enabled.  On aarch64 `leaf` is the auxiliary vector's key and
 * `bit` the bit of its value. */
typedef struct tcc_feature {
    const char *name;
    uint32_t leaf, subleaf, reg, bit;
    uint64_t xcr0;
} tcc_feature;

TCC_RARE tcc_status tcc_features_check(const tcc_feature *features, int32_t count, const char *model);

/* ---- the link step's object: what one artifact consists of ------------------------------------------- */

#define TCC_ABI_VERSION 3

#define TCC_MAX_RANKS 64 /* that a model can be divided for */
#define TCC_MAX_PLANS 64 /* for each number of ranks */

/* The model as one program with its code and weights.  All variants have the same ports, except
 * that the states of a model divided for several ranks have each plan's own sizes. */
typedef struct tcc_variant {
    const char *target; /* the target as a command line names it */
    int32_t ranks;      /* ranks that the model is divided for; 1: it is not divided */
    int32_t plan;       /* place among the plans for as many ranks; < TCC_MAX_PLANS */
    const uint8_t *program;
    const uint8_t *program_end;
    const uint8_t *needs, *needs_end; /* what the kernels need (needs.h); NULL: unknown */
    const tcc_kernel *kernels; /* NULL: the kernels are in the images */
    int64_t n_kernels;
    const tcc_feature *features; /* the CPU features that at least the program needs */
    int32_t n_features;
    const tcc_range *weights; /* ranges of the weight section, by rank, all of one size */
    tcc_range images;  /* GPU kernels in the same section, aligned to 64; empty for the CPU */
} tcc_variant;

typedef struct tcc_artifact {
    uint32_t abi;
    const char *name;
    const char *manifest;
    const char *manifest_end;
    const tcc_variant *variants; /* by preference: the first that can run here is used */
    int32_t n_variants;
    uint64_t section_bytes; /* bytes of all variants' weights and images */
    uint8_t section_sha256[32];
    uint8_t sha256[32]; /* the hash of all programs, code and weights */
    const char *section;   /* the weight section if a program's file holds it; else NULL */
    const char *side_name; /* side file of an object that a program links; else NULL */
    const tcc_assets *assets; /* files beside the model; NULL: none */
} tcc_artifact;

extern const tcc_artifact tcc_artifact_info;

/* ---- gpu/: the same programs on a GPU; gpu/gpu.h has the parts ------------------------------------------ */

typedef struct tcc_gpu tcc_gpu;
typedef struct tcc_gpu_instance tcc_gpu_instance;

/* Finds the variant that suits a GPU of this machine best, and that GPU, among the variants for
 * `ranks` and `plan` (tcc_ranks_serve).  Fails with TCC_UNSUPPORTED and all reasons where no GPU
 * can run any variant.  `section` is the whole weight section, mapped until tcc_gpu_open has
 * returned. */
TCC_RARE tcc_status tcc_gpu_find(const tcc_artifact *artifact, int32_t ranks, int32_t plan,
                        const char *section, const tcc_variant **out_variant, tcc_gpu **out_gpu);
/* Copies kernels and weights of the variant that was found to its GPU. */
TCC_RARE tcc_status tcc_gpu_open(tcc_gpu *gpu, const tcc_program *program, const char *weights, size_t bytes,
                        const char *model);
void tcc_gpu_close(tcc_gpu *gpu);
/* Returns true if the model can take an array on that device.  `tcc_gpu_expected` describes the
 * devices that it can take. */
bool tcc_gpu_accepts(const tcc_gpu *gpu, tcc_device device);
const char *tcc_gpu_expected(const tcc_gpu *gpu, char text[64]);
bool tcc_gpu_is_host(tcc_device device);
/* Takes memory of the device, for results. */
tcc_status tcc_gpu_take(tcc_gpu *gpu, size_t bytes, void **out_memory);
void tcc_gpu_give(tcc_gpu *gpu, void *memory);
tcc_status tcc_gpu_instance_create(tcc_instance *instance);
void tcc_gpu_instance_destroy(tcc_instance *instance);
void tcc_gpu_statistics(const tcc_instance *instance, tcc_statistics *out);

/* ---- model.c, instance.c, interpret.c ------------------------------------------------------------------ */

struct tcc_model {
    const tcc_variant *variant;
    int32_t ranks, rank, plan; /* the model is loaded for them; zeros: the artifact has one plan for
                                  all */
    tcc_program program;
    tcc_weights weights; /* a model on a GPU holds them only until the GPU has them */
    tcc_gpu *gpu; /* NULL: the model runs on the CPU */
    int32_t threads; /* threads wanted; 0 is the default */
};

typedef struct tcc_span {
    char *data; /* NULL: the buffer has no address yet */
    int64_t size;
} tcc_span;

struct tcc_instance {
    const tcc_model *model;
    tcc_instance *next; /* next in the model's list of idle instances */
    uint32_t flags;
    int32_t threads;        /* threads of the last run; 0 before the first */
    int32_t threads_wanted; /* the setting that `threads` was resolved from */
    int32_t threads_own;    /* overrides the model's number; -1: no override */
    tcc_arena arena, scratch, state;
    tcc_arena symmetric; /* its size counts bytes of the comm too, where the comm has the memory */
    size_t scratch_stride;
    tcc_budget budget; /* for the four arenas and the pool */
    tcc_pool *pool;
    int64_t *registers;
    tcc_span *spans;         /* by buffer id */
    void **launch_buffers;   /* twice the room for the largest launch, because two may be in
                                flight */
    int64_t *launch_ints;
    int64_t *need_values, *proofs; /* units, ints and buffer bytes of launches that passed the
                                      check */
    struct tcc_op_tensor *tensors;
    int64_t *dims, *results, *shape; /* `shape`: the shape of the output that was allocated last */
    tcc_span *bound; /* by input port: the caller's array, or a row-major copy */
    bool *output_done;
    tcc_heap heap;        /* strings and lists of the run in progress */
    tcc_span *handles;    /* by output port: strings or a list as the program wrote them */
    struct tcc_placer **placers; /* by number of a plan instruction; see place.h */
    struct tcc_flight *flights;  /* by ticket: collectives in progress */
    int64_t *counts;             /* counts of blocks until a wait; then room for other ranks'
                                    counts */
    tcc_comm **groups; /* by group: the comm of this rank's list, which its parent comm owns */
    tcc_time *times; /* by step; NULL: times were not asked for */
    tcc_ending ending;
    int64_t *chunks; /* by step: units of a launch that take some milliseconds; 0: not known */
    tcc_comm *comm;  /* kept by the instance; NULL: the process's comm */
    bool plain;      /* launches go to the workers and are not timed */
    const struct tcc_executor *executor; /* NULL: the CPU executes */
    tcc_gpu_instance *device;            /* the executor's data */
    void *views; /* views of Python's arrays; NULL before the first call */
    bool seeded; uint64_t seed; tcc_ring ring; /* for its runs */
};

/* The run in progress, as the interpreter sees it. */
typedef struct tcc_run {
    tcc_instance *instance;
    const tcc_tensor *inputs;
    tcc_tensor *outputs; /* NULL: the allocator gives all outputs */
    const tcc_allocator *allocator;
    tcc_crew crew;
    bool odd; int64_t executions; /* which half of the launch tables is next; steps begun, if they
                                     are watched */
    tcc_comm *comm;    /* only for a model with collectives */
    struct tcc_comm_memory *symmetric; /* the comm's memory that the run keeps; NULL: none */
    int32_t in_flight; /* collectives in progress */
    bool cut; int64_t since; /* launches that may end early are in flight; work since the last look
                                at the ending */
    bool seeded, fresh; uint64_t seed; /* `fresh`: no other run has this seed */
} tcc_run;

/* The functions that instructions use where buffers are not in this process's memory.  The
 * interpreter has checked sizes and offsets.  All work is done in the order of the calls. */
typedef struct tcc_executor {
    tcc_status (*launch)(tcc_run *run, const tcc_code *code, int64_t units);
    /* Calls a function of the runtime.  `arguments` has the operands' addresses on the device;
     * inputs and outputs are one table. */
    tcc_status (*call)(tcc_run *run, tcc_op op, const struct tcc_op_call *arguments);
    tcc_status (*copy)(tcc_run *run, char *target, const char *source, int64_t size);
    tcc_status (*output)(tcc_run *run, int32_t index, int64_t size, tcc_span *span);
    /* Makes the dynamic buffer hold `size` bytes, the first `keep` of them as they were. */
    tcc_status (*resize)(tcc_run *run, int64_t buffer, int64_t size, int64_t keep);
    /* Copies bytes of a buffer to the host after all earlier work is done. */
    tcc_status (*fetch)(tcc_run *run, int64_t buffer, int64_t offset, int64_t size, void *out_bytes);
    tcc_status (*settle)(tcc_run *run); /* waits for all earlier work */
    tcc_status (*start)(tcc_run *run, const struct tcc_comm_call *call, const tcc_code *code);
    tcc_status (*wait)(tcc_run *run, int64_t ticket); /* later work comes after the collective */
} tcc_executor;

/* Runs the program on a GPU, from the caller's arrays to the results. */
tcc_status tcc_gpu_run(tcc_run *run, void *stream);

/* Returns the words of one half of a launch table for launches of at most `operands` operands; the
 * head is included. */
static inline int64_t tcc_launch_room(int64_t operands) {
    return operands / 8 * 8 + TCC_LAUNCH_HEAD + 16; /* the halves share no cache line */
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
tcc_status tcc_interpret_all(tcc_run *run); /* runs the body; work that may end early with the run
                                               is done when it returns */
/* Empties the heap, binds the arrays and runs the prologue.  All sizes are known afterwards. */
tcc_status tcc_instance_prepare(tcc_run *run);
/* Computes the bytes of the arena for the run's sizes. */
tcc_status tcc_instance_arena_size(const tcc_instance *instance, int64_t *out_size);
/* Sets the addresses of the buffers of weights and state, once. */
void tcc_instance_aim_constants(tcc_instance *instance, const char *weights, char *state);
/* Computes the bytes of the symmetric arena: the end of its last buffer. */
tcc_status tcc_instance_symmetric_size(const tcc_instance *instance, int64_t *out_size);
/* Sets the addresses of the buffers of both arenas. */
tcc_status tcc_instance_aim_arena(tcc_instance *instance, tcc_span arena, tcc_span symmetric);

/* arrays.c: the caller's arrays. */
/* Copies a strided array to row-major order; elements have `element` bytes. */
void tcc_gather(char *target, const char *source, const tcc_tensor *tensor, int64_t element);
/* Returns the bytes of a row-major array; -1 if a size is negative or the product overflows. */
int64_t tcc_byte_count(const int64_t *shape, int32_t ndim, tcc_dtype dtype);
bool tcc_is_row_major(const tcc_tensor *tensor);
int64_t tcc_capacity(const tcc_tensor *tensor, int32_t axis); /* -1: no capacity */
tcc_status tcc_ask_allocator(tcc_run *run, int32_t index, const tcc_tensor *tensor, char **out_data);

/* ports.c: checks the caller's arrays against the ports. */
tcc_status tcc_ports_bind_inputs(tcc_run *run);
tcc_status tcc_ports_check_inputs(const tcc_run *run); /* called after the prologue */
tcc_status tcc_ports_bind_outputs(tcc_run *run);
tcc_status tcc_ports_allocate_output(tcc_run *run, int32_t index, int64_t size, tcc_device device,
                                     tcc_span *span);
/* true: the input is updated in place */
bool tcc_ports_feeds_state(const tcc_program *program, int32_t input);
tcc_status tcc_ports_check_outputs_written(const tcc_run *run);
/* values.c: reads strings and lists of callers.  tcc_values_bind makes the handles of an input
 * whose descriptor fits its port. */
tcc_status tcc_values_bind(tcc_run *run, int32_t index, tcc_span *out_span);
/* Writes all outputs of strings and lists to memory of the allocator. */
tcc_status tcc_values_give(tcc_run *run);
const char *tcc_dtype_name(tcc_dtype dtype, char text[16]);

/* variants.c: the choice of the variant that runs here. */
/* Fills the variant, program, weights and any GPU of `model`, whose rank and plan are set.  Holds
 * nothing on failure. */
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
    int64_t count; /* product of `dims` */
} tcc_op_tensor;

typedef struct tcc_op_call {
    const tcc_op_tensor *inputs, *outputs;
    int32_t n_inputs, n_outputs;
    const int64_t *ints;
    int32_t n_ints;
    int64_t *results; /* n_results values that the function must set */
    int32_t n_results;
    tcc_pool *pool; /* for temporaries */
    tcc_crew *crew; /* for launches, once all earlier launches are done; NULL: use the calling
                       thread */
    int32_t threads;
    tcc_heap *heap; /* holds strings and lists, and temporaries that live until the run ends */
    tcc_ending *ending; /* the run's; NULL: the run cannot end early */
} tcc_op_call;

/* Returns the function called `name`, or NULL. */
tcc_op tcc_op_find(const char *name);

#endif
