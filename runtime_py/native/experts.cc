// Products that are made of those in products.cc: experts, and sums with another matrix.
#include <algorithm>
#include <string_view>
#include <type_traits>
#include <utility>

#include "copies.h"
#include "elements.h"
#include "family_contracts.h"
#include "kernels.h"
#include "matrices.h"
#include "pool.h"

namespace kvc {
namespace {

constexpr int kSlot = 4;  // of the workspace; those before it are for what is called here

// The kernel of a product, which is in a table.
Kernel product(const Entry* entry, std::string_view name) {
  while (entry->name != name) ++entry;
  return entry->kernel;
}

// A packed tensor [rows, columns], after which `*memory` stands.
Tensor take_rows(char** memory, DType dtype, int64_t rows, int64_t columns) {
  const Tensor found{*memory, dtype, 2, {rows, columns}, {columns, 1}};
  *memory += (rows * columns * itemsize(dtype) + 63) / 64 * 64;
  return found;
}

// One of the tensors along axis 0; nothing of nothing.
Tensor part_of(const Tensor& whole, int64_t index) {
  if (!whole) return whole;
  Tensor found = narrow(whole, 0, index, 1);
  --found.rank;
  std::copy_n(found.dims + 1, found.rank, found.dims);
  std::copy_n(found.strides + 1, found.rank, found.strides);
  return found;
}

// Runs a product for each expert that was chosen: of the rows that chose it, side by side.
// operands_of(expert) writes the operands that are the expert's after the N of rows.
template <int N, class F>
bool multiply_by_experts(const Step& step, const Tensor& experts, int64_t count, Kernel kernel,
                         const Context& context, const F& operands_of) {
  const Tensor& out = step.tensors[0];
  const int64_t rows = experts.count();
  int64_t nbytes = rows * sizeof(int64_t) + 64;
  for (int i = 0; i <= N; ++i) {
    nbytes += rows * step.tensors[i].dims[1] * itemsize(step.tensors[i].dtype) + 64;
  }
  auto* memory = static_cast<char*>(context.workspace(nbytes, kSlot));
  if (memory == nullptr) return context.complete();
  auto* waiting = reinterpret_cast<int64_t*>(memory);  // rows, in order
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t expert = index_at(experts, row);
    if (expert < 0 || expert >= count) return context.refuse(Fault::kIndexOutOfRange, expert, count);
    waiting[row] = row;
  }
  for (int64_t left = rows; left > 0;) {
    const int64_t expert = index_at(experts, waiting[0]);
    int64_t* others = std::stable_partition(waiting, waiting + left, [&](int64_t row) {
      return index_at(experts, row) == expert;
    });
    const int64_t chosen = others - waiting;
    Tensor operands[N + 4];
    char* free = memory + (rows * sizeof(int64_t) + 63) / 64 * 64;
    for (int i = 0; i <= N; ++i) {
      const Tensor& whole = step.tensors[i];
      operands[i] = take_rows(&free, whole.dtype, chosen, whole.dims[1]);
      for (int64_t row = 0; i > 0 && row < chosen; ++row) {
        copy_into(narrow(operands[i], 0, row, 1), narrow(whole, 0, waiting[row], 1), 1);
      }
    }
    operands_of(expert, operands + N + 1);
    if (!kernel({0, 0, operands, nullptr, nullptr}, context)) return false;
    for (int64_t row = 0; row < chosen; ++row) {
      copy_into(narrow(out, 0, waiting[row], 1), narrow(operands[0], 0, row, 1), 1);
    }
    std::copy(others, waiting + left, waiting);
    left -= chosen;
  }
  return true;
}

// Arguments: x, weight, experts, bias?, transposed.
bool expert_linear(const Step& step, const Context& context) {
  static const Kernel kernel = product(kProducts, "aten::linear");
  const Tensor &weight = step.tensors[2], &bias = step.tensors[4];
  const bool transposed = step.integers[0] != 0;
  const auto operands_of = [&](int64_t expert, Tensor* operands) {
    operands[0] = part_of(weight, expert);
    operands[1] = part_of(bias, expert);
    if (!transposed) return;
    std::swap(operands[0].dims[0], operands[0].dims[1]);
    std::swap(operands[0].strides[0], operands[0].strides[1]);
  };
  return multiply_by_experts<1>(step, step.tensors[3], weight.dims[0], kernel, context, operands_of);
}

// The N operands of rows, q, scale, zero_point and perhaps factor, then weight, weight_scale,
// experts, bias?
template <int N>
bool quantized_expert_linear(const Step& step, const Context& context) {
  static const Kernel kernel = product(kQuantizedProducts, N == 3 ? "kvc::linear_qd8" : "kvc::linear_q8");
  const Tensor* others = step.tensors + N + 1;
  const auto operands_of = [&](int64_t expert, Tensor* operands) {
    operands[0] = part_of(others[0], expert);
    operands[1] = part_of(others[1], expert);
    operands[2] = part_of(others[3], expert);
  };
  return multiply_by_experts<N>(step, others[2], others[0].dims[0], kernel, context, operands_of);
}

// out = beta * x + alpha * out; x is broadcast, and not read where beta is 0.
template <class T>
void add_scaled(const Tensor& out, const Tensor& x, T beta, T alpha, int threads) {
  const Loop<2> loop({&out, &x});
  for_runs(loop, kGrain, threads, [&](const int64_t (&at)[2], int64_t n) {
    T* to = out.as<T>() + at[0];
    const T* from = x.as<const T>() + at[1];
    for (int64_t i = 0; i < n; ++i) {
      const T product = static_cast<T>(alpha * to[i * loop.step(0)]);
      to[i * loop.step(0)] = beta != 0 ? static_cast<T>(beta * from[i * loop.step(1)] + product) : product;
    }
  });
}

// beta * x + alpha * (a b)
bool addmm(const Step& step, const Context& context) {
  static const Kernel kernel = product(kProducts, "aten::mm");
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const Tensor operands[3] = {out, step.tensors[2], step.tensors[3]};
  if (!kernel({0, 3, operands, nullptr, nullptr}, context)) return false;
  if (out.count() == 0) return true;
  with_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto factor = [&](int i) {
      return static_cast<T>(std::is_integral_v<T> ? step.integers[i] : step.numbers[i]);
    };
    add_scaled<T>(out, x, factor(0), factor(1), context.threads);
  });
  return true;
}

