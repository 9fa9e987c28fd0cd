/* The tvm-ffi interface of an artifact: the same model for `tvm_ffi.load_module` and what builds on
 * it.
 *
 *   __tvm_ffi_main(inputs...) -> the outputs: one tensor, an Array of them, or None
 *   __tvm_ffi_run_into(inputs..., outputs...) -> None; the caller's output arrays are filled
 *
 * In-place outputs are the caller's input arrays, so `main` leaves them out of what it returns.  On
 * a GPU a run goes to tvm-ffi's current stream of the arrays' device: where such a stream is set,
 * the call may return before its work is done.  The structs below restate the stable part of that
 * ABI.  Without the library in the process the artifact loads and runs all the same; only these
 * entry points fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct ffi_any {
    int32_t type;
    uint32_t padding;
    union {
        int64_t as_int;
        void *as_pointer;
    } value;
} ffi_any;
_Static_assert(sizeof(ffi_any) == 16, "an Any is two words");

typedef struct ffi_object {
    uint64_t counts;
    int32_t type;
    uint32_t padding;
    void (*deleter)(void *self, int flags);
} ffi_object;
_Static_assert(sizeof(ffi_object) == 24, "a tensor lies 24 bytes into its object");
_Static_assert(sizeof(tcc_tensor) == 48, "tcc_tensor is laid out as DLTensor");

typedef struct ffi_bytes {
    const char *data;
    size_t size;
} ffi_bytes;

typedef struct ffi_managed_tensor {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct ffi_managed_tensor *self);
    uint64_t flags;
    tcc_tensor tensor;
} ffi_managed_tensor;
_Static_assert(sizeof(ffi_managed_tensor) == 80, "laid out as DLManagedTensorVersioned");

enum { TYPE_NONE = 0, TYPE_TENSOR_POINTER = 7, TYPE_TENSOR = 70 };

/* Functions of tvm-ffi, looked up when first needed and not linked: the artifact may be loaded
 * before tvm-ffi is. */
typedef struct ffi_table {
    void (*set_error)(const char *kind, const char *message);
    int (*make_string)(const ffi_bytes *input, ffi_any *out);
    int (*make_tensor)(ffi_managed_tensor *from, int32_t alignment, int32_t contiguous, void **out);
    int (*get_global)(const ffi_bytes *name, void **out);
    int (*call)(void *function, ffi_any *arguments, int32_t count, ffi_any *result);
    int (*release)(void *object);
    void *(*get_stream)(int32_t device_type, int32_t device_id);
} ffi_table;

static const ffi_table *ffi; /* written once, complete; has no lock, because processes fork */

static bool look_up(const char *name, void *out_function) {
    void *function = dlsym(RTLD_DEFAULT, name);
    memcpy(out_function, &function, sizeof function); /* C has no cast from data to code */
    return function != NULL;
}

static bool find_ffi(void) {
    if (__atomic_load_n(&ffi, __ATOMIC_ACQUIRE)) return true;
    ffi_table *table = tcc_allocate(sizeof *table);
    const ffi_table *none = NULL;
    bool is_complete = table && look_up("TVMFFIErrorSetRaisedFromCStr", &table->set_error) &&
                 look_up("TVMFFIStringFromByteArray", &table->make_string) &&
                 look_up("TVMFFITensorFromDLPackVersioned", &table->make_tensor) &&
                 look_up("TVMFFIFunctionGetGlobal", &table->get_global) &&
                 look_up("TVMFFIFunctionCall", &table->call) &&
                 look_up("TVMFFIObjectDecRef", &table->release) &&
                 look_up("TVMFFIEnvGetStream", &table->get_stream);
    if (!is_complete || !__atomic_compare_exchange_n(&ffi, &none, table, false, __ATOMIC_ACQ_REL,
                                                     __ATOMIC_ACQUIRE))
        tcc_free(table);
    return is_complete;
}

