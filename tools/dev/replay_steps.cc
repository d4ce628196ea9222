// Repeats the kernel calls that record_steps.py has recorded, and compares the bits.
//
//   replay_steps FILE [MOST [THREADS]]
//
// Linked with the library of kernels. Each instruction set that this library and processor have
// is compared with the results of the same one, or else of `avx2`. Kernels whose results differ
// are listed; exits with 1 where one differs by more than MOST, 0 by default. Of NaNs the sign
// and the payload, which C++ leaves open, are not compared.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "../../runtime_py/native/kernels.h"
#include "../../runtime_py/native/pool.h"

extern "C" {
const char* kvc_processors();
int32_t kvc_use_processor(const char* name);
int32_t kvc_kernel(const char* name);
int32_t kvc_run(const kvc::Step* steps, int32_t count, int32_t first, int32_t threads,
                int32_t milliseconds, kvc::Failure* failure, const kvc::Lent* lent,
                int64_t* ended);
}

namespace {

using Bytes = std::string;

// Memory of operands, at the place within a line of 64 bytes that it had.
struct Region {
  Bytes before;
  std::vector<char> memory;
  char* begin = nullptr;
  kvc::DType dtype = kvc::DType::kUInt8;  // of the operand that begins here

  void reset() { std::memcpy(begin, before.data(), before.size()); }
};

struct Call {
  Bytes kernel;
  std::vector<Region> regions;
  std::vector<kvc::Tensor> tensors;
  std::vector<int64_t> integers;
  std::vector<double> numbers;
  std::map<Bytes, std::vector<Bytes>> results;  // by instruction set; empty: not changed
};

class Reader {
 public:
  explicit Reader(std::FILE* file) : file_(file) {}

  bool more() {
    const int next = std::getc(file_);
    std::ungetc(next, file_);
    return next != EOF;
  }

  Call call() {
    Call found;
    found.kernel = bytes();
    found.regions.resize(integer());
    for (Region& region : found.regions) {
      const int64_t place = integer();
      region.before = bytes();
      region.memory.resize(region.before.size() + 128);
      const auto address = reinterpret_cast<uintptr_t>(region.memory.data());
      region.begin = region.memory.data() + (64 - address % 64) % 64 + place;
    }
    found.tensors.resize(integer());
    for (kvc::Tensor& tensor : found.tensors) tensor = operand(found.regions);
    found.integers.resize(integer());
    for (int64_t& one : found.integers) one = integer();
    found.numbers.resize(integer());
    read(found.numbers.data(), 8 * found.numbers.size());
    for (int64_t left = integer(); left > 0; --left) {
      std::vector<Bytes>& after = found.results[bytes()];
      after.resize(found.regions.size());
      for (Bytes& one : after) one = bytes();
    }
    return found;
  }

  void expect(const Bytes& text) {
    Bytes found(text.size(), 0);
    read(&found[0], found.size());
    if (found != text) fail();
  }

 private:
  void read(void* to, size_t nbytes) {
    if (std::fread(to, 1, nbytes, file_) != nbytes) fail();
  }

  int64_t integer() {
    int64_t found;
    read(&found, sizeof found);
    return found;
  }

  Bytes bytes() {
    Bytes found(static_cast<size_t>(integer()), 0);
    read(&found[0], found.size());
    return found;
  }

  kvc::Tensor operand(std::vector<Region>& regions) {
    static double nothing[8];
    kvc::Tensor found;
    const int64_t region = integer(), place = integer();
    found.data = place != 0 ? nothing : nullptr;
    if (region >= 0) found.data = regions[region].begin + place;
    found.dtype = static_cast<kvc::DType>(integer());
    if (region >= 0 && place == 0) regions[region].dtype = found.dtype;
    found.rank = static_cast<int32_t>(integer());
    for (int64_t& dim : found.dims) dim = integer();
    for (int64_t& stride : found.strides) stride = integer();
    return found;
  }

  [[noreturn]] static void fail() {
    std::fprintf(stderr, "the file is not one of record_steps.py\n");
    std::exit(2);
  }

