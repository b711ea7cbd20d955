// What every instruction set shares: tiles whose size is known to the compiler, and exp.
//
// The algorithms are templates over a struct V, which says what one instruction set does with a vector
// of kWidth floats; plus, minus, times and divided by are the compiler's own.  All of it lies in
// namespaces without a name: of an inline function that two files have, the linker keeps one copy, and
// one compiled for AVX-512 would stop a processor without.
#pragma once

#include <type_traits>
#include <utility>

// GCC leaves long loops over registers alone, and what they hold in memory.
#define UNROLL _Pragma("GCC unroll 16")
// A tile is a function of its own: in one with all of them GCC runs out of registers for its addresses.
#define ALONE __attribute__((noinline))

namespace radixd {
namespace {

template <int... N>
using Tiles = std::integer_sequence<int, N...>;

// Covers [begin, end) with tiles of N rows each, as many of the first size as fit, then of the next;
// the last size is 1.  Calls tile(N, row) with N as a type.
template <int... N, class Tile>
inline void in_tiles(Tiles<N...>, int begin, int end, const Tile& tile) {
  const auto of_size = [&](auto size) {
    for (; begin + size.value <= end; begin += size.value) tile(size, begin);
  };
  (of_size(std::integral_constant<int, N>{}), ...);
}

// exp to about 1e-7 relative on [-87, 88]; below it, exp(-87).  Cody and Waite's reduction and the
// polynomial of the Cephes library (Moshier, 1992).
template <class V>
inline typename V::Vec exp(typename V::Vec x) {
  using Vec = typename V::Vec;
  // In this order of operands NaN stays NaN.
  x = V::min(V::all(88.0f), V::max(V::all(-87.0f), x));
  const Vec n = V::nearest(x * V::all(1.44269504f));
  Vec r = V::fma(n, V::all(-0.693359375f), x);
  r = V::fma(n, V::all(2.12194440e-4f), r);
  Vec p = V::all(1.9875691500e-4f);
  p = V::fma(p, r, V::all(1.3981999507e-3f));
  p = V::fma(p, r, V::all(8.3334519073e-3f));
  p = V::fma(p, r, V::all(4.1665795894e-2f));
  p = V::fma(p, r, V::all(1.6666665459e-1f));
  p = V::fma(p, r, V::all(5.0000001201e-1f));
  p = V::fma(p, r * r, r + V::all(1.0f));
  return V::times_power_of_two(p, n);
}

template <class V>
inline float exp_of(float x) {
  return exp<V>(V::all(x))[0];
}

}  // namespace
}  // namespace radixd
