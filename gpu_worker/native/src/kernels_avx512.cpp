// The table of kernels for x86-64 with AVX-512 (F, BW, DQ, VL, VNNI); compiled with those switched on.
#include "kernels.h"

#if !defined(__AVX512VNNI__)

const radixd::Kernels* radixd::avx512_kernels() { return nullptr; }

#else

#include "avx512_attention.h"
#include "avx512_products.h"
#include "avx512_rows.h"

namespace radixd {
namespace avx512 {
namespace {

// Rows computed before the next panels: their inputs stay in the second-level cache.
constexpr int kRowBlock = 96;

struct Target {
  const Matrix& w;
  const Rows& x;
  float* y;
  size_t ldy;
  int end;  // of the panels
  Pair pair(int p) const {
    const uint8_t* a = w.panels + size_t(p) * w.panel_bytes();
    return p + 1 < end ? Pair{a, a + w.panel_bytes(), 0xffff} : Pair{a, a, 0x00ff};
  }
  float* out(int row, int p) const { return y + size_t(row) * ldy + size_t(p) * kPanel; }
};

template <int T>
int int4_rows(const Target& t, int p, int row, int end) {
  for (; row + T <= end; row += T) int4_tile<T>(t.pair(p), t.x, row, t.out(row, p), t.ldy);
  return row;
}

template <int T>
int int8_rows(const Target& t, int p, int row, int end) {
  for (; row + T <= end; row += T) int8_tile<T>(t.pair(p), t.x, row, t.out(row, p), t.ldy);
  return row;
}

template <int P, int T>
int float_rows(const Target& t, int p, int row, int end) {
  Pair pairs[P];
  for (int i = 0; i < P; ++i) pairs[i] = t.pair(p + 2 * i);
  for (; row + T <= end; row += T) float_tile<P, T>(pairs, t.x, row, t.out(row, p), t.ldy);
  return row;
}

template <int P>
void float_panels(const Target& t, int p, int row, int end) {
  row = float_rows<P, 12>(t, p, row, end);
  row = float_rows<P, 8>(t, p, row, end);
  row = float_rows<P, 4>(t, p, row, end);
  row = float_rows<P, 2>(t, p, row, end);
  float_rows<P, 1>(t, p, row, end);
}

void int4_panels(const Target& t, int p, int row, int end) {
  row = int4_rows<16>(t, p, row, end);
  row = int4_rows<8>(t, p, row, end);
  row = int4_rows<4>(t, p, row, end);
  row = int4_rows<2>(t, p, row, end);
  int4_rows<1>(t, p, row, end);
}

void int8_panels(const Target& t, int p, int row, int end) {
  row = int8_rows<12>(t, p, row, end);
  row = int8_rows<8>(t, p, row, end);
  row = int8_rows<4>(t, p, row, end);
  row = int8_rows<2>(t, p, row, end);
  int8_rows<1>(t, p, row, end);
}

void product(const Matrix& w, const Rows& x, float* y, size_t ldy, int begin, int end) {
  const Target t{w, x, y, ldy, end};
  for (int first = 0; first < x.count; first += kRowBlock) {
    const int last = x.count < first + kRowBlock ? x.count : first + kRowBlock;
    for (int p = begin; p < end; p += 2) {
      if (w.format == Format::kInt4) {
        int4_panels(t, p, first, last);
      } else if (w.format == Format::kInt8) {
        int8_panels(t, p, first, last);
      } else if (p + 2 < end) {
        float_panels<2>(t, p, first, last);
        p += 2;
      } else {
        float_panels<1>(t, p, first, last);
      }
    }
  }
}

}  // namespace
}  // namespace avx512

const Kernels* avx512_kernels() {
  static const Kernels table = [] {
    Kernels t = *avx2_kernels();
    t.name = "avx512";
    t.product = avx512::product;
    t.quantise = avx512::quantise;
    t.rms_norm = avx512::rms_norm;
    t.add_rms_norm = avx512::add_rms_norm;
    t.silu_mul = avx512::silu_mul;
    t.attend = avx512::attend;
    return t;
  }();
  return &table;
}

}  // namespace radixd

#endif
