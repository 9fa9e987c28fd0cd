/* Holds the strings and lists of one run.  Equal strings are stored once.  Lists that grow at the
 * end share their entries, so that a loop which appends takes linear time and memory. */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "runtime.h"

enum { CHUNK = 1 << 16, ALIGNMENT = 64, FIRST_ROOM = 64 };
#define MOST_ENTRIES (INT64_C(1) << 24) /* in all lists of a run */
#define MOST_NAMES (INT64_C(1) << 31)   /* handles of strings, and of lists */

int64_t tcc_stored_bytes(tcc_dtype dtype, int64_t count) {
    int64_t bits;
    if (__builtin_mul_overflow(count, tcc_is_opaque(dtype) ? 64 : dtype.bits, &bits)) return -1;
    return bits / 8 + (bits % 8 != 0);
}

tcc_status tcc_heap_begin(tcc_heap *heap, tcc_pool *pool) {
    *heap = (tcc_heap){.pool = pool};
    return TCC_OK;
}

tcc_status tcc_heap_take(tcc_heap *heap, size_t bytes, void **out_memory) {
    size_t rounded = bytes / ALIGNMENT * ALIGNMENT + ALIGNMENT;
    if (bytes >= CHUNK / 4) return tcc_pool_take(heap->pool, bytes, out_memory);
    if (rounded > heap->chunk_remaining) {
        void *chunk = NULL;
        TCC_RETURN_IF_ERROR(tcc_pool_take(heap->pool, CHUNK, &chunk));
        heap->chunk = chunk;
        heap->chunk_remaining = CHUNK;
    }
    *out_memory = heap->chunk;
    heap->chunk += rounded;
    heap->chunk_remaining -= rounded;
    return TCC_OK;
}

/* Makes room in a table for one more entry of `size` bytes. */
static tcc_status grow(tcc_heap *heap, void **table, int64_t used, int64_t *room, size_t size) {
    if (used < *room) return TCC_OK;
    if (used >= MOST_NAMES)
        return tcc_fail(TCC_OUT_OF_MEMORY, "the run has too many strings or sequences");
    int64_t more = *room ? *room * 2 : FIRST_ROOM;
    TCC_RETURN_IF_ERROR(
        tcc_pool_resize(heap->pool, table, (size_t)more * size, (size_t)used * size));
    *room = more;
    return TCC_OK;
}

/* ---- strings ------------------------------------------------------------------------------------- */

/* Returns the key of the hash function.  Callers who choose strings do not know it, so they cannot
 * make strings collide. */
static uint64_t secret(void) {
    static uint64_t process_key;
    uint64_t key = __atomic_load_n(&process_key, __ATOMIC_RELAXED);
    if (key) return key;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    key = ((uint64_t)now.tv_nsec << 32 ^ (uint64_t)(uintptr_t)&now ^ (uint64_t)now.tv_sec) | 1;
    __atomic_store_n(&process_key, key, __ATOMIC_RELAXED);
    return key;
}

static uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash(const char *data, int64_t size) {
    uint64_t key = secret(), state = mix((uint64_t)size ^ key, UINT64_C(0x9E3779B97F4A7C15));
    for (; size > 0; data += 8, size -= 8) {
        uint64_t word = 0;
        memcpy(&word, data, size < 8 ? (size_t)size : 8);
        state = mix(state ^ word ^ key, UINT64_C(0xD6E8FEB86659FD93) ^ state >> 32);
    }
    return mix(state ^ key, UINT64_C(0xA0761D6478BD642F));
}

static int64_t find_slot(const tcc_heap *heap, const char *data, int64_t size) {
    int64_t mask = heap->n_slots - 1, slot = (int64_t)(hash(data, size) & (uint64_t)mask);
    for (; heap->slots[slot] >= 0; slot = (slot + 1) & mask) {
        const tcc_string *other = &heap->strings[heap->slots[slot]];
        if (other->size == size && (size == 0 || memcmp(other->data, data, (size_t)size) == 0)) break;
    }
    return slot;
}

static tcc_status rehash(tcc_heap *heap) {
    int64_t count = heap->n_slots ? heap->n_slots * 2 : 4 * FIRST_ROOM;
    void *slots = heap->slots;
    TCC_RETURN_IF_ERROR(tcc_pool_resize(heap->pool, &slots, (size_t)count * sizeof(int64_t), 0));
    heap->slots = slots;
    heap->n_slots = count;
    memset(slots, 0xFF, (size_t)count * sizeof(int64_t));
    for (int64_t i = 0; i < heap->n_strings; i++)
        heap->slots[find_slot(heap, heap->strings[i].data, heap->strings[i].size)] = i;
    return TCC_OK;
}

static tcc_status add(tcc_heap *heap, const char *data, int64_t size, int64_t slot) {
    void *table = heap->strings;
    TCC_RETURN_IF_ERROR(
        grow(heap, &table, heap->n_strings, &heap->string_room, sizeof *heap->strings));
    heap->strings = table;
    heap->strings[heap->n_strings] = (tcc_string){data, size};
    heap->slots[slot] = heap->n_strings++;
    return TCC_OK;
}

