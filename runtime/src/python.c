/* Calls from Python: NumPy arrays to descriptors and back without an object of Python's between
 * them.
 *
 * The artifact is linked with neither library.  Python's functions are looked up in the process;
 * all belong to the stable ABI of 3.11.  NumPy's functions are at fixed places of the table in its
 * capsule `_ARRAY_API`.  The layouts below are those that NumPy's macros compile into other
 * libraries, the same in its versions 1 and 2.  The functions are called with the GIL held; they
 * release it while the model runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "runtime.h"

/* The fields of an element type (PyArray_Descr) behind the object's header. */
typedef struct py_element {
    void *type;
    char kind, letter, order, unused;
    int number;
} py_element;

/* The fields of an array (PyArrayObject) behind the object's header. */
typedef struct py_array {
    void *data;
    int rank;
    ptrdiff_t *sizes, *strides;
    void *base, *element;
    int flags;
} py_array;
_Static_assert(sizeof(ptrdiff_t) == sizeof(int64_t), "sizes of arrays are tcc_tensor's");

/* Flags of arrays (NPY_ARRAY_*). */
#define ROW_MAJOR 0x1u
#define ALIGNED 0x100u
#define WRITABLE 0x400u
#define WARNS_OF_WRITES 0x80000000u

/* Element types by NumPy's type number; 0 bits: none of the machine's plain numbers. */
static const tcc_dtype element_types[] = {
    [0] = {6, 8, 1},  [1] = {0, 8, 1},  [2] = {1, 8, 1},  [3] = {0, 16, 1},  [4] = {1, 16, 1},
    [5] = {0, 32, 1}, [6] = {1, 32, 1}, [7] = {0, 64, 1}, [8] = {1, 64, 1},  [9] = {0, 64, 1},
    [10] = {1, 64, 1}, [11] = {2, 32, 1}, [12] = {2, 64, 1}, [23] = {2, 16, 1},
};
enum { ELEMENT_TYPES = sizeof element_types / sizeof *element_types, UNSUITED = -1 };

/* Results of this many bytes or more get memory from the pool.  The system clears fresh memory page
 * by page, which costs more than writing a result once. */
static const int64_t max_lent = 1 << 16;

#define EXPORT __attribute__((visibility("default")))

typedef struct py_table {
    void *(*item)(void *tuple, ptrdiff_t index);
    ptrdiff_t (*size)(void *tuple);
    void *(*new_tuple)(ptrdiff_t size);
    int (*set_item)(void *tuple, ptrdiff_t index, void *item);
    void *(*type)(void *object);
    void (*keep)(void *object);
    void (*drop)(void *object);
    void **memory_error, **value_error;
    void (*fail)(void *error, const char *message);
    void *(*as_pointer)(void *integer);
    ptrdiff_t (*as_size)(void *integer);
    void *(*from_long)(long number);
    void *(*new_capsule)(void *pointer, const char *name, void (*destroy)(void *capsule));
    void *(*pointer_of)(void *capsule, const char *name);
    void *(*new_function)(void *method, void *self, void *module);
    void *(*save_thread)(void);
    void (*restore_thread)(void *state);
    ptrdiff_t header; /* bytes of an object's header */
    void *array;      /* Python's type of arrays */
    void *(*element)(int number);
    void *(*new_array)(void *type, void *element, int rank, const int64_t *sizes, const int64_t *strides,
                       void *data, int flags, void *object);
    int (*set_base)(void *array, void *base);
} py_table;

static py_table py; /* read and written with the GIL held */

static bool look_up(const char *name, void *out_function) {
    void *function = dlsym(RTLD_DEFAULT, name);
    memcpy(out_function, &function, sizeof function); /* C has no cast from data to code */
    return function != NULL;
}

