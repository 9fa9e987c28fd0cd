/* Prints how a program reads the environment: first 1 where its privileges are raised, else 0; then
 * the result of the search for each library; then the launchers' values. */
#include <sys/auxv.h>

#include "../../../runtime/src/comm/mpi.h"
#include "../../../runtime/src/comm/nccl.h"

int main(void) {
    tcc_comm_config config = TCC_COMM_CONFIG;
    tcc_comm_settings settings;
    printf("%lu\n", getauxval(AT_SECURE));
    const char *plugin = tcc_comm_backend_plugin.unfit(NULL);
    printf("plugin: %s\n", plugin ? plugin : "found");
    printf("mpi: %s\n", tcc_mpi_library() ? "found" : tcc_last_error());
    printf("nccl: %s\n", tcc_nccl_library(2) ? "found" : tcc_last_error());
    printf("rccl: %s\n", tcc_nccl_library(10) ? "found" : tcc_last_error());
    bool is_settled = tcc_comm_settle(&config, &settings) == TCC_OK;
    printf("launcher: %s\n", is_settled ? settings.rendezvous : tcc_last_error());
    return 0;
}
