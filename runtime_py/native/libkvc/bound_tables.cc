#include "bound_tables.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "tables.h"

extern "C" int32_t kvc_version(void);
extern "C" int32_t kvc_kernel(const char* name);

namespace kvc::lib {
namespace {

constexpr const char* kWhere = "bound lists";
constexpr size_t kMostRank = 8, kMostFactors = 8, kMostTerms = 64, kMostLists = 1024;
constexpr int64_t kMostForm = int64_t{1} << 60;
constexpr int64_t kNoValue = -1;  // no product of sizes has it
constexpr int64_t kMostSize = (int64_t{1} << 31) - 1;
constexpr uint64_t kMostScratch = uint64_t{1} << 40;

void need(bool holds, const char* what) { require(holds, kWhere, what); }

bool fits_in_form(int64_t number) { return number >= -kMostForm && number <= kMostForm; }

template <class Ends>
void check_short_runs(const Ends& ends, size_t most) {
  for (uint32_t i = 0; i < ends.size(); ++i) {
    const Run run = run_of(ends, i);
    need(run.end - run.begin <= most, "a run is too long");
  }
}

class Checker {
 public:
  Checker(const stored::Bounds& table, const Program& program)
      : table_(table), program_(program), forms_(table.form_constants()->size()),
        operands_(table.operand_regions()->size()) {}

  void check() const {
    check_kernels();
    check_forms();
    check_layouts();
    check_operands();
    need(table_.lists()->size() <= kMostLists, "there are too many");
    for (const auto* list : *table_.lists()) check_list(*list);
  }

 private:
  void check_kernels() const {
    std::set<std::string> names;
    for (const auto* name : *table_.kernels()) {
      need(names.insert(text_in(name)).second, "a kernel is there twice");
    }
  }

  void check_forms() const {
    const size_t terms = table_.term_factors()->size();
    const auto& products = *table_.product_ends();
    check_runs(products, products.size(), table_.product_symbols()->size(), kWhere);
    check_short_runs(products, kMostFactors);
    for (uint32_t i = 0; i < products.size(); ++i) {
      need(run_of(products, i).begin < products.Get(i), "a product has no factors");
    }
    check_runs(*table_.term_ends(), forms_, terms, kWhere);
    check_short_runs(*table_.term_ends(), kMostTerms);
    need(table_.term_products()->size() == terms, "terms have no product");
    check_ids(*table_.term_products(), products.size(), kWhere);
    check_ids(*table_.product_symbols(), program_.expressions.symbols.size(), kWhere);
    for (const int64_t factor : *table_.term_factors()) {
      need(factor != 0 && fits_in_form(factor), "a form has a number out of range");
    }
    for (uint32_t i = 0; i < forms_; ++i) {
      const Run terms_of = run_of(*table_.term_ends(), i);
      const bool varied = terms_of.begin < terms_of.end;
      need(!varied || fits_in_form(table_.form_constants()->Get(i)),
           "a form has a number out of range");
    }
  }

  void check_layouts() const {
    const size_t dims = table_.layout_dims()->size();
    check_runs(*table_.layout_ends(), table_.layout_dtypes()->size(), dims, kWhere);
    check_short_runs(*table_.layout_ends(), kMostRank);
    need(table_.layout_strides()->size() == dims, "dims have no stride");
    check_ids(*table_.layout_dims(), forms_, kWhere);
    check_ids(*table_.layout_strides(), forms_, kWhere);
    for (const auto dtype : *table_.layout_dtypes()) {
      need(dtype <= stored::DType::BOOL, "an unknown dtype");
    }
  }

  void check_operands() const {
    const bool alike = table_.operand_places()->size() == operands_ &&
                       table_.operand_offsets()->size() == operands_ &&
                       table_.operand_layouts()->size() == operands_;
    need(alike, "operands lack parts");
    for (uint32_t i = 0; i < operands_; ++i) check_operand(i);
  }

  void check_operand(uint32_t i) const {
    const auto region = static_cast<Region>(table_.operand_regions()->Get(i));
    const uint32_t place = table_.operand_places()->Get(i);
    need(region <= Region::kFilled, "an unknown region");
    const bool single = region == Region::kAbsent || region == Region::kScratch;
    need(!single || place == 0, "an operand has the number of a region that is the only one");
    if (region == Region::kAbsent) return;
    need(table_.operand_offsets()->Get(i) < forms_, "an offset is no form");
    need(table_.operand_layouts()->Get(i) < table_.layout_ends()->size(), "an unknown layout");
    if (region == Region::kConstant) {
      need(place < program_.names.size(), "unknown named data");
      const std::string& format = program_.names[place].format;
      need(format == "plain" || format == "slot", "an operand is packed data or a file");
    }
    if (region == Region::kState) need(place < program_.states.size(), "an unknown state");
    if (region == Region::kFilled) need(place < forms_, "an unknown form");
    need(region != Region::kCaller, "an operand lies in a caller's array, which no list has yet");
  }

