// What makes the rows that products quantize.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elements.h"
#include "kernels.h"
#include "pool.h"
#include "products.h"
#include "rows.h"

namespace kvc {

// Rows of width `width` that lie `stride` apart, or that kvc::glu or aten::rms_norm makes of
// these.
struct RowSource {
  enum Kind : int64_t { kNone = 0, kGlu = 1, kNorm = 2 };

  Kind kind;
  int64_t rows, width;
  const float* x;  // of kGlu, the gates
  int64_t stride;
  const float* ups;  // of kGlu
  int64_t ups_stride;
  int64_t activation;  // of kGlu, as `gate_row` has them
  const float* weight;  // of kNorm, null for none
  float eps;

  // Makes the elements from `begin` to `end` of a row, of a norm all.
  void make(int64_t row, int64_t begin, int64_t end, float* to) const {
    const float* from = x + row * stride;
    if (kind == kGlu) {
      gate_row(activation, from + begin, ups + row * ups_stride + begin, end - begin, to + begin);
    } else {
      norm_row(from, weight, eps, width, to);
    }
  }

  // Makes all rows with all threads.
  void make_all(int threads, float* to) const {
    const int64_t piece = kind == kGlu ? std::min(kGrain, width) : width;
    const int64_t pieces = (width + piece - 1) / piece, together = std::max<int64_t>(1, kGrain / piece);
    parallel(rows * pieces, together, threads, [&](int64_t first, int64_t last, int) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = i / pieces, begin = i % pieces * piece;
        make(row, begin, std::min(begin + piece, width), to + row * width);
      }
    });
  }

  // Whether threads that lay rows out would be idle while one makes far more than its share:
  // each lays out pairs of blocks of tokens, and one the rows that are in none.
  bool uneven(int threads) const {
    if (kind == kNone || threads <= 1) return false;
    const int64_t pairs = (rows + 2 * kTokens - 1) / (2 * kTokens);
    const int64_t most = std::min(rows, (pairs + threads - 1) / threads * 2 * kTokens);
    const int64_t share = rows / threads, over = most - share;
    return 4 * over >= share && over * width >= 2 * kGrain;
  }
};

}  // namespace kvc
