// What this machine gives the kernels at most: the roofline that figures are held against.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "api.h"
#include "guard.h"
#include "kernels.h"

namespace radixd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSeconds = 0.4;  // each thread measures so long
constexpr size_t kWordsAtOnce = 32;

using Work = std::function<double()>;  // does something, and says how much it did

// Work done a second by all together, each on a thread of its own.
double rate(const std::vector<Work>& works) {
  std::vector<double> rates(works.size());
  std::vector<std::thread> threads;
  std::atomic<size_t> num_ready{0};
  for (size_t i = 0; i < works.size(); ++i) {
    threads.emplace_back([&, i] {
      works[i]();  // caches are warm, and the clock is up
      ++num_ready;
      while (num_ready < works.size()) std::this_thread::yield();
      double done = 0, seconds = 0;
      for (const auto start = Clock::now(); seconds < kSeconds;) {
        done += works[i]();
        seconds = std::chrono::duration<double>(Clock::now() - start).count();
      }
      rates[i] = done / seconds;
    });
  }
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (const double mine : rates) sum += mine;
  return sum;
}

// Several sums at once, or each addition would wait for the one before.
uint64_t read_all(const uint64_t* words, size_t count) {
  uint64_t sums[kWordsAtOnce] = {};
  for (size_t i = 0; i + kWordsAtOnce <= count; i += kWordsAtOnce)
    for (size_t j = 0; j < kWordsAtOnce; ++j) sums[j] ^= words[i + j];
  uint64_t all = 0;
  for (const uint64_t sum : sums) all ^= sum;
  return all;
}

// A matrix of small weights and rows of inputs for it.
struct Product {
  Product(const Kernels& kernels, Format format, int rows, int outputs, int inputs)
      : kernels(kernels), rows(rows), matrix{format, outputs, inputs, nullptr},
        panels(matrix.num_panels() * matrix.panel_bytes()), values(size_t(rows) * inputs, 0.5f),
        quants(size_t(rows) * inputs), scales(values.size() / kGroup), sums(scales.size()),
        out(size_t(rows) * matrix.num_panels() * kPanel) {
    matrix.panels = panels.data();
    if (format == Format::kFloat32) return;
    for (int row = 0; row < rows; ++row) {
      const size_t at = size_t(row) * inputs;
      void* to = format == Format::kInt4 ? static_cast<void*>(bytes() + at) : &quants[at];
      kernels.quantise(format, &values[at], inputs, to, &scales[at / kGroup], &sums[at / kGroup]);
    }
  }

  int8_t* bytes() { return reinterpret_cast<int8_t*>(quants.data()); }

  double run() {
    const Rows x{rows, matrix.inputs, values.data(), quants.data(), scales.data(), sums.data()};
    const int num_panels = matrix.num_panels();
    kernels.product(matrix, x, out.data(), size_t(num_panels) * kPanel, 0, num_panels);
    return double(rows) * matrix.outputs * matrix.inputs;
  }

  const Kernels& kernels;
  int rows;
  Matrix matrix;
  std::vector<uint8_t> panels;
  std::vector<float> values;
  std::vector<int16_t> quants;
  std::vector<float> scales, sums, out;
};

}  // namespace
}  // namespace radixd

using namespace radixd;

double radixd_memory_rate(size_t num_bytes, int num_threads) {
  return guarded(0.0, [&] {
    const size_t share = num_bytes / num_threads / sizeof(uint64_t);
    std::vector<Work> works;
    for (int i = 0; i < num_threads; ++i) {
      // Not zero: pages of zeros might all be the same one.
      auto words = std::make_shared<std::vector<uint64_t>>(share, 1);
      works.push_back([words] {
        const uint64_t sum = read_all(words->data(), words->size());
        asm volatile("" : : "r"(sum));  // or nothing would have to be read
        return double(words->size() * sizeof(uint64_t));
      });
    }
    return rate(works);
  });
}

double radixd_product_rate(int format, int rows, int outputs, int inputs, int num_threads) {
  return guarded(0.0, [&] {
    std::vector<Work> works;
    for (int i = 0; i < num_threads; ++i) {
      auto product =
          std::make_shared<Product>(*best_kernels(), Format(format), rows, outputs, inputs);
      works.push_back([product] { return product->run(); });
    }
    return rate(works);
  });
}
