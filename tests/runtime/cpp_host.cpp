/* A program with four artifacts, which prints a line for each thing that it tried. */
#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <thread>

#include "mini.h"
#include "second.h"
#include "updating.h"
#include "words.h"

#include "tcc.hpp"

#if __cplusplus >= 202002L
#include <span>
static_assert(std::is_constructible_v<tcc::Span<const float>, std::span<float>>);
#endif
static_assert(!std::is_constructible_v<tcc::Span<float>, const std::vector<float> &>, "a span keeps const");
static_assert(!std::is_constructible_v<tcc::Span<double>, std::vector<float> &>, "a span keeps the type");
static_assert(!std::is_copy_constructible_v<tcc::Array> && std::is_nothrow_move_constructible_v<tcc::Array>);

/* Memory of results, which can be made to fail. */
static bool no_memory = false;
void *operator new(std::size_t size, std::align_val_t align) {
    auto step = static_cast<std::size_t>(align);
    void *memory = no_memory ? nullptr : std::aligned_alloc(step, (size + step - 1) / step * step);
    if (!memory) throw std::bad_alloc();
    return memory;
}
void operator delete(void *memory, std::align_val_t) noexcept { std::free(memory); }

template <class Values> static void print(const char *name, const Values &values) {
    std::cout << name;
    for (const auto &value : values) std::cout << ' ' << value;
    std::cout << '\n';
}

/* Prints the status and the message of the Error that `action` throws. */
static void refused(const char *name, const std::function<void()> &action) {
    try {
        action();
        std::cout << name << " nothing\n";
    } catch (const tcc::Error &error) {
        std::cout << name << ' ' << error.status() << ' ' << error.what() << '\n';
    }
}

static void run_two_models() {
    tcc::Model mini(mini_api()), second(second_api());
    auto x = mini.input<float>("x");
    auto y = mini.output<float>("y"), twice = second.output<float>("y");
    std::vector<float> values{-1, 2, 3};
    auto results = mini.run({x(values, {3})});
    print("mini", y(results));
    print("shape", y.array(results).shape());
    auto doubled = second.run({results[0].tensor()});
    print("second", twice(doubled));
    tcc::Instance instance(mini, TCC_POISON);
    instance.set_threads(1);
    auto again = instance.run({x(values, {3})});
    print("instance", y(again));
    std::array<float, 3> room{};
    instance.run({x(values, {3})}, {tcc::tensor<float>(room, {3})});
    print("room", room);
    auto none = mini.run({x({}, {0})});
    std::cout << "none " << y(none).size() << '\n';
    std::cout << "port " << x.port().name << ' ' << x.port().text << ' ' << x.port().shape[0] << '\n';
    std::cout << "note " << mini.asset("note") << '\n';
    std::cout << "manifest " << mini.manifest().front() << mini.manifest().back() << '\n';
}

static void run_the_others() {
    tcc::Model updating(updating_api()), words(words_api());
    std::vector<float> state{1, 2, 3, 4}, more(4);
    auto results = updating.run({updating.input<float>("x")(state), updating.input<float>("y")(more)});
    print("state", state);
    std::cout << "address " << (results[0].data() == state.data()) << '\n';
    std::vector<tcc_string> texts{{"a", 1}, {nullptr, 0}, {"bc", 2}};
    auto strings = words.run({words.input<tcc_string>("s")(texts)});
    auto moved = std::move(strings);
    std::cout << "words";
    for (const tcc_string &text : words.output<tcc_string>("y")(moved))
        std::cout << ' ' << std::string_view(text.data, static_cast<std::size_t>(text.size));
    std::cout << '\n';
}

static void fail() {
    tcc::Model mini(mini_api()), updating(updating_api());
    auto x = mini.input<float>("x");
    std::vector<float> values(65), state(4);
    refused("long", [&] { mini.run({x(values, {65})}); });
    refused("count", [&] { updating.input<float>("x")(values); });
    refused("open", [&] { x(values); });
    refused("huge", [&] { x(values, {INT64_MAX, 3}); });
    refused("type", [&] { mini.input<double>("x"); });
    refused("name", [&] { mini.output<float>("z"); });
    refused("inputs", [&] { mini.run(tcc::Span<const tcc::Tensor>()); });
    refused("element", [&] { mini.run({tcc::tensor<float>(state, {4})})[0].values<std::int32_t>(); });
    refused("missing", [&] { mini.run({x(state, {4})}, {tcc::Tensor(nullptr, TCC_F32, {4})}); });
    refused("other", [&] { mini.asset("other"); });
    refused("negative", [&] { mini.set_threads(-1); });
    no_memory = true;
    try {
        mini.run({x(state, {4})});
    } catch (const std::bad_alloc &) {
        std::cout << "memory bad_alloc\n";
    }
    no_memory = false;
    refused("table", [] { tcc::Model model(nullptr); });
}

/* A thread with an instance each, which outlives the caller's model. */
static void run_on_threads() {
    std::vector<std::thread> threads;
    std::vector<float> sums(4);
    {
        tcc::Model mini(mini_api());
        for (float &sum : sums)
            threads.emplace_back([&sum, instance = tcc::Instance(mini)]() mutable {
                std::vector<float> values{1, 2};
                auto x = instance.model().input<float>("x");
                for (int n = 0; n < 20; n++) {
                    auto results = instance.run({x(values, {2})});
                    for (float value : results[0].values<float>()) sum += value;
                }
            });
    }
    for (std::thread &thread : threads) thread.join();
    print("threads", sums);
}

int main() {
    run_two_models();
    run_the_others();
    fail();
    run_on_threads();
    return 0;
}
