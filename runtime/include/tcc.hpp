/* tcc.hpp: the C++17 interface of a compiled model, over the functions of tcc.h.
 *
 *     #include "mlp.h"
 *     #include "tcc.hpp"
 *
 *     tcc::Model model(mlp_api());
 *     auto x = model.input<float>("x");
 *     auto y = model.output<float>("y");
 *     std::vector<float> values(784);
 *     auto results = model.run({x(values)});
 *     for (float score : y(results)) std::cout << score << '\n';
 *
 * Errors.  A function that can fail throws tcc::Error, which has the status and the message.  No
 * exception passes through C: one in a callback ends the run, which throws it again.
 *
 * Ownership.  A Tensor views memory of the caller.  An Array owns its memory, but for one of an output
 * that updates an input in place, which views the input.  Ports, instances and copies of a model keep
 * the model loaded.
 *
 * Threads.  As in tcc.h: a Model may be used from any thread, an Instance serves one run at a time.
 */
#ifndef TCC_HPP
#define TCC_HPP

/* The header of a model holds the text of tcc.h. */
#ifndef TCC_H
#include "tcc.h"
#endif

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tcc {

/* A failed call: `status` is never TCC_OK, `what` is the reason. */
class Error : public std::runtime_error {
public:
    Error(tcc_status status, const std::string &message) : std::runtime_error(message), status_(status) {}
    tcc_status status() const noexcept { return status_; }

private:
    tcc_status status_;
};

/* `size` values in a row, which somebody else owns: std::span, which C++17 lacks. */
template <class T> class Span {
public:
    constexpr Span() noexcept = default;
    constexpr Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    /* Views a std::vector, std::array, std::string_view, std::span or another Span. */
    template <class Container,
              class = std::enable_if_t<std::is_convertible_v<
                  std::remove_pointer_t<decltype(std::declval<Container &>().data())> (*)[], T (*)[]>>>
    constexpr Span(Container &&values) noexcept : data_(values.data()), size_(values.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t index) const noexcept { return data_[index]; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

inline bool same_type(tcc_dtype a, tcc_dtype b) noexcept {
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

/* Returns a type's name, as in "f32", or the code and bits of DLPack. */
inline std::string type_text(tcc_dtype type) {
    if (type.code < 3) return "iuf"[type.code] + std::to_string(type.bits);
    if (same_type(type, TCC_BOOL)) return "bool";
    if (same_type(type, TCC_BF16)) return "bf16";
    if (same_type(type, TCC_STRING)) return "string";
    return "code " + std::to_string(type.code) + " with " + std::to_string(type.bits) + " bits";
}

/* The element type of a C++ type.  A program may specialise it for types of its own, such as a
 * 16-bit float: `template <> struct tcc::Element<half> { static constexpr tcc_dtype type = TCC_F16; };` */
template <class T, class = void> struct Element;

template <class T> struct Element<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
    static constexpr tcc_dtype type =
        TCC_DTYPE(std::uint8_t{std::is_unsigned_v<T>}, std::uint8_t{8 * sizeof(T)});
};
template <> struct Element<bool> { static constexpr tcc_dtype type = TCC_BOOL; };
template <> struct Element<float> { static constexpr tcc_dtype type = TCC_F32; };
template <> struct Element<double> { static constexpr tcc_dtype type = TCC_F64; };
template <> struct Element<tcc_string> { static constexpr tcc_dtype type = TCC_STRING; };
template <> struct Element<const tcc_list *> { static constexpr tcc_dtype type = TCC_LIST; };

/* Returns the number of elements of a shape.  Throws Error for a negative size, and for more elements
 * than an int64_t counts. */
inline std::int64_t element_count(Span<const std::int64_t> shape) {
    std::int64_t count = 1;
    bool none = false;
    for (std::int64_t size : shape) {
        if (size < 0) throw Error(TCC_INVALID_ARGUMENT, "a shape has the size " + std::to_string(size));
        none = none || size == 0;
    }
    for (std::int64_t size : shape) {
        if (none) return 0;
        if (size > INT64_MAX / count) throw Error(TCC_INVALID_ARGUMENT, "a shape has too many elements");
        count *= size;
    }
    return count;
}

/* A row-major array in memory of the caller, with its shape. */
class Tensor {
public:
    /* Views memory of any type on any device; the caller answers for its size. */
    Tensor(void *data, tcc_dtype type, std::vector<std::int64_t> shape, tcc_device device = {TCC_CPU, 0})
        : data_(data), type_(type), device_(device), shape_(std::move(shape)) {}

    tcc_dtype type() const noexcept { return type_; }
    Span<const std::int64_t> shape() const noexcept { return shape_; }
    void *data() const noexcept { return data_; }
    tcc_device device() const noexcept { return device_; }

    /* Returns the struct of C, valid while this object lives and stays in place. */
    tcc_tensor c_tensor() const noexcept {
        return {data_, device_, static_cast<std::int32_t>(shape_.size()), type_,
                const_cast<std::int64_t *>(shape_.data()), nullptr, 0};
    }

private:
    void *data_;
    tcc_dtype type_;
    tcc_device device_;
    std::vector<std::int64_t> shape_;
};

/* Views `values` as an array of `shape`.  Throws Error where their number is not the shape's. */
template <class T> Tensor tensor(Span<T> values, std::vector<std::int64_t> shape) {
    std::int64_t count = element_count(shape);
    if (static_cast<std::uint64_t>(count) != values.size())
        throw Error(TCC_INVALID_ARGUMENT, "the shape has " + std::to_string(count) + " elements, and there are " +
                                              std::to_string(values.size()) + " values");
    using Plain = std::remove_const_t<T>;
    return Tensor(const_cast<Plain *>(values.data()), Element<Plain>::type, std::move(shape));
}

namespace detail {
class Results;
}

/* The result of a run: an array, or an array of strings, or a list. */
class Array {
public:
    Array() noexcept = default;

    tcc_dtype type() const noexcept { return type_; }
    Span<const std::int64_t> shape() const noexcept { return shape_; }
    /* Returns the raw memory; it is NULL for an array without elements. */
    void *data() const noexcept { return data_; }

    /* Returns the elements.  Throws Error where they are not of type T. */
    template <class T> Span<T> values() const {
        tcc_dtype wanted = Element<std::remove_const_t<T>>::type;
        if (!same_type(type_, wanted))
            throw Error(TCC_INVALID_ARGUMENT,
                        "the array has elements of " + type_text(type_) + ", not of " + type_text(wanted));
        return Span<T>(static_cast<T *>(data_), static_cast<std::size_t>(element_count(shape_)));
    }

    /* Views the array as an input of another run. */
    Tensor tensor() const { return Tensor(data_, type_, shape_); }

private:
    friend class detail::Results;
    struct Release {
        void operator()(void *memory) const noexcept { ::operator delete(memory, std::align_val_t{64}); }
    };

    std::unique_ptr<void, Release> memory_;
    void *data_ = nullptr;
    tcc_dtype type_ = TCC_U8;
    std::vector<std::int64_t> shape_;
};

/* An input or output of a model, as its table describes it.  A size in `shape` that only a run knows
 * is -1. */
struct Port {
    std::string_view name;
    tcc_dtype type;
    Span<const std::int64_t> shape;
    std::string_view text;
    std::int32_t state;
};

namespace detail {

/* The allocator of one run: it gives an Array for each output. */
class Results {
public:
    Results(const std::vector<Port> &ports, Span<const Tensor> inputs) : ports_(ports), arrays_(ports.size()) {
        for (std::size_t n = 0; n < ports.size(); n++) {
            if (ports[n].state < 0 || static_cast<std::size_t>(ports[n].state) >= inputs.size()) continue;
            const Tensor &input = inputs[static_cast<std::size_t>(ports[n].state)];
            arrays_[n].data_ = input.data(), arrays_[n].type_ = input.type();
            arrays_[n].shape_.assign(input.shape().begin(), input.shape().end());
        }
    }

    tcc_allocator allocator() noexcept { return {this, &Results::allocate}; }

    /* Throws what the allocator caught. */
    void rethrow() const {
        if (caught_) std::rethrow_exception(caught_);
    }

    /* Returns the arrays of a run that did not fail. */
    std::vector<Array> take() {
        for (std::size_t n = 0; n < ports_.size(); n++)
            if (ports_[n].type.code == TCC_OPAQUE) unpack(arrays_[n]);
        return std::move(arrays_);
    }

private:
    static int allocate(void *context, std::int32_t output, const tcc_tensor *wanted, void **out_data) noexcept {
        auto *self = static_cast<Results *>(context);
        try {
            *out_data = self->add(self->arrays_.at(static_cast<std::size_t>(output)), *wanted);
            return 0;
        } catch (...) {
            self->caught_ = std::current_exception();
            return 1;
        }
    }

    static void *add(Array &array, const tcc_tensor &wanted) {
        if (wanted.device.type != TCC_CPU)
            throw Error(TCC_UNSUPPORTED, "the result would lie on a GPU: give an array for each output");
        array.type_ = wanted.dtype;
        array.shape_.assign(wanted.shape, wanted.shape + wanted.ndim);
        std::int64_t count = element_count(array.shape_), bits = wanted.dtype.bits;
        if (count > (INT64_MAX - 7) / bits) throw std::bad_alloc();
        std::size_t bytes = static_cast<std::size_t>((count * bits + 7) / 8);
        array.memory_.reset(::operator new(bytes ? bytes : 1, std::align_val_t{64}));
        return array.data_ = array.memory_.get();
    }

    /* Makes an array of strings, or a list, of the bytes that the run wrote: its descriptor comes first. */
    static void unpack(Array &array) {
        const auto *tensor = static_cast<const tcc_tensor *>(array.data_);
        if (!tensor || !array.memory_) return;
        array.type_ = tensor->dtype;
        array.shape_.assign(tensor->shape, tensor->shape + tensor->ndim);
        array.data_ = static_cast<char *>(tensor->data) + tensor->byte_offset;
    }

    const std::vector<Port> &ports_;
    std::vector<Array> arrays_;
    std::exception_ptr caught_;
};

inline void check(const tcc_api *api, tcc_status status) {
    if (status != TCC_OK) throw Error(status, api->last_error());
}

/* A loaded model: its table and ports.  Copies of Model, ports and instances share it. */
struct Loaded {
    explicit Loaded(const tcc_api *table) : api(table) {
        if (!api || api->version != TCC_API_VERSION)
            throw Error(TCC_UNSUPPORTED, "the model has another version of the interface than tcc.hpp");
        check(api, api->model_get(&model));
        try {
            read(inputs, api->input_count, api->input_port);
            read(outputs, api->output_count, api->output_port);
        } catch (...) {
            api->model_release(model);
            throw;
        }
    }
    ~Loaded() { api->model_release(model); }
    Loaded(const Loaded &) = delete;
    Loaded &operator=(const Loaded &) = delete;

    void read(std::vector<Port> &ports, std::int32_t (*count)(const tcc_model *),
              tcc_status (*describe)(const tcc_model *, std::int32_t, tcc_port *)) const {
        for (std::int32_t n = 0; n < count(model); n++) {
            tcc_port port{};
            check(api, describe(model, n, &port));
            ports.push_back({port.name, port.dtype,
                             Span<const std::int64_t>(port.shape, static_cast<std::size_t>(port.ndim)), port.text,
                             port.state});
        }
    }

    const tcc_api *api;
    tcc_model *model = nullptr;
    std::vector<Port> inputs, outputs;
};

inline std::vector<tcc_tensor> c_tensors(Span<const Tensor> tensors) {
    std::vector<tcc_tensor> structs;
    for (const Tensor &tensor : tensors) structs.push_back(tensor.c_tensor());
    return structs;
}

/* Returns the index of the port `name`, whose elements must be of `type`. */
inline std::size_t find(const std::vector<Port> &ports, std::string_view name, tcc_dtype type) {
    std::string names;
    for (std::size_t n = 0; n < ports.size(); n++) {
        if (ports[n].name != name) {
            names += (names.empty() ? "" : ", ") + std::string(ports[n].name);
        } else if (same_type(ports[n].type, type)) {
            return n;
        } else {
            throw Error(TCC_INVALID_ARGUMENT, std::string(name) + " has elements of " + type_text(ports[n].type) +
                                                  ", not of " + type_text(type));
        }
    }
    throw Error(TCC_INVALID_ARGUMENT, "no port has the name " + std::string(name) + "; there are: " + names);
}

/* Calls `function`, which is `run` or `call` of the table.  Without `outputs` it returns an Array for each
 * output. */
template <class Function>
std::vector<Array> run(const Loaded &loaded, Function function, Span<const Tensor> inputs,
                       Span<const Tensor> outputs, void *stream) {
    Results results(loaded.outputs, inputs);
    tcc_allocator allocator = results.allocator();
    std::vector<tcc_tensor> in = c_tensors(inputs), out = c_tensors(outputs);
    tcc_status status =
        function(in.data(), static_cast<std::int32_t>(in.size()), out.data(), static_cast<std::int32_t>(out.size()),
                 out.empty() ? &allocator : nullptr, stream);
    if (status != TCC_OK) results.rethrow();
    check(loaded.api, status);
    return outputs.empty() ? results.take() : std::vector<Array>();
}

} // namespace detail

/* An input with elements of type T, whose name and type are checked once. */
template <class T> class InputPort {
public:
    InputPort(std::shared_ptr<const detail::Loaded> loaded, std::size_t index)
        : loaded_(std::move(loaded)), index_(index) {}
    std::size_t index() const noexcept { return index_; }
    const Port &port() const noexcept { return loaded_->inputs[index_]; }

    /* Views `values` as this input.  Its sizes must be fixed: else give the shape. */
    Tensor operator()(Span<const T> values) const {
        return (*this)(values, {port().shape.begin(), port().shape.end()});
    }
    /* Views `values` as this input, with `shape`.  Throws Error where their number is not the shape's. */
    Tensor operator()(Span<const T> values, std::vector<std::int64_t> shape) const {
        try {
            return tensor(values, std::move(shape));
        } catch (const Error &error) {
            throw Error(error.status(), "input " + std::string(port().name) + " " + std::string(port().text) + ": " +
                                            error.what());
        }
    }

private:
    std::shared_ptr<const detail::Loaded> loaded_;
    std::size_t index_;
};

/* An output with elements of type T, whose name and type are checked once. */
template <class T> class OutputPort {
public:
    OutputPort(std::shared_ptr<const detail::Loaded> loaded, std::size_t index)
        : loaded_(std::move(loaded)), index_(index) {}
    std::size_t index() const noexcept { return index_; }
    const Port &port() const noexcept { return loaded_->outputs[index_]; }

    /* Returns this output's array, and its elements, among the results of a run. */
    const Array &array(const std::vector<Array> &results) const { return results.at(index_); }
    Span<const T> operator()(const std::vector<Array> &results) const { return array(results).template values<const T>(); }
    Span<const T> operator()(std::vector<Array> &&) const = delete; /* the values would be gone */

private:
    std::shared_ptr<const detail::Loaded> loaded_;
    std::size_t index_;
};

class Instance;

/* A loaded model. */
class Model {
public:
    /* Loads the model of a table, as in Model(mlp_api()).  Throws Error. */
    explicit Model(const tcc_api *api) : loaded_(std::make_shared<const detail::Loaded>(api)) {}

    const tcc_api *api() const noexcept { return loaded_->api; }
    tcc_model *c_model() const noexcept { return loaded_->model; }
    const std::vector<Port> &inputs() const noexcept { return loaded_->inputs; }
    const std::vector<Port> &outputs() const noexcept { return loaded_->outputs; }
    std::string_view manifest() const {
        std::size_t size = 0;
        const char *text = api()->manifest(&size);
        return {text, size};
    }
    /* Returns a file that the artifact holds beside the model, as in "tokenizer.json"; its bytes live until
     * the process ends.  Throws Error where there is none of this name, or where it is damaged. */
    std::string_view asset(const std::string &name) const {
        const char *data = nullptr;
        std::size_t size = 0;
        if (api()->struct_size < offsetof(tcc_api, model_asset) + sizeof api()->model_asset)
            throw Error(TCC_UNSUPPORTED, "the model is older than assets: compile it again");
        detail::check(api(), api()->model_asset(name.c_str(), &data, &size));
        return {data, size};
    }

    /* Returns the input or output of this name.  Throws Error where there is none, or where its elements
     * are not of type T. */
    template <class T> InputPort<T> input(std::string_view name) const {
        return {loaded_, detail::find(inputs(), name, Element<T>::type)};
    }
    template <class T> OutputPort<T> output(std::string_view name) const {
        return {loaded_, detail::find(outputs(), name, Element<T>::type)};
    }

    /* Threads of later runs; 0 is the default. */
    void set_threads(std::int32_t threads) { detail::check(api(), api()->model_set_threads(c_model(), threads)); }

    /* Runs the model, from any thread.  `inputs` are in the order of the ports.  Returns an Array for
     * each output. */
    std::vector<Array> run(Span<const Tensor> inputs) const { return call(inputs, {}, nullptr); }
    std::vector<Array> run(std::initializer_list<Tensor> inputs) const { return run(listed(inputs)); }
    /* The same into arrays of the caller, all outputs in the order of the ports; `stream` as in tcc.h. */
    void run(Span<const Tensor> inputs, Span<const Tensor> outputs, void *stream = nullptr) const {
        call(inputs, outputs, stream);
    }
    void run(std::initializer_list<Tensor> inputs, std::initializer_list<Tensor> outputs,
             void *stream = nullptr) const {
        run(listed(inputs), listed(outputs), stream);
    }

private:
    friend class Instance;
    static Span<const Tensor> listed(std::initializer_list<Tensor> tensors) noexcept {
        return {tensors.begin(), tensors.size()};
    }
    std::vector<Array> call(Span<const Tensor> inputs, Span<const Tensor> outputs, void *stream) const {
        auto function = [this](auto... arguments) { return api()->call(c_model(), arguments...); };
        return detail::run(*loaded_, function, inputs, outputs, stream);
    }

    std::shared_ptr<const detail::Loaded> loaded_;
};

/* A model's memory for one run at a time. */
class Instance {
public:
    /* `flags` as in tcc.h: TCC_POISON, TCC_TIMES.  Throws Error. */
    explicit Instance(const Model &model, std::uint32_t flags = 0) : model_(model) {
        tcc_instance *instance = nullptr;
        detail::check(model.api(), model.api()->instance_create(model.c_model(), flags, &instance));
        instance_ = {instance, Destroy{model.api()}};
    }

    tcc_instance *c_instance() const noexcept { return instance_.get(); }
    const Model &model() const noexcept { return model_; }
    void set_threads(std::int32_t threads) {
        detail::check(model_.api(), model_.api()->instance_set_threads(c_instance(), threads));
    }
    void seed(std::uint64_t seed) { detail::check(model_.api(), model_.api()->instance_seed(c_instance(), seed)); }

    /* As the functions of Model, with this instance's memory. */
    std::vector<Array> run(Span<const Tensor> inputs) { return call(inputs, {}, nullptr); }
    std::vector<Array> run(std::initializer_list<Tensor> inputs) { return run(Model::listed(inputs)); }
    void run(Span<const Tensor> inputs, Span<const Tensor> outputs, void *stream = nullptr) {
        call(inputs, outputs, stream);
    }
    void run(std::initializer_list<Tensor> inputs, std::initializer_list<Tensor> outputs,
             void *stream = nullptr) {
        run(Model::listed(inputs), Model::listed(outputs), stream);
    }

private:
    struct Destroy {
        const tcc_api *api;
        void operator()(tcc_instance *instance) const noexcept { api->instance_destroy(instance); }
    };
    std::vector<Array> call(Span<const Tensor> inputs, Span<const Tensor> outputs, void *stream) {
        auto function = [this](auto... arguments) { return model_.api()->run(c_instance(), arguments...); };
        return detail::run(*model_.loaded_, function, inputs, outputs, stream);
    }

    Model model_;
    std::unique_ptr<tcc_instance, Destroy> instance_{nullptr, Destroy{nullptr}};
};

} // namespace tcc

#endif
