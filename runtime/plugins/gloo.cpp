/* Gloo as an engine of tcc_comm_plugin.h.  It is built where it is used, with that machine's Gloo:
 *
 *     c++ -std=c++17 -O2 -fPIC -shared -I../include gloo.cpp -lgloo -lpthread -o tcc_gloo.so
 *     TCC_COMM_PLUGIN=$PWD/tcc_gloo.so TCC_RENDEZVOUS=host0:29400 TCC_TOKEN=... \
 *         TCC_RANK=0 TCC_SIZE=2 program
 *
 * GLOO_SOCKET_IFNAME names the network interface; else Gloo takes the one of the host's name.
 *
 * All ranks have TCP connections to all others (at most 340 ranks).  Collectives are messages between
 * each two ranks, so that they begin without waiting; a thread of each group waits for them.  Groups
 * share the connections, and tell their messages apart by Gloo's slots. */
#include <gloo/common/error.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tcc_comm_plugin.h"

namespace {

using gloo::transport::Context;
using gloo::transport::UnboundBuffer;
using Fail = decltype(tcc_comm_engine_host::fail);

/* Gloo's waits end with an error that closes all connections; deadlines are the library's. */
constexpr std::chrono::hours kForever(24 * 365);

struct Message {
    std::unique_ptr<UnboundBuffer> buffer;
    bool sends;
};

struct Operation {
    std::vector<Message> messages;
    std::atomic<bool> done{false};
    std::string error; /* written before `done`; empty: none */
};

/* Messages are read from and written to their buffers by Gloo's threads; the group's thread only
 * waits for them, in the order in which they were begun. */
struct Group {
    Fail fail;
    std::shared_ptr<Context> context;
    std::vector<int32_t> members; /* ranks of the context */
    int32_t self;
    uint64_t id; /* equal on the members */
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Operation *> begun;
    bool closed = false;
    std::thread waiter;
};

void wait_for(Operation &operation) {
    try {
        for (Message &message : operation.messages)
            if (message.sends)
                message.buffer->waitSend(kForever);
            else
                message.buffer->waitRecv(kForever);
    } catch (const std::exception &error) {
        operation.error = error.what();
    }
    operation.done.store(true, std::memory_order_release);
}

void wait_for_all(Group *group) {
    for (;;) {
        std::unique_lock<std::mutex> lock(group->mutex);
        group->changed.wait(lock, [&] { return group->closed || !group->begun.empty(); });
        if (group->begun.empty()) return;
        Operation *next = group->begun.front();
        group->begun.pop_front();
        lock.unlock();
        wait_for(*next);
    }
}

std::unique_ptr<Group> make_group(Fail fail, std::shared_ptr<Context> context,
                                  std::vector<int32_t> members, int32_t self, uint64_t id) {
    auto group = std::make_unique<Group>();
    group->fail = fail;
    group->context = std::move(context);
    group->members = std::move(members);
    group->self = self;
    group->id = id;
    group->waiter = std::thread(wait_for_all, group.get());
    return group;
}

/* Calls `body`, and makes a status of what it throws. */
template <typename Body> tcc_status guarded(Fail fail, Body body) {
    try {
        return body();
    } catch (const gloo::IoException &error) {
        return fail(TCC_PEER_DEAD, error.what());
    } catch (const std::bad_alloc &) {
        return fail(TCC_OUT_OF_MEMORY, "Gloo: out of memory");
    } catch (const std::exception &error) {
        return fail(TCC_SYSTEM, error.what());
    }
}

/* ---- opening --------------------------------------------------------------------------------- */

constexpr size_t kAddress = gloo::transport::Address::kMaxByteSize;

/* Connects this rank to all others; each tells the others one address for every rank. */
tcc_status connect_all(const tcc_comm_engine_host *host, Context &context) {
    size_t size = (size_t)host->size, rank = (size_t)host->rank;
    std::vector<char> mine(size * kAddress), all(size * mine.size());
    size_t bytes = 0;
    for (size_t peer = 0; peer < size; peer++) {
        if (peer == rank) continue;
        std::vector<char> its = context.createPair((int)peer)->address().bytes();
        bytes = its.size();
        memcpy(&mine[peer * kAddress], its.data(), std::min(bytes, kAddress));
    }
    tcc_status status = host->exchange(host, mine.data(), mine.size(), all.data());
    for (size_t peer = 0; status == TCC_OK && peer < size; peer++) {
        if (peer == rank) continue;
        const char *its = &all[peer * mine.size() + rank * kAddress];
        context.getPair((int)peer)->connect(std::vector<char>(its, its + bytes));
    }
    return status;
}

tcc_status open_group(const tcc_comm_engine_host *host, void **out_group) {
    return guarded(host->fail, [&] {
        const char *interface = secure_getenv("GLOO_SOCKET_IFNAME");
        gloo::transport::tcp::attr attributes;
        if (interface) attributes.iface = interface;
        auto device = gloo::transport::tcp::CreateDevice(attributes);
        auto context = device->createContext(host->rank, host->size);
        context->setTimeout(std::chrono::milliseconds(host->open_milliseconds));
        tcc_status status = connect_all(host, *context);
        if (status != TCC_OK) return status;
        std::vector<int32_t> members;
        for (int32_t i = 0; i < host->size; i++) members.push_back(i);
        *out_group = make_group(host->fail, context, members, host->rank, 1).release();
        return TCC_OK;
    });
}

tcc_status split(void *of, const int32_t *members, int32_t n, int32_t self, const char *name,
                 void **out_group) {
    auto *parent = static_cast<Group *>(of);
    return guarded(parent->fail, [&] {
        std::vector<int32_t> ranks;
        for (int32_t i = 0; i < n; i++) ranks.push_back(parent->members[(size_t)members[i]]);
        uint64_t id = parent->id;
        for (const char *c = name; *c; c++) id = (id ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
        *out_group = make_group(parent->fail, parent->context, ranks, self, id).release();
        return TCC_OK;
    });
}

void close_group(void *of) {
    auto *group = static_cast<Group *>(of);
    {
        std::lock_guard<std::mutex> lock(group->mutex);
        group->closed = true;
    }
    group->changed.notify_one();
    group->waiter.join();
    delete group;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* An operation that is being begun. */
struct Beginning {
    Group *group;
    int32_t tag; /* 0: of a collective */
    std::unique_ptr<Operation> operation = std::make_unique<Operation>();

    void move(bool sends, void *data, size_t bytes, int32_t peer) {
        if (!bytes) return;
        auto buffer = group->context->createUnboundBuffer(data, bytes);
        uint64_t slot = group->id * 4 + (uint64_t)tag;
        int rank = group->members[(size_t)peer];
        if (sends)
            buffer->send(rank, slot);
        else
            buffer->recv(rank, slot);
        operation->messages.push_back({std::move(buffer), sends});
    }

    /* The group's thread goes on with it. */
    tcc_status hand_over(uintptr_t *out_request) {
        *out_request = 0;
        if (operation->messages.empty()) return TCC_OK;
        Operation *begun = operation.release();
        *out_request = reinterpret_cast<uintptr_t>(begun);
        {
            std::lock_guard<std::mutex> lock(group->mutex);
            group->begun.push_back(begun);
        }
        group->changed.notify_one();
        return TCC_OK;
    }
};

tcc_status all_to_all(void *of, const void *send, const size_t *send_bytes,
                      const size_t *send_places, void *receive, const size_t *receive_bytes,
                      uintptr_t *out_request) {
    auto *group = static_cast<Group *>(of);
    return guarded(group->fail, [&] {
        Beginning beginning{group, 0};
        char *from = static_cast<char *>(const_cast<void *>(send)); /* it is only read */
        char *to = static_cast<char *>(receive);
        for (int32_t peer = 0; peer < (int32_t)group->members.size(); peer++) {
            size_t bytes = receive_bytes[peer];
            if (peer != group->self)
                beginning.move(false, to, bytes, peer);
            else if (bytes)
                memcpy(to, from + send_places[peer], bytes);
            to += bytes;
        }
        for (int32_t peer = 0; peer < (int32_t)group->members.size(); peer++)
            if (peer != group->self)
                beginning.move(true, from + send_places[peer], send_bytes[peer], peer);
        return beginning.hand_over(out_request);
    });
}

tcc_status all_gather(void *of, void *data, const size_t *bytes, uintptr_t *out_request) {
    auto *group = static_cast<Group *>(of);
    return guarded(group->fail, [&] {
        Beginning beginning{group, 0};
        char *next = static_cast<char *>(data), *own = nullptr;
        for (int32_t peer = 0; peer < (int32_t)group->members.size(); next += bytes[peer++])
            if (peer == group->self)
                own = next;
            else
                beginning.move(false, next, bytes[peer], peer);
        for (int32_t peer = 0; peer < (int32_t)group->members.size(); peer++)
            if (peer != group->self) beginning.move(true, own, bytes[group->self], peer);
        return beginning.hand_over(out_request);
    });
}

tcc_status broadcast(void *of, void *data, size_t bytes, int32_t root, uintptr_t *out_request) {
    auto *group = static_cast<Group *>(of);
    return guarded(group->fail, [&] {
        Beginning beginning{group, 0};
        if (group->self != root) beginning.move(false, data, bytes, root);
        for (int32_t peer = 0; peer < (int32_t)group->members.size(); peer++)
            if (group->self == root && peer != root) beginning.move(true, data, bytes, peer);
        return beginning.hand_over(out_request);
    });
}

tcc_status transfer(void *of, bool sends, void *data, size_t bytes, int32_t peer, int32_t tag,
                    uintptr_t *out_request) {
    auto *group = static_cast<Group *>(of);
    return guarded(group->fail, [&] {
        Beginning beginning{group, tag};
        beginning.move(sends, data, bytes, peer);
        return beginning.hand_over(out_request);
    });
}

tcc_status send(void *of, const void *data, size_t bytes, int32_t peer, int32_t tag,
                uintptr_t *out_request) {
    return transfer(of, true, const_cast<void *>(data), bytes, peer, tag, out_request);
}

tcc_status receive(void *of, void *data, size_t bytes, int32_t peer, int32_t tag,
                   uintptr_t *out_request) {
    return transfer(of, false, data, bytes, peer, tag, out_request);
}

tcc_status test(void *of, uintptr_t *request, int32_t *out_done) {
    auto *operation = reinterpret_cast<Operation *>(*request);
    *out_done = !operation || operation->done.load(std::memory_order_acquire);
    if (!*out_done || !operation) return TCC_OK;
    std::unique_ptr<Operation> ended(operation);
    *request = 0;
    if (ended->error.empty()) return TCC_OK;
    return static_cast<Group *>(of)->fail(TCC_PEER_DEAD, ended->error.c_str());
}

} // namespace

extern "C" const tcc_comm_engine *tcc_comm_plugin_get(uint32_t version) {
    static const tcc_comm_engine engine = {sizeof(tcc_comm_engine),
                                           TCC_COMM_PLUGIN_VERSION,
                                           "gloo",
                                           0,
                                           open_group,
                                           split,
                                           close_group,
                                           all_gather,
                                           all_to_all,
                                           broadcast,
                                           send,
                                           receive,
                                           test,
                                           nullptr};
    return version == TCC_COMM_PLUGIN_VERSION ? &engine : nullptr;
}
