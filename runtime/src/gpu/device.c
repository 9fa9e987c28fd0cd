/* Chooses and opens a model's device: finds its architecture, and loads the kernels and weights for
 * it. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../launchers.h"
#include "../sized.h"
#include "gpu.h"

/* ---- the thread's device --------------------------------------------------------------------------- */

tcc_status tcc_gpu_enter(const tcc_gpu *gpu, tcc_gpu_scope *out_scope) {
    const tcc_gpu_driver *driver = gpu->driver;
    if (driver->platform == TCC_PLATFORM_CUDA) {
        TCC_GPU_TRY(driver, context_push(gpu->context), "%s cannot be used", gpu->name);
        return TCC_OK;
    }
    TCC_GPU_TRY(driver, get_device(&out_scope->ordinal), "the current device is not known");
    TCC_GPU_TRY(driver, set_device(gpu->ordinal), "%s cannot be used", gpu->name);
    return TCC_OK;
}

void tcc_gpu_leave(const tcc_gpu *gpu, const tcc_gpu_scope *scope) {
    void *context = NULL;
    if (gpu->driver->platform == TCC_PLATFORM_CUDA)
        (void)gpu->driver->context_pop(&context);
    else
        (void)gpu->driver->set_device(scope->ordinal);
}

/* ---- the device ------------------------------------------------------------------------------------ */

/* Finds the device that the calling thread uses.  Returns false where it has chosen none.  With HIP
 * every thread begins with the first device, so the first counts as no choice. */
static bool current_device(const tcc_gpu_driver *driver, int *out) {
    if (driver->platform == TCC_PLATFORM_CUDA) {
        void *context = NULL;
        return !driver->context_current(&context) && context && !driver->context_device(out);
    }
    return !driver->get_device(out) && *out;
}

/* Returns true if an environment variable of the driver limits the devices that the process
 * sees. */
static bool sees_some(const tcc_gpu_driver *driver) {
    if (tcc_variable("CUDA_VISIBLE_DEVICES")) return true; /* HIP reads it, too */
    return driver->platform == TCC_PLATFORM_HIP && (tcc_variable("HIP_VISIBLE_DEVICES") ||
                                                    tcc_variable("ROCR_VISIBLE_DEVICES"));
}

/* Finds this rank's number on its host and the number of ranks there, from the process's comm or a
 * launcher. */
static tcc_status find_local_rank(tcc_launch *out) {
    tcc_comm *comm = tcc_collective_shared();
    const tcc_comm_table *table = comm ? tcc_collective_table(comm) : NULL;
    bool has_launcher, tells = table && table->version == TCC_COMM_VERSION &&
                        TCC_HAS(table, local_size);
    if (tells) {
        out->local_rank = table->local_rank(comm);
        out->local_size = table->local_size(comm);
    }
    tcc_collective_drop(comm);
    return tells ? TCC_OK : tcc_launch_read(out, &has_launcher);
}

/* Chooses the device by this rank's number on its host.  If the process sees only one device, the
 * launcher may have assigned it. */
static tcc_status choose_by_rank(tcc_gpu *gpu, int count) {
    tcc_launch launch;
    TCC_RETURN_IF_ERROR(find_local_rank(&launch));
    if (launch.local_rank < 0 || (count == 1 && sees_some(gpu->driver))) return TCC_OK;
    gpu->ordinal = launch.local_rank % count;
    gpu->ranks = launch.local_size > launch.local_rank ? launch.local_size : launch.local_rank + 1;
    return TCC_OK;
}

static tcc_status choose_by_name(tcc_gpu *gpu, const char *name, int count) {
    char *end = NULL;
    long number = strtol(name, &end, 10);
    if (*end || number < 0 || number >= count)
        return tcc_fail(TCC_INVALID_ARGUMENT, "TCC_DEVICE: expected 0 to %d, got '%.32s'", count - 1,
                        name);
    gpu->ordinal = (int)number;
    return TCC_OK;
}