/* Fails without tvm-ffi in the process.  The caller sees the status only. */
static int no_ffi(void) {
    tcc_fail(TCC_UNSUPPORTED, "tvm-ffi is not loaded in this process");
    return -1;
}

static int raise_error(tcc_status status) {
    const char *kind = status == TCC_INVALID_ARGUMENT ? "ValueError"
                       : status == TCC_OUT_OF_MEMORY  ? "MemoryError"
                                                      : "RuntimeError";
    ffi->set_error(kind, tcc_last_error());
    return -1;
}

/* Returns the model, which the first call loads and keeps until the process ends. */
static tcc_status get_model(tcc_model **out_model) {
    static tcc_model *opened;
    tcc_model *model = __atomic_load_n(&opened, __ATOMIC_ACQUIRE);
    if (!model) {
        TCC_RETURN_IF_ERROR(tcc_model_get(&model));
        tcc_model *none = NULL;
        if (!__atomic_compare_exchange_n(&opened, &none, model, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_ACQUIRE))
            tcc_model_release(model);
    }
    const tcc_program *program = &model->program;
    for (int32_t i = 0; i < program->n_inputs + program->n_outputs; i++) {
        const tcc_port_info *info = i < program->n_inputs ? &program->inputs[i]
                                                          : &program->outputs[i - program->n_inputs];
        if (tcc_is_opaque(info->port.dtype))
            return tcc_fail(TCC_UNSUPPORTED,
                            "'%.128s': strings and lists cannot be exchanged through tvm-ffi",
                            info->port.name);
    }
    *out_model = model;
    return TCC_OK;
}

static tcc_status to_tensor(const ffi_any *any, int32_t index, tcc_tensor *out_tensor) {
    const char *place = any->value.as_pointer;
    if (any->type == TYPE_TENSOR && place)
        memcpy(out_tensor, place + sizeof(ffi_object), sizeof *out_tensor);
    else if (any->type == TYPE_TENSOR_POINTER && place)
        memcpy(out_tensor, place, sizeof *out_tensor);
    else
        return tcc_fail(TCC_INVALID_ARGUMENT, "argument %d: expected a tensor, got type index %d",
                        index, any->type);
    return TCC_OK;
}

static tcc_status to_tensors(const ffi_any *arguments, int32_t count, tcc_tensor **out_tensors) {
    tcc_tensor *tensors = tcc_allocate_zero((size_t)count, sizeof *tensors);
    if (!tensors) return TCC_OUT_OF_MEMORY;
    for (int32_t i = 0; i < count; i++) {
        tcc_status status = to_tensor(&arguments[i], i, &tensors[i]);
        if (status != TCC_OK) {
            tcc_free(tensors);
            return status;
        }
    }
    *out_tensors = tensors;
    return TCC_OK;
}

/* Returns the caller's stream on the device of the first array that lies on a device; NULL where no
 * array does. */
static void *stream_of(const tcc_model *model, const tcc_tensor *tensors, int32_t count) {
    for (int32_t i = 0; model->gpu && i < count; i++)
        if (!tcc_gpu_is_host(tensors[i].device))
            return ffi->get_stream(tensors[i].device.type, tensors[i].device.id);
    return NULL;
}

/* ---- results ------------------------------------------------------------------------------------ */

/* A result.  On the host its data follows the struct, aligned to 64. */
typedef struct result_tensor {
    ffi_managed_tensor managed; /* first, because the deleter gets its address */
    tcc_pool *pool;             /* the pool that this struct lies in */
    tcc_gpu *gpu;               /* the device that holds the data; NULL: the host */
    int64_t sizes[];            /* shape, then strides */
} result_tensor;

/* The context of allocate_result. */
typedef struct result_list {
    result_tensor **results;
    tcc_gpu *gpu;
} result_list;

static void delete_result(ffi_managed_tensor *managed) {
    result_tensor *result = (result_tensor *)managed;
    if (result->gpu) tcc_gpu_give(result->gpu, managed->tensor.data);
    (void)tcc_pool_give(result->pool, result);
}

