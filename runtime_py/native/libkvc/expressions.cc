#include "expressions.h"

#include <algorithm>
#include <numeric>

#include "errors.h"

namespace kvc::lib {
namespace {

constexpr int64_t kMost = int64_t{1} << 61;
constexpr const char* kNames[] = {"float32", "float64", "float16", "bfloat16", "int8",
                                  "int16",   "int32",   "int64",   "uint8",    "bool"};
constexpr int64_t kBytes[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 1};

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t clamped(int64_t value) { return std::min(std::max(value, -kMost), kMost); }

int64_t times(int64_t a, int64_t b) {
  int64_t product;
  if (multiply(a, b, &product)) return clamped(product);
  return (a < 0) == (b < 0) ? kMost : -kMost;
}

}  // namespace

const char* dtype_name(int32_t dtype) {
  return dtype >= 0 && dtype < 10 ? kNames[dtype] : "unknown";
}

int64_t dtype_nbytes(int32_t dtype) { return kBytes[dtype]; }

bool Symbol::takes(int64_t size) const {
  if (size < lower || size > upper) return false;
  return buckets.empty() || std::binary_search(buckets.begin(), buckets.end(), size);
}

std::string Symbol::allowed() const {
  if (buckets.empty()) return std::to_string(lower) + ".." + std::to_string(upper);
  std::string text;
  for (const int64_t size : buckets) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return text;
}

int64_t Expressions::factor_at(uint32_t factor, const Sizes& sizes) const {
  if (factor < symbols.size()) return sizes[factor];
  const Quotient& quotient = quotients[factor - symbols.size()];
  return floor_divide(evaluate(Dim{true, quotient.dividend}, sizes), quotient.divisor);
}

int64_t Expressions::evaluate(Dim dim, const Sizes& sizes) const {
  if (!dim.affine) return dim.value;
  const Affine& affine = affines[static_cast<size_t>(dim.value)];
  int64_t total = affine.constant;
  for (const Term& term : affine.terms) {
    int64_t product = term.coefficient;
    bool fits = true;
    for (const uint32_t factor : term.factors) {
      fits = fits && multiply(product, factor_at(factor, sizes), &product);
    }
    if (!fits || !add(total, product, &total) || total > kMost || total < -kMost) {
      fail(KVC_DAMAGED, "the size %s has more than 61 bits", text(dim).c_str());
    }
  }
  return total;
}

void Expressions::settle(Dim dim, int64_t size, Sizes* sizes) const {
  if (!dim.affine) return;
  uint32_t unknown = 0;
  int count = 0;
  for (const Term& term : affines[static_cast<size_t>(dim.value)].terms) {
    for (const uint32_t factor : term.factors) {
      if (factor >= symbols.size()) return;
      if ((*sizes)[factor] != kUnknown || (count > 0 && factor == unknown)) continue;
      unknown = factor;
      ++count;
    }
  }
  if (count != 1) return;
  (*sizes)[unknown] = 0;
  const int64_t rest = evaluate(dim, *sizes);
  (*sizes)[unknown] = 1;
  const int64_t coefficient = evaluate(dim, *sizes) - rest;
  (*sizes)[unknown] = coefficient == 0 ? kUnknown : floor_divide(size - rest, coefficient);
}

bool Expressions::known(Dim dim, const Sizes& sizes) const {
  bool all = true;
  each_symbol(dim, [&](uint32_t symbol) { all = all && sizes[symbol] != kUnknown; });
  return all;
}

int Expressions::only_symbol(Dim dim) const {
  if (!dim.affine) return -1;
  const Affine& affine = affines[static_cast<size_t>(dim.value)];
  if (affine.constant != 0 || affine.terms.size() != 1) return -1;
  const Term& term = affine.terms[0];
  const bool alone = term.coefficient == 1 && term.factors.size() == 1;
  return alone && term.factors[0] < symbols.size() ? static_cast<int>(term.factors[0]) : -1;
}

std::pair<int64_t, int64_t> Expressions::bounds(Dim dim) const {
  if (!dim.affine) return {dim.value, dim.value};
  const Affine& affine = affines[static_cast<size_t>(dim.value)];
  int64_t low = affine.constant, high = affine.constant;
  for (const Term& term : affine.terms) {
    int64_t least = term.coefficient, most = term.coefficient;
    for (const uint32_t factor : term.factors) {
      int64_t lower, upper;
      if (factor < symbols.size()) {
        lower = symbols[factor].lower, upper = symbols[factor].upper;
      } else {
        const Quotient& quotient = quotients[factor - symbols.size()];
        const auto inner = bounds(Dim{true, quotient.dividend});
        lower = floor_divide(inner.first, quotient.divisor);
        upper = floor_divide(inner.second, quotient.divisor);
      }
      const int64_t corners[] = {times(least, lower), times(least, upper), times(most, lower),
                                 times(most, upper)};
      least = *std::min_element(corners, corners + 4);
      most = *std::max_element(corners, corners + 4);
    }
    low = clamped(low + least), high = clamped(high + most);
  }
  return {low, high};
}

int64_t Expressions::step(Dim dim) const {
  int64_t divisor = 0;
  if (!dim.affine) return divisor;
  for (const Term& term : affines[static_cast<size_t>(dim.value)].terms) {
    divisor = std::gcd(divisor, term.coefficient);
  }
  return divisor;
}

std::string Expressions::factor_text(uint32_t factor) const {
  if (factor < symbols.size()) return symbols[factor].name;
  const Quotient& quotient = quotients[factor - symbols.size()];
  const Affine& of = affines[quotient.dividend];
  const std::string inner = text(Dim{true, quotient.dividend});
  const bool alone = of.terms.size() == 1 && of.constant == 0;
  return "(" + (alone ? inner : "(" + inner + ")") + "//" + std::to_string(quotient.divisor) + ")";
}

std::string Expressions::text(Dim dim) const {
  if (!dim.affine) return std::to_string(dim.value);
  const Affine& affine = affines[static_cast<size_t>(dim.value)];
  std::string made;
  const auto add_part = [&](const std::string& part) {
    if (!made.empty() && part[0] != '-') made += "+";
    made += part;
  };
  for (const bool products : {true, false}) {
    for (const Term& term : affine.terms) {
      if ((term.factors.size() > 1) != products) continue;
      std::string part;
      for (const uint32_t factor : term.factors) {
        part += (part.empty() ? "" : "*") + factor_text(factor);
      }
      add_part(term.coefficient == 1 ? part : std::to_string(term.coefficient) + "*" + part);
    }
  }
  if (affine.constant != 0 || made.empty()) add_part(std::to_string(affine.constant));
  return made;
}

std::string Expressions::text(const Type& type) const {
  std::string made = dtype_name(type.dtype), limits;
  std::vector<uint32_t> used;
  made += "[";
  for (size_t i = 0; i < type.dims.size(); ++i) {
    made += (i > 0 ? ", " : "") + text(type.dims[i]);
    each_symbol(type.dims[i], [&](uint32_t symbol) {
      if (std::find(used.begin(), used.end(), symbol) != used.end()) return;
      used.push_back(symbol);
      limits += limits.empty() ? " with " : ", ";
      limits += symbols[symbol].name + " in " + symbols[symbol].allowed();
    });
  }
  return made + "]" + limits;
}

std::string shape_text(int32_t dtype, const int64_t* dims, int rank) {
  std::string made = dtype_name(dtype);
  made += "[";
  for (int i = 0; i < rank; ++i) made += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return made + "]";
}

}  // namespace kvc::lib
