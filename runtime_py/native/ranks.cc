// Kernels that choose elements along an axis by their order: the first ones, all sorted, the
// one in the middle. A NaN is greater than all numbers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "folds.h"
#include "kernels.h"
#include "types.h"

namespace kvc {
namespace {

constexpr int64_t kGrain = 4096;  // elements that are worth another thread

// An element and where it lies in its row.
template <class T>
struct Placed {
  T value;
  int64_t index;
};

// An element as it is ordered. A byte of a file that stands for a bool may be neither 0 nor 1,
// and what is sorted by such bytes as bools has no order: it would leave its memory.
template <class T>
T ordered(const T* x) {
  if constexpr (std::is_same_v<T, bool>) return *reinterpret_cast<const uint8_t*>(x) != 0;
  else return *x;
}

// Rows of x along an axis, and the same rows of two results.
struct Ranked {
  const Tensor &values, &indices, &x;
  Reduced from, to;
  int64_t read, written;  // strides along a row

  Ranked(const Step& step, const int64_t* axes)
      : values(step.tensors[0]),
        indices(step.tensors[1]),
        x(step.tensors[2]),
        from(x, axes),
        to(values.rank == x.rank ? values : x, axes) {
    read = from.gone_rank != 0 ? from.gone_strides[0] : 0;
    written = to.gone_rank != 0 ? to.gone_strides[0] : 0;
  }

  int64_t source(int64_t row) const {
    return Reduced::offset(row, from.kept_rank, from.kept_dims, from.kept_strides);
  }
  int64_t target(int64_t row) const {
    return Reduced::offset(row, to.kept_rank, to.kept_dims, to.kept_strides);
  }

  // Calls function(row, memory of the thread that holds the row with its places).
  template <class F>
  bool each(const Context& context, const F& function) const {
    bool done = true;
    with_type(x.dtype, [&](auto zero) { done = each_of(zero, context, function); });
    return done;
  }

  // Writes the one element of a row, of results that may lack the axis.
  template <class T>
  void put(int64_t row, const Placed<T>& found) const {
    values.as<T>()[row] = found.value;
    indices.as<int64_t>()[row] = found.index;
  }

  // Writes the first `count` elements of a row.
  template <class T>
  void write(int64_t i, const Placed<T>* row, int64_t count) const {
    const int64_t at = target(i);
    for (int64_t j = 0; j < count; ++j) {
      values.as<T>()[at + j * written] = row[j].value;
      indices.as<int64_t>()[at + j * written] = row[j].index;
    }
  }

 private:
  template <class T, class F>
  bool each_of(T, const Context& context, const F& function) const {
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, from.gone));
    parallel(from.kept, grain, context.threads, [&](int64_t begin, int64_t end, int) {
      auto* row = static_cast<Placed<T>*>(context.workspace(from.gone * sizeof(Placed<T>)));
      if (row == nullptr) return;
      for (int64_t i = begin; i < end; ++i) {
        const T* at = x.as<const T>() + source(i);
        for (int64_t j = 0; j < from.gone; ++j) row[j] = {ordered(at + j * read), j};
        function(i, row);
      }
    });
    return context.complete();
  }
};

template <class T>
bool greater(T one, T other) {
  return one > other || (one != one && other == other);
}

// The order of a sorted row; equal ones stay as they lie.
auto order(bool greatest) {
  return [greatest](const auto& one, const auto& other) {
    if (greater(one.value, other.value)) return greatest;
    if (greater(other.value, one.value)) return !greatest;
    return one.index < other.index;
  };
}

// The greatest elements along an axis, or the least, in order, and their indices. Arguments:
// how many, the axis, whether the greatest.
bool topk(const Step& step, const Context& context) {
  const int64_t count = step.integers[0], axes[2] = {1, step.integers[1]};
  const bool greatest = step.integers[2] != 0;
  const Ranked ranked(step, axes);
  return ranked.each(context, [&](int64_t i, auto* row) {
    std::partial_sort(row, row + count, row + ranked.from.gone, order(greatest));
    ranked.write(i, row, count);
  });
}

bool sort(const Step& step, const Context& context) {
  const int64_t axes[2] = {1, step.integers[0]};
  const bool descending = step.integers[1] != 0;
  const Ranked ranked(step, axes);
  const int64_t count = ranked.from.gone;
  return ranked.each(context, [&](int64_t i, auto* row) {
    std::sort(row, row + count, order(descending));
    ranked.write(i, row, count);
  });
}

// The element in the middle of those that are no NaN, the lower of two; without `kIgnore`
// the first NaN where there is one.
template <bool kIgnore, class T>
Placed<T> middle_of(Placed<T>* row, int64_t n) {
  const auto is_nan = [](const Placed<T>& one) { return one.value != one.value; };
  const auto nans = static_cast<int64_t>(std::count_if(row, row + n, is_nan));
  if (!kIgnore && nans != 0) return *std::find_if(row, row + n, is_nan);
  Placed<T>* middle = row + std::max<int64_t>(0, n - nans - 1) / 2;
  std::nth_element(row, middle, row + n, order(false));
  return *middle;
}

