/* tcc.h: the C interface of a compiled model, version 1.
 *
 * Every artifact exports one function, `const tcc_api *<model>_api(void)` (also under the fixed
 * name `tcc_artifact_api`, for hosts that dlopen a file whose model they do not know).  Every other
 * call goes through the table that it returns.
 *
 *     const tcc_api *api = mlp_api();
 *     tcc_model *model;
 *     if (api->model_get(&model) != TCC_OK) { puts(api->last_error()); return 1; }
 *     tcc_tensor x = {...}, y = {...};
 *     if (api->call(model, &x, 1, &y, 1, NULL, NULL) != TCC_OK) puts(api->last_error());
 *     api->model_release(model);
 *
 * Ownership.  The caller owns every array and every descriptor it passes; the artifact keeps no
 * pointer to them after a call returns.  Strings and descriptors got from the table belong to the
 * artifact and live until the process ends.  An artifact is never unmapped: dlclose keeps its code.
 *
 * Files.  Replace an artifact by renaming a new file to its path, as tcc does.  A loaded artifact
 * then keeps its code, and its weights until model_release.  Only the weights are read from the
 * file while the model is in use: if the file is overwritten in place, runs use the new bytes, or
 * end in SIGBUS.  dlopen does not see that a file was replaced: for a path that is spelled as
 * before, or a file overwritten in place, it returns the artifact it has, with the old model.  To
 * load the new one into the same process, spell the path in a new way ("./m.so" and "././m.so"
 * differ), or copy the file; tcc.load of Python does so.  A model that a program links as an object
 * or a static library has its weights in the program's file, or in a side file in the program's
 * folder.
 *
 * Weights of 8 MiB and more lie on huge pages: the file's own where its file system has them, else
 * a copy in a sealed memory file that all processes of one user share.  The copy is made only if it
 * takes at most half of TCC_MEMORY and half of what the process may add.  TCC_WEIGHTS=map keeps the
 * file's pages, "share" takes the memory file (or the file's pages where it cannot be made), and
 * "copy" takes a private copy.  A process never holds the weights twice, not even while it loads
 * them.
 *
 * Threads.  A model may be used from any number of threads.  An instance serves one run at a time;
 * the caller must keep runs of one instance apart, and may end a run from another thread
 * (instance_cancel; the instance must not be destroyed meanwhile).  `call` borrows an idle instance
 * and may be used from any thread.  On a GPU a run on the caller's stream may return before its
 * work is done; the instance's next run waits for it.  All artifacts of a process share one pool of
 * worker threads; runs at the same time share them in proportion to the threads that they ask for.
 * Before they sleep, idle workers together spin for TCC_SPIN_MICROSECONDS (2000 if not set; read
 * once), or for less where spinning was in vain lately.  Workers block all signals except SIGPROF
 * and the signals that a thread's own instructions raise (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP,
 * SIGSYS).  After fork the child starts its own workers when it first needs them.
 *
 * Failure.  Functions return a tcc_status.  On failure the outputs' contents are unspecified, and
 * `last_error` holds the reason for the calling thread until its next call into this artifact.  An
 * instance takes no more memory for the arrays between inputs and outputs, its threads' scratch and
 * its state together than TCC_MEMORY says (bytes, as in 512M or 4G; a model with plans for several
 * numbers of ranks counts its weights too, when it is loaded), and all instances and pools of the
 * process no more than process_set_memory_limit says.  Together, all instances, pools and copies of
 * weights of all artifacts in the process add at most three quarters of what the machine and each
 * control group around the process have left: the limit minus the bytes that others use, where
 * pages of files that the system can take back do not count as used.  The runtime asks the system
 * each time that they grow by some megabytes; a run that takes no more memory does not ask.  A call
 * that needs more fails with TCC_OUT_OF_MEMORY and both numbers.  No resource limit of the process
 * (setrlimit) makes tcc raise a signal, except the limit of CPU time.  A program with raised
 * privileges (set-user-ID, set-group-ID, file capabilities) reads no environment variable.
 *
 * Versions.  Structs and tables that begin with struct_size get more fields in later versions.  The
 * caller sets struct_size to the struct's sizeof.  The library accepts the struct of an older
 * header, whose missing fields have their defaults, and the struct of a newer header if the fields
 * that the library does not know are zero.  It refuses any other struct with TCC_INVALID_ARGUMENT,
 * and the reason names the struct and both sizes.  A table that is shorter than this header's lacks
 * the functions at its end.
 *
 * No function prints, exits, or raises a signal because of its arguments.  Pointers must point to
 * as many bytes as the descriptors say. */