static bool find_python(void) {
    return look_up("PyErr_SetString", &py.fail) && look_up("PyExc_ValueError", &py.value_error) &&
           look_up("PyExc_MemoryError", &py.memory_error) &&
           look_up("PyTuple_GetItem", &py.item) && look_up("PyTuple_Size", &py.size) &&
           look_up("PyTuple_New", &py.new_tuple) && look_up("PyTuple_SetItem", &py.set_item) &&
           look_up("PyObject_Type", &py.type) && look_up("Py_IncRef", &py.keep) &&
           look_up("Py_DecRef", &py.drop) && look_up("PyLong_AsVoidPtr", &py.as_pointer) &&
           look_up("PyLong_AsSsize_t", &py.as_size) && look_up("PyLong_FromLong", &py.from_long) &&
           look_up("PyCapsule_New", &py.new_capsule) &&
           look_up("PyCapsule_GetPointer", &py.pointer_of) &&
           look_up("PyCFunction_NewEx", &py.new_function) &&
           look_up("PyEval_SaveThread", &py.save_thread) &&
           look_up("PyEval_RestoreThread", &py.restore_thread);
}

/* Takes the needed functions from NumPy's table.  Returns false where it has another version. */
static bool find_numpy(void *const *table) {
    unsigned (*version)(void) = NULL;
    if (!table) return false;
    memcpy(&version, &table[0], sizeof version);
    if (version() >> 24 != 1 && version() >> 24 != 2) return false;
    py.array = table[2];
    memcpy(&py.element, &table[45], sizeof py.element);
    memcpy(&py.new_array, &table[94], sizeof py.new_array);
    memcpy(&py.set_base, &table[282], sizeof py.set_base);
    return true;
}

/* ---- results ---------------------------------------------------------------------------------------- */

static const char lent_name[] = "the memory of a result";

static void give_back(void *capsule) {
    tcc_pool *pool = NULL;
    if (tcc_result_pool(&pool) == TCC_OK)
        (void)tcc_pool_give(pool, py.pointer_of(capsule, lent_name));
}

/* Returns a capsule with memory from the pool, which gets it back when the capsule dies; NULL with
 * an error of Python's set. */
static void *lend(int64_t bytes, void **out_memory) {
    tcc_pool *pool = NULL;
    if (bytes < 0) {
        py.fail(*py.memory_error, "a result has more bytes than can be counted");
        return NULL;
    }
    if (tcc_result_pool(&pool) != TCC_OK || tcc_pool_take(pool, (size_t)bytes, out_memory) != TCC_OK) {
        py.fail(*py.memory_error, tcc_last_error());
        return NULL;
    }
    void *capsule = py.new_capsule(*out_memory, lent_name, give_back);
    if (!capsule) (void)tcc_pool_give(pool, *out_memory);
    return capsule;
}

/* Returns a new row-major array with undefined contents; NULL with an error of Python's set. */
static void *new_array(tcc_dtype dtype, int32_t rank, const int64_t *sizes, void **out_data) {
    int64_t bytes = tcc_byte_count(sizes, rank, dtype);
    int number = 0, flags = 0;
    void *owner = NULL;
    *out_data = NULL;
    while (memcmp(&element_types[number], &dtype, sizeof dtype)) number++;
    if (bytes < 0 || bytes >= max_lent) {
        owner = lend(bytes, out_data);
        if (!owner) return NULL;
        flags = ROW_MAJOR | ALIGNED | WRITABLE;
    }
    void *object = py.new_array(py.array, py.element(number), rank, sizes, NULL, *out_data, flags, NULL);
    if (object && !owner) *out_data = ((py_array *)((char *)object + py.header))->data;
    if (owner && !object) py.drop(owner);
    if (owner && object && py.set_base(object, owner)) {
        py.drop(object);
        return NULL;
    }
    return object;
}

/* ---- a call ----------------------------------------------------------------------------------------- */

typedef struct py_call {
    const tcc_program *program;
    tcc_tensor *inputs, *outputs;
    int64_t *sizes; /* sizes of the inputs, and steps of states, copied because arrays may be
                       reshaped while the model runs */
    void **arrays;  /* by output: its new array, or NULL */
    void *thread;   /* Python's thread state while the GIL is released */
    bool failed;    /* Python has an error set */
} py_call;

