// The rules that contracts are made of.
#include "contracts.h"

#include <algorithm>

#include "kernels.h"

namespace kvc {

const Tensor& Check::operator[](int i) const { return step.tensors[i]; }
int64_t Check::integer(int64_t i) const { return step.integers[i]; }
double Check::number(int64_t i) const { return step.numbers[i]; }

bool Check::operands(int written, int count, uint64_t optional) {
  results = written;
  if (!holds(step.tensor_count == count, "number of operands", step.tensor_count, count))
    return false;
  for (int i = 0; i < count; ++i) {
    const bool may_lack = i < 64 && (optional >> i & 1) != 0;
    if (!holds(may_lack || step.tensors[i], "an operand is left out", i)) return false;
  }
  return true;
}

bool Check::settings(int64_t integers, int64_t numbers) {
  return holds(integer_count >= integers, "integers are missing", integer_count, integers) &&
         holds(number_count >= numbers, "numbers are missing", number_count, numbers);
}

bool Check::dtype(int i, DTypes dtypes) {
  const DType found = step.tensors[i].dtype;
  return holds((only(found) & dtypes) != 0, "a dtype that the kernel does not take", i,
               static_cast<int64_t>(found));
}

bool Check::same_dtype(int i, int j) {
  return holds(step.tensors[i].dtype == step.tensors[j].dtype, "operands differ in dtype", i, j);
}

bool Check::rank(int i, int least, int most) {
  const int found = step.tensors[i].rank;
  return holds(found >= least && found <= most, "rank of an operand", i, found);
}

bool Check::packed(int i) { return holds(step.tensors[i].packed(), "an operand has gaps", i); }

bool Check::same_shape(int i, int j) {
  const Tensor &one = step.tensors[i], &other = step.tensors[j];
  return holds(one.rank == other.rank && std::equal(one.dims, one.dims + one.rank, other.dims),
               "operands differ in shape", i, j);
}

bool repeats_to(const Tensor& one, const Tensor& other) {
  if (one.rank > other.rank) return false;
  const int64_t* dims = other.dims + (other.rank - one.rank);
  for (int axis = 0; axis < one.rank; ++axis) {
    if (one.dims[axis] != dims[axis] && one.dims[axis] != 1) return false;
  }
  return true;
}

bool Check::fits(int i, int j) {
  return holds(repeats_to(step.tensors[i], step.tensors[j]),
               "an operand has not the shape of another", i, j);
}

bool Check::same_leading(int i, int j, int but) {
  const Tensor &one = step.tensors[i], &other = step.tensors[j];
  const bool ranked = one.rank == other.rank && one.rank >= but;
  return holds(ranked && std::equal(one.dims, one.dims + (one.rank - but), other.dims),
               "leading dims of operands differ", i, j);
}

bool Check::size(int i, int axis, int64_t expected) {
  const int64_t found = step.tensors[i].dim(axis);
  return holds(found == expected, "a dim of an operand", i, found);
}

bool Check::count(int i, int64_t expected) {
  const int64_t found = step.tensors[i].count();
  return holds(found == expected, "elements of an operand", i, found);
}

bool Check::axis(int64_t at, int rank, int* found) {
  const int64_t given = step.integers[at], axes = std::max(rank, 1);
  if (!holds(given >= -axes && given < axes, "an axis that there is not", given, rank))
    return false;
  if (found != nullptr) *found = static_cast<int>(given < 0 ? given + axes : given);
  return true;
}

bool Check::between(int64_t at, int64_t least, int64_t most) {
  const int64_t given = step.integers[at];
  return holds(given >= least && given <= most, "an integer out of range", at, given);
}

bool Check::list(int64_t* at, int64_t least, int64_t most) {
  if (!holds(*at < integer_count, "a list is missing", *at, integer_count)) return false;
  const int64_t length = step.integers[*at];
  if (!holds(length >= least && length <= most, "length of a list", *at, length)) return false;
  if (!holds(length < integer_count - *at, "a list ends after the integers", *at, length))
    return false;
  *at += 1 + length;
  return true;
}

bool Check::axes(int64_t* at, int rank) {
  if (!holds(*at < integer_count, "a list is missing", *at, integer_count)) return false;
  if (step.integers[*at] == kAbsent) {
    ++*at;
    return true;
  }
  const int64_t first = *at + 1;
  if (!list(at, 0, kMaxRank)) return false;
  for (int64_t i = first; i < *at; ++i) {
    if (!axis(i, rank)) return false;
  }
  return true;
}

bool Check::index(int i, DTypes dtypes) {
  steering |= uint64_t{1} << i;
  return dtype(i, dtypes);
}

bool Check::vector_or_none(int i, int64_t size, DTypes dtypes) {
  if (!step.tensors[i]) return true;
  return rank(i, 1, 1) && count(i, size) && dtype(i, dtypes) && packed(i);
}

bool never_from_files(Check& check) {
  return check.holds(false, "a kernel that no file may ask for");
}

}  // namespace kvc
