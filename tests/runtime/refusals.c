/* Passes invalid arguments to the C interface. Each must be refused with a reason, and harm
 * nothing.
 *
 *     refusals ARTIFACT LISTS of y = relu(x) + 1, 2, ... for x: f32[n], n <= 64, and of a model
 *                                that takes three strings and a list of i64 */
#include <dlfcn.h>
#include <stdbool.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tcc_pool.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, api->last_error());         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
/* Checks that a call is refused with these words in the reason. */
#define REFUSES(call, words)                                                                       \
    do {                                                                                           \
        CHECK((call) == TCC_INVALID_ARGUMENT);                                                     \
        CHECK(strstr(api->last_error(), words));                                                   \
    } while (0)

enum { N = 8 };
static const tcc_api *api;
static tcc_model *model;
static tcc_instance *instance;
static int64_t shape[2] = {N, 1};
static float in[66], out[66];
static const tcc_dtype f32 = {2, 32, 1};

static tcc_tensor array_of(float *data) {
    return (tcc_tensor){.data = data, .device = {1, 0}, .ndim = 1, .dtype = f32, .shape = shape};
}

static int give(void *context, int32_t output, const tcc_tensor *tensor, void **out_data) {
    (void)output, (void)tensor;
    *out_data = context;
    return context == NULL;
}

static tcc_status run(tcc_tensor x, tcc_tensor y) {
    return api->run(instance, &x, 1, &y, 1, NULL, NULL);
}

static void runs_after_refusals(void) {
    memset(out, 0, sizeof out);
    CHECK(run(array_of(in), array_of(out)) == TCC_OK);
    for (int i = 0; i < N; i++) CHECK(out[i] == (in[i] > 0 ? in[i] : 0) + (float)(i + 1));
}

static void refuses_counts_and_pointers(void) {
    tcc_tensor x = array_of(in), y = array_of(out);
    REFUSES(api->run(NULL, &x, 1, &y, 1, NULL, NULL), "no instance");
    REFUSES(api->call(NULL, &x, 1, &y, 1, NULL, NULL), "no model");
    REFUSES(api->run(instance, &x, 1, &y, 1, NULL, &x), "no stream");
    REFUSES(api->run(instance, &x, 2, &y, 1, NULL, NULL), "expected 1 inputs, got 2");
    REFUSES(api->run(instance, NULL, 1, &y, 1, NULL, NULL), "expected 1 inputs");
    REFUSES(api->run(instance, &x, 1, &y, 3, NULL, NULL), "expected 1 outputs, got 3");
    REFUSES(api->run(instance, &x, 1, NULL, 1, NULL, NULL), "expected 1 outputs");
    REFUSES(api->run(instance, &x, 1, NULL, 0, NULL, NULL), "expected 1 outputs, got 0");
    REFUSES(api->call(model, NULL, 1, &y, 1, NULL, NULL), "expected 1 inputs");
}

static void refuses_inputs(void) {
    static const struct {
        tcc_dtype dtype;
        const char *name;
    } types[] = {
        {{2, 64, 1}, "got f64"},      {{2, 32, 2}, "got f32"},      {{0, 8, 1}, "got i8"},
        {{1, 16, 1}, "got u16"},      {{4, 16, 1}, "got bf16"},     {{5, 64, 1}, "got complex64"},
        {{6, 8, 1}, "got bool"},      {{6, 1, 1}, "got type1"},     {{3, 128, 1}, "got string"},
        {{3, 64, 1}, "got list"},     {{7, 8, 1}, "got f8e3m4"},    {{17, 4, 1}, "got f4e2m1"},
        {{18, 8, 1}, "got type8"},    {{255, 255, 1}, "got type255"},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        tcc_tensor x = array_of(in);
        x.dtype = types[i].dtype;
        REFUSES(run(x, array_of(out)), "expected element type f32");
        CHECK(strstr(api->last_error(), types[i].name));
    }
    tcc_tensor x = array_of(in);
    x.device = (tcc_device){2, 3};
    REFUSES(run(x, array_of(out)), "expected an array in CPU memory, got DLPack device type 2, id 3");
    x = array_of(in), x.ndim = 2;
    REFUSES(run(x, array_of(out)), "got [8,1]");
    x = array_of(in), x.ndim = -1;
    REFUSES(run(x, array_of(out)), "got []");
    x = array_of(in), x.shape = NULL;
    REFUSES(run(x, array_of(out)), "got []");
    x = array_of(NULL);
    REFUSES(run(x, array_of(out)), "input 'x': no data");
    int64_t odd[1] = {-1};
    x = array_of(in), x.shape = odd;
    REFUSES(run(x, array_of(out)), "got [-1]");
    odd[0] = INT64_MAX;
    REFUSES(run(x, array_of(out)), "got [9223372036854775807]");
    odd[0] = 65; /* there are only 64 weights */
    REFUSES(run(x, array_of(out)), "n is at most 64");
}

