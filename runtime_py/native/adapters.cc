// kvc::adapted: what the adapter of each row of a batch adds to the results of a layer.
#include <algorithm>
#include <cstring>

#include "copies.h"
#include "kernels.h"
#include "pool.h"
#include "products.h"

namespace kvc {
namespace {

constexpr int64_t kTokensTogether = 16;
constexpr int64_t kWorthAThread = 65536;  // multiplications

// The tokens of each row of [batch, ..., width].
int64_t tokens_of(const Tensor& rows) {
  int64_t product = 1;
  for (int axis = 1; axis < rows.rank - 1; ++axis) product *= rows.dims[axis];
  return product;
}

// The operands, and how many rows and columns they have.
struct Adapted {
  const Tensor &out, &y, &x, &a, &b, &factors, &ranks, &adapters, &scales, &gain, &offset;
  int64_t most = b.dims[1], depth = x.dim(-1), columns = b.dims[2];
  int64_t batch = y.dims[0], tokens = tokens_of(y);

  int64_t adapter(int64_t row) const { return index_at(adapters, row); }

  int64_t used(int64_t adapter) const {
    return std::min(std::max<int64_t>(*static_cast<const int64_t*>(part(ranks, adapter)), 0), most);
  }
  // The part of an operand that an adapter has.
  const void* part(const Tensor& whole, int64_t adapter) const {
    return whole.as<const char>() + adapter * whole.strides[0] * itemsize(whole.dtype);
  }
  const float* floats(const Tensor& whole, int64_t adapter) const {
    return whole ? static_cast<const float*>(part(whole, adapter)) : nullptr;
  }
};

// low = scale * x a^T, or scale * x where there is no a, for some tokens of a row of the batch, and ranks `begin` to `end`.
void lower(const Adapted& t, int64_t row, int64_t token, int64_t count, int64_t begin, int64_t end,
           float* low) {
  const int64_t adapter = t.adapter(row), used = t.used(adapter);
  const float* x = t.x.as<const float>() + (row * t.tokens + token) * t.depth;
  const float scale = t.scales.as<const float>()[row];
  const float* factors = t.floats(t.factors, adapter);
  if (!t.a) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t r = begin; r < end; ++r) {
        const float factor = factors != nullptr ? factors[r] : 1.0f;
        low[i * t.most + r] = x[i * t.depth + r] * (factor * scale);
      }
    }
    return;
  }
  FloatProduct product{};
  product.x = x;
  product.x_stride = product.w_stride = product.depth = t.depth;
  product.w = t.part(t.a, adapter);
  product.out = low;
  product.out_stride = t.most;
  product.out_step = 1;
  product.rows = count;
  product.columns = used;
  product.floats = t.a.dtype == DType::kInt8 ? Floats::kInt8Weights : Floats::kFloat32;
  product_kernels().floats(product, begin, end);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t r = begin; r < end; ++r) {
      low[i * t.most + r] *= factors != nullptr ? factors[r] * scale : scale;
    }
  }
}

// The columns `begin` to `end` of one token's result.
void raise(const Adapted& t, int64_t row, int64_t token, const float* low, int64_t begin, int64_t end) {
  const int64_t adapter = t.adapter(row), at = (row * t.tokens + token) * t.columns;
  const float* y = t.y.as<const float>() + at;
  float* out = t.out.as<float>() + at;
  const int64_t used = t.used(adapter);
  if (used == 0 || (!t.gain && !t.offset)) {
    std::memcpy(out + begin, y + begin, (end - begin) * sizeof(float));
  } else {
    const float *gain = t.floats(t.gain, adapter), *offset = t.floats(t.offset, adapter);
    for (int64_t i = begin; i < end; ++i) {
      const float made = gain != nullptr ? y[i] * gain[i] : y[i];
      out[i] = offset != nullptr ? made + offset[i] : made;
    }
  }
  if (used == 0) return;
  const char* b = static_cast<const char*>(t.part(t.b, adapter)) + begin * itemsize(t.b.dtype);
  product_kernels().add_rows({low, b, t.columns, used, end - begin, out + begin, t.b.dtype == DType::kInt8});
}

