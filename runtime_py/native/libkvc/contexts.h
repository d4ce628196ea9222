// Execution contexts: scratch memory, and the calls that are bound to it. A context serves one
// call at a time, if it can one of the session that it served last.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "bound_call.h"

namespace kvc::lib {

class Context {
 public:
  explicit Context(uint64_t scratch_nbytes);

  // The call of a method at some sizes, bound to the states of a session.
  BoundCall& bind(Bundle& bundle, int method, const Sizes& sizes, const StateMemory& memory);

  uint64_t served = 0;  // the id of the memory of the last session

 private:
  Reserved scratch_;
  std::vector<std::unique_ptr<BoundCall>> calls_;  // that of the last call first
};

class ContextPool {
 public:
  explicit ContextPool(const BoundTables& tables) : tables_(tables) {}

  // A context for one call; it goes back when the lease ends.
  class Lease {
   public:
    Lease(ContextPool& pool, const StateMemory& memory);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Context* operator->() const { return context_.get(); }

   private:
    ContextPool& pool_;
    std::unique_ptr<Context> context_;
  };

 private:
  const BoundTables& tables_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Context>> idle_;
  size_t made_ = 0;
};

}  // namespace kvc::lib