static tcc_status choose_device(tcc_gpu *gpu) {
    const tcc_gpu_driver *driver = gpu->driver;
    const char *name = tcc_variable("TCC_DEVICE");
    int count = 0;
    TCC_GPU_TRY(driver, device_count(&count), "GPUs cannot be counted");
    if (count < 1) return tcc_fail(TCC_UNSUPPORTED, "there is no GPU for %s here", driver->name);
    gpu->devices = count;
    if (name)
        TCC_RETURN_IF_ERROR(choose_by_name(gpu, name, count));
    else if (!current_device(driver, &gpu->ordinal))
        TCC_RETURN_IF_ERROR(choose_by_rank(gpu, count));
    TCC_GPU_TRY(driver, device_get(&gpu->device, gpu->ordinal), "GPU %d cannot be used",
                gpu->ordinal);
    TCC_GPU_TRY(driver, device_name(gpu->name, sizeof gpu->name - 1, gpu->device),
                "GPU %d has no name", gpu->ordinal);
    int pools = 0;
    TCC_GPU_TRY(driver, device_attribute(&pools, driver->pools_attribute, gpu->device),
                "%s does not describe itself", gpu->name);
    gpu->pools = pools && driver->allocate_async && driver->release_async;
    return TCC_OK;
}

/* Finds the architecture's name in a struct of HIP.  ROCm 6 changed the struct together with the
 * function's name. */
static tcc_status find_arch_of_hip(tcc_gpu *gpu) {
    enum { ARCH_AT = 1160, ARCH_AT_5 = 396, ROOM = 8192 };
    static char properties[ROOM]; /* static is safe: models are opened one at a time */
    const tcc_gpu_driver *driver = gpu->driver;
    bool new = driver->device_properties != NULL;
    if (!new && !driver->device_properties_5)
        return tcc_fail(TCC_UNSUPPORTED, "the HIP driver does not describe devices");
    memset(properties, 0, sizeof properties);
    int error = new ? driver->device_properties(properties, gpu->ordinal)
                    : driver->device_properties_5(properties, gpu->ordinal);
    if (error)
        return tcc_gpu_fail(driver, error, "%s does not tell its architecture", gpu->name);
    memcpy(gpu->arch, properties + (new ? ARCH_AT : ARCH_AT_5), sizeof gpu->arch - 1);
    if (strncmp(gpu->arch, "gfx", 3) != 0)
        return tcc_fail(TCC_UNSUPPORTED, "%s: the HIP driver describes devices in a way that is not "
                        "known", gpu->name);
    return TCC_OK;
}

static tcc_status find_arch(tcc_gpu *gpu) {
    const tcc_gpu_driver *driver = gpu->driver;
    if (driver->platform == TCC_PLATFORM_CUDA) {
        enum { MAJOR = 75, MINOR = 76 };
        int major = 0, minor = 0;
        TCC_GPU_TRY(driver, device_attribute(&major, MAJOR, gpu->device),
                    "%s does not tell its architecture", gpu->name);
        TCC_GPU_TRY(driver, device_attribute(&minor, MINOR, gpu->device),
                    "%s does not tell its architecture", gpu->name);
        snprintf(gpu->arch, sizeof gpu->arch, "sm_%d", major * 10 + minor);
        return TCC_OK;
    }
    return find_arch_of_hip(gpu);
}

tcc_status tcc_gpu_find_device(tcc_gpu *gpu) {
    TCC_RETURN_IF_ERROR(choose_device(gpu));
    return find_arch(gpu);
}

/* ---- the program against the kernels ---------------------------------------------------------------- */

/* Facts that decide whether runs can be recorded. */
typedef struct survey {
    int64_t launches;
    bool fixed; /* control depends on no data of the device */
    bool reads; /* the program reads registers from buffers */
    bool overlaps;
} survey;

static tcc_status check_launch(const tcc_gpu *gpu, const tcc_code *code) {
    const tcc_gpu_kernel *kernel = &gpu->variant->kernels[code->as.launch.kernel];
    int64_t arrays = code->as.launch.buffers.count, sizes = code->as.launch.ints.count;
    if (arrays == kernel->n_pointers && sizes == kernel->n_ints) return TCC_OK;
    return tcc_fail(TCC_CORRUPT,
                    "the artifact is damaged: kernel '%.128s' takes %d arrays and %d sizes, the "
                    "program gives %lld and %lld",
                    kernel->symbol, kernel->n_pointers, kernel->n_ints, (long long)arrays,
                    (long long)sizes);
}

