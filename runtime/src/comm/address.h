/* Addresses of hosts.  One paragraph per file. */
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
    char reason[96]; /* why there are none */
} tcc_places;

/* The places of "host:port" or "[host]:port", with `port_offset` added to the port; those of a name
 * are looked up by a thread that is left behind at the deadline.  TCC_INVALID_ARGUMENT: the text is
 * none. */
tcc_status tcc_places_find(const char *address, int32_t port_offset, int64_t deadline,
                           tcc_places *out);
/* A socket that listens where all who can reach this host reach it: on every address, or on the one
 * that is given as a number; for the name localhost on that of this host alone.  Waits for another
 * process that has the port; `text` says where it listens. */
tcc_status tcc_place_listen(const char *address, int32_t port_offset, int64_t deadline,
                            int *out_listener, char text[TCC_PLACE_TEXT]);
/* A connection that does not block; -1 with errno set, ETIMEDOUT at the deadline. */
int tcc_place_call(const tcc_place *place, int64_t deadline);
/* "127.0.0.1:29400" or "[::1]:29400". */
void tcc_place_text(const tcc_place *place, char text[TCC_PLACE_TEXT]);
/* Who is at the other end of a connection, as such a text. */
void tcc_place_peer(int connection, char text[TCC_PLACE_TEXT]);

#endif
