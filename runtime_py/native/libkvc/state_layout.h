// Where the elements of a state lie in memory, at the sizes that its session fixed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "program.h"

namespace kvc::lib {

constexpr int64_t kAllSlots = int64_t{1} << 62;

// A range of slots of a state, and one row or all.
struct Span {
  int64_t low = 0;
  int64_t high = kAllSlots;
  int64_t row = -1;
};

struct StateLayout {
  int rank = 0;
  int axis = -1;  // of slots
  int64_t dims[8] = {}, strides[8] = {};  // strides in elements
  int order[8] = {};                      // dims, outermost first
  int64_t itemsize = 1, nbytes = 0;
  int64_t slots = 0;       // 0 without an axis
  int64_t offset = 0;      // in the arena
  bool kept = false;       // in the arena of states that a reset keeps
  bool has_rows = false;   // axis 0 has a row for each row of the cursor

  // The bounds of an axis within a span.
  int64_t begin(int dim, const Span& span) const {
    if (dim == axis) return std::min(std::max<int64_t>(span.low, 0), slots);
    return dim == 0 && span.row >= 0 ? span.row : 0;
  }
  int64_t end(int dim, const Span& span) const {
    if (dim == axis) return std::max(std::min(span.high, slots), begin(dim, span));
    return dim == 0 && span.row >= 0 ? span.row + 1 : dims[dim];
  }

  int64_t count(const Span& span) const {
    int64_t product = 1;
    for (int dim = 0; dim < rank; ++dim) product *= end(dim, span) - begin(dim, span);
    return product;
  }

  // Calls function(offset, nbytes) for the runs of a span, in the order of memory.
  template <class F>
  void for_runs(const Span& span, const F& function) const {
    if (count(span) == 0) return;
    int inner = rank;  // dims from here on, in the order of memory, lie in one run
    while (inner > 0) {
      --inner;
      if (end(order[inner], span) - begin(order[inner], span) != dims[order[inner]]) break;
    }
    int64_t run = itemsize, first = 0, index[8];
    for (int i = 0; i < rank; ++i) {
      index[i] = begin(order[i], span);
      first += index[i] * strides[order[i]] * itemsize;
      if (i >= inner) run *= end(order[i], span) - begin(order[i], span);
    }
    for (;;) {
      function(first, run);
      int i = inner - 1;
      for (; i >= 0; --i) {
        const int64_t step = strides[order[i]] * itemsize, low = begin(order[i], span);
        if (++index[i] < end(order[i], span)) {
          first += step;
          break;
        }
        first -= (index[i] - 1 - low) * step;
        index[i] = low;
      }
      if (i < 0) return;
    }
  }

  // Calls function(offset, dense, nbytes) for the runs of a span, in the order of its dims;
  // `dense` is where the run lies in an array of the state's shape without gaps.
  template <class F>
  void for_rows(const Span& span, const F& function) const {
    if (count(span) == 0) return;
    const bool together = rank > 0 && strides[rank - 1] == 1;
    const int outer = together ? rank - 1 : rank;
    int64_t dense[8], index[8], from = 0, to = 0, step = itemsize;
    for (int dim = rank - 1; dim >= 0; --dim) {
      dense[dim] = step;
      step *= dims[dim];
      index[dim] = begin(dim, span);
      from += index[dim] * strides[dim] * itemsize;
      to += index[dim] * dense[dim];
    }
    const int64_t run = together ? end(outer, span) - begin(outer, span) : 1;
    for (;;) {
      function(from, to, run * itemsize);
      int dim = outer - 1;
      for (; dim >= 0; --dim) {
        const int64_t low = begin(dim, span);
        if (++index[dim] < end(dim, span)) {
          from += strides[dim] * itemsize;
          to += dense[dim];
          break;
        }
        from -= (index[dim] - 1 - low) * strides[dim] * itemsize;
        to -= (index[dim] - 1 - low) * dense[dim];
        index[dim] = low;
      }
      if (dim < 0) return;
    }
  }
};

}  // namespace kvc::lib
