/* Scenarios of exchanges.c with names of hosts, which a fake resolver knows. */
#include <dlfcn.h>
#include <netdb.h>

typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static const struct {
    const char *name, *addresses[4];
} host_names[] = {
    {"own.test", {"127.0.1.1"}}, /* an entry as Debian makes in /etc/hosts for a host's own name */
    {"several.test", {"::1", "127.0.0.2", "127.0.0.1"}},
    {"full.test", {"127.0.0.3", "127.0.0.4", "127.0.0.1"}},
};

static pthread_mutex_t slow = PTHREAD_MUTEX_INITIALIZER; /* locked while look-ups shall take long */
static _Atomic int slow_ones, looked_up;

/* Replaces the C library's function. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **out) {
    resolver *real = NULL;
    void *function = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&real, &function, sizeof real);
    if (hints->ai_flags & AI_NUMERICHOST) return real(name, service, hints, out);
    atomic_fetch_add(&looked_up, 1);
    if (strcmp(name, "slow.test") == 0) {
        pthread_mutex_lock(&slow);
        pthread_mutex_unlock(&slow);
        atomic_fetch_sub(&slow_ones, 1);
        return EAI_AGAIN;
    }
    for (size_t i = 0; i < sizeof host_names / sizeof *host_names; i++) {
        if (strcmp(host_names[i].name, name)) continue;
        struct addrinfo **last = out;
        for (int k = 0; host_names[i].addresses[k]; k++) {
            int code = real(host_names[i].addresses[k], service, hints, last);
            if (code) return code;
            last = &(*last)->ai_next;
        }
        return 0;
    }
    return EAI_NONAME;
}

/* Writes "NAME:PORT" with this test's port. */
static const char *at_name(const char *name, char out[64]) {
    snprintf(out, 64, "%s:%d", name, (int)port);
    return out;
}

/* The name of rank 0's host has an address there that only this host reaches, so rank 0 listens on
 * all addresses. */
static void name_of_this_host(void) {
    char host_name[64], other_name[64];
    rank ranks[] = {rank_of(0, 3, 8, LONG), rank_of(1, 3, 8, LONG), rank_of(2, 3, 8, LONG)};
    ranks[0].about.address = ranks[2].about.address = at_name("own.test", host_name);
    ranks[1].about.address = at_name("127.0.0.1", other_name);
    run_all(ranks, 3);
    for (int i = 0; i < 3; i++) end(&ranks[i], TCC_OK, "", "");
    CHECK(atomic_load(&looked_up) == 1, "rank 0 looks its own name up");
}

/* Two of a name's addresses refuse. Without rank 0 the message names all of them. */
static void all_addresses(void) {
    char name[64];
    rank ranks[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)};
    ranks[1].about.address = at_name("several.test", name);
    run_all(ranks, 2);
    for (int i = 0; i < 2; i++) end(&ranks[i], TCC_OK, "", "");
    rank alone = rank_of(1, 2, 8, 3 * SHORT);
    alone.about.address = name;
    start(&alone);
    join(&alone);
    end(&alone, TCC_TIMEOUT, "127.0.0.2:", "127.0.0.1:");
}

/* One of a name's addresses does not answer calls, another is silent. The rank gives up on both in
 * time. */
static void patience(void) {
    char name[64];
    int filling[3], full = listener_on(INADDR_LOOPBACK + 2, port);
    int mute = listener_on(INADDR_LOOPBACK + 3, port);
    CHECK(listen(full, 0) == 0, "%s", strerror(errno));
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 2);
    for (int i = 0; i < 3; i++) {
        filling[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(filling[i], (struct sockaddr *)&at, sizeof at);
    }
    rank ranks[] = {rank_of(0, 2, 8, LONG / 3), rank_of(1, 2, 8, LONG / 3)};
    ranks[1].about.address = at_name("full.test", name);
    run_all(ranks, 2);
    for (int i = 0; i < 2; i++) end(&ranks[i], TCC_OK, "", "");
    for (int i = 0; i < 3; i++) close(filling[i]);
    close(full);
    close(mute);
}

/* One rank uses IPv6, another IPv4. */
static void both_kinds(void) {
    char host_name[64], new_name[64], old_name[64];
    rank ranks[] = {rank_of(0, 3, 8, LONG), rank_of(1, 3, 8, LONG), rank_of(2, 3, 8, LONG)};
    ranks[0].about.address = at_name("own.test", host_name);
    ranks[1].about.address = at_name("[::1]", new_name);
    ranks[2].about.address = at_name("127.0.0.1", old_name);
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int test = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has_ipv6 = test >= 0 && bind(test, (struct sockaddr *)&at, sizeof at) == 0;
    if (test >= 0) close(test);
    if (!has_ipv6) ranks[1].about.address = old_name; /* this host has no IPv6 */
    run_all(ranks, 3);
    for (int i = 0; i < 3; i++) end(&ranks[i], TCC_OK, "", "");
}

/* A look-up that takes longer than the deadline is left behind. */
static void slow_name(void) {
    char name[64];
    rank alone = rank_of(1, 2, 8, SHORT);
    alone.about.address = at_name("slow.test", name);
    atomic_store(&slow_ones, 1);
    pthread_mutex_lock(&slow);
    start(&alone);
    join(&alone);
    CHECK(atomic_load(&slow_ones) == 1, "the look-up has ended");
    pthread_mutex_unlock(&slow);
    while (atomic_load(&slow_ones)) usleep(1000);
    end(&alone, TCC_TIMEOUT, "in vain for rank 0 at 'slow.test:", "took until the deadline");
}

static void no_name(void) {
    char name[64];
    rank ranks[] = {rank_of(0, 2, 8, SHORT), rank_of(1, 2, 8, SHORT)};
    for (int i = 0; i < 2; i++) ranks[i].about.address = at_name("no.test", name);
    run_all(ranks, 2);
    end(&ranks[0], TCC_TIMEOUT, "at 'no.test:", "(it listened on port ");
    end(&ranks[1], TCC_TIMEOUT, "at 'no.test:", "no address of it is known: ");
}

/* The configured address does not belong to this host. */
static void elsewhere(void) {
    char name[64];
    rank alone = rank_of(0, 2, 8, SHORT);
    alone.about.address = at_name("192.0.2.1", name); /* reserved by RFC 5737: no host has it */
    start(&alone);
    join(&alone);
    end(&alone, TCC_SYSTEM, "nobody can listen at '192.0.2.1:", "where rank 0 (");
}