tcc_status tcc_heap_intern(tcc_heap *heap, const char *data, int64_t size, uint64_t *out_handle) {
    if (size == 0) {
        *out_handle = 0;
        return TCC_OK;
    }
    if (!heap->n_strings) { /* number 0 */
        TCC_RETURN_IF_ERROR(rehash(heap));
        TCC_RETURN_IF_ERROR(add(heap, "", 0, find_slot(heap, "", 0)));
    }
    if (heap->n_strings * 2 >= heap->n_slots) TCC_RETURN_IF_ERROR(rehash(heap));
    int64_t slot = find_slot(heap, data, size);
    if (heap->slots[slot] < 0) TCC_RETURN_IF_ERROR(add(heap, data, size, slot));
    *out_handle = (uint64_t)heap->slots[slot];
    return TCC_OK;
}

tcc_status tcc_heap_string(const tcc_heap *heap, uint64_t handle, tcc_string *out_string) {
    *out_string = (tcc_string){"", 0};
    if (handle == 0) return TCC_OK;
    if (handle >= (uint64_t)heap->n_strings)
        return tcc_fail(TCC_INTERNAL, "the program uses a string that is not there");
    *out_string = heap->strings[handle];
    return TCC_OK;
}

/* ---- lists --------------------------------------------------------------------------------------- */

tcc_status tcc_heap_list(const tcc_heap *heap, uint64_t handle, tcc_list_value *out_list) {
    *out_list = (tcc_list_value){NULL, 0};
    if (handle == 0) return TCC_OK;
    if (handle > (uint64_t)heap->n_lists)
        return tcc_fail(TCC_INTERNAL, "the program uses a sequence that is not there");
    *out_list = heap->lists[handle - 1];
    return TCC_OK;
}

tcc_status tcc_heap_name_list(tcc_heap *heap, tcc_list_value list, uint64_t *out_handle) {
    *out_handle = 0;
    if (list.count == 0) return TCC_OK;
    void *table = heap->lists;
    TCC_RETURN_IF_ERROR(grow(heap, &table, heap->n_lists, &heap->list_room, sizeof *heap->lists));
    heap->lists = table;
    heap->lists[heap->n_lists] = list;
    *out_handle = (uint64_t)++heap->n_lists;
    return TCC_OK;
}

/* Copies a list's entries into a table of its own, with room for more. */
static tcc_status copy_entries(tcc_heap *heap, tcc_list_value list, tcc_entries **out_entries) {
    void *memory = NULL, *items = NULL;
    int64_t room = list.count < 4 ? 8 : list.count * 2;
    if (list.count > MOST_ENTRIES - heap->n_entries)
        return tcc_fail(TCC_OUT_OF_MEMORY, "the run's sequences have more than %lld entries",
                        (long long)MOST_ENTRIES);
    heap->n_entries += list.count;
    TCC_RETURN_IF_ERROR(tcc_heap_take(heap, sizeof **out_entries, &memory));
    TCC_RETURN_IF_ERROR(
        tcc_pool_take(heap->pool, (size_t)room * sizeof(tcc_op_tensor), &items));
    if (list.count)
        memcpy(items, list.entries->items, (size_t)list.count * sizeof(tcc_op_tensor));
    *out_entries = memory;
    **out_entries = (tcc_entries){items, list.count, room};
    return TCC_OK;
}

tcc_status tcc_heap_append(tcc_heap *heap, tcc_list_value list, const tcc_op_tensor *item,
                           tcc_list_value *out_list) {
    tcc_entries *entries = list.entries;
    if (!entries || entries->used != list.count)
        TCC_RETURN_IF_ERROR(copy_entries(heap, list, &entries));
    if (heap->n_entries >= MOST_ENTRIES)
        return tcc_fail(TCC_OUT_OF_MEMORY, "the run's sequences have more than %lld entries",
                        (long long)MOST_ENTRIES);
    if (entries->used == entries->room) {
        void *items = entries->items;
        TCC_RETURN_IF_ERROR(
            tcc_pool_resize(heap->pool, &items, (size_t)entries->room * 2 * sizeof *item,
                            (size_t)entries->used * sizeof *item));
        entries->items = items;
        entries->room *= 2;
    }
    heap->n_entries++;
    entries->items[entries->used++] = *item;
    *out_list = (tcc_list_value){entries, list.count + 1};
    return TCC_OK;
}

tcc_status tcc_heap_copy(tcc_heap *heap, const tcc_op_tensor *tensor, tcc_op_tensor *out_tensor) {
    int64_t bytes = tcc_stored_bytes(tensor->dtype, tensor->count);
    size_t head = (size_t)tensor->ndim * sizeof(int64_t);
    void *dims = NULL, *data = NULL;
    if (bytes < 0) return tcc_fail(TCC_INTERNAL, "an entry of a sequence is too large");
    TCC_RETURN_IF_ERROR(tcc_heap_take(heap, head, &dims));
    TCC_RETURN_IF_ERROR(tcc_heap_take(heap, (size_t)bytes, &data));
    if (head) memcpy(dims, tensor->dims, head);
    if (bytes) memcpy(data, tensor->data, (size_t)bytes);
    *out_tensor = (tcc_op_tensor){data, tensor->dtype, tensor->ndim, dims, tensor->count};
    return TCC_OK;
}
