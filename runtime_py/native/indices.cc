// Kernels that read or write at indices. All indices are checked before the first write.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "copies.h"
#include "elements.h"
#include "family_contracts.h"
#include "kernels.h"
#include "pool.h"

namespace kvc {
namespace {

// Whether each element of an index is from `least` on and below `size`.
bool check_index(const Tensor& index, int64_t least, int64_t size, const Context& context) {
  const int64_t count = index.count();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t found = index_at(index, i);
    if (found < least || found >= size) return context.refuse(Fault::kIndexOutOfRange, found, size);
  }
  return true;
}

// Adds `factor` times `from`, broadcast, to `to`; integers wrap around.
void add_into(const Tensor& to, const Tensor& from, const Tensor& factor) {
  if (to.count() == 0) return;
  const Loop<3> loop({&to, &from, &factor});
  with_type(to.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
    int64_t at[3];
    for (int64_t run = 0; run < loop.runs(); ++run) {
      loop.start(run, at);
      for (int64_t i = 0; i < loop.inner(); ++i) {
        T& sum = to.as<T>()[at[0] + i * loop.step(0)];
        const Sum one = from.as<const T>()[at[1] + i * loop.step(1)];
        sum = static_cast<T>(static_cast<Sum>(sum) + one * static_cast<Sum>(*factor.as<const T>()));
      }
    }
  });
}

bool embedding(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &weight = step.tensors[1], &index = step.tensors[2];
  if (!check_index(index, 0, weight.dims[0], context)) return false;
  const int64_t width = weight.dims[1], size = itemsize(weight.dtype), count = index.count();
  parallel(count, 64, context.threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = index_at(index, i) * weight.strides[0];
      copy_run(size, out.as<char>() + i * width * size, 1, weight.as<const char>() + row * size,
               weight.strides[1], width);
    }
  });
  return true;
}

// weight[index] * scale[index], of a row, or of each of some parts of a row.
bool embedding_q8(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &weight = step.tensors[1];
  const Tensor &scale = step.tensors[2], &index = step.tensors[3];
  if (!check_index(index, 0, weight.dims[0], context)) return false;
  const int64_t width = weight.dims[1], count = index.count(), stride = weight.strides[1];
  const int64_t parts = scale.rank == 2 ? scale.dims[1] : 1, part = width / std::max<int64_t>(1, parts);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = index_at(index, i);
    const int8_t* from = weight.as<const int8_t>() + row * weight.strides[0];
    const float* factors = scale.as<const float>() + row * scale.strides[0];
    float* to = out.as<float>() + i * width;
    for (int64_t first = 0; first < width; first += part) {
      const float factor = scale.rank == 2 ? factors[first / part * scale.strides[1]] : *factors;
      for (int64_t j = first; j < first + part; ++j) to[j] = static_cast<float>(from[j * stride]) * factor;
    }
  }
  return true;
}

bool index_select(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &index = step.tensors[2];
  const int axis = static_cast<int>(step.integers[0]);
  if (!check_index(index, 0, x.dim(axis), context)) return false;
  const int64_t count = index.count();
  for (int64_t i = 0; i < count; ++i) {
    copy_into(narrow(out, axis, i, 1), narrow(x, axis, index_at(index, i), 1), context.threads);
  }
  return true;
}

// Slices of the source to places along an axis; added to what is there, or instead of it.
template <bool kAdd>
bool write_slices(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &index = step.tensors[1], &source = step.tensors[2];
  const int axis = static_cast<int>(step.integers[0]);
  if (!check_index(index, 0, out.dim(axis), context)) return false;
  char element[8];
  Tensor factor{};
  if (kAdd) factor = scalar_of(out.dtype, step.integers[1], step.numbers[0], element);
  const int64_t count = index.count();
  for (int64_t i = 0; i < count; ++i) {
    const Tensor to = narrow(out, axis, index_at(index, i), 1), from = narrow(source, axis, i, 1);
    if (kAdd) {
      add_into(to, from, factor);
    } else {
      copy_into(to, from, context.threads);
    }
  }
  return true;
}

