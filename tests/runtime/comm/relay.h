/* Scenarios of exchanges.c with an attacker between two ranks. */

enum { TO_HOST, TO_GUEST, HEARD = 2000 };

/* Records both directions of the first connection to its port, and may change one of its bytes.
 * Later connections pass unchanged. */
typedef struct relay {
    int listener;
    uint16_t to;        /* rank 0's port */
    int changed;        /* direction of the changed byte */
    size_t at;          /* index of the changed byte; SIZE_MAX: none */
    size_t ends;        /* bytes to rank 0 after which the first connection ends; SIZE_MAX: never */
    pthread_t thread;
    _Atomic bool over;
    _Atomic int visits, reached; /* connections to the relay, and to rank 0 */
    char heard[2][HEARD];
    size_t n[2];
} relay;

/* Passes bytes on. Returns true if more may come. */
static bool pass_on(relay *self, int direction, int from, int to, bool first) {
    char bytes[HEARD];
    ssize_t got = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN;
    size_t n = (size_t)got, *before = &self->n[direction];
    if (first && n && *before + n <= HEARD) {
        if (direction == self->changed && self->at >= *before && self->at < *before + n)
            bytes[self->at - *before] ^= 1;
        memcpy(self->heard[direction] + *before, bytes, n);
        *before += n;
    }
    (void)!send(to, bytes, n, MSG_NOSIGNAL);
    return n > 0 && !(first && direction == TO_HOST && *before >= self->ends);
}

static void *run_relay(void *of) {
    relay *self = of;
    for (bool first = true; !atomic_load(&self->over);) {
        struct pollfd polled = {self->listener, POLLIN, 0};
        if (poll(&polled, 1, 2) <= 0) continue;
        int guest = accept4(self->listener, NULL, NULL, SOCK_CLOEXEC);
        int host = connected_to(self->to);
        atomic_fetch_add(&self->visits, 1);
        atomic_fetch_add(&self->reached, host >= 0);
        for (bool more = host >= 0; more && !atomic_load(&self->over);) {
            struct pollfd both[] = {{guest, POLLIN, 0}, {host, POLLIN, 0}};
            if (poll(both, 2, 2) <= 0) continue;
            if (both[0].revents) more = pass_on(self, TO_HOST, guest, host, first);
            if (more && both[1].revents) more = pass_on(self, TO_GUEST, host, guest, first);
        }
        close(guest);
        if (host >= 0) {
            close(host);
            first = false;
        }
    }
    return NULL;
}

/* Starts a relay before rank 0's port, and writes its address. */
static void start_relay(relay *self, char place[64]) {
    uint16_t before = port;
    self->to = port;
    self->listener = listener_at(0);
    snprintf(place, 64, "127.0.0.1:%d", (int)port);
    port = before;
    pthread_create(&self->thread, NULL, run_relay, self);
}

static void end_relay(relay *self) {
    atomic_store(&self->over, true);
    pthread_join(self->thread, NULL);
    close(self->listener);
}

/* Ends two ranks without a common secret: each one's message names the other's address. */
static void end_as_strangers(rank *ranks) {
    char place[64];
    relay between = {.at = SIZE_MAX, .ends = SIZE_MAX};
    ranks[1].about.address = place;
    start_relay(&between, place);
    for (int i = 0; i < 2; i++) start(&ranks[i]);
    while (atomic_load(&between.reached) < 3) usleep(1000); /* the rank comes again */
    for (int i = 0; i < 2; i++) end_in_vain(&ranks[i]);
    end_relay(&between);
    end(&ranks[0], TCC_TIMEOUT, ": 1; 127.0.0.1:", "did not prove that it knows the secret");
    end(&ranks[1], TCC_TIMEOUT, "; 127.0.0.1:", "did not prove that it knows the secret");
}

static void dies(void) {
    char place[64];
    relay between = {.at = SIZE_MAX, .ends = GREETING_BYTES + PROMISE_BYTES + 8};
    rank ranks[] = {rank_of(0, 3, 8, LONG), rank_of(1, 3, 8, LONG)};
    ranks[1].about.address = place;
    start_relay(&between, place);
    for (int i = 0; i < 2; i++) start(&ranks[i]);
    join(&ranks[0]);
    atomic_store(&between.over, true);
    end_in_vain(&ranks[1]);
    end_relay(&between);
    end(&ranks[0], TCC_PEER_DEAD, "rank 1 (", "gave up or ended while ranks met rank 0 (");
    end(&ranks[1], TCC_TIMEOUT, "rank 1 (", "in vain for rank 0");
}

