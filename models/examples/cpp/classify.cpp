/* Classifies rows of numbers: prints the class and the scores of each row of a file of float32.
 *
 *   tcc compile classifier.onnx --package package   # x: f32[rows, columns] to y: f32[rows, classes]
 *   make install PACKAGE=package PREFIX=app
 *   app/bin/classify rows.bin
 *
 * CMakeLists.txt builds and installs the same.  The folder app may move. */
#include <algorithm>
#include <fstream>
#include <iostream>

#include "classifier/classifier.h"
#include "tcc.hpp"

static std::vector<float> read_floats(const char *path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) throw std::runtime_error(std::string(path) + " cannot be read");
    std::vector<float> values(static_cast<std::size_t>(file.tellg()) / sizeof(float));
    file.seekg(0);
    file.read(reinterpret_cast<char *>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(float)));
    return values;
}

int main(int argc, char **argv) {
    if (argc != 2) return std::cerr << "usage: classify FILE\n", 2;
    try {
        tcc::Model model(classifier_api());
        auto x = model.input<float>("x");
        auto y = model.output<float>("y");
        std::vector<float> values = read_floats(argv[1]);
        auto columns = x.port().shape[1];
        auto rows = static_cast<std::int64_t>(values.size()) / columns;
        auto results = model.run({x(values, {rows, columns})});
        auto classes = y.array(results).shape()[1];
        for (std::int64_t row = 0; row < rows; row++) {
            const float *scores = y(results).data() + row * classes;
            std::cout << std::max_element(scores, scores + classes) - scores << ':';
            std::for_each(scores, scores + classes, [](float score) { std::cout << ' ' << score; });
            std::cout << '\n';
        }
    } catch (const tcc::Error &error) {
        return std::cerr << "error " << error.status() << ": " << error.what() << '\n', 1;
    } catch (const std::exception &error) {
        return std::cerr << "error: " << error.what() << '\n', 1;
    }
    return 0;
}
