// An open bundle: its program, its data, its bound lists, and what calls share.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bound_tables.h"
#include "entries.h"
#include "program.h"
#include "system.h"

namespace kvc::lib {

class ContextPool;

// A bundle or a data file whose header and tail have been checked.
class SealedFile {
 public:
  enum class Kind { kBundle, kData };

  // Maps a file.
  SealedFile(const std::string& path, Kind kind);
  // Takes bytes that the caller keeps.
  SealedFile(const void* bytes, size_t nbytes);

  const std::string& path() const { return path_; }
  const uint8_t* bytes() const { return bytes_; }
  size_t readable() const { return readable_; }
  uint64_t tail_offset() const { return tail_offset_; }
  // A copy of the tail: nobody can change it after the checks. It begins at a multiple of 64.
  const uint8_t* tail() const { return tail_.bytes(); }
  size_t tail_nbytes() const { return tail_.nbytes(); }
  const Digest& digest() const { return digest_; }
  bool unchanged() const { return !mapped_ || file_.unchanged(); }
  void read_ahead(size_t offset, size_t nbytes) const {
    if (mapped_) file_.read_ahead(offset, nbytes);
  }

 private:
  void check(Kind kind);

  std::string path_;
  MappedFile file_;
  bool mapped_;
  const uint8_t* bytes_;
  size_t nbytes_, readable_;
  uint64_t tail_offset_ = 0;
  Reserved tail_;
  Digest digest_{};
};

class Bundle {
 public:
  explicit Bundle(const std::string& path);
  Bundle(const void* bytes, size_t nbytes);
  ~Bundle();

  const Program& program() const { return program_; }
  // The program's identity and its digest, in hexadecimal.
  const std::string& identity() const { return identity_; }
  const std::string& digest() const { return digest_; }
  // The lists; fails with a sentence where there are none that this library can run.
  const BoundTables& lists() const;
  // The bytes of named data, checked; 4,096 more may be read after them.
  const uint8_t* constant(int name);
  int64_t constant_nbytes(int name) const;
  // Fails if a mapped file has changed since it was opened.
  void check_unchanged() const;
  ContextPool& contexts() { return *contexts_; }
  // Methods that callers see: all but those for rows with adapters.
  const std::vector<int>& methods() const { return visible_; }
  int find_method(const std::string& name) const;  // among those, or -1

  const std::vector<MethodEntry>& entries() const { return entries_; }

  std::atomic<int> threads;

 private:
  void open();
  void find_data_files();
  void check_blobs() const;
  const uint8_t* blob(uint32_t number);

  std::vector<std::unique_ptr<SealedFile>> files_;  // null: packed data that is missing
  Program program_;
  std::string identity_, digest_;
  BoundTables lists_;
  std::vector<int> visible_;
  std::vector<MethodEntry> entries_;
  std::mutex mutex_;  // of what follows
  std::vector<const uint8_t*> checked_;  // of each blob, null before its first use
  std::vector<Reserved> copies_;         // of blobs at the end of a file, and of slots
  std::vector<const uint8_t*> slots_;    // of each named data that is a slot
  std::unique_ptr<ContextPool> contexts_;
};

}  // namespace kvc::lib
