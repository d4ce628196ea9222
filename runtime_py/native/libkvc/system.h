// What the operating system is asked for: mapped files, reserved memory, files that are written
// completely or not at all. No other file of the library calls the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvc::lib {

// A file mapped for reading. It is an error if it is no plain file.
class MappedFile {
 public:
  MappedFile() = default;
  // Opens a file; `follow` tells whether it may be a link.
  explicit MappedFile(const std::string& path, bool follow = true);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept { *this = static_cast<MappedFile&&>(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;

  const uint8_t* bytes() const { return bytes_; }
  size_t nbytes() const { return nbytes_; }
  // How many bytes may be read from the first on: those after the file are zero.
  size_t readable() const { return readable_; }
  // Whether the file still has the size and the time that it had.
  bool unchanged() const;
  // Tells the system that the bytes will be read soon, in order.
  void read_ahead(size_t offset, size_t nbytes) const;

 private:
  void close();

  const uint8_t* bytes_ = nullptr;
  size_t nbytes_ = 0, readable_ = 0;
  int64_t file_ = -1, time_ = 0;
};

// Memory that holds zeros, and takes room only where it was written.
class Reserved {
 public:
  Reserved() = default;
  // Reserves memory, and at least 4,096 bytes after it; `what` names it in an error.
  Reserved(size_t nbytes, const char* what);
  ~Reserved();
  Reserved(Reserved&& other) noexcept { *this = static_cast<Reserved&&>(other); }
  Reserved& operator=(Reserved&& other) noexcept;

  uint8_t* bytes() const { return bytes_; }
  size_t nbytes() const { return nbytes_; }
  // Makes bytes zero; whole pages of them are given back to the system.
  void clear(size_t offset, size_t nbytes);

 private:
  uint8_t* bytes_ = nullptr;
  size_t nbytes_ = 0, length_ = 0;
};

// A file that gets its name when all of it has been written; an older one is replaced then.
class NewFile {
 public:
  explicit NewFile(const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* bytes, size_t nbytes);
  void commit();

 private:
  std::string path_, temporary_;
  int64_t file_ = -1;
};

// The folder of a file, after links to the file are followed.
std::string folder_of(const std::string& path);
// A file's path in a folder.
std::string path_in(const std::string& folder, const std::string& name);
bool exists(const std::string& path);

// How many cores this process may use.
int count_cores();

}  // namespace kvc::lib
