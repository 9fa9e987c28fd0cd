/* Prints the ranks' numbers on their hosts. The arguments name the hosts in the order of ranks.
 * Without arguments it prints whether a process recognises its own host, and whether a process in
 * another network namespace does. */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>

#include "../../../runtime/src/comm/comm.h"

int main(int argc, char **argv) {
    tcc_comm_host all[16];
    int32_t n = argc > 1 ? argc - 1 : 3, rank, size;
    memset(all, 0, sizeof all);
    for (int32_t i = 0; i < n && argc > 1; i++)
        snprintf(all[i].name, sizeof all[i].name, "%s", argv[i + 1]);
    if (argc == 1) {
        tcc_comm_this_host(&all[0]);
        tcc_comm_this_host(&all[1]);
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET)) return 77;
        tcc_comm_this_host(&all[2]);
    }
    for (int32_t i = 0; i < n; i++) {
        tcc_comm_count_local(all, n, i, &rank, &size);
        printf("%d/%d ", rank, size);
    }
    puts("");
    return 0;
}
