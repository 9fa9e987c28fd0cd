/* Prints the settings of a launcher's environment: rank, size, local rank, local size, epoch,
 * rendezvous; the address and port where ranks of several hosts meet, if they differ from the
 * rendezvous; and whether there is a token or the choice of none. */
#include <string.h>

#include "../../../runtime/src/comm/comm.h"

int main(void) {
    tcc_comm_config config = TCC_COMM_CONFIG;
    tcc_comm_settings settings;
    tcc_status status = tcc_comm_settle(&config, &settings);
    if (status != TCC_OK) {
        printf("%d: %s\n", (int)status, tcc_last_error());
        return 0;
    }
    printf("%d %d %d %d %d %s", settings.rank, settings.size, settings.local_rank,
           settings.local_size, settings.epoch, settings.rendezvous);
    if (settings.port_offset) printf(" port + %d", settings.port_offset);
    if (strcmp(settings.address, settings.rendezvous)) printf(" at %s", settings.address);
    if (*settings.token) printf(" with a token");
    if (settings.unguarded) printf(" unguarded");
    puts("");
    return 0;
}