static tcc_status check_body(const tcc_gpu *gpu, const tcc_program *program, tcc_body body,
                             survey *survey) {
    for (int64_t i = 0; i < body.count; i++) {
        const tcc_code *code = &body.code[i];
        switch (code->kind) {
        case TCC_CODE_LAUNCH:
            survey->launches++;
            TCC_RETURN_IF_ERROR(check_launch(gpu, code));
            break;
        case TCC_CODE_CALL:
            survey->fixed = false;
            if (!(gpu->images.flags & TCC_IMAGES_HOST_CALLS))
                return tcc_fail(TCC_UNSUPPORTED,
                                "the program calls '%.64s', which runs on the host only: compile "
                                "the model with --allow-host",
                                code->as.call.op);
            break;
        case TCC_CODE_ALLOCATE:
            if (program->buffers[code->as.allocate.buffer].place == TCC_PLACE_DYNAMIC)
                survey->fixed = false;
            break;
        case TCC_CODE_READ:
            survey->reads = true;
            survey->fixed = false;
            break;
        case TCC_CODE_BRANCH:
            if (code->as.branch.condition >= 0) survey->fixed = false;
            TCC_RETURN_IF_ERROR(check_body(gpu, program, code->as.branch.then, survey));
            TCC_RETURN_IF_ERROR(check_body(gpu, program, code->as.branch.otherwise, survey));
            break;
        case TCC_CODE_COLLECTIVE:
            if (i + 1 == body.count || body.code[i + 1].kind != TCC_CODE_WAIT)
                survey->overlaps = true;
            break;
        case TCC_CODE_LOOP:
            if (code->as.loop.condition >= 0) survey->fixed = false;
            survey->launches++; /* counts several, for a launch inside a loop */
            TCC_RETURN_IF_ERROR(check_body(gpu, program, code->as.loop.body, survey));
            break;
        default: break;
        }
    }
    return TCC_OK;
}

static bool is_set(const char *name) {
    const char *value = secure_getenv(name);
    return value && strcmp(value, "0");
}

static tcc_status check_program(tcc_gpu *gpu, const tcc_program *program) {
    survey its = {.fixed = true};
    TCC_RETURN_IF_ERROR(check_body(gpu, program, program->body, &its));
    const char *graphs = secure_getenv("TCC_GRAPHS");
    gpu->wait = is_set("TCC_SYNC");
    gpu->overlaps = its.overlaps;
    gpu->reads = its.reads;
    for (int64_t i = 0; i < program->prologue.count; i++)
        gpu->reads |= program->prologue.code[i].kind == TCC_CODE_READ;
    gpu->graphs = its.fixed && its.launches > 1 && !gpu->wait && !(graphs && !strcmp(graphs, "0"));
    return TCC_OK;
}

/* ---- kernels and weights ---------------------------------------------------------------------------- */

static tcc_status check_memory(const tcc_gpu *gpu, const tcc_program *program, size_t weights,
                               const char *model) {
    size_t free_bytes = 0, total = 0;
    TCC_GPU_TRY(gpu->driver, memory_info(&free_bytes, &total), "%s does not tell its free memory",
                gpu->name);
    uint64_t arena = (uint64_t)program->fixed_arena, state = (uint64_t)program->state_bytes;
    uint64_t required = weights + arena + state;
    if (required <= free_bytes) return TCC_OK;
    return tcc_fail(TCC_OUT_OF_MEMORY,
                    "model '%s' needs %llu bytes on the device (weights %llu, arena %llu, state "
                    "%llu), but %s has %llu of %llu free",
                    model, (unsigned long long)required, (unsigned long long)weights,
                    (unsigned long long)arena, (unsigned long long)state, gpu->name,
                    (unsigned long long)free_bytes, (unsigned long long)total);
}

static tcc_status check_shared(const tcc_gpu *gpu) {
    int max_shared = 0;
    TCC_GPU_TRY(gpu->driver, device_attribute(&max_shared, gpu->driver->max_shared, gpu->device),
                "%s does not tell its shared memory", gpu->name);
    for (int64_t i = 0; i < gpu->images.n_kernels; i++) {
        const tcc_gpu_kernel *kernel = &gpu->variant->kernels[i];
        if (kernel->shared > (uint32_t)max_shared)
            return tcc_fail(TCC_UNSUPPORTED,
                            "kernel '%.128s' needs %u bytes of shared memory, %s has %d",
                            kernel->symbol, kernel->shared, gpu->name, max_shared);
    }
    return TCC_OK;
}

/* Returns true for the errors that drivers give for code that is too new for them or in an unknown
 * form. */
static bool is_refusal(int error) {
    enum { IMAGE = 200, GPU = 209, PTX = 218, NO_JIT = 221, PTX_VERSION = 222, JIT_OFF = 223, SOURCE = 300 };
    return error == IMAGE || error == GPU || error == PTX || error == NO_JIT ||
           error == PTX_VERSION || error == JIT_OFF || error == SOURCE;
}