static int allocate_result(void *context, int32_t output, const tcc_tensor *tensor,
                           void **out_data) {
    result_list *list = context;
    int64_t bytes = tcc_byte_count(tensor->shape, tensor->ndim, tensor->dtype);
    size_t head = sizeof(result_tensor) + 2 * (size_t)tensor->ndim * sizeof(int64_t);
    head = (head + TCC_POOL_ALIGNMENT - 1) / TCC_POOL_ALIGNMENT * TCC_POOL_ALIGNMENT;
    tcc_gpu *gpu = tcc_gpu_is_host(tensor->device) ? NULL : list->gpu;
    tcc_pool *pool = NULL;
    void *memory = NULL, *data = NULL;
    if (bytes < 0 || tcc_result_pool(&pool) != TCC_OK) return -1;
    if (tcc_pool_take(pool, head + (gpu ? 0 : (size_t)bytes), &memory) != TCC_OK) return -1;
    if (gpu && tcc_gpu_take(gpu, (size_t)bytes, &data) != TCC_OK) {
        (void)tcc_pool_give(pool, memory);
        return -1;
    }
    result_tensor *result = memory;
    *result = (result_tensor){
        .managed = {.major = 1, .minor = 1, .deleter = delete_result, .tensor = *tensor},
        .pool = pool,
        .gpu = gpu};
    /* consumers of newer DLPack versions may insist on strides */
    int64_t stride = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        result->sizes[i] = tensor->shape[i];
        result->sizes[tensor->ndim + i] = stride;
        stride *= tensor->shape[i];
    }
    result->managed.tensor.shape = result->sizes;
    result->managed.tensor.strides = result->sizes + tensor->ndim;
    result->managed.tensor.data = *out_data = gpu ? data : (char *)memory + head;
    list->results[output] = result;
    return 0;
}

static int make_array(ffi_any *items, int32_t count, ffi_any *result) {
    static const ffi_bytes name = {"ffi.Array", 9};
    void *function = NULL;
    if (ffi->get_global(&name, &function)) return -1;
    int failed = ffi->call(function, items, count, result);
    ffi->release(function);
    return failed;
}

/* Turns results into tensors.  Every result is used up or freed, also on failure. */
static int return_results(result_tensor **results, int32_t count, ffi_any *result) {
    ffi_any *items = calloc((size_t)count + 1, sizeof *items);
    int32_t n_items = 0;
    int failed = items == NULL;
    for (int32_t i = 0; i < count; i++) {
        if (!results[i]) continue;
        void *object = NULL;
        if (!failed) failed = ffi->make_tensor(&results[i]->managed, 0, 0, &object);
        if (failed)
            delete_result(&results[i]->managed);
        else
            items[n_items++] = (ffi_any){TYPE_TENSOR, 0, {.as_pointer = object}};
        results[i] = NULL;
    }
    if (!failed && n_items == 1)
        *result = items[0];
    else if (!failed && n_items > 1)
        failed = make_array(items, n_items, result);
    for (int32_t i = 0; i < n_items && (failed || n_items > 1); i++)
        ffi->release(items[i].value.as_pointer);
    free(items);
    return failed;
}

/* ---- exports ------------------------------------------------------------------------------------ */

EXPORT int __tvm_ffi_main(void *handle, const ffi_any *arguments, int32_t count, ffi_any *result) {
    (void)handle;
    tcc_model *model = NULL;
    tcc_tensor *inputs = NULL;
    *result = (ffi_any){TYPE_NONE, 0, {.as_int = 0}};
    if (!find_ffi()) return no_ffi();
    tcc_status status = get_model(&model);
    if (status == TCC_OK) status = to_tensors(arguments, count, &inputs);
    if (status != TCC_OK) return raise_error(status);
    int32_t n_outputs = model->program.n_outputs;
    result_tensor **results = tcc_allocate_zero((size_t)n_outputs, sizeof *results);
    result_list list = {results, model->gpu};
    tcc_allocator allocator = {&list, allocate_result};
    status = results ? tcc_model_call(model, inputs, count, NULL, 0, &allocator,
                                      stream_of(model, inputs, count))
                     : TCC_OUT_OF_MEMORY;
    tcc_free(inputs);
    int failed = 0;
    if (status == TCC_OK) {
        failed = return_results(results, n_outputs, result);
    } else {
        for (int32_t i = 0; results && i < n_outputs; i++)
            if (results[i]) delete_result(&results[i]->managed);
        failed = raise_error(status);
    }
    tcc_free(results);
    return failed;
}

