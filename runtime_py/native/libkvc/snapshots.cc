#include "snapshots.h"

#include <algorithm>
#include <cstring>

#include "bundle.h"
#include "errors.h"
#include "json.h"
#include "sha256.h"
#include "snapshot_format.h"

namespace kvc::lib {
namespace {

template <class Lists>
std::string lists_of(const Lists& lists, size_t first) {
  std::string text = "[";
  for (size_t i = first; i < lists.size(); ++i) text += (i > first ? "," : "") + list_of(lists[i]);
  return text + "]";
}

Marks marks_of(const StateMemory& memory, const Rows* position) {
  Marks marks;
  marks.lengths = memory.lengths;
  bool any = false;
  for (size_t i = 0; i < memory.count(); ++i) {
    const Kind& kind = memory.kind(static_cast<int>(i));
    if (is_linear(kind)) marks.written = std::max(marks.written, kind.held());
    if (!kind.goes_round()) continue;
    Rows reached;
    kind.reach(position != nullptr ? *position : Rows(), &reached);
    if (!any) marks.reached.assign(reached.size(), 0);
    any = true;
    for (size_t row = 0; row < reached.size(); ++row) {
      marks.reached[row] = std::max(marks.reached[row], reached[row]);
    }
  }
  marks.written = std::min(marks.written, kMostPosition);
  return marks;
}

std::string header_of(const Bundle& bundle, const StateMemory& memory, const Marks& marks,
                      const Rows* position, const std::string& attached) {
  const Program& program = memory.program();
  std::string text = "{\"program\":\"" + bundle.identity() + "\",\"sizes\":{";
  bool first = true;
  for (size_t i = 0; i < memory.sizes().size(); ++i) {
    if (memory.sizes()[i] == kUnknown) continue;
    text += (first ? "" : ",") + quoted(program.expressions.symbols[i].name) + ":" +
            std::to_string(memory.sizes()[i]);
    first = false;
  }
  const int64_t capacity = memory.capacity();
  text += "},\"capacity\":" + (capacity < 0 ? "null" : std::to_string(capacity));
  text += ",\"position\":" + (position == nullptr ? "null" : list_of(*position));
  text += ",\"pending\":" + lists_of(memory.pending, 0);
  text += ",\"counted\":" + list_of(memory.counted[0]);
  if (memory.counted.size() > 1) text += ",\"others\":" + lists_of(memory.counted, 1);
  text += ",\"lengths\":" + list_of(marks.lengths);
  text += ",\"written\":" + std::to_string(marks.written);
  text += ",\"reached\":" + list_of(marks.reached) + ",\"states\":[";
  for (size_t i = 0; i < memory.count(); ++i) {
    const Kind& kind = memory.kind(static_cast<int>(i));
    text += (i > 0 ? "," : "") + describe(kind, saved_span(kind, i, marks));
  }
  text += "]";
  if (!attached.empty() && attached != "{}") text += ",\"attached\":" + attached;
  return text + "}";
}

}  // namespace

std::string list_of(const Rows& numbers) {
  std::string text = "[";
  for (const int64_t number : numbers) {
    if (text.size() > 1) text += ",";
    text += std::to_string(number);
  }
  return text + "]";
}

bool is_linear(const Kind& kind) { return kind.placed() && !kind.goes_round(); }

Span saved_span(const Kind& kind, size_t state, const Marks& marks) {
  Span span;
  if (is_linear(kind)) span.high = marks.written;
  if (kind.grows()) span.high = marks.lengths[state];
  if (kind.goes_round()) {
    const Rows& reached = marks.reached;
    span.high = reached.empty() ? 0 : *std::max_element(reached.begin(), reached.end());
  }
  return span;
}

std::string describe(const Kind& kind, const Span& span) {
  const StateLayout& layout = kind.layout;
  Rows shape;
  for (int axis = 0; axis < layout.rank; ++axis) {
    shape.push_back(layout.end(axis, span) - layout.begin(axis, span));
  }
  return "{\"name\":" + quoted(kind.state.name) + ",\"dtype\":\"" +
         dtype_name(kind.state.type.dtype) + "\",\"shape\":" + list_of(shape) + ",\"nbytes\":" +
         std::to_string(layout.count(span) * layout.itemsize) + "}";
}

void save_snapshot(const std::string& path, const Bundle& bundle, const StateMemory& memory,
                   const std::string& attached) {
  memory.check_usable();
  Json given;
  const bool object = attached.empty() || (Json::read(attached.data(), attached.size(), &given) &&
                                           given.is(Json::Kind::kObject));
  if (!object) fail(KVC_BAD_ARGUMENT, "attached: expected a JSON object");
  Rows position;
  const bool known = memory.known_position(0, &position);
  const Marks marks = marks_of(memory, known ? &position : nullptr);
  const Rows* at = known ? &position : nullptr;
  const std::string header = header_of(bundle, memory, marks, at, attached);
  if (header.size() > kMostHeader) fail(KVC_BAD_ARGUMENT, "attached: it is too large");
  NewFile file(path);
  Sha256 digest;
  const auto put = [&](const void* bytes, size_t nbytes) {
    digest.update(bytes, nbytes);
    file.write(bytes, nbytes);
  };
  uint8_t lead[kLead];
  const uint64_t nbytes = header.size();
  std::memcpy(lead, kSnapshotMagic, 8);
  std::memcpy(lead + 8, &kSnapshotVersion, 4);
  std::memcpy(lead + 12, &nbytes, 8);
  put(lead, sizeof lead);
  put(header.data(), header.size());
  std::vector<uint8_t> held;  // several runs are written at a time
  const auto flush = [&] {
    put(held.data(), held.size());
    held.clear();
  };
  for (size_t i = 0; i < memory.count(); ++i) {
    const Kind& kind = memory.kind(static_cast<int>(i));
    const uint8_t* base = memory.base(static_cast<int>(i));
    kind.layout.for_rows(saved_span(kind, i, marks), [&](int64_t from, int64_t, int64_t run) {
      held.insert(held.end(), base + from, base + from + run);
      if (held.size() >= 1 << 20) flush();
    });
  }
  flush();
  const Digest found = digest.finish();
  file.write(found.data(), found.size());
  file.commit();
}

}  // namespace kvc::lib
