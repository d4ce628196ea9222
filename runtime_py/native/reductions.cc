// Kernels that reduce to a truth, or to the place of an extreme.
#include "folds.h"
#include "kernels.h"
#include "types.h"

namespace kvc {
namespace {

// Whether any, or all, of the elements are not zero; a NaN is not.
template <bool kAny, class T>
struct Truth {
  bool start() const { return !kAny; }
  bool merge(bool a, bool b) const { return kAny ? a | b : a & b; }
  bool add(bool found, T x, int64_t, int64_t) const { return merge(found, x != T{}); }
};

template <bool kAny>
bool truth(const Step& step, const Context& context, const int64_t* axes) {
  with_type(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    reduce_with<T, bool>(step, context, axes, Truth<kAny, T>{}, [](bool found) { return found; });
  });
  return true;
}
template <bool kAny>
bool truth_dims(const Step& step, const Context& context) {
  return truth<kAny>(step, context, step.integers);
}
template <bool kAny>
bool truth_dim(const Step& step, const Context& context) {
  const int64_t axes[2] = {1, step.integers[0]};
  return truth<kAny>(step, context, axes);
}
template <bool kAny>
bool truth_of_all(const Step& step, const Context& context) {
  const int64_t axes[1] = {0};
  return truth<kAny>(step, context, axes);
}

template <class T>
struct Placed {
  T value;
  int64_t place;  // -1: no element
};

// The first of the greatest, or least, elements; a NaN comes before all.
template <bool kMax, class T>
struct First {
  static bool precedes(T value, T other) {
    return other == other && (value != value || (kMax ? value > other : value < other));
  }
  Placed<T> start() const { return {T{}, -1}; }
  Placed<T> add(Placed<T> found, T x, int64_t, int64_t place) const {
    return found.place < 0 || precedes(x, found.value) ? Placed<T>{x, place} : found;
  }
  Placed<T> merge(Placed<T> a, Placed<T> b) const {
    if (a.place < 0 || b.place < 0) return a.place < 0 ? b : a;
    if (precedes(a.value, b.value)) return a;
    return precedes(b.value, a.value) || b.place < a.place ? b : a;
  }
};

template <bool kMax>
bool choose(const Step& step, const Context& context) {
  const int64_t given[2] = {1, step.integers[0]}, all[1] = {0};
  const int64_t* axes = step.integers[0] == kAbsent ? all : given;
  const Tensor& x = step.tensors[1];
  if (!check_choice(x, axes, context)) return false;
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    reduce_with<T, int64_t>(step, context, axes, First<kMax, T>{},
                            [](const Placed<T>& found) { return found.place; });
  });
  return true;
}

// As `choose`, with the elements themselves before their indices.
template <bool kMax>
bool choose_both(const Step& step, const Context& context) {
  const Tensor &values = step.tensors[0], &indices = step.tensors[1], &x = step.tensors[2];
  const int64_t axes[2] = {1, step.integers[0]};
  if (!check_choice(x, axes, context)) return false;
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto write = [&](int64_t to, const Placed<T>& found) {
      values.as<T>()[to] = found.value;
      indices.as<int64_t>()[to] = found.place;
    };
    reduce_into<T>(write, x, axes, First<kMax, T>{}, context);
  });
  return true;
}

bool truths(Check& c) { return c.operands(1, 2) && c.dtype(1, kTypes) && c.dtype(0, kBools); }
bool truth_along_axes(Check& c) {
  int64_t at = 0;
  return truths(c) && reduced_along_axes(c, c[1], &at, 1);
}
bool truth_along(Check& c) { return truths(c) && c.settings(1) && reduced_along(c, c[1], 0, 1); }
bool truth_of_whole(Check& c) { return truths(c) && reduced_whole(c, c[1], 1); }

bool placed(Check& c) {
  const bool right =
      c.operands(1, 2) && c.settings(1) && c.dtype(1, kTypes) && c.dtype(0, only(DType::kInt64));
  if (!right) return false;
  return c.integer(0) == kAbsent ? reduced_whole(c, c[1], 1) : reduced_along(c, c[1], 0, 1);
}
bool chosen_and_placed(Check& c) {
  return c.operands(2, 3) && c.settings(1) && c.dtype(2, kTypes) && c.same_dtype(0, 2) &&
         c.dtype(1, only(DType::kInt64)) && reduced_along(c, c[2], 0, 2);
}

}  // namespace

const Entry kReductions[] = {
    {"aten::any", truth_of_all<true>, truth_of_whole},
    {"aten::all", truth_of_all<false>, truth_of_whole},
    {"aten::any.dim", truth_dim<true>, truth_along},
    {"aten::all.dim", truth_dim<false>, truth_along},
    {"aten::any.dims", truth_dims<true>, truth_along_axes},
    {"aten::all.dims", truth_dims<false>, truth_along_axes},
    {"aten::argmax", choose<true>, placed},
    {"aten::argmin", choose<false>, placed},
    {"aten::max.dim", choose_both<true>, chosen_and_placed},
    {"aten::min.dim", choose_both<false>, chosen_and_placed},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
