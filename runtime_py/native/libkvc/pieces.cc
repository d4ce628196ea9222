// Calls that are cut into pieces: `runtime_py/calls/pieces.py` in C++; and prompts of one row.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "bundle.h"
#include "calls.h"
#include "errors.h"

namespace kvc::lib {
namespace {

constexpr int64_t kMostListed = 4096;  // token counts that are told apart

const Type& tokens_of(const MethodEntry& entry) { return entry.method->inputs[0].type; }

int64_t length_at(const kvc_array& array, size_t row) {
  if (array.dtype == KVC_BOOL) return static_cast<const uint8_t*>(array.data)[row];
  return static_cast<const int64_t*>(array.data)[row];
}

// Whether two methods take the same inputs, and return the same types.
bool takes_alike(const MethodEntry& one, const MethodEntry& other) {
  return one.takes_tokens && other.takes_tokens &&
         (one.row_lengths < 0) == (other.row_lengths < 0) &&
         one.method->adapts == other.method->adapts &&
         one.method->outputs == other.method->outputs &&
         tokens_of(one).dims[0] == tokens_of(other).dims[0];
}

}  // namespace

Kind* Caller::narrowest(const MethodEntry& entry) const {
  const Advance* first = entry.method->advance_of(0);
  Kind* found = nullptr;
  for (const StateWrites& writes : entry.writes) {
    const Advance* own = entry.method->advance_of(writes.cursor);
    const bool alike = own != nullptr && first != nullptr && own->tokens == first->tokens;
    if (writes.piecewise || (own != nullptr && !alike) || own == nullptr) continue;
    Kind& kind = memory_.kind(writes.state);
    const bool less = found == nullptr || kind.longest < found->longest;
    if (kind.longest < kAllSlots && less) found = &kind;
  }
  return found;
}

int64_t Caller::count_excess(const MethodEntry& entry, const Inputs& inputs) const {
  const Kind* limit = narrowest(entry);
  if (limit == nullptr) return count_outside(entry, inputs);
  if (entry.row_lengths >= 0) {
    const int64_t excess = excess_of_rows(entry, inputs, limit->longest);
    return excess > 0 ? excess : count_outside(entry, inputs);
  }
  const Advance& advance = *entry.method->advance_of(0);
  if (!advance.tokens) return 0;
  if (!advance.tokens->affine && entry.method->role != "prefill") {
    return advance.tokens->value > limit->longest ? advance.tokens->value : 0;
  }
  if (entry.takes_tokens) {
    const int64_t count = inputs.arrays[0].dims[1];
    const int64_t most = bundle_.program().expressions.bounds(tokens_of(entry).dims[1]).second;
    const bool many = count > std::min(limit->longest, most);
    return many ? count : count_outside(entry, inputs);
  }
  Sizes sizes;
  solve(entry, inputs, &sizes);
  const int64_t count = bundle_.program().evaluate(*advance.tokens, sizes);
  return count > limit->longest ? count : 0;
}

int64_t Caller::count_outside(const MethodEntry& entry, const Inputs& inputs) const {
  if (entry.method->role != "prefill" || !entry.takes_tokens) return 0;
  const ChunkSizes sizes = chunk_sizes(bundle_.program(), entry.id, kAllSlots);
  const int64_t count = inputs.arrays[0].dims[1];
  const auto& among = sizes.among;
  if (among.empty() || std::binary_search(among.begin(), among.end(), count)) return 0;
  return entry.row_lengths < 0 ? count : excess_of_rows(entry, inputs, 0);
}

int64_t Caller::excess_of_rows(const MethodEntry& entry, const Inputs& inputs,
                               int64_t longest) const {
  int64_t seq = entry.takes_tokens ? inputs.arrays[0].dims[1] : 0;
  const bool tokens = entry.takes_tokens;
  const Advance* advance = entry.method->advance_of(0);
  if (!tokens) {
    if (advance == nullptr || !advance->tokens) return 0;
    Sizes sizes;
    solve(entry, inputs, &sizes);
    seq = bundle_.program().evaluate(*advance->tokens, sizes);
  }
  const kvc_array& lengths = inputs.arrays[static_cast<size_t>(entry.row_lengths)];
  if (lengths.dtype == KVC_BOOL || lengths.dims[0] != inputs.arrays[0].dims[0]) return 0;
  int64_t count = inputs.left_out ? seq : 0, least = 0;
  for (size_t row = 0; !inputs.left_out && row < static_cast<size_t>(lengths.dims[0]); ++row) {
    count = std::max(count, length_at(lengths, row));
    least = std::min(least, length_at(lengths, row));
  }
  const bool prefill = tokens && entry.method->role == "prefill";
  const Expressions& expressions = bundle_.program().expressions;
  const bool far = prefill && seq > expressions.bounds(tokens_of(entry).dims[1]).second;
  const bool fits = count > 0 && count <= seq && least >= 0;
  return fits && (count > longest || far) ? count : 0;
}

void Caller::too_long(const MethodEntry& entry, int64_t count, const Kind& kind) const {
  fail(KVC_CALL_TOO_LONG,
       "method %s: %lld tokens are too many for one call: the ring %s of %lld slots takes %lld; "
       "make several calls",
       shown(entry.method->name).c_str(), static_cast<long long>(count),
       shown(kind.state.name).c_str(), static_cast<long long>(kind.layout.slots),
       static_cast<long long>(kind.longest));
}

std::vector<Chunk> Caller::plan_pieces(const MethodEntry& entry, int64_t count) const {
  const Kind* limit = narrowest(entry);
  const int64_t longest = limit == nullptr ? kAllSlots : limit->longest;
  std::vector<ChunkSizes> prefills;
  int last = -1;
  for (const MethodEntry& other : bundle_.entries()) {
    if (!takes_alike(other, entry)) continue;
    const ChunkSizes sizes = chunk_sizes(bundle_.program(), other.id, longest);
    if (sizes.least > sizes.most) continue;
    if (other.method->role == "prefill") prefills.push_back(sizes);
    if (other.method->role == "decode" && last < 0) last = other.id;
  }
  std::vector<Chunk> plan;
  if (entry.method->role == "prefill" && (last >= 0 || !prefills.empty())) {
    if (last < 0) last = prefills[0].method;
    plan = plan_chunks(count, prefills, chunk_sizes(bundle_.program(), last, longest));
  }
  if (plan.empty() && limit != nullptr) too_long(entry, count, *limit);
  return plan;
}

Rows Caller::lengths_of_rows(const MethodEntry& entry, const Inputs& inputs) const {
  const kvc_array& tokens = inputs.arrays[0];
  Rows lengths(static_cast<size_t>(tokens.dims[0]), tokens.dims[1]);
  if (entry.row_lengths < 0 || inputs.left_out) return lengths;
  const kvc_array& given = inputs.arrays[static_cast<size_t>(entry.row_lengths)];
  for (size_t row = 0; row < lengths.size() && row < static_cast<size_t>(given.dims[0]); ++row) {
    lengths[row] = length_at(given, row);
  }
  return lengths;
}

// The tokens of one piece, in memory of `taken`: row lengths first, then tokens.
void Caller::take_piece(const Chunk& piece, int64_t first, const Inputs& inputs,
                        const Rows& lengths, Inputs* taken) const {
  const MethodEntry& entry = bundle_.entries()[static_cast<size_t>(piece.method)];
  const kvc_array& tokens = inputs.arrays[0];
  const auto rows = static_cast<size_t>(tokens.dims[0]);
  const auto count = static_cast<size_t>(piece.count);
  taken->left_out = false;
  taken->lengths.assign((rows + rows * count + 1) * 8, 0);
  auto* own = reinterpret_cast<int64_t*>(taken->lengths.data());
  for (size_t row = 0; row < rows; ++row) {
    const auto* from = static_cast<const int64_t*>(tokens.data) +
                       static_cast<int64_t>(row) * tokens.dims[1] + first;
    std::memcpy(own + rows + row * count, from, count * 8);
  }
  taken->arrays.assign(1, kvc_array{own + rows, KVC_INT64, 2, {tokens.dims[0], piece.count}});
  if (entry.row_lengths < 0) return;
  const int32_t dtype = entry.method->inputs[1].type.dtype;
  for (size_t row = 0; row < rows; ++row) {
    const int64_t here = std::min(std::max<int64_t>(lengths[row] - first, 0), piece.count);
    if (dtype == KVC_BOOL) {
      reinterpret_cast<uint8_t*>(own)[row] = static_cast<uint8_t>(here);
    } else {
      own[row] = here;
    }
  }
  taken->arrays.push_back(kvc_array{own, dtype, 1, {tokens.dims[0]}});
}

void Caller::run_pieces(const std::vector<Chunk>& pieces, const Inputs& inputs) {
  const MethodEntry& first = bundle_.entries()[static_cast<size_t>(pieces[0].method)];
  const Rows lengths = lengths_of_rows(first, inputs);
  Rows starts;
  memory_.position(0, &starts);
  Inputs taken;
  Sizes sizes;
  take_piece(pieces[0], 0, inputs, lengths, &taken);
  solve(first, taken, &sizes);
  Rows steps = lengths;
  steps.resize(starts.size(), lengths.empty() ? 0 : lengths[0]);
  memory_.check_room(0, starts, steps);
  run_together(pieces, inputs, lengths);
}

// Runs several calls as one: if any fails, all are undone.
void Caller::run_together(const std::vector<Chunk>& pieces, const Inputs& inputs,
                          const Rows& lengths) {
  const std::vector<Rows> counted = memory_.counted;
  std::vector<Rows> starts(counted.size());
  std::vector<bool> known;
  for (size_t i = 0; i < counted.size(); ++i) {
    known.push_back(memory_.known_position(static_cast<int>(i), &starts[i]));
  }
  std::vector<std::vector<Rows>> ends;
  for (size_t i = 0; i < memory_.count(); ++i) {
    ends.push_back(memory_.kind(static_cast<int>(i)).ends);
  }
  std::vector<const StateWrites*> chosen(memory_.count(), nullptr);
  for (const Chunk& piece : pieces) {
    for (const StateWrites& one : bundle_.entries()[static_cast<size_t>(piece.method)].writes) {
      const StateWrites*& own = chosen[static_cast<size_t>(one.state)];
      if (own == nullptr || !one.risks.empty()) own = &one;
    }
  }
  std::vector<Undo> undo(memory_.count());
  for (const StateWrites* one : chosen) {
    if (one == nullptr) continue;
    const auto cursor = static_cast<size_t>(one->cursor);
    const Begin call{one, 0, known[cursor] ? &starts[cursor] : nullptr, nullptr, true, true, 0};
    memory_.kind(one->state).begin(call, &undo[static_cast<size_t>(one->state)]);
  }
  try {
    Inputs taken;
    std::vector<std::vector<uint8_t>> before;
    int64_t first = 0;
    for (const Chunk& piece : pieces) {
      take_piece(piece, first, inputs, lengths, &taken);
      before = content_;
      run_once(bundle_.entries()[static_cast<size_t>(piece.method)], &taken);
      for (size_t i = 0; first > 0 && i < results.size(); ++i) {
        // A row that has ended keeps the results of the piece in which it did.
        const size_t row_nbytes = (content_[i].size() - 1) / std::max<size_t>(1, lengths.size());
        for (size_t row = 0; row < lengths.size(); ++row) {
          if (lengths[row] > first || before[i].size() != content_[i].size()) continue;
          std::memcpy(content_[i].data() + row * row_nbytes, before[i].data() + row * row_nbytes,
                      row_nbytes);
        }
      }
      first += piece.count;
    }
  } catch (...) {
    memory_.poisoned = "a call in pieces";  // until all is restored
    memory_.counted = counted;
    for (const StateWrites* one : chosen) {
      if (one != nullptr) memory_.kind(one->state).undo(undo[static_cast<size_t>(one->state)]);
    }
    for (size_t i = 0; i < memory_.count(); ++i) memory_.kind(static_cast<int>(i)).ends = ends[i];
    memory_.poisoned.clear();
    throw;
  }
}

// Keeps of the token counts of a method those that have a bound list in this session.
void Caller::keep_bound(ChunkSizes* sizes) const {
  const MethodEntry& entry = bundle_.entries()[static_cast<size_t>(sizes->method)];
  const int symbol = bundle_.program().expressions.only_symbol(tokens_of(entry).dims[1]);
  if (symbol < 0) return;
  using Bounds = std::pair<int64_t, int64_t>;
  std::vector<Bounds> bound =
      bundle_.lists().bounds_of(sizes->method, memory_.sizes(), static_cast<uint32_t>(symbol));
  std::sort(bound.begin(), bound.end());
  int64_t next = sizes->least;  // that may lack a list
  std::vector<int64_t> found;
  for (const Bounds& one : bound) {
    const int64_t first = std::max(one.first, next);
    const int64_t last = std::min(one.second, sizes->most);
    if (one.first <= next) next = std::max(next, one.second + 1);
    for (int64_t count = first; count <= last && count < first + kMostListed; ++count) {
      const auto& among = sizes->among;
      if (!among.empty() && !std::binary_search(among.begin(), among.end(), count)) continue;
      if (found.empty() || count > found.back()) found.push_back(count);
    }
  }
  if (next > sizes->most) return;  // all have one
  sizes->among = found;
  sizes->least = found.empty() ? 1 : found.front();
  sizes->most = found.empty() ? 0 : found.back();
}

// Finds the methods that run a prompt: of tokens alone, with float32 logits of each row.
void Caller::find_stepping() {
  const Program& program = bundle_.program();
  for (const MethodEntry& entry : bundle_.entries()) {
    const Method& method = *entry.method;
    const bool prefill = method.role == "prefill";
    if (method.adapts || !entry.takes_tokens || !(prefill || method.role == "decode")) continue;
    if (method.outputs.size() != 1 || method.outputs[0].dtype != KVC_FLOAT32) continue;
    const Kind* limit = narrowest(entry);
    const int64_t longest = limit == nullptr ? kAllSlots : limit->longest;
    ChunkSizes sizes = chunk_sizes(program, entry.id, longest);
    if (prefill) keep_bound(&sizes);
    if (prefill && sizes.least <= sizes.most) prefills_.push_back(sizes);
    if (!prefill && decode_ < 0) decode_ = entry.id;
  }
  stepping_found_ = true;
}

const float* Caller::step(const int64_t* tokens, int64_t count, int64_t* vocabulary) {
  if (!stepping_found_) find_stepping();
  if (count < 1) {
    fail(KVC_BAD_ARGUMENT, "expected one token or more, found %lld",
         static_cast<long long>(count));
  }
  if (decode_ < 0 && prefills_.empty()) {
    fail(KVC_UNKNOWN_NAME, "the bundle has no method of the roles prefill and decode that takes "
         "tokens alone");
  }
  const auto run_tokens = [&](int method, int64_t first, int64_t many) {
    const kvc_array inputs[2] = {
        {const_cast<int64_t*>(tokens + first), KVC_INT64, 2, {1, many}},
        {nullptr, 0, 0, {}}};
    const auto taken = bundle_.program().methods[static_cast<size_t>(method)].inputs.size();
    run(method, inputs, static_cast<int32_t>(taken), nullptr, 0);
  };
  if (count == 1 && decode_ >= 0) {
    run_tokens(decode_, 0, 1);
  } else {
    const int last = decode_ >= 0 ? decode_ : prefills_[0].method;
    const ChunkSizes rest = decode_ >= 0 ? ChunkSizes{last, 1, 1, 1, {}} : prefills_[0];
    const std::vector<Chunk> plan = plan_chunks(count, prefills_, rest);
    if (plan.empty()) {
      fail(KVC_INPUT_MISMATCH, "no method of the role prefill takes %lld tokens",
           static_cast<long long>(count));
    }
    Rows starts;
    if (memory_.known_position(0, &starts)) {
      memory_.check_room(0, starts, Rows(starts.size(), count));
    }
    int64_t first = 0;
    for (const Chunk& chunk : plan) {
      run_tokens(chunk.method, first, chunk.count);
      first += chunk.count;
    }
  }
  const kvc_array& logits = results[0];
  if (logits.rank < 1) fail(KVC_STATE_MISMATCH, "the logits of this bundle have no dims");
  *vocabulary = logits.dims[logits.rank - 1];
  return static_cast<const float*>(logits.data);
}

}  // namespace kvc::lib
