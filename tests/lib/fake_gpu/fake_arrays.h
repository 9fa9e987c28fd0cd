/* Arrays of a caller on the fake device, for the tests; a part of fake_driver.c. */
EXPORT uint64_t fake_array(const void *data, size_t bytes) {
    void *array = NULL;
    if (take(&array, bytes ? bytes : 1)) return 0;
    if (data) memcpy(real((uint64_t)array), data, bytes);
    return (uint64_t)array;
}
/* Reads a device array as it is now, regardless of queued work. */
EXPORT int fake_read(uint64_t address, void *data, size_t bytes) {
    if (!is_live(address, bytes)) return 1;
    memcpy(data, real(address), bytes);
    return 0;
}
EXPORT int fake_give(uint64_t address) { return give((void *)address); }
EXPORT void *fake_stream(void) {
    stream *created = NULL;
    the.pushed++;
    int error = NAME(cuStreamCreate, hipStreamCreateWithFlags)(&created, 0);
    the.pushed--;
    the.streams--; /* The stream is not the model's. */
    return error ? NULL : created;
}
/* Begins a caller's graph around a model's work. */
EXPORT int fake_begin(void *handle) {
    if (is_capturing()) return CAPTURE_FORBIDS;
    settle(handle);
    ((stream *)handle)->capturing = true;
    return 0;
}
EXPORT void *fake_end(stream *stream) {
    work *item = calloc(1, sizeof *item);
    int error = 0;
    item->kind = GRAPH;
    item->list = end_capture(stream, &error);
    return error ? NULL : item;
}
EXPORT int fake_replay(work *executable, void *stream) { return add(stream, *executable); }
EXPORT int fake_settle(void *stream) { return settle(stream_of(stream)); }
EXPORT void fake_forget(work *executable) { drop_guests(executable->list); free(executable); }

/* Queues work of another library in a stream, for fake_nccl.c. */
EXPORT int fake_guest(void *handle, int (*perform)(void *of), void (*drop)(void *of), void *of) {
    return add(handle, (work){.kind = GUEST, .guest = perform, .drop = drop, .of = of});
}
EXPORT int fake_number_of(void *handle) {
    for (int i = 0; i < 256; i++)
        if (all[i] == stream_of(handle)) return number_of(handle);
    return -1; /* not a stream */
}
EXPORT int fake_is_captured(void *handle) { return stream_of(handle)->capturing; }
EXPORT void *fake_memory(uint64_t address, size_t bytes) {
    return is_live(address, bytes) ? real(address) : NULL;
}
