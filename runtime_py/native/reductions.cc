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

}  // namespace

const Entry kReductions[] = {
    {"aten::any", truth_of_all<true>},
    {"aten::all", truth_of_all<false>},
    {"aten::any.dim", truth_dim<true>},
    {"aten::all.dim", truth_dim<false>},
    {"aten::any.dims", truth_dims<true>},
    {"aten::all.dims", truth_dims<false>},
    {"aten::argmax", choose<true>},
    {"aten::argmin", choose<false>},
    {"aten::max.dim", choose_both<true>},
    {"aten::min.dim", choose_both<false>},
    {nullptr, nullptr},
};

}  // namespace kvc
