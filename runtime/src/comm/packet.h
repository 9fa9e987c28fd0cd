/* Declares messages with descriptors over a local socket.  One paragraph per file. */
#ifndef TCC_COMM_PACKET_H
#define TCC_COMM_PACKET_H

#include <sys/socket.h>
#include <sys/un.h>

#include "comm.h"

/* ---- packet.c: one message, whole, with descriptors beside it -------------------------------- */

enum { TCC_COMM_MOST_DESCRIPTORS = TCC_COMM_MOST_LOCAL + 1 };

/* Makes a non-blocking socket that keeps message boundaries; -1 with the thread's message set. */
int tcc_packet_socket(void);
/* Computes the abstract address of a meeting's name; no file system holds it.  It contains the
 * user's number, and nobody can predict it without the token. */
socklen_t tcc_packet_address(const char *name, const char *token, struct sockaddr_un *out_address);

typedef struct tcc_packet_peer {
    int32_t pid;
    uint32_t user;
} tcc_packet_peer;

/* Returns true if the process at the other end belongs to this process's user; `out_peer`
 * identifies the process. */
bool tcc_packet_same_user(int connection, tcc_packet_peer *out_peer);
/* Sends a message.  On failure errno is the system's. */
tcc_status tcc_packet_send(int connection, const void *bytes, size_t size, const int *descriptors,
                           int32_t n);

typedef enum tcc_packet_state {
    TCC_PACKET_NONE,
    TCC_PACKET_WHOLE,
    TCC_PACKET_END
} tcc_packet_state;

/* Takes a message of exactly `size` bytes with up to `room` descriptors, which the caller closes.
 * Any other message, and the end of the connection, gives TCC_PACKET_END and leaves no
 * descriptor. */
tcc_packet_state tcc_packet_take(int connection, void *bytes, size_t size, int *descriptors,
                                 int32_t room, int32_t *out_n);
void tcc_packet_close(int *descriptors, int32_t n); /* closes those that are not negative */

/* ---- memory.c: memory files ------------------------------------------------------------------ */

/* Makes a memory file of `bytes` zero bytes that can neither grow nor shrink. */
tcc_status tcc_memory_make(size_t bytes, int *out_file);
/* Maps a file that tcc_memory_make made, perhaps in another process of this user.  Refuses any
 * other file. */
tcc_status tcc_memory_map(int file, size_t bytes, void **out_memory);
/* Makes a range's pages now, where the machine can.  Fails where there is no memory for them. */
tcc_status tcc_memory_populate(void *memory, size_t bytes);
size_t tcc_memory_round(size_t bytes); /* rounds up to whole pages; 0 on overflow */

#endif
