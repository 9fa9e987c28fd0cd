/* oneCCL as an engine of tcc_comm_plugin.h, on CPUs.  It is built where it is used, with that
 * machine's oneCCL (2021.11 or later):
 *
 *     c++ -std=c++17 -O2 -fPIC -shared -I../include oneccl.cpp -lccl -o tcc_oneccl.so
 *     TCC_COMM_PLUGIN=$PWD/tcc_oneccl.so TCC_RENDEZVOUS=host0:29400 TCC_TOKEN=... \
 *         TCC_RANK=0 TCC_SIZE=2 program
 *
 * oneCCL moves bytes over MPI where Intel MPI's mpirun starts the ranks.  Under other launchers it
 * needs CCL_PROCESS_LAUNCHER=none CCL_ATL_TRANSPORT=ofi, and FI_PROVIDER may name the network.
 *
 * A rank that dies ends the others: oneCCL aborts a process whose connection to a peer breaks.
 * Threads of a rank that split comms at once may wait in vain, until the deadline (seen with 2022.1).
 *
 * A group has three communicators: one for collectives and one for the messages of each tag, for
 * oneCCL's messages have no tags.  Threads of oneCCL carry on what is under way. */
#include <oneapi/ccl.hpp>

#include <chrono>
#include <climits>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tcc_comm_plugin.h"

namespace {

using Fail = decltype(tcc_comm_engine_host::fail);
using Store = std::shared_ptr<ccl::kvs>;
using Address = ccl::kvs::address_type;

constexpr auto kByte = ccl::datatype::uint8;

struct Operation;

/* Messages of one tag to or from one peer.  oneCCL may begin them in another order than that of the
 * calls, so that one is begun when those before it are done. */
using Line = std::deque<Operation *>;

struct Operation {
    std::vector<char> packed; /* what it sends, where that lies in several places */
    ccl::event event;
    Line *line = nullptr; /* a message is the line's until it is done */
    std::function<ccl::event()> start; /* of a message that waits */
};

struct Group {
    Fail fail;
    std::chrono::milliseconds patience; /* in which a group is made */
    int32_t self;
    Store store; /* its ranks meet there */
    ccl::communicator collectives, messages[2];
    std::map<std::tuple<bool, int32_t, int32_t>, Line> lines; /* by direction, tag and peer */
};

/* Calls `body`, and makes a status of what it throws. */
template <typename Body> tcc_status guarded(Fail fail, Body body) {
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return fail(TCC_OUT_OF_MEMORY, "oneCCL: out of memory");
    } catch (const std::exception &error) {
        return fail(TCC_SYSTEM, error.what());
    }
}

/* ---- groups ---------------------------------------------------------------------------------- */

std::unique_ptr<Group> make_group(Fail fail, std::chrono::milliseconds patience, int32_t size,
                                  int32_t self, Store store) {
    auto all = ccl::create_communicator(size, self, store);
    auto first = ccl::split_communicator(all, 0, self);
    auto second = ccl::split_communicator(all, 0, self);
    return std::unique_ptr<Group>(new Group{fail, patience, self, std::move(store), std::move(all),
                                            {std::move(first), std::move(second)}, {}});
}

/* The group that `make` returns, which waits for other ranks without end: a thread of its own does,
 * and is left there at the deadline. */
template <typename Make>
tcc_status make_in_time(Fail fail, std::chrono::milliseconds patience, Make make,
                        void **out_group) {
    std::packaged_task<std::unique_ptr<Group>()> task(std::move(make));
    auto made = task.get_future();
    std::thread(std::move(task)).detach();
    if (made.wait_for(patience) != std::future_status::ready)
        return fail(TCC_TIMEOUT, "oneCCL: not all ranks of the group have come");
    *out_group = made.get().release();
    return TCC_OK;
}

tcc_status open_group(const tcc_comm_engine_host *host, void **out_group) {
    return guarded(host->fail, [&] {
        Store store;
        Address mine{};
        if (host->rank == 0) {
            store = ccl::create_main_kvs();
            mine = store->get_address();
        }
        std::vector<Address> all((size_t)host->size);
        tcc_status status = host->exchange(host, mine.data(), sizeof mine, all.data());
        if (status != TCC_OK) return status;
        Fail fail = host->fail;
        std::chrono::milliseconds patience(host->open_milliseconds);
        int32_t size = host->size, rank = host->rank;
        auto make = [=] {
            return make_group(fail, patience, size, rank, rank ? ccl::create_kvs(all[0]) : store);
        };
        return make_in_time(fail, patience, make, out_group);
    });
}

/* The first member makes the store at which all meet, and tells the others its address. */
tcc_status split(void *of, const int32_t *members, int32_t n, int32_t self, const char *,
                 void **out_group) {
    auto *parent = static_cast<Group *>(of);
    return guarded(parent->fail, [&] {
        std::vector<int32_t> ranks(members, members + n);
        auto make = [=] {
            Address address{};
            const ccl::communicator &way = parent->messages[0];
            if (self) {
                ccl::recv(address.data(), sizeof address, kByte, ranks[0], way).wait();
                return make_group(parent->fail, parent->patience, n, self,
                                  ccl::create_kvs(address));
            }
            Store store = ccl::create_main_kvs();
            address = store->get_address();
            std::vector<ccl::event> sent;
            for (int32_t i = 1; i < n; i++)
                sent.push_back(ccl::send(address.data(), sizeof address, kByte, ranks[i], way));
            for (ccl::event &event : sent) event.wait();
            return make_group(parent->fail, parent->patience, n, self, store);
        };
        return make_in_time(parent->fail, parent->patience, make, out_group);
    });
}

