// Kernels of ops that stand for several; each element is rounded as by those.
#include <algorithm>

#include "elements.h"
#include "kernels.h"
#include "products.h"
#include "rows.h"

namespace kvc {
namespace {

// A tensor without its last axis, whose elements are rows of the whole.
Tensor rows_of(const Tensor& tensor) {
  Tensor rows = tensor;
  --rows.rank;
  return rows;
}

// As `ProductKernels::turn`, with elements at any strides: those of out, x, cos, sin.
void turn(const float* x, const float* cos, const float* sin, int64_t half, int64_t second,
          const int64_t* steps, float* out) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i * steps[1]], b = x[(half + i) * steps[1]];
    out[i * steps[0]] = a * cos[i * steps[2]] - b * sin[i * steps[3]];
    out[(half + i) * steps[0]] = b * cos[(second + i) * steps[2]] + a * sin[(second + i) * steps[3]];
  }
}

// x, cos, sin. Tables may be half as wide as x.
bool rotary_embedding(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const Tensor &cos = step.tensors[2], &sin = step.tensors[3];
  if (out.count() == 0) return true;
  const int64_t half = x.dim(-1) / 2, second = cos.dim(-1) == x.dim(-1) ? half : 0;
  const int64_t steps[4] = {out.stride(-1), x.stride(-1), cos.stride(-1), sin.stride(-1)};
  const bool together = std::all_of(steps, steps + 4, [](int64_t each) { return each == 1; });
  const ProductKernels& kernels = product_kernels();
  const Tensor to = rows_of(out), from = rows_of(x), cos_rows = rows_of(cos), sin_rows = rows_of(sin);
  const Loop<4> loop({&to, &from, &cos_rows, &sin_rows});
  for_runs(loop, std::max<int64_t>(1, kGrain / x.dim(-1)), context.threads, [&](const int64_t(&at)[4], int64_t rows) {
    for (int64_t row = 0; row < rows; ++row) {
      float* result = out.as<float>() + at[0] + row * loop.step(0);
      const float* read = x.as<const float>() + at[1] + row * loop.step(1);
      const float* c = cos.as<const float>() + at[2] + row * loop.step(2);
      const float* s = sin.as<const float>() + at[3] + row * loop.step(3);
      if (together) {
        kernels.turn(read, c, s, half, second, result);
      } else {
        turn(read, c, s, half, second, steps, result);
      }
    }
  });
  return true;
}

// The result may lie in the memory of either operand.
bool glu(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &gate = step.tensors[1], &up = step.tensors[2];
  if (out.count() == 0) return true;
  const Loop<3> loop({&out, &gate, &up});
  const bool together = loop.step(0) == 1 && loop.step(1) == 1 && loop.step(2) == 1;
  for_runs(loop, kGrain / 4, context.threads, [&](const int64_t(&at)[3], int64_t n) {
    float* to = out.as<float>() + at[0];
    const float *x = gate.as<const float>() + at[1], *y = up.as<const float>() + at[2];
    if (together) {
      gate_row(step.integers[0], x, y, n, to);
      return;
    }
    constexpr int64_t kPiece = 512;
    float gates[kPiece], ups[kPiece];
    for (int64_t begin = 0; begin < n; begin += kPiece) {
      const int64_t count = std::min(kPiece, n - begin);
      for (int64_t i = 0; i < count; ++i) {
        gates[i] = x[(begin + i) * loop.step(1)];
        ups[i] = y[(begin + i) * loop.step(2)];
      }
      gate_row(step.integers[0], gates, ups, count, gates);
      for (int64_t i = 0; i < count; ++i) to[(begin + i) * loop.step(0)] = gates[i];
    }
  });
  return true;
}

// Tables are as wide as x or half as wide.
bool rotated(Check& c) {
  if (!c.operands(1, 4) || !c.same_shape(0, 1)) return false;
  for (int i = 0; i < 4; ++i) {
    if (!c.dtype(i, kFloat) || !c.rank(i, 1)) return false;
  }
  const int64_t width = c[1].dim(-1), table = c[2].dim(-1);
  const Tensor rows = rows_of(c[1]);
  return c.holds(width % 2 == 0 && (table == width || 2 * table == width), "width of a table",
                 table, width) &&
         c.size(3, -1, table) &&
         c.holds(repeats_to(rows_of(c[2]), rows) && repeats_to(rows_of(c[3]), rows),
                 "rows of a table");
}

bool gated(Check& c) {
  return c.operands(1, 3) && c.settings(1) && c.dtype(0, kFloat) && c.dtype(1, kFloat) &&
         c.dtype(2, kFloat) && c.fits(1, 0) && c.fits(2, 0);
}

}  // namespace

void gate_row(int64_t activation, const float* gate, const float* up, int64_t n, float* y) {
  const ProductKernels& kernels = product_kernels();
  const auto activate = activation == 0 ? kernels.silu : (activation == 1 ? kernels.gelu : kernels.gelu_tanh);
  constexpr int64_t kPiece = 512;
  float active[kPiece];
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t count = std::min(kPiece, n - begin);
    activate(gate + begin, count, active);
    for (int64_t i = 0; i < count; ++i) y[begin + i] = active[i] * up[begin + i];
  }
}

const Entry kFused[] = {
    {"kvc::rotary_embedding", rotary_embedding, rotated},
    {"kvc::glu", glu, gated},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
