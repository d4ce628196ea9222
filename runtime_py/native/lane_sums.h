// Sums of runs that lie together: in lanes, and in double from one piece to the next.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvc {

constexpr int64_t kPiece = 2048;  // elements that are summed up in lanes
constexpr int kSumLanes = 16;

// The sum of at(i) for i from 0 to n, in lanes whose halves are added up in turn.
template <int kLanes, class T, class F>
T lane_sum(int64_t n, const F& at) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += at(i + lane);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += at(i);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// The sum of function(x[i]) over at most `kPiece` elements.
template <class T, class F>
T piece_sum(const T* x, int64_t n, const F& function) {
  return lane_sum<kSumLanes, T>(n, [&](int64_t i) { return function(x[i]); });
}

// The sum of any number of elements.
template <class T>
double run_sum(const T* x, int64_t n) {
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t count = std::min(kPiece, n - begin);
    sum += static_cast<double>(piece_sum(x + begin, count, [](T value) { return value; }));
  }
  return sum;
}

}  // namespace kvc
