// Kernels of caches: writes at a cursor, growth, and the checks before the first write.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "copies.h"
#include "kernels.h"
#include "pool.h"
#include "products.h"
#include "rings.h"

namespace kvc {
namespace {

// Writes an update into a part of a cache: of the same dtype, or float32 into float16.
void write(const Tensor& to, const Tensor& from, int threads) {
  if (to.dtype == from.dtype) return copy_into(to, from, threads);
  const Loop<2> loop({&to, &from});
  for (int64_t run = 0; run < loop.runs(); ++run) {
    int64_t offsets[2];
    loop.start(run, offsets);
    Half* into = to.as<Half>() + offsets[0];
    const float* x = from.as<const float>() + offsets[1];
    if (loop.step(0) == 1 && loop.step(1) == 1) {
      product_kernels().narrow(x, loop.inner(), into);
      continue;
    }
    for (int64_t i = 0; i < loop.inner(); ++i) into[i * loop.step(0)] = Half(x[i * loop.step(1)]);
  }
}

// Results: cache. Arguments: update, write_indices?, axis, mode, row_lengths?, keep.
bool cache_update(const Step& step, const Context& context) {
  const Tensor &cache = step.tensors[0], &update = step.tensors[1];
  const Tensor &starts = step.tensors[2], &lengths = step.tensors[3];
  const int axis = static_cast<int>(step.integers[0] < 0 ? step.integers[0] + cache.rank
                                                         : step.integers[0]);
  const bool circular = step.integers[1] != 0;
  const int64_t keep = step.integers[2], slots = cache.dims[axis], seq = update.dims[axis];
  const auto start_of = [&](int64_t row) { return starts ? index_at(starts, row) : 0; };
  const auto length_of = [&](int64_t row) { return lengths ? index_at(lengths, row) : seq; };
  for (int64_t row = 0; row < cache.dims[0]; ++row) {
    const int64_t count = length_of(row);
    if (count < 0 || count > seq) return context.refuse(Fault::kRowLengthOutOfRange, row, count, seq);
  }
  for (int64_t row = 0; row < cache.dims[0]; ++row) {
    const int64_t start = start_of(row), count = length_of(row);
    if (start < 0 && (!circular || keep != 0)) {
      return context.refuse(Fault::kIndexOutOfRange, start, slots);
    }
    const int64_t room = circular ? slots - std::clamp<int64_t>(start, 0, keep) : slots - start;
    if (count > room) return context.refuse(Fault::kCacheOverflow, row, start, count, slots);
  }
  for (int64_t row = 0; row < cache.dims[0]; ++row) {
    const Tensor to = narrow(cache, 0, row, 1), from = narrow(update, 0, row, 1);
    for_slot_runs(start_of(row), length_of(row), slots, circular, keep,
                  [&](int64_t done, int64_t slot, int64_t count) {
      write(narrow(to, axis, slot, count), narrow(from, axis, done, count), context.threads);
    });
  }
  return true;
}

// The result is as long as past and update; past is in its place already.
bool append(const Step& step, const Context& context) {
  const Tensor &whole = step.tensors[0], &update = step.tensors[1];
  const int axis = static_cast<int>(step.integers[0]);
  const int64_t count = update.dim(axis);
  copy_into(narrow(whole, axis, whole.dim(axis) - count, count), update, context.threads);
  return true;
}

bool replace(const Step& step, const Context& context) {
  copy_into(step.tensors[0], step.tensors[1], context.threads);
  return true;
}

// Arguments: index, least, count, slots.
bool check_index(const Step& step, const Context& context) {
  const Tensor& index = step.tensors[0];
  const int64_t least = step.integers[0], count = step.integers[1], slots = step.integers[2];
  const int64_t total = index.count();
  for (int64_t i = 0; i < total; ++i) {
    const int64_t start = index_at(index, i);
    if (start < least) return context.refuse(Fault::kIndexOutOfRange, start, slots);
    if (start > slots - count) return context.refuse(Fault::kCacheOverflow, i, start, count, slots);
  }
  return true;
}

// Arguments: index, row_lengths, most, slots.
bool check_rows(const Step& step, const Context& context) {
  const Tensor &index = step.tensors[0], &lengths = step.tensors[1];
  const int64_t most = step.integers[0], slots = step.integers[1], rows = index.count();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = index_at(lengths, row);
    if (count < 0 || count > most) return context.refuse(Fault::kRowLengthOutOfRange, row, count, most);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t start = index_at(index, row), count = index_at(lengths, row);
    if (start < 0) return context.refuse(Fault::kIndexOutOfRange, start, slots);
    if (start > slots - count) return context.refuse(Fault::kCacheOverflow, row, start, count, slots);
  }
  return true;
}

// Results: int8 [..., width], float32 [...]; scale = max(absmax / 127, least normal).
bool quantize_cache(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &scales = step.tensors[1], &x = step.tensors[2];
  const int64_t width = x.dim(-1), rows = width != 0 ? x.count() / width : 0;
  const int64_t stride = x.stride(-1);
  parallel(rows, std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width)), context.threads,
           [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t offset = 0, rest = row;
      for (int axis = x.rank - 2; axis >= 0; --axis) {
        offset += rest % x.dims[axis] * x.strides[axis];
        rest /= x.dims[axis];
      }
      const float* from = x.as<const float>() + offset;
      int8_t* to = out.as<int8_t>() + row * width;
      float most = 0;
      for (int64_t i = 0; i < width; ++i) {
        const float size = std::fabs(from[i * stride]);
        if (size > most || size != size) most = size;
        if (most != most) break;
      }
      float scale = most / 127.0f;
      if (scale < 1.17549435e-38f) scale = 1.17549435e-38f;
      scales.as<float>()[row] = scale;
      for (int64_t i = 0; i < width; ++i) {
        const float steps = std::nearbyint(from[i * stride] / scale);
        to[i] = steps >= -127.0f && steps <= 127.0f ? static_cast<int8_t>(steps) : int8_t{0};
      }
    }
  });
  return true;
}

