// Reads the file of a session, and checks it against the program.
#include <algorithm>
#include <cstring>

#include "bundle.h"
#include "errors.h"
#include "json.h"
#include "sha256.h"
#include "snapshot_format.h"
#include "snapshots.h"

namespace kvc::lib {
namespace {

// Reads and checks a file, and gives its parts.
class SnapshotReader {
 public:
  SnapshotReader(const std::string& path, Bundle& bundle)
      : path_(path), file_(path), bundle_(bundle) {
    check_file();
    require(Json::read(text(), header_nbytes_, &header_), "its header is no JSON");
    require(header_.is(Json::Kind::kObject), "its header is not a JSON object");
    check_keys();
  }

  std::unique_ptr<StateMemory> load() {
    const std::string& program = member("program", Json::Kind::kText).text;
    if (program != bundle_.identity() && program != bundle_.digest()) {
      fail(KVC_BAD_SNAPSHOT, "%s: it is of program %.16s, this one is %.16s; open it with its own",
           path_.c_str(), shown(program).c_str(), bundle_.identity().c_str());
    }
    auto memory = open_memory();
    read_marks(*memory);
    check_states(*memory);
    check_adapters();
    read_states(*memory);
    read_positions(*memory);
    const Json* attached = header_.find("attached");
    if (attached != nullptr) {
      require(attached->is(Json::Kind::kObject), "attached is no object");
      memory->attached = attached->source();
    }
    return memory;
  }

 private:
  const char* text() const { return reinterpret_cast<const char*>(file_.bytes()) + kLead; }

  void require(bool holds, const char* what) const {
    if (!holds) fail(KVC_BAD_SNAPSHOT, "%s: %s", path_.c_str(), what);
  }

  void check_file() {
    const size_t nbytes = file_.nbytes();
    const bool own = nbytes >= 8 && std::memcmp(file_.bytes(), kSnapshotMagic, 8) == 0;
    require(own, "it is not a saved session");
    require(nbytes >= kLead + kDigest, "it is cut short; save the session again");
    std::memcpy(&version_, file_.bytes() + 8, 4);
    require(version_ <= kSnapshotVersion, "it was saved by a newer kvc");
    uint64_t header;
    std::memcpy(&header, file_.bytes() + 12, 8);
    require(header <= std::min<uint64_t>(kMostHeader, nbytes - kLead - kDigest),
            "its header is too large");
    header_nbytes_ = static_cast<size_t>(header);
    const Digest digest = sha256(file_.bytes(), nbytes - kDigest);
    require(std::memcmp(digest.data(), file_.bytes() + nbytes - kDigest, kDigest) == 0,
            "it is damaged: its bytes do not have their digest");
  }

  void check_keys() const {
    static const char* const kKnown[] = {"program", "sizes",   "capacity", "position", "pending",
                                         "counted", "others",  "lengths",  "written",  "reached",
                                         "states",  "attached", "adapters"};
    for (const auto& one : header_.members) {
      bool known = false;
      for (const char* name : kKnown) known = known || one.first == name;
      require(known, "its header has other parts");
    }
    const bool new_parts =
        header_.find("position") != nullptr || header_.find("pending") != nullptr;
    require((version_ == 0) != new_parts, "its header has other parts");
  }

  const Json& member(const char* name, Json::Kind kind) const {
    const Json* found = header_.find(name);
    if (found == nullptr || !found->is(kind)) {
      fail(KVC_BAD_SNAPSHOT, "%s: its header lacks %s", path_.c_str(), name);
    }
    return *found;
  }

  int64_t count_of(const Json& value, const char* name) const {
    const bool whole = value.is(Json::Kind::kInteger);
    const bool fits = whole && value.integer >= 0 && value.integer <= kMostPosition;
    if (!fits) fail(KVC_BAD_SNAPSHOT, "%s: %s has a number that is no count", path_.c_str(), name);
    return value.integer;
  }

