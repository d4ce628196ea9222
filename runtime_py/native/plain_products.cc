// Products of matrices of float64 or integers, by plain loops.
#include <algorithm>
#include <type_traits>

#include "pool.h"
#include "products.h"
#include "types.h"

namespace kvc {

void multiply_plainly(const Tensor& out, const Tensor& a, const Tensor& b, int threads) {
  constexpr int64_t kTile = 64;
  const int64_t columns = out.dims[1], depth = a.dims[1], tiles = (columns + kTile - 1) / kTile;
  const int64_t grain = 1 + 16384 / (1 + depth * kTile);
  with_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
    parallel(out.dims[0] * tiles, grain, threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t i = tile / tiles, first = tile % tiles * kTile;
        const int64_t n = std::min(kTile, columns - first), step = b.strides[1];
        Sum sums[kTile] = {};
        for (int64_t k = 0; k < depth; ++k) {
          const auto left = static_cast<Sum>(a.as<const T>()[i * a.strides[0] + k * a.strides[1]]);
          const T* right = b.as<const T>() + k * b.strides[0] + first * step;
          for (int64_t j = 0; j < n; ++j) sums[j] += left * static_cast<Sum>(right[j * step]);
        }
        T* to = out.as<T>() + i * out.strides[0] + first * out.strides[1];
        for (int64_t j = 0; j < n; ++j) to[j * out.strides[1]] = static_cast<T>(sums[j]);
      }
    });
  });
}

}  // namespace kvc
