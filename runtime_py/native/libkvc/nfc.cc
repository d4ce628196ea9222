#include "nfc.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

namespace kvc::lib::text {
namespace {

struct Triple {
  uint32_t character, first, second;
};

#include "unicode_composing.inc"

// Hangul is composed by arithmetic (The Unicode Standard, 3.12).
constexpr uint32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr uint32_t kLeads = 19, kVowels = 21, kTails = 28;
constexpr uint32_t kFirstChanged = 0x300;  // characters below are as they are

int class_of(uint32_t c) {
  const auto after = [](uint32_t wanted, const Triple& range) { return wanted < range.character; };
  const Triple* found = std::upper_bound(std::begin(kClasses), std::end(kClasses), c, after);
  return found != kClasses && c <= (found - 1)->first ? static_cast<int>((found - 1)->second) : 0;
}

template <size_t N>
const Triple* part_of(const Triple (&table)[N], uint32_t c) {
  const auto before = [](const Triple& one, uint32_t wanted) { return one.character < wanted; };
  const Triple* found = std::lower_bound(std::begin(table), std::end(table), c, before);
  return found != std::end(table) && found->character == c ? found : nullptr;
}

void decompose(uint32_t c, Characters* made) {
  if (c - kSyllable < kLeads * kVowels * kTails) {
    const uint32_t place = c - kSyllable, tail = place % kTails;
    made->push_back(kLead + place / kTails / kVowels);
    made->push_back(kVowel + place / kTails % kVowels);
    if (tail != 0) made->push_back(kTail + tail);
    return;
  }
  const Triple* found = part_of(kComposed, c);
  if (found == nullptr) found = part_of(kDecomposed, c);
  if (found == nullptr) {
    made->push_back(c);
    return;
  }
  decompose(found->first, made);
  if (found->second != 0) decompose(found->second, made);
}

// Puts the marks that follow a character into the order of their classes.
void order_marks(Characters* text) {
  const auto is_lower = [](uint32_t a, uint32_t b) { return class_of(a) < class_of(b); };
  for (auto at = text->begin(); at != text->end();) {
    const auto is_starter = [](uint32_t c) { return class_of(c) == 0; };
    const auto first = std::find_if_not(at, text->end(), is_starter);
    at = std::find_if(first, text->end(), is_starter);
    std::stable_sort(first, at, is_lower);
  }
}

// What two characters are together, 0 for nothing.
uint32_t pair(uint32_t first, uint32_t second) {
  if (first - kLead < kLeads && second - kVowel < kVowels) {
    return kSyllable + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
  }
  const bool open =
      first - kSyllable < kLeads * kVowels * kTails && (first - kSyllable) % kTails == 0;
  if (open && second - kTail - 1 < kTails - 1) return first + (second - kTail);
  static const auto* const pairs = [] {
    auto* made = new std::unordered_map<uint64_t, uint32_t>;
    for (const Triple& one : kComposed) {
      (*made)[static_cast<uint64_t>(one.first) << 32 | one.second] = one.character;
    }
    return made;
  }();
  const auto found = pairs->find(static_cast<uint64_t>(first) << 32 | second);
  return found == pairs->end() ? 0 : found->second;
}

// Composes each mark with the last starter, unless a mark of its class or a starter is between.
void join(Characters* text) {
  size_t count = 0, starter = SIZE_MAX;
  int last = 0;  // the class of the last character since the starter
  for (const uint32_t c : *text) {
    const int own = class_of(c);
    const bool adjacent = starter != SIZE_MAX && starter + 1 == count;
    const bool free = starter != SIZE_MAX && (adjacent || (last < own && last != 0));
    const uint32_t made = free ? pair((*text)[starter], c) : 0;
    if (made != 0) {
      (*text)[starter] = made;
      continue;
    }
    if (own == 0) starter = count;
    last = own;
    (*text)[count++] = c;
  }
  text->resize(count);
}

}  // namespace

void compose(Characters* text) {
  const auto is_plain = [](uint32_t c) { return c < kFirstChanged; };
  if (std::all_of(text->begin(), text->end(), is_plain)) return;
  Characters made;
  made.reserve(text->size());
  for (const uint32_t c : *text) decompose(c, &made);
  order_marks(&made);
  join(&made);
  *text = std::move(made);
}

}  // namespace kvc::lib::text
