/* Reads rank, size and rendezvous from a config and from the variables that launchers set. */
#include <string.h>

#include "../launchers.h"
#include "comm.h"

static tcc_status copy_text(char *out, size_t room, const char *text, const char *field) {
    if (!text) return TCC_OK;
    if (strlen(text) >= room)
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s: more than %zu bytes", field, room - 1);
    strcpy(out, text);
    return TCC_OK;
}

static tcc_status check(const tcc_comm_settings *settings) {
    if (settings->size < 1 || settings->rank < 0 || settings->rank >= settings->size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "rank %d of %d ranks: ranks count from 0",
                        settings->rank, settings->size);
    if (settings->local_size > settings->size ||
        (settings->local_size >= 0 && settings->local_rank >= settings->local_size))
        return tcc_fail(TCC_INVALID_ARGUMENT, "local rank %d of %d among %d ranks",
                        settings->local_rank, settings->local_size, settings->size);
    if (settings->epoch < 0 || settings->open_milliseconds < 0 ||
        settings->operation_milliseconds < 0)
        return tcc_fail(TCC_INVALID_ARGUMENT, "an epoch or a deadline is negative");
    return TCC_OK;
}

tcc_status tcc_comm_settle(const tcc_comm_config *config, tcc_comm_settings *out) {
    tcc_launch launch;
    bool has_launcher = true;
    if ((config->rank < 0) != (config->size < 0))
        return tcc_fail(TCC_INVALID_ARGUMENT, "rank %d and size %d: give both or none",
                        config->rank, config->size);
    if (config->rank < 0) {
        TCC_RETURN_IF_ERROR(tcc_launch_read(&launch, &has_launcher));
    } else {
        TCC_RETURN_IF_ERROR(tcc_launch_name(&launch));
        launch.rank = config->rank;
        launch.size = config->size;
    }
    if (!has_launcher)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "no launcher says which rank this process is: start it by mpirun, torchrun "
                        "or srun, or set TCC_RANK, TCC_SIZE and TCC_RENDEZVOUS");
    tcc_comm_settings settings = {.rank = launch.rank,
                                  .size = launch.size,
                                  .local_rank = launch.local_rank,
                                  .local_size = launch.local_size,
                                  .epoch = launch.epoch,
                                  .port_offset = launch.port_offset};
    strcpy(settings.rendezvous, launch.rendezvous);
    strcpy(settings.address, launch.address);
    if (config->local_rank >= 0) settings.local_rank = config->local_rank;
    if (config->local_size >= 0) settings.local_size = config->local_size;
    if (config->epoch >= 0) settings.epoch = config->epoch;
    const char *token = config->token ? config->token : tcc_variable("TCC_TOKEN");
    settings.unguarded = token && strcmp(token, "none") == 0;
    if (!settings.unguarded)
        TCC_RETURN_IF_ERROR(copy_text(settings.token, sizeof settings.token, token, "token"));
    TCC_RETURN_IF_ERROR(copy_text(settings.rendezvous, sizeof settings.rendezvous,
                                  config->rendezvous, "rendezvous"));
    if (config->rendezvous) {
        settings.port_offset = 0;
        *settings.address = 0;
    }
    if (!*settings.address) strcpy(settings.address, settings.rendezvous);
    const char *backends = config->backends ? config->backends : "shared,plugin,mpi";
    TCC_RETURN_IF_ERROR(
        copy_text(settings.backends, sizeof settings.backends, backends, "backends"));
    settings.open_milliseconds = config->open_milliseconds;
    settings.operation_milliseconds = config->operation_milliseconds;
    if (settings.epoch < 0) settings.epoch = 0;
    *out = settings;
    TCC_RETURN_IF_ERROR(check(&settings));
    if (!settings.open_milliseconds) out->open_milliseconds = 60000;
    if (!settings.operation_milliseconds) out->operation_milliseconds = 300000;
    return TCC_OK;
}
