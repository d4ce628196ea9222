#include "tokenizer.h"

#include <algorithm>
#include <queue>

#include "errors.h"
#include "nfc.h"

namespace kvc::lib::text {
namespace {

using Kind = Json::Kind;

constexpr int64_t kMostTokens = int64_t{1} << 24;

[[noreturn]] void refuse(const char* expected, const std::string& found) {
  fail(KVC_UNSUPPORTED_TOKENIZER, "tokenizer.json: expected %s, got %s", expected,
       shown(found).c_str());
}

bool is_missing(const Json* found) { return found == nullptr || found->is(Kind::kNull); }

// A setting that must be absent, false or empty.
void expect_none(const Json& object, const char* key) {
  const Json* found = object.find(key);
  const bool none = is_missing(found) || (found->is(Kind::kBool) && !found->truth) ||
                    (found->is(Kind::kText) && found->text.empty());
  if (!none) refuse((std::string("no ") + key).c_str(), found->source());
}

std::string type_of(const Json& object) {
  const Json* found = object.find("type");
  return found != nullptr ? found->text : "";
}

int64_t token_in(const Json& found) {
  if (!found.is(Kind::kInteger) || found.integer < 0 || found.integer >= kMostTokens) {
    refuse("tokens from 0 to 2**24 - 1", found.source());
  }
  return found.integer;
}

// The letter that stands for a byte, as in GPT-2: printable ones of Latin 1 stand for themselves,
// those from U+0100 on for the other bytes, in order.
struct Letters {
  uint32_t of_byte[256];
  int byte_of[0x144];  // -1 for letters that stand for none

  Letters() {
    std::fill(std::begin(byte_of), std::end(byte_of), -1);
    uint32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool own = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      of_byte[byte] = own ? static_cast<uint32_t>(byte) : next++;
      byte_of[of_byte[byte]] = byte;
    }
  }
};

const Letters& letters() {
  static const Letters made;
  return made;
}

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// The two names of a merge: ["a", "b"], or "a b".
bool names_of(const Json& merge, std::string* left, std::string* right) {
  if (merge.is(Kind::kList) && merge.items.size() == 2) {
    *left = merge.items[0].text;
    *right = merge.items[1].text;
    return true;
  }
  const size_t space = merge.text.find(' ');
  if (space == std::string::npos || merge.text.find(' ', space + 1) != std::string::npos)
    return false;
  *left = merge.text.substr(0, space);
  *right = merge.text.substr(space + 1);
  return true;
}

}  // namespace

Tokenizer::Tokenizer() : bytes_(256), is_bytes_(true) {
  for (int byte = 0; byte < 256; ++byte) bytes_[byte] = static_cast<char>(byte);
}

Tokenizer::Tokenizer(const char* json, size_t nbytes) {
  Json root;
  if (!Json::read(json, nbytes, &root) || !root.is(Kind::kObject)) {
    refuse("JSON", "a file of another kind");
  }
  const Json *model = root.find("model"), *splitting = root.find("pre_tokenizer");
  if (model == nullptr) refuse("a model", "none");
  if (is_missing(splitting)) refuse("a pre_tokenizer", "none");
  read_decoder(root.find("decoder"));
  splitting_ = Splitting(*splitting);
  read_normalizer(root.find("normalizer"));
  read_model(*model);
  read_added(root.find("added_tokens"));
  read_template(root.find("post_processor"));
}

void Tokenizer::read_decoder(const Json* decoder) const {
  if (is_missing(decoder)) refuse("a decoder of the type ByteLevel", "none");
  if (type_of(*decoder) != "ByteLevel")
    refuse("a decoder of the type ByteLevel", decoder->source());
}

void Tokenizer::read_normalizer(const Json* normalizer) {
  if (is_missing(normalizer)) return;
  if (type_of(*normalizer) != "NFC") refuse("no normalizer, or NFC", normalizer->source());
  composes_ = true;
}

void Tokenizer::read_model(const Json& model) {
  const Json *vocabulary = model.find("vocab"), *merges = model.find("merges");
  if (type_of(model) != "BPE" || vocabulary == nullptr || merges == nullptr) {
    refuse("a model of the type BPE", type_of(model));
  }
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                          "byte_fallback"}) {
    expect_none(model, key);
  }
  const Json* whole = model.find("ignore_merges");
  whole_words_ = whole != nullptr && whole->truth;
  vocabulary_.reserve(vocabulary->members.size());
  for (const auto& member : vocabulary->members) {
    const int64_t token = token_in(member.second);
    vocabulary_[member.first] = static_cast<int32_t>(token);
    name_bytes(member.first, token, false);
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    add_utf8(letters().of_byte[byte], &letter);
    const auto found = vocabulary_.find(letter);
    of_byte_[byte] = found == vocabulary_.end() ? -1 : found->second;
  }
  read_merges(*merges);
}

