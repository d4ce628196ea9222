// The header of a file, and its tail.
#include <cstring>

#include "bundle.h"
#include "errors.h"

namespace kvc::lib {
namespace {

constexpr size_t kHeader = 128, kSealed = 96;
constexpr uint32_t kVersion = 0;
constexpr char kMagics[][9] = {"\x8bKVC\r\n\x1a\n", "\x8bKVD\r\n\x1a\n", "\x89KVCS\r\n\n"};

template <class T>
T number_at(const uint8_t* bytes) {
  T number;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

// What a file looks like that is no bundle.
const char* guess(const uint8_t* bytes, size_t nbytes) {
  const auto begins = [&](const char* text, size_t count) {
    return nbytes >= count && std::memcmp(bytes, text, count) == 0;
  };
  if (nbytes == 0) return "an empty file";
  size_t zeros = 0;
  while (zeros < nbytes && zeros < kHeader && bytes[zeros] == 0) ++zeros;
  if (zeros == std::min(nbytes, kHeader)) return "zeros, such as a download that never finished";
  if (begins(kMagics[0], 8)) return "a kvc bundle (.kvc)";
  if (begins(kMagics[1], 8)) return "the data file of a bundle (.kvd); give the .kvc that uses it";
  if (begins(kMagics[2], 8)) return "a saved session; restore it with the bundle it belongs to";
  if (begins("\x89KVCA", 5)) return "an adapter of a bundle (.kva)";
  if (begins("GGUF", 4)) return "a GGUF model; kvc compile makes a bundle of it";
  if (begins("PK\x03\x04", 4)) return "a zip archive, such as a PyTorch file";
  if (begins("version https://git-lfs", 23)) return "a Git LFS pointer; run git lfs pull";
  if (nbytes >= 6 && (std::memcmp(bytes + 1, "KVC", 3) == 0 || std::memcmp(bytes, "KVC", 3) == 0)) {
    return "a kvc file that was damaged, perhaps by a copy in text mode";
  }
  return "nothing that kvc knows";
}

}  // namespace

SealedFile::SealedFile(const std::string& path, Kind kind)
    : path_(path), file_(path, kind == Kind::kBundle), mapped_(true), bytes_(file_.bytes()),
      nbytes_(file_.nbytes()), readable_(file_.readable()) {
  check(kind);
}

SealedFile::SealedFile(const void* bytes, size_t nbytes)
    : path_("the bundle in memory"), mapped_(false), bytes_(static_cast<const uint8_t*>(bytes)),
      nbytes_(nbytes), readable_(nbytes) {
  check(Kind::kBundle);
}

void SealedFile::check(Kind kind) {
  const char* path = path_.c_str();
  const bool bundle = kind == Kind::kBundle;
  const char* magic = kMagics[bundle ? 0 : 1];
  const size_t first = std::min<size_t>(nbytes_, 8);
  if (nbytes_ == 0 || std::memcmp(bytes_, magic, first) != 0) {
    fail(KVC_NOT_A_BUNDLE, "%s: not %s, but %s", path,
         bundle ? "a bundle (.kvc)" : "a data file (.kvd)", guess(bytes_, nbytes_));
  }
  if (nbytes_ < kHeader) {
    fail(KVC_DAMAGED, "%s: cut short: it has %zu bytes, its header alone has %zu; copy it again",
         path, nbytes_, kHeader);
  }
  const Digest sealed = sha256(bytes_, kSealed);
  if (std::memcmp(sealed.data(), bytes_ + kSealed, 32) != 0) {
    fail(KVC_DAMAGED, "%s: damaged: the header does not have its digest; copy it again", path);
  }
  const auto version = number_at<uint32_t>(bytes_ + 8);
  if (version != kVersion) {
    fail(KVC_UNSUPPORTED_VERSION,
         "%s: it has format version %u, this library reads version %u; use a library of the kvc "
         "that made it, or compile it again",
         path, version, kVersion);
  }
  const auto whole = number_at<uint64_t>(bytes_ + 16);
  if (whole != nbytes_) {
    fail(KVC_DAMAGED, "%s: %s: it has %zu bytes, its header says %llu; copy it again", path,
         nbytes_ < whole ? "cut short" : "too long", nbytes_,
         static_cast<unsigned long long>(whole));
  }
  const auto nbytes = number_at<uint64_t>(bytes_ + 32);
  tail_offset_ = number_at<uint64_t>(bytes_ + 24);
  const uint64_t most = bundle ? 64 << 20 : 8 << 20;
  bool fits = number_at<uint32_t>(bytes_ + 12) == 0 && nbytes <= most;
  fits = fits && tail_offset_ >= kHeader && tail_offset_ % 64 == 0 && tail_offset_ <= nbytes_ &&
         nbytes_ - tail_offset_ == nbytes;
  for (size_t i = 72; i < kSealed; ++i) fits = fits && bytes_[i] == 0;
  if (!fits) fail(KVC_DAMAGED, "%s: its header contradicts itself; it was made to mislead", path);
  tail_ = Reserved(nbytes, "the program of a bundle");
  std::memcpy(tail_.bytes(), bytes_ + tail_offset_, nbytes);
  digest_ = sha256(tail_.bytes(), nbytes);
  if (std::memcmp(digest_.data(), bytes_ + 40, 32) != 0) {
    fail(KVC_DAMAGED, "%s: damaged: the program does not have its digest; copy it again", path);
  }
}

}  // namespace kvc::lib
