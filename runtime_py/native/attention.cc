// kvc::attention: queries over the valid part of a cache, linear or a ring.
//
// Positions are taken in pieces of kPiece, cut at multiples of it. For each query a piece
// gives its greatest score, the sum of its weights and the values that they mix; pieces
// are folded into one in the order of their positions (the online softmax of Milakov and
// Gimelshein, 2018). So a result depends on neither the threads nor on how a prompt is cut
// into calls. The queries of a group of heads read its keys and values together.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "copies.h"
#include "family_contracts.h"
#include "kernels.h"
#include "pool.h"
#include "products.h"
#include "rings.h"
#include "vector_math.h"

namespace kvc {
namespace {

constexpr int64_t kPiece = 256;     // positions
constexpr int64_t kMostRows = 24;   // queries, of all heads of a group, that go together
constexpr int64_t kStride = kPiece + 16;  // of a row of scores: lines of memory, whole
// No window is wider than this and no position lies after it, so that sums lie within int64.
constexpr int64_t kWidest = int64_t{1} << 61;
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Arguments {
  Tensor out, q, k, v, valid, mask, slopes, sinks, k_scale, v_scale, lengths;
  bool causal, circular;
  int64_t left, right, keep;  // kAbsent: no bound
  float scale, softcap;       // softcap 0: none
  int64_t batch, heads, groups, share, seq, slots, width, value_width;

  explicit Arguments(const Step& step) {
    const Tensor* t = step.tensors;
    out = t[0], q = t[1], k = t[2], v = t[3], valid = t[4], mask = t[5], slopes = t[6];
    sinks = t[7], k_scale = t[8], v_scale = t[9], lengths = t[10];
    causal = step.integers[0] != 0;
    left = std::min(step.integers[1], kWidest);
    right = causal ? 0 : std::min(step.integers[2], kWidest);
    circular = step.integers[3] != 0;
    keep = step.integers[4];
    batch = q.dims[0], heads = q.dims[1], seq = q.dims[2], width = q.dims[3];
    groups = k.dims[1], slots = k.dims[2], value_width = v.dims[3];
    share = groups != 0 ? heads / groups : 0;
    const double given = step.numbers[0], cap = step.numbers[1];
    scale = given == given ? static_cast<float>(given) : 1.0f / std::sqrt(static_cast<float>(width));
    softcap = cap == cap ? static_cast<float>(cap) : 0.0f;
  }

  int64_t total(int64_t row) const { return valid.as<const int64_t>()[row * valid.strides[0]]; }
  int64_t count(int64_t row) const {
    return lengths ? lengths.as<const int64_t>()[row * lengths.strides[0]] : seq;
  }
};

// The positions of a row that are in the cache, and which of them a query sees.
struct Sight {
  int64_t start, oldest, end, left, right, keep;

  Sight(const Arguments& a, int64_t row)
      : start(a.total(row) - a.count(row)),
        oldest(a.circular ? a.keep + std::max<int64_t>(0, a.total(row) - a.slots) : 0),
        end(a.mask ? std::min(a.total(row), a.mask.dims[3]) : a.total(row)),
        left(a.left),
        right(a.right),
        keep(a.keep) {}

  int64_t last(int64_t query) const {
    return right == kAbsent ? end : std::min(end, start + query + right + 1);
  }
  int64_t first(int64_t query) const {
    return left == kAbsent ? oldest : std::max(oldest, start + query - left);
  }
};

// Some queries of a row, of all heads of a group.
struct Block {
  int64_t row, group, first, count;  // queries `first` to `first + count`
  int64_t rows(const Arguments& a) const { return count * a.share; }
  int64_t head(const Arguments& a, int64_t index) const { return group * a.share + index % a.share; }
  int64_t query(const Arguments& a, int64_t index) const { return first + index / a.share; }
};

// What pieces give, of at most kMostRows queries: see the top.
struct Partial {
  float most[kMostRows], total[kMostRows];
  float* mixed;  // [rows, value_width]
};

// Rows of a cache with elements that lie together, float32 or float16.
struct Rows {
  const void* data;
  int64_t stride;
  bool half;
};

template <class T>
void spread(const T* from, int64_t stride, int64_t step, int64_t count, int64_t width, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      to[i * width + j] = static_cast<float>(from[i * stride + j * step]);
    }
  }
}