/* The messages of a meeting reveal nothing of the secret, and cannot be used again. */
static void replays(void) {
    static const char secret[] = "a secret of this job";
    char place[64];
    static relay between = {.at = SIZE_MAX, .ends = SIZE_MAX};
    rank ranks[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)};
    for (int i = 0; i < 2; i++) ranks[i].about.token = secret;
    ranks[1].about.address = place;
    start_relay(&between, place);
    run_all(ranks, 2);
    end_relay(&between);
    for (int i = 0; i < 2; i++) {
        end(&ranks[i], TCC_OK, "", "");
        for (size_t at = 0; at + 4 < sizeof secret; at++)
            CHECK(!memmem(between.heard[i], between.n[i], secret + at, 4), "the secret is said");
    }
    CHECK(between.n[TO_HOST] == GREETING_BYTES + PROMISE_BYTES + 8 &&
              between.n[TO_GUEST] == CHALLENGE_BYTES + ANSWER_BYTES + 16,
          "%zu and %zu bytes", between.n[TO_HOST], between.n[TO_GUEST]);
    char answer[2000];
    rank host = rank_of(0, 3, 8, LONG); /* a replayed message would count rank 1 */
    host.about.token = secret;
    start(&host);
    for (int turn = 0; turn < 3; turn++) {
        int visitor = connected();
        (void)!send(visitor, between.heard[TO_HOST], between.n[TO_HOST], MSG_NOSIGNAL);
        size_t got = 0;
        for (ssize_t n; (n = read(visitor, answer + got, sizeof answer - got)) > 0;)
            got += (size_t)n;
        CHECK(got == CHALLENGE_BYTES, "%zu bytes for what was heard", got);
        CHECK(memcmp(answer, between.heard[TO_GUEST], got), "the same challenge again");
        close(visitor);
    }
    end_in_vain(&host);
    end(&host, TCC_TIMEOUT, ": 1, 2; 127.0.0.1:", "did not prove that it knows the secret");
    int other = listener_at(port);
    rank guest = rank_of(1, 2, 8, LONG);
    guest.about.token = secret;
    start(&guest);
    for (int turn = 0; turn < 3; turn++) {
        int visitor = accept(other, NULL, NULL);
        (void)!send(visitor, between.heard[TO_GUEST], between.n[TO_GUEST], MSG_NOSIGNAL);
        size_t got = 0;
        for (ssize_t n; (n = read(visitor, answer + got, sizeof answer - got)) > 0;)
            got += (size_t)n;
        CHECK(got == GREETING_BYTES, "%zu bytes to who has proved nothing", got);
        close(visitor);
    }
    end_in_vain(&guest);
    end(&guest, TCC_TIMEOUT, "did not prove that", "it knows the secret");
    close(other);
}

/* A changed byte changes no result: ranks get their own blobs, or none. */
static void altered(void) {
    /* a byte of each field: greeting, promise, blob; challenge, answer, blobs */
    static const size_t places[2][12] = {{0, 4, 8, 12, 16, 20, 30, 90, 125, 160, 180, 187},
                                         {0, 4, 20, 50, 72, 76, 80, 100, 200, 500, 521, 530}};
    for (int direction = 0; direction < 2; direction++)
        for (int i = 0; i < 12; i++) {
            size_t at = places[direction][i];
            char place[64];
            /* rank 0 has finished by then */
            bool late = direction == TO_GUEST && at >= CHALLENGE_BYTES;
            relay *between = calloc(1, sizeof *between);
            *between = (relay){.changed = direction, .at = at, .ends = SIZE_MAX};
            rank ranks[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)};
            ranks[1].about.address = place;
            start_relay(between, place);
            for (int k = 0; k < 2; k++) start(&ranks[k]);
            join(&ranks[0]);
            bool ends = !late; /* otherwise the rank does not believe the answer and comes again */
            while (late && atomic_load(&between->visits) < 2 && !ends)
                ends = pthread_tryjoin_np(ranks[1].thread, NULL) == 0;
            if (!late) join(&ranks[1]);
            if (late && !ends) end_in_vain(&ranks[1]);
            end_relay(between);
            end(&ranks[0], TCC_OK, "", "");
            end(&ranks[1], late ? TCC_TIMEOUT : TCC_OK, "in vain for rank 0", "");
            free(between);
        }
}
