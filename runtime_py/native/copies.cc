// Kernels that move elements, or make them of nothing: copies, concatenation, constants.
#include "copies.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "pool.h"

namespace kvc {

int64_t index_at(const Tensor& index, int64_t flat) {
  int64_t offset = 0;
  for (int axis = index.rank - 1; axis >= 0; --axis) {
    offset += flat % index.dims[axis] * index.strides[axis];
    flat /= index.dims[axis];
  }
  return index.dtype == DType::kInt32 ? index.as<const int32_t>()[offset]
                                      : index.as<const int64_t>()[offset];
}

namespace {

constexpr int64_t kGrain = 1 << 16;  // bytes that are worth another thread

template <class T>
void copy_run(char* to, int64_t so, const char* from, int64_t sf, int64_t n) {
  T* target = reinterpret_cast<T*>(to);
  const T* source = reinterpret_cast<const T*>(from);
  for (int64_t i = 0; i < n; ++i) target[i * so] = source[i * sf];
}

}  // namespace

void copy_run(int64_t size, char* to, int64_t so, const char* from, int64_t sf, int64_t n) {
  if (so == 1 && sf == 1) {
    std::memmove(to, from, n * size);
    return;
  }
  switch (size) {
    case 8: return copy_run<uint64_t>(to, so, from, sf, n);
    case 4: return copy_run<uint32_t>(to, so, from, sf, n);
    case 2: return copy_run<uint16_t>(to, so, from, sf, n);
    default: return copy_run<uint8_t>(to, so, from, sf, n);
  }
}

void copy_into(const Tensor& to, const Tensor& from, int threads) {
  if (to.count() == 0) return;
  const Loop<2> loop({&to, &from});
  const int64_t size = itemsize(to.dtype), inner = loop.inner();
  const int64_t grain = std::max<int64_t>(1, kGrain / (inner * size));
  parallel(loop.runs(), grain, threads, [&](int64_t begin, int64_t end, int) {
    int64_t at[2];
    for (int64_t run = begin; run < end; ++run) {
      loop.start(run, at);
      copy_run(size, to.as<char>() + at[0] * size, loop.step(0), from.as<const char>() + at[1] * size,
               loop.step(1), inner);
    }
  });
}

Tensor scalar_of(DType dtype, int64_t whole, double number, char (&element)[8]) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr bool kWhole = std::is_integral_v<T> && !std::is_same_v<T, bool>;
    const T value = kWhole ? static_cast<T>(whole) : static_cast<T>(number);
    std::memcpy(element, &value, sizeof value);
  });
  return Tensor{element, dtype, 0, {}, {}};
}

namespace {

bool copy(const Step& step, const Context& context) {
  copy_into(step.tensors[0], step.tensors[1], context.threads);
  return true;
}

// The shapes differ, the elements have the same order; those of the result lie together.
bool reshape(const Step& step, const Context& context) {
  Tensor out = step.tensors[0];
  const Tensor& x = step.tensors[1];
  out.rank = x.rank;
  int64_t stride = 1;
  for (int i = x.rank - 1; i >= 0; --i) {
    out.dims[i] = x.dims[i];
    out.strides[i] = stride;
    stride *= x.dims[i];
  }
  copy_into(out, x, context.threads);
  return true;
}

bool cat(const Step& step, const Context& context) {
  const Tensor& out = step.tensors[0];
  const int64_t axis = step.integers[1];
  int64_t start = 0;
  for (int64_t i = 0; i < step.integers[0]; ++i) {
    const Tensor& part = step.tensors[1 + i];
    if (part.rank != out.rank) continue;  // torch takes an empty vector beside anything
    const int64_t count = part.dim(static_cast<int>(axis));
    copy_into(narrow(out, static_cast<int>(axis), start, count), part, context.threads);
    start += count;
  }
  return true;
}

// x again and again along each axis.
bool repeat(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const int64_t* times = step.integers + 1;
  int64_t tiles = 1;
  for (int axis = 0; axis < out.rank; ++axis) tiles *= times[axis];
  for (int64_t i = 0; i < tiles; ++i) {
    Tensor tile = out;
    int64_t rest = i;
    for (int axis = out.rank - 1; axis >= 0; --axis) {
      const int64_t size = out.dims[axis] / times[axis];
      tile = narrow(tile, axis, rest % times[axis] * size, size);
      rest /= times[axis];
    }
    copy_into(tile, x, context.threads);
  }
  return true;
}

bool stack(const Step& step, const Context& context) {
  const Tensor& out = step.tensors[0];
  int axis = static_cast<int>(step.integers[1]);
  if (axis < 0) axis += out.rank;
  for (int64_t i = 0; i < step.integers[0]; ++i) {
    Tensor part = narrow(out, axis, i, 1);
    --part.rank;
    for (int d = axis; d < part.rank; ++d) {
      part.dims[d] = part.dims[d + 1];
      part.strides[d] = part.strides[d + 1];
    }
    copy_into(part, step.tensors[1 + i], context.threads);
  }
  return true;
}

bool full(const Step& step, const Context& context) {
  const Tensor& out = step.tensors[0];
  char element[8];  // after the sizes comes the value
  copy_into(out, scalar_of(out.dtype, step.integers[1 + step.integers[0]], step.numbers[0], element),
            context.threads);
  return true;
}

bool arange(const Step& step, const Context&) {
  const Tensor& out = step.tensors[0];
  with_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < out.dims[0]; ++i) {
      const int64_t whole = step.integers[0] + i * step.integers[2];
      const double number = step.numbers[0] + static_cast<double>(i) * step.numbers[2];
      out.as<T>()[i * out.strides[0]] =
          std::is_integral_v<T> ? static_cast<T>(whole) : static_cast<T>(number);
    }
  });
  return true;
}