#ifndef TCC_H
#define TCC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TCC_API_VERSION 1

typedef enum tcc_status {
    TCC_OK = 0,
    TCC_INVALID_ARGUMENT = 1, /* an array or option of the caller does not fit the model */
    TCC_OUT_OF_MEMORY = 2,
    TCC_UNSUPPORTED = 3, /* this CPU, this GPU or this ABI cannot run the artifact */
    TCC_CORRUPT = 4,     /* the artifact file is damaged, or its weights are missing */
    TCC_INTERNAL = 5,    /* a broken promise inside tcc */
    TCC_DEVICE = 6,      /* the GPU or its driver failed */
    TCC_CANCELLED = 7,   /* instance_cancel or the caller's poll ended the run, or a rank aborted
                            its comm */
    TCC_TIMEOUT = 8,     /* a rank did not come before the deadline */
    TCC_PEER_DEAD = 9,   /* a rank's process ended */
    TCC_MISMATCH = 10,   /* ranks issued different operations */
    TCC_SYSTEM = 11      /* the operating system or a library of the machine refused */
} tcc_status;

/* Element type as in DLPack: code 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, 10 to 13 float8 (e4m3fn,
 * e4m3fnuz, e5m2, e5m2fnuz), 14 float8 (e8m0fnu), 17 float4 (e2m1fn); lanes is 1.  Elements of 4 and
 * 2 bits are packed, the first one in the lowest bits of the first byte. */
typedef struct tcc_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} tcc_dtype;

/* Element types as values: `.dtype = TCC_F32`. */
#ifdef __cplusplus
#define TCC_DTYPE(code, bits) (tcc_dtype{code, bits, 1})
#else
#define TCC_DTYPE(code, bits) ((tcc_dtype){code, bits, 1})
#endif
#define TCC_BOOL TCC_DTYPE(6, 8)
#define TCC_I8 TCC_DTYPE(0, 8)
#define TCC_I16 TCC_DTYPE(0, 16)
#define TCC_I32 TCC_DTYPE(0, 32)
#define TCC_I64 TCC_DTYPE(0, 64)
#define TCC_U8 TCC_DTYPE(1, 8)
#define TCC_U16 TCC_DTYPE(1, 16)
#define TCC_U32 TCC_DTYPE(1, 32)
#define TCC_U64 TCC_DTYPE(1, 64)
#define TCC_F16 TCC_DTYPE(2, 16)
#define TCC_BF16 TCC_DTYPE(4, 16)
#define TCC_F32 TCC_DTYPE(2, 32)
#define TCC_F64 TCC_DTYPE(2, 64)
#define TCC_I2 TCC_DTYPE(0, 2)
#define TCC_I4 TCC_DTYPE(0, 4)
#define TCC_U2 TCC_DTYPE(1, 2)
#define TCC_U4 TCC_DTYPE(1, 4)
#define TCC_F4E2M1 TCC_DTYPE(17, 4)
#define TCC_F8E4M3FN TCC_DTYPE(10, 8)
#define TCC_F8E4M3FNUZ TCC_DTYPE(11, 8)
#define TCC_F8E5M2 TCC_DTYPE(12, 8)
#define TCC_F8E5M2FNUZ TCC_DTYPE(13, 8)
#define TCC_F8E8M0 TCC_DTYPE(14, 8)
#define TCC_STRING TCC_DTYPE(TCC_OPAQUE, 128)
#define TCC_LIST TCC_DTYPE(TCC_OPAQUE, 64)