  Rows counts_of(const Json& list, const char* name) const {
    require(list.is(Json::Kind::kList), "a list of its header is none");
    Rows found;
    for (const Json& item : list.items) found.push_back(count_of(item, name));
    return found;
  }

  Rows counts(const char* name, size_t expected) const {
    Rows found = counts_of(member(name, Json::Kind::kList), name);
    if (found.size() == expected) return found;
    fail(KVC_BAD_SNAPSHOT, "%s: %s is no list of %zu", path_.c_str(), name, expected);
  }

  std::unique_ptr<StateMemory> open_memory() {
    const Program& program = bundle_.program();
    Sizes wanted(program.expressions.symbols.size(), kUnknown);
    for (const auto& one : member("sizes", Json::Kind::kObject).members) {
      const int symbol = program.find_symbol(one.first);
      require(symbol >= 0, "it has a size that the program has not");
      wanted[static_cast<size_t>(symbol)] = count_of(one.second, "sizes");
    }
    const Json* capacity = header_.find("capacity");
    require(capacity != nullptr, "its header lacks the capacity");
    const bool limited = !capacity->is(Json::Kind::kNull);
    const int64_t limit = limited ? count_of(*capacity, "capacity") : -1;
    const int named = capacity_symbol(program);
    const bool sized = named >= 0 && wanted[static_cast<size_t>(named)] != kUnknown;
    try {
      const Sizes sizes = choose_sizes(program, wanted, -1);
      require(sizes == wanted, "its sizes are not all there, or none of the program's");
      const int64_t chosen = choose_capacity(program, sizes, sized ? -1 : limit);
      require(chosen == limit, "it has another capacity");
      return std::make_unique<StateMemory>(bundle_, sizes, chosen);
    } catch (const Error& error) {
      if (error.code == KVC_OUT_OF_MEMORY || error.code == KVC_BAD_SNAPSHOT) throw;
      throw Error{KVC_BAD_SNAPSHOT, path_ + ": " + error.text};
    }
  }

  void read_marks(const StateMemory& memory) {
    marks_.lengths = counts("lengths", memory.count());
    marks_.written = count_of(member("written", Json::Kind::kInteger), "written");
    marks_.reached = counts_of(member("reached", Json::Kind::kList), "reached");
    bool round = false;
    for (size_t i = 0; i < memory.count(); ++i) {
      const Kind& kind = memory.kind(static_cast<int>(i));
      round = round || kind.goes_round();
      const int64_t most = kind.grows() ? kind.layout.slots : 0;
      require(marks_.lengths[i] <= most, "a state has an impossible length");
    }
    require(round || marks_.reached.empty(), "it has rings, the program has none");
  }

  void check_states(const StateMemory& memory) const {
    const Json& states = member("states", Json::Kind::kList);
    require(states.items.size() == memory.count(), "its states are not the program's");
    uint64_t nbytes = 0;
    for (size_t i = 0; i < memory.count(); ++i) {
      const Kind& kind = memory.kind(static_cast<int>(i));
      const Span span = saved_span(kind, i, marks_);
      Json expected;
      const std::string text = describe(kind, span);
      Json::read(text.data(), text.size(), &expected);
      require(same(states.items[i], expected), "its states are not the program's");
      nbytes += static_cast<uint64_t>(kind.layout.count(span) * kind.layout.itemsize);
    }
    require(nbytes == file_.nbytes() - kDigest - kLead - header_nbytes_,
            "its states have another number of bytes");
  }

  static bool same(const Json& a, const Json& b) {
    if (a.kind != b.kind || a.integer != b.integer || a.text != b.text) return false;
    if (a.items.size() != b.items.size() || a.members.size() != b.members.size()) return false;
    for (size_t i = 0; i < a.items.size(); ++i) {
      if (!same(a.items[i], b.items[i])) return false;
    }
    for (const auto& one : a.members) {
      const Json* other = b.find(one.first.c_str());
      if (other == nullptr || !same(one.second, *other)) return false;
    }
    return true;
  }