  std::FILE* file_;
};

// How far calls of a kernel are from what was recorded.
struct Difference {
  int calls = 0;
  double most = 0;  // of the elements, relative; infinite where they are no floats
};

// -1 where all elements are equal or NaNs.

template <class T>
double farthest(const Bytes& found, const Bytes& expected) {
  double most = -1;
  for (size_t i = 0; i + sizeof(T) <= found.size(); i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, found.data() + i, sizeof a);
    std::memcpy(&b, expected.data() + i, sizeof b);
    if (std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b)) continue;
    const double off = std::abs(static_cast<double>(a) - b) / std::abs(static_cast<double>(b));
    most = std::max(most, off == off ? off : INFINITY);
  }
  return most;
}

double farthest(kvc::DType dtype, const Bytes& found, const Bytes& expected) {
  if (found == expected) return -1;
  switch (dtype) {
    case kvc::DType::kFloat32: return farthest<float>(found, expected);
    case kvc::DType::kFloat64: return farthest<double>(found, expected);
    default: return INFINITY;
  }
}

bool run(Call& call, int32_t kernel, int32_t threads) {
  for (Region& region : call.regions) region.reset();
  const kvc::Step step{kernel, static_cast<int32_t>(call.tensors.size()), call.tensors.data(),
                       call.integers.data(), call.numbers.data()};
  kvc::Failure failure{};
  return kvc_run(&step, 1, 0, threads, 1 << 30, &failure, nullptr, nullptr) == 1 &&
         failure.fault == kvc::Fault::kNone;
}

// How far calls are from what was recorded, -1 where all have the bits; lists kernels that differ.
double compare(std::vector<Call>& calls, const Bytes& processor, int threads) {
  std::map<Bytes, Difference> differences;
  for (Call& call : calls) {
    const int32_t kernel = kvc_kernel(call.kernel.c_str());
    const bool succeeded = kernel >= 0 && run(call, kernel, threads);
    const Bytes like = call.results.count(processor) != 0 ? processor : "avx2";
    const std::vector<Bytes>& after = call.results.at(like);
    double most = succeeded ? -1 : INFINITY;
    for (size_t i = 0; i < after.size() && succeeded; ++i) {
      const Region& region = call.regions[i];
      const Bytes& expected = after[i].empty() ? region.before : after[i];
      const Bytes found(region.begin, region.before.size());
      most = std::max(most, farthest(region.dtype, found, expected));
    }
    if (most < 0) continue;
    Difference& difference = differences[call.kernel];
    ++difference.calls;
    difference.most = std::max(difference.most, most);
  }
  int differing = 0;
  double most = -1;
  for (const auto& each : differences) {
    differing += each.second.calls;
    most = std::max(most, each.second.most);
  }
  const int count = static_cast<int>(calls.size());
  std::printf("%s: %d of %d calls have the recorded bits\n", processor.c_str(), count - differing,
              count);
  for (const auto& each : differences) {
    std::printf("  %s: %d calls differ, by %.1e\n", each.first.c_str(), each.second.calls,
                each.second.most);
  }
  return most;
}

}  // namespace

int main(int count, char** arguments) {
  std::FILE* file = count > 1 ? std::fopen(arguments[1], "rb") : nullptr;
  if (file == nullptr) {
    std::fprintf(stderr, "usage: replay_steps FILE [MOST [THREADS]]\n");
    return 2;
  }
  Reader reader(file);
  reader.expect("kvc steps 1\n");
  std::vector<Call> calls;
  while (reader.more()) calls.push_back(reader.call());
  double most = -1;
  Bytes names = kvc_processors();
  for (size_t end; (end = names.find(' ')) != Bytes::npos; names.erase(0, end + 1)) {
    const Bytes processor = names.substr(0, end);
    kvc_use_processor(processor.c_str());
    most = std::max(most, compare(calls, processor, count > 3 ? std::atoi(arguments[3]) : 2));
  }
  return most > (count > 2 ? std::atof(arguments[2]) : 0) ? 1 : 0;
}