static tcc_status cannot_load(tcc_gpu *gpu, const tcc_gpu_kernel *kernel, int error, char *log) {
    const tcc_gpu_driver *driver = gpu->driver;
    char needs[160] = "";
    int version = 0;
    gpu->refused = is_refusal(error);
    if (gpu->refused && *gpu->variant->needs)
        snprintf(needs, sizeof needs, "; it needs %.64s or newer", gpu->variant->needs);
    if (*needs && driver->driver_version && !driver->driver_version(&version))
        snprintf(needs + strlen(needs), sizeof needs - strlen(needs), ", and this is one of CUDA %d.%d",
                 version / 1000, version % 1000 / 10);
    log[strcspn(log, "\n")] = 0;
    return tcc_gpu_fail(driver, error, "the code of kernel '%.128s' (%s%s) cannot be loaded on %s%s%s%s",
                        kernel->symbol, gpu->variant->arch,
                        gpu->variant->form == TCC_FORM_PTX ? " PTX" : "", gpu->name, needs,
                        *log ? ": " : "", log);
}

static tcc_status load_module(tcc_gpu *gpu, const tcc_gpu_kernel *kernel) {
    enum { ERROR_LOG = 5, ERROR_LOG_BYTES = 6, ROOM = 512 };
    char log[ROOM + 1] = "";
    int options[] = {ERROR_LOG, ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)ROOM};
    int error = gpu->driver->module_load(&gpu->modules[kernel->image],
                                         gpu->images.images[kernel->image].bytes, 2, options, values);
    return error ? cannot_load(gpu, kernel, error, log) : TCC_OK;
}

static tcc_status load_kernel(tcc_gpu *gpu, int64_t index) {
    enum { MOST_DYNAMIC_SHARED = 8, CARVEOUT = 9, ALL = 100, WITHOUT_ASKING = 48 << 10 };
    const tcc_gpu_kernel *kernel = &gpu->variant->kernels[index];
    const tcc_gpu_driver *driver = gpu->driver;
    void **function = &gpu->functions[index];
    if (!gpu->modules[kernel->image]) TCC_RETURN_IF_ERROR(load_module(gpu, kernel));
    int error = driver->module_function(function, gpu->modules[kernel->image], kernel->symbol);
    /* the driver loads code late */
    if (is_refusal(error)) return cannot_load(gpu, kernel, error, (char[1]){0});
    if (error)
        return tcc_gpu_fail(driver, error, "kernel '%.128s' is not in its code", kernel->symbol);
    if (!driver->function_attribute || kernel->shared <= WITHOUT_ASKING) return TCC_OK;
    TCC_GPU_TRY(driver, function_attribute(*function, MOST_DYNAMIC_SHARED, (int)kernel->shared),
                "kernel '%.128s' does not get its %u bytes of shared memory", kernel->symbol,
                kernel->shared);
    /* share of the multiprocessor's memory that is shared memory: with more, more blocks run at
     * once, but the cache is smaller */
    TCC_GPU_TRY(driver, function_attribute(*function, CARVEOUT, ALL),
                "kernel '%.128s' does not get its share of shared memory", kernel->symbol);
    return TCC_OK;
}

static tcc_status load_kernels(tcc_gpu *gpu) {
    for (int64_t i = 0; i < gpu->images.n_kernels; i++) TCC_RETURN_IF_ERROR(load_kernel(gpu, i));
    return TCC_OK;
}

static void unload_kernels(tcc_gpu *gpu) {
    for (int64_t i = 0; gpu->modules && i < gpu->images.n_images; i++) {
        if (gpu->modules[i]) (void)gpu->driver->module_unload(gpu->modules[i]);
        gpu->modules[i] = NULL;
    }
}

static tcc_status use_variant(tcc_gpu *gpu, const tcc_program *program) {
    TCC_RETURN_IF_ERROR(check_program(gpu, program));
    TCC_RETURN_IF_ERROR(check_shared(gpu));
    TCC_RETURN_IF_ERROR(tcc_gpu_check_maps(gpu));
    return load_kernels(gpu);
}

/* Machine code works with a range of drivers.  If one refuses it, the model's assembly is tried,
 * which depends less on the driver. */