void Tokenizer::read_merges(const Json& merges) {
  merges_.reserve(merges.items.size());
  int32_t rank = 0;
  for (const Json& merge : merges.items) {
    std::string left, right;
    if (!names_of(merge, &left, &right)) refuse("merges of two tokens", merge.source());
    const auto a = vocabulary_.find(left), b = vocabulary_.find(right),
               both = vocabulary_.find(left + right);
    if (a == vocabulary_.end() || b == vocabulary_.end() || both == vocabulary_.end()) {
      refuse("merges of tokens in the vocabulary", merge.source());
    }
    merges_[pair_of(a->second, b->second)] = {rank++, both->second};
  }
}

// Notes the bytes of a token: its letters stand for bytes, unless one stands for none.
void Tokenizer::name_bytes(const std::string& name, int64_t token, bool is_special) {
  if (static_cast<size_t>(token) >= bytes_.size()) bytes_.resize(static_cast<size_t>(token) + 1);
  std::string& bytes = bytes_[static_cast<size_t>(token)];
  bytes.clear();
  Characters characters;
  if (is_special || !characters_of(name.data(), name.size(), &characters)) return;
  for (const uint32_t c : characters) {
    const int byte = c < std::size(letters().byte_of) ? letters().byte_of[c] : -1;
    if (byte < 0) {
      bytes = name;
      return;
    }
    bytes += static_cast<char>(byte);
  }
}

void Tokenizer::read_added(const Json* added) {
  if (is_missing(added)) return;
  for (const Json& one : added->items) {
    const Json *id = one.find("id"), *content = one.find("content");
    if (id == nullptr || content == nullptr || content->text.empty())
      refuse("added tokens", one.source());
    for (const char* key : {"single_word", "lstrip", "rstrip"}) expect_none(one, key);
    const Json *special = one.find("special"), *normalized = one.find("normalized");
    const bool is_special = special != nullptr && special->truth;
    Added made{content->text, {}, token_in(*id)};
    if (!characters_of(made.name.data(), made.name.size(), &made.characters)) {
      refuse("names of UTF-8", one.source());
    }
    name_bytes(made.name, made.token, is_special);
    const bool late = normalized == nullptr ? !is_special : normalized->truth;
    if (late && composes_) compose(&made.characters);
    added_[late].push_back(made);
  }
  // The longest name comes first where several fit.
  for (auto& some : added_) {
    std::stable_sort(some.begin(), some.end(), [](const Added& a, const Added& b) {
      return a.characters.size() > b.characters.size();
    });
  }
}

void Tokenizer::read_template(const Json* post_processor) {
  if (is_missing(post_processor)) return;
  const std::string type = type_of(*post_processor);
  if (type == "ByteLevel") return;  // it only moves offsets
  if (type == "Sequence") {
    const Json* parts = post_processor->find("processors");
    if (parts == nullptr) refuse("a post_processor", post_processor->source());
    for (const Json& part : parts->items) read_template(&part);
    return;
  }
  const Json* single = post_processor->find("single");
  if (type != "TemplateProcessing" || single == nullptr) {
    refuse("a post_processor of the type ByteLevel or TemplateProcessing",
           post_processor->source());
  }
  read_single(*single, post_processor->find("special_tokens"));
}

void Tokenizer::read_single(const Json& single, const Json* names) {
  Tokens* side = &before_;
  for (const Json& piece : single.items) {
    const Json* special = piece.find("SpecialToken");
    if (special == nullptr) {
      if (side == &after_ || piece.find("Sequence") == nullptr)
        refuse("a template of one text", single.source());
      side = &after_;
      continue;
    }
    const Json* id = special->find("id");
    const Json* entry = names == nullptr || id == nullptr ? nullptr : names->find(id->text.c_str());
    const Json* ids = entry == nullptr ? nullptr : entry->find("ids");
    if (ids == nullptr) refuse("a template of known tokens", single.source());
    for (const Json& token : ids->items) side->push_back(token_in(token));
  }
  if (side == &before_) refuse("a template with a text", single.source());
}

