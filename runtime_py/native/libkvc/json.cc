#include "json.h"

#include <cstdlib>
#include <cstring>
#include <unordered_set>

#include "utf8.h"

namespace kvc::lib {
namespace {

constexpr int kMostDepth = 64;
constexpr size_t kFewMembers = 16;  // up to this number, keys are compared one by one

class Reader {
 public:
  Reader(const char* text, size_t nbytes) : next_(text), end_(text + nbytes) {}

  bool whole(Json* found) {
    return value(found, 0) && (skip_spaces(), next_ == end_);
  }

 private:
  void skip_spaces() {
    while (next_ < end_ && std::strchr(" \t\n\r", *next_) != nullptr && *next_ != '\0') ++next_;
  }

  bool take(char wanted) {
    skip_spaces();
    if (next_ == end_ || *next_ != wanted) return false;
    ++next_;
    return true;
  }

  bool word(const char* wanted) {
    const size_t length = std::strlen(wanted);
    if (static_cast<size_t>(end_ - next_) < length) return false;
    if (std::memcmp(next_, wanted, length) != 0) return false;
    next_ += length;
    return true;
  }

  bool value(Json* found, int depth) {
    skip_spaces();
    if (next_ == end_ || depth > kMostDepth) return false;
    found->begin = next_;
    const bool read = bare_value(found, depth);
    found->end = next_;
    return read;
  }

  bool bare_value(Json* found, int depth) {
    switch (*next_) {
      case 'n': return word("null");
      case 't':
      case 'f':
        found->kind = Json::Kind::kBool;
        found->truth = *next_ == 't';
        return word(found->truth ? "true" : "false");
      case '"': found->kind = Json::Kind::kText; return string(&found->text);
      case '[': found->kind = Json::Kind::kList; return list(found, depth);
      case '{': found->kind = Json::Kind::kObject; return object(found, depth);
      default: return number(found);
    }
  }

  bool list(Json* found, int depth) {
    ++next_;
    if (take(']')) return true;
    do {
      found->items.emplace_back();
      if (!value(&found->items.back(), depth + 1)) return false;
    } while (take(','));
    return take(']');
  }

  // Whether an object has a key already. Of large ones, such as vocabularies, keys are hashed.
  static bool is_twice(const Json& object, const std::string& key,
                       std::unordered_set<std::string>* seen) {
    if (object.members.size() < kFewMembers) return object.find(key.c_str()) != nullptr;
    if (seen->empty()) {
      for (const auto& member : object.members) seen->insert(member.first);
    }
    return !seen->insert(key).second;
  }

  bool object(Json* found, int depth) {
    ++next_;
    std::unordered_set<std::string> seen;
    if (take('}')) return true;
    do {
      skip_spaces();
      std::string key;
      if (next_ == end_ || *next_ != '"' || !string(&key)) return false;
      if (is_twice(*found, key, &seen)) return false;
      if (!take(':')) return false;
      found->members.emplace_back(key, Json());
      if (!value(&found->members.back().second, depth + 1)) return false;
    } while (take(','));
    return take('}');
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  bool digits() {
    const char* first = next_;
    while (next_ < end_ && is_digit(*next_)) ++next_;
    return next_ > first;
  }

  bool number(Json* found) {
    const char* first = next_;
    if (*next_ == '-') ++next_;
    const char* whole = next_;
    if (!digits() || (*whole == '0' && next_ - whole > 1)) return false;
    bool fraction = false;
    if (next_ < end_ && *next_ == '.') {
      fraction = true;
      ++next_;
      if (!digits()) return false;
    }
    if (next_ < end_ && (*next_ == 'e' || *next_ == 'E')) {
      fraction = true;
      ++next_;
      if (next_ < end_ && (*next_ == '+' || *next_ == '-')) ++next_;
      if (!digits()) return false;
    }
    const std::string text(first, next_);
    found->number = std::strtod(text.c_str(), nullptr);
    const bool whole_number = !fraction && text.size() <= 19;
    found->kind = whole_number ? Json::Kind::kInteger : Json::Kind::kNumber;
    if (whole_number) found->integer = std::strtoll(text.c_str(), nullptr, 10);
    return true;
  }

  bool hex(uint32_t* code) {
    if (end_ - next_ < 4) return false;
    *code = 0;
    for (int i = 0; i < 4; ++i, ++next_) {
      const char c = *next_;
      const int digit = is_digit(c)              ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return false;
      *code = *code << 4 | static_cast<uint32_t>(digit);
    }
    return true;
  }

  static void add_utf8(uint32_t code, std::string* text) {
    const auto put = [&](uint32_t byte) { *text += static_cast<char>(byte); };
    if (code < 0x80) return put(code);
    if (code < 0x800) return put(0xC0 | code >> 6), put(0x80 | (code & 63));
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 63));
    }
    put(0x80 | (code >> 6 & 63));
    put(0x80 | (code & 63));
  }

  bool escape(std::string* text) {
    if (next_ == end_) return false;
    const char c = *next_++;
    if (c == 'u') {
      uint32_t code, second;
      if (!hex(&code)) return false;
      if (code >= 0xD800 && code < 0xDC00 && word("\\u")) {
        if (!hex(&second) || second < 0xDC00 || second > 0xDFFF) return false;
        code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00);
      }
      add_utf8(code, text);
      return true;
    }
    static const char kNames[] = "\"\\/bfnrt", kValues[] = "\"\\/\b\f\n\r\t";
    const char* place = c == '\0' ? nullptr : std::strchr(kNames, c);
    if (place == nullptr) return false;
    *text += kValues[place - kNames];
    return true;
  }

  bool string(std::string* text) {
    ++next_;
    while (next_ < end_) {
      const char c = *next_++;
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        *text += c;
      } else if (!escape(text)) {
        return false;
      }
    }
    return false;
  }

  const char* next_;
  const char* end_;
};

}  // namespace

bool Json::read(const char* text, size_t nbytes, Json* found) {
  return is_utf8(text, nbytes) && Reader(text, nbytes).whole(found);
}

const Json* Json::find(const char* key) const {
  for (const auto& member : members) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') made += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      made += c;
    } else {
      const char* digits = "0123456789abcdef";
      made += "\\u00";
      made += digits[c >> 4];
      made += digits[c & 15];
    }
  }
  return made + "\"";
}

}  // namespace kvc::lib
