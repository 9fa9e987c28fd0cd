/* Recorded work of the fake driver; a part of fake_driver.c. */
typedef struct graph { work *first; } graph;
EXPORT int NAME(cuStreamBeginCapture_v2, hipStreamBeginCapture)(stream *stream, int mode) {
    CALLED("stream=%d mode=%d", stream->number, mode);
    if (stream->capturing) return CAPTURE_FORBIDS;
    settle(stream);
    stream->capturing = true;
    return 0;
}
EXPORT int NAME(cuStreamEndCapture, hipStreamEndCapture)(stream *stream, graph **out) {
    int error = called(__func__, "stream=%d", stream->number);
    graph *made = calloc(1, sizeof *made);
    made->first = stream->first;
    stream->first = NULL;
    stream->last = &stream->first;
    stream->queued = stream->done;
    stream->capturing = false;
    *out = NULL;
    if (error) return error;
    the.graphs++;
    *out = made;
    return 0;
}
EXPORT int NAME(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(work **out, graph *graph,
                                                                          unsigned long long flags) {
    CALLED("%llu", flags);
    work *made = calloc(1, sizeof *made);
    made->kind = GRAPH;
    made->list = graph->first;
    the.executables++;
    *out = made;
    return 0;
}
EXPORT int NAME(cuGraphLaunch, hipGraphLaunch)(work *executable, void *stream) {
    CALLED("stream=%d", number_of(stream));
    NEEDS_CONTEXT;
    return add(stream, *executable);
}
EXPORT int NAME(cuGraphDestroy, hipGraphDestroy)(graph *graph) {
    CALLED(" ");
    free(graph);
    the.graphs--;
    return 0;
}
EXPORT int NAME(cuGraphExecDestroy, hipGraphExecDestroy)(work *executable) {
    CALLED(" ");
    run_all();
    free(executable);
    the.executables--;
    return 0;
}