// Where the next write of a call begins: `count` after the one before.
bool after(const Step& step, const Context&) {
  const Tensor &out = step.tensors[0], &start = step.tensors[1];
  const int64_t count = start.count();
  for (int64_t i = 0; i < count; ++i) {
    out.as<int64_t>()[i * (out.rank != 0 ? out.strides[0] : 0)] = index_at(start, i) + step.integers[0];
  }
  return true;
}

// Element [.., i, j] stays where j - i <= diagonal (tril) or >= diagonal (triu).
template <bool kLower>
bool triangle(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const int64_t rows = out.dim(-2), columns = out.dim(-1);
  const int64_t diagonal = std::clamp<int64_t>(step.integers[0], -rows - 1, columns + 1);
  copy_into(out, x, context.threads);
  const int64_t size = itemsize(out.dtype), total = out.count() / std::max<int64_t>(1, rows * columns);
  for (int64_t matrix = 0; matrix < total; ++matrix) {
    for (int64_t i = 0; i < rows; ++i) {
      char* row = out.as<char>() + (matrix * rows + i) * columns * size;
      const int64_t edge = std::clamp<int64_t>(i + diagonal + (kLower ? 1 : 0), 0, columns);
      if (kLower) std::memset(row + edge * size, 0, (columns - edge) * size);
      if (!kLower) std::memset(row, 0, edge * size);
    }
  }
  return true;
}

bool copied(Check& c) { return c.operands(1, 2) && c.same_dtype(1, 0) && c.fits(1, 0); }

bool reshaped(Check& c) {
  return c.operands(1, 2) && c.same_dtype(1, 0) && c.packed(0) && c.count(1, c[0].count());
}

// The number of parts, and the axis of the result along which they lie.
bool joined(Check& c, int* axis) {
  return c.settings(2) && c.between(0, 0, kMostSetting - 1) &&
         c.operands(1, static_cast<int>(1 + c.integer(0))) && c.rank(0, 1) &&
         c.axis(1, c[0].rank, axis);
}

bool concatenated(Check& c) {
  int axis;
  if (!joined(c, &axis)) return false;
  const Tensor& out = c[0];
  int64_t start = 0;
  for (int i = 1; i < c.step.tensor_count; ++i) {
    if (!c.same_dtype(i, 0)) return false;
    if (c[i].rank != out.rank) continue;  // it is passed over
    Tensor place = out;
    place.dims[axis] = c[i].dims[axis];
    if (!c.holds(repeats_to(c[i], place), "shape of a part", i)) return false;
    start += c[i].dims[axis];
  }
  return c.size(0, axis, start);
}

bool stacked(Check& c) {
  int axis;
  if (!joined(c, &axis)) return false;
  Tensor part = c[0];
  std::copy(part.dims + axis + 1, part.dims + part.rank, part.dims + axis);
  --part.rank;
  for (int i = 1; i < c.step.tensor_count; ++i) {
    if (!c.same_dtype(i, 0) || !c.holds(repeats_to(c[i], part), "shape of a part", i)) return false;
  }
  return c.size(0, axis, c.integer(0));
}

bool repeated(Check& c) {
  if (!c.operands(1, 2) || !c.same_dtype(1, 0)) return false;
  Tensor tile = c[0];
  int64_t at = 0, tiles = 1;
  if (!c.list(&at, tile.rank, tile.rank)) return false;
  for (int axis = 0; axis < tile.rank; ++axis) {
    const int64_t times = c.integer(1 + axis), size = tile.dims[axis];
    if (!c.between(1 + axis, 0, kMostCount)) return false;
    const bool whole = times == 0 ? size == 0 : size % times == 0;
    if (!c.holds(whole, "a dim that is no multiple of its parts", size, times)) return false;
    tile.dims[axis] = times == 0 ? 0 : size / times;
    tiles = bounded_product(tiles, times);
  }
  return c.holds(tiles <= kMostCount, "too many copies", tiles) &&
         c.holds(tiles == 0 || repeats_to(c[1], tile), "an operand is no tile of the result");
}

bool filled(Check& c) {
  int64_t at = 0;
  return c.operands(1, 1) && c.dtype(0, kTypes) && c.list(&at, 0, kMaxRank) &&
         c.settings(at + 1, 1);
}

bool counted(Check& c) {
  return c.operands(1, 1) && c.settings(3, 3) && c.dtype(0, kTypes) && c.rank(0, 1, 1);
}

bool follows(Check& c) {
  return c.operands(1, 2) && c.settings(1) && c.dtype(0, only(DType::kInt64)) && c.rank(0, 0, 1) &&
         c.dtype(1, kPlaces) && c.count(0, c[1].count());
}

bool triangular(Check& c) { return copied(c) && c.settings(1) && c.rank(0, 2) && c.packed(0); }

}  // namespace

const Entry kCopies[] = {
    {"aten::clone", copy, copied},
    {"aten::copy", copy, copied},
    {"aten::reshape", reshape, reshaped},
    {"aten::cat", cat, concatenated},
    {"aten::repeat", repeat, repeated},
    {"aten::stack", stack, stacked},
    {"aten::full", full, filled},
    {"aten::arange.start_step", arange, counted},
    {"aten::tril", triangle<true>, triangular},
    {"aten::triu", triangle<false>, triangular},
    {"kvc::after", after, follows},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
