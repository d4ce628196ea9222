// Kernels that copy elements to other places of a grid: rolled, turned, padded, in windows.
#include <algorithm>

#include "copies.h"
#include "kernels.h"

namespace kvc {
namespace {

// x by `shift` elements to the end along an axis; what falls out comes back at its beginning.
// Axes from `axis` on are left to do.
void roll_from(const Tensor& out, const Tensor& x, const int64_t* shifts, int axis, int threads) {
  if (axis == out.rank) return copy_into(out, x, threads);
  const int64_t size = x.dims[axis], shift = shifts[axis];
  if (shift == 0) return roll_from(out, x, shifts, axis + 1, threads);
  roll_from(narrow(out, axis, shift, size - shift), narrow(x, axis, 0, size - shift), shifts, axis + 1,
            threads);
  roll_from(narrow(out, axis, 0, shift), narrow(x, axis, size - shift, shift), shifts, axis + 1, threads);
}

// Arguments: how many shifts, which; how many axes, which. Without axes all elements are one
// row. x and the result lie together.
bool roll(const Step& step, const Context& context) {
  Tensor out = step.tensors[0], x = step.tensors[1];
  if (out.count() == 0) return true;
  const int64_t count = step.integers[0];
  const int64_t *given = step.integers + 1, *axes = given + count + 1;
  const bool flat = given[count] == 0;
  if (flat) {
    for (Tensor* each : {&out, &x}) {
      each->dims[0] = each->count();
      each->strides[0] = each->rank = 1;
    }
  }
  int64_t shifts[kMaxRank] = {};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t axis = flat ? 0 : axes[i] < 0 ? axes[i] + x.rank : axes[i];
    const int64_t size = x.dims[axis];
    shifts[axis] = ((shifts[axis] + given[i] % size) % size + size) % size;
  }
  roll_from(out, x, shifts, 0, context.threads);
  return true;
}

bool flip(const Step& step, const Context& context) {
  const Tensor& out = step.tensors[0];
  Tensor x = step.tensors[1];
  if (out.count() == 0 || x.rank == 0) return copy_into(out, x, context.threads), true;
  for (int64_t i = 0; i < step.integers[0]; ++i) {
    const int64_t given = step.integers[1 + i], axis = given < 0 ? given + x.rank : given;
    x = narrow(x, static_cast<int>(axis), x.dims[axis] - 1, x.dims[axis]);
    x.strides[axis] = -x.strides[axis];
  }
  copy_into(out, x, context.threads);
  return true;
}

// Arguments: how many numbers, then two for each axis from the last on, then the value. A
// negative number takes elements away.
bool pad(const Step& step, const Context& context) {
  const int64_t count = step.integers[0];
  const int64_t* pads = step.integers + 1;
  Tensor out = step.tensors[0], x = step.tensors[1];
  if (out.count() == 0) return true;
  for (int64_t i = 0; i < count; i += 2) {
    const int64_t size = x.dim(-1 - static_cast<int>(i / 2));
    const int64_t taken = -std::min<int64_t>(0, pads[i]) - std::min<int64_t>(0, pads[i + 1]);
    if (taken > size) return context.refuse(Fault::kIndexOutOfRange, taken, size);
  }
  char element[8];
  const Tensor value = scalar_of(out.dtype, pads[count], step.numbers[0], element);
  for (int64_t i = 0; i < count; i += 2) {
    const int axis = x.rank - 1 - static_cast<int>(i / 2);
    const int64_t size = out.dims[axis];
    const int64_t before = std::max<int64_t>(0, pads[i]), after = std::max<int64_t>(0, pads[i + 1]);
    copy_into(narrow(out, axis, 0, before), value, context.threads);
    copy_into(narrow(out, axis, size - after, after), value, context.threads);
    out = narrow(out, axis, before, size - before - after);
    x = narrow(x, axis, std::max<int64_t>(0, -pads[i]), size - before - after);
  }
  copy_into(out, x, context.threads);
  return true;
}

// Leaves an axis out.
void drop(Tensor* x, int64_t axis) {
  for (--x->rank; axis < x->rank; ++axis) {
    x->dims[axis] = x->dims[axis + 1];
    x->strides[axis] = x->strides[axis + 1];
  }
}

// Arguments: the column in which the diagonal begins, the axes of rows and of columns.
bool diagonal(const Step& step, const Context& context) {
  const Tensor& out = step.tensors[0];
  Tensor x = step.tensors[1];
  if (out.count() == 0) return true;
  const int64_t offset = step.integers[0];
  const int64_t rows = step.integers[1] + (step.integers[1] < 0 ? x.rank : 0);
  const int64_t columns = step.integers[2] + (step.integers[2] < 0 ? x.rank : 0);
  const int64_t along = x.strides[rows] + x.strides[columns];
  const int64_t first = offset < 0 ? -offset * x.strides[rows] : offset * x.strides[columns];
  x.data = x.as<char>() + first * itemsize(x.dtype);
  drop(&x, std::max(rows, columns));
  drop(&x, std::min(rows, columns));
  x.dims[x.rank] = out.dims[x.rank];
  x.strides[x.rank++] = along;
  copy_into(out, x, context.threads);
  return true;
}

// Arguments: the axis, the size of a window, from a window to the next.
bool unfold(const Step& step, const Context& context) {
  const Tensor& out = step.tensors[0];
  Tensor x = step.tensors[1];
  const int64_t axis = step.integers[0] + (step.integers[0] < 0 ? x.rank : 0);
  x.dims[x.rank] = step.integers[1];
  x.strides[x.rank++] = x.strides[axis];
  x.dims[axis] = out.dims[axis];
  x.strides[axis] *= step.integers[2];
  copy_into(out, x, context.threads);
  return true;
}

}  // namespace

const Entry kMoves[] = {
    {"aten::roll", roll},
    {"aten::flip", flip},
    {"aten::constant_pad_nd", pad},
    {"aten::diagonal", diagonal},
    {"aten::unfold", unfold},
    {nullptr, nullptr},
};

}  // namespace kvc
