#include "system.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "errors.h"

#ifdef _WIN32
#include "system_windows.inc"
#else
#include "system_posix.inc"
#endif

namespace kvc::lib {

MappedFile::~MappedFile() { close(); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(nbytes_, other.nbytes_);
  std::swap(readable_, other.readable_);
  std::swap(file_, other.file_);
  std::swap(time_, other.time_);
  return *this;
}

Reserved& Reserved::operator=(Reserved&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(nbytes_, other.nbytes_);
  std::swap(length_, other.length_);
  return *this;
}

}  // namespace kvc::lib