// Arguments: y, x, a?, b, factors?, ranks, adapters, scales, gain?, offset?.
bool adapted(const Step& step, const Context& context) {
  const Tensor* o = step.tensors;
  const Adapted t{o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7], o[8], o[9], o[10]};
  for (int64_t row = 0; row < t.batch; ++row) {
    const int64_t adapter = t.adapter(row), count = t.b.dims[0];
    if (adapter < 0 || adapter >= count) return context.refuse(Fault::kIndexOutOfRange, adapter, count);
  }
  if (t.out.count() == 0) return true;
  const auto memory = [&] {
    return static_cast<float*>(context.workspace(kTokensTogether * t.most * sizeof(float)));
  };
  const int64_t blocks = (t.tokens + kTokensTogether - 1) / kTokensTogether;
  if (t.tokens > 1) {
    parallel(t.batch * blocks, 1, context.threads, [&](int64_t begin, int64_t end, int) {
      float* low = memory();
      for (int64_t i = begin; low != nullptr && i < end; ++i) {
        const int64_t row = i / blocks, first = i % blocks * kTokensTogether;
        const int64_t count = std::min(kTokensTogether, t.tokens - first);
        const int64_t used = t.used(t.adapter(row));
        if (used > 0) lower(t, row, first, count, 0, used, low);
        for (int64_t j = 0; j < count; ++j) raise(t, row, first + j, low + j * t.most, 0, t.columns);
      }
    });
    return context.complete();
  }
  float* low = memory();
  if (low == nullptr) return context.complete();
  for (int64_t row = 0; row < t.batch; ++row) {
    const int64_t used = t.used(t.adapter(row));
    const int64_t ranks = kWorthAThread / std::max<int64_t>(t.depth, 1) + 1;
    const int64_t grain = kWorthAThread / (used + 1) / 8 * 8 + 8;
    parallel(used, ranks, context.threads,
             [&](int64_t begin, int64_t end, int) { lower(t, row, 0, 1, begin, end, low); });
    parallel(t.columns, grain, context.threads,
             [&](int64_t begin, int64_t end, int) { raise(t, row, 0, low, begin, end); });
  }
  return true;
}

// An operand [adapters, ..] whose elements of each adapter lie together.
bool of_adapters(Check& c, int i, int rank, DTypes dtypes) {
  if (!c.dtype(i, dtypes) || !c.rank(i, rank, rank) || !c.size(i, 0, c[4].dims[0])) return false;
  const bool together = c[i].packed(rank - 1);
  return c.holds(together, "an operand has gaps", i);
}

// Operands as in `Adapted`.
bool adds_adapters(Check& c) {
  constexpr DTypes kWeights = kFloat | only(DType::kInt8);
  const bool right = c.operands(1, 11, 0b11000101000) && c.dtype(0, kFloat) && c.alike(1, 0) &&
                     c.rank(1, 2) && c.both_packed(0, 1) && c.dtype(2, kFloat) && c.packed(2) &&
                     c.same_leading(2, 1, 1) && c.rank(4, 3, 3) && of_adapters(c, 4, 3, kWeights) &&
                     c.size(4, -1, c[1].dim(-1));
  if (!right) return false;
  const int64_t most = c[4].dims[1], depth = c[2].dim(-1), batch = c[1].dims[0];
  const auto values = [&c](int i, int64_t size) {
    return !c[i] || (of_adapters(c, i, 2, kFloat) && c.size(i, -1, size));
  };
  const bool lowers =
      c[3] ? of_adapters(c, 3, 3, kWeights) && c.size(3, 1, most) && c.size(3, 2, depth)
           : c.holds(depth == most, "as many elements as ranks", depth, most);
  return lowers && values(5, most) && of_adapters(c, 6, 1, only(DType::kInt64)) &&
         c.index(6, only(DType::kInt64)) && c.index(7) &&
         c.holds(batch == 0 || c[7].count() != 0, "elements of an operand", 7) &&
         c.dtype(8, kFloat) && c.packed(8) && c.count(8, batch) && values(9, c[4].dims[2]) &&
         values(10, c[4].dims[2]);
}

}  // namespace

const Entry kAdapters[] = {
    {"kvc::adapted", adapted, adds_adapters},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