/* Strings and lists have code 3 (opaque).  An array of strings (128 bits) holds tcc_string.  A list (64
 * bits, no dimensions) holds one `const tcc_list *`: a sequence, or an optional as a list of no or one
 * entry; the port's `text` says which, as in "optional(sequence(f32[2,?]))".  A model for GPUs has
 * neither. */
#define TCC_OPAQUE 3

/* `size` bytes, UTF-8 as a rule; `data` may be NULL if there are none. */
typedef struct tcc_string {
    const char *data;
    int64_t size;
} tcc_string;

/* Types of devices, with DLPack's values. */
enum { TCC_CPU = 1, TCC_CUDA = 2, TCC_CUDA_HOST = 3, TCC_ROCM = 10, TCC_ROCM_HOST = 11 };

/* Device as in DLPack: type 1 is the CPU, 2 CUDA, 10 ROCm.  A model for the CPU takes arrays of
 * type 1.  A model for GPUs runs on one device of the process: the number in TCC_DEVICE, else the
 * device that the calling thread uses when the model is loaded (with HIP: if it is not the first),
 * else the number of this rank on its host according to a launcher (TCC_LOCAL_RANK, or torchrun's,
 * mpirun's or srun's variable), else the first.  If there are more ranks than devices, models
 * without collectives share devices; models with collectives are refused, unless a variable of
 * visible devices leaves each process one device.  A model for GPUs and the CPU runs on the CPU if
 * TCC_DEVICE is "cpu", or if no GPU of this machine fits and TCC_DEVICE names none.  A model on a
 * GPU uses arrays on its device in place, and copies arrays of the host (also pinned: 3 and 11)
 * there and back. */
typedef struct tcc_device {
    int32_t type;
    int32_t id;
} tcc_device;

/* A view of an array; the layout is that of DLPack's DLTensor, so a DLTensor* may be cast.
 * The first element is at data + byte_offset.  `strides` counts elements and may be NULL for
 * row-major arrays.  Inputs on the host may be strided (they are copied); outputs and arrays on a
 * device must be row-major, and those on a device are best aligned to 16 bytes (others are copied).
 * An input to which the run appends rows may be the front, along the axis that grows, of a row-major
 * array: of 512 rows of a cache [1, 8, 4096, 64], the shape is [1, 8, 512, 64] and the strides are
 * [2097152, 262144, 64, 1].  The manifest's `appends` names these inputs and axes. */
typedef struct tcc_tensor {
    void *data;
    tcc_device device;
    int32_t ndim;
    tcc_dtype dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} tcc_tensor;

/* `count` arrays, which may be strings or lists too.  The caller owns everything that an input's
 * list points to, like its arrays. */
typedef struct tcc_list {
    int64_t count;
    const tcc_tensor *items;
} tcc_list;

/* Describes one input or output of the model.  `shape` has -1 where the size is known only at run
 * time; `text` shows it with symbols.  `state` is the input that this output updates in place (the
 * output *is* the caller's input array), or -1.  Both have one shape: where the model appends rows,
 * the input's front holds the old rows and the run writes the new ones behind them. */
typedef struct tcc_port {
    const char *name;
    tcc_dtype dtype;
    int32_t ndim;
    const int64_t *shape;
    const char *text;
    int32_t state;
} tcc_port;

/* Allocates outputs whose tensor the caller left with data == NULL (or all, if no output tensors
 * were passed).  `wanted` holds dtype, ndim, shape (valid during the call only) and device: the
 * model's GPU if an input lies there, else the CPU.  Store the address of a row-major array of that
 * size in *out_data, aligned to at least one element.  Return 0, or another value to stop the run.
 * The running thread calls it.  Outputs of strings and lists always come from it, after all other
 * outputs are computed: `wanted` then has one dimension of bytes, and the memory must be aligned to
 * 64.  The whole output is written there: a tcc_tensor that describes it (and is copied to the
 * output tensor, if output tensors were passed), and everything that it points to.  It may be
 * passed to a run as an input. */