/* Returns true if the tables for an instance's calls exist; the first call makes them. */
static bool make_tables(tcc_instance *instance, py_call *call) {
    const tcc_program *program = call->program;
    size_t n_in = (size_t)program->n_inputs, n_out = (size_t)program->n_outputs, rank = 0;
    if (!instance->views) {
        for (size_t i = 0; i < n_in; i++) rank += (size_t)program->inputs[i].port.ndim;
        instance->views = tcc_allocate((n_in + n_out) * sizeof(tcc_tensor) + n_out * sizeof(void *) +
                                       2 * rank * sizeof(int64_t));
    }
    call->inputs = instance->views;
    call->outputs = call->inputs + n_in;
    call->arrays = (void **)(call->outputs + n_out);
    call->sizes = (int64_t *)(call->arrays + n_out);
    return instance->views != NULL;
}

/* Reads an input.  Returns false unless it is an array of exactly NumPy's own type, of the port's
 * rank, row-major (states may have room behind their rows), with plain numbers. */
static bool view(py_call *call, void *object, const tcc_port_info *info, tcc_tensor *tensor, bool updated) {
    const tcc_port *port = &info->port;
    void *type = py.type(object);
    py.drop(type); /* the object keeps its type alive */
    if (type != py.array) return false;
    const py_array *array = (py_array *)((char *)object + py.header);
    const py_element *element = (py_element *)((char *)array->element + py.header);
    unsigned required = ALIGNED | (updated ? WRITABLE : 0), flags = (unsigned)array->flags;
    if (info->axis < 0) required |= ROW_MAJOR;
    if ((flags & required) != required || (updated && flags & WARNS_OF_WRITES)) return false;
    if (array->rank != port->ndim || element->order == '>') return false;
    if (element->number < 0 || element->number >= ELEMENT_TYPES) return false;
    *tensor = (tcc_tensor){.data = array->data, .device = {1, 0}, .ndim = array->rank,
                           .dtype = element_types[element->number], .shape = call->sizes};
    for (int i = 0; i < array->rank; i++) *call->sizes++ = array->sizes[i];
    if (flags & ROW_MAJOR || tensor->dtype.bits < 8) return tensor->dtype.bits != 0;
    tensor->strides = call->sizes;
    for (int i = 0; i < array->rank; i++) {
        if (array->strides[i] % (tensor->dtype.bits / 8)) return false;
        *call->sizes++ = array->strides[i] / (tensor->dtype.bits / 8);
    }
    return true;
}

static bool view_all(py_call *call, void *inputs) {
    const tcc_program *program = call->program;
    if (py.size(inputs) != program->n_inputs) return false;
    for (int32_t i = 0; i < program->n_inputs; i++)
        if (!view(call, py.item(inputs, i), &program->inputs[i], &call->inputs[i],
                  tcc_ports_feeds_state(program, i)))
            return false;
    return true;
}

static bool is_known(const tcc_port *port) {
    for (int32_t i = 0; i < port->ndim; i++)
        if (port->shape[i] < 0) return false;
    return port->state < 0;
}

/* Makes the outputs whose sizes are known.  The run asks for the other outputs, unless they are
 * updated in place. */
static bool make_sized(py_call *call) {
    for (int32_t i = 0; i < call->program->n_outputs; i++) {
        const tcc_port *port = &call->program->outputs[i].port;
        call->outputs[i] = (tcc_tensor){.device = {1, 0}, .ndim = port->ndim, .dtype = port->dtype,
                                        .shape = (int64_t *)port->shape};
        if (!is_known(port)) continue;
        call->arrays[i] = new_array(port->dtype, port->ndim, port->shape, &call->outputs[i].data);
        if (!call->arrays[i]) return false;
    }
    return true;
}

static int make_requested(void *context, int32_t output, const tcc_tensor *tensor, void **out_data) {
    py_call *call = context;
    py.restore_thread(call->thread);
    call->arrays[output] = new_array(tensor->dtype, tensor->ndim, tensor->shape, out_data);
    call->failed = !call->arrays[output];
    call->thread = py.save_thread();
    return call->failed;
}

