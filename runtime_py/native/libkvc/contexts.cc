#include "contexts.h"

#include <algorithm>

#include "bundle.h"
#include "errors.h"

namespace kvc::lib {
namespace {

constexpr size_t kMostCalls = 12;  // that a context keeps bound

}  // namespace

Context::Context(uint64_t scratch_nbytes) : scratch_(scratch_nbytes, "the values of a call") {}

BoundCall& Context::bind(Bundle& bundle, int method, const Sizes& sizes,
                         const StateMemory& memory) {
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (calls_[i]->method != method || calls_[i]->sizes != sizes) continue;
    std::rotate(calls_.begin(), calls_.begin() + static_cast<std::ptrdiff_t>(i),
                calls_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    calls_[0]->move(memory);
    return *calls_[0];
  }
  Sizes full;
  fill_sizes(bundle.program(), sizes, &full);
  const ListEntry* list = bundle.lists().find(method, full);
  if (list == nullptr) {
    const auto& symbols = bundle.program().expressions.symbols;
    std::string text;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == kUnknown) continue;
      text += (text.empty() ? "" : ", ") + symbols[i].name + " = " + std::to_string(sizes[i]);
    }
    fail(KVC_NOT_BOUND,
         "method %s has no bound list for %s; compile the bundle again for these sizes, or run it "
         "by Python",
         shown(bundle.program().methods[static_cast<size_t>(method)].name).c_str(),
         text.empty() ? "its sizes" : text.c_str());
  }
  if (calls_.size() < kMostCalls) calls_.push_back(std::make_unique<BoundCall>());
  std::rotate(calls_.begin(), calls_.end() - 1, calls_.end());  // the memory of the oldest
  BoundCall& call = *calls_[0];
  try {
    call.bind(bundle, *list, sizes, memory, scratch_.bytes());
  } catch (...) {
    call.method = -1;
    throw;
  }
  return call;
}

ContextPool::Lease::Lease(ContextPool& pool, const StateMemory& memory) : pool_(pool) {
  const std::lock_guard<std::mutex> lock(pool.mutex_);
  auto& idle = pool.idle_;
  const auto own = std::find_if(idle.begin(), idle.end(), [&](const auto& one) {
    return one->served == memory.id;
  });
  if (!idle.empty()) {
    if (own != idle.end()) std::iter_swap(own, idle.end() - 1);
    context_ = std::move(idle.back());
    idle.pop_back();
  } else {
    idle.reserve(pool.made_ + 1);  // so that giving a context back takes no memory
    context_ = std::make_unique<Context>(pool.tables_.scratch_nbytes);
    ++pool.made_;
  }
  context_->served = memory.id;
}

ContextPool::Lease::~Lease() {
  const std::lock_guard<std::mutex> lock(pool_.mutex_);
  pool_.idle_.push_back(std::move(context_));
}

}  // namespace kvc::lib
