// SHA-256 (FIPS 180-4), by the processor's instructions where it has them; digests of blobs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvc::lib {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  void update(const void* bytes, size_t nbytes);
  Digest finish();

 private:
  uint32_t state_[8];
  uint8_t rest_[64];
  uint64_t nbytes_ = 0;
};

Digest sha256(const void* bytes, size_t nbytes);
// The digest of a blob: of up to 1 MiB its SHA-256; beyond, that of its leaves' (FORMAT.md).
// Two threads share a large one.
Digest blob_digest(const uint8_t* bytes, size_t nbytes);
std::string hexadecimal(const Digest& digest);

}  // namespace kvc::lib