EXPORT int __tvm_ffi_run_into(void *handle, const ffi_any *arguments, int32_t count,
                              ffi_any *result) {
    (void)handle;
    tcc_model *model = NULL;
    tcc_tensor *tensors = NULL;
    *result = (ffi_any){TYPE_NONE, 0, {.as_int = 0}};
    if (!find_ffi()) return no_ffi();
    tcc_status status = get_model(&model);
    if (status == TCC_OK) {
        int32_t expected = model->program.n_inputs + model->program.n_outputs;
        if (count != expected)
            status = tcc_fail(TCC_INVALID_ARGUMENT,
                              "expected %d arrays (%d inputs, then outputs), got %d", expected,
                              model->program.n_inputs, count);
    }
    if (status == TCC_OK) status = to_tensors(arguments, count, &tensors);
    if (status == TCC_OK) {
        int32_t n = model->program.n_inputs;
        status = tcc_model_call(model, tensors, n, tensors + n, count - n, NULL,
                                stream_of(model, tensors, count));
    }
    tcc_free(tensors);
    return status == TCC_OK ? 0 : raise_error(status);
}

static int return_string(const char *text, ffi_any *result) {
    ffi_bytes bytes = {text, strlen(text)};
    return ffi->make_string(&bytes, result);
}

EXPORT int __tvm_ffi__metadata_main(void *handle, const ffi_any *arguments, int32_t count,
                                    ffi_any *result) {
    (void)handle, (void)arguments, (void)count;
    static const char head[] = "{\"type_schema\": \"{\\\"type\\\":\\\"ffi.Function\\\",\\\"args\\\":"
                               "[{\\\"type\\\":\\\"Any\\\"}";
    static const char item[] = ",{\\\"type\\\":\\\"ffi.Tensor\\\"}";
    tcc_model *model = NULL;
    if (!find_ffi()) return no_ffi();
    tcc_status status = get_model(&model);
    if (status != TCC_OK) return raise_error(status);
    size_t n = (size_t)model->program.n_inputs;
    char *text = tcc_allocate(sizeof head + n * sizeof item + 8);
    if (!text) return raise_error(TCC_OUT_OF_MEMORY);
    strcpy(text, head);
    for (size_t i = 0; i < n; i++) strcpy(text + sizeof head - 1 + i * (sizeof item - 1), item);
    strcat(text, "]}\"}");
    int failed = return_string(text, result);
    tcc_free(text);
    return failed;
}

EXPORT int __tvm_ffi__doc_main(void *handle, const ffi_any *arguments, int32_t count,
                               ffi_any *result) {
    (void)handle, (void)arguments, (void)count;
    tcc_model *model = NULL;
    if (!find_ffi()) return no_ffi();
    tcc_status status = get_model(&model);
    if (status != TCC_OK) return raise_error(status);
    const tcc_program *program = &model->program;
    char text[4096], dtype[16];
    size_t used = (size_t)snprintf(text, sizeof text, "%s: a model compiled by tcc.\n",
                                   tcc_artifact_info.name);
    for (int32_t i = 0; i < program->n_inputs + program->n_outputs && used < sizeof text; i++) {
        bool input = i < program->n_inputs;
        const tcc_port *port = input ? &program->inputs[i].port
                                     : &program->outputs[i - program->n_inputs].port;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s %s: %s %s\n",
                                 input ? "input" : "output", port->name,
                                 tcc_dtype_name(port->dtype, dtype), port->text);
    }
    return return_string(text, result);
}
