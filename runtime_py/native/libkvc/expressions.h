// Symbols, and the dims that follow their sizes: `kvc.schema.types` in C++.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace kvc::lib {

// A size that nobody has fixed yet.
constexpr int64_t kUnknown = std::numeric_limits<int64_t>::min();
// The size of each symbol of a program.
using Sizes = std::vector<int64_t>;

struct Symbol {
  std::string name;
  int64_t lower, upper;
  std::vector<int64_t> buckets;  // the only sizes, ascending; empty: all within the bounds

  bool takes(int64_t size) const;
  int64_t greatest() const { return buckets.empty() ? upper : buckets.back(); }
  std::string allowed() const;  // "1..64", or "1, 16, 64"
};

// A number of elements, or the id of an expression.
struct Dim {
  bool affine = false;
  int64_t value = 0;

  bool operator==(const Dim& other) const {
    return affine == other.affine && value == other.value;
  }
  bool operator!=(const Dim& other) const { return !(*this == other); }
};

struct Type {
  int32_t dtype = 0;
  std::vector<Dim> dims;

  bool operator==(const Type& other) const { return dtype == other.dtype && dims == other.dims; }
};

// A number times a product of factors. A factor is a symbol, or, from the number of symbols
// on, a quotient.
struct Term {
  int64_t coefficient;
  std::vector<uint32_t> factors;
};

struct Affine {
  int64_t constant;
  std::vector<Term> terms;
};

struct Quotient {
  uint32_t dividend;  // id of an expression before all that have it
  int64_t divisor;
};

class Expressions {
 public:
  std::vector<Symbol> symbols;
  std::vector<Affine> affines;
  std::vector<Quotient> quotients;

  // The size of a dim; every symbol in it must be known. Fails where it has more than 62 bits.
  int64_t evaluate(Dim dim, const Sizes& sizes) const;
  // Finds the size of the only symbol of a dim that is unknown, rounded down; changes nothing
  // if there is none, if there are several, if its factor is 0, or if the dim has quotients.
  void settle(Dim dim, int64_t size, Sizes* sizes) const;
  // Whether all symbols of a dim are known.
  bool known(Dim dim, const Sizes& sizes) const;
  // Calls function(symbol) for each symbol in a dim, perhaps several times.
  template <class F>
  void each_symbol(Dim dim, const F& function) const {
    if (!dim.affine) return;
    for (const Term& term : affines[static_cast<size_t>(dim.value)].terms) {
      for (const uint32_t factor : term.factors) {
        if (factor < symbols.size()) {
          function(factor);
        } else {
          each_symbol(Dim{true, quotients[factor - symbols.size()].dividend}, function);
        }
      }
    }
  }
  // The symbol that a dim is, or -1.
  int only_symbol(Dim dim) const;
  // A least and a greatest size, as if each factor could be any number within its bounds.
  std::pair<int64_t, int64_t> bounds(Dim dim) const;
  // The greatest common divisor of the factors of a dim's terms; 0 of a number.
  int64_t step(Dim dim) const;
  std::string text(Dim dim) const;
  // A type as a message shows it, with the bounds of its symbols.
  std::string text(const Type& type) const;

 private:
  int64_t factor_at(uint32_t factor, const Sizes& sizes) const;
  std::string factor_text(uint32_t factor) const;
};

const char* dtype_name(int32_t dtype);
int64_t dtype_nbytes(int32_t dtype);
// A dtype and a shape as a message shows them.
std::string shape_text(int32_t dtype, const int64_t* dims, int rank);

// Products and sums that say false where they do not fit.
inline bool multiply(int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}
inline bool add(int64_t a, int64_t b, int64_t* sum) { return !__builtin_add_overflow(a, b, sum); }

}  // namespace kvc::lib