// `once`: whether each row is read once, so that float16 is widened on the way.
Rows rows_of(const Tensor& cache, int64_t row, int64_t group, int64_t slot, int64_t count,
             bool once, float* scratch) {
  const int64_t at = row * cache.strides[0] + group * cache.strides[1] + slot * cache.strides[2];
  const int64_t width = cache.dims[3], step = cache.strides[3], stride = cache.strides[2];
  const bool together = step == 1 || width == 1;
  if (cache.dtype == DType::kFloat32) {
    const float* from = cache.as<const float>() + at;
    if (together) return {from, stride, false};
    spread(from, stride, step, count, width, scratch);
  } else if (cache.dtype == DType::kFloat16) {
    const Half* from = cache.as<const Half>() + at;
    if (together && once) return {from, stride, true};
    for (int64_t i = 0; together && i < count; ++i) {
      product_kernels().widen(from + i * stride, width, scratch + i * width);
    }
    if (!together) spread(from, stride, step, count, width, scratch);
  } else {
    spread(cache.as<const int8_t>() + at, stride, step, count, width, scratch);
  }
  return {scratch, width, false};
}

// Scales of some slots, as they lie one after the other in `scratch`.
const float* scales_of(const Tensor& scales, int64_t row, int64_t group, int64_t slot,
                       int64_t count, float* scratch) {
  const float* from = scales.as<const float>() + row * scales.strides[0] +
                      group * scales.strides[1] + slot * scales.strides[2];
  for (int64_t i = 0; i < count; ++i) scratch[i] = from[i * scales.strides[2]];
  return scratch;
}

class Attention {
 public:
  Attention(const Arguments& arguments) : a_(arguments), kernels_(product_kernels()) {}

  // Floats of scratch that a thread needs.
  int64_t scratch_floats() const {
    return kMostRows * (a_.width + kStride) + kPiece * (a_.width + a_.value_width + 2);
  }

  // How many pieces the keys that a row's queries see may lie in.
  int64_t pieces(int64_t row) const {
    const Sight sight(a_, row);
    const int64_t end = (std::max<int64_t>(0, sight.end) + kPiece - 1) / kPiece;
    return std::min(end, kept_pieces(sight)) + std::max<int64_t>(0, end - first_piece(sight));
  }

  // The number of one of them: those with kept positions come first.
  int64_t piece_at(int64_t row, int64_t index) const {
    const Sight sight(a_, row);
    const int64_t kept = kept_pieces(sight);
    return index < kept ? index : first_piece(sight) + index - kept;
  }