static void refuses_outputs(void) {
    int64_t other[1] = {N - 1}, strides[1] = {2};
    tcc_tensor y = array_of(out);
    y.dtype.bits = 16;
    REFUSES(run(array_of(in), y), "output 'y': expected element type f32, got f16");
    y = array_of(out), y.device.type = 10;
    REFUSES(run(array_of(in), y), "output 'y': expected an array in CPU memory");
    y = array_of(out), y.shape = other;
    CHECK(run(array_of(in), y) == TCC_INVALID_ARGUMENT);
    y = array_of(out), y.strides = strides;
    REFUSES(run(array_of(in), y), "expected a row-major array");
    y = array_of(out), y.byte_offset = 1;
    REFUSES(run(array_of(in), y), "aligned to one element");
    REFUSES(run(array_of(in), array_of(in)), "shares memory with input 'x'");
    REFUSES(run(array_of(in), array_of(in + 1)), "shares memory with input 'x'");
    REFUSES(run(array_of(in), array_of(NULL)), "neither an array nor an allocator");
    tcc_tensor x = array_of(in);
    tcc_allocator nobody = {0}, fails = {.allocate = give}, gives = {out, give};
    REFUSES(api->run(instance, &x, 1, NULL, 0, &nobody, NULL), "neither an array nor an allocator");
    CHECK(api->run(instance, &x, 1, NULL, 0, &fails, NULL) == TCC_OUT_OF_MEMORY);
    CHECK(strstr(api->last_error(), "the allocator failed"));
    memset(out, 0, sizeof out);
    CHECK(api->run(instance, &x, 1, NULL, 0, &gives, NULL) == TCC_OK && out[1] == in[1] + 2);
}

/* Inputs with strides, or at an unaligned address, are copied. */
static void takes_odd_inputs(void) {
    char room[sizeof in + 1]; /* an odd address */
    int64_t strides[1] = {-1}, twice[1] = {2}, half[1] = {N / 2}, none[1] = {0};
    memcpy(room + 1, in, sizeof in);
    tcc_tensor x = array_of((float *)(void *)room);
    x.byte_offset = 1;
    CHECK(run(x, array_of(out)) == TCC_OK && out[2] == in[2] + 3);
    x = array_of(in + N - 1), x.strides = strides;
    CHECK(run(x, array_of(out)) == TCC_OK && out[0] == in[N - 1] + 1);
    x = array_of(in), x.strides = twice, x.shape = half;
    tcc_tensor y = array_of(out);
    y.shape = half;
    CHECK(run(x, y) == TCC_OK && out[3] == in[6] + 4);
    x = array_of(NULL), x.shape = none;
    y = array_of(NULL), y.shape = none;
    CHECK(run(x, y) == TCC_OK);
}

static void refuses_other_arguments(void) {
    tcc_port port;
    tcc_instance *none = NULL;
    tcc_statistics numbers;
    const tcc_time *times;
    int64_t count;
    REFUSES(api->model_get(NULL), "no place");
    REFUSES(api->model_set_threads(NULL, 1), "threads");
    REFUSES(api->model_set_threads(model, -1), "got -1");
    REFUSES(api->model_set_threads(model, INT32_MAX), "threads");
    REFUSES(api->instance_set_threads(NULL, 1), "threads");
    REFUSES(api->instance_set_threads(instance, -2), "got -2");
    CHECK(api->input_count(NULL) == 0 && api->output_count(NULL) == 0);
    CHECK(api->model_variant(NULL) == -1 && api->model_ranks(NULL) == -1);
    CHECK(api->model_variant(model) == 0 && api->model_ranks(model) == -1);
    REFUSES(api->input_port(model, 1, &port), "no port 1 of 1");
    REFUSES(api->input_port(model, -1, &port), "no port -1");
    REFUSES(api->output_port(model, 0, NULL), "no port");
    REFUSES(api->output_port(NULL, 0, &port), "no port 0 of 0");
    REFUSES(api->input_port(NULL, 0, &port), "no port 0 of 0");
    REFUSES(api->statistics(NULL, NULL, &numbers), "no model");
    REFUSES(api->statistics(model, NULL, NULL), "no model");
    CHECK(api->statistics(model, NULL, &numbers) == TCC_OK && numbers.arena_bytes == 0);
    REFUSES(api->instance_create(NULL, 0, &none), "no model");
    REFUSES(api->instance_create(model, 0, NULL), "no model");
    REFUSES(api->instance_create(model, 64, &none), "unknown instance flags 0x40");
    REFUSES(api->times(NULL, &times, &count), "no instance");
    REFUSES(api->times(instance, NULL, &count), "no instance");
    REFUSES(api->times(instance, &times, NULL), "no instance");
    REFUSES(api->times(instance, &times, &count), "without TCC_TIMES");
    REFUSES(api->instance_set_poll(NULL, NULL, NULL), "no instance");
    REFUSES(api->instance_seed(NULL, 1), "no instance");
    REFUSES(api->instance_unseed(NULL), "no instance");
    REFUSES(api->instance_set_memory_limit(NULL, 1), "no instance");
    REFUSES(api->memory(instance, NULL), "the tcc_memory is NULL");
    CHECK(!none);
    api->instance_destroy(NULL);
    api->model_release(NULL);
    api->model_trim(NULL);
}

