/* Chooses the backend that carries out a comm's operations. */
#define _GNU_SOURCE
#include <string.h>

#include "comm.h"

static const tcc_comm_backend *const backends[] = {&tcc_comm_backend_shared,
                                                   &tcc_comm_backend_plugin, &tcc_comm_backend_mpi};

/* Lets the ranks tell one another where they run.  The remaining time until the deadline becomes
 * the time for opening. */
static tcc_status find_local(tcc_comm_settings *settings) {
    int64_t deadline = tcc_comm_now() + settings->open_milliseconds * INT64_C(1000000);
    tcc_comm_host mine, *all = tcc_allocate_zero((size_t)settings->size, sizeof *all);
    if (!all) return TCC_OUT_OF_MEMORY;
    tcc_comm_this_host(&mine);
    tcc_comm_exchange about = tcc_comm_exchange_of(settings, deadline, sizeof mine);
    tcc_status status = tcc_comm_exchange_blobs(&about, &mine, all);
    if (status == TCC_OK)
        tcc_comm_count_local(all, settings->size, settings->rank, &settings->local_rank,
                             &settings->local_size);
    tcc_free(all);
    int64_t milliseconds = (deadline - tcc_comm_now()) / 1000000;
    settings->open_milliseconds = milliseconds > 1 ? (int32_t)milliseconds : 1;
    return status;
}

static bool knows_hosts(const tcc_comm_settings *settings) {
    return settings->local_size >= 0 || !tcc_comm_address_port(settings->address);
}

/* Decides whether a backend fits; `*out_reason` is NULL if it does.  For `shared`, ranks first find
 * out which ranks are on one host.  A rendezvous without a port joins ranks of one host only, so
 * that they need not ask. */
static tcc_status try_backend(const tcc_comm_backend *backend, tcc_comm_settings *settings,
                              const char **out_reason) {
    *out_reason = backend->unfit(settings);
    if (*out_reason || backend != &tcc_comm_backend_shared || knows_hosts(settings)) return TCC_OK;
    TCC_RETURN_IF_ERROR(find_local(settings));
    *out_reason = backend->unfit(settings);
    return TCC_OK;
}

tcc_status tcc_comm_choose(tcc_comm_settings *settings, const tcc_comm_backend **out_backend) {
    char list[sizeof settings->backends], reasons[512] = "", *next = NULL;
    snprintf(list, sizeof list, "%s", settings->backends);
    for (char *name = strtok_r(list, ",", &next); name; name = strtok_r(NULL, ",", &next)) {
        const tcc_comm_backend *backend = NULL;
        for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
            if (strcmp(backends[i]->name, name) == 0) backend = backends[i];
        if (!backend)
            return tcc_fail(TCC_INVALID_ARGUMENT, "no backend '%s': expected shared, plugin or mpi",
                            name);
        const char *reason;
        TCC_RETURN_IF_ERROR(try_backend(backend, settings, &reason));
        *out_backend = backend;
        if (!reason) return TCC_OK;
        size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used ? "; " : "", name, reason);
    }
    return tcc_fail(TCC_UNSUPPORTED, "no backend fits %d ranks (%s)", settings->size, reasons);
}