  // What one piece gives to the queries of a block.
  void take(const Block& block, int64_t piece, float* scratch, Partial* found) const {
    const Sight sight(a_, block.row);
    const int64_t rows = block.rows(a_), base = piece * kPiece;
    const int64_t end = std::min(base + kPiece, sight.last(block.first + block.count - 1));
    // Of what lies between the kept positions and the first that is seen nothing is read:
    // those slots hold other positions.
    const int64_t kept = std::min(sight.keep, end);
    const int64_t from = std::max(std::max(base, kept), sight.first(block.first));
    const int64_t begin = base < kept ? base : from;
    for (int64_t i = 0; i < rows; ++i) found->most[i] = kNone;
    if (begin >= end) return;
    const int64_t lane = (begin - base) % 8;
    float* queries = scratch;
    float* scores = queries + kMostRows * a_.width + lane;
    float* keys = queries + kMostRows * (a_.width + kStride);
    float* values = keys + kPiece * a_.width;
    float* key_scales = values + kPiece * a_.value_width;
    float* value_scales = key_scales + kPiece;
    gather(block, queries);
    const int64_t count = end - begin;
    const bool once = rows <= 3;  // as many as the kernels take together
    Rows v{values, a_.value_width, false};
    const bool whole = !a_.circular && a_.v.strides[3] == 1 &&
                       (a_.v.dtype == DType::kFloat32 || (a_.v.dtype == DType::kFloat16 && once));
    if (whole) v = rows_of(a_.v, block.row, block.group, begin, count, once, values);
    const auto read = [&](int64_t place, int64_t slot, int64_t length) {
      const Rows k = rows_of(a_.k, block.row, block.group, slot, length, once, keys);
      kernels_.floats({queries, a_.width, k.data, k.stride, nullptr, scores + place, kStride, 1,
                        rows, length, a_.width, k.half ? Floats::kHalfWeights : Floats::kFloat32},
                       0, length);
      if (a_.k_scale) {
        const float* scale = scales_of(a_.k_scale, block.row, block.group, slot, length, key_scales);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < length; ++j) scores[i * kStride + place + j] *= scale[j];
        }
      }
      if (a_.v_scale) {
        scales_of(a_.v_scale, block.row, block.group, slot, length, value_scales + place);
      }
      if (whole) return;
      float* to = values + place * a_.value_width;
      const Rows found_rows = rows_of(a_.v, block.row, block.group, slot, length, false, to);
      if (found_rows.data == to) return;
      const auto* from_rows = static_cast<const float*>(found_rows.data);
      for (int64_t j = 0; j < length; ++j) {
        std::memcpy(to + j * a_.value_width, from_rows + j * found_rows.stride,
                    a_.value_width * sizeof(float));
      }
    };
    const auto read_positions = [&](int64_t first, int64_t last) {
      for_slot_runs(first, last - first, a_.slots, a_.circular, a_.keep,
                    [&](int64_t done, int64_t slot, int64_t length) {
        read(first - begin + done, slot, length);
      });
    };
    if (begin < from) {
      const int64_t gap = std::min(from, end) - kept;
      std::fill_n(values + (kept - begin) * a_.value_width, gap * a_.value_width, 0.0f);
      std::fill_n(value_scales + kept - begin, gap, 0.0f);
      for (int64_t i = 0; i < rows; ++i) {
        std::fill_n(scores + i * kStride + kept - begin, gap, kNone);
      }
      read_positions(begin, kept);
    }
    if (from < end) read_positions(from, end);
    for (int64_t i = 0; i < rows; ++i) {
      score(block, sight, i, begin, count, scores + i * kStride);
    }
    kernels_.mix({scores, kStride, lane, v.data, v.stride, a_.v_scale ? value_scales : nullptr,
                  found->most, found->total, found->mixed, a_.value_width, rows, count,
                  a_.value_width, v.half});
  }

  // Adds what the next piece gives.
  void fold(const Partial& piece, int64_t rows, Partial* sum) const {
    const int64_t width = a_.value_width;
    for (int64_t i = 0; i < rows; ++i) {
      if (piece.most[i] == kNone) continue;
      const float* from = piece.mixed + i * width;
      float* to = sum->mixed + i * width;
      if (sum->most[i] == kNone) {
        sum->most[i] = piece.most[i];
        sum->total[i] = piece.total[i];
        std::memcpy(to, from, width * sizeof(float));
        continue;
      }
      const float most = std::max(sum->most[i], piece.most[i]);
      const float mine = exp_of(sum->most[i] - most), other = exp_of(piece.most[i] - most);
      sum->most[i] = most;
      sum->total[i] = sum->total[i] * mine + piece.total[i] * other;
      for (int64_t j = 0; j < width; ++j) to[j] = to[j] * mine + from[j] * other;
    }
  }

  // Writes the results of a block.
  void finish(const Block& block, const Partial& sum) const {
    for (int64_t i = 0; i < block.rows(a_); ++i) {
      const int64_t head = block.head(a_, i);
      float* to = a_.out.as<float>() +
                  ((block.row * a_.heads + head) * a_.seq + block.query(a_, i)) * a_.value_width;
      float total = sum.total[i], factor = 1.0f;
      if (sum.most[i] == kNone) {
        std::memset(to, 0, a_.value_width * sizeof(float));
        continue;
      }
      if (a_.sinks) {
        const float sink = a_.sinks.as<const float>()[head * a_.sinks.strides[0]];
        const float most = std::max(sum.most[i], sink);
        factor = exp_of(sum.most[i] - most);
        total = total * factor + exp_of(sink - most);
      }
      const float* from = sum.mixed + i * a_.value_width;
      for (int64_t j = 0; j < a_.value_width; ++j) to[j] = from[j] * factor / total;
    }
  }

 private:
  static int64_t kept_pieces(const Sight& sight) { return (sight.keep + kPiece - 1) / kPiece; }
  static int64_t first_piece(const Sight& sight) {
    return std::max(kept_pieces(sight), std::max<int64_t>(0, sight.first(0)) / kPiece);
  }

  // Copies the queries of a block, scaled, one row after the other.
  void gather(const Block& block, float* queries) const {
    for (int64_t i = 0; i < block.rows(a_); ++i) {
      const float* from = a_.q.as<const float>() + block.row * a_.q.strides[0] +
                          block.head(a_, i) * a_.q.strides[1] + block.query(a_, i) * a_.q.strides[2];
      float* to = queries + i * a_.width;
      for (int64_t j = 0; j < a_.width; ++j) to[j] = from[j * a_.q.strides[3]] * a_.scale;
    }
  }

  // Makes scores of products: soft cap, mask, slopes; -infinity where a key is not seen.
  void score(const Block& block, const Sight& sight, int64_t index, int64_t begin, int64_t count,
             float* scores) const {
    const int64_t head = block.head(a_, index), query = block.query(a_, index);
    if (a_.softcap != 0) {
      for (int64_t i = 0; i < count; ++i) scores[i] = a_.softcap * std::tanh(scores[i] / a_.softcap);
    }
    if (a_.mask) {
      const Tensor& mask = a_.mask;
      const int64_t at = (mask.dims[0] == 1 ? 0 : block.row * mask.strides[0]) +
                         (mask.dims[1] == 1 ? 0 : head * mask.strides[1]) + query * mask.strides[2];
      for (int64_t i = 0; i < count; ++i) {
        const int64_t place = at + (begin + i) * mask.strides[3];
        if (mask.dtype == DType::kFloat32) scores[i] += mask.as<const float>()[place];
        if (mask.dtype == DType::kBool && mask.as<const uint8_t>()[place] == 0) scores[i] = kNone;
      }
    }
    if (a_.slopes) {
      const float slope = a_.slopes.as<const float>()[head * a_.slopes.strides[0]];
      const int64_t here = sight.start + query;
      for (int64_t i = 0; i < count; ++i) scores[i] += slope * static_cast<float>(begin + i - here);
    }
    const int64_t first = sight.first(query), last = sight.last(query);
    const auto hide = [&](int64_t from, int64_t to) {
      from = std::max(from - begin, int64_t{0}), to = std::min(to - begin, count);
      if (from < to) std::fill_n(scores + from, to - from, kNone);
    };
    hide(sight.keep, first);
    hide(last, begin + count);
  }

  const Arguments& a_;
  const ProductKernels& kernels_;
};

