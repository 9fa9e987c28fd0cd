/* Sends messages with descriptors over a local socket of one user. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "packet.h"

int tcc_packet_socket(void) {
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection < 0) tcc_fail(TCC_SYSTEM, "a local socket: %s", strerror(errno));
    return connection;
}

socklen_t tcc_packet_address(const char *name, const char *token, struct sockaddr_un *out_address) {
    static const char word[] = "tcc-comm name";
    uint8_t hash[TCC_COMM_HASH];
    char hidden[TCC_COMM_HASH + 1];
    tcc_comm_proof proof;
    tcc_comm_proof_begin(&proof, token, strlen(token));
    tcc_comm_proof_add(&proof, word, sizeof word);
    tcc_comm_proof_add(&proof, name, strlen(name));
    tcc_comm_proof_end(&proof, hash);
    for (int i = 0; i < TCC_COMM_HASH / 2; i++)
        snprintf(hidden + (size_t)(2 * i), 3, "%02x", hash[i]);
    *out_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    /* the first byte is zero: an abstract name */
    int length = snprintf(out_address->sun_path + 1, sizeof out_address->sun_path - 1,
                          "tcc-comm-%u-%s", (unsigned)geteuid(), hidden);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

bool tcc_packet_same_user(int connection, tcc_packet_peer *out_peer) {
    struct ucred who;
    socklen_t size = sizeof who;
    *out_peer = (tcc_packet_peer){0, (uint32_t)-1};
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &size)) return false;
    *out_peer = (tcc_packet_peer){who.pid, who.uid};
    return who.uid == geteuid();
}

typedef union control {
    struct cmsghdr header; /* aligns the buffer */
    char bytes[CMSG_SPACE(TCC_COMM_MOST_DESCRIPTORS * sizeof(int))];
} control;

tcc_status tcc_packet_send(int connection, const void *bytes, size_t size, const int *descriptors,
                           int32_t n) {
    control beside;
    memset(&beside, 0, sizeof beside);
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (n > 0) {
        message.msg_control = &beside;
        message.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
        memcpy(CMSG_DATA(header), descriptors, (size_t)n * sizeof(int));
    }
    ssize_t sent;
    do sent = sendmsg(connection, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0) return TCC_OK;
    int error = errno;
    if (error == EPIPE || error == ECONNRESET)
        tcc_fail(TCC_PEER_DEAD, "a rank gave up or ended while ranks met");
    else
        tcc_fail(TCC_SYSTEM, "a message to another rank: %s", strerror(error));
    errno = error;
    return error == EPIPE || error == ECONNRESET ? TCC_PEER_DEAD : TCC_SYSTEM;
}

/* Copies up to `n` descriptors, closes further ones, and returns how many came. */
static int32_t take_descriptors(struct msghdr *message, int *descriptors, int32_t n) {
    int32_t n_descriptors = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int descriptor;
            memcpy(&descriptor, CMSG_DATA(h) + i * sizeof descriptor, sizeof descriptor);
            if (n_descriptors < n)
                descriptors[n_descriptors++] = descriptor;
            else
                close(descriptor);
        }
    }
    return n_descriptors;
}

void tcc_packet_close(int *descriptors, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (descriptors[i] >= 0) close(descriptors[i]);
}

tcc_packet_state tcc_packet_take(int connection, void *bytes, size_t size, int *descriptors,
                                 int32_t room, int32_t *out_n) {
    control beside;
    struct iovec part = {bytes, size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside};
    *out_n = 0;
    ssize_t got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? TCC_PACKET_NONE : TCC_PACKET_END;
    *out_n = take_descriptors(&message, descriptors, room);
    bool cut = message.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
    if (got == (ssize_t)size && !cut) return TCC_PACKET_WHOLE;
    tcc_packet_close(descriptors, *out_n);
    *out_n = 0;
    return TCC_PACKET_END;
}
