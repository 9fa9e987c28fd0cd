/* A call from Python: NumPy arrays to descriptors and back without an object of Python's between them.
 *
 * The artifact is linked with no Python: the process that calls this has one, and its functions are
 * looked up at the first call.  All of them, and the layout of Py_buffer, belong to the stable ABI of
 * Python 3.11.  Called with the GIL held; it is released while the model runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "runtime.h"

/* Py_buffer of the stable ABI. */
typedef struct py_buffer {
    void *data, *owner;
    ptrdiff_t bytes, item_bytes;
    int read_only, ndim;
    const char *format;
    ptrdiff_t *shape, *strides, *suboffsets;
    void *internal;
} py_buffer;
_Static_assert(sizeof(py_buffer) == 80 && sizeof(ptrdiff_t) == sizeof(int64_t), "Py_buffer's layout");

enum { WRITABLE = 0x1, FORMAT = 0x4, SIZES = 0x8 }; /* of PyBUF_*; SIZES asks for row-major order */
enum { UNSUITED = -1 };

#define EXPORT __attribute__((visibility("default")))

typedef struct py_table {
    int (*get_buffer)(void *object, py_buffer *buffer, int flags);
    void (*release)(py_buffer *buffer);
    void *(*item)(void *tuple, ptrdiff_t index);
    ptrdiff_t (*size)(void *tuple);
    void *(*type)(void *object);
    void (*drop)(void *object);
    void (*clear)(void);
    void *(*as_pointer)(void *integer);
    void *(*from_long)(long number);
    void *(*new_function)(void *method, void *self, void *module);
    void *(*save_thread)(void);
    void (*restore_thread)(void *state);
} py_table;

static py_table py; /* written and read with the GIL held */

static bool look_up(const char *name, void *out_function) {
    void *function = dlsym(RTLD_DEFAULT, name);
    memcpy(out_function, &function, sizeof function); /* C has no cast from data to code */
    return function != NULL;
}

static bool find_python(void) {
    if (py.restore_thread) return true;
    return look_up("PyObject_GetBuffer", &py.get_buffer) &&
           look_up("PyBuffer_Release", &py.release) && look_up("PyTuple_GetItem", &py.item) &&
           look_up("PyTuple_Size", &py.size) && look_up("PyObject_Type", &py.type) &&
           look_up("Py_DecRef", &py.drop) && look_up("PyErr_Clear", &py.clear) &&
           look_up("PyLong_AsVoidPtr", &py.as_pointer) &&
           look_up("PyLong_FromLong", &py.from_long) &&
           look_up("PyCFunction_NewEx", &py.new_function) &&
           look_up("PyEval_SaveThread", &py.save_thread) &&
           look_up("PyEval_RestoreThread", &py.restore_thread);
}

/* The element type that a buffer's format names; false for others than the machine's plain numbers. */
static bool read_format(const py_buffer *buffer, tcc_dtype *out_dtype) {
    static const struct {
        const char *letters;
        uint8_t code;
    } kinds[] = {{"bhilq", 0}, {"BHILQ", 1}, {"efd", 2}, {"?", 6}};
    const char *format = buffer->format ? buffer->format : "B";
    if (!format[0] || format[1]) return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strchr(kinds[i].letters, format[0])) {
            *out_dtype = (tcc_dtype){kinds[i].code, (uint8_t)(buffer->item_bytes * 8), 1};
            return true;
        }
    return false;
}

/* A call's arrays: the inputs, then the outputs. */
typedef struct py_call {
    py_buffer *buffers; /* of the first `count`; without an owner where there is no array */
    tcc_tensor *tensors;
    int32_t count;
} py_call;

/* Looks into an object; false if it is not of exactly the type `array`, row-major and of plain
 * numbers. */
static bool view(py_call *call, void *object, void *array, int flags) {
    void *type = py.type(object);
    py.drop(type); /* the object keeps it */
    py_buffer *buffer = &call->buffers[call->count];
    if (type != array) return false;
    if (py.get_buffer(object, buffer, FORMAT | SIZES | flags)) {
        py.clear();
        return false;
    }
    tcc_tensor *tensor = &call->tensors[call->count++];
    *tensor = (tcc_tensor){.data = buffer->data, .device = {1, 0}, .ndim = buffer->ndim,
                           .shape = (int64_t *)buffer->shape};
    return read_format(buffer, &tensor->dtype);
}

static bool view_all(py_call *call, const tcc_program *program, void *inputs, void *outputs,
                     void *array) {
    if (py.size(inputs) != program->n_inputs || py.size(outputs) != program->n_outputs) return false;
    for (int32_t i = 0; i < program->n_inputs; i++) {
        int flags = tcc_ports_feeds_state(program, i) ? WRITABLE : 0;
        if (!view(call, py.item(inputs, i), array, flags)) return false;
    }
    for (int32_t i = 0; i < program->n_outputs; i++) {
        if (view(call, py.item(outputs, i), array, WRITABLE)) continue;
        call->buffers[call->count].owner = NULL;
        call->tensors[call->count++] = (tcc_tensor){0};
    }
    return true;
}

static int32_t run(tcc_instance *instance, void *inputs, void *outputs, void *array,
                   const tcc_allocator *allocator) {
    const tcc_program *program = &instance->model->program;
    size_t room = (size_t)program->n_inputs + (size_t)program->n_outputs;
    if (!instance->views)
        instance->views = tcc_allocate(room * (sizeof(py_buffer) + sizeof(tcc_tensor)));
    if (!instance->views) return TCC_OUT_OF_MEMORY;
    py_call call = {instance->views, (tcc_tensor *)((py_buffer *)instance->views + room), 0};
    int32_t status = UNSUITED;
    if (view_all(&call, program, inputs, outputs, array)) {
        void *state = py.save_thread();
        status = (int32_t)tcc_instance_run(instance, call.tensors, program->n_inputs,
                                           call.tensors + program->n_inputs, program->n_outputs,
                                           allocator, NULL);
        py.restore_thread(state);
    }
    for (int32_t i = 0; i < call.count; i++)
        if (call.buffers[i].owner) py.release(&call.buffers[i]);
    return status;
}

static void *run_arrays(void *array, void *const *arguments, ptrdiff_t count) {
    if (count != 4) return py.from_long(TCC_INVALID_ARGUMENT);
    return py.from_long(run(py.as_pointer(arguments[0]), arguments[1], arguments[2], array,
                            py.as_pointer(arguments[3])));
}

/* A function of Python, run(instance, inputs, outputs, allocator): the addresses of an instance and of
 * an allocator, or 0, and tuples of arrays, all of which are exactly of the type `array`.  An output
 * of None is an input that is updated in place, or comes from the allocator.  It returns a tcc_status,
 * or -1 where an input is no array that can be used as it is: nothing has happened then.
 * NULL where the process has no Python with the stable ABI. */
EXPORT void *tcc_python_function(void *array) {
    static struct {
        const char *name;
        void *(*function)(void *self, void *const *arguments, ptrdiff_t count);
        int flags;
        const char *doc;
    } method = {"run", run_arrays, 0x80 /* METH_FASTCALL */, NULL}; /* PyMethodDef */
    return find_python() ? py.new_function(&method, array, NULL) : NULL;
}