/* Returns a tuple of the outputs.  It takes over the arrays that were made. */
static void *finish(py_call *call, void *inputs) {
    void *results = py.new_tuple(call->program->n_outputs);
    for (int32_t i = 0; results && i < call->program->n_outputs; i++) {
        int32_t state = call->program->outputs[i].port.state;
        void *result = state < 0 ? call->arrays[i] : py.item(inputs, state);
        if (state >= 0) py.keep(result);
        call->arrays[i] = NULL;
        (void)py.set_item(results, i, result);
    }
    return results;
}

static void *run(tcc_instance *instance, void *inputs) {
    py_call call = {.program = &instance->model->program};
    int32_t n_inputs = call.program->n_inputs, n_outputs = call.program->n_outputs;
    if (!make_tables(instance, &call)) return py.from_long(TCC_OUT_OF_MEMORY);
    if (!view_all(&call, inputs)) return py.from_long(UNSUITED);
    memset(call.arrays, 0, (size_t)n_outputs * sizeof(void *));
    const tcc_allocator allocator = {&call, make_requested};
    tcc_status status = TCC_OUT_OF_MEMORY;
    call.failed = !make_sized(&call);
    if (!call.failed) {
        call.thread = py.save_thread();
        status = tcc_instance_run(instance, call.inputs, n_inputs, call.outputs, n_outputs, &allocator,
                                  NULL);
        py.restore_thread(call.thread);
    }
    void *results = NULL;
    if (status == TCC_OK)
        results = finish(&call, inputs);
    else if (!call.failed)
        results = py.from_long((long)status);
    for (int32_t i = 0; i < n_outputs; i++)
        if (call.arrays[i]) py.drop(call.arrays[i]);
    return results;
}

/* ---- functions of Python ---------------------------------------------------------------------------- */

static void *run_arrays(void *self, void *const *arguments, ptrdiff_t count) {
    (void)self;
    if (count != 2) return py.from_long(TCC_INVALID_ARGUMENT);
    return run(py.as_pointer(arguments[0]), arguments[1]);
}

static void *new_memory(void *self, void *bytes) {
    (void)self;
    void *data = NULL;
    const int64_t size = py.as_size(bytes);
    if (size >= 0) return new_array((tcc_dtype){1, 8, 1}, 1, &size, &data);
    py.fail(*py.memory_error, "a result has more bytes than can be counted");
    return NULL;
}

/* Returns a tuple of two Python functions:
 *
 *   run(instance, inputs): runs an instance, by its address, of a model of plain numbers, on a tuple.
 *     Returns a tuple of the outputs, or a tcc_status where the run fails, or -1, and nothing has
 *     happened, where an input is no array of NumPy's own type that can be used as it is. Raises what
 *     making an output raises.
 *   memory(bytes): a new array of bytes, from the pool of results if it is large. Raises MemoryError.
 *
 * `numpy` is NumPy's capsule, `header` the size of an object without anything of its own.  Raises
 * ValueError where the process's Python or NumPy is none that this file knows. */
EXPORT void *tcc_python_functions(void *numpy, ptrdiff_t header) {
    static struct {
        const char *name;
        void *(*function)(void *self, void *const *arguments, ptrdiff_t count);
        int flags;
        const char *doc;
    } run_method = {"run", run_arrays, 0x80 /* METH_FASTCALL */, NULL}; /* PyMethodDef */
    static struct {
        const char *name;
        void *(*function)(void *self, void *argument);
        int flags;
        const char *doc;
    } memory_method = {"memory", new_memory, 0x8 /* METH_O */, NULL};
    if (!find_python() || !find_numpy(py.pointer_of(numpy, NULL))) {
        if (py.value_error) py.fail(*py.value_error, "the binary interfaces are not known");
        return NULL;
    }
    py.header = header;
    void *functions = py.new_tuple(2), *methods[] = {&run_method, &memory_method};
    for (int i = 0; functions && i < 2; i++) {
        void *object = py.new_function(methods[i], NULL, NULL);
        if (object && py.set_item(functions, i, object) == 0) continue;
        py.drop(functions);
        return NULL;
    }
    return functions;
}