bool check_lengths(const Arguments& a, const Context& context) {
  for (int64_t row = 0; row < a.batch; ++row) {
    const int64_t total = a.total(row);
    if (total < 0 || total > kWidest || (!a.circular && total > a.slots)) {
      return context.refuse(Fault::kBadLength, row, total, a.slots);
    }
  }
  for (int64_t row = 0; row < a.batch; ++row) {
    const int64_t count = a.count(row);
    if (count < 0 || count > a.seq) return context.refuse(Fault::kRowLengthOutOfRange, row, count, a.seq);
  }
  return true;
}

// Queries that do not count give zeros.
void clear_padding(const Arguments& a) {
  for (int64_t row = 0; row < a.batch; ++row) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const int64_t count = a.count(row);
      float* to = a.out.as<float>() + ((row * a.heads + head) * a.seq + count) * a.value_width;
      std::memset(to, 0, (a.seq - count) * a.value_width * sizeof(float));
    }
  }
}

bool attend(const Step& step, const Context& context) {
  const Arguments a(step);
  if (!check_lengths(a, context)) return false;
  if (a.out.count() == 0) return true;
  if (a.lengths) clear_padding(a);
  if (a.share > kMostRows) return context.refuse(Fault::kBadLength, 0, a.share, kMostRows);
  const Attention attention(a);
  const int64_t queries = std::max<int64_t>(1, kMostRows / a.share);
  const int64_t blocks = (a.seq + queries - 1) / queries, items = a.batch * a.groups * blocks;
  int64_t pieces = 1;
  for (int64_t row = 0; row < a.batch; ++row) pieces = std::max(pieces, attention.pieces(row));
  const auto block_of = [&](int64_t item) {
    Block block{item / (a.groups * blocks), item / blocks % a.groups, item % blocks * queries, 0};
    block.count = std::min(queries, a.count(block.row) - block.first);
    return block;
  };
  const int64_t mixed_floats = kMostRows * a.value_width;
  const int64_t scratch_floats = attention.scratch_floats();
  if (items >= 4 * context.threads || pieces == 1) {
    parallel(items, 1, context.threads, [&](int64_t begin, int64_t end, int) {
      auto* scratch = static_cast<float*>(
          context.workspace((scratch_floats + 2 * mixed_floats) * sizeof(float), 3));
      if (scratch == nullptr) return;
      Partial piece, sum;
      piece.mixed = scratch + scratch_floats;
      sum.mixed = piece.mixed + mixed_floats;
      for (int64_t item = begin; item < end; ++item) {
        const Block block = block_of(item);
        if (block.count <= 0) continue;
        std::fill_n(sum.most, kMostRows, kNone);
        for (int64_t i = 0; i < attention.pieces(block.row); ++i) {
          attention.take(block, attention.piece_at(block.row, i), scratch, &piece);
          attention.fold(piece, block.rows(a), &sum);
        }
        attention.finish(block, sum);
      }
    });
  } else {
    // Few queries over many keys: pieces side by side, folded afterwards.
    auto* memory = static_cast<char*>(
        context.workspace(items * pieces * (sizeof(Partial) + mixed_floats * sizeof(float)), 0));
    if (memory == nullptr) return context.complete();
    auto* partials = reinterpret_cast<Partial*>(memory);
    auto* mixed = reinterpret_cast<float*>(memory + items * pieces * sizeof(Partial));
    parallel(items * pieces, 1, context.threads, [&](int64_t begin, int64_t end, int) {
      auto* scratch = static_cast<float*>(context.workspace(scratch_floats * sizeof(float), 3));
      if (scratch == nullptr) return;
      for (int64_t i = begin; i < end; ++i) {
        partials[i].mixed = mixed + i * mixed_floats;
        const Block block = block_of(i / pieces);
        if (block.count <= 0) continue;
        const int64_t piece = attention.piece_at(block.row, i % pieces);
        attention.take(block, piece, scratch, &partials[i]);
      }
    });
    if (!context.complete()) return false;
    for (int64_t item = 0; item < items; ++item) {
      const Block block = block_of(item);
      if (block.count <= 0) continue;
      for (int64_t i = 1; i < pieces; ++i) {
        attention.fold(partials[item * pieces + i], block.rows(a), &partials[item * pieces]);
      }
      attention.finish(block, partials[item * pieces]);
    }
  }
  return context.complete();
}

}  // namespace

const Entry kAttention[] = {{"kvc::attention", attend, attended}, {nullptr, nullptr, nullptr}};

}  // namespace kvc