const std::string& Tokenizer::bytes_of(int64_t token) const {
  static const std::string none;
  return token >= 0 && token < static_cast<int64_t>(bytes_.size())
             ? bytes_[static_cast<size_t>(token)]
             : none;
}

Tokens Tokenizer::encode(const char* text, size_t nbytes, bool special) const {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text);
  if (is_bytes_) return Tokens(bytes, bytes + nbytes);
  Characters characters;
  if (!characters_of(text, nbytes, &characters)) {
    fail(KVC_BAD_ARGUMENT, "the text is not UTF-8");
  }
  Tokens made = special ? before_ : Tokens();
  encode_part(characters, 0, characters.size(), 0, &made);
  if (special) made.insert(made.end(), after_.begin(), after_.end());
  return made;
}

// Encodes a part of a text. Only added tokens of the first pass are found in it as it is.
void Tokenizer::encode_part(const Characters& text, size_t first, size_t end, size_t pass,
                            Tokens* made) const {
  if (pass == 1 && composes_) {
    Characters composed(text.begin() + first, text.begin() + end);
    compose(&composed);
    find_added(composed, 0, composed.size(), pass, made);
    return;
  }
  find_added(text, first, end, pass, made);
}

// Encodes a part of a text: added tokens of a pass, and what lies between them by the next one.
void Tokenizer::find_added(const Characters& text, size_t first, size_t end, size_t pass,
                           Tokens* made) const {
  if (pass == std::size(added_)) {
    splitting_.split(text, first, end,
                     [&](size_t begin, size_t after) { encode_word(text, begin, after, made); });
    return;
  }
  for (size_t at = first; at < end;) {
    const Added* found = added_at(text, at, end, pass);
    if (found == nullptr) {
      ++at;
      continue;
    }
    if (first < at) encode_part(text, first, at, pass + 1, made);
    made->push_back(found->token);
    first = at += found->characters.size();
  }
  if (first < end) encode_part(text, first, end, pass + 1, made);
}

const Tokenizer::Added* Tokenizer::added_at(const Characters& text, size_t at, size_t end,
                                            size_t pass) const {
  for (const Added& added : added_[pass]) {
    const Characters& name = added.characters;
    if (name[0] != text[at] || name.size() > end - at) continue;
    if (std::equal(name.begin(), name.end(), text.begin() + at)) return &added;
  }
  return nullptr;
}

void Tokenizer::encode_word(const Characters& text, size_t first, size_t end, Tokens* made) const {
  std::string bytes;
  for (size_t i = first; i < end; ++i) add_utf8(text[i], &bytes);
  if (whole_words_) {
    std::string name;
    for (const char c : bytes) add_utf8(letters().of_byte[static_cast<uint8_t>(c)], &name);
    const auto found = vocabulary_.find(name);
    if (found != vocabulary_.end()) {
      made->push_back(found->second);
      return;
    }
  }
  std::vector<Part> parts;
  parts.reserve(bytes.size());
  for (const char c : bytes) {
    const int32_t token = of_byte_[static_cast<uint8_t>(c)];
    const auto place = static_cast<int32_t>(parts.size());
    if (token >= 0) parts.push_back({token, place - 1, place + 1});
  }
  if (parts.empty()) return;
  parts.back().after = -1;
  merge(parts);
  for (int32_t at = 0; at >= 0; at = parts[at].after) made->push_back(parts[at].token);
}

const Tokenizer::Merge* Tokenizer::merge_of(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// Merges neighbours, those of the least rank first; of equal ranks, the leftmost.
void Tokenizer::merge(std::vector<Part>& parts) const {
  struct Candidate {
    int32_t rank, place, left, right, token;
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  std::priority_queue<Candidate> queue;
  const auto add = [&](int32_t place) {
    if (place < 0 || parts[place].after < 0) return;
    const int32_t left = parts[place].token, right = parts[parts[place].after].token;
    const Merge* found = merge_of(left, right);
    if (found != nullptr) queue.push({found->rank, place, left, right, found->token});
  };
  for (size_t i = 0; i < parts.size(); ++i) add(static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Part& part = parts[best.place];
    // A pair that is no longer there was merged with others.
    if (part.token != best.left || part.after < 0 || parts[part.after].token != best.right)
      continue;
    Part& gone = parts[part.after];
    gone.token = -1;
    part.token = best.token;
    part.after = gone.after;
    if (part.after >= 0) parts[part.after].before = best.place;
    add(part.before);
    add(best.place);
  }
}

}  // namespace kvc::lib::text
