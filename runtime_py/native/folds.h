// Reductions whose elements are folded into accumulators, several at a time.
//
// A policy has start(), add(accumulator, element, j, place) and merge(accumulator,
// accumulator); j counts the results of a tile, `place` the elements of a result.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "pool.h"
#include "reduced.h"

namespace kvc {

// The results of a reduction and the elements of each. Where elements of one result lie side
// by side, they are folded in eight lanes; else a tile of neighbouring results is folded at
// once. Either order depends on strides alone.
class Fold {
 public:
  static constexpr int64_t kTile = 256;

  int64_t kept, gone;  // results, and elements of each
  int64_t step = 0;    // from a result of a tile to the next

  // `axes`: how many, then which; none, or absent, means all.
  Fold(const Tensor& x, const int64_t* axes) {
    const Reduced over(x, axes);
    kept = over.kept;
    gone = over.gone;
    for (int i = 0; i < over.gone_rank; ++i) {
      gone_rank_ = push(gone_rank_, over.gone_dims[i], {gone_dims_, gone_strides_},
                        {over.gone_strides[i], 0}, 1);
    }
    inner_ = gone_rank_ != 0 ? gone_dims_[gone_rank_ - 1] : 1;
    inner_stride_ = gone_rank_ != 0 ? gone_strides_[gone_rank_ - 1] : 0;
    int side = -1;
    int64_t targets[kMaxRank], target = 1;
    for (int i = over.kept_rank - 1; i >= 0; --i) {
      if (inner_stride_ != 1 && over.kept_strides[i] == 1 && over.kept_dims[i] > 1) side = i;
      targets[i] = target;
      target *= over.kept_dims[i];
    }
    for (int i = 0; i < over.kept_rank; ++i) {
      if (i == side) {
        width_ = over.kept_dims[i];
        step = targets[i];
      } else {
        outer_rank_ = push(outer_rank_, over.kept_dims[i], {outer_dims_, outer_strides_, outer_targets_},
                           {over.kept_strides[i], targets[i]}, 2);
      }
    }
  }

  // Calls function(first element, how many results, index of the first) for each tile.
  template <class T, class F>
  void each(const Tensor& x, int threads, const F& function) const {
    if (kept == 0) return;
    const int64_t tiles = (width_ + kTile - 1) / kTile;
    const int64_t work = std::max<int64_t>(1, gone) * std::min(width_, kTile);
    parallel(kept / width_ * tiles, std::max<int64_t>(1, kWorth / work), threads,
             [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % tiles * kTile;
        int64_t from = first, to = first * step;
        for (int64_t axis = outer_rank_ - 1, rest = i / tiles; axis >= 0; --axis) {
          const int64_t index = rest % outer_dims_[axis];
          rest /= outer_dims_[axis];
          from += index * outer_strides_[axis];
          to += index * outer_targets_[axis];
        }
        function(x.as<const T>() + from, std::min(kTile, width_ - first), to);
      }
    });
  }

  // Folds the elements of n results, of which `from` is the first.
  template <class T, class P, class A>
  void fold(const T* from, int64_t n, const P& policy, A* found) const {
    if (width_ == 1) {
      *found = row(from, policy);
      return;
    }
    for (int64_t j = 0; j < n; ++j) found[j] = policy.start();
    runs([&](int64_t offset, int64_t place) {
      const T* at = from + offset;
      for (int64_t i = 0; i < inner_; ++i, at += inner_stride_) {
        for (int64_t j = 0; j < n; ++j) found[j] = policy.add(found[j], at[j], j, place + i);
      }
    });
  }

 private:
  static constexpr int64_t kWorth = 16384;  // elements that are worth another thread
  static constexpr int kLanes = 8;

  struct Axes {
    int64_t* dims;
    int64_t* strides[2];
  };
  struct Strides {
    int64_t of[2];
  };

