// Prints how often a thread of the library takes memory in decode steps, after the first ones.
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "kvc.h"

extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* __libc_realloc(void*, size_t);
extern "C" void* __libc_memalign(size_t, size_t);

static std::atomic<bool> counting{false};
static std::atomic<int> taken{0};

static void note() {
  if (counting) ++taken;
}

extern "C" void* malloc(size_t nbytes) {
  note();
  return __libc_malloc(nbytes);
}
extern "C" void* calloc(size_t count, size_t nbytes) {
  note();
  return __libc_calloc(count, nbytes);
}
extern "C" void* realloc(void* old, size_t nbytes) {
  note();
  return __libc_realloc(old, nbytes);
}
extern "C" void* aligned_alloc(size_t align, size_t nbytes) {
  note();
  return __libc_memalign(align, nbytes);
}

static kvc_error error;

static void check(kvc_code code) {
  if (code == KVC_OK) return;
  std::fprintf(stderr, "%s\n", error.text);
  std::exit(1);
}

int main(int, char** arguments) {
  kvc_bundle* bundle;
  kvc_session* session;
  check(kvc_open(arguments[1], &bundle, &error));
  // A second thread may get its first work late, and memory for it, which stays.
  check(kvc_set_threads(bundle, 1, &error));
  check(kvc_session_open(bundle, nullptr, 0, 0, &session, &error));
  const float* logits;
  int64_t vocabulary;
  const int64_t prompt[] = {1, 2, 3}, token[] = {4};
  check(kvc_session_step(session, prompt, 3, &logits, &vocabulary, &error));
  for (int i = 0; i < 20; ++i) {
    counting = i >= 4;
    check(kvc_session_step(session, token, 1, &logits, &vocabulary, &error));
    counting = false;
  }
  std::printf("%d\n", taken.load());
  check(kvc_session_close(session, &error));
  kvc_close(bundle);
}
