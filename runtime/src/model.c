/* Holds the artifact's one model: loads it at first use, counts its users, and keeps its idle
 * instances. */
#include <pthread.h>
#include <string.h>

#include "collective.h"
#include "ranks.h"

/* The state of the artifact's only model.  No thread holds the lock while it calls other code,
 * above all drivers, because that code may take long and may fork. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when the model is loaded or gone, or a stateful model's
                               instance is idle */
    bool changing; /* a thread loads or closes the model; only it may touch the model */
    int64_t users;
    bool fork_handled;
    tcc_instance *idle;
    tcc_instance *stateful; /* the only instance of `call` for a model with state or with
                               collectives */
    bool stateful_busy;
    tcc_model model;
} the = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void before_fork(void) { pthread_mutex_lock(&the.lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&the.lock); }

static void after_fork_in_child(void) {
    /* the other thread's change stays unfinished for ever: leave it */
    if (the.changing) {
        the.changing = false;
        memset(&the.model, 0, sizeof the.model);
    }
    if (the.stateful_busy) {
        the.stateful = NULL;
        the.stateful_busy = false;
    }
    pthread_cond_init(&the.changed, NULL);
    pthread_mutex_unlock(&the.lock);
}

static tcc_status load(tcc_comm *comm) {
    const tcc_artifact *artifact = &tcc_artifact_info;
    if (artifact->abi != TCC_ABI_VERSION)
        return tcc_fail(TCC_UNSUPPORTED, "model '%s' has ABI %u, its runtime %d: compile it again",
                        artifact->name, artifact->abi, TCC_ABI_VERSION);
    the.model.ranks = the.model.rank = the.model.plan = 0;
    if (tcc_ranks_matter(artifact)) {
        int32_t rank, ranks;
        TCC_RETURN_IF_ERROR(tcc_collective_place(comm, &rank, &ranks));
        TCC_RETURN_IF_ERROR(tcc_ranks_set(artifact, rank, ranks, &the.model));
        TCC_RETURN_IF_ERROR(tcc_plans_choose(artifact, comm, &the.model));
    }
    return tcc_variant_open(artifact, &the.model);
}

/* Waits for changes of other threads to end, and begins one.  The caller holds the lock, which is
 * released while waiting. */
static void begin_change(void) {
    the.changing = true;
    pthread_mutex_unlock(&the.lock);
}

static void end_change(void) {
    pthread_mutex_lock(&the.lock);
    the.changing = false;
    pthread_cond_broadcast(&the.changed);
}

static void destroy_all(tcc_instance *idle) {
    while (idle) {
        tcc_instance *instance = idle;
        idle = instance->next;
        tcc_instance_destroy(instance);
    }
}

static void trim_results(void) {
    tcc_pool *results = NULL;
    if (tcc_result_pool(&results) == TCC_OK) tcc_pool_trim(results);
}

static void unload(tcc_instance *idle, tcc_instance *stateful) {
    destroy_all(idle);
    trim_results();
    tcc_instance_destroy(stateful);
    tcc_collective_forget();
    tcc_gpu_close(the.model.gpu);
    tcc_weights_unmap(&the.model.weights);
    tcc_program_free(&the.model.program);
    memset(&the.model, 0, sizeof the.model);
}

tcc_status tcc_model_get(tcc_model **out_model) { return tcc_model_get_on(NULL, out_model); }

tcc_status tcc_model_get_on(tcc_comm *comm, tcc_model **out_model) {
    if (!out_model) return tcc_fail(TCC_INVALID_ARGUMENT, "no place for the model");
    tcc_status status = TCC_OK;
    pthread_mutex_lock(&the.lock);
    while (the.changing) pthread_cond_wait(&the.changed, &the.lock);
    if (!the.fork_handled)
        the.fork_handled =
            pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
    if (!the.users) {
        begin_change();
        status = load(comm);
        end_change();
    } else if (comm) {
        status = tcc_collective_suits(comm, &the.model);
    }
    if (status == TCC_OK) {
        the.users++;
        *out_model = &the.model;
    }
    pthread_mutex_unlock(&the.lock);
    return status;
}

void tcc_model_release(tcc_model *model) {
    if (!model) return;
    pthread_mutex_lock(&the.lock);
    if (the.users > 0 && --the.users == 0) {
        tcc_instance *idle = the.idle, *stateful = the.stateful;
        the.idle = the.stateful = NULL;
        begin_change();
        unload(idle, stateful);
        end_change();
    }
    pthread_mutex_unlock(&the.lock);
}

static tcc_status borrow(tcc_model *model, tcc_instance **out_instance) {
    bool stateful = model->program.state_bytes > 0 || model->program.ranks >= 0;
    pthread_mutex_lock(&the.lock);
    while (stateful && the.stateful_busy) pthread_cond_wait(&the.changed, &the.lock);
    tcc_instance *instance = stateful ? the.stateful : the.idle;
    if (instance && !stateful) the.idle = instance->next;
    the.stateful_busy = stateful;
    pthread_mutex_unlock(&the.lock);
    tcc_status status = TCC_OK;
    if (!instance) status = tcc_instance_create(model, 0, &instance);
    if (stateful) {
        pthread_mutex_lock(&the.lock);
        the.stateful = instance;
        the.stateful_busy = status == TCC_OK;
        if (status != TCC_OK) pthread_cond_broadcast(&the.changed);
        pthread_mutex_unlock(&the.lock);
    }
    *out_instance = instance;
    return status;
}

static void give_back(tcc_instance *instance) {
    pthread_mutex_lock(&the.lock);
    if (instance == the.stateful) {
        the.stateful_busy = false;
        pthread_cond_broadcast(&the.changed);
    } else {
        instance->next = the.idle;
        the.idle = instance;
    }
    pthread_mutex_unlock(&the.lock);
}

tcc_status tcc_model_call(tcc_model *model, const tcc_tensor *inputs, int32_t n_inputs,
                          tcc_tensor *outputs, int32_t n_outputs, const tcc_allocator *allocator,
                          void *stream) {
    if (!model) return tcc_fail(TCC_INVALID_ARGUMENT, "no model");
    tcc_instance *instance = NULL;
    TCC_RETURN_IF_ERROR(borrow(model, &instance));
    tcc_status status =
        tcc_instance_run(instance, inputs, n_inputs, outputs, n_outputs, allocator, stream);
    give_back(instance);
    return status;
}

void tcc_model_trim(tcc_model *model) {
    if (!model) return;
    pthread_mutex_lock(&the.lock);
    tcc_instance *idle = the.idle;
    the.idle = NULL;
    if (the.stateful && !the.stateful_busy) tcc_pool_trim(the.stateful->pool);
    pthread_mutex_unlock(&the.lock);
    destroy_all(idle);
    trim_results();
}
