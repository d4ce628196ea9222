// The pool of a program: symbols, expressions and types.
#include "tables.h"
#include "utf8.h"

namespace kvc::lib {
namespace {

constexpr size_t kMostRank = 8, kMostParts = 64, kMostDtype = 9;
constexpr const char* kWhere = "sizes";

}  // namespace

std::string text_in(const flatbuffers::String* text) {
  std::string found = text->str();
  require(is_utf8(found.data(), found.size()), "texts", "one is no UTF-8");
  return found;
}

Pool::Pool(const stored::Pool& table, Expressions* expressions)
    : table_(table), affines_(table.affine_constants()->size()) {
  const auto& names = *table.symbol_names();
  require(table.symbol_lowers()->size() == names.size(), kWhere, "symbols lack bounds");
  require(table.symbol_uppers()->size() == names.size(), kWhere, "symbols lack bounds");
  for (uint32_t i = 0; i < names.size(); ++i) {
    const int64_t lower = table.symbol_lowers()->Get(i), upper = table.symbol_uppers()->Get(i);
    const bool fits = lower >= 0 && lower <= upper && upper < int64_t{1} << 31;
    require(fits, kWhere, "a symbol has impossible bounds");
    expressions->symbols.push_back(Symbol{text_in(names.Get(i)), lower, upper, {}});
  }
  read_expressions(table, expressions);
  const auto& dtypes = *table.type_dtypes();
  const auto& kinds = *table.dim_kinds();
  const auto& values = *table.dim_values();
  require(kinds.size() == values.size(), "types", "dims lack kinds");
  check_runs(*table.type_ends(), dtypes.size(), kinds.size(), "types");
  for (uint32_t i = 0; i < dtypes.size(); ++i) {
    Type type;
    type.dtype = static_cast<int32_t>(dtypes.Get(i));
    require(static_cast<size_t>(type.dtype) <= kMostDtype, "types", "an unknown dtype");
    const Run run = run_of(*table.type_ends(), i);
    require(run.end - run.begin <= kMostRank, "types", "more than eight dims");
    for (uint32_t j = run.begin; j < run.end; ++j) {
      type.dims.push_back(dim(static_cast<stored::DimKind>(kinds.Get(j)), values.Get(j), "types"));
    }
    types_.push_back(type);
  }
}

void Pool::read_expressions(const stored::Pool& table, Expressions* found) const {
  const size_t symbols = found->symbols.size();
  const auto& dividends = *table.quotient_dividends();
  const auto& divisors = *table.quotient_divisors();
  require(dividends.size() == divisors.size(), kWhere, "quotients lack divisors");
  check_ids(dividends, affines_, kWhere);
  for (uint32_t i = 0; i < dividends.size(); ++i) {
    require(divisors.Get(i) >= 2, kWhere, "a divisor is less than 2");
    found->quotients.push_back(Quotient{dividends.Get(i), divisors.Get(i)});
  }
  const size_t single = symbols + dividends.size();
  const auto& products = *table.product_ends();
  check_runs(products, products.size(), table.product_symbols()->size(), kWhere);
  check_ids(*table.product_symbols(), single, kWhere);
  const auto& ids = *table.term_symbols();
  check_ids(ids, single + products.size(), kWhere);
  require(table.term_coefficients()->size() == ids.size(), kWhere, "terms lack factors");
  check_runs(*table.affine_ends(), affines_, ids.size(), kWhere);
  std::vector<size_t> parts;  // of each expression, those of quotients at each place
  for (uint32_t i = 0; i < affines_; ++i) {
    Affine affine{table.affine_constants()->Get(i), {}};
    const Run run = run_of(*table.affine_ends(), i);
    size_t count = run.end - run.begin;
    for (uint32_t j = run.begin; j < run.end; ++j) {
      Term term{table.term_coefficients()->Get(j), {}};
      if (ids.Get(j) < single) {
        term.factors.push_back(ids.Get(j));
      } else {
        const Run own = run_of(products, static_cast<uint32_t>(ids.Get(j) - single));
        for (uint32_t k = own.begin; k < own.end; ++k) {
          term.factors.push_back(table.product_symbols()->Get(k));
        }
      }
      for (const uint32_t factor : term.factors) {
        if (factor < symbols) continue;
        const uint32_t dividend = dividends.Get(static_cast<uint32_t>(factor - symbols));
        require(dividend < i, kWhere, "an expression divides a later one");
        count += parts[dividend];
      }
      require(count <= kMostParts, kWhere, "an expression has too many parts");
      affine.terms.push_back(std::move(term));
    }
    parts.push_back(count);
    found->affines.push_back(std::move(affine));
  }
}

Dim Pool::dim(stored::DimKind kind, int64_t value, const char* where) const {
  if (kind == stored::DimKind::SIZE) {
    require(value >= 0 && value < int64_t{1} << 40, where, "an impossible size");
    return Dim{false, value};
  }
  const bool known = kind == stored::DimKind::AFFINE && value >= 0 &&
                     static_cast<uint64_t>(value) < affines_;
  require(known, where, "a number of an expression is out of range");
  return Dim{true, value};
}

const Type& Pool::type(uint32_t id, const char* where) const {
  require(id < types_.size(), where, "a number of a type is out of range");
  return types_[id];
}

std::string Pool::string(uint32_t id, const char* where) const {
  require(id < table_.strings()->size(), where, "a number of a text is out of range");
  return text_in(table_.strings()->Get(id));
}

}  // namespace kvc::lib