typedef struct tcc_allocator {
    void *context;
    int (*allocate)(void *context, int32_t output, const tcc_tensor *wanted, void **out_data);
} tcc_allocator;

typedef struct tcc_statistics {
    uint64_t weight_bytes;    /* mapped once per process */
    uint64_t arena_bytes;     /* per instance: planned memory for the last run's sizes, symmetric
                                 memory included */
    uint64_t scratch_bytes;   /* per instance: private memory of all threads */
    uint64_t state_bytes;     /* per instance: memory that outlives a run */
    uint64_t pool_bytes;      /* per instance: committed for sizes that depend on data */
    uint64_t pool_high_water; /* per instance: the most of pool_bytes in use at one time */
    int32_t threads;          /* threads that a parallel kernel runs on, at most */
} tcc_statistics;

/* How often a step of the program ran, and the total time of these executions. */
typedef struct tcc_time {
    int64_t count;
    int64_t nanoseconds;
} tcc_time;

/* One thread's part of one step of a run: a piece of a launch's tiles, or a function.  A thread
 * that takes several pieces of a launch has a stamp for each. */
typedef struct tcc_stamp_record {
    int64_t begin, end; /* nanoseconds of CLOCK_MONOTONIC */
    int32_t step;       /* the step's index in "steps" of the manifest's variant; -1: the whole
                           run */
    int32_t thread;     /* the system's number of the thread (gettid) */
    int64_t execution;  /* counts the steps that the run executed, from 1; 0: the whole run */
} tcc_stamp_record;

/* The smallest ring: two launches in flight, on 256 threads, in 16 pieces each.  With at least as
 * many stamps no two threads write to one place. */
#define TCC_LEAST_STAMPS 8192

/* Bytes by place.  A limit of 0 means no limit. */
typedef struct tcc_memory {
    uint32_t struct_size; /* set by the caller; fields that the library does not know stay as they are */
    uint64_t arena, scratch, state; /* as in tcc_statistics */
    uint64_t pool_committed, pool_live; /* committed, and in use, for sizes that depend on data */
    uint64_t used, most, limit; /* the instance: all of the above together, at present and at
                                   most */
    uint64_t process_used, process_most, process_limit; /* the process: all instances, pools, copies
                                                           of weights */
    uint64_t symmetric; /* for data that ranks sum; lies in the comm where the comm has memory */
} tcc_memory;

/* tcc_pool.h has these. */
typedef struct tcc_pool tcc_pool;
typedef struct tcc_pool_config tcc_pool_config;
typedef struct tcc_pool_api tcc_pool_api;

/* tcc_comm.h has it. */
typedef struct tcc_comm tcc_comm;

typedef struct tcc_model tcc_model;
typedef struct tcc_instance tcc_instance;

/* Instance flags. */
#define TCC_POISON 1u /* fill planned and dynamic memory with NaN patterns before each use */
#define TCC_TIMES 2u  /* take the time of every kernel and function (some tens of ns each) */