// Calls function(offset in x, offset in other) for each place of an index into an axis.
template <class F>
void for_places(const Tensor& x, const Tensor& index, const Tensor& other, int axis,
                const F& function) {
  const int64_t count = index.count();
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, here = index_at(index, i) * x.strides[axis], there = 0;
    for (int d = index.rank - 1; d >= 0; --d) {
      const int64_t place = rest % index.dims[d];
      rest /= index.dims[d];
      there += place * other.strides[d];
      if (d != axis) here += place * x.strides[d];
    }
    function(here, there);
  }
}

// As `for_places`, with the elements.
template <class T, class F>
void for_elements(const Tensor& x, const Tensor& index, const Tensor& other, int axis,
                  const F& function) {
  for_places(x, index, other, axis, [&](int64_t here, int64_t there) {
    function(x.as<T>()[here], other.as<T>()[there]);
  });
}

// The axis that the first integer names.
int axis_of(const Step& step, const Tensor& x) {
  const int axis = static_cast<int>(step.integers[0]);
  return axis < 0 ? axis + x.rank : axis;
}

bool gather(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &index = step.tensors[2];
  const int axis = axis_of(step, x);
  if (!check_index(index, 0, x.dims[axis], context)) return false;
  with_size(x.dtype, [&](auto zero) {
    for_elements<decltype(zero)>(x, index, out, axis, [](auto from, auto& to) { to = from; });
  });
  return true;
}

// Elements of the source to places along an axis.
bool scatter(const Tensor& source, const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &index = step.tensors[1];
  const int axis = axis_of(step, out);
  if (!check_index(index, 0, out.dims[axis], context)) return false;
  with_size(out.dtype, [&](auto zero) {
    for_elements<decltype(zero)>(out, index, source, axis, [](auto& to, auto from) { to = from; });
  });
  return true;
}

bool scatter_elements(const Step& step, const Context& context) {
  return scatter(step.tensors[2], step, context);
}

bool scatter_value(const Step& step, const Context& context) {
  char element[8];
  const Tensor& out = step.tensors[0];
  return scatter(scalar_of(out.dtype, step.integers[1], step.numbers[0], element), step, context);
}

bool scatter_add(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &index = step.tensors[1];
  const int axis = axis_of(step, out);
  if (!check_index(index, 0, out.dims[axis], context)) return false;
  with_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
    for_elements<T>(out, index, step.tensors[2], axis, [](T& to, T from) {
      to = static_cast<T>(static_cast<Sum>(to) + static_cast<Sum>(from));
    });
  });
  return true;
}

// What `aten::scatter_reduce` makes of elements that meet; the numbers of arguments.py.
enum class Meeting : int64_t { kSum = 0, kProduct = 1, kMean = 2, kMost = 3, kLeast = 4 };

// What leaves another element as it is.
template <class T>
T neutral(Meeting meeting) {
  using Limits = std::numeric_limits<T>;
  switch (meeting) {
    case Meeting::kProduct: return T{1};
    case Meeting::kMost: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case Meeting::kLeast: return Limits::has_infinity ? Limits::infinity() : Limits::max();
    default: return T{0};
  }
}

// A NaN is both the greatest and the least.
template <class T>
T meet(Meeting meeting, T to, T from) {
  switch (meeting) {
    case Meeting::kProduct: return static_cast<T>(to * from);
    case Meeting::kMost: return from > to || from != from ? from : to;
    case Meeting::kLeast: return from < to || from != from ? from : to;
    default: return static_cast<T>(to + from);
  }
}