// Rows of x, operand 1, choose among weights [experts, columns, depth], or turned.
bool multiplied_by_experts(Check& c) {
  const bool right = c.operands(1, 5, 0b10000) && c.settings(1) &&
                     c.dtype(0, kTypes | only(DType::kBFloat16)) && c.same_dtype(1, 0) &&
                     c.same_dtype(2, 0) && c.rank(0, 2, 2) && c.rank(1, 2, 2) && c.rank(2, 3, 3) &&
                     c.index(3);
  if (!right) return false;
  const int64_t rows = c[3].count();
  const int columns = c.integer(0) != 0 ? -1 : -2, depth = -3 - columns;
  const bool fits = c.size(0, 0, rows) && c.size(1, 0, rows) && c.size(2, columns, c[0].dims[1]) &&
                    c.size(2, depth, c[1].dims[1]);
  return fits && (!c[4] || (c.same_dtype(4, 0) && c.rank(4, 2, 2) && c.size(4, 0, c[2].dims[0]) &&
                            c.size(4, 1, c[0].dims[1]) && c.packed(4)));
}

bool added_to_product(Check& c) {
  return c.operands(1, 4) && c.settings(2, 2) && c.rank(0, 2, 2) && c.rank(2, 2, 2) &&
         c.rank(3, 2, 2) && matrices_multiplied(c, 0, 2, 3) && c.same_dtype(1, 0) && c.fits(1, 0);
}

}  // namespace

const Entry kExperts[] = {
    {"kvc::expert_linear", expert_linear, multiplied_by_experts},
    {"kvc::expert_linear_qd8", quantized_expert_linear<3>, quantized_rows_multiplied_by_experts},
    {"kvc::expert_linear_q8", quantized_expert_linear<4>, quantized_blocks_multiplied_by_experts},
    {"aten::addmm", addmm, added_to_product},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