typedef struct tcc_api {
    uint32_t struct_size; /* bytes of this table: later versions append, never change */
    uint32_t version;     /* TCC_API_VERSION */

    /* Loads and checks the model at the first call, then counts users: CPU features, program,
     * weights.  Pair each success with model_release; the last one frees weights and idle instances
     * (destroy your own instances first).  The check covers everything in the program that a run
     * relies on, so the program's bytes need not be trusted.  For the weights it covers that the
     * file ends with a section of their size that names their hash.  With TCC_VERIFY=1 it also
     * compares their bytes with the hash, at some hundred MB/s.  Without it, damaged weights change
     * results and are not detected.  The code is not checked here (tcc.load of Python compares it
     * with a hash in the file), and no hash says who made the file: load only files that you would
     * run. */
    tcc_status (*model_get)(tcc_model **out_model);
    void (*model_release)(tcc_model *model);

    /* Threads that this model's kernels may use; 0 is the default: TCC_NUM_THREADS (calls that need
     * it fail with TCC_INVALID_ARGUMENT if it is no number), else the CPUs of the process's
     * affinity mask, or of its control group's quota if that is less.  Takes effect at the next
     * run. */
    tcc_status (*model_set_threads)(tcc_model *model, int32_t threads);

    int32_t (*input_count)(const tcc_model *model);
    int32_t (*output_count)(const tcc_model *model);
    tcc_status (*input_port)(const tcc_model *model, int32_t index, tcc_port *out_port);
    tcc_status (*output_port)(const tcc_model *model, int32_t index, tcc_port *out_port);

    /* The manifest: JSON, not terminated.  Needs no model. */
    const char *(*manifest)(size_t *out_size);

    tcc_status (*instance_create)(tcc_model *model, uint32_t flags, tcc_instance **out_instance);
    /* As model_set_threads, for this instance only. */
    tcc_status (*instance_set_threads)(tcc_instance *instance, int32_t threads);
    void (*instance_destroy)(tcc_instance *instance);

    /* Runs the model.  `inputs` and `outputs` are in port order and complete, but `outputs` may be
     * NULL with n_outputs 0 when there is an allocator.  An output with data == NULL comes from the
     * allocator, and its data and ndim are filled in (its shape array is not); without an allocator
     * it must have no elements.  An in-place output takes the address of its input: leave data NULL
     * or pass that address.  Outputs, and inputs that are updated in place, share no memory with
     * other arrays of the run.  Arrays need the alignment of one element.  `stream` is NULL on the
     * CPU.  On a GPU it is a CUstream or hipStream_t of the model's device: the run's work goes
     * there, and where all arrays are on the device the call may return before the work is done
     * (its failures appear later).  With NULL the run comes after all work begun on the process's
     * default stream, and is done when the call returns.  While the caller records the stream in a
     * graph of its own, the work goes into that graph, which uses the instance's memory at every
     * replay: replays and other runs of the instance must not overlap, and the instance must
     * outlive the graph.  Such a run takes device arrays only, fails where it would wait or take
     * memory (so run once before), and waits for no run before it. */
    tcc_status (*run)(tcc_instance *instance, const tcc_tensor *inputs, int32_t n_inputs,
                      tcc_tensor *outputs, int32_t n_outputs, const tcc_allocator *allocator,
                      void *stream);

    /* Does the same on an idle instance of the model, and makes one if there is none.  A model with
     * state that outlives a run, or with collectives, has one instance for this function, and
     * callers take turns. */
    tcc_status (*call)(tcc_model *model, const tcc_tensor *inputs, int32_t n_inputs,
                       tcc_tensor *outputs, int32_t n_outputs, const tcc_allocator *allocator,
                       void *stream);

    /* Fills `out`; `instance` may be NULL (then only the model's numbers are filled). */
    tcc_status (*statistics)(const tcc_model *model, const tcc_instance *instance,
                             tcc_statistics *out);

    /* Frees the idle instances of `call`, and memory that the pool for results and an instance with
     * state hold beyond their need. */
    void (*model_trim)(tcc_model *model);

    /* Returns why the last failed call on this thread failed; never NULL. */
    const char *(*last_error)(void);

    /* Returns the times of an instance made with TCC_TIMES, accumulated since it was made: one
     * entry per kernel launch and function call, in the order of the "steps" of the manifest's
     * variant.  They are valid until the instance is destroyed, and its runs change them. */
    tcc_status (*times)(const tcc_instance *instance, const tcc_time **out_times,
                        int64_t *out_count);

    /* Returns the index, counted from 0, of the manifest's "variants" entry that the model runs:
     * the first for a GPU of this machine, else the variant for its CPU.  TCC_DEVICE=cpu asks for
     * the CPU's variant, a number for that GPU. */
    int32_t (*model_variant)(const tcc_model *model);

    /* Calls poll(context) now and then while the instance runs, on the thread that runs: at most
     * fifty times a second, for at most a tenth of the time, and not in the first 20 ms.  If it
     * returns a value other than 0, the run ends as by instance_cancel.  NULL, the initial value,
     * means no poll.  `call` never polls.  Do not call it while the instance runs. */
    tcc_status (*instance_set_poll)(tcc_instance *instance, int (*poll)(void *context),
                                    void *context);

    /* Limits the bytes that all instances, pools and copies of weights of the process may take
     * together, of all artifacts, within what the system leaves.  0, the initial value, means no
     * limit beyond the system's.  Memory that is held already stays. */
    tcc_status (*process_set_memory_limit)(uint64_t bytes);
    /* Limits the bytes that the instance may take, in place of TCC_MEMORY.  0 restores TCC_MEMORY,
     * or no limit of its own.  Do not call it while the instance runs. */
    tcc_status (*instance_set_memory_limit)(tcc_instance *instance, uint64_t bytes);
    /* Fills `out`; `instance` may be NULL (then only the process's numbers are filled).  Do not
     * call it while the instance runs. */
    tcc_status (*memory)(tcc_instance *instance, tcc_memory *out);
    /* From now on the instance's memory for sizes that depend on data comes from a pool with this
     * config: from the caller's allocator, or within another limit (in addition to the instance's
     * own).  A pool of an instance is not shared.  Do not call it while the instance runs. */
    tcc_status (*instance_set_pool)(tcc_instance *instance, const tcc_pool_config *config);
    /* Pools for the caller's own use. */
    const tcc_pool_api *pools;
    /* The artifact's shared pool for results of runs: a caller's allocator may take outputs from it.
     * It lives until the process ends. */
    tcc_status (*result_pool)(tcc_pool **out_pool);
    /* As instance_create, for a model with collectives: its runs use `comm`, on the thread that
     * runs.  The instance keeps the comm: if the comm is closed before the instance is destroyed,
     * runs fail with TCC_INVALID_ARGUMENT (with a libtcc_comm older than tcc_comm_keep, close the
     * comm after the instance).  With NULL, and in `call` and instance_create, a run uses the
     * process's comm (tcc_comm_share).  A run fails with TCC_UNSUPPORTED where there is no comm, or
     * one of another size than the model is for, and with the comm's status where an operation
     * fails.  All ranks run their models in one order, with inputs of equal sizes, and the caller
     * keeps runs and operations on one comm apart.  A run that fails aborts the comm, because the
     * ranks are then out of step.  A run whose arrays the model refuses does not abort it: ranks
     * whose arrays are accepted wait in their first collective until its deadline.  A model with
     * groups of ranks asks the comm for the groups' comms here, or in its first run on the
     * process's comm.  All ranks do that in one order too, and a rank without a place in a group
     * aborts the comm. */
    tcc_status (*instance_create_on)(tcc_model *model, uint32_t flags, tcc_comm *comm,
                                     tcc_instance **out_instance);
    /* Returns the number of ranks that the model is for; 0: any number, or as its groups of ranks
     * require; -1: it has no collectives. */
    int32_t (*model_ranks)(const tcc_model *model);
    /* Later runs of the instance draw their random numbers with this seed: runs with equal seeds
     * draw the same, on every device and with any number of threads.  Without it, and in `call`,
     * the seed is the number in the environment variable TCC_SEED, else a new one for each run.
     * All ranks use rank 0's seed.  A run that the caller records in its own graph repeats its
     * draws at every replay.  Do not call it while the instance runs. */
    tcc_status (*instance_seed)(tcc_instance *instance, uint64_t seed);
    /* Restores the state before the first instance_seed.  Do not call it while the instance
     * runs. */
    tcc_status (*instance_unseed)(tcc_instance *instance);

    /* Ends the run in progress of the instance, from any thread: `run` returns TCC_CANCELLED, on
     * CPUs within 50 ms.  Outputs and inputs that are updated in place may be half written, as
     * after every failure; the instance is as good as before, and other runs are not disturbed.  A
     * rank that waits for others stops waiting; as after every failed run of a rank, the comm is
     * revoked for all of them.  On a GPU no more work is started, and `run` returns when the
     * started work is done.  TCC_INVALID_ARGUMENT: no run is in progress, and later runs are not
     * affected.  A run that was about to end may still return TCC_OK.  A table has this function
     * and those below only if its struct_size reaches to them. */
    tcc_status (*instance_cancel)(tcc_instance *instance);
    /* Returns the number of the instance's next run.  Runs are numbered from 1 in the order in
     * which they begin; failed runs count too.  Any thread may call it. */
    uint64_t (*instance_next_run)(const tcc_instance *instance);
    /* As instance_cancel for the run of this number: at once if it is in progress, as it begins if
     * it is the next, and nothing happens if it is over.  So a watchdog that knows the number
     * beforehand neither comes too early nor ends another run.  TCC_INVALID_ARGUMENT: the number is
     * later than the next run's. */
    tcc_status (*instance_cancel_run)(tcc_instance *instance, uint64_t number);
    /* As model_get, for a model with plans for several numbers of ranks: this process is its rank
     * of the comm, the number of ranks is the comm's size, and the process maps the weights of its
     * rank.  With NULL, and in model_get, rank and size come from the process's comm
     * (tcc_comm_share), else from a launcher's variables; without both the process is the only
     * rank.  TCC_UNSUPPORTED: the file has no plan for that number, or the model is loaded already
     * for another rank or number of ranks; instances on a comm with another rank or size, and their
     * runs, fail with it too.  Of several plans for that number, the first in the file that fits
     * memory is loaded: a rank's weights, and what an instance of one thread holds, within
     * TCC_MEMORY and what the process may still add.  With several plans and a comm, loading is an
     * operation of the comm, and the plan fits all its ranks; without a comm each rank takes the
     * plan that fits it.  TCC_OUT_OF_MEMORY: no plan fits; the reason names a plan that would fit,
     * and its number of ranks.  Plans of GPUs count as fitting.  The ranks of a plan compare their
     * files and plans when an instance is made on a comm, and in the first run on the process's
     * comm, which all ranks do in one order: TCC_MISMATCH on all ranks, with both files or plans,
     * where they differ.  Failures of the comparison abort the comm. */
    tcc_status (*model_get_on)(tcc_comm *comm, tcc_model **out_model);

    /* Later runs of the instance write stamps into `stamps`, an array of `room` records (at least
     * TCC_LEAST_STAMPS) that the caller owns, together with `count`, until it calls this with NULL
     * or destroys the instance.  `*count` begins at 0 and counts all stamps; stamp n is at n %
     * room, so a full ring has lost its oldest `*count - room` stamps.  The caller reads both
     * between runs.  On a CPU each thread stamps its pieces of a launch, which costs about 0.1 us a
     * piece.  On a GPU the calling thread waits after each step, so steps do not overlap, and a run
     * that the caller records fails.  A run's own stamp (step -1) is its last.
     * TCC_INVALID_ARGUMENT: too little room, or no count.  Do not call it while the instance
     * runs. */
    tcc_status (*instance_set_stamps)(tcc_instance *instance, tcc_stamp_record *stamps, uint64_t room,
                                      uint64_t *count);

    /* Finds a file that the artifact holds beside the model, as in "tokenizer.json": `*out_size`
     * bytes, not terminated, which live until the process ends.  It needs no model, and any thread
     * may call it.  "assets" in the manifest lists names, sizes and hashes.  Each call compares the
     * bytes with their hash, at some hundred MB/s: keep the address.  TCC_INVALID_ARGUMENT: the
     * artifact has no such asset.  TCC_CORRUPT: it is damaged. */
    tcc_status (*model_asset)(const char *name, const char **out_data, size_t *out_size);
} tcc_api;

#ifdef __cplusplus
}
#endif

#endif