// Divides sums, of integers towards minus infinity; `counts` has how many elements each is of.
template <class T>
void divide(const Tensor& sums, const Tensor& counts, int threads) {
  const Loop<2> loop({&sums, &counts});
  for_runs(loop, kGrain, threads, [&](const int64_t (&at)[2], int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      T& sum = sums.as<T>()[at[0] + i * loop.step(0)];
      const int64_t count = counts.as<int64_t>()[at[1] + i * loop.step(1)];
      if (count <= 1) continue;
      if constexpr (std::is_integral_v<T>) {
        const int64_t whole = sum;
        sum = static_cast<T>(whole / count - (whole % count < 0 ? 1 : 0));
      } else {
        sum /= static_cast<T>(count);
      }
    }
  });
}

// Elements of the source are reduced to those at their places; `whole`: and to what is there.
bool scatter_reduce(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &index = step.tensors[1], &source = step.tensors[2];
  const int axis = axis_of(step, out);
  const auto meeting = static_cast<Meeting>(step.integers[1]);
  const int64_t whole = step.integers[2];
  if (!check_index(index, 0, out.dims[axis], context)) return false;
  Tensor counts = out;
  if (meeting == Meeting::kMean) {
    counts.dtype = DType::kInt64;
    counts.data = context.workspace(out.count() * sizeof(int64_t));
    if (!counts) return context.complete();
    for (int64_t d = out.rank - 1, stride = 1; d >= 0; stride *= out.dims[d--]) counts.strides[d] = stride;
    std::fill_n(counts.as<int64_t>(), out.count(), whole);
    for_places(counts, index, source, axis, [&](int64_t at, int64_t) { ++counts.as<int64_t>()[at]; });
  }
  with_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (whole == 0) {
      for_elements<T>(out, index, source, axis, [&](T& to, T) { to = neutral<T>(meeting); });
    }
    for_elements<T>(out, index, source, axis, [&](T& to, T from) { to = meet(meeting, to, from); });
    if (meeting == Meeting::kMean) divide<T>(out, counts, context.threads);
  });
  return true;
}

// Some axes of x, picked by indices that are broadcast to one shape. What is picked has the
// axes that are kept and, where the picked ones stand side by side, theirs in their place;
// else theirs first.
class Picked {
 public:
  Picked(const Tensor& x, const Tensor* indices, int given) : x_(x), indices_(indices) {
    int last = -1;
    bool together = true;
    for (int axis = 0; axis < x.rank; ++axis) {
      if (axis >= given || !indices[axis]) {
        kept_[kept_rank_++] = axis;
        continue;
      }
      if (picked_rank_ == 0) place_ = axis;
      together = together && (last < 0 || axis == last + 1);
      picked_[picked_rank_++] = last = axis;
      width_ = std::max(width_, indices[axis].rank);
    }
    if (!together) place_ = 0;
    for (int d = 0; d < width_; ++d) sizes_[d] = 1;
    for (int i = 0; i < picked_rank_; ++i) {
      const Tensor& one = indices[picked_[i]];
      for (int d = 0; d < one.rank; ++d) {
        if (one.dims[d] != 1) sizes_[width_ - one.rank + d] = one.dims[d];
      }
    }
  }

  bool check(const Context& context) const {
    for (int i = 0; i < picked_rank_; ++i) {
      const int64_t size = x_.dims[picked_[i]];
      if (!check_index(indices_[picked_[i]], -size, size, context)) return false;
    }
    return true;
  }

  // `values` with a stride for each axis of what is picked, to which it is broadcast.
  Tensor spread(const Tensor& values) const {
    Tensor found = values;
    found.rank = kept_rank_ + width_;
    for (int d = 0; d < found.rank; ++d) {
      const bool picked = d >= place_ && d < place_ + width_;
      found.dims[d] = picked ? sizes_[d - place_] : x_.dims[kept_[d < place_ ? d : d - width_]];
      const int own = d - (found.rank - values.rank);
      found.strides[d] = own < 0 || values.dims[own] == 1 ? 0 : values.strides[own];
    }
    return found;
  }

