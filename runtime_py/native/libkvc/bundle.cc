#include "bundle.h"

#include <algorithm>
#include <cstring>

#include "contexts.h"
#include "errors.h"
#include "tables.h"

extern "C" int32_t kvc_version(void);

namespace kvc::lib {
namespace {

constexpr size_t kSpare = 4096;

// The entry of a blob in a data file's index, -1 where it has none.
int64_t find_entry(const stored::Blobs& index, const Blob& blob) {
  const auto& offsets = *index.offsets();  // ascending, or nothing is found
  const auto first = std::lower_bound(offsets.begin(), offsets.end(), blob.offset);
  for (auto i = static_cast<uint32_t>(first - offsets.begin()); i < offsets.size(); ++i) {
    if (offsets.Get(i) != blob.offset) return -1;
    if (index.nbytes()->Get(i) != blob.nbytes) continue;
    const uint8_t* digest = index.digests()->data() + size_t{32} * i;
    if (std::memcmp(digest, blob.digest.data(), 32) == 0) return i;
  }
  return -1;
}

// Checks that the blobs of a file lie one after another before its tail.
void check_layout(const std::vector<const Blob*>& own, uint64_t limit, const char* path) {
  uint64_t end = 128;
  for (const Blob* blob : own) {
    const uint64_t expected = (end + blob->align - 1) / blob->align * blob->align;
    if (blob->offset != expected || blob->offset > limit || blob->nbytes > limit - blob->offset) {
      fail(KVC_DAMAGED, "%s: its blobs overlap, leave holes or reach past the end", path);
    }
    end = blob->offset + blob->nbytes;
  }
}

}  // namespace

Bundle::Bundle(const std::string& path) : threads(count_cores()) {
  files_.push_back(std::make_unique<SealedFile>(path, SealedFile::Kind::kBundle));
  open();
}

Bundle::Bundle(const void* bytes, size_t nbytes) : threads(count_cores()) {
  if (reinterpret_cast<uintptr_t>(bytes) % 64 != 0) {
    fail(KVC_BAD_ARGUMENT, "a bundle in memory must begin at a multiple of 64 bytes, this is at %p",
         bytes);
  }
  files_.push_back(std::make_unique<SealedFile>(bytes, nbytes));
  open();
}

Bundle::~Bundle() = default;

void Bundle::open() {
  const SealedFile& file = *files_[0];
  flatbuffers::Verifier verifier(file.tail(), file.tail_nbytes());
  if (!stored::VerifyProgramBuffer(verifier)) {
    fail(KVC_DAMAGED, "%s: its program is no FlatBuffer of this format; it was made by a newer kvc "
         "or to mislead", file.path().c_str());
  }
  const stored::Program& table = *stored::GetProgram(file.tail());
  digest_ = hexadecimal(file.digest());
  try {
    read_program(table, &program_);
    if (table.bounds() != nullptr) {
      lists_ = read_bounds(*table.bounds(), program_);
      Digest identity;
      std::memcpy(identity.data(), table.bounds()->identity()->data(), identity.size());
      identity_ = hexadecimal(identity);
    }
  } catch (const Error& error) {
    throw Error{error.code, file.path() + ": " + error.text};
  }
  for (size_t i = 0; i < program_.methods.size(); ++i) {
    if (!program_.methods[i].adapts) visible_.push_back(static_cast<int>(i));
  }
  entries_ = make_entries(program_);
  find_data_files();
  check_blobs();
  checked_.assign(program_.blobs.size(), nullptr);
  slots_.assign(program_.names.size(), nullptr);
  contexts_ = std::make_unique<ContextPool>(lists_);
}

void Bundle::find_data_files() {
  const std::string path = files_[0]->path();
  std::vector<bool> needed(program_.files.size(), false);
  for (const NamedData& named : program_.names) {
    const bool packed = named.format != "plain" && named.format != "file" && named.format != "slot";
    if (!packed) needed[program_.blobs[named.blob].file] = true;
  }
  for (size_t i = 1; i < program_.files.size(); ++i) {
    const DataFile& wanted = program_.files[i];
    const bool in_memory = files_[0]->readable() == 0 || path == "the bundle in memory";
    const std::string found = in_memory ? "" : path_in(folder_of(path), wanted.name);
    if (in_memory || !exists(found)) {
      if (needed[i]) {
        fail(KVC_DATA_FILE_MISSING,
             "%s: its data file %s is not beside it; put it there, or join them by kvc join",
             path.c_str(), wanted.name.c_str());
      }
      files_.push_back(nullptr);
      continue;
    }
    auto file = std::make_unique<SealedFile>(found, SealedFile::Kind::kData);
    if (file->digest() != wanted.digest) {
      fail(KVC_DATA_FILE_MISMATCH,
           "%s: the data file %s beside it is of another bundle: its digest is %.12s, expected "
           "%.12s; copy the right one there",
           path.c_str(), wanted.name.c_str(), hexadecimal(file->digest()).c_str(),
           hexadecimal(wanted.digest).c_str());
    }
    files_.push_back(std::move(file));
  }
}

void Bundle::check_blobs() const {
  std::vector<std::vector<const Blob*>> of_files(files_.size());
  for (const Blob& blob : program_.blobs) of_files[blob.file].push_back(&blob);
  for (size_t i = 0; i < files_.size(); ++i) {
    if (files_[i] == nullptr) continue;
    const SealedFile& file = *files_[i];
    auto& own = of_files[i];
    std::sort(own.begin(), own.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
    if (i == 0) {
      check_layout(own, file.tail_offset(), file.path().c_str());
      continue;
    }
    flatbuffers::Verifier verifier(file.tail(), file.tail_nbytes());
    const bool known = verifier.VerifyBuffer<stored::Blobs>("KVCD");
    const auto* index = known ? flatbuffers::GetRoot<stored::Blobs>(file.tail()) : nullptr;
    const size_t count = known ? index->offsets()->size() : 0;
    if (!known || index->nbytes()->size() != count || index->digests()->size() != 32 * count) {
      fail(KVC_DAMAGED, "%s: its index breaks the format", file.path().c_str());
    }
    uint64_t end = 0;
    for (const Blob* blob : own) {
      const bool inside = blob->offset >= end && blob->offset <= file.tail_offset() &&
                          blob->nbytes <= file.tail_offset() - blob->offset;
      if (!inside || find_entry(*index, *blob) < 0) {
        fail(KVC_DAMAGED, "%s: the bundle expects a blob that it does not have",
             file.path().c_str());
      }
      end = blob->offset + blob->nbytes;
    }
  }
}

const BoundTables& Bundle::lists() const {
  if (lists_.lists.empty()) {
    fail(KVC_NOT_BOUND,
         "%s: it has no bound lists, which this library runs; compile it again for a recipe "
         "cpu_*, without --no-bind",
         files_[0]->path().c_str());
  }
  if (lists_.kernels_version != static_cast<uint32_t>(kvc_version())) {
    fail(KVC_OTHER_KERNELS,
         "%s: bound for other kernels: its lists are for version %u, this library has version %d; "
         "compile the bundle again (kvc compile --bind)",
         files_[0]->path().c_str(), lists_.kernels_version, kvc_version());
  }
  return lists_;
}

int Bundle::find_method(const std::string& name) const {
  for (size_t i = 0; i < visible_.size(); ++i) {
    if (program_.methods[static_cast<size_t>(visible_[i])].name == name) return static_cast<int>(i);
  }
  return -1;
}

void Bundle::check_unchanged() const {
  for (const auto& file : files_) {
    if (file == nullptr || file->unchanged()) continue;
    fail(KVC_FILE_CHANGED, "%s: it was changed while it was open; open it again",
         file->path().c_str());
  }
}

int64_t Bundle::constant_nbytes(int name) const {
  const Type& type = program_.names[static_cast<size_t>(name)].type;
  int64_t nbytes = dtype_nbytes(type.dtype);
  for (const Dim& dim : type.dims) nbytes *= dim.value;
  return nbytes;
}

const uint8_t* Bundle::constant(int name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const NamedData& named = program_.names[static_cast<size_t>(name)];
  if (named.format != "slot") return blob(named.blob);
  const uint8_t*& slot = slots_[static_cast<size_t>(name)];
  if (slot == nullptr) {
    copies_.emplace_back(static_cast<size_t>(constant_nbytes(name)), "slots of adapters");
    slot = copies_.back().bytes();
  }
  return slot;
}

const uint8_t* Bundle::blob(uint32_t number) {
  if (checked_[number] != nullptr) return checked_[number];
  const Blob& wanted = program_.blobs[number];
  const auto& file = files_[wanted.file];
  if (file == nullptr) {
    fail(KVC_DATA_FILE_MISSING, "the data file %s is not beside the bundle",
         program_.files[wanted.file].name.c_str());
  }
  const uint8_t* bytes = file->bytes() + wanted.offset;
  file->read_ahead(wanted.offset, wanted.nbytes);
  if (wanted.offset + wanted.nbytes + kSpare > file->readable()) {
    copies_.emplace_back(wanted.nbytes, "weights");
    std::memcpy(copies_.back().bytes(), bytes, wanted.nbytes);
    bytes = copies_.back().bytes();
  }
  if (blob_digest(bytes, wanted.nbytes) != wanted.digest) {
    fail(KVC_DAMAGED, "%s: damaged: the %llu bytes from %llu on do not have their digest; copy it "
         "again", file->path().c_str(), static_cast<unsigned long long>(wanted.nbytes),
         static_cast<unsigned long long>(wanted.offset));
  }
  return checked_[number] = bytes;
}

}  // namespace kvc::lib