void close_group(void *of) { delete static_cast<Group *>(of); }

/* ---- operations ------------------------------------------------------------------------------ */

/* Begins the operation of which `body` returns the event. */
template <typename Body>
tcc_status begin(const Group *group, uintptr_t *out_request, Body body) {
    return guarded(group->fail, [&] {
        auto operation = std::make_unique<Operation>();
        operation->event = body(*operation);
        *out_request = reinterpret_cast<uintptr_t>(operation.release());
        return TCC_OK;
    });
}

tcc_status all_gather(void *of, void *data, const size_t *bytes, uintptr_t *out_request) {
    auto *group = static_cast<Group *>(of);
    return begin(group, out_request, [&](Operation &) {
        std::vector<size_t> counts(bytes, bytes + group->collectives.size());
        char *own = static_cast<char *>(data);
        for (int32_t i = 0; i < group->self; i++) own += counts[(size_t)i];
        return ccl::allgatherv(own, counts[(size_t)group->self], data, counts, kByte,
                               group->collectives);
    });
}

/* oneCCL sends what lies one behind another. */
const void *line_up(const void *send, const std::vector<size_t> &bytes, const size_t *places,
                    std::vector<char> &packed) {
    size_t end = 0;
    bool lined_up = true;
    for (size_t i = 0; i < bytes.size(); end += bytes[i++])
        lined_up = lined_up && (!bytes[i] || places[i] == end);
    if (lined_up) return send;
    packed.resize(end);
    char *to = packed.data();
    for (size_t i = 0; i < bytes.size(); to += bytes[i++])
        memcpy(to, static_cast<const char *>(send) + places[i], bytes[i]);
    return packed.data();
}

tcc_status all_to_all(void *of, const void *send, const size_t *send_bytes,
                      const size_t *send_places, void *receive, const size_t *receive_bytes,
                      uintptr_t *out_request) {
    auto *group = static_cast<Group *>(of);
    return begin(group, out_request, [&](Operation &operation) {
        size_t n = (size_t)group->collectives.size();
        std::vector<size_t> sent(send_bytes, send_bytes + n);
        const void *from = line_up(send, sent, send_places, operation.packed);
        return ccl::alltoallv(from, sent, receive, {receive_bytes, receive_bytes + n}, kByte,
                              group->collectives);
    });
}

tcc_status broadcast(void *of, void *data, size_t bytes, int32_t root, uintptr_t *out_request) {
    auto *group = static_cast<Group *>(of);
    return begin(group, out_request,
                 [&](Operation &) { return ccl::broadcast(data, bytes, kByte, root, group->collectives); });
}

/* Begins the first message of a line, and what follows it once it is done. */
void carry_on(Line &line) {
    for (; !line.empty(); line.pop_front()) {
        Operation *first = line.front();
        if (first->start) first->event = std::exchange(first->start, nullptr)();
        if (!first->event.test()) return;
        first->line = nullptr;
    }
}

tcc_status put_in_line(Group *group, bool sends, int32_t peer, int32_t tag,
                       std::function<ccl::event()> start, uintptr_t *out_request) {
    return guarded(group->fail, [&] {
        auto operation = std::make_unique<Operation>();
        Line &line = group->lines[{sends, tag, peer}];
        operation->line = &line;
        operation->start = std::move(start);
        line.push_back(operation.get());
        *out_request = reinterpret_cast<uintptr_t>(operation.release());
        carry_on(line);
        return TCC_OK;
    });
}

tcc_status send(void *of, const void *data, size_t bytes, int32_t peer, int32_t tag,
                uintptr_t *out_request) {
    auto *group = static_cast<Group *>(of);
    auto start = [=] {
        void *from = const_cast<void *>(data); /* it is only read */
        return ccl::send(from, bytes, kByte, peer, group->messages[tag - 1]);
    };
    return put_in_line(group, true, peer, tag, start, out_request);
}

tcc_status receive(void *of, void *data, size_t bytes, int32_t peer, int32_t tag,
                   uintptr_t *out_request) {
    auto *group = static_cast<Group *>(of);
    auto start = [=] { return ccl::recv(data, bytes, kByte, peer, group->messages[tag - 1]); };
    return put_in_line(group, false, peer, tag, start, out_request);
}

tcc_status test(void *of, uintptr_t *request, int32_t *out_done) {
    return guarded(static_cast<Group *>(of)->fail, [&] {
        auto *operation = reinterpret_cast<Operation *>(*request);
        if (operation->line) carry_on(*operation->line);
        *out_done = !operation->line && operation->event.test();
        if (*out_done) delete operation;
        return TCC_OK;
    });
}

tcc_comm_engine make_engine() {
    tcc_comm_engine made = {};
    made.struct_size = sizeof made;
    made.version = TCC_COMM_PLUGIN_VERSION;
    made.name = "oneccl";
    made.most_bytes = INT_MAX; /* MPI's counts, where oneCCL uses it */
    made.open = open_group;
    made.split = split;
    made.close = close_group;
    made.all_gather = all_gather;
    made.all_to_all = all_to_all;
    made.broadcast = broadcast;
    made.send = send;
    made.receive = receive;
    made.test = test;
    return made;
}

} // namespace

const tcc_comm_engine *tcc_comm_plugin_get(uint32_t version) {
    static const tcc_comm_engine engine = make_engine();
    return version == TCC_COMM_PLUGIN_VERSION ? &engine : nullptr;
}
