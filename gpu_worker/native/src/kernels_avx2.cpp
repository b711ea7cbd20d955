// The table of kernels for x86-64 with AVX2, FMA and F16C; compiled with those switched on.
#include "kernels.h"

#if !defined(__x86_64__)

const radixd::Kernels* radixd::avx2_kernels() { return nullptr; }

#else

#include <algorithm>

#include "avx2_attention.h"
#include "avx2_products.h"
#include "avx2_rows.h"

namespace radixd {
namespace avx2 {
namespace {

// Rows computed before the next panel: their inputs stay in the first-level cache.
constexpr int kRowBlock = 32;

struct Target {
  const Matrix& w;
  const Rows& x;
  float* y;
  size_t ldy;
  const uint8_t* panel(int p) const { return w.panels + size_t(p) * w.panel_bytes(); }
  float* out(int row, int p) const { return y + size_t(row) * ldy + size_t(p) * kPanel; }
};

template <int T>
int int4_rows(const Target& t, int p, int row, int end) {
  for (; row + T <= end; row += T) int4_tile<T>(t.panel(p), t.x, row, t.out(row, p), t.ldy);
  return row;
}

template <int T>
int int8_rows(const Target& t, int p, int row, int end) {
  for (; row + T <= end; row += T) int8_tile<T>(t.panel(p), t.x, row, t.out(row, p), t.ldy);
  return row;
}

template <int P, int T>
int float_rows(const Target& t, int p, int row, int end) {
  const float* panel = reinterpret_cast<const float*>(t.panel(p));
  const size_t floats = size_t(t.w.inputs) * kPanel;
  for (; row + T <= end; row += T)
    float_tile<P, T>(panel, floats, t.x, row, t.out(row, p), t.ldy);
  return row;
}

template <int P>
void float_panels(const Target& t, int p, int row, int end) {
  row = float_rows<P, 6>(t, p, row, end);
  row = float_rows<P, 4>(t, p, row, end);
  row = float_rows<P, 2>(t, p, row, end);
  float_rows<P, 1>(t, p, row, end);
}

void product(const Matrix& w, const Rows& x, float* y, size_t ldy, int begin, int end) {
  const Target t{w, x, y, ldy};
  for (int first = 0; first < x.count; first += kRowBlock) {
    const int last = std::min(x.count, first + kRowBlock);
    for (int p = begin; p < end; ++p) {
      if (w.format == Format::kInt4) {
        int row = int4_rows<6>(t, p, first, last);
        row = int4_rows<4>(t, p, row, last);
        row = int4_rows<2>(t, p, row, last);
        int4_rows<1>(t, p, row, last);
      } else if (w.format == Format::kInt8) {
        int row = int8_rows<4>(t, p, first, last);
        row = int8_rows<2>(t, p, row, last);
        int8_rows<1>(t, p, row, last);
      } else if (p + 2 <= end) {
        float_panels<2>(t, p++, first, last);
      } else {
        float_panels<1>(t, p, first, last);
      }
    }
  }
}

constexpr Kernels kTable = {
    "avx2",   product,   quantise,     rms_norm, add_rms_norm, silu_mul, rotate,
    attend,   merge,     finish,       to_int8,  from_int8,
};

}  // namespace
}  // namespace avx2

const Kernels* avx2_kernels() { return &avx2::kTable; }

}  // namespace radixd

#endif
