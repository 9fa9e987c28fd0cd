/* Prints what a launcher's environment says: rank, size, local rank, local size, epoch, rendezvous.
 */
#include "../../../runtime/src/comm/comm.h"

int main(void) {
    tcc_comm_config config = TCC_COMM_CONFIG;
    tcc_comm_settings settings;
    tcc_status status = tcc_comm_settle(&config, &settings);
    if (status != TCC_OK) {
        printf("%d: %s\n", (int)status, tcc_last_error());
        return 0;
    }
    printf("%d %d %d %d %d %s\n", settings.rank, settings.size, settings.local_rank,
           settings.local_size, settings.epoch, settings.rendezvous);
    return 0;
}