static void refuses_pools(void) {
    const tcc_pool_api *pools = api->pools;
    tcc_pool_config config = {.struct_size = sizeof config, .flags = TCC_POOL_SHARED};
    tcc_pool *pool = NULL;
    tcc_pages *pages = NULL;
    void *memory = NULL;
    REFUSES(api->instance_set_pool(instance, &config), "a shared pool");
    REFUSES(api->instance_set_pool(instance, NULL), "the tcc_pool_config is NULL");
    REFUSES(pools->create(&config, NULL), "no place for its address");
    config.flags = 0;
    REFUSES(api->instance_set_pool(NULL, &config), "no instance");
    config.range = SIZE_MAX / 2 + 1;
    REFUSES(pools->create(&config, &pool), "a range of");
    config = (tcc_pool_config){.struct_size = sizeof config, .flags = 4};
    REFUSES(pools->create(&config, &pool), "flags 0x4");
    config = (tcc_pool_config){.struct_size = sizeof config, .range = 4 << 20};
    CHECK(!pool && pools->create(&config, &pool) == TCC_OK);
    REFUSES(pools->give(pool, NULL), "no block of the pool");
    REFUSES(pools->give(pool, &config), "no block of the pool");
    memory = &config;
    REFUSES(pools->resize(pool, &memory, 8, 8), "no block of the pool");
    CHECK(pools->take(pool, 100, &memory) == TCC_OK);
    REFUSES(pools->give(pool, (char *)memory + 8), "no block of the pool");
    CHECK(pools->give(pool, memory) == TCC_OK);
    REFUSES(pools->give(pool, memory), "no block of the pool");
    REFUSES(pools->pages_create(pool, 0, 4, &pages), "pages of 0 bytes");
    REFUSES(pools->pages_create(pool, 8, 0, &pages), "0 pages");
    REFUSES(pools->pages_create(pool, SIZE_MAX, 4, &pages), "cannot be");
    REFUSES(pools->pages_create(pool, SIZE_MAX / 2, 4, &pages), "cannot be");
    CHECK(pools->pages_create(pool, 1 << 20, 64, &pages) == TCC_OUT_OF_MEMORY && !pages);
    pools->pages_destroy(NULL);
    pools->destroy(NULL);
    pools->destroy(pool);
}

static const tcc_api *api_of(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    const tcc_api *(*entry)(void) = NULL;
    if (library) *(void **)&entry = dlsym(library, "tcc_artifact_api");
    if (!entry) exit(2);
    return entry();
}

/* ---- strings and lists ------------------------------------------------------------------------------- */

static int take_room(void *context, int32_t output, const tcc_tensor *tensor, void **out_data) {
    (void)output;
    void **rooms = context;
    if (posix_memalign(&rooms[output], 64, (size_t)tensor->shape[0] + 64)) return 1;
    *out_data = (char *)rooms[output] + (rooms[2] ? 8 : 0); /* or where no element may begin */
    return 0;
}

/* Runs with this list, and the strings "a", "bc" and "". */
static tcc_status run_with(const tcc_list *list, tcc_string *strings, bool odd) {
    int64_t three[1] = {3};
    void *rooms[3] = {NULL, NULL, odd ? rooms : NULL};
    const tcc_allocator allocator = {rooms, take_room};
    const tcc_tensor arrays[2] = {
        {.data = strings, .device = {1, 0}, .ndim = 1, .dtype = {3, 128, 1}, .shape = three},
        {.data = &list, .device = {1, 0}, .dtype = {3, 64, 1}}};
    tcc_status status = api->run(instance, arrays, 2, NULL, 0, &allocator, NULL);
    free(rooms[0]);
    free(rooms[1]);
    return status;
}