  void check_list(const stored::BoundList& list) const {
    need(list.method() < program_.methods.size(), "a list of an unknown method");
    const Method& method = program_.methods[list.method()];
    const size_t symbols = program_.expressions.symbols.size();
    const size_t steps = list.step_kernels()->size();
    need(list.scratch_nbytes() <= kMostScratch, "a list needs too much memory");
    const bool all = list.lowers()->size() == symbols && list.uppers()->size() == symbols;
    need(all, "a size lacks bounds");
    for (uint32_t i = 0; i < symbols; ++i) {
      const int64_t lower = list.lowers()->Get(i), upper = list.uppers()->Get(i);
      need(lower >= 0 && lower <= upper && upper <= kMostSize, "its bounds are no sizes");
    }
    check_ids(*list.step_kernels(), table_.kernels()->size(), kWhere);
    check_runs(*list.operand_ends(), steps, list.operands()->size(), kWhere);
    check_runs(*list.integer_ends(), steps, list.integers()->size(), kWhere);
    check_runs(*list.number_ends(), steps, list.numbers()->size(), kWhere);
    check_ids(*list.integers(), forms_, kWhere);
    check_ids(*list.varied_forms(), forms_, kWhere);
    check_ids(*list.varied_numbers(), list.numbers()->size(), kWhere);
    need(list.varied_forms()->size() == list.varied_numbers()->size(), "a number lacks its form");
    check_ids(*list.cursor_fields(), 4 * program_.cursors.size(), kWhere);
    check_ids(*list.cursor_counts(), forms_, kWhere);
    need(list.cursor_fields()->size() == list.cursor_counts()->size(), "a cursor lacks its count");
    need(list.inputs()->size() == method.inputs.size(), "a list has another number of inputs");
    need(list.outputs()->size() == method.outputs.size(), "a list has another number of outputs");
    for (const auto* used : {list.operands(), list.inputs(), list.outputs()}) {
      check_ids(*used, operands_, kWhere);
      for (const uint32_t operand : *used) {
        const auto region = static_cast<Region>(table_.operand_regions()->Get(operand));
        const bool known = region != Region::kCursor || table_.operand_places()->Get(operand) <
                                                            list.cursor_fields()->size();
        need(known, "an operand is in a cursor that its list does not have");
        need(used == list.operands() || region != Region::kAbsent, "an input or output is absent");
      }
    }
    for (const uint32_t input : *list.inputs()) {
      const auto region = static_cast<Region>(table_.operand_regions()->Get(input));
      need(region == Region::kScratch, "an input is not put into scratch memory");
    }
  }

  const stored::Bounds& table_;
  const Program& program_;
  size_t forms_;
  uint32_t operands_;
};

// Kernels that call addresses: no file may ask for them. A name ends where C sees its end.
bool calls_addresses(const char* kernel) {
  return std::strcmp(kernel, "call") == 0 || std::strcmp(kernel, "ask") == 0;
}

// Whether all sizes that are known lie within the bounds of a list.
bool includes(const ListEntry& list, const Sizes& sizes) {
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == kUnknown) continue;
    if (sizes[i] < list.table->lowers()->Get(i) || sizes[i] > list.table->uppers()->Get(i)) {
      return false;
    }
  }
  return true;
}

}  // namespace

BoundTables read_bounds(const stored::Bounds& table, const Program& program) {
  BoundTables found;
  found.kernels_version = table.kernels_version();
  found.table = &table;
  need(table.identity()->size() == 32, "the identity is no digest");
  const bool own = found.kernels_version == static_cast<uint32_t>(kvc_version());
  if (own) Checker(table, program).check();
  for (const auto* name : *table.kernels()) {
    const std::string kernel = text_in(name);
    found.kernels.push_back(kvc_kernel(kernel.c_str()));
    const bool known = found.kernels.back() >= 0 && !calls_addresses(kernel.c_str());
    need(!own || known, "an unknown kernel");
  }
  for (const auto* list : *table.lists()) {
    found.lists.push_back({list, static_cast<int>(list->method()), list->scratch_nbytes()});
    found.scratch_nbytes = std::max(found.scratch_nbytes, list->scratch_nbytes());
  }
  return found;
}

const ListEntry* BoundTables::find(int method, const Sizes& sizes) const {
  for (const ListEntry& one : lists) {
    if (one.method == method && includes(one, sizes)) return &one;
  }
  return nullptr;
}

std::vector<std::pair<int64_t, int64_t>> BoundTables::bounds_of(int method, const Sizes& sizes,
                                                                uint32_t symbol) const {
  Sizes others = sizes;
  others[symbol] = kUnknown;
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const ListEntry& one : lists) {
    if (one.method != method || !includes(one, others)) continue;
    found.emplace_back(one.table->lowers()->Get(symbol), one.table->uppers()->Get(symbol));
  }
  return found;
}

void fill_sizes(const Program& program, const Sizes& sizes, Sizes* full) {
  *full = sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == kUnknown) (*full)[i] = program.expressions.symbols[i].lower;
  }
}

bool evaluate_forms(const stored::Bounds& table, const Sizes& sizes,
                    std::vector<int64_t>* products, std::vector<int64_t>* values) {
  const auto& product_ends = *table.product_ends();
  const auto& term_ends = *table.term_ends();
  products->resize(product_ends.size());
  for (uint32_t i = 0; i < product_ends.size(); ++i) {
    const Run run = run_of(product_ends, i);
    int64_t product = 1;
    bool fits = true;
    for (uint32_t j = run.begin; j < run.end; ++j) {
      fits = fits && multiply(product, sizes[table.product_symbols()->Get(j)], &product);
    }
    (*products)[i] = fits ? product : kNoValue;
  }
  constexpr int64_t kMost = int64_t{1} << 61;
  values->resize(term_ends.size());
  for (uint32_t i = 0; i < term_ends.size(); ++i) {
    const Run run = run_of(term_ends, i);
    int64_t value = table.form_constants()->Get(i);
    for (uint32_t j = run.begin; j < run.end; ++j) {
      const int64_t product = (*products)[table.term_products()->Get(j)];
      int64_t term;
      const bool fits = product != kNoValue &&
                        multiply(product, table.term_factors()->Get(j), &term) &&
                        add(value, term, &value);
      if (!fits) return false;
    }
    const bool varied = run.end > run.begin;
    if (varied && (value >= kMost || value <= -kMost)) return false;
    (*values)[i] = value;
  }
  return true;
}

}  // namespace kvc::lib
