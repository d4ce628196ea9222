// What kvc.h calls a bundle and a session, and what generation in C++ uses.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "bundle.h"
#include "calls.h"
#include "errors.h"
#include "state_memory.h"

namespace kvc::lib {

class Session {
 public:
  Session(std::shared_ptr<Bundle> bundle, std::unique_ptr<StateMemory> memory)
      : bundle_(std::move(bundle)), memory_(std::move(memory)), caller_(*bundle_, *memory_) {}

  const std::shared_ptr<Bundle>& shared_bundle() const { return bundle_; }
  Bundle& bundle() { return *bundle_; }
  StateMemory& memory() { return *memory_; }
  const StateMemory& memory() const { return *memory_; }
  Caller& caller() { return caller_; }

 private:
  std::shared_ptr<Bundle> bundle_;
  std::unique_ptr<StateMemory> memory_;
  Caller caller_;
};

}  // namespace kvc::lib

struct kvc_bundle {
  explicit kvc_bundle(std::shared_ptr<kvc::lib::Bundle> bundle);

  std::shared_ptr<kvc::lib::Bundle> shared;
  std::string metadata_keys;  // a JSON list
  std::deque<std::string> texts;  // of dims; they stay where they are
  std::vector<std::vector<kvc_type>> inputs, outputs;  // of each method that callers see
  std::vector<kvc_type> states;

 private:
  kvc_type describe(const std::string& name, const kvc::lib::Type& type);
};

struct kvc_session {
  kvc::lib::Session session;
  std::atomic<bool> used{false};
};

namespace kvc::lib {

// A session in use by this thread; fails as KVC_BUSY where another uses it.
class Use {
 public:
  explicit Use(kvc_session* session) : session_(session) {
    if (session == nullptr) fail(KVC_BAD_ARGUMENT, "the session is null");
    if (session->used.exchange(true, std::memory_order_acquire)) {
      session_ = nullptr;
      fail(KVC_BUSY, "another thread uses the session; give each thread a session of its own");
    }
  }
  ~Use() {
    if (session_ != nullptr) session_->used.store(false, std::memory_order_release);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  Session* operator->() const { return &session_->session; }

 private:
  kvc_session* session_;
};

}  // namespace kvc::lib
