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

bool rolled(Check& c) {
  const bool right = c.operands(1, 2) && c.alike(0, 1) && c.both_packed(0, 1);
  int64_t shifts = 0;
  if (!right || !c.list(&shifts, 0, kMostSetting)) return false;
  int64_t axes = shifts;
  if (!c.axes(&axes, c[1].rank)) return false;
  const int64_t count = c.integer(0), given = c.integer(shifts);
  return c.holds(given == 0 || (given == count && c[1].rank != 0), "axes and distances differ",
                 given, count);
}

bool flipped(Check& c) {
  int64_t at = 0;
  return c.operands(1, 2) && c.alike(0, 1) && c.axes(&at, c[1].rank) &&
         c.holds(c.integer(0) >= 0, "axes are left out");
}

bool padded(Check& c) {
  int64_t at = 0;
  const bool right = c.operands(1, 2) && c.dtype(1, kTypes) && c.same_dtype(0, 1) &&
                     c.rank(0, c[1].rank, c[1].rank) && c.list(&at, 0, 2 * c[1].rank) &&
                     c.settings(at + 1, 1);
  if (!right || !c.holds(c.integer(0) % 2 == 0, "length of a list", c.integer(0))) return false;
  for (int axis = 0; axis < c[1].rank; ++axis) {
    int64_t size = c[1].dims[axis];
    const int64_t i = 1 + 2 * (c[1].rank - 1 - axis);
    if (i < at) {
      if (!c.between(i, -kMostCount, kMostCount) || !c.between(i + 1, -kMostCount, kMostCount)) {
        return false;
      }
      size += c.integer(i) + c.integer(i + 1);
    }
    if (!c.size(0, axis, size)) return false;
  }
  return true;
}

bool on_diagonal(Check& c) {
  int rows, columns;
  const bool right = c.operands(1, 2) && c.same_dtype(0, 1) && c.settings(3) && c.rank(1, 2) &&
                     c.rank(0, c[1].rank - 1, c[1].rank - 1) && c.axis(1, c[1].rank, &rows) &&
                     c.axis(2, c[1].rank, &columns) &&
                     c.holds(rows != columns, "axes of a diagonal", rows, columns) &&
                     c.between(0, -kMostCount, kMostCount);
  if (!right) return false;
  Tensor rest = c[1];
  const int64_t offset = c.integer(0);
  const int64_t most = std::min(rest.dims[rows] + std::min<int64_t>(0, offset),
                                rest.dims[columns] - std::max<int64_t>(0, offset));
  drop(&rest, std::max(rows, columns));
  drop(&rest, std::min(rows, columns));
  return c.holds(std::equal(rest.dims, rest.dims + rest.rank, c[0].dims), "shape of a result") &&
         c.holds(c[0].dim(-1) <= std::max<int64_t>(0, most), "a diagonal is longer than its matrix",
                 c[0].dim(-1), most);
}

bool unfolded(Check& c) {
  int axis;
  const bool right = c.operands(1, 2) && c.same_dtype(0, 1) && c.settings(3) && c.rank(1, 1) &&
                     c.rank(0, c[1].rank + 1, c[1].rank + 1) && c.axis(0, c[1].rank, &axis) &&
                     c.between(1, 0, kMostCount) && c.between(2, 1, kMostSetting);
  if (!right) return false;
  Tensor windows = c[1];
  windows.dims[axis] = c[0].dims[axis];
  const int64_t reach = (c[0].dims[axis] - 1) * c.integer(2) + c.integer(1);
  return c.holds(std::equal(windows.dims, windows.dims + windows.rank, c[0].dims),
                 "shape of a result") &&
         c.size(0, -1, c.integer(1)) &&
         c.holds(c[0].dims[axis] == 0 || reach <= c[1].dims[axis], "windows end after the axis",
                 reach);
}

}  // namespace

const Entry kMoves[] = {
    {"aten::roll", roll, rolled},
    {"aten::flip", flip, flipped},
    {"aten::constant_pad_nd", pad, padded},
    {"aten::diagonal", diagonal, on_diagonal},
    {"aten::unfold", unfold, unfolded},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
