#include "chunks.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace kvc::lib {
namespace {

constexpr size_t kMostCombined = 6;  // all subsets of so many methods are tried

// The bucket sizes of a dim that are at least 1; none without buckets.
std::vector<int64_t> buckets_of(const Program& program, Dim dim) {
  const Expressions& expressions = program.expressions;
  std::vector<uint32_t> used;
  expressions.each_symbol(dim, [&](uint32_t symbol) {
    if (std::find(used.begin(), used.end(), symbol) == used.end()) used.push_back(symbol);
  });
  std::vector<int64_t> found;
  Sizes sizes(expressions.symbols.size(), kUnknown);
  size_t count = used.empty() ? 0 : 1;
  for (const uint32_t symbol : used) count *= expressions.symbols[symbol].buckets.size();
  for (size_t i = 0; i < std::min<size_t>(count, 4096); ++i) {
    size_t rest = i;
    for (const uint32_t symbol : used) {
      const auto& buckets = expressions.symbols[symbol].buckets;
      sizes[symbol] = buckets[rest % buckets.size()];
      rest /= buckets.size();
    }
    const int64_t size = expressions.evaluate(dim, sizes);
    if (size >= 1) found.push_back(size);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

// Cuts tokens into nearly equal chunks of one method; none where that is impossible.
std::vector<Chunk> cut_evenly(int64_t count, const ChunkSizes& sizes) {
  if (!sizes.among.empty()) {
    const bool whole = std::binary_search(sizes.among.begin(), sizes.among.end(), count);
    return whole ? std::vector<Chunk>{{sizes.method, count}} : std::vector<Chunk>();
  }
  if (sizes.most < 1) return {};
  const int64_t calls = (count + sizes.most - 1) / sizes.most, left = count - calls * sizes.least;
  if (left < 0 || left % sizes.step != 0) return {};
  const int64_t steps = left / sizes.step;
  std::vector<Chunk> found;
  for (int64_t i = 0; i < calls; ++i) {
    const int64_t own = steps / calls + (i < steps % calls);
    found.push_back({sizes.method, sizes.least + sizes.step * own});
  }
  return found;
}

std::vector<Chunk> cut(int64_t count, const std::vector<const ChunkSizes*>& methods) {
  std::vector<Chunk> plan;
  for (const ChunkSizes* sizes : methods) {
    if (count == 0) break;
    const std::vector<Chunk> even = cut_evenly(count, *sizes);
    if (!even.empty()) {
      plan.insert(plan.end(), even.begin(), even.end());
      return plan;
    }
    while (count >= sizes->least && sizes->least >= 1 && sizes->most >= sizes->least) {
      const int64_t size = sizes->greatest(count);
      plan.push_back({sizes->method, size});
      count -= size;
    }
  }
  return plan;
}

}  // namespace

int64_t ChunkSizes::greatest(int64_t count) const {
  if (!among.empty()) return *(std::upper_bound(among.begin(), among.end(), count) - 1);
  const int64_t top = std::min(count, most);
  return top - (top - least) % step;
}

ChunkSizes chunk_sizes(const Program& program, int method, int64_t longest) {
  const Dim dim = program.methods[static_cast<size_t>(method)].inputs[0].type.dims[1];
  const std::vector<int64_t> among = buckets_of(program, dim);
  if (!among.empty()) {
    ChunkSizes found{method, among[0], among[0] - 1, 1, {}};
    for (const int64_t size : among) {
      if (size > longest) break;
      found.among.push_back(size);
      found.most = size;
    }
    return found;
  }
  auto [least, most] = program.expressions.bounds(dim);
  const int64_t divisor = program.expressions.step(dim), step = divisor == 0 ? 1 : divisor;
  if (least < 1) least += (1 - least + step - 1) / step * step;
  if (longest < most) most = longest < least ? least - step : longest - (longest - least) % step;
  return ChunkSizes{method, least, most, step, {}};
}

std::vector<Chunk> plan_chunks(int64_t count, const std::vector<ChunkSizes>& prefills,
                               const ChunkSizes& last) {
  std::vector<const ChunkSizes*> usable;
  for (const ChunkSizes& sizes : prefills) {
    if (sizes.least <= std::min(count, sizes.most)) usable.push_back(&sizes);
  }
  std::stable_sort(usable.begin(), usable.end(), [](const ChunkSizes* a, const ChunkSizes* b) {
    return std::tie(b->most, b->least) < std::tie(a->most, a->least);
  });
  if (usable.size() > kMostCombined) usable.resize(kMostCombined);
  std::vector<Chunk> best;
  std::tuple<size_t, size_t, int64_t> least{};
  bool any = false;
  for (unsigned chosen = usable.empty() ? 0 : 1; chosen < 1u << usable.size(); ++chosen) {
    std::vector<const ChunkSizes*> methods;
    for (size_t i = 0; i < usable.size(); ++i) {
      if (chosen >> i & 1) methods.push_back(usable[i]);
    }
    methods.push_back(&last);
    const std::vector<Chunk> plan = cut(count, methods);
    std::vector<Chunk> distinct;
    int64_t widths = 0;  // of plans with equally few calls, methods of fewer sizes are faster
    for (const Chunk& chunk : plan) {
      if (std::find(distinct.begin(), distinct.end(), chunk) != distinct.end()) continue;
      distinct.push_back(chunk);
      for (const ChunkSizes* sizes : methods) {
        if (sizes->method != chunk.method) continue;
        widths += sizes->most - sizes->least;
        break;
      }
    }
    const int64_t sum = std::accumulate(plan.begin(), plan.end(), int64_t{0},
                                        [](int64_t a, const Chunk& one) { return a + one.count; });
    // A plan that leaves tokens is no plan; Python has one as well, and its callers refuse it.
    const std::tuple<size_t, size_t, int64_t> cost{plan.size(), distinct.size(), widths};
    if (sum == count && (!any || cost < least)) {
      best = plan;
      least = cost;
      any = true;
    }
  }
  return best;
}

}  // namespace kvc::lib
