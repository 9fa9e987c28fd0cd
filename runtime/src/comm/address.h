/* Declares addresses of hosts.  One paragraph per file. */
#ifndef TCC_COMM_ADDRESS_H
#define TCC_COMM_ADDRESS_H

#include <sys/socket.h>

#include "comm.h"

/* ---- address.c: addresses are found, listened on and called in time -------------------------- */

enum { TCC_MOST_PLACES = 16, TCC_PLACE_TEXT = 80 };

typedef struct tcc_place {
    struct sockaddr_storage at;
    socklen_t bytes;
} tcc_place;

/* All addresses of one host, and one port. */
typedef struct tcc_places {
    tcc_place all[TCC_MOST_PLACES];
    int32_t n;
    char reason[96]; /* why there are no places */
} tcc_places;

/* Finds the places of "host:port" or "[host]:port", with `port_offset` added to the port.  A name
 * is looked up by a thread that is left behind at the deadline.  Fails with TCC_INVALID_ARGUMENT
 * where the text is no address. */
tcc_status tcc_places_find(const char *address, int32_t port_offset, int64_t deadline,
                           tcc_places *out);
/* Makes a socket that listens where every rank that can reach this host reaches it: on every
 * address; on one address, if it is given as a number; for the name localhost on this host's own
 * only.  Waits where another process has the port.  `text` receives the address. */
tcc_status tcc_place_listen(const char *address, int32_t port_offset, int64_t deadline,
                            int *out_listener, char text[TCC_PLACE_TEXT]);
/* Returns a non-blocking connection; -1 with errno set, ETIMEDOUT at the deadline. */
int tcc_place_call(const tcc_place *place, int64_t deadline);
/* Writes a place as "127.0.0.1:29400" or "[::1]:29400". */
void tcc_place_text(const tcc_place *place, char text[TCC_PLACE_TEXT]);
/* Writes the address at the other end of a connection in the same form. */
void tcc_place_peer(int connection, char text[TCC_PLACE_TEXT]);

#endif
