// What each operand of a step must be by itself, and which of them must lie apart; what they must
// be together is in the contract of the kernel.
#include "checks.h"

#include <algorithm>

#include "types.h"

namespace kvc {
namespace {

// The bytes of an operand.
struct Extent {
  uintptr_t begin, end;

  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

// Whether no two elements are the same one: in order of their strides, each axis steps over all
// that those before it reach. Enough for parts and transposed parts of arrays without gaps.
bool apart(const Tensor& x) {
  int axes[kMaxRank], rank = 0;
  for (int axis = 0; axis < x.rank; ++axis) {
    if (x.dims[axis] == 1) continue;
    int at = rank++;
    for (; at > 0 && x.strides[axes[at - 1]] > x.strides[axis]; --at) axes[at] = axes[at - 1];
    axes[at] = axis;
  }
  int64_t reach = 0;
  for (int i = 0; i < rank; ++i) {
    if (x.strides[axes[i]] <= reach) return false;
    reach += (x.dims[axes[i]] - 1) * x.strides[axes[i]];
  }
  return true;
}

class StepCheck {
 public:
  StepCheck(const Region* regions, int32_t count) : regions_(regions), count_(count) {}

  bool run(const Entry& entry, const Step& step, const SettingCounts& counts, Breach* breach) {
    breach_ = breach;
    for (int i = 0; i < step.tensor_count; ++i) {
      if (!described(step.tensors[i], i)) return false;
    }
    Check check(step, counts.integers, counts.numbers);
    if (!entry.contract(check)) {
      const char* rule = check.rule != nullptr ? check.rule : "the contract of the kernel";
      return tell(rule, -1, check.facts[0], check.facts[1]);
    }
    for (int i = 0; i < step.tensor_count; ++i) {
      if (!placed(step.tensors[i], i, i < check.results)) return false;
    }
    return check.steering == 0 || steered_from_outside(step, check);
  }

 private:
  const Region* regions_;
  int32_t count_, last_ = 0;  // where the last operand was found
  Breach* breach_ = nullptr;

  bool tell(const char* rule, int operand, int64_t a = 0, int64_t b = 0) {
    breach_->rule = rule;
    breach_->operand = operand;
    breach_->facts[0] = a;
    breach_->facts[1] = b;
    return false;
  }

  // Whether dtype, rank, dims and strides are those of a tensor.
  bool described(const Tensor& x, int i) {
    const auto dtype = static_cast<int32_t>(x.dtype);
    if (dtype < 0 || dtype > static_cast<int32_t>(DType::kBool))
      return tell("an unknown dtype", i, dtype);
    if (x.rank < 0 || x.rank > kMaxRank) return tell("rank of a tensor", i, x.rank);
    int64_t elements = 1;
    for (int axis = 0; axis < x.rank; ++axis) {
      const int64_t dim = x.dims[axis], stride = x.strides[axis];
      if (dim < 0 || dim > kMostCount) return tell("a dim out of range", i, axis, dim);
      if (stride < 0 || stride > kMostProduct)
        return tell("a stride out of range", i, axis, stride);
      if (dim > 1 && (elements *= dim) > kMostCount) return tell("too many elements", i, elements);
    }
    for (int axis = x.rank; axis < kMaxRank; ++axis) {
      if ((x.dims[axis] | x.strides[axis]) != 0) return tell("dims after the rank", i, axis);
    }
    if (x.data == nullptr && (x.rank | dtype) != 0)
      return tell("an operand that is left out has dims", i, x.rank);
    return true;
  }

  // Where an operand lies. False where its end cannot be told in 64 bits.
  static bool find_extent(const Tensor& x, Extent* found) {
    const auto begin = reinterpret_cast<uintptr_t>(x.data);
    int64_t reach = 1;
    bool empty = false;
    for (int axis = 0; axis < x.rank; ++axis) {
      if (x.dims[axis] == 0) empty = true;
      else if (__builtin_add_overflow(reach, bounded_product(x.dims[axis] - 1, x.strides[axis]),
                                      &reach))
        return false;
    }
    *found = Extent{begin, begin};
    if (empty) return true;
    if (reach > kMostProduct) return false;
    return !__builtin_add_overflow(begin, static_cast<uintptr_t>(reach * itemsize(x.dtype)),
                                   &found->end);
  }

  bool within(const Region& region, const Extent& extent) const {
    return extent.begin >= region.begin && extent.end <= region.end;
  }

  // The region that an operand lies in, or null.
  const Region* region_of(const Extent& extent) {
    if (count_ > 0 && within(regions_[last_], extent)) return &regions_[last_];
    const Region* after = std::upper_bound(
        regions_, regions_ + count_, extent.begin,
        [](uintptr_t begin, const Region& region) { return begin < region.begin; });
    if (after == regions_ || !within(after[-1], extent)) return nullptr;
    last_ = static_cast<int32_t>(after - regions_) - 1;
    return after - 1;
  }

  // Whether an operand lies where it may. One without elements may lie anywhere.
  bool placed(const Tensor& x, int i, bool written) {
    Extent extent{};
    if (!find_extent(x, &extent)) return tell("an operand too large", i);
    if (extent.begin == extent.end || x.data == nullptr) return true;
    if (extent.begin % itemsize(x.dtype) != 0) return tell("an operand is not aligned", i);
    const Region* region = region_of(extent);
    if (region == nullptr) return tell("an operand lies outside of all regions", i);
    if (!written) return true;
    if (region->writable == 0) return tell("a result where nothing may be written", i);
    return apart(x) || tell("elements of a result are the same", i);
  }

  // Whether no result lies over an operand whose values the kernel has looked at before.
  bool steered_from_outside(const Step& step, const Check& check) {
    for (int i = check.results; i < step.tensor_count && i < 64; ++i) {
      const Tensor& x = step.tensors[i];
      Extent mine{}, other{};
      if ((check.steering >> i & 1) == 0 || x.data == nullptr || !find_extent(x, &mine)) continue;
      for (int j = 0; j < check.results; ++j) {
        const Tensor& result = step.tensors[j];
        if (result.data == nullptr || !find_extent(result, &other) || !mine.meets(other)) continue;
        if (!check.in_place || !same_elements(x, result))
          return tell("a result lies over indices or lengths", j, i);
      }
    }
    return true;
  }

  static bool same_elements(const Tensor& x, const Tensor& y) {
    return x.data == y.data && x.dtype == y.dtype && x.rank == y.rank &&
           std::equal(x.dims, x.dims + x.rank, y.dims) &&
           std::equal(x.strides, x.strides + x.rank, y.strides);
  }
};

}  // namespace

bool check_steps(const Entry* kernels, int32_t kernel_count, const Step* steps,
                 const SettingCounts* counts, int32_t count, const Region* regions,
                 int32_t region_count, Breach* breach) {
  *breach = Breach{0, -1, nullptr, {0, 0}};
  StepCheck check(regions, region_count);
  for (int32_t i = 0; i < count; ++i) {
    const Step& step = steps[i];
    breach->step = i;
    if (step.kernel < 0 || step.kernel >= kernel_count) {
      breach->rule = "an unknown kernel";
      breach->facts[0] = step.kernel;
      return false;
    }
    if (step.tensor_count < 0 || counts[i].integers < 0 || counts[i].numbers < 0) {
      breach->rule = "a negative number of operands";
      return false;
    }
    if (!check.run(kernels[step.kernel], step, counts[i], breach)) return false;
  }
  return true;
}

}  // namespace kvc