static tcc_status use_best_variant(tcc_gpu *gpu, const tcc_program *program) {
    gpu->modules = tcc_allocate_zero((size_t)gpu->images.n_images, sizeof *gpu->modules);
    gpu->functions = tcc_allocate_zero((size_t)gpu->images.n_kernels, sizeof *gpu->functions);
    if (!gpu->modules || !gpu->functions) return TCC_OUT_OF_MEMORY;
    tcc_status status = use_variant(gpu, program);
    long rank = 0;
    const tcc_gpu_variant *portable =
        tcc_gpu_images_choose(&gpu->images, gpu->arch, true, &rank);
    if (status == TCC_OK || !gpu->refused || !portable || portable == gpu->variant) return status;
    char reason[500], other[500];
    snprintf(reason, sizeof reason, "%s", tcc_last_error());
    unload_kernels(gpu);
    gpu->variant = portable;
    status = use_variant(gpu, program);
    if (status == TCC_OK) return TCC_OK;
    snprintf(other, sizeof other, "%s", tcc_last_error());
    return tcc_fail(status, "%s; %s", reason, other);
}

static tcc_status upload_weights(tcc_gpu *gpu, const char *weights, size_t bytes) {
    const tcc_gpu_driver *driver = gpu->driver;
    if (!bytes) return TCC_OK;
    void *memory = NULL;
    TCC_GPU_TRY(driver, allocate(&memory, bytes), "no device memory for %zu bytes of weights", bytes);
    gpu->weights = memory;
    TCC_GPU_TRY(driver, copy_to_device(gpu->weights, weights, bytes, NULL),
                "the weights cannot be copied to %s", gpu->name);
    TCC_GPU_TRY(driver, stream_wait(NULL), "the weights cannot be copied to %s", gpu->name);
    return TCC_OK;
}

static tcc_status prepare(tcc_gpu *gpu, const tcc_program *program, const char *weights,
                          size_t bytes, const char *model) {
    TCC_RETURN_IF_ERROR(check_memory(gpu, program, bytes, model));
    TCC_RETURN_IF_ERROR(use_best_variant(gpu, program));
    return upload_weights(gpu, weights, bytes);
}

tcc_status tcc_gpu_open(tcc_gpu *gpu, const tcc_program *program, const char *weights, size_t bytes,
                        const char *model) {
    if (program->ranks >= 0 && gpu->ranks > gpu->devices)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "model '%s' needs a GPU for each rank, but %d ranks run on this host, and %s "
                        "has %d here: start fewer ranks on it, or choose a GPU for each rank by "
                        "TCC_DEVICE",
                        model, gpu->ranks, gpu->driver->name, gpu->devices);
    if (gpu->driver->context_retain)
        TCC_GPU_TRY(gpu->driver, context_retain(&gpu->context, gpu->device),
                    "%s cannot be opened", gpu->name);
    tcc_gpu_scope scope;
    TCC_RETURN_IF_ERROR(tcc_gpu_enter(gpu, &scope));
    tcc_status status = prepare(gpu, program, weights, bytes, model);
    tcc_gpu_leave(gpu, &scope);
    return status;
}

/* Unloads the device.  It ignores errors, because no caller can handle them and the driver may be
 * gone already. */
static void unload(tcc_gpu *gpu) {
    tcc_gpu_scope scope;
    if (tcc_gpu_enter(gpu, &scope) != TCC_OK) return;
    if (gpu->weights) (void)gpu->driver->release(gpu->weights);
    unload_kernels(gpu);
    tcc_gpu_leave(gpu, &scope);
}

void tcc_gpu_close(tcc_gpu *gpu) {
    if (!gpu) return;
    if (gpu->modules || gpu->weights) unload(gpu);
    if (gpu->context) (void)gpu->driver->context_release(gpu->device);
    tcc_gpu_images_free(&gpu->images);
    tcc_free(gpu->modules);
    tcc_free(gpu->functions);
    tcc_free(gpu);
}

bool tcc_gpu_accepts(const tcc_gpu *gpu, tcc_device device) {
    if (device.type == TCC_DEVICE_CUDA_MANAGED) return gpu->driver->platform == TCC_PLATFORM_CUDA;
    if (device.type == gpu->driver->device_type) return device.id == gpu->ordinal;
    return tcc_gpu_is_host(device);
}

bool tcc_gpu_is_host(tcc_device device) {
    return device.type == TCC_DEVICE_CPU || device.type == TCC_DEVICE_CUDA_HOST ||
           device.type == TCC_DEVICE_ROCM_HOST;
}

const char *tcc_gpu_expected(const tcc_gpu *gpu, char text[64]) {
    snprintf(text, 64, "in CPU memory or on %s device %d",
             gpu->driver->platform == TCC_PLATFORM_CUDA ? "CUDA" : "ROCm", gpu->ordinal);
    return text;
}