  // Calls function(part of x, part of `other`, which is spread) for each place of the indices.
  template <class F>
  void each(const Tensor& other, const F& function) const {
    Tensor mine = x_, theirs = other;
    mine.rank = theirs.rank = kept_rank_;
    for (int i = 0; i < kept_rank_; ++i) {
      const int d = i < place_ ? i : i + width_;
      mine.dims[i] = theirs.dims[i] = other.dims[d];
      mine.strides[i] = x_.strides[kept_[i]];
      theirs.strides[i] = other.strides[d];
    }
    int64_t places = 1;
    for (int d = 0; d < width_; ++d) places *= sizes_[d];
    for (int64_t place = 0; place < places; ++place) {
      int64_t coordinates[kMaxRank], rest = place, offset = 0;
      for (int d = width_ - 1; d >= 0; --d) {
        coordinates[d] = rest % sizes_[d];
        rest /= sizes_[d];
        offset += coordinates[d] * other.strides[place_ + d];
      }
      mine.data = x_.as<char>() + origin(coordinates) * itemsize(x_.dtype);
      theirs.data = other.as<char>() + offset * itemsize(other.dtype);
      function(mine, theirs);
    }
  }

 private:
  int64_t origin(const int64_t* coordinates) const {
    int64_t found = 0;
    for (int i = 0; i < picked_rank_; ++i) {
      const Tensor& one = indices_[picked_[i]];
      int64_t flat = 0;
      for (int d = 0; d < one.rank; ++d) {
        flat = flat * one.dims[d] + (one.dims[d] == 1 ? 0 : coordinates[width_ - one.rank + d]);
      }
      const int64_t index = index_at(one, flat), axis = picked_[i];
      found += (index < 0 ? index + x_.dims[axis] : index) * x_.strides[axis];
    }
    return found;
  }

  const Tensor& x_;
  const Tensor* indices_;
  int kept_rank_ = 0, picked_rank_ = 0, place_ = 0, width_ = 0;
  int kept_[kMaxRank], picked_[kMaxRank];
  int64_t sizes_[kMaxRank];  // of the axes of the indices
};

bool index(const Step& step, const Context& context) {
  const Picked picked(step.tensors[1], step.tensors + 2, static_cast<int>(step.integers[0]));
  if (!picked.check(context)) return false;
  picked.each(picked.spread(step.tensors[0]),
              [](const Tensor& from, const Tensor& to) { copy_into(to, from, 1); });
  return true;
}

bool index_put(const Step& step, const Context& context) {
  const Tensor& out = step.tensors[0];
  const int given = static_cast<int>(step.integers[0]);
  const Picked picked(out, step.tensors + 1, given);
  if (!picked.check(context)) return false;
  char element[8];
  const Tensor one = scalar_of(out.dtype, 1, 1, element);
  const bool add = step.integers[1] != 0;
  picked.each(picked.spread(step.tensors[1 + given]), [&](const Tensor& to, const Tensor& from) {
    if (add) {
      add_into(to, from, one);
    } else {
      copy_into(to, from, 1);
    }
  });
  return true;
}

}  // namespace

const Entry kIndices[] = {
    {"aten::embedding", embedding, embedded},
    {"kvc::embedding_q8", embedding_q8, embedded_q8},
    {"aten::index_select", index_select, index_selected},
    {"aten::index_copy", write_slices<false>, slices_written},
    {"aten::index_add", write_slices<true>, slices_added},
    {"aten::gather", gather, gathered},
    {"aten::scatter.src", scatter_elements, elements_scattered},
    {"aten::scatter.value", scatter_value, value_scattered},
    {"aten::scatter_add", scatter_add, elements_added},
    {"aten::scatter_reduce.two", scatter_reduce, elements_reduced},
    {"aten::index.Tensor", index, indexed},
    {"aten::index_put", index_put, put_at_indices},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