static void refuses_strings_and_lists(void) {
    tcc_string strings[3] = {{"a", 1}, {"bc", 2}, {NULL, 0}};
    int64_t number = 7, odd = -1, ones[65], far[2] = {INT64_MAX, 2}, two[1] = {2}, step[1] = {-1};
    int64_t pair[2] = {5, 6};
    for (int i = 0; i < 65; i++) ones[i] = 1;
    const tcc_tensor good = {.data = &number, .device = {1, 0}, .dtype = {0, 64, 1}};
    tcc_tensor item = good;
    const tcc_list list = {1, &item}, empty = {0, NULL}, less = {-1, &item}, gone = {1, NULL};
#define WITH(change, words)                                                                        \
    do {                                                                                           \
        item = good;                                                                               \
        change;                                                                                    \
        REFUSES(run_with(&list, strings, false), words);                                           \
    } while (0)
    CHECK(run_with(&list, strings, false) == TCC_OK);
    CHECK(run_with(&empty, strings, false) != TCC_OK && strstr(api->last_error(), "has no element"));
    REFUSES(run_with(NULL, strings, false), "a list has no items");
    REFUSES(run_with(&less, strings, false), "a list has no items");
    REFUSES(run_with(&gone, strings, false), "a list has no items");
    WITH(item.device.type = 2, "not in CPU memory");
    WITH(item.dtype.lanes = 2, "unknown element type");
    WITH(item.dtype.code = 9, "unknown element type");
    WITH(item.dtype.bits = 7, "unknown element type");
    WITH((item.dtype = (tcc_dtype){3, 32, 1}), "unknown element type");
    WITH(item.ndim = -1, "number of dimensions");
    WITH(item.ndim = 1, "number of dimensions");
    WITH((item.ndim = 65, item.shape = ones), "number of dimensions");
    WITH((item.ndim = 1, item.shape = &odd), "impossible size");
    WITH((item.ndim = 2, item.shape = far), "impossible size");
    WITH(item.data = NULL, "an array has no data");
    WITH((item.dtype = (tcc_dtype){3, 64, 1}, item.ndim = 1, item.shape = ones), "a list is an array");
    const tcc_list *itself = &list; /* infinitely deep */
    WITH((item.dtype = (tcc_dtype){3, 64, 1}, item.data = &itself), "lists lie too deep");
    tcc_string text = {NULL, 3};
    WITH((item.dtype = (tcc_dtype){3, 128, 1}, item.data = &text), "a string has no bytes");
    item = good;
    strings[1].size = -2;
    REFUSES(run_with(&list, strings, false), "input 's': a string has no bytes");
    strings[1].size = 2;
    static const tcc_dtype all[] = {{0, 8, 1},  {0, 16, 1}, {1, 32, 1}, {2, 16, 1}, {2, 64, 1},
                                    {4, 16, 1}, {6, 8, 1},  {10, 8, 1}, {12, 8, 1}, {14, 8, 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) { /* known types; this program takes any
                                                               of them */
        item.dtype = all[i];
        (void)run_with(&list, strings, false);
    }
    item = good, item.ndim = 1, item.shape = two, item.strides = step, item.data = pair + 1;
    (void)run_with(&list, strings, false);
    item = good;
    CHECK(run_with(&list, strings, true) != TCC_OK && *api->last_error());
    CHECK(run_with(&list, strings, false) == TCC_OK);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    api = api_of(argv[1]);
    for (int i = 0; i <= N; i++) in[i] = (float)(i + 1);
    CHECK(api->model_get(&model) == TCC_OK);
    CHECK(api->instance_create(model, 0, &instance) == TCC_OK);
    void (*const parts[])(void) = {refuses_counts_and_pointers, refuses_inputs, refuses_outputs,
                                   takes_odd_inputs, refuses_other_arguments, refuses_pools};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        parts[i]();
        runs_after_refusals();
    }
    api->instance_destroy(instance);
    api->model_release(model);
    api = api_of(argv[2]);
    CHECK(api->model_get(&model) == TCC_OK);
    CHECK(api->instance_create(model, 0, &instance) == TCC_OK);
    refuses_strings_and_lists();
    api->instance_destroy(instance);
    api->model_release(model);
    puts("ok");
    return 0;
}