// Integers: axis, mode, keep. Lengths and starts are those of rows.
bool updated(Check& c) {
  int axis;
  const bool right = c.operands(1, 4, 0b1100) && c.settings(3) && c.rank(0, 2) &&
                     c.rank(1, c[0].rank, c[0].rank) && c.axis(0, c[0].rank, &axis) &&
                     c.holds(axis > 0, "rows lie along the first axis");
  if (!right) return false;
  const bool narrowed = c[0].dtype == DType::kFloat16 && c[1].dtype == DType::kFloat32;
  Tensor place = c[0];
  place.dims[axis] = c[1].dims[axis];
  for (int i = 2; i < 4; ++i) {
    if (!c[i]) continue;
    const bool enough = c[0].dims[0] == 0 || c[i].count() != 0;
    if (!c.index(i) || !c.holds(enough, "elements of an operand", i)) return false;
  }
  return (narrowed || c.same_dtype(1, 0)) && c.size(1, 0, c[0].dims[0]) &&
         c.holds(repeats_to(c[1], place), "shape of an update") && c.between(2, 0, c[0].dims[axis]);
}

bool appended(Check& c) {
  int axis;
  const bool right = c.operands(1, 2) && c.settings(1) && c.same_dtype(1, 0) && c.rank(0, 1) &&
                     c.rank(1, c[0].rank, c[0].rank) && c.axis(0, c[0].rank, &axis);
  if (!right) return false;
  Tensor place = c[0];
  place.dims[axis] = c[1].dims[axis];
  return c.holds(c[1].dims[axis] <= c[0].dims[axis], "an update longer than the whole") &&
         c.holds(repeats_to(c[1], place), "shape of an update");
}

bool replaced(Check& c) { return c.operands(1, 2) && c.same_dtype(1, 0) && c.fits(1, 0); }

bool index_checked(Check& c) { return c.operands(0, 1) && c.settings(3) && c.dtype(0, kPlaces); }

bool rows_checked(Check& c) {
  return c.operands(0, 2) && c.settings(2) && c.dtype(0, kPlaces) && c.dtype(1, kPlaces) &&
         c.holds(c[0].count() == 0 || c[1].count() != 0, "elements of an operand", 1);
}

bool quantized(Check& c) {
  if (!c.operands(2, 3) || !c.dtype(2, kFloat) || !c.rank(2, 1)) return false;
  const int64_t width = c[2].dim(-1);
  return c.dtype(0, only(DType::kInt8)) && c.same_shape(0, 2) && c.packed(0) &&
         c.dtype(1, kFloat) && c.packed(1) && (width == 0 || c.count(1, c[2].count() / width));
}

}  // namespace

const Entry kCaches[] = {
    {"kvc::cache_update", cache_update, updated},
    {"kvc::append", append, appended},
    {"kvc::replace", replace, replaced},
    {"kvc::check_index", check_index, index_checked},
    {"kvc::check_rows", check_rows, rows_checked},
    {"kvc::quantize_cache", quantize_cache, quantized},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
