/* Recorded work of the fake driver; a part of fake_driver.c. */
typedef struct graph { work *first; bool is_instantiated; } graph;
/* Returns the captured work; fails if the stream has not waited for streams that joined. */
static work *end_capture(stream *stream, int *out_error) {
    work *first = stream->first;
    for (int i = 0; i < 256; i++) {
        if (!all[i] || all[i]->origin != stream) continue;
        if (all[i]->joined != all[i]->added) *out_error = UNJOINED;
        all[i]->origin = NULL;
        all[i]->capturing = false;
    }
    stream->first = NULL;
    stream->last = &stream->first;
    stream->queued = stream->done;
    stream->capturing = false;
    return first;
}
static void drop_guests(const work *list) {
    for (; list; list = list->next)
        if (list->kind == GUEST && list->drop) list->drop(list->of);
}
EXPORT int NAME(cuStreamBeginCapture_v2, hipStreamBeginCapture)(stream *stream, int mode) {
    CALLED("stream=%d mode=%d", stream->number, mode);
    if (stream->capturing) return CAPTURE_FORBIDS;
    settle(stream);
    stream->capturing = true;
    return 0;
}
EXPORT int NAME(cuStreamEndCapture, hipStreamEndCapture)(stream *stream, graph **out) {
    int error = called(__func__, "stream=%d", stream->number);
    graph *created = calloc(1, sizeof *created);
    created->first = end_capture(stream, &error);
    *out = NULL;
    if (error) drop_guests(created->first);
    if (error) return error;
    the.graphs++;
    *out = created;
    return 0;
}
EXPORT int NAME(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(work **out, graph *graph,
                                                                          unsigned long long flags) {
    CALLED("%llu", flags);
    work *created = calloc(1, sizeof *created);
    created->kind = GRAPH;
    created->list = graph->first;
    graph->is_instantiated = true;
    the.executables++;
    *out = created;
    return 0;
}
EXPORT int NAME(cuGraphLaunch, hipGraphLaunch)(work *executable, void *stream) {
    CALLED("stream=%d", number_of(stream));
    NEEDS_CONTEXT;
    return add(stream, *executable);
}
EXPORT int NAME(cuGraphDestroy, hipGraphDestroy)(graph *graph) {
    CALLED(" ");
    if (!graph->is_instantiated) drop_guests(graph->first);
    free(graph);
    the.graphs--;
    return 0;
}
EXPORT int NAME(cuGraphExecDestroy, hipGraphExecDestroy)(work *executable) {
    CALLED(" ");
    run_all();
    drop_guests(executable->list);
    free(executable);
    the.executables--;
    return 0;
}
