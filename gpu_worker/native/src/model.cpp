#include "model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

namespace radixd {
namespace {

float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7fff;
  if (rest >= 0x7c00) return std::numeric_limits<float>::quiet_NaN();
  if (rest < 0x400) {  // subnormal: a multiple of 2**-24
    const float size = float(rest) * 0x1p-24f;
    return sign ? -size : size;
  }
  const uint32_t bits = sign | ((rest << 13) + 0x38000000u);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

float half_at(const uint8_t* p, int index) {
  uint16_t half;
  std::memcpy(&half, p + 2 * index, sizeof(half));
  return half_to_float(half);
}

// In bytes.
size_t free_memory() { return size_t(sysconf(_SC_AVPHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE)); }

// Throws std::bad_alloc.
template <class T>
LargeArray<T> allocate(size_t count, [[maybe_unused]] bool is_resident) {
  const size_t num_bytes = count * sizeof(T);
  void* p = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(p, num_bytes, MADV_HUGEPAGE);
#endif
#if defined(MADV_POPULATE_WRITE)
  // The first step that uses a large page would wait until it is cleared.
  if (is_resident) madvise(p, num_bytes, MADV_POPULATE_WRITE);
#endif
  return LargeArray<T>(static_cast<T*>(p), Unmap{num_bytes});
}

}  // namespace

void Unmap::operator()(void* p) const { munmap(p, num_bytes); }

void read_row(const Matrix& matrix, int row, float* out) {
  const int r = row % kPanel;
  const uint8_t* panel = matrix.panels + size_t(row / kPanel) * matrix.panel_bytes();
  if (matrix.format == Format::kFloat32) {
    const float* values = reinterpret_cast<const float*>(panel);
    for (int k = 0; k < matrix.inputs; ++k) out[k] = values[size_t(k) * kPanel + r];
    return;
  }
  const bool is_int4 = matrix.format == Format::kInt4;
  const int value_bytes = is_int4 ? 128 : 256;
  for (int g = 0; g < matrix.inputs / kGroup; ++g) {
    const uint8_t* group = panel + size_t(g) * (is_int4 ? kInt4Bytes : kInt8Bytes);
    const float scale = half_at(group + value_bytes, r);
    const float minimum = half_at(group + value_bytes + 16, r);
    for (int k = 0; k < kGroup; ++k) {
      int q;
      if (is_int4) {
        const uint8_t both = group[(k % 16) / 4 * 32 + r * 4 + k % 4];
        q = k < 16 ? both & 15 : both >> 4;
      } else {
        q = static_cast<int8_t>(group[k / 2 * 16 + r * 2 + k % 2]);
      }
      out[g * kGroup + k] = scale * float(q) + minimum;
    }
  }
}

bool fits_easily(const Sizes& s) {
  const size_t vectors = 2 * size_t(s.layers) * s.kv_heads * s.num_slots;
  const size_t vector_bytes = s.head_dim * (s.kv_int8 ? sizeof(int8_t) : sizeof(float));
  return vectors * vector_bytes < free_memory() / 2;
}

LayerPool::LayerPool(const Sizes& sizes, bool is_resident)
    : kv_heads_(sizes.kv_heads),
      head_dim_(sizes.head_dim),
      num_slots_(sizes.num_slots),
      is_int8_(sizes.kv_int8 != 0) {
  const size_t heads = size_t(num_slots_) * kv_heads_;
  for (int i = 0; i < 2; ++i) {
    if (is_int8_) {
      bytes_[i] = allocate<int8_t>(heads * head_dim_, is_resident);
      scales_[i] = allocate<float>(heads, is_resident);
    } else {
      floats_[i] = allocate<float>(heads * head_dim_, is_resident);
    }
  }
}

void LayerPool::write(const Kernels& kernels, bool is_value, int slot, const float* vectors) {
  for (int head = 0; head < kv_heads_; ++head, vectors += head_dim_) {
    const size_t at = offset(slot, head);
    if (is_int8_)
      scales_[is_value][at / head_dim_] = kernels.to_int8(vectors, head_dim_, &bytes_[is_value][at]);
    else
      std::memcpy(&floats_[is_value][at], vectors, head_dim_ * sizeof(float));
  }
}

HeadView LayerPool::read(const Kernels& kernels, bool is_value, int head, const int32_t* slots,
                         int count, float* room) const {
  if (!is_int8_) return {&floats_[is_value][offset(0, head)], size_t(head_dim_)};
  for (int k = 0; k < count; ++k) {
    const size_t at = offset(slots[k], head);
    kernels.from_int8(&bytes_[is_value][at], scales_[is_value][at / head_dim_], head_dim_,
                      room + k * head_dim_);
  }
  return {room, size_t(head_dim_)};
}

void LayerPool::poison() {
  const size_t heads = size_t(num_slots_) * kv_heads_;
  for (int i = 0; i < 2; ++i) {
    float* values = is_int8_ ? scales_[i].get() : floats_[i].get();
    std::fill_n(values, is_int8_ ? heads : heads * head_dim_,
                std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace radixd
