// Kernels that move elements: copies, concatenation, lookups by index, constants.
#include "copies.h"

#include <algorithm>
#include <cstring>

#include "pool.h"

namespace kvc {

int64_t itemsize(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16: return 2;
    default: return 1;
  }
}

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

// Copies n elements; steps are in elements.
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

}  // namespace

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

template <class F>
void with_size(DType dtype, const F& function) {
  switch (itemsize(dtype)) {
    case 8: return function(uint64_t{});
    case 4: return function(uint32_t{});
    case 2: return function(uint16_t{});
    default: return function(uint8_t{});
  }
}

// Whether each element of an index is from `least` on and below `size`.
bool check_index(const Tensor& index, int64_t least, int64_t size, const Context& context) {
  const int64_t count = index.count();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t found = index_at(index, i);
    if (found < least || found >= size) return context.refuse(Fault::kIndexOutOfRange, found, size);
  }
  return true;
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

// weight[index] * scale[index]
bool embedding_q8(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &weight = step.tensors[1];
  const Tensor &scale = step.tensors[2], &index = step.tensors[3];
  if (!check_index(index, 0, weight.dims[0], context)) return false;
  const int64_t width = weight.dims[1], count = index.count();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = index_at(index, i);
    const int8_t* from = weight.as<const int8_t>() + row * weight.strides[0];
    const int64_t stride = weight.strides[1];
    const float factor = scale.as<const float>()[row * scale.strides[0]];
    float* to = out.as<float>() + i * width;
    for (int64_t j = 0; j < width; ++j) to[j] = static_cast<float>(from[j * stride]) * factor;
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

// x with some axes, side by side, replaced by those of indices, which are broadcast.
bool index(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const Tensor* indices = step.tensors + 2;
  const int given = static_cast<int>(step.integers[0]);
  int first = 0, count = 0, width = 0;  // the axes that are indexed; axes of the indices
  while (!indices[first]) ++first;
  while (first + count < given && indices[first + count]) {
    width = std::max<int>(width, indices[first + count++].rank);
  }
  for (int i = 0; i < count; ++i) {
    const Tensor& one = indices[first + i];
    const int64_t size = x.dims[first + i], total = one.count();
    for (int64_t j = 0; j < total; ++j) {
      const int64_t found = index_at(one, j);
      if (found < -size || found >= size) return context.refuse(Fault::kIndexOutOfRange, found, size);
    }
  }
  Tensor to = out, from = x;  // what each place of the indices moves
  for (int axis = first + count; axis < x.rank; ++axis) {
    from.dims[axis - count] = x.dims[axis];
    from.strides[axis - count] = x.strides[axis];
    to.dims[axis - count] = x.dims[axis];
    to.strides[axis - count] = out.strides[axis - count + width];
  }
  from.rank = to.rank = x.rank - count;
  int64_t places = 1;
  for (int i = 0; i < width; ++i) places *= out.dims[first + i];
  const int64_t size = itemsize(x.dtype);
  for (int64_t place = 0; place < places; ++place) {
    int64_t coordinates[kMaxRank], rest = place, target = 0, source = 0;
    for (int i = width - 1; i >= 0; --i) {
      coordinates[i] = rest % out.dims[first + i];
      rest /= out.dims[first + i];
      target += coordinates[i] * out.strides[first + i];
    }
    for (int i = 0; i < count; ++i) {
      const Tensor& one = indices[first + i];
      int64_t offset = 0;
      for (int d = 0; d < one.rank; ++d) {
        if (one.dims[d] != 1) offset += coordinates[width - one.rank + d] * one.strides[d];
      }
      int64_t found = one.dtype == DType::kInt32 ? one.as<const int32_t>()[offset]
                                                 : one.as<const int64_t>()[offset];
      if (found < 0) found += x.dims[first + i];
      source += found * x.strides[first + i];
    }
    to.data = out.as<char>() + target * size;
    from.data = x.as<char>() + source * size;
    copy_into(to, from, 1);
  }
  return true;
}

bool full(const Step& step, const Context& context) {
  const Tensor& out = step.tensors[0];
  // After the sizes come the value, as an integer and a number.
  const int64_t whole = step.integers[1 + step.integers[0]];
  const double number = step.numbers[0];
  char value[8] = {};
  const auto hold = [&](auto typed) { std::memcpy(value, &typed, sizeof typed); };
  switch (out.dtype) {
    case DType::kFloat32: hold(static_cast<float>(number)); break;
    case DType::kFloat64: hold(number); break;
    case DType::kInt64: hold(whole); break;
    case DType::kInt32: hold(static_cast<int32_t>(whole)); break;
    case DType::kInt16: hold(static_cast<int16_t>(whole)); break;
    case DType::kBool: hold(static_cast<uint8_t>(number != 0)); break;
    default: hold(static_cast<uint8_t>(whole)); break;
  }
  const Tensor one{value, out.dtype, 0, {}, {}};
  copy_into(out, one, context.threads);
  return true;
}

bool arange(const Step& step, const Context&) {
  const Tensor& out = step.tensors[0];
  for (int64_t i = 0; i < out.dims[0]; ++i) {
    const int64_t whole = step.integers[0] + i * step.integers[2];
    const double number = step.numbers[0] + static_cast<double>(i) * step.numbers[2];
    switch (out.dtype) {
      case DType::kInt64: out.as<int64_t>()[i * out.strides[0]] = whole; break;
      case DType::kInt32: out.as<int32_t>()[i * out.strides[0]] = static_cast<int32_t>(whole); break;
      case DType::kFloat64: out.as<double>()[i * out.strides[0]] = number; break;
      default: out.as<float>()[i * out.strides[0]] = static_cast<float>(number); break;
    }
  }
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

bool gather(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &index = step.tensors[2];
  int axis = static_cast<int>(step.integers[0]);
  if (axis < 0) axis += x.rank;
  if (!check_index(index, 0, x.dims[axis], context)) return false;
  const int64_t count = out.count();
  with_size(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, to = 0, from = index_at(index, i) * x.strides[axis];
      for (int d = out.rank - 1; d >= 0; --d) {
        const int64_t place = rest % out.dims[d];
        rest /= out.dims[d];
        to += place * out.strides[d];
        if (d != axis) from += place * x.strides[d];
      }
      out.as<T>()[to] = x.as<const T>()[from];
    }
  });
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

}  // namespace

const Entry kCopies[] = {
    {"aten::clone", copy},
    {"aten::copy", copy},
    {"aten::reshape", reshape},
    {"aten::cat", cat},
    {"aten::stack", stack},
    {"aten::embedding", embedding},
    {"kvc::embedding_q8", embedding_q8},
    {"aten::index_select", index_select},
    {"aten::gather", gather},
    {"aten::index.Tensor", index},
    {"aten::full", full},
    {"aten::arange.start_step", arange},
    {"aten::tril", triangle<true>},
    {"aten::triu", triangle<false>},
    {"kvc::after", after},
    {nullptr, nullptr},
};

}  // namespace kvc