template <bool kIgnore>
bool median_along(const Step& step, const Context& context) {
  const int64_t axes[2] = {1, step.integers[0]};
  const Ranked ranked(step, axes);
  if (!check_choice(ranked.x, axes, context)) return false;
  return ranked.each(context, [&](int64_t i, auto* row) {
    ranked.put(i, middle_of<kIgnore>(row, ranked.from.gone));
  });
}

template <bool kIgnore>
bool median(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const int64_t axes[1] = {0}, n = x.count();
  const Reduced over(x, axes);
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* row = static_cast<Placed<T>*>(context.workspace(n * sizeof(Placed<T>)));
    if (row == nullptr) return;
    int64_t i = 0;
    over.each<T>(x, 0, [&](const T& value) {
      row[i] = {ordered(&value), i};
      ++i;
    });
    constexpr bool kFloat = std::numeric_limits<T>::has_quiet_NaN;
    const T none = kFloat ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::min();
    *out.as<T>() = n != 0 ? middle_of<kIgnore>(row, n).value : none;
  });
  return context.complete();
}

// Moves the element that would be at `k` in a sorted row there (Hoare's selection with the
// median of three, as Sedgewick gives it in "Implementing Quicksort Programs", 1978). Which of
// equal elements that is depends on the steps, which are those that eager takes.
template <class T>
void select(Placed<T>* row, int64_t n, int64_t k) {
  int64_t low = 0, high = n - 1;
  const auto above = [row](int64_t i, T value) { return greater(row[i].value, value); };
  const auto arrange = [&](int64_t i, int64_t j) {
    if (above(i, row[j].value)) std::swap(row[i], row[j]);
  };
  while (high > low + 1) {
    std::swap(row[low + (high - low) / 2], row[low + 1]);
    arrange(low + 1, high);
    arrange(low, high);
    arrange(low + 1, low);
    int64_t i = low + 1, j = high;
    const T pivot = row[low].value;
    while (true) {
      do ++i; while (greater(pivot, row[i].value));
      do --j; while (above(j, pivot));
      if (j < i) break;
      std::swap(row[i], row[j]);
    }
    std::swap(row[low], row[j]);
    if (j <= k) low = i;
    if (j >= k) high = j - 1;
  }
  if (high == low + 1) arrange(low, high);
}

// The k-th least element, counted from 1.
bool kthvalue(const Step& step, const Context& context) {
  const int64_t k = step.integers[0], axes[2] = {1, step.integers[1]};
  const Ranked ranked(step, axes);
  if (!check_choice(ranked.x, axes, context)) return false;
  return ranked.each(context, [&](int64_t i, auto* row) {
    select(row, ranked.from.gone, k - 1);
    ranked.put(i, row[k - 1]);
  });
}

bool ranked(Check& c) {
  return c.operands(2, 3) && c.dtype(2, kTypes) && c.same_dtype(0, 2) &&
         c.dtype(1, only(DType::kInt64)) && c.packed(0) && c.packed(1);
}
// Results have the first `count` elements of each row.
bool first_of_rows(Check& c, int64_t at, int64_t count) {
  int axis;
  if (!ranked(c) || !c.axis(at, c[2].rank, &axis) || !c.same_shape(0, 1)) return false;
  Tensor part = c[2];
  const int64_t size = part.rank != 0 ? part.dims[axis] : 1;
  if (!c.holds(count >= 0 && count <= size, "more elements than a row has", count, size))
    return false;
  part.dims[axis] = part.rank != 0 ? count : 0;
  const bool same =
      c[0].rank == part.rank && std::equal(part.dims, part.dims + part.rank, c[0].dims);
  return c.holds(same, "shape of a result");
}
bool first_ones(Check& c) { return c.settings(3) && first_of_rows(c, 1, c.integer(0)); }
bool all_sorted(Check& c) {
  int axis;
  if (!c.settings(2) || !c.operands(2, 3) || !c.axis(0, c[2].rank, &axis)) return false;
  return first_of_rows(c, 0, c[2].rank != 0 ? c[2].dims[axis] : 1);
}
bool middle_of_whole(Check& c) {
  return c.operands(1, 2) && c.dtype(1, kTypes) && c.same_dtype(0, 1) && c.count(0, 1);
}
bool middle_of_rows(Check& c) { return c.settings(1) && ranked(c) && reduced_along(c, c[2], 0, 2); }
bool one_of_rows(Check& c) {
  int axis;
  if (!c.settings(2) || !ranked(c) || !reduced_along(c, c[2], 1, 2)) return false;
  c.axis(1, c[2].rank, &axis);
  const int64_t size = c[2].rank != 0 ? c[2].dims[axis] : 1;
  return c.between(0, 1, std::max<int64_t>(1, size));
}

}  // namespace

const Entry kRanks[] = {
    {"aten::topk", topk, first_ones},
    {"aten::sort", sort, all_sorted},
    {"aten::median", median<false>, middle_of_whole},
    {"aten::nanmedian", median<true>, middle_of_whole},
    {"aten::median.dim", median_along<false>, middle_of_rows},
    {"aten::nanmedian.dim", median_along<true>, middle_of_rows},
    {"aten::kthvalue", kthvalue, one_of_rows},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