  // Adds an axis with `count` strides, merged with the one before where they lie together;
  // returns the new rank.
  static int push(int rank, int64_t dim, const Axes& axes, const Strides& strides, int count) {
    if (dim == 1) return rank;
    bool merges = rank > 0;
    for (int i = 0; merges && i < count; ++i) merges = axes.strides[i][rank - 1] == strides.of[i] * dim;
    const int at = merges ? rank - 1 : rank;
    axes.dims[at] = merges ? axes.dims[at] * dim : dim;
    for (int i = 0; i < count; ++i) axes.strides[i][at] = strides.of[i];
    return at + 1;
  }

  // Calls function(offset, place) for each run of the last reduced axis.
  template <class F>
  void runs(const F& function) const {
    if (gone == 0) return;
    int64_t at[kMaxRank] = {}, offset = 0;
    for (int64_t place = 0; place < gone; place += inner_) {
      function(offset, place);
      for (int axis = gone_rank_ - 2; axis >= 0; --axis) {
        offset += gone_strides_[axis];
        if (++at[axis] < gone_dims_[axis]) break;
        offset -= at[axis] * gone_strides_[axis];
        at[axis] = 0;
      }
    }
  }

  template <class T, class P>
  auto row(const T* from, const P& policy) const {
    using A = decltype(policy.start());
    A lanes[kLanes];
    for (A& lane : lanes) lane = policy.start();
    runs([&](int64_t offset, int64_t place) {
      const T* at = from + offset;
      int64_t i = 0;
      if (inner_stride_ == 1 && inner_ >= kLanes) {
        A own[kLanes];
        std::copy(lanes, lanes + kLanes, own);
        for (; i + kLanes <= inner_; i += kLanes) {
          for (int lane = 0; lane < kLanes; ++lane) {
            own[lane] = policy.add(own[lane], at[i + lane], 0, place + i + lane);
          }
        }
        std::copy(own, own + kLanes, lanes);
      }
      for (; i < inner_; ++i) {
        A& lane = lanes[i % kLanes];
        lane = policy.add(lane, at[i * inner_stride_], 0, place + i);
      }
    });
    const auto pair = [&](int i) { return policy.merge(lanes[i], lanes[i + 4]); };
    return policy.merge(policy.merge(pair(0), pair(2)), policy.merge(pair(1), pair(3)));
  }

  int outer_rank_ = 0, gone_rank_ = 0;
  int64_t outer_dims_[kMaxRank], outer_strides_[kMaxRank], outer_targets_[kMaxRank];
  int64_t gone_dims_[kMaxRank], gone_strides_[kMaxRank];
  int64_t inner_, inner_stride_;  // of the last reduced axis
  int64_t width_ = 1;             // results that lie side by side
};

// Reduces x; calls write(index of a result, accumulator) for each.
template <class T, class P, class F>
void reduce_into(const F& write, const Tensor& x, const int64_t* axes, const P& policy,
                 const Context& context) {
  const Fold over(x, axes);
  over.each<T>(x, context.threads, [&](const T* from, int64_t n, int64_t to) {
    decltype(policy.start()) found[Fold::kTile];
    over.fold(from, n, policy, found);
    for (int64_t j = 0; j < n; ++j) write(to + j * over.step, found[j]);
  });
}

// Reduces `step.tensors[1]` into `step.tensors[0]`, of elements of type R; each is
// finish(accumulator).
template <class T, class R, class P, class F>
void reduce_with(const Step& step, const Context& context, const int64_t* axes, const P& policy,
                 const F& finish) {
  R* out = step.tensors[0].as<R>();
  const auto write = [&](int64_t to, const auto& found) { out[to] = finish(found); };
  reduce_into<T>(write, step.tensors[1], axes, policy, context);
}

// Whether each result has elements to be chosen among.
inline bool check_choice(const Tensor& x, const int64_t* axes, const Context& context) {
  const Reduced over(x, axes);
  return over.gone != 0 || over.kept == 0 || context.refuse(Fault::kNothingToReduce, 0);
}

}  // namespace kvc