  void check_adapters() const {
    const Json* adapters = header_.find("adapters");
    if (adapters == nullptr) return;
    require(adapters->is(Json::Kind::kList), "adapters is no list");
    for (const Json& one : adapters->items) {
      require(one.is(Json::Kind::kList), "adapters is no list of lists");
      require(one.items.empty(), "its rows have adapters, which this library does not load");
    }
  }

  void read_states(StateMemory& memory) const {
    const uint8_t* next = file_.bytes() + kLead + header_nbytes_;
    for (size_t i = 0; i < memory.count(); ++i) {
      const Kind& kind = memory.kind(static_cast<int>(i));
      uint8_t* base = memory.base(static_cast<int>(i));
      kind.layout.for_rows(saved_span(kind, i, marks_), [&](int64_t to, int64_t, int64_t nbytes) {
        std::memcpy(base + to, next, static_cast<size_t>(nbytes));
        next += nbytes;
      });
    }
  }

  void read_positions(StateMemory& memory) const {
    memory.lengths = marks_.lengths;
    memory.counted[0] = counts("counted", memory.counted[0].size());
    const Json* others = header_.find("others");
    const size_t count = others == nullptr ? 0 : others->items.size();
    require(count + 1 == memory.counted.size(), "others is a list of another length");
    for (size_t i = 0; i < count; ++i) {
      const Rows rows = counts_of(others->items[i], "others");
      require(rows.size() == memory.counted[i + 1].size(), "others has another number of rows");
      memory.counted[i + 1] = rows;
    }
    for (size_t i = 0; i < memory.count(); ++i) {
      Kind& kind = memory.kind(static_cast<int>(i));
      if (is_linear(kind)) kind.reached.assign(1, marks_.written);
      if (kind.goes_round()) kind.reached = marks_.reached;
    }
    check_positions(memory);
    const Json* pending = header_.find("pending");
    for (size_t i = 0; pending != nullptr && i < pending->items.size(); ++i) {
      memory.pending.push_back(counts_of(pending->items[i], "pending"));
    }
    const size_t rows = memory.pending.size();
    require(rows == 0 || rows == count_rows(memory.program(), memory.sizes(), 0),
            "pending has another number of rows");
  }

  void check_positions(StateMemory& memory) const {
    Rows position;
    const size_t cursors = memory.program().cursors.size();
    for (size_t i = 0; i < cursors; ++i) {
      const int number = static_cast<int>(i);
      if (!memory.known_position(number, &position)) continue;
      const int64_t room = memory.room(number), most = room < 0 ? kMostPosition : room;
      for (const int64_t count : position) {
        require(count >= 0 && count <= most, "it has an impossible position");
      }
      for (size_t j = 0; j < memory.count(); ++j) {
        Kind& kind = memory.kind(static_cast<int>(j));
        if (kind.state.cursor != number) kind.ends[i] = position;
      }
    }
    const bool known = memory.known_position(0, &position);
    const Json* stated = header_.find("position");
    if (stated != nullptr && !stated->is(Json::Kind::kNull)) {
      require(known && counts_of(*stated, "position") == position, "it states another position");
    }
    for (size_t i = 0; i < memory.count(); ++i) {
      if (!memory.kind(static_cast<int>(i)).goes_round()) continue;
      bool fits = known && marks_.reached.size() == position.size();
      for (size_t row = 0; fits && row < position.size(); ++row) {
        fits = marks_.reached[row] >= position[row];
      }
      require(fits, "its rings were written to another position");
    }
  }

  std::string path_;
  MappedFile file_;
  Bundle& bundle_;
  uint32_t version_ = 0;
  size_t header_nbytes_ = 0;
  Json header_;
  Marks marks_;
};

}  // namespace

std::unique_ptr<StateMemory> load_snapshot(const std::string& path, Bundle& bundle) {
  bundle.lists();
  return SnapshotReader(path, bundle).load();
}

}  // namespace kvc::lib
